# SPDX-License-Identifier: Apache-2.0
"""Recognition decides between the layouts of Ultralytics exports by metadata and shapes."""

import pytest

from support.oracles.recognition_support import COCO, ULTRALYTICS, recognised, refusal, tensors
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.recognition.recognise import recognise
from trt_perception.model.tensors import ModelInfo, TensorSpec
from trt_perception.parameters.values import ParameterValues

TWO_NAMES = {'names': "{0: 'cat', 1: 'dog'}"}
SIX_COLUMNS = {
    'output0': (1, 300, 6)
}  # four box values, then two class scores, or one score and one class
YOLO_NAME = 'Ultralytics YOLO11n model trained on /me/rtdetr/my.yaml'
RTDETR_NAME = 'Ultralytics rtdetr-l model trained on /me/yolo/my.yaml'
NO_NAME = 'Ultralytics best model trained on my.yaml'
ARGS_WITH_NMS = "{'nms': True}"
ARGS_WITHOUT_NMS = "{'nms': False}"


def ultralytics_metadata(description=NO_NAME, **values):
    """Return Ultralytics metadata with changed values. It has ``args`` only if given here."""
    metadata = {**ULTRALYTICS, 'description': description, **values}
    del metadata['args']
    return {**metadata, **values}


@pytest.mark.parametrize(
    ('metadata', 'decoder'),
    [
        # The path of the training data does not name the model.
        (ultralytics_metadata(YOLO_NAME), 'end_to_end'),
        (ultralytics_metadata(RTDETR_NAME, version='8.3.40'), 'rtdetr_ultralytics'),
        (ultralytics_metadata(RTDETR_NAME, version='8.4.46'), 'rtdetr_ultralytics'),
        (ultralytics_metadata(RTDETR_NAME, version='8.4.47'), 'rtdetr_end_to_end'),
        (ultralytics_metadata(RTDETR_NAME, version='8.4.100'), 'rtdetr_end_to_end'),
        (ultralytics_metadata(RTDETR_NAME, version='9.0.0'), 'rtdetr_end_to_end'),
        # The head decides, not the name of the model.
        (
            ultralytics_metadata(RTDETR_NAME, version='8.4.190', head='RTDETRDecoder'),
            'rtdetr_end_to_end',
        ),
        (
            ultralytics_metadata(YOLO_NAME, version='8.4.190', head='RTDETRDecoder'),
            'rtdetr_end_to_end',
        ),
        (
            ultralytics_metadata(YOLO_NAME, end2end='True', head='RTDETRDecoder'),
            'rtdetr_end_to_end',
        ),
        (ultralytics_metadata(RTDETR_NAME, version='8.4.190', head='Detect'), 'end_to_end'),
        (ultralytics_metadata(RTDETR_NAME, head='v10Detect', end2end='True'), 'end_to_end'),
        # The decoder also depends on whether the model contains NMS.
        (
            ultralytics_metadata(
                RTDETR_NAME, version='8.4.80', end2end='True', args=ARGS_WITHOUT_NMS
            ),
            'end_to_end',
        ),
        (
            ultralytics_metadata(
                RTDETR_NAME, version='8.4.80', end2end='False', args=ARGS_WITH_NMS
            ),
            'end_to_end',
        ),
        (
            ultralytics_metadata(
                YOLO_NAME, version='8.4.80', end2end='False', args=ARGS_WITHOUT_NMS
            ),
            'rtdetr_end_to_end',
        ),
        (
            ultralytics_metadata(
                YOLO_NAME, version='8.4.40', end2end='False', args=ARGS_WITHOUT_NMS
            ),
            'rtdetr_ultralytics',
        ),
        (ultralytics_metadata(NO_NAME, end2end='True', args=ARGS_WITHOUT_NMS), 'end_to_end'),
        (
            ultralytics_metadata(
                NO_NAME, version='8.4.80', end2end='False', args=ARGS_WITHOUT_NMS
            ),
            'rtdetr_end_to_end',
        ),
    ],
)
def test_metadata_decide_the_decoder_of_six_columns_with_two_classes(metadata, decoder):
    found = recognised(tensors(**SIX_COLUMNS), {**metadata, **TWO_NAMES})
    assert found.decoder == PRESETS[decoder].decoder
    assert found.preprocessing.resize == ('letterbox' if decoder == 'end_to_end' else 'stretch')


@pytest.mark.parametrize('name', [YOLO_NAME, RTDETR_NAME, NO_NAME])
@pytest.mark.parametrize('classes', [1, 2, 3, 80])
@pytest.mark.parametrize(
    ('more', 'columns', 'decoder'),
    [
        ({'head': 'RTDETRDecoder'}, None, 'rtdetr_end_to_end'),
        ({'head': 'Detect', 'end2end': 'True'}, None, 'end_to_end'),
        ({'head': 'Detect', 'args': ARGS_WITH_NMS, 'end2end': 'False'}, None, 'end_to_end'),
        ({'head': 'Detect'}, 'dense', 'dense'),
        ({'version': '8.4.30', 'end2end': 'False', 'args': ARGS_WITHOUT_NMS}, 'dense', 'dense'),
        (
            {'version': '8.4.30', 'end2end': 'False', 'args': ARGS_WITHOUT_NMS},
            4,
            'rtdetr_ultralytics',
        ),
        (
            {'version': '8.4.60', 'end2end': 'False', 'args': ARGS_WITHOUT_NMS},
            None,
            'rtdetr_end_to_end',
        ),
        ({'version': '8.2.0'}, 'dense', 'dense'),
    ],
)
def test_name_in_the_description_is_ignored_if_shapes_or_metadata_contradict(
    name, classes, more, columns, decoder
):
    shape = {None: (1, 300, 6), 'dense': (1, 4 + classes, 8400), 4: (1, 300, 4 + classes)}[columns]
    names = {'names': str([f'class {number}' for number in range(classes)])}
    found = recognised(tensors(output0=shape), {**ultralytics_metadata(name, **more), **names})
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
def test_head_that_the_shape_contradicts_is_refused(head, shape, golden_messages):
    for name in (YOLO_NAME, RTDETR_NAME, NO_NAME):
        metadata = ultralytics_metadata(name, head=head, version='8.4.190')
        golden_messages.add(refusal(tensors(output0=shape), metadata))


def test_rows_as_many_as_anchors_are_not_queries(golden_messages):
    """The model is a YOLO whose output was transposed without a change of its metadata."""
    for name in (YOLO_NAME, RTDETR_NAME, NO_NAME):
        golden_messages.add(refusal(tensors(output0=(1, 8400, 84)), ultralytics_metadata(name)))


@pytest.mark.parametrize('version', ['', 'main', '8.4', '8.x.1', '9' * 5000])
def test_six_columns_of_an_unknown_release_are_ambiguous(version, golden_messages):
    golden_messages.add(
        refusal(
            tensors(**SIX_COLUMNS),
            {**ultralytics_metadata(RTDETR_NAME, version=version), **TWO_NAMES},
        )
    )


def test_six_columns_without_a_model_name_are_ambiguous(golden_messages):
    golden_messages.add(refusal(tensors(**SIX_COLUMNS), {**ultralytics_metadata(), **TWO_NAMES}))
    found = recognised(tensors(output0=(1, 300, 84)), ultralytics_metadata())
    assert found.decoder == PRESETS['rtdetr_ultralytics'].decoder


DYNAMIC_IMAGE = TensorSpec('images', (-1, 3, -1, -1), 'float32')
DYNAMIC_OUTPUT = {'output0': (-1, -1, -1)}


def recognise_with_run(outputs, metadata, shapes, inputs=(DYNAMIC_IMAGE,), **given):
    """Recognise a model with dynamic outputs.

    Args:
        outputs: the outputs of the model.
        metadata: the metadata of the model.
        shapes: the shapes of the outputs in a run.
        inputs: the inputs of the model.
        given: values of parameters, without ``model.``.

    Returns:
        The description, and for each run the shape and data type of each input by name.
    """
    run_inputs = []

    def run(tensors):
        run_inputs.append(
            {name: (value.shape, str(value.dtype)) for name, value in tensors.items()}
        )
        return shapes

    values = {f'model.{name}': value for name, value in given.items()}
    chosen = ParameterValues.from_values(values).model_overrides()
    model = ModelInfo('x.onnx', inputs, outputs, metadata)
    return recognise(model, chosen, run), run_inputs


@pytest.mark.parametrize(
    ('shape', 'decoder'),
    [((1, 84, 8400), 'dense'), ((1, 300, 6), 'end_to_end')],
)
def test_model_with_dynamic_outputs_runs_once(shape, decoder, golden_messages):
    metadata = ultralytics_metadata(YOLO_NAME)
    found, run_inputs = recognise_with_run(tensors(**DYNAMIC_OUTPUT), metadata, [shape])
    assert found.decoder == PRESETS[decoder].decoder
    assert run_inputs == [{'images': ((1, 3, 640, 640), 'float32')}]
    golden_messages.add(refusal(tensors(**DYNAMIC_OUTPUT), metadata, inputs=(DYNAMIC_IMAGE,)))


def test_auxiliary_inputs_are_given_to_find_output_shapes():
    outputs = (
        TensorSpec('labels', (-1, -1), 'int64'),
        *tensors(boxes=(-1, -1, 4), scores=(-1, -1)),
    )
    inputs = (TensorSpec('orig_target_sizes', (-1, 2), 'int64'), DYNAMIC_IMAGE)
    parameters = {'input_size': [320, 192], 'class_names': list(COCO)}
    shapes = [(1, 300), (1, 300, 4), (1, 300)]
    found, run_inputs = recognise_with_run(outputs, {}, shapes, inputs, **parameters)
    assert found.decoder == PRESETS['labels_boxes_scores'].decoder
    sizes = ((1, 2), 'int64')
    assert run_inputs == [{'images': ((1, 3, 192, 320), 'float32'), 'orig_target_sizes': sizes}]


def test_decoder_is_found_if_a_run_has_no_detections():
    outputs = (*tensors(a=(-1, 4), b=(-1,)), TensorSpec('c', (-1,), 'int64'))
    parameters = {'input_size': [320, 192], 'class_names': list(COCO), 'resize': 'stretch'}
    found, _ = recognise_with_run(outputs, {}, [(0, 4), (0,), (0,)], **parameters)
    assert found.decoder == PRESETS['torchvision'].decoder


def test_fixed_outputs_or_a_given_decoder_need_no_run():
    for outputs, parameters in (
        (tensors(**SIX_COLUMNS), {}),
        (tensors(**DYNAMIC_OUTPUT), {'decoder': 'end_to_end'}),
    ):
        _, run_inputs = recognise_with_run(
            outputs, ultralytics_metadata(YOLO_NAME), [(1, 300, 6)], **parameters
        )
        assert run_inputs == []
