# SPDX-License-Identifier: Apache-2.0
"""Recognition of models that describe the whole image, and the limits of their tasks."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import trt_perception as tp
from support.oracles.recognition_support import COCO, ULTRALYTICS, recognised
from trt_perception.errors import EngineError, MissingModelInfoError
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.resolve_spec import resolve_model_spec
from trt_perception.model.tensors import ModelInfo, TensorSpec
from trt_perception.parameters.values import ParameterValues

CLASSIFY, SEMANTIC = ({**ULTRALYTICS, 'task': task} for task in ('classify', 'semantic'))
SAID = {
    'resize': 'stretch',
    'color_order': 'rgb',
    'scale': 1.0,
    'mean': [0.0, 0.0, 0.0],
    'std': [1.0, 1.0, 1.0],
}
VIT = {'size': {'height': 224, 'width': 224}, 'image_mean': [0.5] * 3, 'image_std': [0.25] * 3}


def output(*shape, dtype='float32'):
    return (TensorSpec('output', shape, dtype),)


def image(height=640, width=640, batch=1):
    return (TensorSpec('pixels', (batch, 3, height, width), 'float32'),)


def resolve(outputs, metadata=(), inputs=None, **values):
    parameters = ParameterValues.from_values(
        {f'model.{name}': value for name, value in values.items()}
    )
    model = ModelInfo('x.onnx', inputs or image(), outputs, dict(metadata))
    return resolve_model_spec(model, None, parameters.model_overrides())


def named(count):
    return [f'class {number}' for number in range(count)]


@pytest.mark.parametrize(
    ('height', 'width', 'resize', 'pad_value'),
    [(640, 640, 'center_crop', 0), (480, 640, 'stretch', 0)],
)
def test_ultralytics_classifier_crops_only_for_a_square_input(height, width, resize, pad_value):
    metadata = {**CLASSIFY, 'imgsz': f'[{height}, {width}]'}
    found = recognised(output(1, 80), metadata, inputs=image(height, width))
    expected = Preprocessing((width, height), resize, pad_value, antialias=True)
    assert (found.preprocessing, found.task.name) == (expected, 'classify')
    assert not found.assumption


def test_size_of_the_user_decides_about_the_crop_of_an_open_input():
    found = recognised(
        output(-1, 80), CLASSIFY, inputs=image(-1, -1, -1), input_size=[640, 480]
    ).preprocessing
    assert (found.input_size, found.resize) == ((640, 480), 'stretch')


@pytest.mark.parametrize(
    'outputs', [output(1, 640, 640, dtype='uint8'), output(1, 80, 80, 80)], ids=str
)
def test_semantic_model_of_ultralytics_is_letterboxed_without_imagenet_means(outputs):
    found = recognised(outputs, SEMANTIC)
    expected = Preprocessing((640, 640), size_rounding='half_even')
    assert (found.preprocessing, found.task.name) == (expected, 'semantic')


def test_map_of_one_class_has_a_background():
    metadata = {**SEMANTIC, 'names': "{0: 'path'}"}
    found = resolve(output(1, 640, 640, dtype='uint8'), metadata)
    assert found.class_names == ('background', 'path')


@pytest.mark.parametrize(
    ('architecture', 'more', 'shape', 'task'),
    [
        ('ConvNextForImageClassification', {}, (1, 80), 'classify'),
        ('UperNetForSemanticSegmentation', {}, (1, 80, 224, 224), 'semantic'),
        (['ViTForImageClassification'] * 2, {}, None, None),
        (7, {}, None, None),
    ],
)
def test_architecture_in_the_config_decides(architecture, more, shape, task):
    classes = architecture if isinstance(architecture, list) else [architecture]
    config = {'model_type': 'some', 'architectures': classes, 'preprocessor_config': VIT, **more}
    config['id2label'] = {str(number): name for number, name in enumerate(COCO)}
    if task is None:
        with pytest.raises(MissingModelInfoError) as caught:
            recognised(output(1, 80), (), config, image(224, 224))
        assert {'decoder', 'class_names', 'resize'} <= caught.value.missing.keys()
        return
    found = recognised(output(*shape), (), config, image(224, 224))
    assert (found.task.name, found.class_names) == (task, COCO)
    assert found.preprocessing == Preprocessing(
        (224, 224), 'stretch', mean=(0.5,) * 3, std=(0.25,) * 3, antialias=True
    )


def test_classifier_without_metadata_needs_decoder_and_preprocessing():
    with pytest.raises(MissingModelInfoError) as caught:
        recognised(output(1, 80))
    assert set(caught.value.missing) == {'decoder', 'class_names', *SAID}
    found = recognised(output(1, 80), class_names=list(COCO), decoder='class_logits', **SAID)
    assert found.task.name == 'classify'
    assert found.preprocessing.antialias
    assert 'model.antialias:=1' in found.assumption


def test_classifier_samples_as_the_user_says():
    values = {**SAID, 'class_names': named(3), 'decoder': 'class_logits', 'antialias': 0}
    found = resolve(output(1, 3), **values)
    assert not found.preprocessing.antialias


@pytest.mark.parametrize('values', [{}, {'class_names': named(80)}], ids=['', 'names'])
@pytest.mark.parametrize(
    ('task', 'shape'),
    [
        ('semantic', (1, 80)),
        ('detect', (1, 80)),
        ('classify', (1, 640, 640)),
        ('classify', (1, 84, 8400)),
        ('depth', (1, 80, 160, 160)),
    ],
)
def test_wrong_task_is_refused_with_the_task_that_fits(task, shape, values, golden_messages):
    with golden_messages.raises(EngineError):
        recognised(output(*shape), task=task, **values)


@pytest.mark.parametrize(
    ('shape', 'batch', 'is_classifier'),
    [
        ((1, 7), 1, True),
        ((-1, 7), -1, True),
        ((1, 7), -1, True),
        ((-1, 7), 1, False),  # final boxes, whose number varies
        ((100, 7), 1, False),
        ((1, 1), 1, True),
    ],
)
def test_only_a_row_for_each_image_is_a_classifier(shape, batch, is_classifier):
    with pytest.raises(EngineError) as caught:
        recognised(output(*shape), inputs=image(batch=batch))
    missing = getattr(caught.value, 'missing', {})
    assert ('decoder' in missing) == is_classifier


@pytest.mark.parametrize('decoder', ['pixel_logits', 'pixel_ids', 'class_logits', 'metric_depth'])
def test_decoder_of_one_task_decides_the_task(decoder):
    outputs = {
        'pixel_logits': output(1, 3, 20, 20),
        'pixel_ids': output(1, 640, 640, dtype='int32'),
        'class_logits': output(1, 3),
        'metric_depth': output(1, 640, 640),
    }[decoder]
    names = {} if decoder == 'metric_depth' else {'class_names': named(3)}
    found = resolve(outputs, decoder=decoder, **names, **SAID)
    assert found.decoder == PRESETS[decoder].decoder
    assert found.task.name in found.decoder.tasks_with_own_outputs


@pytest.mark.parametrize('count', [3, 80])
def test_task_of_the_user_makes_grids_logits(count):
    # A stride of 32 pixels, so the shape alone does not show the task.
    found = resolve(output(1, count, 20, 20), task='semantic', class_names=named(count), **SAID)
    assert found.decoder == PRESETS['pixel_logits'].decoder


@pytest.mark.parametrize(
    ('shape', 'is_semantic'),
    [
        ((1, 3, 640, 640), True),
        ((1, 3, 40, 40), True),
        ((1, 3, 20, 20), False),
        ((1, 3, 162, 162), False),
        ((1, 4, 160, 160), False),
        ((2, 3, 160, 160), False),
    ],
)
def test_grid_with_a_channel_per_class_and_small_cells_is_semantic(shape, is_semantic):
    if is_semantic:
        assert resolve(output(*shape), class_names=named(3)).task.name == 'semantic'
    else:
        with pytest.raises(EngineError):
            resolve(output(*shape), class_names=named(3))


@pytest.mark.parametrize('dtype', ['uint8', 'int32', 'int64'])
def test_whole_numbers_for_each_pixel_are_class_ids(dtype):
    found = resolve(output(1, 640, 640, dtype=dtype), class_names=named(3))
    assert (found.task.name, found.decoder) == ('semantic', PRESETS['pixel_ids'].decoder)


@pytest.mark.parametrize('decoder', ['relative_depth', 'metric_depth'])
def test_floats_for_each_pixel_are_a_depth_whose_unit_the_user_knows(decoder):
    with pytest.raises(MissingModelInfoError) as caught:
        recognised(output(1, 480, 640), inputs=image(480, 640))
    assert set(caught.value.missing) == {'decoder'}
    assert 'task depth' not in ' '.join(caught.value.seen)  # the map may be a mask
    found = recognised(output(1, 480, 640), inputs=image(480, 640), decoder=decoder)
    assert (found.task.name, found.decoder) == ('depth', PRESETS[decoder].decoder)
    assert (found.preprocessing.filter, found.preprocessing.antialias) == ('bicubic', True)
    assert found.assumption


def test_open_size_of_a_depth_model_names_usual_sizes(golden_messages):
    config = {'model_type': 'depth_anything', 'id2label': {'0': 'cat'}}
    inputs, outputs = image(-1, -1, -1), output(-1, -1, -1)
    with golden_messages.raises(MissingModelInfoError) as caught:
        recognised(outputs, (), config, inputs)
    assert set(caught.value.missing) == {'input_size'}
    found = recognised(outputs, (), config, inputs, input_size=[924, 518])
    assert (found.preprocessing.input_size, found.class_names) == ((924, 518), ())


@pytest.mark.parametrize(
    ('config', 'is_relative'),
    [
        ({'model_type': 'dpt'}, True),
        ({'model_type': 'dpt', 'backbone_config': {'model_type': 'beit'}}, True),
        ({'model_type': 'dpt', 'backbone_config': {'model_type': 'swinv2'}}, True),
        # facebook/dpt-dinov2-small-nyu and -kitti output metres.
        ({'model_type': 'dpt', 'backbone_config': {'model_type': 'dinov2'}}, False),
        ({'model_type': 'dpt', 'backbone_config': {'model_type': 'dinov3_vit'}}, False),
        ({'model_type': 'depth_anything', 'backbone_config': {'model_type': 'dinov2'}}, True),
    ],
)
@pytest.mark.parametrize('more', [{}, {'architectures': ['DPTForDepthEstimation']}])
def test_unit_of_a_depth_is_asked_for_if_the_config_does_not_decide(config, is_relative, more):
    config = {**config, **more}
    if is_relative:
        found = recognised(output(1, 640, 640), (), config)
        assert found.decoder == PRESETS['relative_depth'].decoder
        return
    with pytest.raises(MissingModelInfoError) as caught:
        recognised(output(1, 640, 640), (), config)
    assert set(caught.value.missing) == {'decoder'}
    found = recognised(output(1, 640, 640), (), config, decoder='metric_depth')
    assert (found.decoder, found.task.name) == (PRESETS['metric_depth'].decoder, 'depth')


@pytest.mark.parametrize('decoder', ['relative_depth', 'metric_depth'])
def test_channel_axis_changes_no_depth(tmp_path, decoder):
    rng = np.random.default_rng(5)
    picture = rng.integers(0, 256, (48, 64, 3), np.uint8)
    results = []
    for axes in (0, 1):
        path = tmp_path / f'{axes}.onnx'
        nodes = [helper.make_node('ReduceMean', ['images'], ['output'], axes=[1], keepdims=axes)]
        shapes = {'images': (1, 3, 48, 64), 'output': (1, *[1] * axes, 48, 64)}
        first, last = (
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in shapes.items()
        )
        graph = helper.make_graph(nodes, 'depth', [first], [last])
        opsets = [helper.make_opsetid('', 13)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
        values = {'model_decoder': decoder, 'model_mean': [0.0] * 3, 'model_std': [1.0] * 3}
        with tp.load(path, **values) as model:
            results.append(model(picture).depth())
    np.testing.assert_array_equal(*results)
    # The image has the size of the network, so each depth is the mean of a pixel.
    np.testing.assert_allclose(results[0], picture.mean(axis=2) / 255, atol=1e-6)


def test_crop_of_a_depth_model_is_refused():
    with pytest.raises(EngineError):
        resolve(output(1, 640, 640), decoder='metric_depth', resize='center_crop')


@pytest.mark.parametrize('count', [1, 2, 256, 257])
def test_semantic_model_has_2_to_256_classes(count, golden_messages):
    outputs, values = output(1, 640, 640, dtype='int32'), {'class_names': named(count)}
    if count in (2, 256):
        assert len(resolve(outputs, **values).class_names) == count
    else:
        with golden_messages.raises(EngineError):
            resolve(outputs, **values)


def test_crop_of_a_semantic_model_is_refused(golden_messages):
    with golden_messages.raises(EngineError):
        resolve(output(1, 3, 160, 160), class_names=named(3), resize='center_crop')


def test_decoder_of_another_task_is_refused(golden_messages):
    values = {**SAID, 'class_names': named(80), 'decoder': 'pixel_logits', 'task': 'classify'}
    with golden_messages.raises(EngineError):
        resolve(output(1, 80), **values)


def test_depth_model_ignores_class_names():
    found = resolve(output(1, 640, 640), decoder='metric_depth', class_names=named(2))
    assert found.class_names == ()


@pytest.mark.parametrize(('shorter_side', 'is_padded'), [(0, False), (256, False), (200, True)])
def test_log_names_the_padding_of_a_crop_only_if_it_pads(shorter_side, is_padded):
    black, gray = (
        Preprocessing((224, 224), 'center_crop', pad_value, shorter_side=shorter_side or None)
        for pad_value in (0, 114)
    )
    assert (black.summary() != gray.summary()) == is_padded
