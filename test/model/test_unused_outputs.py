# SPDX-License-Identifier: Apache-2.0
"""A model may have outputs that its decoder does not read."""

import logging

import pytest

from support.oracles.recognition_support import COCO, IMAGES, ULTRALYTICS, recognised, tensors
from trt_perception.errors import EngineError, MissingModelInfoError
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.resolve_spec import resolve_model_spec
from trt_perception.model.tensors import ModelInfo, TensorSpec
from trt_perception.parameters.values import ParameterValues

GRIDS = {name: (1, 3, side, side, 85) for name, side in (('a', 80), ('b', 40), ('c', 20))}
# What transformers writes with all fields of RTDetrObjectDetectionOutput.
RT_DETR = tensors(
    logits=(1, 300, 80),
    pred_boxes=(1, 300, 4),
    last_hidden_state=(1, 300, 256),
    intermediate_hidden_states=(1, 6, 300, 256),
    intermediate_logits=(1, 6, 300, 80),
    intermediate_reference_points=(1, 6, 300, 4),
    encoder_last_hidden_state=(1, 256, 20, 20),
    enc_topk_logits=(1, 300, 80),
    enc_outputs_class=(1, 8400, 80),
    enc_outputs_coord_logits=(1, 8400, 4),
)
COCO_LABELS = {'id2label': dict(enumerate(COCO))}


def spec_of(outputs, metadata=(), config=None, **given):
    values = {f'model.{name}': value for name, value in given.items()}
    overrides = ParameterValues.from_values(values).model_overrides()
    model = ModelInfo('x.onnx', (IMAGES,), outputs, dict(metadata), config)
    return resolve_model_spec(model, None, overrides)


def names_read(spec):
    return [spec.outputs[place].name for _, place in spec.decoder_outputs]


YOLOV5 = {'stride': '32', 'names': str(dict(enumerate(COCO)))}
NAMED = {'class_names': COCO}
# Outputs, what is known about the model, the chosen decoder and the outputs that it reads.
READ = {
    'RT-DETR with config.json': (
        RT_DETR,
        {'config': {'model_type': 'rt_detr', **COCO_LABELS}},
        'rtdetr',
        ['logits', 'pred_boxes'],
    ),
    'RT-DETR with a decoder': (
        RT_DETR[::-1],
        {**NAMED, 'decoder': 'rtdetr'},
        'rtdetr',
        ['logits', 'pred_boxes'],
    ),
    'YOLOv5 with its grids': (
        tensors(output=(1, 25200, 85), **GRIDS),
        {'metadata': YOLOV5},
        'dense_objectness_transposed',
        ['output'],
    ),
    'YOLOv7 with its grids': (
        tensors(**GRIDS, result=(1, 25200, 85)),
        {**NAMED, 'decoder': 'dense_objectness_transposed'},
        'dense_objectness_transposed',
        ['result'],
    ),
    'YOLO11 with features': (
        tensors(features=(1, 64, 80, 80), output0=(1, 84, 8400), more=(1, 144, 80, 80)),
        {'metadata': ULTRALYTICS},
        'dense',
        ['output0'],
    ),
    'classifier with hidden states': (
        tensors(hidden=(1, 197, 768), logits=(1, 80), pooled=(1, 768)),
        {**NAMED, 'decoder': 'class_probabilities', 'resize': 'stretch'},
        'class_probabilities',
        ['logits'],
    ),
    'depth with hidden states': (
        tensors(hidden=(1, 1025, 384), predicted_depth=(1, 640, 640)),
        {'config': {'model_type': 'depth_anything'}},
        'relative_depth',
        ['predicted_depth'],
    ),
}


@pytest.mark.parametrize('case', READ.values(), ids=READ)
def test_names_or_unique_shapes_decide_which_outputs_are_read(case, caplog):
    outputs, known, decoder, expected = case
    given = dict(known)
    if decoder == 'class_probabilities':
        given |= {'color_order': 'rgb', 'scale': 1.0, 'mean': [0.0] * 3, 'std': [1.0] * 3}
    with caplog.at_level(logging.INFO):
        spec = spec_of(outputs, **given)
    assert spec.decoder == PRESETS[decoder].decoder
    assert names_read(spec) == expected
    unused = {tensor.name for tensor in outputs} - set(expected)
    (line,) = [line for line in caplog.messages if 'unused' in line]
    assert all(name in line for name in unused)


# Two tensors fit as one of the decoder's outputs.
AMBIGUOUS = {
    'two heads': (tensors(aux=(1, 84, 8400), main=(1, 84, 8400)), 'dense', ['aux', 'main']),
    'two classifiers': (
        tensors(colour=(1, 80), form=(1, 80)),
        'class_sigmoid',
        ['colour', 'form'],
    ),
    'two boxes': (
        tensors(logits=(1, 300, 80), a=(1, 300, 4), b=(1, 300, 4)),
        'rtdetr',
        ['a', 'b'],
    ),
}


@pytest.mark.parametrize('case', AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_equal_outputs_are_refused_by_name(case):
    outputs, decoder, names = case
    given = {'resize': 'stretch', 'color_order': 'rgb', 'scale': 1.0}
    with pytest.raises(EngineError) as caught:
        spec_of(outputs, **NAMED, decoder=decoder, mean=[0.0] * 3, std=[1.0] * 3, **given)
    assert not isinstance(caught.value, MissingModelInfoError)
    assert ' or '.join(names) in caught.value.fix
    left = [tensor for tensor in outputs if tensor.name != names[0]]
    spec = spec_of(tuple(left), **NAMED, decoder=decoder, mean=[0.0] * 3, std=[1.0] * 3, **given)
    assert names[1] in names_read(spec)


@pytest.mark.parametrize('name', ['dense_objectness_transposed', 'dense'])
def test_unknown_exporter_with_further_outputs_is_not_guessed(name):
    shape = (1, 25200, 85) if name != 'dense' else (1, 84, 8400)
    outputs = tensors(result=shape, **GRIDS)
    with pytest.raises(EngineError) as caught:
        recognised(outputs, **NAMED)
    assert name in caught.value.fix
    assert all(grid in caught.value.fix for grid in GRIDS)
    assert names_read(spec_of(outputs, **NAMED, decoder=name)) == ['result']


def test_masks_are_not_ignored():
    outputs = tensors(logits=(1, 300, 80), pred_boxes=(1, 300, 4), pred_masks=(1, 300, 160, 160))
    with pytest.raises(EngineError):
        recognised(outputs, config={'model_type': 'rt_detr', **COCO_LABELS})


def test_shapes_of_unused_outputs_are_bounded_but_not_compared():
    outputs = tensors(output0=(-1, 84, 8400), extra=(-1, 7, -1), scalar=())
    batched = TensorSpec('images', (-1, 3, 640, 640), 'float32')
    model = ModelInfo('x.onnx', (batched,), outputs, ULTRALYTICS)
    spec = resolve_model_spec(model, None, ParameterValues.from_values({}).model_overrides())
    spec = spec.with_batch_size(2)
    assert [tensor.shape for tensor in spec.outputs] == [(2, 84, 8400), (2, 7, -1), ()]
    for extra in ((2, 7, 5), (1, 9, 9, 9), ()):
        shapes = [(2, 84, 8400), extra, ()]
        assert spec.computed_shapes_error(shapes, frames=2, batch=2) is None
    huge = [(2, 84, 8400), (2, 7, 2**30), ()]
    assert spec.computed_shapes_error(huge, frames=2, batch=2) is not None
