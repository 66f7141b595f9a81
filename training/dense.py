# SPDX-License-Identifier: Apache-2.0
"""Decode the dense output on the CPU: the reference decoder of the evaluation.

The decoder shares no code with the package, because a common error would stay hidden.
"""

import pathlib
from typing import NamedTuple

import letterbox
import numpy as np
import onnxruntime


class Found(NamedTuple):
    """Detections of one scene, best first.

    Attributes:
        xyxy: (n, 4) float32, source pixels.
        scores: (n,) float32.
        classes: (n,) int64.
    """

    xyxy: np.ndarray
    scores: np.ndarray
    classes: np.ndarray


class Detector:
    """An ONNX file with `images` (1, 3, h, w) and `output0` (1, 4 + classes, n)."""

    def __init__(self, onnx_path: pathlib.Path, threads: int = 0):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(
            str(onnx_path), options, providers=['CPUExecutionProvider']
        )
        height, width = self.session.get_inputs()[0].shape[2:]
        self.input_wh = (width, height)

    def __call__(
        self, image: np.ndarray, confidence: float = 0.001, iou_threshold: float = 0.45
    ) -> Found:
        """Detect in an RGB image (h, w, 3) uint8 of any size."""
        boxed, geometry = letterbox.letterbox(image, self.input_wh)
        tensor = boxed.transpose(2, 0, 1)[None].astype(np.float32) / 255
        output = self.session.run(['output0'], {'images': np.ascontiguousarray(tensor)})[0][0]
        size_wh = (image.shape[1], image.shape[0])
        return decode(output, geometry, size_wh, confidence, iou_threshold)


def decode(
    output: np.ndarray,
    geometry: letterbox.Letterbox,
    size_wh: tuple[int, int],
    confidence: float,
    iou_threshold: float,
    max_detections: int = 300,
) -> Found:
    """Decode a dense output (4 + classes, n): best class, threshold, NMS per class, clipping."""
    classes = output[4:].argmax(0)
    scores = output[4:].max(0)
    kept = scores > confidence
    box, scores, classes = output[:4, kept].T, scores[kept], classes[kept]
    xyxy = np.concatenate([box[:, :2] - box[:, 2:] / 2, box[:, :2] + box[:, 2:] / 2], 1)
    order = suppress(xyxy, scores, classes, iou_threshold)[:max_detections]
    source = letterbox.to_source(xyxy[order], geometry)
    source = np.clip(source, 0, np.array(size_wh * 2, np.float32))
    return Found(source, scores[order], classes[order].astype(np.int64))


def suppress(
    xyxy: np.ndarray, scores: np.ndarray, classes: np.ndarray, iou_threshold: float
) -> np.ndarray:
    """Return the indices that greedy NMS per class keeps, best first; ties by lower index."""
    order = np.argsort(-scores, kind='stable')
    area = (xyxy[:, 2:] - xyxy[:, :2]).prod(1)
    kept = []
    while order.size:
        best, rest = order[0], order[1:]
        kept.append(best)
        low = np.maximum(xyxy[best, :2], xyxy[rest, :2])
        high = np.minimum(xyxy[best, 2:], xyxy[rest, 2:])
        shared = np.clip(high - low, 0, None).prod(1)
        iou = shared / (area[best] + area[rest] - shared)
        order = rest[(iou <= iou_threshold) | (classes[rest] != classes[best])]
    return np.array(kept, np.int64)


def match(
    found: Found, truth_xyxy: np.ndarray, truth_classes: np.ndarray, min_iou: float = 0.5
) -> np.ndarray:
    """Return whether each detection, best first, matches an unmatched digit of its class."""
    free = np.ones(len(truth_xyxy), bool)
    right = np.zeros(len(found.scores), bool)
    truth_area = (truth_xyxy[:, 2:] - truth_xyxy[:, :2]).prod(1)
    for i, (box, label) in enumerate(zip(found.xyxy, found.classes, strict=True)):
        low = np.maximum(box[:2], truth_xyxy[:, :2])
        high = np.minimum(box[2:], truth_xyxy[:, 2:])
        shared = np.clip(high - low, 0, None).prod(1)
        iou = shared / ((box[2:] - box[:2]).prod() + truth_area - shared)
        iou = np.where(free & (truth_classes == label), iou, 0.0)
        if iou.size and iou.max() >= min_iou:
            free[iou.argmax()] = False
            right[i] = True
    return right
