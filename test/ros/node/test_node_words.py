"""What the node says of a model that is as it should be: plain sentences, and no warning."""

import re

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

pytest_plugins = ['support.nodes.graph_fixtures']


def write_ultralytics_export(path):
    """Write a detector of 64 x 64 pixels that finds nothing, with Ultralytics' metadata."""
    zeros = numpy_helper.from_array(np.zeros((1, 6, 84), np.float32))  # 8 x 8 + 4 x 4 + 2 x 2
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node('Constant', [], ['output0'], value=zeros)],
            'main_graph',
            [helper.make_tensor_value_info('images', TensorProto.FLOAT, (1, 3, 64, 64))],
            [helper.make_tensor_value_info('output0', TensorProto.FLOAT, (1, 6, 84))],
        ),
        opset_imports=[helper.make_opsetid('', 18)],
        ir_version=9,
    )
    helper.set_model_props(
        model,
        {
            'description': 'Ultralytics YOLO11n model trained on digits.yaml',
            'author': 'Ultralytics',
            'version': '8.4.190',
            'task': 'detect',
            'head': 'Detect',
            'stride': '32',
            'batch': '1',
            'imgsz': '[64, 64]',
            'names': "{0: 'person', 1: 'pallet'}",
            'end2end': 'False',
            'channels': '3',
        },
    )
    onnx.save(model, path)
    return path


def test_an_export_of_ultralytics_is_read_without_a_warning(start_detector, tmp_path):
    path = write_ultralytics_export(tmp_path / 'yolo.onnx')
    detector = start_detector({'engine_path': str(path), 'autostart': True})
    detector.connect()
    # Of the node: the middleware has warnings of its own on some distributions.
    lines = [line for line in detector.program.output.splitlines() if 'detector]: ' in line]
    [told] = [line for line in lines if 'configured: ' in line]
    assert told.endswith(
        '2 classes, detect, dense (objectness false, transposed false); letterbox on 114, '
        'rgb x 0.00392157 (as the model itself says)'
    )
    assert any('metadata "names"' in line for line in lines), 'what was seen'
    # Of the model: what it says of the camera comes behind.
    [active] = [index for index, line in enumerate(lines) if 'active: ' in line]
    assert {line.split(']')[0] for line in lines[:active]} == {'[INFO'}
    # No value is written as Python would: Type(field=…), {'key': …} or None.
    assert not any(re.search(r"\w\(\w+=|\{'|\bNone\b", line) for line in lines)
