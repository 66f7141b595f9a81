# SPDX-License-Identifier: Apache-2.0
"""Read a YOLOX file with one class by ONNX Runtime and NumPy, as YOLOX's own demo does.

Source: demo/ONNXRuntime, preproc and multiclass_nms in the repository of YOLOX (Ge et al., arXiv
2107.08430). At the end, boxes are clipped to the image.
"""

import cv2
import numpy as np
import onnxruntime

STRIDES = (8, 16, 32)
PAD = 114


class YoloxFile:
    """An ONNX file of YOLOX without grid decoding."""

    def __init__(self, path):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
        options.add_session_config_entry('session.intra_op.allow_spinning', '0')
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=['CPUExecutionProvider']
        )
        (image,) = self._session.get_inputs()
        self._name, (_, _, self._height, self._width) = image.name, image.shape

    def detect(self, bgr, *, confidence, iou):
        """Return boxes and scores of an image, best first.

        Args:
            bgr: uint8 (height, width, 3).
            confidence: only boxes with a higher score are returned.
            iou: boxes that overlap a better box by more are removed.

        Returns:
            boxes (N, 4): left, top, right and bottom in pixels of the image; scores (N,).
        """
        height, width = bgr.shape[:2]
        ratio = min(self._height / height, self._width / width)
        resized = cv2.resize(bgr, (int(width * ratio), int(height * ratio)))
        padded = np.full((self._height, self._width, 3), PAD, np.uint8)
        padded[: resized.shape[0], : resized.shape[1]] = resized
        tensor = padded.transpose(2, 0, 1)[None].astype(np.float32)
        ((rows,),) = self._session.run(None, {self._name: tensor})
        boxes, scores = self._decode(rows.astype(np.float64))
        passing = scores > confidence
        boxes, scores = boxes[passing] / ratio, scores[passing]
        kept = suppress(boxes, scores, iou)
        return np.clip(boxes[kept], 0, [width, height, width, height]), scores[kept]

    def _decode(self, rows):
        """Return boxes in pixels of the network's input, and scores, of all cells."""
        cells, strides = [], []
        for stride in STRIDES:
            y, x = np.mgrid[: self._height // stride, : self._width // stride]
            cells.append(np.stack([x.ravel(), y.ravel()], 1))
            strides += [stride] * x.size
        stride = np.array(strides)[:, None]
        center = (rows[:, :2] + np.concatenate(cells)) * stride
        half = np.exp(rows[:, 2:4]) * stride / 2
        return np.concatenate([center - half, center + half], 1), rows[:, 4] * rows[:, 5]


def suppress(boxes, scores, limit):
    """Return the indices of the boxes that remain after non-maximum suppression, best first."""
    order, kept = list(np.argsort(-scores)), []
    while order:
        best = order.pop(0)
        kept.append(best)
        # The NMS of YOLOX counts a pixel more for each side.
        overlaps = overlap(boxes[[best]], boxes[order], extra=1)[0]
        order = [index for index, value in zip(order, overlaps, strict=True) if value <= limit]
    return kept


def overlap(boxes, others, extra=0):
    """Return the IoU of each box with each other box: (N, M). ``extra`` is added to all sides."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = np.clip(high - low + extra, 0, None).prod(2)
    area, other_area = (np.prod(each[:, 2:] - each[:, :2] + extra, 1) for each in (boxes, others))
    return shared / (area[:, None] + other_area - shared)


def count_pairs(boxes, others, limit=0.5):
    """Return the number of pairs of boxes with an IoU of at least the limit.

    A box is in one pair at most. The boxes choose in their order, each the best free other box.
    """
    free = overlap(boxes, others)
    count = 0
    for row in range(len(boxes)):
        if free[row].max(initial=0) >= limit:
            free[:, free[row].argmax()] = 0
            count += 1
    return count
