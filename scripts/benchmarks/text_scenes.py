# SPDX-License-Identifier: Apache-2.0
"""Draw images of single characters with known boxes, for detectors of characters.

The fonts are those of matplotlib: DejaVu, STIX and Computer Modern. A number gives the same image
each time, with the same releases of NumPy, OpenCV, Pillow and matplotlib.
"""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

SIZES_WH = ((300, 180), (416, 416), (640, 480), (480, 640))
#: Sides of the characters for an image whose longer side is 416 pixels.
CHARACTER_PIXELS = (40, 80)
#: Without characters that other characters contain, such as I and l.
CHARACTERS = 'ABCDEFGHJKLMNPQRSTUVWXYZabdefghkmnpqrstuwxyz23456789'
FONTS = (
    *('DejaVuSans', 'DejaVuSans-Bold', 'DejaVuSerif', 'DejaVuSerif-Bold', 'DejaVuSansMono-Bold'),
    *('STIXGeneral', 'STIXGeneralBolIta', 'cmr10'),
)
MARGIN = 6


def scene(number):
    """Return an image and the boxes of its characters.

    Characters do not overlap. A box is the smallest one around all pixels with at least half of
    the character's colour.

    Args:
        number: seed of the image.

    Returns:
        the image, uint8 (height, width, 3) in BGR, and the boxes, int (N, 4): left, top, width
        and height in pixels.
    """
    random = np.random.default_rng(number)
    size_wh = SIZES_WH[random.integers(len(SIZES_WH))]
    picture = background(random, size_wh)
    taken = np.zeros(size_wh[::-1], bool)
    boxes = []
    for _ in range(random.integers(3, 8)):
        pixels = random.uniform(*CHARACTER_PIXELS) * max(size_wh) / 416
        opacity = character(random, int(pixels))
        height, width = opacity.shape
        left, top = random.integers(MARGIN, np.subtract(size_wh, (width, height)) - MARGIN)
        around = (
            slice(top - MARGIN, top + height + MARGIN),
            slice(left - MARGIN, left + width + MARGIN),
        )
        if taken[around].any():
            continue
        taken[around] = True
        below = picture[top : top + height, left : left + width]
        below += (color_unlike(random, below) - below) * opacity[..., None]
        boxes.append((left, top, width, height))
    picture += random.normal(0, random.uniform(0, 4), picture.shape)
    return np.clip(picture, 0, 255).astype(np.uint8), np.array(boxes)


def background(random, size_wh):
    """Return coloured clouds of three sizes with thin lines: float32 (height, width, 3)."""
    picture = np.zeros((*size_wh[::-1], 3), np.float32)
    for cells, weight in ((2, 0.5), (random.integers(3, 8), 0.3), (random.integers(10, 40), 0.2)):
        colors = random.uniform(0, 255, (cells, cells, 3)).astype(np.float32)
        picture += weight * cv2.resize(colors, size_wh, interpolation=cv2.INTER_LINEAR)
    for _ in range(random.integers(0, 8)):
        ends = (random.uniform(0, 1, (2, 2)) * size_wh).astype(int).tolist()
        cv2.line(picture, *ends, random.uniform(0, 255, 3).tolist(), 1, cv2.LINE_AA)
    return picture


def character(random, pixels):
    """Return the opacity of a rotated character, 0 to 1: float32 (height, width)."""
    file = Path(matplotlib.get_data_path(), 'fonts', 'ttf', f'{random.choice(FONTS)}.ttf')
    font = ImageFont.truetype(str(file), pixels)
    image = Image.new('L', (2 * pixels, 2 * pixels))
    text = random.choice(list(CHARACTERS))
    ImageDraw.Draw(image).text((pixels, pixels), text, 255, font, 'mm')
    rotated = image.rotate(random.uniform(-35, 35), Image.Resampling.BICUBIC)
    opacity = np.asarray(rotated, np.float32) / 255
    rows, columns = np.nonzero(opacity >= 0.5)
    return opacity[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]


def color_unlike(random, below):
    """Return a random colour whose brightness differs from the mean of an area by 80 of 255."""
    weights = (0.114, 0.587, 0.299)
    while True:
        color = random.uniform(0, 255, 3)
        if abs((color - below.mean((0, 1))) @ weights) > 80:
            return color.astype(np.float32)


def write_scenes(folder, numbers):
    """Write an image for each number, and truth.json with COCO annotations. Return its path.

    Args:
        folder: new folder for the files.
        numbers: numbers of the images.
    """
    folder.mkdir(parents=True)
    content = {'images': [], 'annotations': [], 'categories': [{'id': 1, 'name': 'character'}]}
    for number in numbers:
        picture, boxes = scene(number)
        name = f'{number:05}.png'
        if not cv2.imwrite(str(folder / name), picture):
            raise OSError(f'{folder / name} cannot be written')
        height, width = picture.shape[:2]
        content['images'].append(
            {'id': number, 'file_name': name, 'width': width, 'height': height}
        )
        for box in boxes.tolist():
            content['annotations'].append(
                {
                    'id': len(content['annotations']) + 1,
                    'image_id': number,
                    'category_id': 1,
                    'bbox': box,
                    'area': box[2] * box[3],
                    'iscrowd': 0,
                }
            )
    path = folder / 'truth.json'
    path.write_text(json.dumps(content), encoding='utf-8')
    return path
