# SPDX-License-Identifier: Apache-2.0
"""Recognise a model only from the tensors and the metadata that a test gives."""

import pytest

from trt_perception.errors import EngineError
from trt_perception.model.recognition.recognise import recognise
from trt_perception.model.tensors import ModelInfo, TensorSpec
from trt_perception.parameters.values import ParameterValues

COCO = tuple(f'class {number}' for number in range(80))
IMAGES = TensorSpec('images', (1, 3, 640, 640), 'float32')
ULTRALYTICS = {
    'description': 'Ultralytics YOLO11n model trained on coco.yaml',
    'author': 'Ultralytics',
    'stride': '32',
    'task': 'detect',
    'batch': '1',
    'imgsz': '[640, 640]',
    'names': str(dict(enumerate(COCO))),
    'args': "{'batch': 1, 'half': False, 'dynamic': False, 'simplify': True, 'nms': False}",
}


def tensors(**shapes):
    return tuple(TensorSpec(name, shape, 'float32') for name, shape in shapes.items())


def recognised(outputs, metadata=(), config=None, inputs=(IMAGES,), **given):
    values = {f'model.{name}': value for name, value in given.items()}
    chosen = ParameterValues.from_values(values).model_overrides()
    model = ModelInfo('x.onnx', inputs, outputs, dict(metadata), config)
    return recognise(model, chosen)


def refusal(*arguments, **options):
    with pytest.raises(EngineError) as caught:
        recognised(*arguments, **options)
    message = str(caught.value)
    assert message.startswith('x.onnx')
    return message
