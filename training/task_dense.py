# SPDX-License-Identifier: Apache-2.0
"""Decode the outputs of the three tasks on the CPU: the reference decoder of their evaluation.

The decoder shares no code with the package, because a common error would stay hidden. Masks follow
Ultralytics' `process_mask_native`: prototypes are cropped to the picture, OpenCV interpolates the
logits, and only pixels inside the box count.
"""

import math
import pathlib
from typing import NamedTuple

import cv2
import dense
import letterbox
import model as net
import numpy as np
import onnxruntime
import shapes


class Found(NamedTuple):
    """Detections of one scene in source pixels, best first.

    Attributes:
        xyxy: (n, 4) float32. For oriented boxes, the upright box around each.
        scores: (n,) float32.
        classes: (n,) int64.
        masks: n masks (h, w) bool with `segment`, else empty.
        oriented: (n, 5) with `obb`, else (n, 0).
        corners: (n, 4, 2) with `pose`, else (n, 0, 2).
    """

    xyxy: np.ndarray
    scores: np.ndarray
    classes: np.ndarray
    masks: list[np.ndarray]
    oriented: np.ndarray
    corners: np.ndarray


class TaskDetector:
    """An ONNX file of one task, written by `export_tasks.py`."""

    def __init__(self, onnx_path: pathlib.Path, threads: int = 0):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(
            str(onnx_path), options, providers=['CPUExecutionProvider']
        )
        self.task = self.session.get_modelmeta().custom_metadata_map['task']
        height, width = self.session.get_inputs()[0].shape[2:]
        self.input_wh = (width, height)

    def __call__(
        self,
        image: np.ndarray,
        confidence: float = 0.001,
        iou_threshold: float = 0.45,
        most: int = 100,
    ) -> Found:
        """Detect objects in an RGB image of any size: uint8 (h, w, 3)."""
        boxed, geometry = letterbox.letterbox(image, self.input_wh)
        tensor = boxed.transpose(2, 0, 1)[None].astype(np.float32) / 255
        outputs = self.session.run(None, {'images': np.ascontiguousarray(tensor)})
        rows = outputs[0][0]
        rows = rows[:, rows[4 : 4 + net.CLASSES].max(0) > confidence].T
        scores, classes = (
            rows[:, 4 : 4 + net.CLASSES].max(1),
            rows[:, 4 : 4 + net.CLASSES].argmax(1),
        )
        best = np.argsort(-scores, kind='stable')[:1024]
        rows, scores, classes = rows[best], scores[best], classes[best].astype(np.int64)
        oriented = np.concatenate([rows[:, :4], rows[:, 14:15]], 1)
        if self.task == 'obb':
            kept = suppress_oriented(oriented, classes, iou_threshold)[:most]
        else:
            xyxy = np.concatenate(
                [rows[:, :2] - rows[:, 2:4] / 2, rows[:, :2] + rows[:, 2:4] / 2], 1
            )
            kept = dense.suppress(xyxy, scores, classes, iou_threshold)[:most]
        size_wh = image.shape[1], image.shape[0]
        carried = outputs[1:], geometry, size_wh
        return self.found(rows[kept], oriented[kept], scores[kept], classes[kept], *carried)

    def found(self, rows, oriented, scores, classes, prototypes, geometry, size_wh) -> Found:
        """Return the selected detections in source pixels."""
        offset = np.array([geometry.left, geometry.top], np.float32)
        oriented = oriented.copy()
        oriented[:, :2] -= offset
        oriented[:, :4] /= geometry.scale
        corners = np.zeros((len(rows), 0, 2), np.float32)
        masks: list[np.ndarray] = []
        limit = np.array(size_wh, np.float32)
        low, high = oriented[:, :2] - oriented[:, 2:4] / 2, oriented[:, :2] + oriented[:, 2:4] / 2
        if self.task == 'obb':
            around = shapes.oriented_corners(oriented)
            low, high = around.min(1), around.max(1)
        xyxy = np.concatenate([low.clip(0, limit), high.clip(0, limit)], 1)
        if self.task == 'pose':
            corners = ((rows[:, 14:].reshape(len(rows), -1, 2) - offset) / geometry.scale).clip(
                0, limit
            )
        if self.task == 'segment':
            logits = np.tensordot(rows[:, 14:], prototypes[0][0], 1)
            masks = [
                mask(one, box, geometry, size_wh) for one, box in zip(logits, xyxy, strict=True)
            ]
        oriented = oriented if self.task == 'obb' else oriented[:, :0]
        return Found(xyxy, scores, classes, masks, oriented, corners)


def mask(
    logits: np.ndarray, xyxy: np.ndarray, geometry: letterbox.Letterbox, size_wh: tuple[int, int]
) -> np.ndarray:
    """Return one mask (h, w) bool from logits at the resolution of the prototypes."""
    stride = net.INPUT_WH[0] // logits.shape[1]
    top, left = round(geometry.top / stride), round(geometry.left / stride)
    rows, columns = logits.shape
    logits = np.ascontiguousarray(logits[top : rows - top, left : columns - left], np.float32)
    whole = cv2.resize(logits, size_wh, interpolation=cv2.INTER_LINEAR) > 0
    x0, y0, x1, y1 = np.ceil(xyxy).astype(int)
    inside = np.zeros_like(whole)
    inside[y0:y1, x0:x1] = whole[y0:y1, x0:x1]
    return inside


def suppress_oriented(
    oriented: np.ndarray, classes: np.ndarray, iou_threshold: float
) -> np.ndarray:
    """Return the indices that greedy NMS per class by true overlap keeps, best first.

    Ultralytics and the package use ProbIoU. Digits do not overlap, so the results are equal.
    """
    kept: list[int] = []
    for index in range(len(oriented)):
        rivals = [other for other in kept if classes[other] == classes[index]]
        if all(
            oriented_iou(oriented[index], oriented[other]) <= iou_threshold for other in rivals
        ):
            kept.append(index)
    return np.array(kept, np.int64)


def oriented_iou(a: np.ndarray, b: np.ndarray) -> float:
    """Return the true IoU of two oriented boxes (5,), from OpenCV's intersection of outlines."""
    reach = (math.hypot(*a[2:4]) + math.hypot(*b[2:4])) / 2
    if math.hypot(*(a[:2] - b[:2])) >= reach:
        return 0.0
    outlines = shapes.oriented_corners(np.stack([a, b])).astype(np.float32)
    shared = cv2.intersectConvexConvex(outlines[0], outlines[1])[0]
    total = float(a[2] * a[3] + b[2] * b[3]) - shared
    return shared / total if total > 0 else 0.0
