# SPDX-License-Identifier: Apache-2.0
"""Reading of preprocessor_config.json. test_processors.py compares pixels with the processors."""

import json

from support import golden
from support.properties import given, settings, st
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.recognition.image_processor import read_image_processor

SQUARE = {'height': 224, 'width': 224}
CROP = {'do_center_crop': True, 'crop_size': SQUARE}
SHORTEST = {'size': {'shortest_edge': 224}}
SIDES = {'size': {'shortest_edge': 800, 'longest_edge': 1333}}
LARGEST = {'size': {'max_height': 64, 'max_width': 96}}
#: Values of each file that does not say otherwise, and the fields that follow from these values.
VALUES = {
    'image_mean': [0.25] * 3,
    'image_std': [0.75, 0.75, 0.5],
    'rescale_factor': 0.5,
    'resample': 3,
}
FIELDS = {
    'color_order': 'rgb',
    'scale': 0.5,
    'mean': (0.25,) * 3,
    'std': (0.75, 0.75, 0.5),
    'filter': 'bicubic',
    'antialias': True,
    'round_pixels': True,
}
#: Behaviours, and the files that show them: the class without "ImageProcessor", and values. A
#: name in small letters is the model type of a file without a class. A file lacks the keys with
#: the value 'absent'.
FILES = {
    'size and crop give the geometry': [
        ('ViT', {'size': SQUARE}),
        ('ViT', {'size': 224}),  # a file of an old release
        ('Segformer', {'size': {'height': 96, 'width': 160}}),
        ('CLIP', {**SHORTEST, **CROP}),
        ('CLIP', {'size': 236, 'do_center_crop': True, 'crop_size': 224}),
        ('MobileNetV2', {'size': {'shortest_edge': 256}, **CROP}),
        ('Bit', {'size': {'shortest_edge': 256}, **CROP, 'do_resize': True}),
        ('DeiT', {'size': 224, **CROP}),
        ('ConvNext', SHORTEST),
        ('ConvNext', {**SHORTEST, 'crop_pct': 0.95}),
        ('ConvNext', {'size': 224, 'crop_pct': 0.875}),
        ('ConvNext', {'size': {'shortest_edge': 384}}),
        ('DPT', {'size': SQUARE, 'ensure_multiple_of': 14}),
        ('Beit', {'size': SQUARE, 'do_center_crop': False, 'crop_size': SQUARE}),
        ('Beit', {'size': SQUARE, 'do_reduce_labels': True}),
        ('Detr', SIDES),
        ('DeformableDetr', {**LARGEST, 'pad_size': {'height': 64, 'width': 96}}),
    ],
    'size that follows from the image is recognised': [
        ('DPT', {'size': SQUARE, 'keep_aspect_ratio': True, 'ensure_multiple_of': 14}),
        ('DPT', {'size': SQUARE, 'keep_aspect_ratio': True}),
        ('DPT', {'size': SQUARE, 'keep_aspect_ratio': False, 'ensure_multiple_of': 14}),
    ],
    'geometry that is not read is a problem, and leaves the colours': [
        ('DeiT', {'size': {'height': 256, 'width': 256}, **CROP}),  # stretched, then cropped
        ('CLIP', {**SHORTEST, 'do_center_crop': True}),
        ('CLIP', {**SHORTEST, **CROP, 'do_resize': False}),
        ('CLIP', {'size': {'longest_edge': 224}, **CROP}),
        ('CLIP', SHORTEST),  # images of one shorter side, not padded
        ('CLIP', {**SHORTEST, 'do_center_crop': True, 'crop_size': [9, 9]}),
        ('CLIP', {'size': {'shortest_edge': 32768}, **CROP}),
        ('CLIP', {'size': {'shortest_edge': 0}, **CROP}),
        ('CLIP', {**SHORTEST, **CROP, 'do_pad': True}),
        ('ConvNext', {**SHORTEST, 'crop_pct': 0}),
        ('ConvNext', {**SHORTEST, 'crop_pct': float('nan')}),
        ('ConvNext', {**SHORTEST, 'crop_pct': '0.9'}),
        ('ConvNext', {'size': {'shortest_edge': 384}, **CROP}),
        ('Levit', {**SHORTEST, **CROP}),
        ('PoolFormer', {**SHORTEST, 'crop_pct': 0.9, **CROP}),
        ('Detr', {'size': 'large'}),
        ('Detr', {**SIDES, 'do_pad': False}),
        ('Detr', {**SIDES, 'pad_size': SQUARE}),
        ('Detr', {**LARGEST, 'pad_size': SQUARE}),
        ('Detr', {'size': {'longest_edge': 1333}}),
        ('Detr', {'size': {'height': 800}}),
        ('Detr', {'size': 800, 'max_size': '1333'}),
        ('ViT', {'size': 800, 'max_size': 1333}),
        # The published files of DPT with DINOv2's backbone.
        ('DPT', {'size': SQUARE, 'do_resize': False, 'do_pad': True, 'size_divisor': 14}),
        ('DPT', {'size': SQUARE, 'do_pad': True, 'size_divisor': 30}),
        ('DPT', {'size': SQUARE, 'keep_aspect_ratio': True, 'do_pad': True, 'size_divisor': 14}),
        ('DPT', {'size': SQUARE, 'keep_aspect_ratio': True, 'ensure_multiple_of': 0}),
        ('DPT', {'size': SQUARE, 'keep_aspect_ratio': 'yes', 'ensure_multiple_of': 14}),
        ('ViT', {'size': {'height': 0, 'width': 224}}),
        ('ViT', {'size': {'height': 224, 'width': 32768}}),
        ('ViT', {'size': SQUARE, 'do_resize': False}),
        ('ViT', {'do_resize': False}),
        ('ViT', {'do_center_crop': True}),
        ('ViT', {'size': SQUARE, 'keep_aspect_ratio': True}),
        ('ViT', {'size': SQUARE, 'crop_pct': 0.9}),
        ('RTDetr', {'size': SQUARE, 'do_pad': True, 'pad_size': {'height': 640, 'width': 640}}),
        # Keys of other processors, and of releases that do not exist yet.
        ('ViT', {'size': SQUARE, 'do_thumbnail': True}),
        ('ViT', {'size': SQUARE, 'image_grid_pinpoints': [[336, 672]]}),
        ('ViT', {'size': SQUARE, 'max_image_size': {'longest_edge': 364}}),
        ('ViT', {'size': SQUARE, 'do_rotate_portrait': True}),
        ('ViT', {'size': SQUARE, 'patch_size': 14}),
        # Classes that compute other sizes from the same keys.
        *((name, {'size': SQUARE}) for name in ('Owlv2', 'ZoeDepth', 'Donut', 'Vilt', 'Mine')),
        ('GLPN', {'size_divisor': 32}),
    ],
    'invalid value is a problem, and leaves the geometry': [
        ('ViT', {'size': SQUARE, **value})
        for value in (
            {'image_mean': [0.5] * 4},
            {'image_mean': ['a'] * 3, 'image_std': [0] * 3},
            {'do_normalize': 1},
            {'do_rescale': 'yes'},
            {'rescale_factor': [1]},
            {'do_flip_channel_order': True},  # only MobileViT's reads the key
            {'resample': 1},
            {'rescale_offset': True},  # EfficientNet's
            {'include_top': True},
            {'do_grayscale': True},
        )
    ],
    'missing colours are unknown, but the scale has a default': [
        ('ViT', {'size': SQUARE, key: 'absent'})
        for key in ('rescale_factor', 'image_mean', 'image_std')
    ],
    'class that is not read is named with its key': [
        ('Owlv2', {'size': SQUARE, 'resample': 'absent'}),
        ('LevitFeatureExtractor', {'size': SQUARE, 'resample': 'absent'}),
        ('LevitFeatureExtractor', {'size': SQUARE}),  # its filter is known
    ],
    'keys that change nothing are no problem': [
        ('DPT', {'size': SQUARE, **value})
        for value in (
            {'do_convert_rgb': True, 'processor_class': 'X', 'do_reduce_labels': True},
            {'crop_size': SQUARE, 'do_center_crop': False, 'do_pad': None, 'pad_size': None},
            {'do_thumbnail': False, 'max_image_size': None, 'note': 'my own', 'labels': [1]},
            {'do_pad': True},  # to a multiple of 1
            {'do_pad': True, 'size_divisor': 32},
            {'do_pad': False, 'size_divisor': 9},
            {'image_mean': 0.5, 'image_std': 0.5},
        )
    ],
    # Files that the feature extractors of transformers 4.2x wrote. Today's processors read them as
    # {'shortest_edge': 800, 'longest_edge': 1333}: transformers 5.24.
    'size and largest side of old files keep the aspect ratio': [
        (name, {'size': 800, 'max_size': 1333, **more})
        for name in ('DetrFeatureExtractor', 'DeformableDetrFeatureExtractor', 'detr')
        for more in ({}, {'format': 'coco_detection', 'do_pad': True})
    ],
    # transformers 5.24 rounds both sides down to multiples of 16. processors.npz has its pixels.
    'YOLOS fills the input': [
        (name, values)
        for name in ('Yolos', 'YolosFeatureExtractor', 'yolos')
        for values in (
            SIDES,
            {**SIDES, 'do_pad': True},
            {'size': 800, 'max_size': 1333},
            {'size': 800},
        )
    ],
    'YOLOS rounds no other sizes': [
        ('Yolos', LARGEST),
        ('Yolos', {'size': {'height': 512, 'width': 768}}),
    ],
    'YOLOS with padding to a size is refused': [
        ('Yolos', {**SIDES, 'do_pad': True, 'pad_size': {'height': 512, 'width': 768}})
    ],
    'missing filter is the default of the class': [
        (name, {'size': SQUARE, 'resample': 'absent'})
        for name in (
            *('ViT', 'Segformer', 'MobileNetV1', 'Detr', 'RTDetr'),
            *('Beit', 'Bit', 'CLIP', 'ConvNext', 'DeiT', 'DPT'),
            'vit',  # a file without a class counts as bilinear
        )
    ],
    'filter of the file replaces the default of the class': [
        ('ViT', {'size': SQUARE, 'resample': 3}),
        ('CLIP', {'size': SQUARE, 'resample': 2}),
    ],
    # (x - mean) / std / std. processors.npz has the pixels of transformers' own processor.
    'EfficientNet divides by the standard deviation again': [
        ('EfficientNet', {'size': SQUARE, **value})
        for value in (
            {'include_top': True},
            {},  # the default of the class
            {'include_top': False},
            {'do_normalize': False},
            {'do_normalize': False, 'include_top': False},
        )
    ],
    'values that EfficientNet cannot use are problems': [
        ('EfficientNet', {'size': SQUARE, **value})
        for value in (
            {'include_top': 1},
            {'image_std': [1e-5] * 3},  # the square is too small
            {'image_std': None, 'do_normalize': False},
            {'rescale_offset': True},
        )
    ],
    'MobileViT does not normalise': [
        ('MobileViT', {'size': {'shortest_edge': 288}, **CROP, 'do_flip_channel_order': True})
    ],
}


def read(name, values, suffix='ImageProcessor'):
    """Return the fields of the preprocessing, the input size and the problems of a file."""
    if name.endswith('FeatureExtractor'):
        values = {'feature_extractor_type': name, **values}
    elif name != name.lower():
        values = {'image_processor_type': f'{name}{suffix}', **values}
    model_type = name.removesuffix('FeatureExtractor').lower()
    values = {key: value for key, value in {**VALUES, **values}.items() if value != 'absent'}
    fields, input_size, problems = read_image_processor(values, model_type)
    Preprocessing(input_size or (64, 64), **fields)  # raises no error
    return fields, input_size, problems


def test_files_give_the_recorded_preprocessing_and_problems():
    lines = []
    for behaviour, files in FILES.items():
        lines.append(f'== {behaviour}')
        for name, values in files:
            fields, input_size, problems = read(name, values)
            found = {key: value for key, value in fields.items() if FIELDS.get(key, ...) != value}
            found |= dict.fromkeys(FIELDS.keys() - fields.keys(), 'unknown')
            lines.append(f'{name} {json.dumps(values)}')
            lines.append(f'  {input_size}, {json.dumps(found, sort_keys=True)}')
            lines += [f'  {problem}: {text}' for problem, text in sorted(problems.items())]
    golden.check('model/image_processor.txt', '\n'.join(lines))


def test_fast_processor_is_read_like_the_other():
    for name, values in FILES['size and crop give the geometry']:
        assert read(name, values, 'ImageProcessorFast') == read(name, values)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(['height', 'width', 'shortest_edge']), inner)
    ),
    max_leaves=5,
)
KEYS = [
    *('size', 'crop_size', 'crop_pct', 'do_center_crop', 'do_resize', 'resample', 'image_std'),
    *('max_size', 'do_pad', 'pad_size', 'size_divisor', 'keep_aspect_ratio', 'do_normalize'),
    *('ensure_multiple_of', 'do_rescale', 'do_thumbnail', 'include_top'),
]


@settings(deadline=None, max_examples=200)
@given(
    st.dictionaries(st.sampled_from([*KEYS, 'image_mean', 'rescale_factor']), json_values),
    st.sampled_from(['ViT', 'ConvNext', 'CLIP', 'Detr', 'DPT', 'EfficientNet', 'Yolos', '']),
)
def test_values_of_any_type_give_a_valid_preprocessing_or_none(values, name):
    values = {'image_processor_type': f'{name}ImageProcessor', **values}
    fields, input_size, _ = read_image_processor(values, '')
    Preprocessing(input_size or (64, 64), **fields).letterbox((640, 480))
