# SPDX-License-Identifier: Apache-2.0
"""Draw results of the demo's models for the pages: scripts/run scripts/pictures/demo.py

Runs the models that scripts/demo starts on its scenes, and puts what `plot()` returns side by
side. Writes demo.jpg (boxes in four scenes) and tasks.jpg (a result of each other task) to
docs/images, or to the folder that an argument names.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import cv2
import numpy as np

import trt_perception as tp

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'scripts'))

from demo_image_tasks import digit_crop  # noqa: E402

SCENES, TRUTH = ROOT / 'demo' / 'scenes', ROOT / 'demo' / 'truth.json'
DETECT_SCENES = ('scene_041.jpg', 'scene_038.jpg', 'scene_020.jpg', 'scene_019.jpg')
DETECT_SIZE_WH = (600, 450)
TASK_SCENE = 'scene_034.jpg'
#: The part of the scene in the picture of the tasks.
ROWS, COLUMNS = slice(110, 590), slice(20, 548)
CROPPED_DIGITS = ('4', '5', '6', '8')
CROP_SIZE = 240


def main():
    folder = Path(sys.argv[1]) if sys.argv[1:] else ROOT / 'docs' / 'images'
    for name, picture, quality in (
        ('demo', detect_picture(), 80),
        ('tasks', tasks_picture(), 70),
    ):
        path = folder / f'{name}.jpg'
        cv2.imwrite(str(path), picture, [cv2.IMWRITE_JPEG_QUALITY, quality])
        print(f'wrote {path}')


def detect_picture():
    """Return four scenes with their boxes."""
    pictures = [
        cv2.resize(plotted('digits', read(scene)), DETECT_SIZE_WH, interpolation=cv2.INTER_AREA)
        for scene in DETECT_SCENES
    ]
    return grid(pictures, columns=2, gap=6)


def tasks_picture():
    """Return the results of six tasks on a part of one scene, and on crops of its digits."""
    scene = read(TASK_SCENE)
    part = scene[ROWS, COLUMNS]
    objects = [
        plotted(f'digits_{task}', scene)[ROWS, COLUMNS] for task in ('segment', 'obb', 'pose')
    ]
    crops = [classified(digit_crop(scene, box_of(digit))) for digit in CROPPED_DIGITS]
    maps = [plotted(model, part) for model in ('digits_semantic', 'depth_tiny')]
    return grid([*objects, grid(crops, columns=2, gap=0), *maps], columns=3, gap=8)


def read(scene):
    return cv2.imread(str(SCENES / scene))


def plotted(model_name, bgr):
    """Return a copy of an image with the result of a shipped model."""
    with tp.load(ROOT / 'models' / f'{model_name}.onnx') as model:
        return model(bgr).plot()


def box_of(digit):
    """Return the box (x, y, width, height) of the largest such digit in the scene."""
    truth = json.loads(TRUTH.read_text(encoding='utf-8'))
    [image_id] = [row['id'] for row in truth['images'] if row['file_name'] == TASK_SCENE]
    [category] = [row['id'] for row in truth['categories'] if row['name'] == digit]
    boxes = [
        row['bbox']
        for row in truth['annotations']
        if (row['image_id'], row['category_id']) == (image_id, category)
    ]
    return max(boxes, key=lambda box: box[2] * box[3])


def classified(crop):
    """Return an enlarged crop with its classes, as wide as a half of the other pictures."""
    large = cv2.resize(crop, (CROP_SIZE, CROP_SIZE), interpolation=cv2.INTER_CUBIC)
    missing = (COLUMNS.stop - COLUMNS.start) // 2 - CROP_SIZE
    picture = plotted('digits_classify', large)
    return cv2.copyMakeBorder(picture, 0, 0, missing, 0, cv2.BORDER_CONSTANT)


def grid(pictures, columns, gap):
    """Return pictures of one size in rows, with white gaps between them."""
    padded = [
        cv2.copyMakeBorder(picture, 0, gap, 0, gap, cv2.BORDER_CONSTANT, value=(255,) * 3)
        for picture in pictures
    ]
    rows = [np.hstack(padded[start : start + columns]) for start in range(0, len(padded), columns)]
    joined = np.vstack(rows)
    return joined[: joined.shape[0] - gap, : joined.shape[1] - gap]


if __name__ == '__main__':
    main()
