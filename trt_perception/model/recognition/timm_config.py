# SPDX-License-Identifier: Apache-2.0
"""Reads the config.json of a timm classifier.

timm's ``save_for_hf`` and ``push_to_hf_hub`` write the file, and so does transformers'
``TimmWrapper``. Source of the rules: ``resolve_data_config`` and ``transforms_imagenet_eval`` of
timm 1.0.31.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trt_perception.files.json_section import short_json
from trt_perception.files.plain_text import join_first_items, name_mistake
from trt_perception.images.frame import MAX_SIDE
from trt_perception.model.preprocessing import RESIZE_FILTERS, fields_text
from trt_perception.model.recognition.exporter_info import (
    ExporterInfo,
    is_image_size,
    read_class_names,
)
from trt_perception.model.recognition.huggingface_config import classifier_decoder
from trt_perception.model.recognition.image_processor import valid_numbers
from trt_perception.model.recognition.processor_geometry import unread_keys
from trt_perception.model.tasks.classify import Classify
from trt_perception.model.tensors import FLOAT_DTYPES, TensorSpec, tensors_text

#: Values that timm uses if a key is missing, null or empty.
_DEFAULTS: Final[Mapping[str, Any]] = {
    'input_size': [3, 224, 224],
    'interpolation': 'bicubic',
    'crop_pct': 0.875,
    'crop_mode': 'center',
    'mean': [0.485, 0.456, 0.406],
    'std': [0.229, 0.224, 0.225],
}
#: Keys that timm writes, but that its evaluation transform does not read.
_OTHER_KEYS: Final = frozenset(
    (
        *('architecture', 'classifier', 'custom_load', 'description', 'file', 'first_conv'),
        *('fixed_input_size', 'global_pool', 'hf_hub_filename', 'hf_hub_id', 'label_descriptions'),
        *('label_names', 'label_offset', 'labels', 'license', 'min_input_size', 'model_args'),
        *('notes', 'num_classes', 'num_features', 'origin_url', 'paper_ids', 'paper_name'),
        *('pool_size', 'preprocessor_config', 'source', 'tag', 'test_pool_size', 'url'),
    )
)
_KNOWN_KEYS: Final = _OTHER_KEYS | _DEFAULTS.keys() | {'test_input_size', 'test_crop_pct'}
#: The first of these keys with a value has the class names. TimmWrapper reads "id2label" last.
_NAME_KEYS: Final = ('label_names', 'labels', 'id2label')
_CROP_PCT_RANGE: Final = (0.01, 100)


def is_timm_config(config: Mapping[str, Any]) -> bool:
    """Return whether timm wrote a config.json.

    Old releases of timm wrote the keys of "pretrained_cfg" next to "architecture".
    """
    return isinstance(config.get('architecture'), str) and (
        isinstance(config.get('pretrained_cfg'), Mapping) or 'input_size' in config
    )


def read_timm_config(
    config: Mapping[str, Any], outputs: Sequence[TensorSpec], size: tuple[int, int] | None
) -> ExporterInfo:
    """Return the information about a classifier in timm's config.json.

    Args:
        config: content of config.json, which is untrusted.
        size: width and height of the network's input in pixels. None if dynamic: then the size in
            the file applies.
    """
    pretrained = config.get('pretrained_cfg')
    pretrained = pretrained if isinstance(pretrained, Mapping) else config
    name = config['architecture']
    subject = 'config.json of timm' + (f' ({name})' if not name_mistake(name) else '')
    count, evidence = _class_count(config, pretrained)
    if count == 0:
        features = 'config.json "num_classes" is 0, so the outputs are features and no scores'
        return ExporterInfo(exporter='timm', unsupported=features, evidence=(subject,))
    if not _may_be_scores(outputs):
        # The file may belong to another network, such as the backbone of a detector.
        ignored = f'{subject} describes no {tensors_text(outputs)} -> file ignored'
        return ExporterInfo(evidence=(ignored,))
    shape = outputs[0].shape
    channels = shape[1] if shape else -1
    unsupported = ''
    if count is not None and channels not in (-1, count):
        unsupported = (
            f'config.json "num_classes" is {count}, but {tensors_text(outputs)} has {channels} '
            'channels, so these are no scores or the file belongs to another model'
        )
    decoder, reason = classifier_decoder(config, outputs, count or 0)
    if not decoder:
        unsupported = unsupported or f'config.json {reason}, so the output is no score'
    evidence = [
        f'{subject} with {reason} -> task {Classify()}{f", {decoder}" if decoder else ""}',
        *evidence,
    ]
    class_names, sentence = _class_names(config, pretrained)
    input_size = _size(pretrained, 'input_size')
    preprocessing, problems = _read_preprocessing(pretrained, size or input_size)
    evidence += [sentence, f'config.json "pretrained_cfg" -> {fields_text(preprocessing)}']
    if input_size is None:
        found = short_json(pretrained.get('input_size'))
        evidence.append(f'config.json "input_size" is {found}, not [3, height, width] -> ignored')
    if ignored_keys := _ignored_keys(pretrained):
        shown = join_first_items([short_json(key) for key in ignored_keys])
        evidence.append(f'config.json "pretrained_cfg" {shown} -> ignored')
    if config.get('preprocessor_config'):
        evidence.append('preprocessor_config.json -> ignored, because timm reads config.json')
    return ExporterInfo(
        class_names=class_names,
        input_size=input_size,
        preprocessing=preprocessing,
        exporter='timm',
        decoder_candidates=((decoder,),) if decoder else (),
        task=Classify(),
        problems=problems,
        unsupported=unsupported,
        evidence=tuple(evidence),
    )


def _class_count(
    config: Mapping[str, Any], pretrained: Mapping[str, Any]
) -> tuple[int | None, list[str]]:
    """Return the number of classes, and sentences about ignored values; None if unknown.

    The number of the model replaces the number of the pretrained weights.
    """
    for values in (config, pretrained):
        count = values.get('num_classes')
        if type(count) is int and 0 <= count < 2**31:
            return count, []
        if count is not None:
            return None, [f'config.json "num_classes" is {short_json(count)} -> ignored']
    return None, []


def _may_be_scores(outputs: Sequence[TensorSpec]) -> bool:
    """Return whether the outputs may be the scores of a classifier, (B, C)."""
    return (
        len(outputs) == 1
        and outputs[0].dtype in FLOAT_DTYPES
        and (not outputs[0].shape or len(outputs[0].shape) == 2)
    )


def _class_names(
    config: Mapping[str, Any], pretrained: Mapping[str, Any]
) -> tuple[tuple[str, ...], str]:
    """Return the class names and a sentence about them.

    "label_descriptions" are texts for people, and several classes may have the same text.
    """
    for values in (config, pretrained):
        for key in _NAME_KEYS:
            if values.get(key):
                return read_class_names(f'config.json "{key}"', values[key])
    return (), 'config.json has no "label_names"'


def _read_preprocessing(
    pretrained: Mapping[str, Any], size: tuple[int, int] | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return fields of Preprocessing, and the problems of those that are missing."""
    fields: dict[str, Any] = {'color_order': 'rgb', 'scale': 1 / 255}
    problems: dict[str, str] = {}
    for key in ('mean', 'std'):
        value = _value(pretrained, key)
        if isinstance(value, int | float) or (isinstance(value, list) and len(value) == 1):
            value = [value[0] if isinstance(value, list) else value] * 3
        fields[key] = valid_numbers(key, value, 3)
        if not fields[key]:
            problems[key] = _problem(pretrained, key)
    if keys := unread_keys(pretrained, of_colors=True, known=_KNOWN_KEYS):
        problems |= dict.fromkeys(('scale', 'mean', 'std'), f'config.json {keys} is not read')
    geometry = _geometry(pretrained, size) if size else {}
    if keys := unread_keys(pretrained, of_colors=False, known=_KNOWN_KEYS):
        problems['resize'] = f'config.json {keys} is not read'
    elif geometry:
        fields |= geometry
    elif size:
        found = _problem(pretrained, _crop_key(pretrained, size), 'crop_mode')
        problems['resize'] = '{} for an input of {} x {}'.format(found, *size)
    resize_filter = _value(pretrained, 'interpolation')
    if resize_filter in RESIZE_FILTERS:
        # timm resizes PIL images, so pixels are bytes.
        fields |= {'filter': resize_filter, 'antialias': True, 'round_pixels': True}
    else:
        problems['antialias'] = _problem(pretrained, 'interpolation')
    return {key: value for key, value in fields.items() if key not in problems}, problems


def _ignored_keys(pretrained: Mapping[str, Any]) -> list[str]:
    """Return the unknown keys whose names do not sound as if they change the pixels."""
    return [
        key
        for key, value in pretrained.items()
        if key not in _KNOWN_KEYS
        and not any(unread_keys({key: value}, of_colors=flag) for flag in (True, False))
    ]


def _geometry(pretrained: Mapping[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    """Return how an image becomes an input of this size; empty if the package cannot do it."""
    part, mode = _value(pretrained, _crop_key(pretrained, size)), _value(pretrained, 'crop_mode')
    low, high = _CROP_PCT_RANGE
    if type(part) not in (int, float) or not low <= part <= high:
        return {}
    resized = tuple(math.floor(side / part) for side in size)
    if mode == 'center' and resized[0] == resized[1] and 1 <= resized[0] <= MAX_SIDE:
        fields = {'shorter_side': resized[0], 'crop_rounding': 'half_even', 'pad_value': 0}
        return {'resize': 'center_crop', **fields}
    # Otherwise, timm would crop the image after it was stretched or padded.
    if mode == 'squash' and resized == size:
        return {'resize': 'stretch'}
    if mode == 'border' and resized == size:
        # timm pads with the mean, which normalisation makes 0.
        return {'resize': 'letterbox', 'pad_value': None, 'size_rounding': 'half_even'}
    return {}


def _crop_key(pretrained: Mapping[str, Any], size: tuple[int, int]) -> str:
    """Return the key of the crop: a network of the test's input size may have its own crop."""
    is_test = size == _size(pretrained, 'test_input_size') != _size(pretrained, 'input_size')
    return 'test_crop_pct' if is_test and pretrained.get('test_crop_pct') else 'crop_pct'


def _size(pretrained: Mapping[str, Any], key: str) -> tuple[int, int] | None:
    """Return width and height of an input size [channels, height, width]; None if invalid."""
    value = _value(pretrained, key)
    if not isinstance(value, list) or len(value) != 3 or not is_image_size(value[:0:-1]):
        return None
    return value[2], value[1]


def _value(pretrained: Mapping[str, Any], key: str) -> Any:
    value = pretrained.get(key)
    return _DEFAULTS.get(key) if value in (None, '', [], 0) else value


def _problem(pretrained: Mapping[str, Any], *keys: str) -> str:
    """Return that values are unsupported, with the name of each key."""
    values = ', '.join(f'{short_json(key)}: {short_json(_value(pretrained, key))}' for key in keys)
    return f'config.json {values} is unsupported'
