"""All options of build_engine, in one typed table.

Each field of BuildOptions is one option: its type, default, range, unit and description stand here
and nowhere else. Command line, build.yaml and docs are made from it (options_sources).
Guarantee: BuildOptions that exist are valid in themselves; what depends on the model, on the
    TensorRT release or on the machine is checked where those are known.
Needs pydantic, which only the extra ``build`` brings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from typing import Final
from typing import Literal

import pydantic

from trt_perception.building.options.option_types import Capabilities
from trt_perception.building.options.option_types import DecoderName
from trt_perception.building.options.option_types import EnginePath
from trt_perception.building.options.option_types import FilePath
from trt_perception.building.options.option_types import FilePaths
from trt_perception.building.options.option_types import Names
from trt_perception.building.options.option_types import OnnxPath
from trt_perception.building.options.option_types import PathText
from trt_perception.building.options.option_types import Profiles
from trt_perception.building.options.option_types import Scale
from trt_perception.building.options.option_types import Size
from trt_perception.building.options.option_types import Texts
from trt_perception.building.options.option_types import Triple
from trt_perception.building.options.option_types import option
from trt_perception.building.options.values import ShapeProfile
from trt_perception.model.manifest import DECODERS
from trt_perception.model.model_file import ENGINE_SUFFIXES

__all__ = [
    'GROUPS',
    'BuildOptions',
    'Precision',
]

Precision = Literal['fp32', 'tf32', 'fp16', 'bf16', 'int8', 'fp8']
#: Headings under which the options stand in --help and in the docs.
GROUPS: Final = ('files', 'precision', 'shapes', 'calibration', 'validation', 'model', 'builder')


class BuildOptions(pydantic.BaseModel):
    """The values of all options; make them with options_sources.load_options.

    Raises:
        pydantic.ValidationError: a value is wrong; load_options turns it into ConfigError.
    """

    model_config = pydantic.ConfigDict(
        frozen=True, extra='forbid', strict=True, populate_by_name=True, allow_inf_nan=False
    )

    onnx: OnnxPath = option('files', ..., 'ONNX model to build from.', metavar='FILE')
    output: EnginePath | None = option(
        'files',
        None,
        'Engine to write (default: beside the ONNX file, as .engine).',
        metavar='FILE',
    )
    json_file: FilePath | None = option(
        'files', None, 'Write the report as JSON too.', name='json', metavar='FILE'
    )
    store: FilePath | None = option(
        'files',
        None,
        'Keep engines in this folder and take an unchanged one from it instead of building.',
        metavar='DIR',
    )
    store_keep_days: int | None = option(
        'files',
        None,
        'Remove engines from the store that nobody used for so long.',
        unit='days',
        minimum=0,
        maximum=36500,
        metavar='N',
    )
    verbose: bool = option('files', False, 'Show all that TensorRT logs.')

    precision: Precision = option(
        'precision',
        'fp16',
        'Arithmetic of the engine. int8 and fp8 need calibration images, unless the ONNX file is '
        'quantised already; what the TensorRT release or the GPU cannot do is refused.',
    )
    keep_fp32: Texts = option(
        'precision',
        (),
        'Layers that stay in FP32: names of ONNX nodes, * and ? stand for any characters.',
        metavar='PATTERN',
    )

    compare_fp16: bool = option(
        'precision',
        True,
        'With int8 or fp8: build FP16 too, and say which is smaller and, on a GPU, which faster.',
    )

    batch: int | None = option(
        'shapes',
        None,
        'Batch size, where the ONNX file leaves it open.',
        minimum=1,
        maximum=1024,
        metavar='N',
    )
    shapes: Profiles = option(
        'shapes',
        (),
        'Shapes of the image input where the ONNX file leaves sides open: one as in 1x3x480x640, '
        'or min:opt:max; each value is an optimisation profile of its own.',
        metavar='SHAPES',
    )

    calibration_images: PathText | None = option(
        'calibration',
        None,
        'Images to calibrate with: a folder, a glob pattern in quotes, or a text file of names.',
        metavar='IMAGES',
        is_path=True,
    )
    calibration_method: Literal['entropy', 'percentile', 'minmax'] = option(
        'calibration', 'minmax', 'How ranges are chosen from what the images show.'
    )
    calibration_count: int = option(
        'calibration', 300, 'Most images to use.', minimum=1, maximum=100_000, metavar='N'
    )
    calibration_seed: int = option(
        'calibration',
        0,
        'Which images are drawn where there are more.',
        minimum=0,
        maximum=2**31 - 1,
        metavar='N',
    )
    calibration_cache: PathText = option(
        'calibration',
        'auto',
        'Where results of calibration are kept: auto (the cache folder), off, or a folder.',
        metavar='auto|off|DIR',
        is_path=True,
        words=('auto', 'off'),
    )
    calibration_tool: Literal['onnxruntime', 'modelopt', 'tensorrt'] = option(
        'calibration',
        'onnxruntime',
        "Who quantises. modelopt needs NVIDIA ModelOpt installed; tensorrt means TensorRT's own "
        'calibrators, which 11.0 removed and only DLA still needs.',
    )
    keep_float: Texts = option(
        'calibration',
        (),
        'Nodes that are not quantised, beside those found in the head and in the decoding.',
        metavar='PATTERN',
    )
    qdq_onnx: OnnxPath | None = option(
        'calibration',
        None,
        'Write the quantised model too, as ONNX with Q/DQ nodes, and its manifest: it builds '
        'elsewhere without images, and ONNX Runtime runs it.',
        metavar='FILE',
    )

    validate_images: PathText | None = option(
        'validation',
        None,
        'Images on which the engine is compared with FP32: a folder, a glob pattern, or a list.',
        name='validate',
        metavar='IMAGES',
        is_path=True,
    )
    annotations: FilePath | None = option(
        'validation', None, 'Labels of those images, as COCO JSON.', metavar='FILE'
    )
    max_accuracy_drop: float | None = option(
        'validation',
        None,
        'Fail when mAP50, or agreement with FP32 where there are no labels, falls by more.',
        minimum=0.0,
        maximum=1.0,
        metavar='X',
    )

    accept_disagreement: bool = option(
        'validation',
        False,
        'Write the engine though it agrees with FP32 on less than half of the detections.',
    )

    input_size: Size | None = option(
        'model',
        None,
        "Width and height of the network's input (default: from the ONNX file).",
        unit='px',
        metavar='WxH',
    )
    resize: Literal['letterbox', 'letterbox_top_left', 'stretch'] | None = option(
        'model', None, 'How an image is fitted into the input (default: letterbox).'
    )
    antialias: bool | None = option(
        'model',
        None,
        'Filter an image that shrinks, as PIL and Hugging Face do it (default: false).',
    )
    pad_value: int | None = option(
        'model',
        None,
        'Pixel value of the padding (default: 114).',
        minimum=0,
        maximum=255,
        metavar='N',
    )
    color_order: Literal['rgb', 'bgr'] | None = option(
        'model', None, 'Order of the input channels (default: rgb).'
    )
    scale: Scale | None = option(
        'model',
        None,
        'Factor on the pixel values (default: 1/255).',
        minimum=0.0,
        maximum=1000.0,
        metavar='X',
    )
    mean: Triple | None = option(
        'model',
        None,
        'Mean per channel, subtracted after scaling (default: 0 0 0).',
        metavar='X',
        count=3,
    )
    std: Triple | None = option(
        'model',
        None,
        'Standard deviation per channel, divided by after the mean (default: 1 1 1).',
        metavar='X',
        count=3,
    )
    decoder: DecoderName | None = option(
        'model',
        None,
        'Family of the outputs (default: recognised from the model).',
        choices=tuple(DECODERS),
        metavar='NAME',
    )
    class_names: Names = option(
        'model',
        (),
        "Names of the classes in the network's order (default: from the ONNX file).",
        metavar='NAME',
    )
    class_names_file: FilePath | None = option(
        'model', None, 'The same from a text file, one name a line.', metavar='FILE'
    )

    runtime: Literal['auto', 'tensorrt', 'tensorrt_rtx'] = option(
        'builder', 'auto', 'Which TensorRT builds; auto takes tensorrt, else tensorrt_rtx.'
    )
    workspace_mib: int | None = option(
        'builder',
        None,
        "Most memory that one layer may use while it runs (default: TensorRT's, all there is).",
        unit='MiB',
        minimum=1,
        maximum=2**20,
        metavar='N',
    )
    optimization_level: int | None = option(
        'builder',
        None,
        "How long TensorRT searches for fast kernels (default: TensorRT's, 3).",
        minimum=0,
        maximum=5,
        metavar='N',
    )
    timing_cache: PathText = option(
        'builder',
        'auto',
        'Where measured kernel times are kept, which makes the next build faster: auto (the cache '
        'folder, one for each GPU and TensorRT release), off, or a file.',
        metavar='auto|off|FILE',
        is_path=True,
        words=('auto', 'off'),
    )
    hardware_compatibility: Literal['none', 'ampere_plus', 'same_compute_capability'] = option(
        'builder',
        'none',
        'Which other GPUs may run the engine; costs speed. Not for TensorRT-RTX.',
    )
    version_compatible: bool = option(
        'builder',
        False,
        'Let newer TensorRT releases run the engine. Not for TensorRT-RTX.',
    )
    sparsity: bool = option(
        'builder', False, 'Use 2:4 sparse kernels for weights that have that pattern.'
    )
    dla_core: int | None = option(
        'builder',
        None,
        'Run on this deep-learning accelerator of a Jetson; fp16 and int8 only.',
        minimum=0,
        maximum=15,
        metavar='N',
    )
    gpu_fallback: bool = option(
        'builder', False, 'Layers that the DLA cannot run go to the GPU instead of failing.'
    )
    plugins: FilePaths = option(
        'builder',
        (),
        'Libraries of custom layers to load; they run as code, at build and at run time.',
        metavar='FILE',
    )
    refit: bool = option('builder', False, 'Let weights be replaced in the finished engine.')
    profiling_verbosity: Literal['none', 'layer_names_only', 'detailed'] = option(
        'builder',
        'detailed',
        'What the engine tells of its layers; below detailed, their precision cannot be checked.',
    )
    compute_capabilities: Capabilities = option(
        'builder',
        (),
        'GPUs to build for, with TensorRT-RTX only, as in 8.6 8.9 (default: all that the release '
        'knows, but 7.5).',
        metavar='X.Y',
    )

    @pydantic.model_validator(mode='after')
    def _check_together(self) -> BuildOptions:
        wrong = [
            sentence
            for applies, sentence in (
                (self.batch and self.shapes, 'give --batch or --shapes, not both: shapes hold it'),
                (
                    self.class_names and self.class_names_file,
                    'give --class-names or --class-names-file, not both',
                ),
                (
                    self.annotations and self.validate_images is None,
                    '--annotations need the images they belong to: give --validate too',
                ),
                (
                    self.max_accuracy_drop is not None and self.validate_images is None,
                    '--max-accuracy-drop needs images to measure on: give --validate too',
                ),
                (
                    self.qdq_onnx is not None
                    and (
                        self.precision not in ('int8', 'fp8')
                        or self.calibration_tool == 'tensorrt'
                    ),
                    '--qdq-onnx needs --precision int8 or fp8, and another --calibration-tool '
                    'than tensorrt: otherwise no model with Q/DQ nodes is made',
                ),
                (
                    self.store_keep_days is not None and self.store is None,
                    '--store-keep-days only means something with --store',
                ),
                (
                    self.gpu_fallback and self.dla_core is None,
                    '--gpu-fallback only means something with --dla-core',
                ),
                (
                    self.dla_core is not None and self.precision not in ('fp16', 'int8'),
                    f'a DLA runs fp16 and int8 only (got --precision {self.precision})',
                ),
                (
                    self.compute_capabilities and self.runtime == 'tensorrt',
                    '--compute-capabilities are for TensorRT-RTX; TensorRT builds for the GPU of '
                    'this machine',
                ),
            )
            if applies
        ]
        if wrong:
            raise ValueError('; '.join(wrong))
        return self

    def engine_path(self) -> Path:
        """Return where the engine is written."""
        return self.output or self.onnx.with_suffix(ENGINE_SUFFIXES[0])

    def as_dict(self) -> dict[str, Any]:
        """Return every option by its name in YAML, in values that JSON has."""
        return {
            info.alias or field: _plain(getattr(self, field))
            for field, info in type(self).model_fields.items()
        }


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path | ShapeProfile) else value
