"""All options of build_engine, in one typed table.

Each field of BuildOptions is one option: its type, default, range, unit and description stand here
and nowhere else. Command line, build.yaml and docs are made from it (sources.py).
Guarantee: BuildOptions from load_options are valid in themselves; what depends on the model, on
    the TensorRT release or on the machine is checked where those are known.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from trt_perception.building.options.rows import collect_options, option
from trt_perception.building.options.values import (
    Batches,
    Capabilities,
    EnginePath,
    FilePath,
    FilePaths,
    Names,
    OnnxPath,
    PathText,
    Profiles,
    ShapeProfile,
    Size,
    Texts,
    Triple,
)
from trt_perception.errors import ValuesError
from trt_perception.images.letterbox import ResizeMode
from trt_perception.model.build_record import QUANTISED, Precision
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.files.model_file import ENGINE_SUFFIXES

__all__ = ['OPTIONS', 'BuildOptions']


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """The values of all options; make them with sources.load_options.

    Attributes:
        given: the names of the options that were given, whatever their values.

    Raises:
        ValuesError: options contradict each other.
    """

    given: frozenset[str] = dataclasses.field(default=frozenset(), compare=False)

    onnx: OnnxPath = option('files', 'ONNX model to build from.', default=dataclasses.MISSING)
    output: EnginePath | None = option(
        'files',
        'Engine to write (default: next to the ONNX file, as .engine).',
        affects='nothing',
    )
    json: FilePath | None = option('files', 'Write the report as JSON too.', affects='nothing')
    store: FilePath | None = option(
        'files',
        'Keep engines in this folder and take an unchanged one from it instead of building.',
        metavar='DIR',
        affects='nothing',
    )
    store_keep_days: int | None = option(
        'files',
        'Remove engines from the store that nobody used for so long.',
        limits=(0, 36500),
        unit='days',
        affects='nothing',
    )
    verbose: bool = option(
        'files', 'Show all that TensorRT logs.', default=False, affects='nothing'
    )

    precision: Precision = option(
        'precision',
        'Arithmetic of the engine. int8 and fp8 need calibration images, unless the ONNX file is '
        'quantised already; what the TensorRT release or the GPU cannot do is refused.',
        default='fp16',
    )
    keep_fp32: Texts = option(
        'precision',
        'Layers that stay in FP32: names of ONNX nodes, * and ? stand for any characters.',
        default=(),
        metavar='PATTERN',
    )
    compare_fp16: bool = option(
        'precision',
        'With int8 or fp8: build FP16 too, and say which is smaller and, on a GPU, which faster.',
        default=True,
        affects='report',
    )

    batch: Batches | None = option(
        'shapes',
        'Batch sizes, where the ONNX file leaves it open: how many images the engine takes at '
        'once. Each of 1,4,8 is an optimisation profile of its own.',
        kind='text',
        metavar='N,N…',
    )
    shapes: Profiles = option(
        'shapes',
        'Shapes of the image input where the ONNX file leaves sides open: one as in 1x3x480x640, '
        'or min:opt:max; each value is an optimisation profile of its own.',
        default=(),
        metavar='SHAPES',
    )

    calibration_images: PathText | None = option(
        'calibration',
        'Images to calibrate with: a folder, a glob pattern in quotes, or a text file of names.',
        metavar='IMAGES',
        kind='path',
    )
    calibration_method: Literal['entropy', 'percentile', 'minmax'] = option(
        'calibration', 'How ranges are chosen from what the images show.', default='minmax'
    )
    calibration_count: int = option(
        'calibration', 'Most images to use.', default=300, limits=(1, 100_000)
    )
    calibration_seed: int = option(
        'calibration',
        'Which images are drawn where there are more.',
        default=0,
        limits=(0, 2**31 - 1),
    )
    calibration_cache: PathText = option(
        'calibration',
        'Where results of calibration are kept: auto (the cache folder), off, or a folder.',
        default='auto',
        metavar='auto|off|DIR',
        kind='path',
        words=('auto', 'off'),
        affects='nothing',
    )
    calibration_tool: Literal['onnxruntime', 'tensorrt'] = option(
        'calibration',
        "Who quantises. tensorrt means TensorRT's own calibrators, which 11.0 removed and only "
        'DLA still needs.',
        default='onnxruntime',
        removed={
            'modelopt': 'quantise the model with NVIDIA ModelOpt itself, and build from the ONNX '
            'file that it writes, without --calibration-tool and --calibration-images'
        },
    )
    keep_float: Texts = option(
        'calibration',
        'Nodes that are not quantised, besides those found in the head and in the decoding.',
        default=(),
        metavar='PATTERN',
    )
    qdq_onnx: OnnxPath | None = option(
        'calibration',
        'Write the quantised model too, as ONNX with Q/DQ nodes, and its manifest: it builds '
        'elsewhere without images, and ONNX Runtime runs it.',
        affects='nothing',
    )

    validate: PathText | None = option(
        'validation',
        'Images on which the engine is compared with FP32: a folder, a glob pattern, or a list.',
        metavar='IMAGES',
        kind='path',
    )
    annotations: FilePath | None = option('validation', 'Labels of those images, as COCO JSON.')
    max_accuracy_drop: float | None = option(
        'validation',
        'Fail when mAP50, or agreement with FP32 where there are no labels, falls by more.',
        limits=(0.0, 1.0),
    )
    accept_disagreement: bool = option(
        'validation',
        'Write the engine though it agrees with FP32 on less than half of the detections.',
        default=False,
    )

    input_size: Size | None = option(
        'model',
        "Width and height of the network's input (default: from the ONNX file).",
        kind='text',
        is_list=False,
        metavar='WxH',
    )
    resize: ResizeMode | None = option(
        'model', 'How an image is fitted into the input (default: letterbox).'
    )
    antialias: bool | None = option(
        'model',
        'Filter an image that shrinks, as PIL and Hugging Face do it (default: false).',
    )
    pad_value: int | None = option(
        'model', 'Pixel value of the padding (default: 114).', limits=(0, 255)
    )
    color_order: Literal['rgb', 'bgr'] | None = option(
        'model', 'Order of the input channels (default: rgb).'
    )
    scale: float | None = option(
        'model', 'Factor on the pixel values (default: 1/255).', limits=(1e-6, 1e3)
    )
    mean: Triple | None = option(
        'model', 'Mean per channel, subtracted after scaling (default: 0 0 0).'
    )
    std: Triple | None = option(
        'model',
        'Standard deviation per channel, divided by after the mean (default: 1 1 1).',
    )
    decoder: str | None = option(
        'model',
        'Family of the outputs (default: recognised from the model).',
        choices=tuple(PRESETS),
        metavar='NAME',
    )
    class_names: Names = option(
        'model',
        "Names of the classes in the network's order (default: from the ONNX file).",
        default=(),
        metavar='NAME',
    )
    class_names_file: FilePath | None = option(
        'model', 'The same from a text file, one name a line.'
    )

    runtime: Literal['auto', 'tensorrt', 'tensorrt_rtx'] = option(
        'builder', 'Which TensorRT builds; auto takes tensorrt, else tensorrt_rtx.', default='auto'
    )
    workspace_mib: int | None = option(
        'builder',
        "Most memory that one layer may use while it runs (default: TensorRT's, all there is).",
        limits=(1, 2**20),
        unit='MiB',
    )
    optimization_level: int | None = option(
        'builder',
        "How long TensorRT searches for fast kernels (default: TensorRT's, 3).",
        limits=(0, 5),
    )
    timing_cache: PathText = option(
        'builder',
        'Where measured kernel times are kept, which makes the next build faster: auto (the cache '
        'folder, one for each GPU and TensorRT release), off, or a file.',
        default='auto',
        metavar='auto|off|FILE',
        kind='path',
        words=('auto', 'off'),
        affects='nothing',
    )
    hardware_compatibility: Literal['none', 'ampere_plus', 'same_compute_capability'] = option(
        'builder',
        'Which other GPUs may run the engine; costs speed. Not for TensorRT-RTX.',
        default='none',
    )
    version_compatible: bool = option(
        'builder',
        'Let newer TensorRT releases run the engine. Not for TensorRT-RTX.',
        default=False,
    )
    sparsity: bool = option(
        'builder', 'Use 2:4 sparse kernels for weights that have that pattern.', default=False
    )
    dla_core: int | None = option(
        'builder',
        'Run on this deep-learning accelerator of a Jetson; fp16 and int8 only.',
        limits=(0, 15),
    )
    gpu_fallback: bool = option(
        'builder',
        'Layers that the DLA cannot run go to the GPU instead of failing.',
        default=False,
    )
    plugins: FilePaths = option(
        'builder',
        'Libraries of custom layers to load; they run as code, at build and at run time.',
        default=(),
    )
    refit: bool = option(
        'builder', 'Let weights be replaced in the finished engine.', default=False
    )
    profiling_verbosity: Literal['none', 'layer_names_only', 'detailed'] = option(
        'builder',
        'What the engine reports of its layers; below detailed, precision cannot be checked.',
        default='detailed',
    )
    compute_capabilities: Capabilities = option(
        'builder',
        'GPUs to build for, with TensorRT-RTX only, as in 8.6 8.9 (default: all that the release '
        'knows, but 7.5).',
        default=(),
        metavar='X.Y',
    )

    def __post_init__(self) -> None:
        makes_qdq = self.precision in QUANTISED and self.calibration_tool != 'tensorrt'
        rules = (
            (self.batch and self.shapes, 'give --batch or --shapes, not both'),
            (
                self.class_names and self.class_names_file,
                'give --class-names or --class-names-file, not both',
            ),
            (
                self.annotations and self.validate is None,
                '--annotations need the images they belong to: give --validate too',
            ),
            (
                self.max_accuracy_drop is not None and self.validate is None,
                '--max-accuracy-drop needs images to measure on: give --validate too',
            ),
            (
                self.qdq_onnx is not None and not makes_qdq,
                '--qdq-onnx needs --precision int8 or fp8 and a --calibration-tool other than '
                'tensorrt',
            ),
            (
                self.store_keep_days is not None and self.store is None,
                '--store-keep-days needs --store',
            ),
            (self.gpu_fallback and self.dla_core is None, '--gpu-fallback needs --dla-core'),
            (
                self.dla_core is not None and self.precision not in ('fp16', 'int8'),
                f'a DLA runs fp16 and int8 only (got --precision {self.precision})',
            ),
        )
        if wrong := [sentence for broken, sentence in rules if broken]:
            raise ValuesError(wrong)

    def engine_path(self) -> Path:
        """Return where the engine is written."""
        return self.output or self.onnx.with_suffix(ENGINE_SUFFIXES[0])

    def as_dict(self) -> dict[str, Any]:
        """Return every option by its name in YAML, in values that JSON has."""
        return {row.name: _to_json(getattr(self, row.name)) for row in OPTIONS}


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    return str(value) if isinstance(value, Path | ShapeProfile) else value


#: The table, in the order of BuildOptions.
OPTIONS: Final = collect_options(BuildOptions)
