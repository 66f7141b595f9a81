# SPDX-License-Identifier: Apache-2.0
"""Recognition chooses decoders for models without a manifest, and refuses ambiguous models."""

import re

import pytest

from support.oracles.recognition_support import (
    COCO,
    IMAGES,
    ULTRALYTICS,
    recognised,
    refusal,
    tensors,
)
from trt_perception.errors import MissingModelInfoError
from trt_perception.files.literals import parse_literal
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.grids import count_anchors_per_cell
from trt_perception.model.preprocessing import RESIZE_MODES, Preprocessing
from trt_perception.model.tasks.pose import COCO_KEYPOINTS
from trt_perception.model.tensors import TensorSpec

YOLOV5 = {'stride': '32', 'names': str(dict(enumerate(COCO)))}
PLAIN = Preprocessing((640, 640), size_rounding='half_even')
RAW = {'do_rescale': False}


def test_ultralytics_export_needs_no_parameters(golden_messages):
    found = recognised(tensors(output0=(1, 84, 8400)), ULTRALYTICS)
    assert found.decoder == PRESETS['dense'].decoder
    assert found.class_names == COCO
    assert found.preprocessing == PLAIN
    golden_messages.add('\n'.join(found.evidence))


def test_metadata_give_the_size_of_a_dynamic_input(golden_messages):
    opened = TensorSpec('images', (-1, 3, -1, -1), 'float32')
    found = recognised(
        tensors(output0=(-1, 84, -1)), {**ULTRALYTICS, 'imgsz': '[480, 640]'}, inputs=(opened,)
    )
    assert found.decoder == PRESETS['dense'].decoder
    assert found.preprocessing.input_size == (640, 480)
    golden_messages.add(refusal(tensors(output0=(-1, 84, -1)), YOLOV5, inputs=(opened,)))


def test_yolov5_export_needs_no_parameters():
    found = recognised(tensors(output0=(1, 25200, 85)), YOLOV5)
    assert found.decoder == PRESETS['dense_objectness_transposed'].decoder
    assert found.preprocessing == PLAIN


def test_shapes_and_class_names_decide_the_preprocessing():
    found = recognised(tensors(output0=(1, 84, 8400)), class_names=COCO)
    assert found.preprocessing == PLAIN


def test_decoder_yolox_decides_the_preprocessing():
    found = recognised(tensors(output=(1, 8400, 85)), class_names=COCO, decoder='yolox')
    assert found.preprocessing.color_order == 'bgr'
    assert found.preprocessing.scale == 1.0


# Outputs and class names. test_recognition_table.py has the refusals of docs/recognition.md.
REFUSED = {
    'no class names': (tensors(output0=(1, 84, 8400)), ()),
    'no class names, anchors in rows': (tensors(output0=(1, 8400, 84)), ()),
    'no class names, queries': (tensors(dets=(1, 300, 4), labels=(1, 300, 91)), ()),
    'too few names of queries': (tensors(dets=(1, 300, 4), labels=(1, 300, 91)), COCO),
    'too many names': (tensors(output0=(1, 84, 8400)), (*COCO, 'x')),
    'too few names': (tensors(logits=(1, 100, 92), pred_boxes=(1, 100, 4)), COCO),
    'keypoints of two values': (tensors(output0=(1, 22, 8400)), tuple('0123456789')),
    'keypoints of final boxes': (tensors(output0=(1, 300, 57)), ('person',)),
    'undecoded grids of four dimensions': (tensors(a=(1, 85, 80, 80), b=(1, 85, 40, 40)), COCO),
    'queries or anchors': (tensors(boxes=(1, 900, 4), scores=(1, 900, 80)), COCO),
    # RF-DETR trained with custom classes: the exporter adds the background as a class. It is not
    # the "no object" class of a softmax.
    'one class more': (tensors(dets=(1, 300, 4), labels=(1, 300, 81)), COCO),
    'masks without scores': (tensors(boxes=(-1, 4), masks=(-1, 1, 480, 640)), COCO),
}


@pytest.mark.parametrize('case', REFUSED)
def test_outputs_of_other_networks_are_refused(case, golden_messages):
    outputs, names = REFUSED[case]
    golden_messages.add(refusal(outputs, **({'class_names': names} if names else {})))


def test_parameters_replace_the_metadata():
    names = [f'other {number}' for number in range(79)]
    found = recognised(
        tensors(output0=(1, 84, 8400)),
        ULTRALYTICS,
        decoder='dense_objectness',
        class_names=names,
        resize='stretch',
        color_order='bgr',
        scale=1.0,
        mean=[1, 2, 3],
        std=[4, 5, 6],
        pad_value=0,
    )
    assert found.decoder == PRESETS['dense_objectness'].decoder
    assert found.class_names == tuple(names)
    assert found.preprocessing == Preprocessing(
        (640, 640),
        *('stretch', 0, 'bgr', 1.0, (1, 2, 3), (4, 5, 6)),
        size_rounding='half_even',
    )


@pytest.mark.parametrize('task', ['classify', 'depth'])
def test_boxes_are_refused_for_the_task_of_the_metadata(task, golden_messages):
    golden_messages.add(refusal(tensors(output0=(1, 84, 8400)), {**ULTRALYTICS, 'task': task}))


@pytest.mark.parametrize(
    ('names', 'expected'),
    [
        ("{0: 'cat', 1: 'dog'}", ('cat', 'dog')),
        ("{1: 'dog', 0: 'cat'}", ('cat', 'dog')),
        ("['cat', 'dog']", ('cat', 'dog')),
        ("{0: 'N/A', 1: 'N/A'}", ('N/A 0', 'N/A 1')),
    ],
)
def test_class_names_in_each_form_of_exporters_are_read(names, expected):
    found = recognised(tensors(output0=(1, 6, 8400)), {**ULTRALYTICS, 'names': names})
    assert found.class_names == expected


@pytest.mark.parametrize(
    'names',
    [
        '',
        '{',
        '5',
        "'cat'",
        '{}',
        '[]',
        '{0: None}',
        "{'cat': 0, 'dog': 1}",
        "{-1: 'cat', 65536: 'dog'}",
        "{1: 'cat', 2: 'dog'}",
        "{0: 'cat', 1",
        "__import__('os').system('true')",
        '(' * 100_000,
        '-' * 100_000 + '1',
        '[' + '0,' * 600_000 + ']',
    ],
    ids=lambda names: names[:20],
)
def test_model_with_invalid_class_names_is_refused(names, golden_messages):
    message = refusal(tensors(output0=(1, 6, 8400)), {**ULTRALYTICS, 'names': names})
    golden_messages.add(message)
    assert len(message) < 3000


# Published models have 147 names of which one is empty, and names of 91 categories with gaps.
BAD_NAMES = ['', None, 'x' * 257, 'cat\ndog', '\x1b[2J', '\u202etac', ['cat'], 2.5]


@pytest.mark.parametrize('bad', BAD_NAMES, ids=lambda bad: repr(bad)[:12])
@pytest.mark.parametrize('index', [0, 76, 146])
def test_one_bad_class_name_does_not_take_its_neighbours(bad, index):
    good = [f'plant {number}' for number in range(147)]
    given = [*good[:index], bad, *good[index + 1 :]]
    expected = (*good[:index], f'class {index}', *good[index + 1 :])
    for names in (given, dict(enumerate(given))):
        found = recognised(tensors(output0=(1, 151, 8400)), {**ULTRALYTICS, 'names': str(names)})
        assert found.class_names == expected
    id2label = {str(number): name for number, name in enumerate(given)}
    config = {'model_type': 'rt_detr', 'id2label': id2label}
    outputs = tensors(logits=(1, 300, 147), pred_boxes=(1, 300, 4))
    assert recognised(outputs, config=config).class_names == expected


def test_class_without_a_name_between_named_classes_is_named_by_its_id(golden_messages):
    names = {number: f'thing {number}' for number in range(1, 91) if number % 13}
    found = recognised(tensors(output0=(1, 95, 8400)), {**ULTRALYTICS, 'names': str(names)})
    expected = ('class 0', *(names.get(number, f'class {number}') for number in range(1, 91)))
    assert found.class_names == expected
    golden_messages.add('\n'.join(found.evidence))


@pytest.mark.parametrize(
    ('names', 'expected'),
    [
        (['a', 'a', 'a 0'], ('a 0 0', 'a 1', 'a 0')),
        (['class 1', ''], ('class 1', 'class 1 1')),
        (['x' * 256, 'x' * 256], (f'{"x" * 128} 0', f'{"x" * 128} 1')),
        (['', ''], ('class 0', 'class 1')),
    ],
)
def test_replaced_names_differ_from_all_others(names, expected):
    shape = (1, 4 + len(names), 8400)
    found = recognised(tensors(output0=shape), {**ULTRALYTICS, 'names': str(names)})
    assert found.class_names == expected


def test_keys_that_are_no_class_id_leave_the_names_of_the_others(golden_messages):
    names = {0: 'cat', '1': 'dog', 'note': 'x', 1.5: 'y', '٣': 'z'}
    found = recognised(tensors(output0=(1, 6, 8400)), {**ULTRALYTICS, 'names': str(names)})
    assert found.class_names == ('cat', 'dog')
    golden_messages.add('\n'.join(found.evidence))


def test_only_short_valid_literals_are_parsed():
    assert parse_literal("{'a': [1, 2.5, None, True]}") == {'a': [1, 2.5, None, True]}
    assert parse_literal('open("x")') is None


@pytest.mark.parametrize(
    ('anchors', 'size', 'expected'),
    [
        (0, (640, 640), 0),
        (8400, (640, 640), 1),
        (25200, (640, 640), 3),
        (34000, (640, 640), 1),
        (6000, (640, 480), 1),
        (300, (640, 640), 0),
        (8400, None, None),
        (-1, (640, 640), None),
        (2101, (320, 320), 0),
        (2100, (320, 320), 1),
    ],
)
def test_anchors_per_cell_follow_from_their_number(anchors, size, expected):
    assert count_anchors_per_cell(anchors, size) == expected


@pytest.mark.parametrize('size', [(640, 480), (320, 240), (320, 192), (640, 640)])
def test_queries_that_may_be_anchors_of_a_coarse_grid_are_ambiguous(size, golden_messages):
    # 300 cells: 32 pixels wide in 640 x 480, 16 in 320 x 240, 16 and 32 together in 320 x 192.
    inputs = (TensorSpec('images', (1, 3, *size[::-1]), 'float32'),)
    known = {**ULTRALYTICS, 'imgsz': str([*size[::-1]])}
    found = recognised(tensors(output0=(1, 300, 6)), known, inputs=inputs)
    assert found.decoder == PRESETS['end_to_end'].decoder
    golden_messages.add(
        refusal(tensors(output0=(1, 300, 6)), inputs=inputs, class_names=list(COCO))
    )


def test_small_number_of_anchors_is_ambiguous(golden_messages):
    inputs = (TensorSpec('images', (1, 3, 240, 320), 'float32'),)
    golden_messages.add(
        refusal(tensors(output0=(1, 300, 84)), inputs=inputs, class_names=list(COCO))
    )


def test_decoder_of_the_exporter_accepts_dynamic_outputs():
    # The exporter of Hugging Face writes these shapes if all axes are dynamic.
    outputs = tensors(logits=(-1, -1, -1), pred_boxes=(-1, -1, -1))
    config = {'model_type': 'rt_detr', 'id2label': {'0': 'a', '1': 'b'}}
    assert recognised(outputs, config=config).decoder == PRESETS['rtdetr'].decoder


def test_number_of_anchors_excludes_decoders_of_other_grids():
    names = tuple(map(str, range(80)))
    with pytest.raises(MissingModelInfoError) as caught:  # the cells of strides 8, 16, 32 and 64
        recognised((TensorSpec('output', (1, 8500, 85), 'float32'),), class_names=names)
    assert 'yolox_raw' not in caught.value.missing['decoder']
    assert 'yolox' in caught.value.missing['decoder']


@pytest.mark.parametrize(
    'processor',
    [
        {'do_normalize': False},
        {},  # the processor class then uses the ImageNet means
        {'image_mean': [0.5] * 3, 'image_std': [0.5] * 3},
        {'do_normalize': True, 'image_mean': [7, 8, 9], 'image_std': [1] * 3} | RAW,
    ],
)
def test_padding_of_an_image_processor_is_zero_after_normalisation(processor):
    edges = {'size': {'shortest_edge': 480, 'longest_edge': 640}, **processor}
    config = {'model_type': 'detr', 'id2label': {'0': 'a', '1': 'b'}, 'preprocessor_config': edges}
    outputs = tensors(logits=(1, 100, 3), pred_boxes=(1, 100, 4))
    found = recognised(outputs, config=config).preprocessing
    assert (found.resize, found.pad_value) == ('letterbox_top_left', None)
    assert (found.padding() == 0).all()


@pytest.mark.parametrize('model', ['detr', 'yolos', 'deformable_detr', 'rf_detr', 'rt_detr'])
@pytest.mark.parametrize(
    ('processor', 'mean', 'color_order'),
    [
        ({'do_normalize': False}, 0.0, 'rgb'),
        ({'do_normalize': False, 'do_flip_channel_order': True}, 0.0, 'bgr'),
        ({'image_mean': [0.25] * 3, 'image_std': [0.5] * 3}, 0.25, 'rgb'),
    ],
)
def test_image_processor_replaces_the_usual_preprocessing(model, processor, mean, color_order):
    square = {'size': {'height': 640, 'width': 640}, **processor}
    config = {'model_type': model, 'id2label': {'0': 'a', '1': 'b'}, 'preprocessor_config': square}
    classes = 2 if model in ('deformable_detr', 'rf_detr', 'rt_detr') else 3
    outputs = tensors(logits=(1, 100, classes), pred_boxes=(1, 100, 4))
    found = recognised(outputs, config=config).preprocessing
    assert (found.mean, found.color_order) == ((mean,) * 3, color_order)
    assert found.std == ((1.0,) * 3 if not mean else (0.5,) * 3)


def test_config_of_an_unsupported_network_is_ignored(golden_messages):
    processor = {'size': {'height': 640, 'width': 640}, 'image_mean': [0.5] * 3}
    config = {
        'model_type': 'vit',
        'id2label': {str(number): f'label {number}' for number in range(80)},
        'preprocessor_config': processor | {'image_std': [0.5] * 3},
    }
    golden_messages.add(refusal(tensors(output0=(1, 84, 8400)), config=config))
    found = recognised(tensors(output0=(1, 84, 8400)), config=config, class_names=COCO)
    assert (found.decoder, found.class_names) == (PRESETS['dense'].decoder, COCO)
    assert (found.preprocessing.resize, found.preprocessing.mean) == ('letterbox', (0.0,) * 3)


def test_tensor_name_is_ignored_if_its_shape_contradicts():
    masked = recognised(tensors(masked_scores=(1, 84, 8400)), class_names=COCO)
    assert masked.decoder == PRESETS['dense'].decoder
    config = {'model_type': 'rt_detr', 'id2label': dict(enumerate(COCO))}
    swapped = tensors(pred_boxes=(1, 300, 80), logits=(1, 300, 4))
    assert recognised(swapped, config=config).decoder == PRESETS['rtdetr'].decoder
    labels, names = tensors(dets=(1, 300, 4), labels=(1, 300, 81)), [*COCO, 'background']
    assert recognised(labels, class_names=names).decoder == PRESETS['rfdetr'].decoder


@pytest.mark.parametrize('names', [('background', *COCO), (*COCO, 'background')])
def test_background_of_rfdetr_may_be_first_or_last(names, golden_messages):
    outputs = tensors(dets=(1, 300, 4), labels=(1, 300, 81))
    assert recognised(outputs, class_names=names).class_names == names
    golden_messages.add(refusal(outputs))


TORCHVISION = (*tensors(a=(-1, 4), b=(-1,)), TensorSpec('c', (-1,), 'int64'))
TENSORFLOW = tensors(
    detection_boxes=(1, 100, 4),
    detection_classes=(1, 100),
    detection_scores=(1, 100),
    num_detections=(1,),
)


@pytest.mark.parametrize('outputs', [TORCHVISION, TORCHVISION[::-1], TENSORFLOW])
@pytest.mark.parametrize('decoder', ['', 'given'])
def test_resize_inside_the_network_must_be_given(outputs, decoder, golden_messages):
    name = 'tensorflow' if outputs == TENSORFLOW else 'torchvision'
    given = {'class_names': COCO, **({'decoder': name} if decoder else {})}
    with pytest.raises(MissingModelInfoError) as caught:
        recognised(outputs, **given)
    assert caught.value.missing.keys() == {'resize'}
    # Other modes fit none of these networks.
    words = re.findall(r'\w+', caught.value.missing['resize'])
    assert [word for word in words if word in RESIZE_MODES] == ['stretch', 'letterbox_top_left']
    golden_messages.add(str(caught.value))
    for resize in ('stretch', 'letterbox_top_left'):
        found = recognised(outputs, **given, resize=resize)
        assert found.decoder == PRESETS[name].decoder
        assert found.preprocessing.resize == resize
        assert 'resize' not in found.assumption


def test_networks_with_masks_or_keypoints_keep_the_aspect_ratio():
    masks, points = tensors(d=(-1, 1, 640, 640)), tensors(d=(-1, 5, 3), e=(-1, 5))
    for added in (masks, points):
        found = recognised((*TORCHVISION, *added), class_names=('background', 'horse'))
        assert found.preprocessing.resize == 'letterbox_top_left'


@pytest.mark.parametrize('names', [('background', 'person'), ('background', 'horse')])
def test_17_keypoints_are_those_of_coco_only_for_a_person(names):
    outputs = tensors(a=(-1, 4), b=(-1,), c=(-1, 17, 3), d=(-1, 17))
    labels = TensorSpec('e', (-1,), 'int64')
    found = recognised((*outputs, labels), class_names=names)
    assert (found.decoder, found.task.name) == (PRESETS['torchvision'].decoder, 'pose')
    is_person = found.task.keypoints == COCO_KEYPOINTS
    assert is_person == ('person' in names)
    assert len(found.task.keypoints.names) == 17


def test_pixel_mask_is_not_taken_for_the_size_input(golden_messages):
    mask = TensorSpec('pixel_mask', (1, 640, 640), 'int64')
    outputs = (TensorSpec('labels', (1, 300), 'int64'), *tensors(boxes=(1, 300, 4)))
    outputs += tensors(scores=(1, 300))
    golden_messages.add(refusal(outputs, inputs=(IMAGES, mask), class_names=COCO))


def test_user_can_declare_many_rows_as_queries():
    outputs = tensors(boxes=(1, 8400, 4), scores=(1, 8400, 80))  # as in YOLO-NAS without NMS
    given = recognised(outputs, class_names=COCO, decoder='detr_sigmoid', resize='stretch')
    assert given.decoder == PRESETS['detr_sigmoid'].decoder
