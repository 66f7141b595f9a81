"""Reading of preprocessor_config.json. test_processors.py compares pixels with the processors."""

import json

import pytest

from support.properties import given, settings, st
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.recognition.image_processor import read_image_processor

SQUARE = {'height': 224, 'width': 224}
CROP = {'do_center_crop': True, 'crop_size': SQUARE}


def names_a_value(problem, values):
    """Return whether a problem names one of the file's keys with its value."""
    return any(
        f'{json.dumps(key)}{joint} {json.dumps(value)}' in problem
        for key, value in values.items()
        for joint in (':', ' is')
    )


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
    (
        'DeformableDetr',
        {'size': {'max_height': 64, 'max_width': 96}, 'pad_size': {'height': 64, 'width': 96}},
        (('letterbox_top_left', None, None), (96, 64)),
    ),
]


@pytest.mark.parametrize(('name', 'values', 'expected'), GEOMETRIES)
def test_size_and_crop_give_the_geometry(name, values, expected):
    for kind in ('ImageProcessor', 'ImageProcessorFast'):
        values = {'resample': 2, **values, 'image_processor_type': f'{name}{kind}'}
        fields, input_size, problems = read_image_processor(values, '')
        found = fields['resize'], fields.get('shorter_side'), fields.get('pad_value')
        assert ((found, input_size), problems) == (expected, {})
        assert fields.get('crop_rounding', 'down') == 'down'
        assert Preprocessing(input_size or (64, 64), **fields).filter == 'bilinear'


@pytest.mark.parametrize(
    ('values', 'multiple'),
    [
        ({'keep_aspect_ratio': True, 'ensure_multiple_of': 14}, 14),
        ({'keep_aspect_ratio': True}, 1),
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
        ('CLIP', {'size': {'shortest_edge': 224}}),  # images of one shorter side, not padded
        ('CLIP', {'size': {'shortest_edge': 224}, 'do_center_crop': True, 'crop_size': [9, 9]}),
        ('CLIP', {'size': {'shortest_edge': 32768}, **CROP}),
        ('CLIP', {'size': {'shortest_edge': 0}, **CROP}),
        ('CLIP', {'size': {'shortest_edge': 224}, **CROP, 'do_pad': True}),
        ('ConvNext', {'size': {'shortest_edge': 224}, 'crop_pct': 0}),
        ('ConvNext', {'size': {'shortest_edge': 224}, 'crop_pct': float('nan')}),
        ('ConvNext', {'size': {'shortest_edge': 224}, 'crop_pct': '0.9'}),
        ('ConvNext', {'size': {'shortest_edge': 384}, **CROP}),
        ('Levit', {'size': {'shortest_edge': 224}, **CROP}),
        ('PoolFormer', {'size': {'shortest_edge': 224}, 'crop_pct': 0.9, **CROP}),
        ('Detr', {'size': 'large'}),
        ('Detr', {'size': {'shortest_edge': 800, 'longest_edge': 1333}, 'do_pad': False}),
        ('Detr', {'size': {'shortest_edge': 800, 'longest_edge': 1333}, 'pad_size': SQUARE}),
        ('Detr', {'size': {'max_height': 64, 'max_width': 96}, 'pad_size': SQUARE}),
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
)
def test_unread_geometry_is_a_problem_and_leaves_the_colours(name, values):
    colors = {'image_mean': [0.25] * 3, 'image_std': [0.75] * 3, 'rescale_factor': 0.5}
    values = {**values, **colors, 'image_processor_type': f'{name}ImageProcessor', 'resample': 3}
    fields, input_size, problems = read_image_processor(values, '')
    assert (set(problems), input_size) == ({'resize'}, None)
    assert (fields['mean'], fields['std'], fields['scale']) == ((0.25,) * 3, (0.75,) * 3, 0.5)
    assert fields['filter'] == 'bicubic'
    assert not fields.keys() & {'resize', 'pad_value', 'shorter_side', 'size_multiple'}
    assert names_a_value(problems['resize'], values)


@pytest.mark.parametrize(
    ('values', 'missing'),
    [
        ({'image_mean': [0.5] * 4}, {'mean'}),
        ({'image_mean': ['a'] * 3, 'image_std': [0] * 3}, {'mean', 'std'}),
        ({'do_normalize': 1}, {'mean', 'std'}),
        ({'do_rescale': 'yes'}, {'scale'}),
        ({'rescale_factor': [1]}, {'scale'}),
        ({'do_flip_channel_order': True}, {'color_order'}),  # only MobileViT's reads the key
        ({'resample': 1}, {'antialias'}),
        ({'rescale_offset': True}, {'scale', 'mean', 'std'}),  # EfficientNet's
        ({'include_top': True}, {'scale', 'mean', 'std'}),
        ({'do_grayscale': True}, {'scale', 'mean', 'std'}),
    ],
)
def test_invalid_value_is_a_problem_and_leaves_the_geometry(values, missing):
    usual = {'size': SQUARE, 'image_mean': [0.5] * 3, 'image_std': [0.5] * 3, 'resample': 2}
    values = {**usual, **values, 'image_processor_type': 'ViTImageProcessor'}
    fields, input_size, problems = read_image_processor(values, '')
    assert (set(problems), input_size, fields['resize']) == (missing, (224, 224), 'stretch')
    assert not missing & fields.keys() - {'antialias'}
    for problem in problems.values():
        assert names_a_value(problem, values)


@pytest.mark.parametrize('key', ['image_processor_type', 'feature_extractor_type'])
@pytest.mark.parametrize(
    'name', ['Owlv2ImageProcessor', 'MyOwnProcessor', 'LevitFeatureExtractor']
)
def test_class_that_is_not_read_is_named_with_its_key(key, name):
    values = {'size': SQUARE, key: name}
    _, input_size, problems = read_image_processor(values, 'vit')
    assert (set(problems), input_size) == ({'resize', 'antialias'}, None)
    for problem in problems.values():
        assert f'{json.dumps(key)}: {json.dumps(name)}' in problem
    # A known filter is no problem of the class.
    _, _, problems = read_image_processor({**values, 'resample': 2}, 'vit')
    assert set(problems) == {'resize'}


@pytest.mark.parametrize(
    'values',
    [
        {'do_convert_rgb': True, 'processor_class': 'X', 'do_reduce_labels': True},
        {'crop_size': SQUARE, 'do_center_crop': False, 'do_pad': None, 'pad_size': None},
        {'do_thumbnail': False, 'max_image_size': None, 'note': 'from my training', 'labels': [1]},
        {'do_pad': True},  # to a multiple of 1
        {'do_pad': True, 'size_divisor': 32},
        {'do_pad': False, 'size_divisor': 9},
        {'image_mean': 0.5, 'image_std': 0.5},
    ],
)
def test_keys_that_change_nothing_are_no_problem(values):
    values = {'size': SQUARE, 'image_mean': [0.5] * 3, 'image_std': [0.5] * 3, **values}
    values = {**values, 'image_processor_type': 'DPTImageProcessor'}
    fields, input_size, problems = read_image_processor(values, '')
    assert (fields['resize'], input_size, problems) == ('stretch', (224, 224), {})
    assert fields['mean'] == (0.5,) * 3


# Files that the feature extractors of transformers 4.2x wrote. Today's processors read them as
# {'shortest_edge': 800, 'longest_edge': 1333}: transformers 5.24.
@pytest.mark.parametrize('name', ['Detr', 'ConditionalDetr', 'DeformableDetr', ''])
@pytest.mark.parametrize('more', [{}, {'format': 'coco_detection', 'do_pad': True}])
def test_size_and_largest_side_of_old_files_keep_the_aspect_ratio(name, more):
    values = {'size': 800, 'max_size': 1333, 'image_mean': [0.4] * 3, 'image_std': [0.3] * 3}
    if name:
        values['feature_extractor_type'] = f'{name}FeatureExtractor'
    fields, input_size, problems = read_image_processor({**values, **more}, 'detr')
    assert (fields['resize'], fields['pad_value']) == ('letterbox_top_left', None)
    assert (input_size, problems) == (None, {})
    assert (fields['mean'], fields['std']) == ((0.4,) * 3, (0.3,) * 3)


@pytest.mark.parametrize(
    'values',
    [
        {'size': {'shortest_edge': 800, 'longest_edge': 1333}},
        {'size': {'shortest_edge': 800, 'longest_edge': 1333}, 'do_pad': True},
        {'size': 800, 'max_size': 1333},
        {'size': 800},
    ],
)
@pytest.mark.parametrize(
    'class_name',
    [
        {'image_processor_type': 'YolosImageProcessor'},
        {'image_processor_type': 'YolosImageProcessorFast'},
        {'feature_extractor_type': 'YolosFeatureExtractor'},
        {},
    ],
)
def test_yolos_fills_the_input(values, class_name):
    # transformers 5.24 rounds both sides down to multiples of 16. processors.npz has its pixels.
    fields, input_size, problems = read_image_processor({**values, **class_name}, 'yolos')
    assert (fields['resize'], fields['keeps_aspect_ratio']) == ('stretch', True)
    assert (input_size, problems) == (None, {})


@pytest.mark.parametrize(
    ('values', 'resize'),
    [
        ({'size': {'max_height': 512, 'max_width': 768}}, 'letterbox_top_left'),
        ({'size': {'height': 512, 'width': 768}}, 'stretch'),
    ],
)
def test_yolos_rounds_no_other_sizes(values, resize):
    values['image_processor_type'] = 'YolosImageProcessor'
    fields, _, problems = read_image_processor(values, 'yolos')
    assert (fields['resize'], problems) == (resize, {})
    assert 'keeps_aspect_ratio' not in fields


def test_yolos_with_padding_to_a_size_is_refused():
    values = {'size': {'shortest_edge': 512, 'longest_edge': 768}, 'do_pad': True}
    values |= {'pad_size': {'height': 512, 'width': 768}}
    values['image_processor_type'] = 'YolosImageProcessor'
    fields, _, problems = read_image_processor(values, 'yolos')
    assert 'resize' in problems
    assert 'resize' not in fields


@pytest.mark.parametrize(
    ('name', 'expected'),
    [
        *((name, 'bilinear') for name in ('ViT', 'Segformer', 'MobileNetV1', 'Detr', 'RTDetr')),
        *((name, 'bicubic') for name in ('Beit', 'Bit', 'CLIP', 'ConvNext', 'DeiT', 'DPT')),
    ],
)
def test_missing_filter_is_the_default_of_the_class(name, expected):
    values = {'size': SQUARE, 'image_processor_type': f'{name}ImageProcessor'}
    fields, _, problems = read_image_processor(values, '')
    assert (fields['filter'], fields['antialias']) == (expected, True)
    assert 'antialias' not in problems
    swapped = {'bilinear': 3, 'bicubic': 2}[expected]
    fields, _, _ = read_image_processor({**values, 'resample': swapped}, '')
    assert fields['filter'] != expected


@pytest.mark.parametrize(
    ('values', 'mean', 'std'),
    [
        ({'include_top': True}, (0.4,) * 3, (0.25, 0.25, 0.0625)),
        ({}, (0.4,) * 3, (0.25, 0.25, 0.0625)),  # the default of the class
        ({'include_top': False}, (0.4,) * 3, (0.5, 0.5, 0.25)),
        ({'do_normalize': False}, (0.0,) * 3, (0.5, 0.5, 0.25)),
        ({'do_normalize': False, 'include_top': False}, (0.0,) * 3, (1.0,) * 3),
    ],
)
def test_efficientnet_divides_by_the_standard_deviation_again(values, mean, std):
    # (x - mean) / std / std. processors.npz has the pixels of transformers' own processor.
    values = {'size': SQUARE, 'image_mean': [0.4] * 3, 'image_std': [0.5, 0.5, 0.25], **values}
    values |= {'image_processor_type': 'EfficientNetImageProcessor', 'resample': 3}
    fields, input_size, problems = read_image_processor(values, 'efficientnet')
    assert (fields['mean'], fields['std'], problems) == (mean, std, {})
    assert (fields['resize'], input_size) == ('stretch', (224, 224))


@pytest.mark.parametrize(
    ('values', 'missing'),
    [
        ({'include_top': 1}, {'std'}),
        ({'image_std': [1e-5] * 3}, {'std'}),  # the square is too small
        ({'image_std': None, 'do_normalize': False}, {'std'}),
        ({'rescale_offset': True}, {'scale', 'mean', 'std'}),
    ],
)
def test_values_that_efficientnet_cannot_use_are_problems(values, missing):
    usual = {'size': SQUARE, 'image_mean': [0.5] * 3, 'image_std': [0.5] * 3, 'resample': 3}
    values = {**usual, **values, 'image_processor_type': 'EfficientNetImageProcessor'}
    fields, _, problems = read_image_processor(values, 'efficientnet')
    assert set(problems) == missing
    assert not missing & fields.keys()


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
