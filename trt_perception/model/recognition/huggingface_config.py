"""Reads the config.json and preprocessor_config.json of a Hugging Face model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trt_perception.files.json_section import short_json
from trt_perception.files.plain_text import name_mistake
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.preprocessing import fields_text, number_mistake
from trt_perception.model.recognition.exporter_info import (
    ExporterInfo,
    is_image_size,
    read_class_names,
)

__all__ = ['read_huggingface_config']

# PIL's number for the bilinear resize filter. Hugging Face transformers use the same numbers.
_BILINEAR_FILTER: Final = 2
_OTHER_FILTER_NAMES: Final = {0: 'nearest', 1: 'Lanczos', 3: 'bicubic', 4: 'box', 5: 'Hamming'}
#: Image processors of transformers whose default filter is bilinear.
_BILINEAR_PROCESSORS: Final = {
    f'{name}{kind}'
    for preset in PRESETS.values()
    for name in preset.image_processors
    for kind in ('FeatureExtractor', 'ImageProcessor', 'ImageProcessorFast', 'ImageProcessorPil')
}
#: Decoder for each "model_type" in the config.json of a Hugging Face model.
_HUGGINGFACE_DECODERS: Final[Mapping[str, str]] = {
    model_type: preset.name for preset in PRESETS.values() for model_type in preset.transformers
}
#: Prefixes of the image processors and model types that resize floats without antialiasing.
_PREFIXES_THAT_RESIZE_FLOATS: Final = tuple(
    name
    for preset in PRESETS.values()
    if not preset.preprocessing.get('round_pixels', True)
    for name in (*preset.image_processors, *preset.transformers)
)


def read_huggingface_config(config: Mapping[str, Any]) -> ExporterInfo:
    """Return the information about a model in config.json and preprocessor_config.json.

    Args:
        config: content of config.json, with the content of preprocessor_config.json under the key
            `preprocessor_config`.
    """
    model_type = config.get('model_type')
    model_type = model_type if isinstance(model_type, str) and not name_mistake(model_type) else ''
    if model_type and model_type not in _HUGGINGFACE_DECODERS:
        # The file may belong to another network, so its classes and preprocessing are not used.
        sentence = f'config.json "model_type" {model_type!r} is unsupported -> file ignored'
        return ExporterInfo(evidence=(sentence,))
    evidence = [f'config.json "model_type" {model_type!r}'] if model_type else []
    class_names, sentence = read_class_names('config.json "id2label"', config.get('id2label'))
    if 'id2label' in config:
        evidence.append(sentence)
    processor = config.get('preprocessor_config')
    processor = processor if isinstance(processor, Mapping) else {}
    preprocessing, input_size = _read_image_processor(processor)
    filter_problem = _filter_problem(processor)
    if preprocessing:
        if not filter_problem:
            resizes_bytes = _resizes_bytes(processor, model_type)
            preprocessing |= {'antialias': resizes_bytes, 'round_pixels': resizes_bytes}
        evidence.append(f'preprocessor_config.json -> {fields_text(preprocessing)}')
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
    size with width and height stretches the image. Other sizes keep the aspect ratio. The
    processor then pads the image right and below with 0 after normalisation.
    """
    size = processor.get('size')
    scale = processor.get('rescale_factor', 1 / 255)
    if not isinstance(size, Mapping) or not _valid_numbers('scale', [scale]):
        return {}, None
    flags = ('do_rescale', 'do_normalize', 'do_flip_channel_order')
    if not all(type(processor[flag]) is bool for flag in flags if flag in processor):
        return {}, None
    width_height = size.get('width'), size.get('height')
    has_fixed_size = is_image_size(width_height)
    fields: dict[str, Any] = {
        'color_order': 'bgr' if processor.get('do_flip_channel_order', False) else 'rgb',
        'resize': 'stretch' if has_fixed_size else 'letterbox_top_left',
        'scale': float(scale) if processor.get('do_rescale', True) else 1.0,
    }
    # Without this key, the default of the processor's class applies. Assume normalisation if the
    # file contains means. Otherwise normalisation is unknown: None.
    normalises = processor.get('do_normalize', True if 'image_mean' in processor else None)
    if normalises is False:
        fields['mean'], fields['std'] = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    elif normalises:
        fields['mean'] = _valid_numbers('mean', processor.get('image_mean'), 3)
        fields['std'] = _valid_numbers('std', processor.get('image_std'), 3)
        if not fields['mean'] or not fields['std']:
            return {}, None
    if not has_fixed_size:
        fields['pad_value'] = None
    return fields, width_height if has_fixed_size else None  # type: ignore[return-value]


def _filter_problem(processor: Mapping[str, Any]) -> str:
    """Return why an image processor's resize filter cannot be used; empty if it is bilinear.

    Files of old transformers releases lack the key `resample`. Then the filter is the default of
    the processor's class. A file without a class name counts as bilinear.
    """
    resample = processor.get('resample')
    class_name = processor.get('image_processor_type', processor.get('feature_extractor_type', ''))
    if type(resample) is int:
        if resample == _BILINEAR_FILTER:
            return ''
        name = f', {_OTHER_FILTER_NAMES[resample]}' if resample in _OTHER_FILTER_NAMES else ''
        return f'preprocessor_config.json "resample" is {short_json(resample)}{name}'
    if resample is not None:
        return f'preprocessor_config.json "resample" is {short_json(resample)}, not a PIL filter'
    if not class_name or (isinstance(class_name, str) and class_name in _BILINEAR_PROCESSORS):
        return ''
    default = f'the default of {short_json(class_name)} is unknown'
    return f'preprocessor_config.json has no "resample", and {default}'


def _resizes_bytes(processor: Mapping[str, Any], model_type: str) -> bool:
    """Return whether a bilinear processor resizes bytes, with antialiasing.

    Other processors resize floats, without antialiasing. Assume that unknown processors resize
    bytes.
    """
    class_name = processor.get('image_processor_type')
    name = class_name if isinstance(class_name, str) else model_type
    return not name.startswith(_PREFIXES_THAT_RESIZE_FLOATS)


def _valid_numbers(key: str, value: object, count: int = 1) -> tuple[float, ...]:
    """Return `count` numbers for a field of Preprocessing; empty if the value is invalid."""
    if not isinstance(value, list) or len(value) != count:
        return ()
    if not set(map(type, value)) <= {int, float} or number_mistake(key, value):
        return ()
    return tuple(map(float, value))
