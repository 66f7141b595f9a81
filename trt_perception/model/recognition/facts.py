"""Reads what the metadata of an ONNX file and a config.json next to it say about the model.

Both are untrusted input. Sizes are bounded, values are parsed as literals, and a value of an
unexpected form is ignored.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trt_perception.errors import EngineError
from trt_perception.files.json_section import found
from trt_perception.files.literals import parse_literal
from trt_perception.files.plain_text import name_fault, names_fault
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.preprocessing import number_fault, size_fault
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.table import TASKS
from trt_perception.model.tasks.task import Task

__all__ = ['ExporterInfo', 'read_exporter_info']

# PIL's numbers for resize filters. Hugging Face transformers use the same numbers.
_BILINEAR: Final = 2
_OTHER_FILTERS: Final = {0: 'nearest', 1: 'Lanczos', 3: 'bicubic', 4: 'box', 5: 'Hamming'}
#: Image processors of transformers whose default filter is bilinear.
_BILINEAR_PROCESSORS: Final = {
    f'{name}{kind}'
    for preset in PRESETS.values()
    for name in preset.image_processors
    for kind in ('FeatureExtractor', 'ImageProcessor', 'ImageProcessorFast', 'ImageProcessorPil')
}
#: Ultralytics tasks that this package does not support, with a description for errors.
_UNSUPPORTED_TASKS: Final = {
    'classify': 'classification (no boxes)',
    'semantic': 'semantic segmentation (no boxes)',
    'depth': 'depth estimation (no boxes)',
}
_YOLO_DECODERS: Final = ('dense', 'end_to_end')
_RTDETR_DECODERS: Final = ('rtdetr_ultralytics', 'rtdetr_end_to_end')
#: From this Ultralytics release on, an exported RT-DETR selects its best boxes itself.
_FIRST_END_TO_END_RTDETR: Final = (8, 4, 47)
#: Decoder for each "model_type" in the config.json of a Hugging Face model.
_HUGGINGFACE_DECODERS: Final[Mapping[str, str]] = {
    model_type: preset.name for preset in PRESETS.values() for model_type in preset.transformers
}
#: How the names of image processors and model types begin that resize without antialiasing.
_NOT_ANTIALIASED: Final = tuple(
    name
    for preset in PRESETS.values()
    if not preset.preprocessing.get('antialias')
    for name in (*preset.image_processors, *preset.transformers)
)


@dataclass(frozen=True)
class ExporterInfo:
    """What the exporter of a model wrote about the model.

    Attributes:
        class_names: in the order of the network's outputs; empty if unknown.
        input_size: width and height in pixels; None if unknown.
        preprocessing: values for fields of Preprocessing.
        exporter: `ultralytics`, `yolov5`, `huggingface` or empty.
        decoder_candidates: sets of decoder names, the smallest set first. Recognition uses the
            first set that has a decoder for the output shapes.
        task: the task of the model.
        filter_problem: why the resize filter is unknown or unsupported; empty if the filter is
            bilinear or not mentioned.
        evidence: one sentence for each value found.
    """

    class_names: tuple[str, ...] = ()
    input_size: tuple[int, int] | None = None
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    exporter: str = ''
    decoder_candidates: tuple[tuple[str, ...], ...] = ()
    task: Task = DETECT
    filter_problem: str = ''
    evidence: tuple[str, ...] = ()

    @property
    def is_yolo_export(self) -> bool:
        """Whether the exporter of Ultralytics or YOLOv5 wrote the file."""
        return self.exporter in ('ultralytics', 'yolov5')


def read_exporter_info(
    model_name: str, metadata: Mapping[str, str], config: Mapping[str, Any] | None
) -> ExporterInfo:
    """Return what the metadata say, or else what config.json says.

    Args:
        model_name: file name of the model, for error messages.
        metadata: metadata of the ONNX file.
        config: content of config.json; None if the file is missing.

    Raises:
        EngineError: the metadata name an unsupported task or lack the number of keypoints.
    """
    if 'names' in metadata:
        return _read_ultralytics_metadata(model_name, metadata)
    return _read_huggingface_config(config) if config else ExporterInfo()


def _read_ultralytics_metadata(model_name: str, metadata: Mapping[str, str]) -> ExporterInfo:
    """Read the metadata of Ultralytics exports, whose values are Python literals.

    The exporter of YOLOv5 writes only `names` and `stride`, and no `task`.
    """
    task_name = metadata.get('task', '')
    if task_name in _UNSUPPORTED_TASKS:
        raise EngineError(
            model_name,
            f'task {task_name!r} in the metadata: {_UNSUPPORTED_TASKS[task_name]}',
            expected=f'one of the tasks {", ".join(TASKS)}',
            fix='export a model for one of these tasks',
        )
    names_value = parse_literal(metadata['names'])
    class_names, sentence = _read_class_names('metadata "names"', names_value)
    evidence = [sentence]
    height_width = parse_literal(metadata.get('imgsz', ''))
    input_size = None
    if _is_image_size(height_width):
        height, width = height_width
        input_size = width, height
        evidence.append(f'metadata "imgsz" {[height, width]} -> input {width} x {height}')
    head = metadata.get('head', '')
    if head and not name_fault(head):
        evidence.append(f'metadata "head" {head}')
    if 'task' in metadata:
        exporter, candidates = 'ultralytics', _ultralytics_decoder_candidates(metadata)
    else:
        exporter, candidates = 'yolov5', (('dense_objectness_transposed',),)
    kind = TASKS.get(task_name, type(DETECT))
    task, sentences = kind.of_ultralytics(model_name, metadata, class_names)
    return ExporterInfo(
        class_names=class_names,
        input_size=input_size,
        exporter=exporter,
        decoder_candidates=candidates,
        task=task,
        evidence=(*evidence, *sentences),
    )


def _ultralytics_decoder_candidates(metadata: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """Return sets of decoders for an Ultralytics export, the smallest set first.

    Newer releases write the class of the network's head, which settles the question. In older
    releases, the release number distinguishes the two layouts of RT-DETR, and the export settings
    say whether a YOLO outputs final boxes. The description is the weakest evidence, because it
    contains file names that the user chose.
    """
    head = metadata.get('head', '')
    if head:
        return (('rtdetr_end_to_end',) if head == 'RTDETRDecoder' else _YOLO_DECODERS,)
    all_decoders = (*_YOLO_DECODERS, *_RTDETR_DECODERS)
    by_settings = (*_YOLO_DECODERS, *_rtdetr_decoders(metadata))
    if 'end2end' in metadata and 'args' in metadata:
        settings = parse_literal(metadata['args'])
        has_nms = isinstance(settings, Mapping) and settings.get('nms') is True
        if has_nms or parse_literal(metadata['end2end']) is True:
            by_settings = _YOLO_DECODERS
        else:
            by_settings = ('dense', *_rtdetr_decoders(metadata))
    # "Ultralytics YOLO11n model trained on /data/rtdetr/data.yaml": ignore the path.
    description = metadata.get('description', '').lower().split(' trained on ')[0]
    by_description: tuple[str, ...] = all_decoders
    if re.search('rt-?detr', description):
        by_description = _RTDETR_DECODERS
    elif 'yolo' in description:
        by_description = _YOLO_DECODERS
    by_both = tuple(name for name in by_settings if name in by_description)
    return by_both, by_settings, by_description, all_decoders


def _rtdetr_decoders(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Return the decoders for RT-DETR in the Ultralytics release that wrote the metadata."""
    release = re.match(r'(\d{1,4})\.(\d{1,4})\.(\d{1,6})', metadata.get('version', ''))
    if release is None:
        return _RTDETR_DECODERS
    is_end_to_end = tuple(map(int, release.groups())) >= _FIRST_END_TO_END_RTDETR
    return ('rtdetr_end_to_end',) if is_end_to_end else ('rtdetr_ultralytics',)


def _read_huggingface_config(config: Mapping[str, Any]) -> ExporterInfo:
    """Read config.json, which has the preprocessor_config.json under `preprocessor_config`."""
    model_type = config.get('model_type')
    model_type = model_type if isinstance(model_type, str) and not name_fault(model_type) else ''
    if model_type and model_type not in _HUGGINGFACE_DECODERS:
        # The file may belong to another network, so its classes and preprocessing are not used.
        sentence = f'config.json "model_type" {model_type!r} is unsupported -> file ignored'
        return ExporterInfo(evidence=(sentence,))
    evidence = [f'config.json "model_type" {model_type!r}'] if model_type else []
    class_names, sentence = _read_class_names('config.json "id2label"', config.get('id2label'))
    if 'id2label' in config:
        evidence.append(sentence)
    processor = config.get('preprocessor_config')
    processor = processor if isinstance(processor, Mapping) else {}
    preprocessing, input_size = _read_image_processor(processor)
    filter_problem = _filter_problem(processor)
    if preprocessing:
        if not filter_problem:
            preprocessing['antialias'] = _uses_antialiasing(processor, model_type)
        values = ', '.join(f'{key} {value}' for key, value in preprocessing.items())
        evidence.append(f'preprocessor_config.json -> {values}')
    return ExporterInfo(
        class_names=class_names,
        input_size=input_size,
        preprocessing=preprocessing,
        exporter='huggingface',
        decoder_candidates=((_HUGGINGFACE_DECODERS[model_type],),) if model_type else (),
        filter_problem=filter_problem,
        evidence=tuple(evidence),
    )


def _read_image_processor(
    processor: Mapping[str, Any],
) -> tuple[dict[str, Any], tuple[int, int] | None]:
    """Return fields of Preprocessing and the input size; ({}, None) if a setting is invalid.

    An image processor computes (x * rescale_factor - image_mean) / image_std on RGB values. A
    size with width and height stretches the image. Other sizes keep the aspect ratio, and the
    processor fills the rest, right and below, with 0 after normalisation.
    """
    size = processor.get('size')
    scale = processor.get('rescale_factor', 1 / 255)
    if not isinstance(size, Mapping) or not _valid_numbers('scale', [scale]):
        return {}, None
    flags = ('do_rescale', 'do_normalize', 'do_flip_channel_order')
    if not all(type(processor[flag]) is bool for flag in flags if flag in processor):
        return {}, None
    width_height = size.get('width'), size.get('height')
    has_fixed_size = _is_image_size(width_height)
    fields: dict[str, Any] = {
        'color_order': 'bgr' if processor.get('do_flip_channel_order', False) else 'rgb',
        'resize': 'stretch' if has_fixed_size else 'letterbox_top_left',
        'scale': float(scale) if processor.get('do_rescale', True) else 1.0,
    }
    # Without this key, the class of the processor decides. Assume that it normalises if the file
    # contains means. Without means, the decision is unknown: None.
    normalises = processor.get('do_normalize', True if 'image_mean' in processor else None)
    if normalises is False:
        fields['mean'], fields['std'] = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    elif normalises:
        fields['mean'] = _valid_numbers('mean', processor.get('image_mean'), 3)
        fields['std'] = _valid_numbers('std', processor.get('image_std'), 3)
        if not fields['mean'] or not fields['std']:
            return {}, None
    if not has_fixed_size and normalises is not None:
        # The pad value is the same in all channels, so use the median of the three means.
        pad_value = round(sorted(fields['mean'])[1] / fields['scale'])
        fields['pad_value'] = min(255, max(0, pad_value))
    return fields, width_height if has_fixed_size else None  # type: ignore[return-value]


def _filter_problem(processor: Mapping[str, Any]) -> str:
    """Return why an image processor's resize filter cannot be used; empty if it is bilinear.

    Files of old transformers releases lack the key `resample`. Then the filter is the default of
    the processor's class. A file without a class name counts as bilinear.
    """
    resample = processor.get('resample')
    class_name = processor.get('image_processor_type', processor.get('feature_extractor_type', ''))
    if type(resample) is int:
        if resample == _BILINEAR:
            return ''
        name = f', {_OTHER_FILTERS[resample]}' if resample in _OTHER_FILTERS else ''
        return f'preprocessor_config.json "resample" is {found(resample)}{name}'
    if resample is not None:
        return f'preprocessor_config.json "resample" is {found(resample)}, not a PIL filter'
    if not class_name or (isinstance(class_name, str) and class_name in _BILINEAR_PROCESSORS):
        return ''
    default = f'the default of {found(class_name)} is unknown'
    return f'preprocessor_config.json has no "resample", and {default}'


def _uses_antialiasing(processor: Mapping[str, Any], model_type: str) -> bool:
    """Return whether a bilinear processor antialiases. Unknown processors do, as PIL does."""
    class_name = processor.get('image_processor_type')
    name = class_name if isinstance(class_name, str) else model_type
    return not name.startswith(_NOT_ANTIALIASED)


def _valid_numbers(key: str, value: object, count: int = 1) -> tuple[float, ...]:
    """Return `count` numbers for a field of Preprocessing; empty if the value is invalid."""
    if not isinstance(value, list) or len(value) != count:
        return ()
    if not set(map(type, value)) <= {int, float} or number_fault(key, value):
        return ()
    return tuple(map(float, value))


def _is_image_size(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and all(type(side) is int for side in value)
        and not size_fault(value)
    )


def _read_class_names(source: str, value: object) -> tuple[tuple[str, ...], str]:
    """Return class names and a sentence about them. The names are empty if the value is invalid.

    Class names must be unique, but COCO's placeholder "N/A" occurs several times. Such duplicates
    get their index appended.

    Args:
        source: where the value is from, for the sentence.
        value: a list of names, or a mapping from 0 … n-1 to names.
    """
    if isinstance(value, Mapping):
        name_by_key = {str(key): name for key, name in value.items() if _is_class_name(key)}
        value = [name_by_key.get(str(index)) for index in range(len(value))]
    if not isinstance(value, list | tuple) or not value or not all(map(_is_class_name, value)):
        return (), f"{source} is ignored: expected {{0: 'name', 1: …}} without gaps"
    names = [str(name) for name in value]
    counts = Counter(names)
    unique = [name if counts[name] == 1 else f'{name} {index}' for index, name in enumerate(names)]
    if fault := names_fault(unique):
        return (), f'{source} is ignored: expected {fault["expected"]} (got {fault["found"]})'
    remark = '' if unique == names else ' (duplicate names have their index appended)'
    return tuple(unique), f'{source} -> {len(names)} classes{remark}'


def _is_class_name(value: object) -> bool:
    """Return whether a value is a text, or a number with few enough digits to be printed."""
    return isinstance(value, str) or (isinstance(value, int) and abs(value) < 2**53)
