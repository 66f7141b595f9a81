# SPDX-License-Identifier: Apache-2.0
"""Samples for the models that describe the whole image: crops of digits, and class maps.

All samples come from the detector's scenes. A crop shows one digit. A map has the class of every
pixel of a scene.
"""

import cv2
import letterbox
import model as net
import numpy as np
import scenes

CROPS = 6  # crops of a training scene
CROP_SIDE = 64  # width and height of the classifier's input
CROP_MARGIN = 0.15  # context on each side of a digit, relative to its longer side
BACKGROUND = 0  # class of pixels without ink; digit d has class d + 1


def digit_crop(
    image: np.ndarray,
    xyxy: np.ndarray,
    margin: float = CROP_MARGIN,
    shift: tuple[float, float] = (0.0, 0.0),
) -> np.ndarray:
    """Return the square around a digit, clipped to the image: (h, w, 3) uint8.

    Args:
        image: (h, w, 3) uint8.
        xyxy: (4,) box of the digit in pixels.
        margin: context on each side, relative to the longer side of the box.
        shift: shift of the square to the right and down, relative to the longer side of the box.
    """
    side = float((xyxy[2:] - xyxy[:2]).max())
    centre = (xyxy[:2] + xyxy[2:]) / 2 + np.array(shift) * side
    half = side * (0.5 + margin)
    low = np.maximum(np.floor(centre - half), 0).astype(int)
    high = np.minimum(np.ceil(centre + half), image.shape[1::-1]).astype(int)
    return image[low[1] : high[1], low[0] : high[0]]


def class_map(scene: scenes.Scene) -> np.ndarray:
    """Return the class of each pixel, from the visible ink of a drawn scene: (h, w) uint8."""
    classes = np.full(scene.image.shape[:2], BACKGROUND, np.uint8)
    for box, label, shape in zip(scene.xyxy, scene.classes, scene.shapes, strict=True):
        x0, y0, x1, y1 = box.astype(int)
        classes[y0:y1, x0:x1][shape.mask] = label + 1
    classes[scene.occluders] = BACKGROUND
    return classes


def training_crops(index: int) -> tuple[np.ndarray, np.ndarray]:
    """Return crops of digits of training scene `index`, and their digits.

    Returns:
        (3, CROPS * CROP_SIDE, CROP_SIDE) uint8, the crops one above the other; (CROPS,) int64.
    """
    scene = scenes.compose(scenes.TRAIN, index)
    rng = np.random.default_rng((scenes.TRAIN.seed, index, 1))
    chosen = rng.choice(len(scene.xyxy), CROPS, replace=len(scene.xyxy) < CROPS)
    crops = []
    for box in scene.xyxy[chosen]:
        right, down = rng.uniform(-0.08, 0.08, 2)
        crop = digit_crop(scene.image, box, rng.uniform(0.05, 0.25), (right, down))
        crops.append(letterbox.letterbox(crop, (CROP_SIDE, CROP_SIDE))[0])
    return np.concatenate(crops).transpose(2, 0, 1).copy(), scene.classes[chosen]


def training_map(index: int) -> tuple[np.ndarray, np.ndarray]:
    """Return training scene `index` as network input, and the classes of its pixels.

    Returns:
        (3, 480, 640) uint8, (480, 640) uint8. The letterbox's padding has the background's class.
    """
    scene = scenes.compose(scenes.TRAIN, index)
    image, geometry = letterbox.letterbox(scene.image, net.INPUT_WH)
    classes = class_map(scene)
    if geometry.scale != 1:
        resized_wh = [round(side * geometry.scale) for side in classes.shape[::-1]]
        classes = cv2.resize(classes, resized_wh, interpolation=cv2.INTER_NEAREST_EXACT)
    placed = np.full(image.shape[:2], BACKGROUND, np.uint8)
    left, top = geometry.left, geometry.top
    placed[top : top + classes.shape[0], left : left + classes.shape[1]] = classes
    return np.ascontiguousarray(image.transpose(2, 0, 1)), placed


#: Returns a training sample of a task: an image (3, h, w) uint8, and its truth.
SAMPLES = {'classify': training_crops, 'semantic': training_map}
