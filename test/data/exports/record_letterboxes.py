# SPDX-License-Identifier: Apache-2.0
"""Record the sizes that exporters' own letterboxes give images.

letterboxes.npz has, for each exporter, rows with width and height of the image, of the network's
input and of the resized image. The images include those whose sides end in half a pixel, and those
where an error of a float decides.

    python3 -m pip install ultralytics==8.4.190 transformers==5.24.0
    python3 -m pip install --no-deps libreyolo==1.6.0
    python3 test/data/exports/record_letterboxes.py --out test/data/exports
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from libreyolo.preprocess.letterbox import letterbox_geometry
from libreyolo.preprocess.yolox import preprocess_numpy
from transformers.image_transforms import get_size_with_aspect_ratio
from transformers.image_utils import get_image_size_for_max_height_width
from ultralytics.data.augment import LetterBox

NETWORKS = ((640, 640), (416, 416), (640, 384), (1333, 800), (320, 256))
#: The last two lose a row of pixels to an error of a float.
IMAGES = (
    *((300, 180), (1280, 721), (721, 1280), (1920, 1080), (640, 479)),
    *((2774, 1521), (101, 1625)),
)


def ultralytics(width, height, network):
    letterbox = LetterBox(new_shape=network[::-1], auto=False)
    return letterbox.get_params({'img': np.zeros((height, width, 3), np.uint8)})['new_unpad']


def yolox(width, height, network):
    """Return the size that YOLOX's preprocessing gives a white image on its grey padding."""
    white = np.full((height, width, 3), 255, np.uint8)
    pixels, _ = preprocess_numpy(white, network[::-1])
    inside = np.asarray(pixels)[0] > 200
    return int(inside.any(0).sum()), int(inside.any(1).sum())


def libreyolo(width, height, network):
    _, new_height, new_width, *_ = letterbox_geometry(height, width, network[1], network[0], None)
    return new_width, new_height


def shortest_edge(width, height, network):
    size = get_size_with_aspect_ratio((height, width), min(network), max(network))
    return size[::-1]


def max_height_width(width, height, network):
    return get_image_size_for_max_height_width((height, width), network[1], network[0])[::-1]


EXPORTERS = (ultralytics, yolox, libreyolo, shortest_edge, max_height_width)


def rows_of(exporter):
    rng = np.random.default_rng(3)
    images = [*IMAGES, *rng.integers(16, 2500, (60, 2)).tolist()]
    for network in NETWORKS:
        # "shortest_edge" gives portrait images a portrait input.
        turned = exporter is shortest_edge
        for width, height in images:
            found = network[::-1] if turned and height > width else network
            yield width, height, *found, *exporter(width, height, found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--out', type=Path, required=True, help='folder to write into')
    arguments = parser.parse_args()
    content = {exporter.__name__: np.array(list(rows_of(exporter))) for exporter in EXPORTERS}
    np.savez_compressed(arguments.out / 'letterboxes.npz', **content)


if __name__ == '__main__':
    main()
