"""Reading of preprocessor_config.json. test_processors.py compares pixels with the processors."""

import pytest

from support.properties import given, settings, st
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.recognition.image_processor import read_image_processor

SQUARE = {'height': 224, 'width': 224}
CROP = {'do_center_crop': True, 'crop_size': SQUARE}


def crop(shorter_side, side=224):
    return ('center_crop', shorter_side, 0), (side, side)


STRETCH = ('stretch', None, None), (224, 224)
# Class of the processor, its values; resize, shorter side and padding, and input size
GEOMETRIES = [
    ('ViT', {'size': SQUARE}, STRETCH),
    ('ViT', {'size': 224}, STRETCH),  # a file of an old release
    ('Segformer', {'size': {'height': 96, 'width': 160}}, (('stretch', None, None), (160, 96))),
    ('CLIP', {'size': {'shortest_edge': 224}, **CROP}, crop(224)),
    ('CLIP', {'size': 236, 'do_center_crop': True, 'crop_size': 224}, crop(236)),
    ('MobileNetV2', {'size': {'shortest_edge': 256}, **CROP}, crop(256)),
    ('Bit', {'size': {'shortest_edge': 256}, **CROP, 'do_resize': True}, crop(256)),
    ('DeiT', {'size': 224, **CROP}, STRETCH),
    ('ConvNext', {'size': {'shortest_edge': 224}}, crop(256)),
    ('ConvNext', {'size': {'shortest_edge': 224}, 'crop_pct': 0.95}, crop(235)),
    ('ConvNext', {'size': 224, 'crop_pct': 0.875}, crop(256)),
    ('ConvNext', {'size': {'shortest_edge': 384}}, (('stretch', None, None), (384, 384))),
    ('DPT', {'size': SQUARE, 'ensure_multiple_of': 14}, STRETCH),
    ('Beit', {'size': SQUARE, 'do_center_crop': False, 'crop_size': SQUARE}, STRETCH),
    ('Beit', {'size': SQUARE, 'do_reduce_labels': True}, STRETCH),
    (
        'Detr',
        {'size': {'shortest_edge': 800, 'longest_edge': 1333}},
        (('letterbox_top_left', None, None), None),
    ),
]


@pytest.mark.parametrize(('name', 'values', 'expected'), GEOMETRIES)
def test_size_and_crop_give_the_geometry(name, values, expected):
    for kind in ('ImageProcessor', 'ImageProcessorFast'):
        values = {'resample': 2, **values, 'image_processor_type': f'{name}{kind}'}
        fields, input_size, problem = read_image_processor(values, '')
        found = fields['resize'], fields.get('shorter_side'), fields.get('pad_value')
        assert ((found, input_size), problem) == (expected, '')
        assert fields.get('crop_rounding', 'down') == 'down'
        assert Preprocessing(input_size or (64, 64), **fields).filter == 'bilinear'


@pytest.mark.parametrize(
    ('values', 'multiple'),
    [
        ({'keep_aspect_ratio': True, 'ensure_multiple_of': 14}, 14),
        ({'keep_aspect_ratio': True}, 1),
        ({'keep_aspect_ratio': True, 'ensure_multiple_of': 0}, None),
        ({'keep_aspect_ratio': 'yes', 'ensure_multiple_of': 14}, None),
        ({'keep_aspect_ratio': False, 'ensure_multiple_of': 14}, None),
    ],
)
def test_size_that_follows_from_the_image_is_recognised(values, multiple):
    values = {'size': SQUARE, 'image_processor_type': 'DPTImageProcessor', **values}
    fields, input_size, _ = read_image_processor(values, 'depth_anything')
    assert (fields['resize'], input_size) == ('stretch', (224, 224))
    assert fields.get('size_multiple') == multiple


@pytest.mark.parametrize(
    ('name', 'values'),
    [
        ('DeiT', {'size': {'height': 256, 'width': 256}, **CROP}),  # stretched, then cropped
        ('CLIP', {'size': {'shortest_edge': 224}, 'do_center_crop': True}),
        ('CLIP', {'size': {'shortest_edge': 224}, **CROP, 'do_resize': False}),
        ('CLIP', {'size': {'longest_edge': 224}, **CROP}),
        ('CLIP', {'size': {'shortest_edge': 224}, 'do_center_crop': True, 'crop_size': [9, 9]}),
        ('CLIP', {'size': {'shortest_edge': 32768}, **CROP}),
        ('CLIP', {'size': {'shortest_edge': 0}, **CROP}),
        ('ConvNext', {'size': {'shortest_edge': 224}, 'crop_pct': 0}),
        ('ConvNext', {'size': {'shortest_edge': 224}, 'crop_pct': float('nan')}),
        ('ConvNext', {'size': {'shortest_edge': 224}, 'crop_pct': '0.9'}),
        ('Levit', {'size': {'shortest_edge': 224}, **CROP}),
        ('PoolFormer', {'size': {'shortest_edge': 224}, 'crop_pct': 0.9, **CROP}),
        ('Detr', {'size': 800}),
    ],
)
def test_other_geometry_gives_no_preprocessing(name, values):
    values = {**values, 'image_processor_type': f'{name}ImageProcessor'}
    fields, input_size, problem = read_image_processor({**values, 'resample': 2}, '')
    assert (fields, input_size, problem) == ({}, None, '')
    # The usual preprocessing, used instead, may be bilinear.
    assert read_image_processor({**values, 'resample': 3}, '').filter_problem


@pytest.mark.parametrize(
    ('name', 'expected'),
    [
        *((name, 'bilinear') for name in ('ViT', 'Segformer', 'MobileNetV1', 'Detr', 'RTDetr')),
        *((name, 'bicubic') for name in ('Beit', 'Bit', 'CLIP', 'ConvNext', 'DeiT', 'DPT')),
    ],
)
def test_missing_filter_is_the_default_of_the_class(name, expected):
    values = {'size': SQUARE, 'image_processor_type': f'{name}ImageProcessor'}
    fields, _, problem = read_image_processor(values, '')
    assert (fields['filter'], fields['antialias'], problem) == (expected, True, '')
    swapped = {'bilinear': 3, 'bicubic': 2}[expected]
    fields, _, _ = read_image_processor({**values, 'resample': swapped}, '')
    assert fields['filter'] != expected


def test_mobilevit_does_not_normalise():
    values = {'size': {'shortest_edge': 288}, **CROP, 'do_flip_channel_order': True}
    values |= {'resample': 2, 'image_mean': [0.5] * 3, 'image_std': [0.5] * 3}
    values['image_processor_type'] = 'MobileViTImageProcessor'
    fields, _, _ = read_image_processor(values, '')
    assert (fields['color_order'], fields['mean'], fields['std']) == ('bgr', (0,) * 3, (1,) * 3)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(['height', 'width', 'shortest_edge']), inner)
    ),
    max_leaves=5,
)
KEYS = ['size', 'crop_size', 'crop_pct', 'do_center_crop', 'do_resize', 'resample', 'image_std']


@settings(deadline=None, max_examples=200)
@given(
    st.dictionaries(st.sampled_from([*KEYS, 'image_mean', 'rescale_factor']), json_values),
    st.sampled_from(['ViT', 'ConvNext', 'CLIP', 'Detr']),
)
def test_values_of_any_type_give_a_valid_preprocessing_or_none(values, name):
    values = {'image_processor_type': f'{name}ImageProcessor', **values}
    fields, input_size, _ = read_image_processor(values, '')
    if fields:
        Preprocessing(input_size or (64, 64), **fields).letterbox((640, 480))
