# SPDX-License-Identifier: Apache-2.0
"""Make small detectors with the heads of well-known families. A seed determines the weights."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BINS = 16
SIDE = 64


class Net:
    """Builds an ONNX graph. Node names have no meaning, as in the graphs of exporters."""

    def __init__(self, opset=17, seed=0):
        self.opset = opset
        self.nodes, self.weights = [], []
        self._rng = np.random.default_rng(seed)

    def node(self, kind, inputs, outputs=1, **attributes):
        number = len(self.nodes)
        names = [f't{number}_{index}' for index in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=f'n{number}', **attributes))
        return names[0] if outputs == 1 else names

    def last(self):
        return self.nodes[-1].name

    def constant(self, value, dtype=np.float32):
        name = f'c{len(self.weights)}'
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def conv(self, x, inside, outside, size=3, stride=1, silu=True):
        scale = np.sqrt(2 / (inside * size * size))
        weight = self._rng.standard_normal((outside, inside, size, size)) * scale
        bias = self._rng.standard_normal(outside) * 0.1
        out = self.node(
            'Conv',
            [x, self.constant(weight), self.constant(bias)],
            kernel_shape=[size] * 2,
            strides=[stride] * 2,
            pads=[size // 2] * 4,
        )
        return self.node('Mul', [out, self.node('Sigmoid', [out])]) if silu else out

    def linear(self, x, inside, outside):
        weight = self._rng.standard_normal((inside, outside)) / np.sqrt(inside)
        out = self.node('MatMul', [x, self.constant(weight)])
        return self.node('Add', [out, self.constant(self._rng.standard_normal(outside) * 0.1)])

    def reshape(self, x, *shape):
        return self.node('Reshape', [x, self.constant(shape, np.int64)])

    def backbone(self):
        """Return 32 channels at stride 4, after a residual block."""
        x = self.conv('images', 3, 16, stride=2)
        x = self.conv(x, 16, 32, stride=2)
        return self.node('Add', [x, self.conv(self.conv(x, 32, 32), 32, 32)])

    def model(self, outputs, batch=1):
        for index, name in enumerate(outputs):
            self.nodes.append(
                helper.make_node('Identity', [name], [f'output{index}'], name=f'out{index}')
            )
        graph = helper.make_graph(
            self.nodes,
            'small',
            [helper.make_tensor_value_info('images', TensorProto.FLOAT, [batch, 3, SIDE, SIDE])],
            [
                helper.make_tensor_value_info(f'output{index}', TensorProto.FLOAT, None)
                for index in range(len(outputs))
            ],
            self.weights,
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid('', self.opset)], ir_version=8
        )
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        del model.graph.output[:]
        model.graph.output.extend(inferred.graph.output)
        return model


def anchor_free(opset=17):
    """Return an anchor-free detector whose boxes are distributions, and the nodes of its head."""
    net = Net(opset)
    x = net.backbone()
    cells = (SIDE // 4) ** 2
    box = net.conv(net.conv(x, 32, 32), 32, 4 * BINS, 1, silu=False)
    layers = [net.last()]
    score = net.conv(net.conv(x, 32, 32), 32, 5, 1, silu=False)
    layers.append(net.last())
    bins = net.reshape(box, 1, 4, BINS, cells)
    bins = net.node('Transpose', [bins], perm=[0, 2, 1, 3])
    share = net.node('Softmax', [bins], axis=1)
    steps = net.constant(np.arange(BINS).reshape(1, BINS, 1, 1))
    sides = net.node('Conv', [share, steps], kernel_shape=[1, 1])
    fixed = [net.last()]
    sides = net.reshape(sides, 1, 4, cells)
    low, high = net.node('Split', [sides, net.constant([2, 2], np.int64)], 2, axis=1)
    size = net.node('Add', [low, high])
    centre = net.node('Sub', [high, low])
    centre = net.node('Div', [centre, net.constant(2.0)])
    boxes = net.node('Concat', [centre, size], axis=1)
    boxes = net.node('Mul', [boxes, net.constant(4.0)])
    scores = net.node('Sigmoid', [net.reshape(score, 1, 5, cells)])
    return net.model([net.node('Concat', [boxes, scores], axis=1)]), layers, fixed


def anchor_based():
    """Return a detector that decodes the anchors of three strides and concatenates them."""
    net = Net()
    x = net.backbone()
    parts, layers = [], []
    for stride in (4, 8, 16):
        raw = net.conv(x, 32, 3 * 10, 1, silu=False)
        layers.append(net.last())
        side = SIDE // stride
        raw = net.reshape(raw, 1, 3, 10, side, side)
        y = net.node('Sigmoid', [net.node('Transpose', [raw], perm=[0, 1, 3, 4, 2])])
        sizes = net.constant([2, 2, 6], np.int64)
        xy, wh, rest = net.node('Split', [y, sizes], 3, axis=4)
        xy = net.node('Mul', [xy, net.constant(float(stride))])
        wh = net.node('Pow', [net.node('Mul', [wh, net.constant(2.0)]), net.constant(2.0)])
        joined = net.node('Concat', [xy, wh, rest], axis=4)
        parts.append(net.reshape(joined, 1, 3 * side * side, 10))
        x = net.conv(x, 32, 32, stride=2)
    # An exporter would have removed the convolution after the last output, because it is unused.
    del net.nodes[-3:]
    return net.model([net.node('Concat', parts, axis=1)]), layers, []


def transformer():
    """Return a detector with attention. Its boxes are a first estimate plus a correction."""
    net = Net()
    x = net.backbone()
    tokens = net.node('Transpose', [net.reshape(x, 1, 32, 256)], perm=[0, 2, 1])
    first = net.linear(tokens, 32, 4)
    layers = [net.nodes[-2].name]
    keys = net.node('Transpose', [net.linear(tokens, 32, 32)], perm=[0, 2, 1])
    scores = net.node('MatMul', [net.linear(tokens, 32, 32), keys])
    attention = net.node('MatMul', [net.node('Softmax', [scores], axis=-1), tokens])
    hidden = net.node('Relu', [net.linear(attention, 32, 64)])
    logits = net.linear(hidden, 64, 5)
    layers.append(net.nodes[-2].name)
    middle = net.node('Relu', [net.linear(hidden, 64, 32)])
    shift = net.linear(middle, 32, 4)
    layers.append(net.nodes[-2].name)
    boxes = net.node('Sigmoid', [net.node('Add', [shift, first])])
    return net.model([logits, boxes]), layers, []


def raw_maps():
    """Return a detector without decoding, whose outputs are the last convolutions."""
    net = Net()
    x = net.backbone()
    outputs, layers = [], []
    for channels in (4, 5):
        outputs.append(net.conv(net.conv(x, 32, 32), 32, channels, 1, silu=False))
        layers.append(net.last())
    return net.model(outputs), layers, []


def features():
    """Return a model that is not a detector: its output is the sum of a residual block."""
    net = Net()
    x = net.conv('images', 3, 32, stride=2)
    for _ in range(4):
        x = net.node('Add', [x, net.conv(net.conv(x, 32, 32), 32, 32, silu=False)])
    return net.model([x])
