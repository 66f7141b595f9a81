# SPDX-License-Identifier: Apache-2.0
"""Explains known messages of TensorRT, with a remedy for each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from trt_perception.errors import EngineError
from trt_perception.offline.building.engine.release import TensorRt


@dataclass(frozen=True)
class Hint:
    """The explanation of one message of TensorRT.

    Attributes:
        pattern: regular expression that finds the message.
        action: remedy, as an instruction.
        rtx_action: remedy if TensorRT-RTX wrote the message; empty if it does not differ.
    """

    pattern: str
    meaning: str
    action: str
    rtx_action: str = ''

    def fix(self, tensorrt: TensorRt) -> str:
        """Return the remedy for a message of this TensorRT."""
        return (tensorrt.is_rtx and self.rtx_action) or self.action


UNSUPPORTED_OPERATOR: Final = Hint(
    r'Plugin not found|No importer registered for op|Op type .* is not supported',
    'the model has operators that TensorRT lacks',
    'export the model without these operators, or load their plugins with --plugins',
    rtx_action='export the model without these operators, or build with --runtime tensorrt, which '
    'can load their plugins (--plugins)',
)

#: Known messages. The first match counts, so special patterns precede general patterns.
HINTS: Final = (
    Hint(
        r'within workspace limit|[Ii]nsufficient workspace|requires more workspace',
        'no kernel fits into the memory that --workspace-mib allows',
        'raise --workspace-mib, or leave the option out',
    ),
    Hint(
        r'libnvinfer_lean',
        'version-compatible engines need the lean runtime, which is not installed',
        'leave --version-compatible out, or install libnvinfer-lean',
    ),
    UNSUPPORTED_OPERATOR,
    Hint(
        r'scaleAllPositive|[Ss]cale coefficients must all be positive|is uniformly zero',
        'a tensor was always 0 during calibration, so it has no scale',
        'keep the layers that read this tensor in float, or quantise with this tool, from the '
        'model before quantisation: --precision int8 --calibration-images DIR',
    ),
    Hint(
        r'only allowed before DQ',
        'a constant of the decoding was quantised',
        'keep the node that reads it in float: --keep-float PATTERN',
    ),
    Hint(
        r'cudnn_impl',
        'TensorRT-RTX 1.4 to 1.6 cannot build INT8 convolutions',
        'use TensorRT-RTX 1.7 or newer, or --precision fp16',
    ),
    Hint(
        r'HW-specific datatypes: b16',
        'a target GPU has no BF16, which needs compute capability 8.0',
        'use --precision fp16, or other --compute-capabilities',
    ),
    Hint(
        r'fp8_e4m3|HW-specific datatypes: .*f8',
        'a target GPU has no FP8, which needs compute capability 8.9',
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
        'add --gpu-fallback, or leave --dla-core out',
    ),
    Hint(
        r'[Oo]ut of memory|OutOfMemory|insufficient memory|std::bad_alloc',
        'memory ran out during the build',
        'end other programs on the GPU, and lower --workspace-mib or the maximum of --shapes',
    ),
    Hint(
        r'cudaError 35|CUDA driver version is insufficient|CHECK\(status == CUDA_SUCCESS\)',
        "this step needs a GPU, but its driver is missing or too old for TensorRT's CUDA release",
        'build on the machine that will run the engine, or update the driver',
    ),
    Hint(
        r'could not find any implementation|Could not find any implementation',
        'TensorRT has no kernel for this layer on this GPU with these options',
        'raise --workspace-mib, or keep the layer in FP32: --keep-fp32 PATTERN',
    ),
    Hint(
        r'MODEL_DESERIALIZE_FAILED|Failed to parse the ONNX model',
        'the file is not a complete ONNX model',
        'export or copy the model again',
    ),
)


def tensorrt_error(
    tensorrt: TensorRt,
    name: str,
    found: str,
    details: Iterable[str],
    trt_messages: Iterable[str],
) -> EngineError:
    """Return the error for a model that TensorRT cannot parse or build.

    Args:
        details: more lines of the error; empty texts are left out.
        trt_messages: TensorRT's messages. The error has the meaning and action of the first entry
            in HINTS that matches them.
    """
    text = '\n'.join(trt_messages)
    hint = next((hint for hint in HINTS if re.search(hint.pattern, text)), Hint('', '', ''))
    lines = filter(None, (found, hint.meaning, *details))
    return EngineError(name, '\n'.join(lines), fix=hint.fix(tensorrt))
