"""Reads the preprocessor_config.json of a Hugging Face image processor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeGuard

from trt_perception.files.json_section import short_json
from trt_perception.images.frame import MAX_SIDE
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.preprocessing import ResizeFilter, number_mistake
from trt_perception.model.recognition.exporter_info import is_image_size

__all__ = ['ImageProcessorInfo', 'read_image_processor']

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
#: Prefixes of image processors for which one number as "size" is the width and height.
_SQUARE_PREFIXES: Final = ('Beit', 'DPT', 'DeiT', 'Segformer', 'ViT')
#: Prefixes of image processors that compute other sizes from the same keys.
_OTHER_GEOMETRY_PREFIXES: Final = ('EfficientNet', 'Levit', 'Perceiver', 'PoolFormer')
#: ConvNeXt crops only inputs that are smaller than this side, in pixels.
_CONVNEXT_CROPS_BELOW: Final = 384
_CONVNEXT_CROP_PCT: Final = 224 / 256


class ImageProcessorInfo(NamedTuple):
    """The content of a preprocessor_config.json.

    Attributes:
        preprocessing: values for fields of Preprocessing; empty if a setting is invalid or
            unsupported.
        input_size: width and height in pixels; None if unknown.
        filter_problem: why the resize filter is unknown or unsupported; empty if it is supported.
    """

    preprocessing: dict[str, Any]
    input_size: tuple[int, int] | None
    filter_problem: str


def read_image_processor(processor: Mapping[str, Any], model_type: str) -> ImageProcessorInfo:
    """Return the preprocessing of an image processor.

    An image processor computes (x * rescale_factor - image_mean) / image_std on RGB values.

    Args:
        processor: content of preprocessor_config.json, which is untrusted.
        model_type: "model_type" in config.json; empty if unknown.
    """
    name = processor.get('image_processor_type', processor.get('feature_extractor_type'))
    class_name = name if isinstance(name, str) else ''
    filter_name, problem = _read_filter(processor, name)
    colors, geometry = _read_colors(processor, class_name), _read_geometry(processor, class_name)
    if not colors or geometry is None:
        if filter_name == 'bicubic':  # the usual preprocessing, used instead, may be bilinear
            problem = 'preprocessor_config.json has "resample" 3, and other values are unsupported'
        return ImageProcessorInfo({}, None, problem)
    fields, input_size = geometry
    fields = {**colors, **fields}
    if filter_name:
        of_bytes = _resizes_bytes(processor, model_type)
        fields |= {'filter': filter_name, 'antialias': of_bytes, 'round_pixels': of_bytes}
    return ImageProcessorInfo(fields, input_size, problem)


def _read_colors(processor: Mapping[str, Any], class_name: str) -> dict[str, Any]:
    """Return colour order, scale, mean and std; empty if a setting is invalid."""
    scale = processor.get('rescale_factor', 1 / 255)
    flags = ('do_rescale', 'do_normalize', 'do_flip_channel_order')
    if not _valid_numbers('scale', [scale]) or not all(
        type(processor[flag]) is bool for flag in flags if flag in processor
    ):
        return {}
    fields: dict[str, Any] = {
        'color_order': 'bgr' if processor.get('do_flip_channel_order', False) else 'rgb',
        'scale': float(scale) if processor.get('do_rescale', True) else 1.0,
    }
    # Without this key, the default of the processor's class applies. Assume normalisation if the
    # file contains means. Otherwise normalisation is unknown: None.
    default = True if 'image_mean' in processor else None
    if class_name.startswith('MobileViT'):
        default = False
    normalises = processor.get('do_normalize', default)
    if normalises is False:
        fields['mean'], fields['std'] = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    elif normalises:
        fields['mean'] = _valid_numbers('mean', processor.get('image_mean'), 3)
        fields['std'] = _valid_numbers('std', processor.get('image_std'), 3)
        if not fields['mean'] or not fields['std']:
            return {}
    return fields


def _read_geometry(
    processor: Mapping[str, Any], class_name: str
) -> tuple[dict[str, Any], tuple[int, int] | None] | None:
    """Return the resize fields and the input size; None if the package lacks such a resize.

    A size with width and height stretches the image. A shortest edge with a crop size cuts the
    centre. Other sizes keep the aspect ratio, and the processor pads the image right and below
    with 0 after normalisation. DPT's processor may derive the size from the image.
    """
    size = processor.get('size')
    crops, is_convnext = processor.get('do_center_crop') is True, class_name.startswith('ConvNext')
    if type(size) is int and (class_name.startswith(_SQUARE_PREFIXES) or crops or is_convnext):
        is_square = class_name.startswith(_SQUARE_PREFIXES)
        size = {'height': size, 'width': size} if is_square else {'shortest_edge': size}
    if not isinstance(size, Mapping) or class_name.startswith(_OTHER_GEOMETRY_PREFIXES):
        return None
    fixed = _width_height(size)
    shortest = size.get('shortest_edge') if 'longest_edge' not in size else None
    if is_convnext and _is_side(shortest):
        return _convnext_geometry(shortest, processor.get('crop_pct'))
    if crops:
        cut = _width_height(processor.get('crop_size'))
        if cut is None or processor.get('do_resize') is False:
            return None
        if fixed is not None:
            return ({'resize': 'stretch'}, cut) if cut == fixed else None
        return _crop(shortest, cut) if _is_side(shortest) else None
    if fixed is not None:
        multiple = processor.get('ensure_multiple_of', 1)
        derives = processor.get('keep_aspect_ratio') is True and _is_side(multiple)
        return {'resize': 'stretch', **({'size_multiple': multiple} if derives else {})}, fixed
    return {'resize': 'letterbox_top_left', 'pad_value': None}, None


def _convnext_geometry(
    shortest: int, crop_pct: object
) -> tuple[dict[str, Any], tuple[int, int]] | None:
    if shortest >= _CONVNEXT_CROPS_BELOW:
        return {'resize': 'stretch'}, (shortest, shortest)
    part = _CONVNEXT_CROP_PCT if crop_pct is None else crop_pct
    if not isinstance(part, float | int) or not 0.01 <= part <= 1:
        return None
    return _crop(int(shortest / part), (shortest, shortest))


def _crop(shorter_side: int, size_wh: tuple[int, int]) -> tuple[dict[str, Any], tuple[int, int]]:
    fields = {'shorter_side': shorter_side, 'crop_rounding': 'down', 'pad_value': 0}
    return {'resize': 'center_crop', **fields}, size_wh


def _width_height(size: object) -> tuple[int, int] | None:
    """Return the width and height in a size of transformers; None if they are not fixed."""
    if type(size) is int:
        size = {'height': size, 'width': size}
    if not isinstance(size, Mapping):
        return None
    width, height = size.get('width'), size.get('height')
    return (width, height) if is_image_size((width, height)) else None  # type: ignore[return-value]


def _is_side(value: object) -> TypeGuard[int]:
    return type(value) is int and 1 <= value <= MAX_SIDE


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
    default = f'the default of {short_json(name)} is unknown'
    return None, f'preprocessor_config.json has no "resample", and {default}'


def _resizes_bytes(processor: Mapping[str, Any], model_type: str) -> bool:
    """Return whether a processor resizes bytes, with antialiasing.

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
