# SPDX-License-Identifier: Apache-2.0
"""Engines with each combination of fixed layout and data type run in a complete pipeline."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.gpu.engine_checks import TOLERANCES, check_engine
from support.gpu.gpu_support import build_plan, needs_tensorrt
from support.models.open_model import open_by_parameters
from support.models.patch_model import patch_onnx, write_engine
from trt_perception.errors import EngineError
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.decoders.anchors import Dense
from trt_perception.parameters.values import ParameterValues

pytestmark = needs_tensorrt

SIZE = (64, 48)
LAYOUTS = [
    Dense(),
    Dense(objectness=True),
    Dense(transposed=True),
    Dense(objectness=True, transposed=True),
]


@pytest.mark.parametrize('dtype', TOLERANCES)
@pytest.mark.parametrize('decoder', LAYOUTS, ids=str)
def test_each_layout_runs_in_each_data_type(tmp_path, dtype, decoder):
    plan = build_plan(patch_onnx(SIZE, decoder, dtype))
    path = write_engine(tmp_path / 'patches.engine', plan, SIZE, decoder, dtype)
    check_engine(path, patch_onnx(SIZE, decoder))


@pytest.mark.parametrize(
    ('dtype', 'output_dtype'),
    [('float16', 'float32'), ('bfloat16', 'float32'), ('float32', 'float16')],
)
def test_engine_with_different_input_and_output_types_runs(tmp_path, dtype, output_dtype):
    decoder = LAYOUTS[0]
    plan = build_plan(patch_onnx(SIZE, decoder, dtype, output_dtype))
    path = write_engine(tmp_path / 'x.engine', plan, SIZE, decoder, dtype, output_dtype)
    check_engine(path, patch_onnx(SIZE, decoder))


def nms_onnx():
    """Return a detector with a NonMaxSuppression node. Its number of rows depends on the image."""
    arrays = {
        'column': np.array([1, 3, 1]),
        'weights': np.ones((1, 3, 4), np.float32),
        'boxes': np.array([[[0, 0, 9, 9], [1, 1, 9, 9], [20, 20, 30, 30], [40, 9, 60, 20]]], 'f4'),
        'most': np.array([10]),
        'iou': np.array([0.5], np.float32),
        'score': np.array([0.1], np.float32),
    }
    nodes = [
        helper.make_node('ReduceMean', ['images'], ['means'], axes=[2, 3], keepdims=1),
        helper.make_node('Reshape', ['means', 'column'], ['levels']),
        helper.make_node('Mul', ['levels', 'weights'], ['scores']),
        helper.make_node(
            'NonMaxSuppression', ['boxes', 'scores', 'most', 'iou', 'score'], ['output']
        ),
    ]
    graph = helper.make_graph(
        nodes,
        'nms',
        [helper.make_tensor_value_info('images', TensorProto.FLOAT, [1, 3, 48, 64])],
        [helper.make_tensor_value_info('output', TensorProto.INT64, ['rows', 3])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)
    return model.SerializeToString()


def test_engine_with_nms_inside_is_refused(tmp_path):
    try:
        plan = build_plan(nms_onnx())
    except AssertionError as error:
        pytest.skip(f'this TensorRT builds no NonMaxSuppression: {error}')
    path = tmp_path / 'nms.engine'
    path.write_bytes(plan)
    with pytest.raises(EngineError, match='depends on the data'):
        open_by_parameters(ParameterValues(engine_path=str(path)))


def test_letterbox_of_a_reference_frame_has_padding():
    # Without padding, the tests above could not show that boxes are mapped back to the image.
    assert Letterbox.fit((200, 90), SIZE, 'letterbox').pad_top > 0
