"""What is asked for where a model does not say it itself: no more than is needed."""

import pytest

from trt_perception.errors import EngineError, MissingModelInfoError
from trt_perception.model.recognition.recognise import ModelOverrides, recognise
from trt_perception.model.tensors import ModelInfo, TensorSpec

IMAGE = (TensorSpec('images', (1, 3, 640, 640), 'float32'),)
COCO = tuple(f'class {number}' for number in range(80))
PREPROCESSING = ['resize', 'color_order', 'scale']
DETR = {
    'model_type': 'detr',
    'id2label': {'0': 'a'},
    'preprocessor_config': {'size': {'height': 640, 'width': 640}},
}


def ask(shapes, names=(), config=None, inputs=IMAGE, **given):
    outputs = tuple(
        TensorSpec(name, shape, 'int32' if name in ('num_dets', 'classes') else 'float32')
        for name, shape in shapes.items()
    )
    said = ModelOverrides(given, class_names=names)
    return recognise(ModelInfo('x.onnx', inputs, outputs, {}, config), said)


DENSE = {'output0': (1, 84, 8400)}
YOLOX = {'output': (1, 8400, 85)}
PAIR = {'logits': (1, 300, 80), 'pred_boxes': (1, 300, 4)}
NMS = {'num_dets': (1, 1), 'boxes': (1, 100, 4), 'scores': (1, 100), 'classes': (1, 100)}
FINAL = {'output0': (1, 300, 6)}
LABELS = {str(number): name for number, name in enumerate(COCO)}


def processor(**values):
    size = {'size': {'height': 640, 'width': 640}}
    return {**DETR, 'preprocessor_config': {**size, **values}}


SOFTMAX = {'logits': (1, 100, 2), 'pred_boxes': (1, 100, 4)}
DETR_PROCESSORS = [
    f'{name}{kind}'
    for name in ('Detr', 'ConditionalDetr', 'DeformableDetr', 'RTDetr', 'Yolos')
    for kind in ('FeatureExtractor', 'ImageProcessor', 'ImageProcessorFast', 'ImageProcessorPil')
]


@pytest.mark.parametrize(
    'values',
    [
        {'resample': 2},
        {'resample': 2, 'image_processor_type': 'OwlViTImageProcessor'},
        {},
        {'resample': None, 'image_processor_type': 'DetrImageProcessor'},
        *({'image_processor_type': name} for name in DETR_PROCESSORS),
        {'feature_extractor_type': 'DetrFeatureExtractor'},
    ],
    ids=str,
)
def test_a_bilinear_processor_antialiases(values):
    assert ask(SOFTMAX, config=processor(**values)).preprocessing.antialias


@pytest.mark.parametrize(
    ('model', 'values', 'antialias'),
    [
        ('rf_detr', {'image_processor_type': 'RfDetrImageProcessor', 'resample': 2}, False),
        ('rf_detr', {'image_processor_type': 'RfDetrImageProcessorFast'}, False),
        ('rf_detr', {'resample': 2}, False),
        ('detr', {'image_processor_type': 'RfDetrImageProcessor'}, False),
        ('rf_detr', {'image_processor_type': 'DetrImageProcessor'}, True),
        ('rt_detr', {'resample': 2}, True),
    ],
)
def test_only_rf_detrs_processor_resizes_without_antialiasing(model, values, antialias):
    config = {**processor(**values), 'model_type': model}
    outputs = {'logits': (1, 100, 1), 'pred_boxes': (1, 100, 4)}
    if model == 'detr':
        outputs = SOFTMAX
    assert ask(outputs, config=config).preprocessing.antialias == antialias


@pytest.mark.parametrize(
    'values',
    [
        *({'resample': value} for value in (0, 1, 3, 4, 5, 6, True, 2.0, ['x'] * 999)),
        {'resample': 'bicubic\n\x1b[2J'},
        {'resample': 3, 'size': 800},
        {'image_processor_type': 'OwlViTImageProcessor'},
        {'image_processor_type': ['x']},
    ],
    ids=str,
)
def test_another_filter_is_refused_until_somebody_accepts_bilinear(values, golden_messages):
    with golden_messages.raises(MissingModelInfoError) as caught:
        ask(SOFTMAX, config=processor(**values))
    assert list(caught.value.missing) == ['antialias']
    assert len(str(caught.value)) < 1200
    for antialias in (True, False):
        found = ask(SOFTMAX, config=processor(**values), antialias=antialias)
        assert found.preprocessing.antialias is antialias


def test_a_filter_is_asked_for_beside_everything_else():
    with pytest.raises(MissingModelInfoError) as caught:
        ask(SOFTMAX, config={**processor(resample=3), 'id2label': None})
    assert list(caught.value.missing) == ['class_names', 'antialias']


@pytest.mark.parametrize(
    ('shapes', 'shown'),
    [
        ({'logits': (1, 300, 80), 'pred_boxes': (1, 300, 4)}, {'decoder': 'rtdetr'}),
        ({'logits': (1, 100, 81), 'pred_boxes': (1, 100, 4)}, {}),
    ],
)
def test_what_was_trained_on_pictures_of_pil_antialiases_without_any_file(shapes, shown):
    outputs = tuple(TensorSpec(name, shape, 'float32') for name, shape in shapes.items())
    given = ModelOverrides({}, class_names=COCO, **shown)
    found = recognise(ModelInfo('x.onnx', IMAGE, outputs), given)
    assert found.preprocessing.antialias


@pytest.mark.parametrize(
    'shapes',
    [DENSE, {'output0': (1, 300, 84)}, {'dets': (1, 300, 4), 'labels': (1, 300, 80)}],
)
def test_what_was_trained_on_pictures_of_opencv_or_on_tensors_does_not(shapes):
    assert not ask(shapes, COCO).preprocessing.antialias


@pytest.mark.parametrize(
    ('shapes', 'more', 'expected'),
    [
        (DENSE, {}, ['class_names']),
        (YOLOX, {'names': COCO}, ['decoder']),
        (YOLOX, {}, ['decoder', 'class_names']),
        (PAIR, {'names': COCO}, ['decoder']),
        (FINAL, {'names': COCO}, ['decoder']),
        (NMS, {'names': COCO}, PREPROCESSING),
        ({'dets': (1, 300, 4), 'labels': (1, 300, 80)}, {}, ['class_names']),
        ({'logits': (1, 100, 81), 'pred_boxes': (1, 100, 4)}, {'config': DETR}, None),
        # No detr gives that, but the shape could be read.
        (DENSE, {'config': {**DETR, 'id2label': LABELS}}, ['decoder']),
    ],
)
def test_the_smallest_set_is_asked_for(shapes, more, expected):
    with pytest.raises(MissingModelInfoError) as caught:
        ask(shapes, **more)
    assert list(caught.value.missing) == (expected or ['class_names'])


def test_the_class_names_of_a_file_beside_it_are_what_is_wrong(golden_messages):
    with golden_messages.raises(MissingModelInfoError):
        ask({'logits': (1, 100, 81), 'pred_boxes': (1, 100, 4)}, config=DETR)


def test_each_choice_is_told(golden_messages):
    for arguments in ((DENSE,), (FINAL,), (NMS, COCO)):
        with golden_messages.raises(MissingModelInfoError):
            ask(*arguments)


# As the node writes names, and as build_engine does; a file's name is never taken for one.
@pytest.mark.parametrize('name', ['model.onnx', 'model.decoder.onnx'])
@pytest.mark.parametrize('written', ['model.{}'.format, '--{}'.format])
def test_each_shell_writes_names_its_way(name, written, golden_messages):
    def message(shapes, **more):
        outputs = tuple(TensorSpec(key, shape, 'float32') for key, shape in shapes.items())
        given = ModelOverrides(parameter_name=written, **more)
        with pytest.raises(EngineError) as caught:
            recognise(ModelInfo(name, IMAGE, outputs), given)
        return caught.value

    error = message(DENSE)
    assert list(error.missing) == ['class_names']
    golden_messages.add(error)
    golden_messages.add(
        message({'boxes': (1, 8400, 4), 'scores': (1, 8400, 80)}, class_names=COCO)
    )
    golden_messages.add(message({'output0': (1, 85, 8400)}, class_names=COCO))


@pytest.mark.parametrize('written', ['model.{}'.format, '--{}'.format])
def test_evidence_names_what_the_user_wrote(written, golden_messages):
    outputs = (TensorSpec('output0', (1, 84, 8400), 'float32'),)
    given = ModelOverrides({}, 'dense', COCO, written)
    found = recognise(ModelInfo('model.onnx', IMAGE, outputs), given)
    golden_messages.add('\n'.join(found.evidence))


def test_what_is_asked_for_suffices():
    assert ask(DENSE, COCO).preprocessing.resize == 'letterbox'
    said = {'resize': 'stretch', 'color_order': 'bgr', 'scale': 1.0}
    assert ask(NMS, COCO, **said).preprocessing.color_order == 'bgr'


@pytest.mark.parametrize('names', [(), COCO])
def test_what_no_parameter_can_say_is_not_asked_for(names, golden_messages):
    with golden_messages.raises(EngineError) as caught:
        ask({'prob': (1, 1000)}, names)
    assert type(caught.value) is EngineError


@pytest.mark.parametrize('shape', [(1, 1, 480, 640), (1, 480, 640, 4), (1, 480, 640)])
def test_images_without_three_channels_are_refused(shape, golden_messages):
    with golden_messages.raises(EngineError):
        ask(DENSE, COCO, inputs=(TensorSpec('images', shape, 'float32'),))
