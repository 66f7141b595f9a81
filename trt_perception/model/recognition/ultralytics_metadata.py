# SPDX-License-Identifier: Apache-2.0
"""Reads the metadata that Ultralytics, YOLOv5 and unknown exporters write into an ONNX file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from trt_perception.files.literals import parse_literal
from trt_perception.files.plain_text import name_mistake
from trt_perception.model.recognition.exporter_info import (
    ExporterInfo,
    is_image_size,
    read_class_names,
)
from trt_perception.model.tasks.depth import Depth
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.semantic import Semantic
from trt_perception.model.tasks.table import TASKS

#: The decoders of tasks that describe the whole image.
_IMAGE_DECODERS: Final = {
    'classify': ('class_probabilities',),
    'semantic': ('pixel_ids', 'pixel_logits'),
    'depth': ('depth_ultralytics',),
}
# An exported semantic model with one class outputs 1 for pixels of the class, else 0.
_BACKGROUND: Final = 'background'
_YOLO_DECODERS: Final = ('dense', 'end_to_end')
_RTDETR_DECODERS: Final = ('rtdetr_ultralytics', 'rtdetr_end_to_end')
#: From this Ultralytics release on, an exported RT-DETR selects its best boxes itself.
_FIRST_END_TO_END_RTDETR: Final = (8, 4, 47)


def is_ultralytics(metadata: Mapping[str, str]) -> bool:
    """Return whether the exporter of Ultralytics or YOLOv5 wrote the metadata.

    Ultralytics writes itself as the author since it writes a task (8.0.50). Until then, and in
    YOLOv5, the exporter writes only names and stride. Other programs write names and task, too.
    """
    if 'task' in metadata:
        return metadata.get('author') == 'Ultralytics'
    return {'names', 'stride'} <= metadata.keys() and 'author' not in metadata


def read_metadata_of_unknown_exporter(
    model_name: str, metadata: Mapping[str, str]
) -> ExporterInfo:
    """Read class names, input size and task of a file whose exporter is unknown.

    The names and the task do not say how boxes are written and images are prepared.
    """
    task_name = metadata.get('task', '')
    kind = TASKS.get(task_name, type(DETECT))
    class_names, sentence = read_class_names('metadata "names"', parse_literal(metadata['names']))
    class_names, evidence = (class_names, [sentence]) if kind.has_classes else ((), [])
    size = parse_literal(metadata.get('imgsz', ''))
    # Only the order of two equal sides is known.
    is_square = is_image_size(size) and len(set(size)) == 1
    task, sentences = kind.from_ultralytics_metadata(model_name, metadata, class_names)
    unsupported = ''
    if task_name == Depth.name:
        unsupported = (
            'metadata "task" depth of an unknown exporter, without the unit of its values'
        )
    return ExporterInfo(
        class_names=class_names,
        input_size=(size[0], size[1]) if is_square else None,
        exporter='unknown',
        task=task,
        unsupported=unsupported,
        evidence=('metadata of an unknown exporter', *evidence, *sentences),
    )


def read_ultralytics_metadata(model_name: str, metadata: Mapping[str, str]) -> ExporterInfo:
    """Read the metadata of Ultralytics exports, whose values are Python literals.

    The exporter of YOLOv5 writes only `names` and `stride`, and no `task`.
    """
    task_name = metadata.get('task', '')
    names_value = parse_literal(metadata['names'])
    class_names, sentence = read_class_names('metadata "names"', names_value)
    kind = TASKS.get(task_name, type(DETECT))
    class_names, evidence = (class_names, [sentence]) if kind.has_classes else ((), [])
    height_width = parse_literal(metadata.get('imgsz', ''))
    if task_name == Semantic.name and len(class_names) == 1 and class_names != (_BACKGROUND,):
        class_names = (_BACKGROUND, *class_names)
        evidence.append(f'metadata "names" of one class -> id 0 is the {_BACKGROUND}')
    input_size = None
    if is_image_size(height_width):
        height, width = height_width
        input_size = width, height
        evidence.append(f'metadata "imgsz" {[height, width]} -> input {width} x {height}')
    head = metadata.get('head', '')
    if head and not name_mistake(head):
        evidence.append(f'metadata "head" {head}')
    candidates: tuple[tuple[str, ...], ...]
    if task_name in _IMAGE_DECODERS:
        exporter, candidates = 'ultralytics', (_IMAGE_DECODERS[task_name],)
    elif 'task' in metadata:
        exporter, candidates = 'ultralytics', _ultralytics_decoder_candidates(metadata)
    else:
        exporter, candidates = 'yolov5', (('dense_objectness_transposed',),)
    task, sentences = kind.from_ultralytics_metadata(model_name, metadata, class_names)
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

    Newer releases write the class of the network's head, which distinguishes YOLO and RT-DETR. In
    older releases, the release number distinguishes the two layouts of RT-DETR, and the export
    settings say whether a YOLO outputs final boxes. The description is the weakest evidence,
    because it contains file names that the user chose.
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
