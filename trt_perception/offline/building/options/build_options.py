# SPDX-License-Identifier: Apache-2.0
"""All options of build_engine, in one typed table.

Each field of BuildOptions defines one option: type, default, range, unit and description. Command
line, build.yaml and docs are made from this table (sources.py).
Guarantee: options from ``load_options`` have valid values that do not contradict each other. Later
steps check the options against the model, the TensorRT release and the machine.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from trt_perception.errors import ValuesError
from trt_perception.images.bag_selection import MAX_EVERY, BagSelection
from trt_perception.images.frame import MAX_SIDE
from trt_perception.images.letterbox import ResizeMode
from trt_perception.model.build_record import QUANTISED_PRECISIONS, Precision
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.files.model_file import ENGINE_SUFFIXES
from trt_perception.model.files.plan_header import RTX_TARGET_BITS
from trt_perception.model.preprocessing import ResizeFilter
from trt_perception.model.tasks.table import TASKS
from trt_perception.offline.building.options.rows import collect_options, option
from trt_perception.offline.building.options.values import (
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

_FOUR_BITS: Final = (
    'convolutions with 4-bit weights compute in FP16 too; use fp16, or int8 if fp16 is too slow'
)


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """The values of all options. ``sources.load_options`` makes them.

    Attributes:
        given: names of the options that the user gave, including options with default values.

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
    report: FilePath | None = option(
        'files',
        'Write the report as a page for a browser: index.html. On a GPU, also time each layer.',
        metavar='DIR',
        affects='nothing',
    )
    store: FilePath | None = option(
        'files',
        'Store engines in this folder, and reuse the stored engine of an unchanged build.',
        metavar='DIR',
        affects='nothing',
    )
    store_keep_days: int | None = option(
        'files',
        'Remove engines from the store that were not used for so many days.',
        limits=(0, 36500),
        unit='days',
        affects='nothing',
    )
    verbose: bool = option(
        'files', 'Show all messages of TensorRT.', default=False, affects='nothing'
    )

    precision: Precision = option(
        'precision',
        'Arithmetic of the engine. int8 and fp8 need calibration images, unless the ONNX file is '
        'quantised already. The build fails if the TensorRT release or the GPU lacks it.',
        default='fp16',
        refused=dict.fromkeys(('int4', 'fp4'), _FOUR_BITS),
    )
    keep_fp32: Texts = option(
        'precision',
        'Layers that stay in FP32: names of ONNX nodes, with * and ? as wildcards.',
        default=(),
        metavar='PATTERN',
    )
    compare_fp16: bool = option(
        'precision',
        'With int8 or fp8: also build FP16, and compare the size and (on a GPU) the speed.',
        default=True,
        affects='report',
    )

    batch: Batches | None = option(
        'shapes',
        'Batch sizes (images per run) if the ONNX file has a dynamic batch. 1,4,8 makes three '
        'optimisation profiles.',
        kind='text',
        metavar='N,N…',
    )
    shapes: Profiles = option(
        'shapes',
        'Shapes of the image input if the ONNX file has dynamic sides: one shape, such as '
        '1x3x480x640, or min:opt:max. Each value makes one optimisation profile.',
        default=(),
        metavar='SHAPES',
    )

    calibration_images: PathText | None = option(
        'calibration',
        'Calibration images: a folder, a glob pattern in quotes, a text file of paths, or a bag.',
        metavar='IMAGES',
        kind='path',
    )
    calibration_method: Literal['entropy', 'percentile', 'minmax'] = option(
        'calibration', 'How value ranges are chosen from the images.', default='minmax'
    )
    calibration_count: int = option(
        'calibration', 'Maximum number of calibration images.', default=300, limits=(1, 100_000)
    )
    calibration_seed: int = option(
        'calibration',
        'Seed of the random choice if there are more images.',
        default=0,
        limits=(0, 2**31 - 1),
    )
    calibration_cache: PathText = option(
        'calibration',
        'Where calibration results are kept: auto (the cache folder), off, or a folder.',
        default='auto',
        metavar='auto|off|DIR',
        kind='path',
        words=('auto', 'off'),
        affects='nothing',
    )
    calibration_tool: Literal['onnxruntime', 'tensorrt'] = option(
        'calibration',
        "Tool that quantises. tensorrt means TensorRT's own calibrators, which TensorRT 11.0 "
        'removed. Only a DLA still needs them.',
        default='onnxruntime',
        refused={
            'modelopt': 'quantise the model with NVIDIA ModelOpt itself, and build from the ONNX '
            'file that it writes, without --calibration-tool and --calibration-images'
        },
    )
    keep_float: Texts = option(
        'calibration',
        'More nodes that stay in float, in addition to the head and the decoding.',
        default=(),
        metavar='PATTERN',
    )
    qdq_onnx: OnnxPath | None = option(
        'calibration',
        'Also write the quantised model as ONNX with Q/DQ nodes, and its manifest. Other machines '
        'can build from this file without images, and ONNX Runtime can run it.',
        affects='nothing',
    )

    validate: PathText | None = option(
        'validation',
        'Images for comparing the engine with FP32: a folder, a glob pattern, a text file, or a '
        'bag.',
        metavar='IMAGES',
        kind='path',
    )
    annotations: FilePath | None = option(
        'validation', 'Labels of the images of --validate: COCO JSON, or a folder of label images.'
    )
    topic: PathText | None = option(
        'validation',
        'Topic of the images in the bags of --calibration-images and --validate (default: the '
        'only topic with colour images).',
        metavar='NAME',
    )
    every: int = option(
        'validation', 'Use each N-th image of these bags.', default=1, limits=(1, MAX_EVERY)
    )
    max_accuracy_drop: float | None = option(
        'validation',
        'Fail if mAP50 (without labels, the agreement with FP32) falls by more.',
        limits=(0.0, 1.0),
    )
    accept_disagreement: bool = option(
        'validation',
        'Write the engine even if it agrees with FP32 on less than half of the detections.',
        default=False,
    )

    input_size: Size | None = option(
        'model',
        "Width and height of the network's input (default: from the ONNX file or its exporter).",
        kind='text',
        is_list=False,
        metavar='WxH',
    )
    resize: ResizeMode | None = option(
        'model', 'How an image is fitted into the input (default: letterbox).'
    )
    shorter_side: int | None = option(
        'model',
        "Image's shorter side before center_crop (default: the input's shorter side).",
        limits=(1, MAX_SIDE),
    )
    filter: ResizeFilter | None = option('model', 'Filter of the resize (default: bilinear).')
    antialias: bool | None = option(
        'model',
        'Filter images when they shrink, as PIL and Hugging Face do (default: false).',
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
        'Divisor per channel after subtracting the mean (default: 1 1 1).',
    )
    decoder: str | None = option(
        'model',
        'Decoder of the outputs (default: recognised from the model).',
        choices=tuple(PRESETS),
        metavar='NAME',
    )
    task: str | None = option(
        'model',
        'Task: boxes, masks, oriented boxes or keypoints (default: recognised from the model).',
        choices=tuple(TASKS),
        metavar='NAME',
    )
    class_names: Names = option(
        'model',
        "Names of the classes in the network's order (default: from the ONNX file).",
        default=(),
        metavar='NAME',
    )
    class_names_file: FilePath | None = option(
        'model', 'Text file with the class names, one name on each line.'
    )

    runtime: Literal['auto', 'tensorrt', 'tensorrt_rtx'] = option(
        'builder',
        'TensorRT flavour that builds; auto prefers tensorrt to tensorrt_rtx.',
        default='auto',
    )
    workspace_mib: int | None = option(
        'builder',
        "Maximum memory of one layer at run time (default: TensorRT's, all memory of the GPU).",
        limits=(1, 2**20),
        unit='MiB',
    )
    optimization_level: int | None = option(
        'builder',
        "Effort of TensorRT's search for fast kernels (default: 3, as in TensorRT).",
        limits=(0, 5),
    )
    timing_cache: PathText = option(
        'builder',
        'Where measured kernel times are kept for faster builds: auto (the cache folder, one file '
        'for each GPU and TensorRT release), off, or a file.',
        default='auto',
        metavar='auto|off|FILE',
        kind='path',
        words=('auto', 'off'),
        affects='nothing',
    )
    hardware_compatibility: Literal['none', 'ampere_plus', 'same_compute_capability'] = option(
        'builder',
        'Let other GPUs run the engine, which makes it slower. Not for TensorRT-RTX.',
        default='none',
    )
    version_compatible: bool = option(
        'builder',
        "Let TensorRT's lean runtime run the engine, which makes it slower. Not for TensorRT-RTX.",
        default=False,
    )
    sparsity: bool = option(
        'builder', 'Use 2:4 sparse kernels for weights that have that pattern.', default=False
    )
    dla_core: int | None = option(
        'builder',
        'Run on this deep-learning accelerator (DLA) of a Jetson; fp16 and int8 only.',
        limits=(0, 15),
    )
    gpu_fallback: bool = option(
        'builder',
        'Run layers on the GPU that the DLA cannot run, instead of failing.',
        default=False,
    )
    plugins: FilePaths = option(
        'builder',
        'Libraries with custom layers, which run as code at build time and at run time, or Python '
        'modules (.py), which run at build time.',
        default=(),
    )
    profiling_verbosity: Literal['none', 'layer_names_only', 'detailed'] = option(
        'builder',
        'Layer information in the engine; precision can be checked only with detailed.',
        default='detailed',
    )
    compute_capabilities: Capabilities = option(
        'builder',
        'Compute capabilities to build for, with TensorRT-RTX only: '
        f'{", ".join(RTX_TARGET_BITS)}. Older releases have fewer (default: all of the release '
        'except 7.5).',
        default=(),
        metavar='X.Y',
    )

    def __post_init__(self) -> None:
        makes_qdq = self.precision in QUANTISED_PRECISIONS and self.calibration_tool != 'tensorrt'
        rules = (
            (self.batch and self.shapes, 'give --batch or --shapes, not both'),
            (
                self.class_names and self.class_names_file,
                'give --class-names or --class-names-file, not both',
            ),
            (
                self.annotations and self.validate is None,
                '--annotations needs the annotated images: give --validate too',
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

    @property
    def bag_selection(self) -> BagSelection:
        """Which images of bags are used."""
        return BagSelection(self.topic or '', self.every)

    def engine_path(self) -> Path:
        """Return the path of the engine."""
        return self.output or self.onnx.with_suffix(ENGINE_SUFFIXES[0])

    @property
    def plugin_modules(self) -> tuple[Path, ...]:
        """The Python modules in ``plugins``."""
        return tuple(path for path in self.plugins if path.suffix == '.py')

    @property
    def plugin_libraries(self) -> tuple[Path, ...]:
        """The shared libraries in ``plugins``."""
        return tuple(path for path in self.plugins if path.suffix != '.py')

    def as_dict(self) -> dict[str, Any]:
        """Return the values of all options as JSON content, by option name."""
        return {row.name: _to_json(getattr(self, row.name)) for row in OPTIONS}


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    return str(value) if isinstance(value, Path | ShapeProfile) else value


#: The table, in the order of BuildOptions.
OPTIONS: Final = collect_options(BuildOptions)
