# SPDX-License-Identifier: Apache-2.0
"""Make models whose weights or data need small or large quantisation scales."""

import numpy as np
import onnx
from onnx import numpy_helper

from support.building import tensorrt_rtx_build
from support.models import small_detectors
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.offline.building.precision.convert import convert_precision

SMALL_PREPROCESSING = Preprocessing(input_size=(64, 64))
TARGETS = ('int8', 'fp8')
Q, DQ = 'QuantizeLinear', 'DequantizeLinear'


def scales(model):
    """Return all quantisation scales of a model, with their stored type."""
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return [stored[n.input[1]] for n in model.graph.node if n.op_type in (Q, DQ)]


def converted_model(model, target):
    """Convert a model for a strongly typed engine; check that all scales are positive numbers."""
    done = convert_precision(model, target, strongly_typed=True).model
    onnx.checker.check_model(done, full_check=True)
    for scale in scales(done):
        assert np.isfinite(scale).all()
        assert (scale > 0).all()
    return done


def converted_and_built(model, target):
    """Convert a model as `converted` does, and build it with TensorRT-RTX."""
    done = converted_model(model, target)
    assert tensorrt_rtx_build.size_of_built_plan(done.SerializeToString(), ['89']) > 0
    return done


def with_branch(*operations):
    """Return a model with an extra branch, and the tensor that the branch convolves.

    The branch applies ``operations`` to the input of the model.
    """
    model, (tensor,) = with_branches([operations])
    return model, tensor


def with_branches(branches):
    """Return a model with extra branches, and the tensor that each branch convolves."""
    net = small_detectors.Net()
    x = net.backbone()
    tensors = []
    for operations in branches:
        side = 'images'
        for kind, value in operations:
            side = net.node(kind, [side, net.constant(value)] if value is not None else [side])
        tensors.append(side)
        branch = net.conv(net.conv(side, 3, 32, stride=2), 32, 32, stride=2)
        x = net.node('Add', [x, branch])
    return net.model([net.conv(net.conv(x, 32, 32), 32, 8, silu=False)]), tensors


def nodes_that_read(model, tensor):
    return [node.name for node in model.graph.node if tensor in node.input]


def with_channels(values, *, layer=3):
    """Return a model with a convolution whose channels have small or large weights."""
    model, *_ = small_detectors.anchor_free()
    node = [node for node in model.graph.node if node.op_type == 'Conv'][layer]
    (tensor,) = (t for t in model.graph.initializer if t.name == node.input[1])
    weights = numpy_helper.to_array(tensor).copy()
    for channel, value in enumerate(values):
        weights[channel] = np.sign(weights[channel]) * np.float32(value)
    tensor.CopyFrom(numpy_helper.from_array(weights, tensor.name))
    return model, node
