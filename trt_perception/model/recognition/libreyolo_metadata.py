# SPDX-License-Identifier: Apache-2.0
"""Reads the metadata that LibreYOLO writes into an ONNX file.

Only families are read whose results were compared with the backend of LibreYOLO 1.6.0 (RT-DETR
has the same backend as RT-DETR v2).
Its other families have other boxes or another preprocessing with the same shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from trt_perception.files.json_section import parse_json
from trt_perception.files.literals import parse_literal
from trt_perception.files.plain_text import short_repr
from trt_perception.model.decoders.table import IMAGENET, RGB_0_TO_1, STRETCH, YOLOX
from trt_perception.model.preprocessing import fields_text, number_mistake
from trt_perception.model.recognition.exporter_info import (
    ExporterInfo,
    is_image_size,
    read_class_names,
)
from trt_perception.model.tasks.classify import Classify
from trt_perception.model.tasks.detect import DETECT

#: Pillow resizes the images, except those of RT-DETR.
_PLAIN: Final = {**STRETCH, 'mean': (0.0,) * 3, 'std': (1.0,) * 3}
_NORMALISED: Final = {**IMAGENET, 'resize': 'stretch', 'antialias': True}
#: Decoder and preprocessing of detectors, by "model_family".
_DETECTORS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    **dict.fromkeys(('deim', 'dfine', 'rtdetrv4'), ('rtdetr', _PLAIN)),
    **dict.fromkeys(('ec', 'tinyformer'), ('rtdetr', _NORMALISED)),
    **dict.fromkeys(('rtdetr', 'rtdetrv2'), ('rtdetr', {**_PLAIN, 'antialias': False})),
    'yolox': ('yolox', {**YOLOX, 'antialias': True}),
}
#: Sizes of DEIMv2 whose backbone needs normalised pixels.
_NORMALISED_DEIMV2: Final = ('s', 'm', 'l', 'x')
#: Families whose boxes are corners, and those of ``nms=True`` too.
_CORNER_FAMILIES: Final = ('yolo9', 'yolo9_e2e', 'yolo9_p2')
_LETTERBOXES: Final = {'center': 'letterbox', 'topleft': 'letterbox_top_left'}
_FILTERS: Final = ('bilinear', 'bicubic')


def is_libreyolo(metadata: Mapping[str, str]) -> bool:
    """Return whether LibreYOLO wrote the metadata."""
    return 'libreyolo_version' in metadata and 'model_family' in metadata


def read_libreyolo_metadata(metadata: Mapping[str, str]) -> ExporterInfo:
    """Read class names, size, decoder and preprocessing.

    Families that are not read are refused, unless the user sets a decoder. Then the class names
    and the size stay.
    """
    family, task = metadata['model_family'], metadata.get('task', DETECT.name)
    class_names, sentence = read_class_names('metadata "names"', _parse(metadata.get('names', '')))
    evidence = [f'metadata "libreyolo_version" and "model_family" {short_repr(family)}', sentence]
    width_height = [parse_literal(metadata.get(key, '')) for key in ('imgsz_w', 'imgsz_h')]
    input_size = _as_size(width_height)
    if task == Classify.name:
        decoder, preprocessing, unsupported = _classifier(metadata, input_size)
    elif task == DETECT.name:
        decoder, preprocessing, unsupported = _detector(metadata, family)
    else:
        decoder, preprocessing, unsupported = '', {}, f'task {short_repr(task)}'
    if preprocessing:
        evidence.append(f'metadata -> {fields_text(preprocessing)}')
    return ExporterInfo(
        class_names=class_names,
        input_size=input_size,
        preprocessing=preprocessing,
        exporter='libreyolo',
        decoder_candidates=((decoder,),) if decoder else (),
        task=Classify() if task == Classify.name else DETECT,
        unsupported=f"LibreYOLO's family {short_repr(family)}, {unsupported}"
        if unsupported
        else '',
        evidence=tuple(evidence),
    )


def _as_size(width_height: list[Any]) -> tuple[int, int] | None:
    return (width_height[0], width_height[1]) if is_image_size(width_height) else None


def _parse(text: str) -> object:
    """Return the value of a text in JSON; None if the text is not JSON."""
    try:
        return parse_json(text.encode())
    except (ValueError, RecursionError):
        return None


def _detector(metadata: Mapping[str, str], family: str) -> tuple[str, dict[str, Any], str]:
    """Return decoder and preprocessing, or the reason why they are unsupported."""
    if family in _CORNER_FAMILIES:
        pad = metadata.get('letterbox_pad', 'topleft')
        if pad not in _LETTERBOXES:
            return '', {}, f'with "letterbox_pad" {short_repr(pad)}'
        if metadata.get('nms') != 'true':
            found = 'with boxes as corners, and each class of a box as a detection'
            return '', {}, f'{found}: export it with nms=True'
        letterbox = {'resize': _LETTERBOXES[pad], 'pad_value': 114, 'size_rounding': 'down'}
        return 'end_to_end', {**RGB_0_TO_1, **letterbox}, ''
    if family == 'deimv2':
        is_normalised = metadata.get('size') in _NORMALISED_DEIMV2
        return 'rtdetr', dict(_NORMALISED if is_normalised else _PLAIN), ''
    decoder, preprocessing = _DETECTORS.get(family, ('', {}))
    return decoder, dict(preprocessing), '' if decoder else 'whose outputs are not known here'


def _classifier(
    metadata: Mapping[str, str], input_size: tuple[int, int] | None
) -> tuple[str, dict[str, Any], str]:
    """Return decoder and preprocessing, or the reason why they are unsupported.

    torchvision's transforms resize the shorter side to the size divided by "crop_pct".
    """
    name, mode = metadata.get('interpolation', 'bilinear'), metadata.get('resize_mode', 'crop')
    part: Any = parse_literal(metadata.get('crop_pct', '0.875'))
    if name not in _FILTERS:
        return '', {}, f'with "interpolation" {short_repr(name)}'
    fields: dict[str, Any] = {**IMAGENET, 'filter': name, 'antialias': True}
    for field in ('mean', 'std'):
        if (text := metadata.get(f'norm_{field}')) is not None:
            value = parse_literal(text)
            if not _are_numbers(value, 3) or number_mistake(field, value):
                return '', {}, f'with "norm_{field}" {short_repr(text)}'
            fields[field] = tuple(map(float, value))
    if mode == 'stretch':
        return 'class_logits', {**fields, 'resize': 'stretch'}, ''
    if not _are_numbers([part], 1) or not 0.01 <= part <= 1 or input_size is None:
        return '', {}, f'with "crop_pct" {short_repr(metadata.get("crop_pct"))}'
    if input_size[0] != input_size[1]:
        return '', {}, 'with an input that is not square'
    shorter_side = math.floor(input_size[0] / part)
    crop = {'resize': 'center_crop', 'shorter_side': shorter_side, 'pad_value': 0}
    return 'class_logits', {**fields, **crop}, ''


def _are_numbers(value: Any, count: int) -> bool:
    return (
        isinstance(value, list) and len(value) == count and set(map(type, value)) <= {int, float}
    )
