"""Six columns, names and open shapes: what decides between the layouts that Ultralytics writes."""

import pytest

from support.oracles.recognition_support import COCO, ULTRALYTICS, recognised, refusal, tensors
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.recognition.recognise import recognise
from trt_perception.model.tensors import ModelInfo, TensorSpec
from trt_perception.parameters.config import DetectorConfig

PAIR = {'names': "{0: 'cat', 1: 'dog'}"}
SIX = {'output0': (1, 300, 6)}  # 4 of a box, and 2 classes, or a score and a class
YOLO_NAME = 'Ultralytics YOLO11n model trained on /me/rtdetr/my.yaml'
RTDETR_NAME = 'Ultralytics rtdetr-l model trained on /me/yolo/my.yaml'
NO_NAME = 'Ultralytics best model trained on my.yaml'
INSIDE = "{'nms': True}"
PLAINLY = "{'nms': False}"


def written(description=NO_NAME, **values):
    """Return what Ultralytics' exporter writes; no value leaves a key out."""
    metadata = {**ULTRALYTICS, 'description': description, **values}
    del metadata['args']
    return {**metadata, **values}


@pytest.mark.parametrize(
    ('metadata', 'decoder'),
    [
        # The folder of the training data is no model.
        (written(YOLO_NAME), 'end_to_end'),
        (written(RTDETR_NAME, version='8.3.40'), 'rtdetr_ultralytics'),
        (written(RTDETR_NAME, version='8.4.46'), 'rtdetr_ultralytics'),
        (written(RTDETR_NAME, version='8.4.47'), 'rtdetr_end_to_end'),
        (written(RTDETR_NAME, version='8.4.100'), 'rtdetr_end_to_end'),
        (written(RTDETR_NAME, version='9.0.0'), 'rtdetr_end_to_end'),
        # The head is what the network is, whatever it is called.
        (written(RTDETR_NAME, version='8.4.190', head='RTDETRDecoder'), 'rtdetr_end_to_end'),
        (written(YOLO_NAME, version='8.4.190', head='RTDETRDecoder'), 'rtdetr_end_to_end'),
        (written(YOLO_NAME, end2end='True', head='RTDETRDecoder'), 'rtdetr_end_to_end'),
        (written(RTDETR_NAME, version='8.4.190', head='Detect'), 'end_to_end'),
        (written(RTDETR_NAME, head='v10Detect', end2end='True'), 'end_to_end'),
        # So are NMS inside, or no need of it.
        (written(RTDETR_NAME, version='8.4.80', end2end='True', args=PLAINLY), 'end_to_end'),
        (written(RTDETR_NAME, version='8.4.80', end2end='False', args=INSIDE), 'end_to_end'),
        (written(YOLO_NAME, version='8.4.80', end2end='False', args=PLAINLY), 'rtdetr_end_to_end'),
        (
            written(YOLO_NAME, version='8.4.40', end2end='False', args=PLAINLY),
            'rtdetr_ultralytics',
        ),
        (written(NO_NAME, end2end='True', args=PLAINLY), 'end_to_end'),
        (written(NO_NAME, version='8.4.80', end2end='False', args=PLAINLY), 'rtdetr_end_to_end'),
    ],
)
def test_six_columns_of_two_classes_are_read_by_the_metadata(metadata, decoder):
    found = recognised(tensors(**SIX), {**metadata, **PAIR})
    assert found.decoder == PRESETS[decoder].decoder
    assert found.preprocessing.resize == ('letterbox' if decoder == 'end_to_end' else 'stretch')


@pytest.mark.parametrize('name', [YOLO_NAME, RTDETR_NAME, NO_NAME])
@pytest.mark.parametrize('classes', [1, 2, 3, 80])
@pytest.mark.parametrize(
    ('more', 'columns', 'decoder'),
    [
        ({'head': 'RTDETRDecoder'}, None, 'rtdetr_end_to_end'),
        ({'head': 'Detect', 'end2end': 'True'}, None, 'end_to_end'),
        ({'head': 'Detect', 'args': INSIDE, 'end2end': 'False'}, None, 'end_to_end'),
        ({'head': 'Detect'}, 'dense', 'dense'),
        ({'version': '8.4.30', 'end2end': 'False', 'args': PLAINLY}, 'dense', 'dense'),
        ({'version': '8.4.30', 'end2end': 'False', 'args': PLAINLY}, 4, 'rtdetr_ultralytics'),
        ({'version': '8.4.60', 'end2end': 'False', 'args': PLAINLY}, None, 'rtdetr_end_to_end'),
        ({'version': '8.2.0'}, 'dense', 'dense'),
    ],
)
def test_a_name_decides_nothing_that_shapes_or_metadata_contradict(
    name, classes, more, columns, decoder
):
    shape = {None: (1, 300, 6), 'dense': (1, 4 + classes, 8400), 4: (1, 300, 4 + classes)}[columns]
    names = {'names': str([f'class {number}' for number in range(classes)])}
    found = recognised(tensors(output0=shape), {**written(name, **more), **names})
    assert found.decoder == PRESETS[decoder].decoder


@pytest.mark.parametrize(
    ('head', 'shape'),
    [
        ('RTDETRDecoder', (1, 300, 84)),
        ('RTDETRDecoder', (1, 84, 8400)),
        ('Detect', (1, 300, 84)),
        ('Detect', (1, 8400, 84)),
    ],
)
def test_what_the_shape_contradicts_is_not_guessed(head, shape, golden_messages):
    for name in (YOLO_NAME, RTDETR_NAME, NO_NAME):
        metadata = written(name, head=head, version='8.4.190')
        golden_messages.add(refusal(tensors(output0=shape), metadata))


def test_as_many_rows_as_anchors_are_no_queries(golden_messages):
    """A YOLO whose output somebody transposed, beside metadata that stayed."""
    for name in (YOLO_NAME, RTDETR_NAME, NO_NAME):
        golden_messages.add(refusal(tensors(output0=(1, 8400, 84)), written(name)))


@pytest.mark.parametrize('version', ['', 'main', '8.4', '8.x.1', '9' * 5000])
def test_six_columns_of_a_release_that_is_not_said_are_not_guessed(version, golden_messages):
    golden_messages.add(refusal(tensors(**SIX), {**written(RTDETR_NAME, version=version), **PAIR}))


def test_six_columns_of_a_model_without_a_name_are_not_guessed(golden_messages):
    golden_messages.add(refusal(tensors(**SIX), {**written(), **PAIR}))
    found = recognised(tensors(output0=(1, 300, 84)), written())
    assert found.decoder == PRESETS['rtdetr_ultralytics'].decoder


OPEN_IMAGE = TensorSpec('images', (-1, 3, -1, -1), 'float32')
OPEN = {'output0': (-1, -1, -1)}


def run_once(outputs, metadata, shapes, inputs=(OPEN_IMAGE,), **given):
    """Recognise a model of open shapes that gives these; return what it was fed, too."""
    fed = []

    def run(tensors):
        fed.append({name: (value.shape, str(value.dtype)) for name, value in tensors.items()})
        return shapes

    values = {f'model.{name}': value for name, value in given.items()}
    chosen = DetectorConfig.from_values(values).model_overrides()
    model = ModelInfo('x.onnx', inputs, outputs, metadata)
    return recognise(model, chosen, run), fed


@pytest.mark.parametrize(
    ('shape', 'decoder'),
    [((1, 84, 8400), 'dense'), ((1, 300, 6), 'end_to_end')],
)
def test_open_shapes_are_run_once_before_they_decide(shape, decoder, golden_messages):
    metadata = written(YOLO_NAME)
    found, fed = run_once(tensors(**OPEN), metadata, [shape])
    assert found.decoder == PRESETS[decoder].decoder
    assert fed == [{'images': ((1, 3, 640, 640), 'float32')}]
    golden_messages.add(refusal(tensors(**OPEN), metadata, inputs=(OPEN_IMAGE,)))


def test_inputs_beside_the_image_are_filled_for_that_run():
    outputs = (
        TensorSpec('labels', (-1, -1), 'int64'),
        *tensors(boxes=(-1, -1, 4), scores=(-1, -1)),
    )
    inputs = (TensorSpec('orig_target_sizes', (-1, 2), 'int64'), OPEN_IMAGE)
    said = {'input_size': [320, 192], 'class_names': list(COCO)}
    shapes = [(1, 300), (1, 300, 4), (1, 300)]
    found, fed = run_once(outputs, {}, shapes, inputs, **said)
    assert found.decoder == PRESETS['labels_boxes_scores'].decoder
    sizes = ((1, 2), 'int64')
    assert fed == [{'images': ((1, 3, 192, 320), 'float32'), 'orig_target_sizes': sizes}]


def test_no_rows_for_a_black_image_leave_their_number_open():
    outputs = (*tensors(a=(-1, 4), b=(-1,)), TensorSpec('c', (-1,), 'int64'))
    said = {'input_size': [320, 192], 'class_names': list(COCO)}
    found, _ = run_once(outputs, {}, [(0, 4), (0,), (0,)], **said)
    assert found.decoder == PRESETS['torchvision'].decoder


def test_closed_shapes_and_a_decoder_that_was_said_need_no_run():
    for outputs, said in ((tensors(**SIX), {}), (tensors(**OPEN), {'decoder': 'end_to_end'})):
        _, fed = run_once(outputs, written(YOLO_NAME), [(1, 300, 6)], **said)
        assert fed == []
