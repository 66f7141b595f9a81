"""What is asked for where a model does not say it itself: no more than is needed."""

import re

import pytest

from trt_perception.errors import EngineError
from trt_perception.errors import UnsaidError
from trt_perception.manifest import TensorSpec
from trt_perception.recognition import Given
from trt_perception.recognition import recognise

IMAGE = (TensorSpec('images', (1, 3, 640, 640), 'float32'),)
COCO = tuple(f'class {number}' for number in range(80))
PREPROCESSING = ['model.resize', 'model.color_order', 'model.scale']
DETR = {
    'model_type': 'detr',
    'id2label': {'0': 'a'},
    'preprocessor_config': {'size': {'height': 640, 'width': 640}},
}


def ask(shapes, names=(), config=None, inputs=IMAGE, **given):
    outputs = tuple(TensorSpec(name, shape, 'float32') for name, shape in shapes.items())
    said = Given(given, class_names=names)
    return recognise('x.onnx', inputs, outputs, {}, config, given=said)


def asked(message):
    return re.search(r'how to use it: (.*?)\. Seen', message)[1].split(', ')


DENSE = {'output0': (1, 84, 8400)}
YOLOX = {'output': (1, 8400, 85)}
PAIR = {'logits': (1, 300, 80), 'pred_boxes': (1, 300, 4)}
NMS = {'num_dets': (1, 1), 'boxes': (1, 100, 4), 'scores': (1, 100), 'classes': (1, 100)}
FINAL = {'output0': (1, 300, 6)}
LABELS = {str(number): name for number, name in enumerate(COCO)}


@pytest.mark.parametrize(
    ('shapes', 'more', 'expected'),
    [
        (DENSE, {}, ['model.class_names']),
        (YOLOX, {'names': COCO}, ['model.decoder']),
        (YOLOX, {}, ['model.decoder', 'model.class_names']),
        (PAIR, {'names': COCO}, ['model.decoder']),
        (FINAL, {'names': COCO}, PREPROCESSING),
        ({'dets': (1, 300, 4), 'labels': (1, 300, 80)}, {}, ['model.class_names']),
        ({'logits': (1, 100, 81), 'pred_boxes': (1, 100, 4)}, {'config': DETR}, None),
        # No detr gives that, but the shape could be read.
        (DENSE, {'config': {**DETR, 'id2label': LABELS}}, ['model.decoder']),
    ],
)
def test_the_smallest_set_is_asked_for(shapes, more, expected):
    with pytest.raises(UnsaidError) as caught:
        ask(shapes, **more)
    assert asked(str(caught.value)) == (expected or ['model.class_names'])


def test_the_class_names_of_a_file_beside_it_are_what_is_wrong():
    with pytest.raises(UnsaidError) as caught:
        ask({'logits': (1, 100, 81), 'pred_boxes': (1, 100, 4)}, config=DETR)
    assert '80 classes as detr, not 1: correct the class names' in str(caught.value)


def test_each_choice_is_told():
    with pytest.raises(UnsaidError) as caught:
        ask(DENSE)
    message = str(caught.value)
    assert '80 classes as dense or 79 classes as dense_objectness.' in message
    assert (
        'dense_objectness would need model.decoder, model.resize, model.color_order, model.scale'
        in message
    )
    with pytest.raises(UnsaidError) as caught:
        ask(FINAL)
    assert 'any number of classes as end_to_end' in str(caught.value)
    with pytest.raises(UnsaidError) as caught:
        ask(FINAL, COCO)
    message = str(caught.value)
    assert 'model.resize: letterbox or letterbox_top_left or stretch.' in message
    assert 'model.color_order: rgb or bgr.' in message
    assert 'mostly 1/255 or 1' in message
    assert 'would need' not in message  # that is asked for already


def test_what_is_asked_for_suffices():
    assert ask(DENSE, COCO).preprocessing.resize == 'letterbox'
    said = {'resize': 'stretch', 'color_order': 'bgr', 'scale': 1.0}
    assert ask(FINAL, COCO, **said).preprocessing.color_order == 'bgr'


@pytest.mark.parametrize('names', [(), COCO])
def test_what_no_parameter_can_say_is_not_asked_for(names):
    with pytest.raises(EngineError) as caught:
        ask({'prob': (1, 1000)}, names)
    assert type(caught.value) is EngineError
    assert 'fit no decoder' in str(caught.value)
    assert 'model.' not in str(caught.value).replace('model.class_names -> 80', '')


@pytest.mark.parametrize('shape', [(1, 1, 480, 640), (1, 480, 640, 4), (1, 480, 640)])
def test_images_without_three_channels_are_refused(shape):
    with pytest.raises(EngineError) as caught:
        ask(DENSE, COCO, inputs=(TensorSpec('images', shape, 'float32'),))
    assert '3 channels' in str(caught.value)
    assert f'images float32{list(shape)}' in str(caught.value)
