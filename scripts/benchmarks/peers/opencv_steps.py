# SPDX-License-Identifier: Apache-2.0
"""Steps on the CPU with OpenCV, as programs with ONNX Runtime or TensorRT contain them."""

from __future__ import annotations

import cv2
import numpy as np
from side import CONFIDENCE, IOU, MAX_BOXES

SIZE = 640


def letterbox(image, size=SIZE):
    """Return the network's input, and scale and offset of the image.

    Args:
        image: uint8 (height, width, 3), BGR.
        size: height and width of the input.

    Returns:
        float32 (1, 3, size, size), RGB, 0 to 1; the scale; left and top of the image in the input.
    """
    height, width = image.shape[:2]
    scale = min(size / height, size / width)
    new_wh = round(width * scale), round(height * scale)
    left, top = (size - new_wh[0]) // 2, (size - new_wh[1]) // 2
    resized = cv2.resize(image, new_wh, interpolation=cv2.INTER_LINEAR)
    right, bottom = size - new_wh[0] - left, size - new_wh[1] - top
    padded = cv2.copyMakeBorder(
        resized, top, bottom, left, right, cv2.BORDER_CONSTANT, value=(114, 114, 114)
    )
    return cv2.dnn.blobFromImage(padded, 1 / 255, swapRB=True), scale, (left, top)


def boxes_of(output, scale, offset):
    """Return boxes in pixels of the image, scores and class ids of an output (1, 84, 8400)."""
    scores = output[0, 4:].max(axis=0)
    passed = np.flatnonzero(scores > CONFIDENCE)
    scores = scores[passed]
    class_ids = output[0, 4:, passed].argmax(axis=1)
    centre, size = output[0, :2, passed], output[0, 2:4, passed]
    xywh = np.concatenate([(centre - size / 2 - offset) / scale, size / scale], axis=1)
    kept = cv2.dnn.NMSBoxesBatched(xywh, scores, class_ids, CONFIDENCE, IOU)
    kept = np.asarray(kept, int).reshape(-1)[:MAX_BOXES]
    xyxy = np.concatenate([xywh[kept, :2], xywh[kept, :2] + xywh[kept, 2:]], axis=1)
    return xyxy, scores[kept], class_ids[kept]


def clipped(xyxy, image):
    """Return boxes limited to the image."""
    height, width = image.shape[:2]
    return xyxy.clip(0, (width, height, width, height))
