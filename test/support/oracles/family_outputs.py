# SPDX-License-Identifier: Apache-2.0
"""Make the outputs of every decoder family for known boxes, from each exporter's conventions."""

from __future__ import annotations

import numpy as np

CLASSES = 5
NAMES = tuple(f'class {number}' for number in range(CLASSES))
NETWORK = (640, 480)  # width and height of the input
QUERIES = 40
#: Width and height of images.
SOURCES = [(1280, 720), (641, 333)]
# Additional inputs by decoder.
EXTRA_INPUTS = {
    'labels_boxes_scores': [('orig_target_sizes', (1, 2))],
    'detr': [('pixel_mask', (1, 64, 64))],
}


def random_objects(rng, count=6):
    """Return boxes that do not overlap, their scores in descending order, and their classes.

    The boxes are (left, top, right, bottom) in network pixels.
    """
    columns = rng.permutation(count)
    left = 20 + columns * 95 + rng.uniform(0, 5, count)
    top = rng.uniform(100, 250, count)
    size = rng.uniform(20, 80, (count, 2))
    xyxy = np.stack([left, top, left + size[:, 0], top + size[:, 1]], axis=1)
    scores = np.linspace(0.95, 0.4, count)
    return xyxy, scores, rng.integers(0, CLASSES, count)


def cxcywh(xyxy):
    return np.concatenate([(xyxy[:, :2] + xyxy[:, 2:]) / 2, xyxy[:, 2:] - xyxy[:, :2]], axis=1)


def cells(width, height):
    """Return (column, row, stride) of all cells of strides 8, 16 and 32, row by row."""
    return [
        (column, row, stride)
        for stride in (8, 16, 32)
        for row in range(height // stride)
        for column in range(width // stride)
    ]


def class_rows(rng, count, boxes, scores, labels, objectness=False):
    """Return rows (count, 4 [+ 1] + C) and the random indices of the known boxes among them.

    All other rows have low scores.
    """
    low = rng.uniform(0, 0.05, (count, CLASSES))
    noise = np.concatenate([rng.uniform(1, 9, (count, 4)), low], axis=1)
    places = rng.choice(count, len(boxes), replace=False)
    noise[places, :4] = boxes
    noise[places, 4 + labels] = scores
    if objectness:
        noise = np.insert(noise, 4, 0.5, axis=1)
        noise[places, 5 + labels] *= 1 / 0.8
        noise[places, 4] = 0.8
    return noise, places


def dense(rng, xyxy, scores, labels):
    rows, _ = class_rows(rng, len(cells(*NETWORK)), cxcywh(xyxy), scores, labels)
    return {'output0': rows.T}


def dense_transposed(rng, xyxy, scores, labels):
    rows, _ = class_rows(rng, 1000, cxcywh(xyxy), scores, labels)
    return {'output0': rows}


def dense_objectness(rng, xyxy, scores, labels):
    rows, _ = class_rows(rng, 1000, cxcywh(xyxy), scores, labels, objectness=True)
    return {'output0': rows.T}


def dense_objectness_transposed(rng, xyxy, scores, labels):
    count = 3 * len(cells(*NETWORK))
    rows, _ = class_rows(rng, count, cxcywh(xyxy), scores, labels, objectness=True)
    return {'output0': rows}


def yolox(rng, xyxy, scores, labels):
    count = len(cells(*NETWORK))
    rows, _ = class_rows(rng, count, cxcywh(xyxy), scores, labels, objectness=True)
    return {'output': rows}


def yolox_raw(rng, xyxy, scores, labels):
    grid = np.array(cells(*NETWORK), float)
    rows, places = class_rows(rng, len(grid), cxcywh(xyxy), scores, labels, objectness=True)
    stride = grid[places, 2:]
    rows[places, :2] = rows[places, :2] / stride - grid[places, :2]
    rows[places, 2:4] = np.log(rows[places, 2:4] / stride)
    return {'output': rows}


def padded_rows(count, *columns):
    """Return rows of these columns, and zeros in the other rows."""
    rows = np.column_stack(columns)
    return np.pad(rows, ((0, count - len(rows)), (0, 0)))


def end_to_end(rng, xyxy, scores, labels):
    return {'output0': padded_rows(300, xyxy, scores, labels)}


def efficient_nms(rng, xyxy, scores, labels):
    boxes, confidence, classes = np.zeros((100, 4)), np.full(100, 0.9), np.zeros(100, np.int32)
    count = len(xyxy)  # the decoder must ignore the rows after the first `count`
    boxes[:count], confidence[:count], classes[:count] = xyxy, scores, labels
    return {
        'num_dets': np.array([count], np.int32),
        'det_boxes': boxes,
        'det_scores': confidence,
        'det_classes': classes,
    }


def onnx_nms(rng, xyxy, scores, labels):
    """Return 50 candidate boxes, their scores by class, and the selected (class, box) pairs.

    The pairs select exactly the known boxes.
    """
    boxes, by_class = rng.uniform(1, 9, (50, 4)), rng.uniform(0, 0.9, (CLASSES, 50))
    places = rng.choice(50, len(xyxy), replace=False)
    boxes[places], by_class[labels, places] = xyxy, scores
    return boxes, by_class, np.stack([labels, places], axis=1)


def onnx_nms_xyxy(rng, xyxy, scores, labels):
    boxes, by_class, selected = onnx_nms(rng, xyxy, scores, labels)
    return {'boxes': boxes, 'scores': by_class, 'selected_indices': selected}


def onnx_nms_yxyx(rng, xyxy, scores, labels):
    boxes, by_class, selected = onnx_nms(rng, xyxy, scores, labels)
    boxes = boxes[:, [3, 2, 1, 0]]  # bottom, right, top, left: any two opposite corners are valid
    return {'boxes': boxes, 'scores': by_class, 'selected_indices': selected}


def onnx_nms_cxcywh(rng, xyxy, scores, labels):
    boxes, by_class, selected = onnx_nms(rng, cxcywh(xyxy), scores, labels)
    return {'boxes': boxes, 'scores': by_class, 'selected_indices': selected}


def normalised(xyxy):
    return cxcywh(xyxy) / np.array(NETWORK * 2, float)


def rtdetr_ultralytics(rng, xyxy, scores, labels):
    rows, places = class_rows(rng, 300, normalised(xyxy), scores, labels)
    rows[:, :4] = np.where(np.isin(np.arange(300), places)[:, None], rows[:, :4], 0.5)
    return {'output0': rows}


def rtdetr_end_to_end(rng, xyxy, scores, labels):
    """Return the rows that Ultralytics' RTDETRDecoder selects: best first, without empty rows."""
    boxes = np.concatenate([normalised(xyxy), np.full((300 - len(xyxy), 4), 0.5)])
    probability = np.concatenate([scores, np.linspace(0.05, 0.01, 300 - len(xyxy))])
    classes = np.concatenate([labels, rng.integers(0, CLASSES, 300 - len(xyxy))])
    return {'output0': np.concatenate([boxes, probability[:, None], classes[:, None]], axis=1)}


def logit(probability):
    return np.log(probability) - np.log1p(-probability)


def detr_sigmoid(rng, xyxy, scores, labels):
    boxes, logits = np.full((QUERIES, 4), 0.5), rng.uniform(-9, -4, (QUERIES, CLASSES))
    places = rng.choice(QUERIES, len(xyxy), replace=False)
    boxes[places], logits[places, labels] = normalised(xyxy), logit(scores)
    return {'logits': logits, 'pred_boxes': boxes}


def rfdetr(rng, xyxy, scores, labels):
    made = detr_sigmoid(rng, xyxy, scores, labels)
    return {'dets': made['pred_boxes'], 'labels': made['logits']}


def detr(rng, xyxy, scores, labels):
    """Return boxes, and logits whose softmax gives each score.

    A known box has one logit that is not 0. In all other rows, the background has the logit 9.
    """
    boxes, logits = np.full((QUERIES, 4), 0.5), np.zeros((QUERIES, CLASSES + 1))
    logits[:, -1] = 9
    places = rng.choice(QUERIES, len(xyxy), replace=False)
    boxes[places], logits[places, -1] = normalised(xyxy), 0
    logits[places, labels] = np.log(scores / (1 - scores) * CLASSES)
    return {'logits': logits, 'pred_boxes': boxes}


def labels_boxes_scores(rng, xyxy, scores, labels):
    boxes, confidence, classes = np.zeros((300, 4)), np.zeros(300), np.zeros(300, np.int64)
    places = rng.choice(300, len(xyxy), replace=False)
    boxes[places], confidence[places], classes[places] = xyxy, scores, labels
    return {'labels': classes, 'boxes': boxes, 'scores': confidence}


def torchvision(rng, xyxy, scores, labels):
    return {'boxes': xyxy, 'labels': labels.astype(np.int64), 'scores': scores}


def tensorflow(rng, xyxy, scores, labels):
    boxes, confidence, classes = np.zeros((100, 4)), np.full(100, 0.9), np.ones(100)
    count = len(xyxy)
    boxes[:count] = xyxy[:, [1, 0, 3, 2]] / np.array(NETWORK[::-1] * 2, float)
    confidence[:count], classes[:count] = scores, labels + 1
    return {
        'detection_boxes': boxes,
        'detection_classes': classes,
        'detection_scores': confidence,
        'num_detections': np.array(float(count)),
    }


def nanodet_plus(rng, xyxy, scores, labels):
    """Return an output that encodes each box in the nearest free cell of stride 8.

    Each distance from the cell to a side of the box is a mean of two bins.
    """
    bins, grids = 8, [(-(-NETWORK[0] // side), -(-NETWORK[1] // side)) for side in (8, 16, 32, 64)]
    count = sum(columns * rows for columns, rows in grids)
    probabilities = rng.uniform(0, 0.05, (count, CLASSES))
    logits = rng.uniform(-1, 1, (count, 4, bins))
    rows, columns = np.divmod(np.arange(grids[0][0] * grids[0][1]), grids[0][0])
    corners = np.stack([columns, rows], axis=1) * 8.0
    free = np.ones(len(corners), bool)
    for box, score, label in zip(xyxy, scores, labels, strict=True):
        far = np.abs(corners - (box[:2] + box[2:]) / 2).max(axis=1)
        place = np.where(free, far, np.inf).argmin()
        free[place] = False
        centre = corners[place]
        distance = np.concatenate([centre - box[:2], box[2:] - centre]) / 8
        lower = np.floor(distance).astype(int)
        logits[place] = -30
        logits[place, range(4), lower] = np.log(1 - (distance - lower))
        logits[place, range(4), lower + 1] = np.log(distance - lower)
        probabilities[place, label] = score
    return {'output': np.concatenate([probabilities, logits.reshape(count, -1)], axis=1)}


#: Functions that make the outputs, by name of the decoder in OBJECT_PRESETS.
OUTPUTS = {
    'dense': dense,
    'dense_transposed': dense_transposed,
    'dense_objectness': dense_objectness,
    'dense_objectness_transposed': dense_objectness_transposed,
    'yolox': yolox,
    'yolox_raw': yolox_raw,
    'end_to_end': end_to_end,
    'efficient_nms': efficient_nms,
    'onnx_nms_xyxy': onnx_nms_xyxy,
    'onnx_nms_yxyx': onnx_nms_yxyx,
    'onnx_nms_cxcywh': onnx_nms_cxcywh,
    'rtdetr_ultralytics': rtdetr_ultralytics,
    'rtdetr_end_to_end': rtdetr_end_to_end,
    'rtdetr': detr_sigmoid,
    'rfdetr': rfdetr,
    'detr_sigmoid': detr_sigmoid,
    'detr': detr,
    'yolos': detr,
    'labels_boxes_scores': labels_boxes_scores,
    'torchvision': torchvision,
    'tensorflow': tensorflow,
    'nanodet_plus': nanodet_plus,
}


def batched(name, images, dtype=np.float32):
    """Return the outputs of one run for several images, as {name: array}."""
    made = [
        {
            key: value if value.dtype.kind in 'iu' else value.astype(dtype)
            for key, value in image.items()
        }
        for image in images
    ]
    if name == 'torchvision':
        return {
            f'{key}.{index}' if index else key: value
            for index, image in enumerate(made)
            for key, value in image.items()
        }
    stacked = {}
    for key in made[0]:
        if key == 'selected_indices':
            stacked[key] = np.concatenate(
                [np.insert(image[key], 0, index, axis=1) for index, image in enumerate(made)]
            ).astype(np.int64)
        else:
            stacked[key] = np.stack([image[key] for image in made])
    return stacked


def _look_at(beside, constants):
    """Return nodes that make the boxes depend on the values of the additional inputs."""
    from onnx import TensorProto, helper

    parts = ['of the image']
    nodes = []
    if 'orig_target_sizes' in beside:
        constants['middle'] = np.array([1])
        nodes += [
            helper.make_node('Cast', ['orig_target_sizes'], ['size'], to=TensorProto.FLOAT),
            helper.make_node('Concat', ['size', 'size'], ['four'], axis=1),
            helper.make_node('Unsqueeze', ['four', 'middle'], ['sizes']),
        ]
    if 'pixel_mask' in beside:
        constants['one'] = np.ones(1, np.float32)
        nodes += [
            helper.make_node('Cast', ['pixel_mask'], ['mask'], to=TensorProto.FLOAT),
            helper.make_node('ReduceMin', ['mask'], ['least'], keepdims=0),
            helper.make_node('Sub', ['one', 'least'], ['hidden']),
        ]
        parts.append('hidden')
    return [*nodes, helper.make_node('Sum', parts, ['nothing'])]


def network(
    outputs,
    image=(1, 3, NETWORK[1], NETWORK[0]),
    beside=(),
    metadata=(),
    seed=3,
    image_dtype='FLOAT',
):
    """Return an ONNX model that returns these outputs for every image.

    A convolution with seeded weights reads the image, and its result is multiplied by zero. So the
    runtime cannot skip the image, but the outputs are fixed.
    """
    from onnx import TensorProto, helper, numpy_helper

    image_type = TensorProto.DataType.Value(image_dtype)
    rng = np.random.default_rng(seed)
    constants = {
        'weights': rng.normal(size=(2, 3, 3, 3)).astype(np.float32),
        'zero': np.zeros(1, np.float32),
    }
    order = {'perm': [0, 3, 1, 2]} if image[-1] == 3 else None
    nodes = [helper.make_node('Cast', ['image'], ['single'], to=TensorProto.FLOAT)]
    last = 'single'
    if len(image) == 3:
        constants['first'] = np.array([0])
        nodes.append(helper.make_node('Unsqueeze', [last, 'first'], ['batch']))
        last = 'batch'
    if order:
        nodes.append(helper.make_node('Transpose', [last], ['planes'], **order))
        last = 'planes'
    nodes += [
        helper.make_node('Conv', [last, 'weights'], ['features']),
        helper.make_node('ReduceMean', ['features'], ['mean'], keepdims=0),
        helper.make_node('Mul', ['mean', 'zero'], ['of the image']),
    ]
    nodes += _look_at(dict(beside), constants)
    infos = []
    for name, value in outputs.items():
        constants[f'{name} made'] = value.astype(np.float32)
        scaled = f'{name} made'
        if name == 'boxes' and 'orig_target_sizes' in dict(beside):
            constants[scaled] = (value / np.array(NETWORK * 2)).astype(np.float32)
            nodes.append(helper.make_node('Mul', [scaled, 'sizes'], [f'{name} scaled']))
            scaled = f'{name} scaled'
        nodes.append(helper.make_node('Add', [scaled, 'nothing'], [f'{name} sum']))
        onnx_type = helper.np_dtype_to_tensor_dtype(value.dtype)
        nodes.append(helper.make_node('Cast', [f'{name} sum'], [name], to=onnx_type))
        infos.append(helper.make_tensor_value_info(name, onnx_type, value.shape))
    inputs = [helper.make_tensor_value_info('image', image_type, image)]
    inputs += [
        helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in beside
    ]
    graph = helper.make_graph(
        nodes,
        'made',
        inputs,
        infos,
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 13)], ir_version=8)
    helper.set_model_props(model, dict(metadata))
    return model.SerializeToString()


def to_source(xyxy, letterbox):
    """Map boxes to source pixels, by x_network = x_source * resized / source + padding."""
    scale = np.array(letterbox.source_wh * 2) / np.array(letterbox.resized_wh * 2)
    pad = np.array([letterbox.pad_left, letterbox.pad_top] * 2)
    return np.clip((xyxy - pad) * scale, 0, letterbox.source_wh * 2)


def assert_found(found, xyxy, scores, labels, pixels=1e-3, probability=1e-5):
    assert found.class_ids.tolist() == labels.tolist()
    assert np.abs(found.scores - scores).max() < probability
    assert np.abs(found.xyxy - xyxy).max() < pixels
