# SPDX-License-Identifier: Apache-2.0
"""The network of reference_model.py: an ONNX graph of YOLO11n's size with random weights.

Strided convolutions, CSP blocks with SiLU, SPPF, a PAN neck, and a decoupled head at strides 8, 16
and 32, with 16 bins per box side and decoding inside. Random weights detect nothing, so constants
in the head decide which anchors pass: 1,000 of 8,400 at 640 x 640, in 300 groups of overlapping
boxes of one class. Image content moves scores and boxes a little. So the results depend on the
image, and no part of the network can be skipped.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SEED = 11
CLASSES = 80
BINS = 16
STRIDES = (8, 16, 32)
GROUPS = {8: 240, 16: 48, 32: 12}  # of overlapping boxes, at 640 x 640
SIDE = 4.0  # distance from an anchor to each side of its box, in cells

# He's initialisation keeps the standard deviation of large activations at sqrt(2), because SiLU is
# nearly a ReLU for them. SiLU loses a little more. Activations must stay large, because each SiLU
# halves small ones.
GAIN = 1.5
# Pixels are 0 to 1, with a mean square of 1/3. This gain gives a standard deviation of about 6.
FIRST_GAIN = 6 * 3**0.5 * GAIN
# The inputs of a random layer share a mean, which hides the image content after some layers. So
# most of the mean is removed from each filter.
MEAN_LEFT = 0.2
# Gain of the image content in the class logits. Content adds about 0.1 to class logits and 0.3 to
# box logits, too little to move an anchor across a threshold.
CLASS_GAIN = 0.03
BOX_GAIN = 0.08


class Network:
    """A builder of an ONNX graph. A tensor is (name, channels, height, width)."""

    def __init__(self, half, batch):
        self.dtype = np.float16 if half else np.float32
        self.batch = batch
        self.nodes, self.weights, self.stages = [], [], []
        self.parameters = self.multiplications = 0
        self._rng = np.random.default_rng(SEED)

    def node(self, kind, inputs, outputs=1, **attributes):
        """Add a node; return the name of its output, or a list of names for several outputs."""
        names = [f'{kind.lower()}_{len(self.nodes)}_{i}' for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=names[0], **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value, dtype=None):
        name = f'constant_{len(self.weights)}'
        array = np.asarray(value, dtype or self.dtype)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def conv(self, x, channels, size=1, stride=1, groups=1):
        """Add a convolution and SiLU."""
        logits = self.linear(x, channels, GAIN, None, size, stride, groups)
        return self.node('Mul', [logits[0], self.node('Sigmoid', [logits[0]])]), *logits[1:]

    def linear(self, x, channels, gain, bias=None, size=1, stride=1, groups=1):
        """Add a convolution with random weights; also with a random bias unless one is given."""
        name, inside, height, width = x
        weight = self._rng.standard_normal((channels, inside // groups, size, size))
        if name == 'images':
            # Nearly smooth filters, because sensor noise would hide the image content.
            weight = 0.1 * weight + 0.9 * self._rng.standard_normal((channels, inside, 1, 1))
            gain = FIRST_GAIN
        else:
            weight -= (1 - MEAN_LEFT) * weight.mean(axis=(1, 2, 3), keepdims=True)
        weight *= gain / np.sqrt(weight[0].size)
        bias = self._rng.standard_normal(channels) if bias is None else bias
        height, width = height // stride, width // stride
        self.parameters += weight.size + channels
        self.multiplications += weight.size * height * width * max(1, self.batch)
        out = self.node(
            'Conv',
            [name, self.constant(weight), self.constant(bias)],
            kernel_shape=[size] * 2,
            strides=[stride] * 2,
            pads=[size // 2] * 4,
            group=groups,
        )
        return out, channels, height, width

    def concat(self, *tensors):
        name = self.node('Concat', [tensor[0] for tensor in tensors], axis=1)
        return name, sum(tensor[1] for tensor in tensors), *tensors[0][2:]

    def bottleneck(self, x, expansion=0.5):
        inner = self.conv(x, int(x[1] * expansion), 3)
        return self.node('Add', [x[0], self.conv(inner, x[1], 3)[0]]), *x[1:]

    def csp(self, x, channels, expansion=0.5, deep=False):
        """Add a CSP block: transform one part in steps, and concatenate all partial results."""
        wide = self.conv(x, 2 * int(channels * expansion))
        halves = self.node('Split', [wide[0]], 2, axis=1, num_outputs=2)
        parts = [(half, wide[1] // 2, *wide[2:]) for half in halves]
        parts.append(self.deep_block(parts[-1]) if deep else self.bottleneck(parts[-1]))
        return self.conv(self.concat(*parts), channels)

    def deep_block(self, x):
        inner = self.conv(x, x[1] // 2)
        for _ in range(2):
            inner = self.bottleneck(inner, 1.0)
        return self.conv(self.concat(inner, self.conv(x, x[1] // 2)), x[1])

    def pyramid_pooling(self, x):
        steps = [self.conv(x, x[1] // 2)]
        for _ in range(3):
            pooled = self.node('MaxPool', [steps[-1][0]], kernel_shape=[5, 5], pads=[2] * 4)
            steps.append((pooled, *steps[-1][1:]))
        return self.conv(self.concat(*steps), x[1])

    def upsample(self, x):
        scales = self.constant([1, 1, 2, 2], np.float32)
        name = self.node(
            'Resize',
            [x[0], '', scales],
            mode='nearest',
            coordinate_transformation_mode='asymmetric',
            nearest_mode='floor',
        )
        return name, x[1], 2 * x[2], 2 * x[3]

    def stage(self, label, x):
        """Record a tensor whose spread the check prints."""
        self.stages.append((label, x[0]))
        return x


def backbone_and_neck(net, image):
    """Return the features at strides 8, 16 and 32."""
    x = net.stage('stride 2', net.conv(image, 16, 3, 2))
    x = net.stage('stride 4', net.csp(net.conv(x, 32, 3, 2), 64, 0.25))
    p3 = net.stage('stride 8', net.csp(net.conv(x, 64, 3, 2), 128, 0.25))
    p4 = net.stage('stride 16', net.csp(net.conv(p3, 128, 3, 2), 128, deep=True))
    x = net.stage('stride 32', net.csp(net.conv(p4, 256, 3, 2), 256, deep=True))
    p5 = net.stage('pooling', net.csp(net.pyramid_pooling(x), 256))
    n4 = net.stage('neck 16', net.csp(net.concat(net.upsample(p5), p4), 128))
    n3 = net.stage('neck 8', net.csp(net.concat(net.upsample(n4), p3), 64))
    n4 = net.stage('neck 16 down', net.csp(net.concat(net.conv(n3, 64, 3, 2), n4), 128))
    n5 = net.csp(net.concat(net.conv(n4, 128, 3, 2), p5), 256)
    return n3, n4, net.stage('neck 32 down', n5)


def head(net, features, grids):
    """Return the raw box logits (B, 64, N) and class logits (B, 80, N) of all anchors."""
    # Logits with a peak at the wanted distance of the box side.
    bump = np.tile(-((np.arange(BINS) - SIDE) ** 2) / 1.28, 4)
    boxes, classes = [], []
    for x, (height, width) in zip(features, grids, strict=True):
        box = net.conv(net.conv(x, 64, 3), 64, 3)
        box = net.linear(box, 4 * BINS, BOX_GAIN, bump)
        wide = x
        for _ in range(2):
            wide = net.conv(net.conv(wide, wide[1], 3, groups=wide[1]), CLASSES)
        score = net.linear(wide, CLASSES, CLASS_GAIN, np.zeros(CLASSES))
        for (name, rows, *_), parts in ((box, boxes), (score, classes)):
            shape = net.constant([net.batch, rows, height * width], np.int64)
            parts.append(net.node('Reshape', [name, shape]))
    return (
        net.stage('box logits', (net.node('Concat', boxes, axis=2),))[0],
        net.stage('class logits', (net.node('Concat', classes, axis=2),))[0],
    )


def decode(net, box_logits, class_logits, grids):
    """Add the nodes that compute the output (B, 84, N) from the logits.

    The 84 rows are centre x, centre y, width and height in network pixels, and 80 class scores.
    """
    anchors = sum(height * width for height, width in grids)
    # Sums of coordinates up to the input's size need more digits than float16 has.
    single = box_logits
    if net.dtype == np.float16:
        single = net.node('Cast', [box_logits], to=TensorProto.FLOAT)
    shape = net.constant([net.batch, 4, BINS, anchors], np.int64)
    share = net.node('Softmax', [net.node('Reshape', [single, shape])], axis=2)
    bins = net.constant(np.arange(BINS).reshape(1, 1, BINS, 1), np.float32)
    axis = net.constant([2], np.int64)
    sides = net.node('ReduceSum', [net.node('Mul', [share, bins]), axis], keepdims=0)
    left_top, right_bottom = net.node('Split', [sides], 2, axis=1, num_outputs=2)
    centres = [
        np.stack(np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)).reshape(2, -1)
        for height, width in grids
    ]
    strides = np.repeat(STRIDES, [height * width for height, width in grids])
    centre = net.constant(np.concatenate(centres, axis=1)[None], np.float32)
    shift = net.node('Sub', [right_bottom, left_top])
    half = net.node('Mul', [shift, net.constant(0.5, np.float32)])
    middle = net.node('Add', [half, centre])
    size = net.node('Add', [left_top, right_bottom])
    cells = net.node('Concat', [middle, size], axis=1)
    boxes = net.node('Mul', [cells, net.constant(strides[None, None], np.float32)])
    if net.dtype == np.float16:
        boxes = net.node('Cast', [boxes], to=TensorProto.FLOAT16)
    logits = net.node('Add', [class_logits, net.constant(anchor_logits(grids)[None])])
    scores = net.node('Sigmoid', [logits])
    net.nodes.append(helper.make_node('Concat', [boxes, scores], ['output0'], axis=1))


def anchor_logits(grids):
    """Return (80, N) class logits that decide which anchors pass, for every image.

    A group is a 2 x 2 square of cells. Three or four of its anchors pass, and one has clearly the
    best score. Their boxes overlap by more than half. Groups of one class are far apart, so that
    NMS keeps one box per group.
    """
    rng = np.random.default_rng(SEED)
    logits = np.full((CLASSES, sum(height * width for height, width in grids)), -5.0)
    start = 0
    for stride, (height, width) in zip(STRIDES, grids, strict=True):
        # The middle 9/16 of both sides: no letterbox of a 16:9 image has padding there.
        first = -(-height * 7 // 32), -(-width * 7 // 32)
        last = height * 25 // 32 - 1, width * 25 // 32 - 1
        columns = range(first[1], last[1], 2)
        places = [(row, column) for row in range(first[0], last[0], 2) for column in columns]
        wanted = round(GROUPS[stride] * min(1.0, height * width * stride**2 / 640**2))
        chosen = [places[i] for i in rng.permutation(len(places))[:wanted]]
        taken = []
        for index, (row, column) in enumerate(chosen):
            near = {c for r, k, c in taken if max(abs(r - row), abs(k - column)) < 8}
            class_id = int(rng.choice([c for c in range(CLASSES) if c not in near]))
            taken.append((row, column, class_id))
            best = rng.uniform(0.6, 2.0)
            for member in range(4 if index % 3 == 0 else 3):
                anchor = start + (row + member // 2) * width + column + member % 2
                logits[class_id, anchor] = best - (rng.uniform(0.8, 1.2) if member else 0.0)
        start += height * width
    return logits


def build_network(half, size_wh, batch):
    """Return the model and its Network. The batch size 0 means an open batch."""
    width, height = size_wh
    net = Network(half, batch)
    kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    grids = [(height // stride, width // stride) for stride in STRIDES]
    features = backbone_and_neck(net, ('images', 3, height, width))
    decode(net, *head(net, features, grids), grids)
    anchors = sum(rows * columns for rows, columns in grids)
    images = batch or 'batch'
    graph = helper.make_graph(
        net.nodes,
        'reference_detector',
        [helper.make_tensor_value_info('images', kind, [images, 3, height, width])],
        [helper.make_tensor_value_info('output0', kind, [images, 4 + CLASSES, anchors])],
        net.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 19)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model, net
