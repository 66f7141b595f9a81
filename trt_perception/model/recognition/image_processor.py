# SPDX-License-Identifier: Apache-2.0
"""Reads the preprocessor_config.json of a Hugging Face image processor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from trt_perception.files.json_section import short_json
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.preprocessing import ResizeFilter, number_mistake
from trt_perception.model.recognition.processor_geometry import (
    KNOWN_KEYS,
    class_prefix,
    class_text,
    read_geometry,
    unread_keys,
)

_FILE: Final = 'preprocessor_config.json'
#: PIL's numbers of resize filters. Hugging Face transformers use the same numbers.
_FILTERS: Final[Mapping[int, ResizeFilter]] = {2: 'bilinear', 3: 'bicubic'}
_OTHER_FILTER_NAMES: Final = {0: 'nearest', 1: 'Lanczos', 4: 'box', 5: 'Hamming'}
#: Filters of image processors of transformers without the key "resample".
_DEFAULT_FILTER_BY_NAME: Final[Mapping[str, ResizeFilter]] = {
    **{name: 'bilinear' for preset in PRESETS.values() for name in preset.image_processors},
    **dict.fromkeys(('ViT', 'Segformer', 'MobileNetV1', 'MobileNetV2'), 'bilinear'),
    **dict.fromkeys(('Beit', 'Bit', 'CLIP', 'ConvNext', 'DeiT', 'DPT'), 'bicubic'),
}
_DEFAULT_FILTERS: Final[Mapping[str, ResizeFilter]] = {
    f'{name}{kind}': default
    for name, default in _DEFAULT_FILTER_BY_NAME.items()
    for kind in ('FeatureExtractor', 'ImageProcessor', 'ImageProcessorFast', 'ImageProcessorPil')
}
#: Prefixes of the image processors and model types that resize floats without antialiasing.
_PREFIXES_THAT_RESIZE_FLOATS: Final = tuple(
    name
    for preset in PRESETS.values()
    if not preset.preprocessing.get('round_pixels', True)
    for name in (*preset.image_processors, *preset.transformers)
)


class ImageProcessorInfo(NamedTuple):
    """The content of a preprocessor_config.json.

    Attributes:
        preprocessing: values for fields of Preprocessing. A field is missing if the file does not
            say its value, or if it has a problem.
        input_size: width and height in pixels; None if unknown.
        problems: maps fields of Preprocessing to the reason why their value is unknown or
            unsupported. One unread key does not hide the values of the others.
    """

    preprocessing: dict[str, Any]
    input_size: tuple[int, int] | None
    problems: dict[str, str]


def read_image_processor(processor: Mapping[str, Any], model_type: str) -> ImageProcessorInfo:
    """Return the preprocessing of an image processor.

    An image processor computes (x * rescale_factor - image_mean) / image_std on RGB values.

    Args:
        processor: content of preprocessor_config.json, which is untrusted.
        model_type: "model_type" in config.json; empty if unknown.
    """
    if not processor:
        return ImageProcessorInfo({}, None, {})
    fields, problems = _read_colors(processor)
    geometry = read_geometry(processor, model_type)
    fields |= geometry.fields
    if geometry.problem:
        problems['resize'] = f'{_FILE} {geometry.problem}'
    name = processor.get('image_processor_type', processor.get('feature_extractor_type'))
    filter_name, problem = _read_filter(processor, name)
    if problem:
        problems['antialias'] = problem
    if filter_name:
        of_bytes = _resizes_bytes(processor, model_type)
        fields |= {'filter': filter_name, 'antialias': of_bytes, 'round_pixels': of_bytes}
    return ImageProcessorInfo(fields, geometry.input_size, problems)


def _read_colors(processor: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return colour order, scale, mean and std, and the problems of those that are missing."""
    fields: dict[str, Any] = {}
    problems: dict[str, str] = {}

    def flag(key: str, default: bool | None, *names: str) -> bool | None:
        """Return a flag. If it is invalid, the fields with these names have a problem."""
        value = processor.get(key)
        if value is None or type(value) is bool:
            return default if value is None else value
        problems.update(dict.fromkeys(names, f'{_FILE} "{key}" is {short_json(value)}'))
        return default

    is_bgr = flag('do_flip_channel_order', False, 'color_order')
    if is_bgr and class_prefix(processor) not in ('', 'MobileViT'):
        # Other classes ignore the key, so that the file contradicts its processor.
        flips = '"do_flip_channel_order": true is not read by'
        problems['color_order'] = f'{_FILE} {flips} {class_text(processor)}'
    fields['color_order'] = 'bgr' if is_bgr else 'rgb'
    scale = processor.get('rescale_factor', 1 / 255)
    if not flag('do_rescale', True, 'scale'):
        scale = 1.0
    elif not valid_numbers('scale', [scale]):
        problems['scale'] = f'{_FILE} "rescale_factor" is {short_json(scale)}'
    fields['scale'] = scale
    # Without this key, the default of the processor's class applies. Assume normalisation if the
    # file contains means. Otherwise normalisation is unknown: None.
    default = True if processor.get('image_mean') is not None else None
    if class_prefix(processor) == 'MobileViT':
        default = False
    normalises = flag('do_normalize', default, 'mean', 'std')
    if normalises is False:
        fields['mean'], fields['std'] = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    elif normalises:
        for field, key in (('mean', 'image_mean'), ('std', 'image_std')):
            value = processor.get(key)
            fields[field] = _three_numbers(field, value)
            if not fields[field]:
                problems[field] = f'{_FILE} "{key}" is {short_json(value)}'
    known = set(KNOWN_KEYS)
    if class_prefix(processor) == 'EfficientNet':
        known.add('include_top')
        # The processor divides by the standard deviation once more, even without "do_normalize".
        if flag('include_top', True, 'std') and 'std' not in problems:
            value = processor.get('image_std')
            once = _three_numbers('std', value)
            std = [more * usual for more, usual in zip(once, fields.get('std', ()), strict=False)]
            fields['std'] = valid_numbers('std', std, 3)
            if not fields['std']:
                problems['std'] = (
                    f'{_FILE} "image_std" is {short_json(value)} with "include_top": true'
                )
    if keys := unread_keys(processor, of_colors=True, known=known):
        problems |= dict.fromkeys(('scale', 'mean', 'std'), f'{_FILE} {keys} is not read')
    return {key: value for key, value in fields.items() if key not in problems}, problems


def _three_numbers(field: str, value: object) -> tuple[float, ...]:
    """Return a number for each channel; empty if the value is invalid.

    Args:
        value: three numbers, or one number for all channels, as the processors accept.
    """
    return valid_numbers(field, [value] * 3 if isinstance(value, int | float) else value, 3)


def _read_filter(processor: Mapping[str, Any], name: object) -> tuple[ResizeFilter | None, str]:
    """Return an image processor's resize filter, or None and why it cannot be used.

    Files of old transformers releases lack the key `resample`. Then the filter is the default of
    the processor's class. A file without a class name counts as bilinear.
    """
    resample = processor.get('resample')
    if type(resample) is int:
        if resample in _FILTERS:
            return _FILTERS[resample], ''
        known = f', {_OTHER_FILTER_NAMES[resample]}' if resample in _OTHER_FILTER_NAMES else ''
        found = f'{short_json(resample)}{known}'
        problem = (
            f'preprocessor_config.json "resample" is {found}, not bilinear (2) or bicubic (3)'
        )
        return None, problem
    if resample is not None:
        found = short_json(resample)
        return None, f'preprocessor_config.json "resample" is {found}, not a PIL filter'
    if not name:
        return 'bilinear', ''
    if isinstance(name, str) and name in _DEFAULT_FILTERS:
        return _DEFAULT_FILTERS[name], ''
    default = f'the default of {class_text(processor)} is unknown'
    return None, f'{_FILE} has no "resample", and {default}'


def _resizes_bytes(processor: Mapping[str, Any], model_type: str) -> bool:
    """Return whether a processor resizes bytes, with antialiasing.

    Other processors resize floats, without antialiasing. Assume that unknown processors resize
    bytes.
    """
    class_name = processor.get('image_processor_type')
    name = class_name if isinstance(class_name, str) else model_type
    return not name.startswith(_PREFIXES_THAT_RESIZE_FLOATS)


def valid_numbers(key: str, value: object, count: int = 1) -> tuple[float, ...]:
    """Return `count` numbers for a field of Preprocessing; empty if the value is invalid."""
    if not isinstance(value, list) or len(value) != count:
        return ()
    if not set(map(type, value)) <= {int, float} or number_mistake(key, value):
        return ()
    return tuple(map(float, value))
