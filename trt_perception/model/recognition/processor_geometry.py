# SPDX-License-Identifier: Apache-2.0
"""Reads size, crop and padding of a Hugging Face image processor.

Only classes whose results were compared are read, because other classes compute other sizes from
the same keys. A key that may change the size or position of the image, and that is not read, is a
problem: it must not become a default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Any, Final, NamedTuple, TypeGuard

from trt_perception.files.json_section import short_json
from trt_perception.images.frame import MAX_SIDE
from trt_perception.model.recognition.exporter_info import is_image_size

#: Image processors that stretch to a fixed size, or crop. For these, one number as "size" is the
#: width and height, except for those in _SHORTEST_EDGE.
_STRETCHING: Final = frozenset(
    (
        *('Beit', 'Bit', 'Blip', 'CLIP', 'ChineseCLIP', 'ConvNext', 'DINOv3ViT', 'DPT', 'DeiT'),
        *('DepthPro', 'EfficientNet', 'Flava', 'MobileNetV1', 'MobileNetV2', 'MobileViT'),
        *('OwlViT', 'Pvt', 'RTDetr', 'RfDetr', 'Sapiens2', 'Segformer', 'Siglip', 'ViT'),
    )
)
#: One number as "size" is the shorter side.
_SHORTEST_EDGE: Final = frozenset(
    ('Bit', 'CLIP', 'ChineseCLIP', 'ConvNext', 'MobileNetV1', 'MobileNetV2', 'MobileViT')
)
#: Image processors that keep the aspect ratio, and pad right and below.
_PADDING: Final = frozenset(
    (
        *('ConditionalDetr', 'DeformableDetr', 'Detr', 'GroundingDino', 'OneFormer', 'RTDetr'),
        *('RfDetr', 'Yolos'),
    )
)
#: Image processors that round both resized sides down to multiples of 16.
_ROUNDING_TO_16: Final = frozenset(('Yolos',))
#: Model types whose processor's class is known if the file lacks it, as in transformers.
_CLASS_BY_MODEL_TYPE: Final = {'yolos': 'Yolos'}
#: Keys of the processor's class, first that of today's releases.
_CLASS_KEYS: Final = ('image_processor_type', 'feature_extractor_type')
_DERIVES_SIZE: Final = frozenset(('', 'DPT'))
_SUFFIX: Final = re.compile(r'(FeatureExtractor|ImageProcessor(Fast|Pil)?)$')
#: ConvNeXt crops only inputs that are smaller than this side, in pixels.
_CONVNEXT_CROPS_BELOW: Final = 384
_CONVNEXT_CROP_PCT: Final = 224 / 256

_READ_KEYS: Final = frozenset(
    (
        *('crop_pct', 'crop_size', 'default_to_square', 'do_center_crop', 'do_normalize'),
        *('do_flip_channel_order', 'do_pad', 'do_rescale', 'do_resize', 'ensure_multiple_of'),
        *('image_mean', 'image_std', 'keep_aspect_ratio', 'max_size', 'pad_size', 'resample'),
        *('rescale_factor', 'size', 'size_divisor'),
    )
)
#: These keys sound like others, but do not change the pixels of an RGB image.
_OTHER_KEYS: Final = frozenset(
    (
        *('do_convert_annotations', 'do_convert_rgb', 'do_reduce_labels', 'data_format'),
        *('input_data_format', 'reduce_labels', 'image_processor_type', 'image_seq_length'),
        *('feature_extractor_type', 'processor_class', 'size_divisibility'),
    )
)
#: Keys that are read for all classes, or that change nothing.
KNOWN_KEYS: Final = _READ_KEYS | _OTHER_KEYS
# Words of keys that change the size or position of the image, or its pixels.
_WORDS: Final = re.compile(
    r'(^|_)(do|size|sizes|side|edge|width|height|pad|padding|crop|crops|resize|ratio|multiple|'
    r'divisor|patch|patches|tile|tiles|split|slice|thumbnail|margin|rotate|flip|affine|limit|'
    r'aspect|stride|canvas|resolution|resolutions|pinpoints|factor|long|short|longest|shortest|'
    r'min|max|pixels|mode|grid|offset|top|grayscale|quantize|binarize|constant|values?)(_|$)'
)
# Of these, words of keys that change pixels only.
_COLOR_WORDS: Final = re.compile(
    r'(^|_)(offset|top|grayscale|quantize|binarize|rescale|normalize)(_|$)'
)


class Geometry(NamedTuple):
    """How an image becomes the input.

    Attributes:
        fields: values for fields of Preprocessing; empty if unknown.
        input_size: width and height in pixels; None if unknown.
        problem: why the package cannot do the same; empty if it can, or if the file has no size.
    """

    fields: dict[str, Any]
    input_size: tuple[int, int] | None = None
    problem: str = ''


def class_prefix(processor: Mapping[str, Any]) -> str:
    """Return the class of a processor without its suffix, such as ``ViT``; empty if missing."""
    name = next((processor[key] for key in _CLASS_KEYS if processor.get(key)), None)
    return _SUFFIX.sub('', name) if isinstance(name, str) else ''


def class_text(processor: Mapping[str, Any]) -> str:
    """Return the key and value of a processor's class, for messages; empty if missing."""
    found = (key for key in _CLASS_KEYS if processor.get(key))
    return next((f'{short_json(key)}: {short_json(processor[key])}' for key in found), '')


def unread_keys(
    processor: Mapping[str, Any],
    *,
    of_colors: bool,
    known: Set[str] = KNOWN_KEYS,
) -> str:
    """Return the keys that are not read and change the pixels, with their values; may be empty.

    Args:
        of_colors: whether to return keys that change colours. Otherwise, return the keys that
            change size or position.
        known: keys that are read, or that change nothing.
    """
    keys = [
        key
        for key, value in processor.items()
        if value not in (None, False, '', [], {})
        and key not in known
        and _WORDS.search(key)
        and bool(_COLOR_WORDS.search(key)) == of_colors
    ]
    return ', '.join(f'{short_json(key)}: {short_json(processor[key])}' for key in keys[:3])


def read_geometry(processor: Mapping[str, Any], model_type: str = '') -> Geometry:
    """Return how a processor resizes, crops and pads.

    Args:
        processor: content of preprocessor_config.json, which is untrusted.
        model_type: "model_type" in config.json; empty if unknown.
    """
    prefix = class_prefix(processor) or _CLASS_BY_MODEL_TYPE.get(model_type, '')
    if prefix and prefix not in _STRETCHING | _PADDING:
        known = f'{class_text(processor)} is a class whose resize is unknown'
        return Geometry({}, problem=known)
    if keys := unread_keys(processor, of_colors=False):
        return Geometry({}, problem=f'{keys} is not read')
    for key in ('do_resize', 'do_center_crop', 'do_pad', 'keep_aspect_ratio'):
        if processor.get(key) not in (None, True, False):
            return _problem(processor, key)
    # Without this check, an image would be resized that the processor does not resize.
    if processor.get('do_resize') is False:
        return _problem(processor, 'do_resize', 'do_pad', 'size_divisor')
    if processor.get('size') is None:
        further = ('do_center_crop', 'do_pad', 'keep_aspect_ratio')
        return (
            Geometry({}) if not any(map(processor.get, further)) else _problem(processor, *further)
        )
    return _with_size(processor, prefix)


def _problem(processor: Mapping[str, Any], *keys: str) -> Geometry:
    """Return a geometry whose problem names the keys that the file has."""
    given = [key for key in keys if processor.get(key) is not None]
    values = ', '.join(f'{short_json(key)}: {short_json(processor[key])}' for key in given)
    of_class = f' with {class_text(processor)}' if class_text(processor) else ''
    return Geometry({}, problem=f'{values} is unsupported{of_class}')


def _with_size(processor: Mapping[str, Any], prefix: str) -> Geometry:
    size = _size_as_mapping(processor, prefix)
    crops = processor.get('do_center_crop') is True
    fixed = _width_height(size)
    if size is None or (fixed is None and set(size) & {'height', 'width'}):
        return _problem(processor, 'size', 'max_size')
    if (processor.get('crop_pct') is not None and prefix not in ('', 'ConvNext')) or (
        processor.get('keep_aspect_ratio') is True and prefix not in _DERIVES_SIZE
    ):
        return _problem(processor, 'crop_pct', 'keep_aspect_ratio')
    edges = {key for key, side in size.items() if side is not None}
    shortest = size.get('shortest_edge') if edges == {'shortest_edge'} else None
    if prefix == 'ConvNext':
        if _is_side(shortest) and not crops:
            return _convnext(processor, shortest)
        return _problem(processor, 'size', 'do_center_crop')
    if crops:
        cut = _width_height(processor.get('crop_size'))
        if processor.get('crop_size') is None:
            return Geometry(
                {}, problem='"do_center_crop": true needs "crop_size", which is missing'
            )
        if processor.get('do_pad') is True or cut is None:
            return _problem(processor, 'do_center_crop', 'crop_size', 'do_pad')
        if fixed == cut:
            return Geometry({'resize': 'stretch'}, cut)
        if fixed is None and _is_side(shortest):
            return _crop(shortest, cut)
        unsupported = _problem(processor, 'size', 'do_center_crop', 'crop_size')
        if fixed is None:
            return unsupported
        equal = ''
        if fixed[0] == fixed[1]:
            equal = f' but for square images: center_crop with a shorter side of {fixed[0]}'
        return unsupported._replace(
            problem=f'{unsupported.problem}: the image is stretched, then cropped, which no '
            f'resize mode does{equal}'
        )
    if fixed is not None:
        return _stretch(processor, prefix, fixed)
    known = ({'shortest_edge'}, {'shortest_edge', 'longest_edge'}, {'max_height', 'max_width'})
    keeps_aspect = prefix in _PADDING | {''} and edges in known
    padded = _width_height(processor.get('pad_size'))
    # An image that fits into the padded size exactly is resized as a letterbox.
    is_letterbox = processor.get('do_pad') is not False and (
        not processor.get('pad_size')
        or (padded is not None and padded == (size.get('max_width'), size.get('max_height')))
    )
    if keeps_aspect and is_letterbox and all(map(_is_side, size.values())):
        # The processors compute the sides from "max_height" and "max_width" in another way.
        rounding = 'down' if 'max_width' in edges else 'longer_down'
        if prefix in _ROUNDING_TO_16 and 'max_width' not in edges:
            # The input of a model of fixed size is the rounded size, without padding.
            return Geometry({'resize': 'stretch', 'keeps_aspect_ratio': True})
        fields = {'resize': 'letterbox_top_left', 'pad_value': None, 'size_rounding': rounding}
        return Geometry(fields, padded)
    return _problem(processor, 'size', 'do_center_crop', 'do_pad', 'pad_size')


def _size_as_mapping(processor: Mapping[str, Any], prefix: str) -> Mapping[str, Any] | None:
    """Return the size in the form of today's releases; None if it has no known form.

    Files of old releases have one number, and the largest side under another key.
    """
    size, longest = processor.get('size'), processor.get('max_size')
    if isinstance(size, Mapping):
        return (
            {key: side for key, side in size.items() if side is not None}
            if longest is None
            else None
        )
    if not _is_side(size):
        return None
    if longest is not None:
        is_padded = prefix in _PADDING | {''} and _is_side(longest)
        return {'shortest_edge': size, 'longest_edge': longest} if is_padded else None
    is_square = processor.get('default_to_square')
    if not isinstance(is_square, bool):
        is_shortest = prefix in _SHORTEST_EDGE | (_PADDING - _STRETCHING)
        if not prefix and processor.get('do_center_crop') is not True:
            return None  # some classes stretch to this size, others keep the aspect ratio
        is_square = bool(prefix) and not is_shortest
    return {'height': size, 'width': size} if is_square else {'shortest_edge': size}


def _stretch(processor: Mapping[str, Any], prefix: str, size_wh: tuple[int, int]) -> Geometry:
    """Return the geometry of a fixed size, or of a size that follows from the image."""
    derives, multiple = processor.get('keep_aspect_ratio') is True, 1
    if prefix in _DERIVES_SIZE and processor.get('ensure_multiple_of') is not None:
        multiple = processor['ensure_multiple_of']
        if not _is_side(multiple):
            return _problem(processor, 'ensure_multiple_of')
    if not derives:
        # DPT's processor rounds each side to the multiple.
        width, height = (max(1, round(side / multiple)) * multiple for side in size_wh)
        size_wh = (width, height)
    if processor.get('do_pad') is True:
        divisor, pad_size = processor.get('size_divisor') or 1, processor.get('pad_size')
        is_padded = not _is_side(divisor) or (
            multiple % divisor != 0 if derives else any(side % divisor for side in size_wh)
        )
        if is_padded or (pad_size and _width_height(pad_size) != size_wh):
            return _problem(processor, 'size', 'do_pad', 'size_divisor', 'pad_size')
    return Geometry(
        {'resize': 'stretch', **({'size_multiple': multiple} if derives else {})}, size_wh
    )


def _convnext(processor: Mapping[str, Any], shortest: int) -> Geometry:
    if shortest >= _CONVNEXT_CROPS_BELOW:
        return Geometry({'resize': 'stretch'}, (shortest, shortest))
    part = processor.get('crop_pct')
    part = _CONVNEXT_CROP_PCT if part is None else part
    if type(part) not in (int, float) or not 0.01 <= part <= 1:
        return _problem(processor, 'crop_pct')
    return _crop(int(shortest / part), (shortest, shortest))


def _crop(shorter_side: int, size_wh: tuple[int, int]) -> Geometry:
    fields = {'shorter_side': shorter_side, 'crop_rounding': 'down', 'pad_value': 0}
    return Geometry({'resize': 'center_crop', **fields}, size_wh)


def _width_height(size: object) -> tuple[int, int] | None:
    """Return the width and height in a size of transformers; None if they are not fixed."""
    if type(size) is int:
        size = {'height': size, 'width': size}
    if not isinstance(size, Mapping) or set(size) != {'height', 'width'}:
        return None
    width, height = size['width'], size['height']
    return (width, height) if is_image_size((width, height)) else None


def _is_side(value: object) -> TypeGuard[int]:
    return type(value) is int and 1 <= value <= MAX_SIDE
