"""What TensorRT's texts mean, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from trt_perception.errors import EngineError

__all__ = ['HINTS', 'Hint', 'tensorrt_error']


@dataclass(frozen=True)
class Hint:
    """What one of TensorRT's texts means.

    Attributes:
        pattern: regular expression that finds the text.
        meaning: what happened.
        action: what the user can do.
    """

    pattern: str
    meaning: str
    action: str


#: Known texts, the special before the general.
HINTS: Final = (
    Hint(
        r'within workspace limit|[Ii]nsufficient workspace|requires more workspace',
        'no kernel fits into the memory that --workspace-mib allows',
        'raise --workspace-mib, or leave it out',
    ),
    Hint(
        r'libnvinfer_lean',
        'version-compatible engines need the lean runtime, which is not installed',
        'leave --version-compatible out, or install libnvinfer-lean',
    ),
    Hint(
        r'Plugin not found|No importer registered for op|Op type .* is not supported',
        'the model has an operator that TensorRT does not know',
        'export the model without it, or load its plugin library with --plugins',
    ),
    Hint(
        r'scaleAllPositive|[Ss]cale coefficients must all be positive|is uniformly zero',
        'a tensor was always 0 when its range was taken, so it has no scale',
        'leave the layers that read it in float, or let this tool do it: --precision int8 '
        '--calibration-images, from the model before quantisation',
    ),
    Hint(
        r'only allowed before DQ',
        'a constant of the decoding was quantised',
        'keep that node in float: --keep-float PATTERN',
    ),
    Hint(
        r'cudnn_impl',
        'TensorRT-RTX 1.4 to 1.6 cannot build INT8 convolutions',
        'use TensorRT-RTX 1.7 or newer, or --precision fp16',
    ),
    Hint(
        r'HW-specific datatypes: b16',
        'a GPU that is built for has no BF16: it needs compute capability 8.0',
        'use --precision fp16, or other --compute-capabilities',
    ),
    Hint(
        r'fp8_e4m3|HW-specific datatypes: .*f8',
        'a GPU that is built for has no FP8: it needs compute capability 8.9',
        'use --precision fp16 or int8, or other --compute-capabilities',
    ),
    Hint(
        r'for Turing \(SM75\)',
        'TensorRT-RTX has no FP32 kernels for this layer on compute capability 7.5',
        'use --precision fp16, or leave 7.5 out of --compute-capabilities',
    ),
    Hint(
        r'DLA.*(not supported|cannot|unable|fail)|not supported on DLA',
        'the DLA cannot run a layer',
        'give --gpu-fallback, or leave --dla-core out',
    ),
    Hint(
        r'[Oo]ut of memory|OutOfMemory|insufficient memory|std::bad_alloc',
        'memory ran out during the build',
        'end other programs on the GPU, and lower --workspace-mib or the largest --shapes',
    ),
    Hint(
        r'cudaError 35|CUDA driver version is insufficient|CHECK\(status == CUDA_SUCCESS\)',
        'this step needs a GPU, and its driver is missing or older than the CUDA in TensorRT',
        'build on the machine that will run the engine, or update its driver; --refit always '
        'needs a GPU',
    ),
    Hint(
        r'could not find any implementation|Could not find any implementation',
        'no kernel for this layer works on this GPU with these options',
        'raise --workspace-mib, or keep the layer in FP32: --keep-fp32 PATTERN',
    ),
    Hint(
        r'MODEL_DESERIALIZE_FAILED|Failed to parse the ONNX model',
        'the file is not a whole ONNX model',
        'export or copy it again',
    ),
)


def tensorrt_error(
    name: str, found: str, details: Iterable[str], heard: Iterable[str]
) -> EngineError:
    """Return the error for a model that TensorRT does not take or build.

    Args:
        name: of the model's file.
        found: what happened.
        details: what else is known, a line each.
        heard: what TensorRT said; where that is known, the error says what to do.
    """
    text = '\n'.join(heard)
    hint = next((hint for hint in HINTS if re.search(hint.pattern, text)), Hint('', '', ''))
    lines = filter(None, (found, hint.meaning, *details))
    return EngineError(name, '\n'.join(lines), fix=hint.action)
