"""Samples for the models that describe the whole image: crops of digits, and tiles with classes.

All samples come from the detector's scenes. A crop shows one digit, and a tile shows a part of a
scene in which every pixel has a class.
"""

import multiprocessing

import cv2
import letterbox
import numpy as np
import scenes

CROP_SIDE = 64  # width and height of the classifier's input
TILE_SIDE = 160
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
    """Return a crop of each digit of training scene `index`, and the class of the digit.

    Returns:
        (n, CROP_SIDE, CROP_SIDE, 3) uint8, (n,) int64.
    """
    scene = scenes.compose(scenes.TRAIN, index)
    rng = np.random.default_rng((scenes.TRAIN.seed, index, 1))
    crops = []
    for box in scene.xyxy:
        right, down = rng.uniform(-0.08, 0.08, 2)
        crop = digit_crop(scene.image, box, rng.uniform(0.05, 0.25), (right, down))
        crops.append(letterbox.letterbox(crop, (CROP_SIDE, CROP_SIDE))[0])
    return np.stack(crops), scene.classes


def training_tiles(index: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a tile near each digit of training scene `index`, and one at a random place.

    Returns:
        (n + 1, TILE_SIDE, TILE_SIDE, 3) uint8, and the classes of the pixels
        (n + 1, TILE_SIDE, TILE_SIDE) uint8.
    """
    scene = scenes.compose(scenes.TRAIN, index)
    rng = np.random.default_rng((scenes.TRAIN.seed, index, 2))
    classes = class_map(scene)
    size = np.array(scene.image.shape[1::-1])
    centres = [*((box[:2] + box[2:]) / 2 for box in scene.xyxy), rng.uniform(0, size)]
    tiles, maps = [], []
    for centre in centres:
        corner = centre - TILE_SIDE / 2 + rng.uniform(-60, 60, 2)
        x, y = np.clip(corner, 0, size - TILE_SIDE).astype(int)
        tiles.append(scene.image[y : y + TILE_SIDE, x : x + TILE_SIDE])
        maps.append(classes[y : y + TILE_SIDE, x : x + TILE_SIDE])
    return np.stack(tiles), np.stack(maps)


SAMPLES = {'classify': training_crops, 'semantic': training_tiles}


def all_training_samples(task: str, count: int, workers: int) -> list[np.ndarray]:
    """Return images and truth of the first `count` training scenes.

    Args:
        task: a key of SAMPLES.
        count: number of scenes.
        workers: number of processes that compose scenes.
    """
    with multiprocessing.get_context('spawn').Pool(workers, cv2.setNumThreads, (0,)) as pool:
        parts = pool.map(SAMPLES[task], range(count), chunksize=16)
    return [np.concatenate(kind) for kind in zip(*parts, strict=True)]
