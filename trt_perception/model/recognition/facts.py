"""What a model's metadata and a config.json next to it say, read with care.

Both are text that came with a file from elsewhere: sizes are bounded, values are literals, and
what does not look as expected is left alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trt_perception.errors import EngineError
from trt_perception.files.json_section import found
from trt_perception.files.literals import read_literal
from trt_perception.files.plain_text import name_fault, names_fault, shown
from trt_perception.model.preprocessing import number_fault, size_fault
from trt_perception.model.task import (
    COCO_KEYPOINTS,
    DETECT,
    MAX_KEYPOINTS,
    TASKS,
    KeypointSpec,
    TaskSpec,
    keypoint_names_fault,
)

__all__ = ['Facts', 'facts_of', 'literal']

# How PIL numbers its filters, and so transformers.
_BILINEAR: Final = 2
_RESAMPLE: Final = {0: 'nearest', 1: 'Lanczos', 3: 'bicubic', 4: 'box', 5: 'Hamming'}
#: Image processors of transformers that are bilinear unless their file says otherwise.
_BILINEAR_PROCESSORS: Final = {
    f'{name}{kind}'
    for name in ('Detr', 'ConditionalDetr', 'DeformableDetr', 'RTDetr', 'RfDetr', 'Yolos')
    for kind in ('FeatureExtractor', 'ImageProcessor', 'ImageProcessorFast', 'ImageProcessorPil')
}
#: Ultralytics' tasks that this package does not do, and what their outputs hold besides boxes.
_OTHER_TASKS: Final = {
    'classify': 'classification (no boxes)',
    'semantic': 'semantic segmentation (no boxes)',
    'depth': 'depth estimation (no boxes)',
}
_YOLO: Final = ('dense', 'end_to_end')
_RTDETR: Final = ('rtdetr_ultralytics', 'rtdetr_end_to_end')
#: From this release on RT-DETR's best boxes of all classes are chosen inside the model.
_RTDETR_END_TO_END: Final = (8, 4, 47)
#: What else is written for transformers, by "model_type" in config.json.
_HUGGINGFACE: Final[Mapping[str, str]] = {
    'rt_detr': 'rtdetr',
    'rt_detr_v2': 'rtdetr',
    'd_fine': 'rtdetr',
    'deimv2': 'rtdetr',
    'deformable_detr': 'detr_sigmoid',
    'conditional_detr': 'detr_sigmoid',
    'dab-detr': 'detr_sigmoid',
    'lw_detr': 'detr_sigmoid',
    'rf_detr': 'rfdetr',
    'detr': 'detr',
    'table-transformer': 'detr',
    'yolos': 'detr',
}


@dataclass(frozen=True)
class Facts:
    """What was read.

    Attributes:
        class_names: in the network's order, empty where nothing says them.
        input_size: width and height, None where nothing says them.
        preprocessing: fields of Preprocessing that a file next to the model says.
        exporter: ``ultralytics``, ``yolov5``, ``huggingface``, or empty.
        exporter_decoders: names of decoders that read what this exporter writes for this model,
            the narrowest set first. The first set counts of which one fits the shapes: so what a
            model is called decides only between readings that metadata and shapes leave.
        task: what the outputs say of each object.
        resampling: a sentence where a file next to the model says, or leaves open, how images are
            made smaller, and it is not known to be bilinear; else empty.
        evidence: a sentence for each finding.
    """

    class_names: tuple[str, ...] = ()
    input_size: tuple[int, int] | None = None
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    exporter: str = ''
    exporter_decoders: tuple[tuple[str, ...], ...] = ()
    task: TaskSpec = DETECT
    resampling: str = ''
    evidence: tuple[str, ...] = ()

    @property
    def is_yolo_export(self) -> bool:
        """Whether the file itself says how Ultralytics' or YOLOv5's exporter wrote it."""
        return self.exporter in ('ultralytics', 'yolov5')


def facts_of(name: str, metadata: Mapping[str, str], config: Mapping[str, Any] | None) -> Facts:
    """Read metadata, else a config.json.

    Args:
        name: the model's file name, for messages.
        metadata: the ONNX file's own, texts by key.
        config: content of config.json, None where there is none.

    Raises:
        EngineError: the metadata says that the model does something else than finding boxes.
    """
    if 'names' in metadata:
        return _ultralytics(name, metadata)
    return _huggingface(config) if config else Facts()


def literal(text: str) -> Any:
    """Return what a Python literal says, None where it is none or too long."""
    try:
        return read_literal(text)
    except ValueError:
        return None


def _ultralytics(name: str, metadata: Mapping[str, str]) -> Facts:
    """Read what Ultralytics' exporter writes: names, stride, task, imgsz and more, as literals.

    YOLOv5's own exporter writes names and stride only.
    """
    task = metadata.get('task', '')
    if task in _OTHER_TASKS:
        raise EngineError(
            name,
            f'task {task!r} in its metadata, which is {_OTHER_TASKS[task]}',
            expected=f'one of the tasks {", ".join(TASKS)}',
            fix='export one',
        )
    names, sentence = _class_names('metadata "names"', literal(metadata['names']))
    evidence = [sentence]
    rows_columns = literal(metadata.get('imgsz', ''))
    size = None
    if _is_size(rows_columns):
        size = rows_columns[1], rows_columns[0]
        evidence.append(f'metadata "imgsz" {list(rows_columns)} -> input {size[0]} x {size[1]}')
    head = metadata.get('head', '')
    if head and not name_fault(head):
        evidence.append(f'metadata "head" {head}')
    exporter = 'yolov5'
    decoders: tuple[tuple[str, ...], ...] = (('dense_objectness_transposed',),)
    if 'task' in metadata:
        exporter, decoders = 'ultralytics', _ultralytics_decoders(metadata)
    kind = TaskSpec(task) if task in ('obb', 'segment') else DETECT
    if task == 'pose':
        kind = TaskSpec('pose', _keypoints(name, metadata, names, evidence))
    return Facts(names, size, {}, exporter, decoders, kind, evidence=tuple(evidence))


def _keypoints(
    name: str, metadata: Mapping[str, str], class_names: tuple[str, ...], evidence: list[str]
) -> KeypointSpec:
    """Read how many keypoints an object has, of how many values, and their names if it says any.

    Raises:
        EngineError: it does not say how many.
    """
    said_shape = metadata.get('kpt_shape', '')
    shape = literal(said_shape)
    if not (
        isinstance(shape, list | tuple)
        and len(shape) == 2
        and all(type(side) is int for side in shape)
        and 1 <= shape[0] <= MAX_KEYPOINTS
        and shape[1] in (2, 3)
    ):
        raise EngineError(
            name,
            f'task \'pose\' with "kpt_shape" {shown(said_shape)} in its metadata',
            expected=f'[K, 2] or [K, 3] for 1 to {MAX_KEYPOINTS} keypoints',
            fix='export it again, or write a manifest (docs/manifest.md)',
        )
    count, values = shape
    said = literal(metadata.get('kpt_names', ''))
    lists = list(said.values()) if isinstance(said, Mapping) else []
    names = tuple(str(number) for number in range(count))
    source = 'keypoints are called by their numbers'
    if lists and all(one == lists[0] for one in lists) and isinstance(lists[0], list | tuple):
        given = tuple(lists[0])
        if len(given) == count and not keypoint_names_fault(given):
            names, source = given, 'metadata "kpt_names"'
    known = COCO_KEYPOINTS.names
    if count == len(known) and (names == known or class_names == ('person',)):
        names, skeleton = known, COCO_KEYPOINTS.skeleton
        source = "COCO's keypoints of people"
    else:
        skeleton = ()
    evidence.append(f'metadata "kpt_shape" {list(shape)} -> {count} keypoints; {source}')
    return KeypointSpec(names, values, skeleton)


def _ultralytics_decoders(metadata: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """Return what Ultralytics' exporter may have written, the narrowest set first.

    Its newer releases say the network's head, and then nothing else counts. Before that, the
    release tells RT-DETR's two layouts apart, and settings tell whether a YOLO gives final boxes.
    The name of the model is left: it is whatever its user called a file.
    """
    everything = (*_YOLO, *_RTDETR)
    head = metadata.get('head', '')
    said: tuple[str, ...] = _rtdetr_layouts(metadata)
    if head:
        said = ('rtdetr_end_to_end',) if head == 'RTDETRDecoder' else _YOLO
    elif 'end2end' in metadata and 'args' in metadata:
        settings = literal(metadata['args'])
        inside = isinstance(settings, Mapping) and settings.get('nms') is True
        final = inside or literal(metadata['end2end']) is True
        said = _YOLO if final else ('dense', *said)
    else:
        said = (*_YOLO, *said)
    # "Ultralytics YOLO11n model trained on /data/rtdetr/data.yaml": the folder says nothing.
    described = metadata.get('description', '').lower().split(' trained on ')[0]
    named: tuple[str, ...] = everything
    if re.search('rt-?detr', described):
        named = _RTDETR
    elif 'yolo' in described:
        named = _YOLO
    both = tuple(name for name in said if name in named)
    return (said,) if head else (both, said, named, everything)


def _rtdetr_layouts(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Return the layouts that RT-DETR has in the release that wrote the metadata."""
    release = re.match(r'(\d{1,4})\.(\d{1,4})\.(\d{1,6})', metadata.get('version', ''))
    if release is None:
        return _RTDETR
    newer = tuple(map(int, release.groups())) >= _RTDETR_END_TO_END
    return ('rtdetr_end_to_end',) if newer else ('rtdetr_ultralytics',)


def _huggingface(config: Mapping[str, Any]) -> Facts:
    """Read what transformers saves: config.json, and preprocessor_config.json under its name."""
    model = config.get('model_type')
    model = model if isinstance(model, str) and not name_fault(model) else ''
    if model and model not in _HUGGINGFACE:
        # Of another network, maybe: neither its classes nor its preprocessing need be this one's.
        return Facts(evidence=(f'config.json "model_type" {model!r}, not known here -> not used',))
    evidence = [f'config.json "model_type" {model!r}'] if model else []
    names, sentence = _class_names('config.json "id2label"', config.get('id2label'))
    evidence += [sentence] if 'id2label' in config else []
    processor = config.get('preprocessor_config')
    processor = processor if isinstance(processor, Mapping) else {}
    preprocessing, size = _processor(processor)
    resampling = _resampling(processor)
    if preprocessing:
        preprocessing |= {} if resampling else {'antialias': _antialiases(processor, model)}
        shown = ', '.join(f'{key} {value}' for key, value in preprocessing.items())
        evidence.append(f'preprocessor_config.json -> {shown}')
    decoders = ((_HUGGINGFACE[model],),) if model in _HUGGINGFACE else ()
    return Facts(
        names,
        size,
        preprocessing,
        'huggingface',
        decoders,
        resampling=resampling,
        evidence=tuple(evidence),
    )


def _processor(values: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[int, int] | None]:
    """Turn an image processor's settings into fields of Preprocessing, and its fixed size.

    It computes (x * rescale_factor - image_mean) / image_std on RGB. A size of height and width is
    filled; one of edges keeps the aspect ratio, and what is left on the right and below becomes 0
    after all that.
    """
    size = values.get('size')
    scale = values.get('rescale_factor', 1 / 255)
    if not isinstance(size, Mapping) or not _numbers('scale', [scale]):
        return {}, None
    steps = ('do_rescale', 'do_normalize', 'do_flip_channel_order')
    if not {type(values[step]) for step in steps if step in values} <= {bool}:
        return {}, None
    flipped = values.get('do_flip_channel_order', False)
    fields: dict[str, Any] = {'color_order': 'bgr' if flipped else 'rgb'}
    fixed = size.get('width'), size.get('height')
    fields['resize'] = 'stretch' if _is_size(fixed) else 'letterbox_top_left'
    fields['scale'] = float(scale) if values.get('do_rescale', True) else 1.0
    # Where the key is missing the processor's class decides, which takes the means it was given.
    normalises = values.get('do_normalize', True if 'image_mean' in values else None)
    if normalises is False:
        fields['mean'], fields['std'] = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    elif normalises:
        fields['mean'] = _numbers('mean', values.get('image_mean'), 3)
        fields['std'] = _numbers('std', values.get('image_std'), 3)
        if not fields['mean'] or not fields['std']:
            return {}, None
    if not _is_size(fixed) and normalises is not None:  # one grey for three means: the middle one
        zero = sorted(fields['mean'])[1] / fields['scale']
        fields['pad_value'] = min(255, max(0, round(zero)))
    return fields, fixed if _is_size(fixed) else None  # type: ignore[return-value]


def _resampling(values: Mapping[str, Any]) -> str:
    """Return '' where an image processor resizes bilinearly.

    Otherwise a sentence that says what it does. Where the key is missing it is the default of the
    processor's class; files of old releases have none.
    """
    value = values.get('resample')
    kind = values.get('image_processor_type', values.get('feature_extractor_type', ''))
    if type(value) is int:
        if value == _BILINEAR:
            return ''
        name = f', {_RESAMPLE[value]}' if value in _RESAMPLE else ''
        return f'preprocessor_config.json "resample" is {found(value)}{name}'
    if value is not None:
        return f'preprocessor_config.json "resample" is {found(value)}, which is no filter of PIL'
    if not kind or (isinstance(kind, str) and kind in _BILINEAR_PROCESSORS):
        return ''
    return (
        f'preprocessor_config.json has no "resample", and the default of {found(kind)} is unknown'
    )


def _antialiases(values: Mapping[str, Any], model: str) -> bool:
    """Whether a bilinear processor does: RF-DETR's alone resizes numbers, without it."""
    kind = values.get('image_processor_type')
    return not (kind if isinstance(kind, str) else model).startswith(('RfDetr', 'rf_detr'))


def _numbers(key: str, value: object, count: int = 1) -> tuple[float, ...]:
    """Return so many numbers for a field of Preprocessing, empty where it is something else."""
    if not isinstance(value, list) or len(value) != count:
        return ()
    good = set(map(type, value)) <= {int, float} and not number_fault(key, value)
    return tuple(map(float, value)) if good else ()


def _is_size(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and all(type(side) is int for side in value)
        and not size_fault(value)
    )


def _class_names(source: str, value: object) -> tuple[tuple[str, ...], str]:
    """Return names from a list or from a mapping of 0 … n-1, and the finding as a sentence.

    COCO's placeholders ("N/A") stand there several times; a name must say one class.
    """
    if isinstance(value, Mapping):
        by_index = {str(key): item for key, item in value.items() if _is_name(key)}
        value = [by_index.get(str(index)) for index in range(len(value))]
    if not isinstance(value, list | tuple) or not value or not all(map(_is_name, value)):
        return (), f"{source} is not read: expected {{0: 'name', 1: …}} without gaps"
    names = [str(item) for item in value]
    counts = Counter(names)
    unique = [name if counts[name] == 1 else f'{name} {index}' for index, name in enumerate(names)]
    if fault := names_fault(unique):
        found = f'expected {fault["expected"]} (got {fault["found"]})'
        return (), f'{source} is not read: {found}'
    remark = '' if unique == names else ', equal ones distinguished by their number'
    return tuple(unique), f'{source} -> {len(names)} classes{remark}'


def _is_name(value: object) -> bool:
    """Tell text, or a number that can be written: of thousands of digits none can."""
    return isinstance(value, str) or (isinstance(value, int) and abs(value) < 2**53)
