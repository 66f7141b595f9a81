# SPDX-License-Identifier: Apache-2.0
"""Run detect_images and read its results."""

import json

import cv2
import numpy as np
import pytest

from support.models.tiny_model import expected_detections
from trt_perception.offline.tools import detect_images

SIZE = (320, 240)
FILES = {'detections.json', 'results.json', 'summary.json'}
COLORS = {'a.png': (255, 0, 0), 'b.jpg': (0, 255, 128), 'black.bmp': (0, 0, 0)}


def run_detect_images(*arguments):
    """Return the exit code, including argparse's exit codes."""
    try:
        return detect_images.main([str(argument) for argument in arguments])
    except SystemExit as end:
        return end.code


def picture(rgb):
    return np.full((SIZE[1], SIZE[0], 3), rgb[::-1], np.uint8)


def detections(folder):
    """Return {file name: [(class name, score, xywh)]}, sorted by falling score."""
    content = json.loads((folder / 'detections.json').read_text())
    names = {category['id']: category['name'] for category in content['categories']}
    files = {image['id']: image['file_name'] for image in content['images']}
    result = {name: [] for name in files.values()}
    for row in content['annotations']:
        entry = names[row['category_id']], row['score'], row['bbox']
        result[files[row['image_id']]].append(entry)
    return result


def as_expected(found, rgb, **options):
    rows = [
        (name, score, [x - w / 2, y - h / 2, w, h])
        for name, score, (x, y, w, h) in expected_detections(rgb, SIZE, **options)
    ]
    assert [row[0] for row in found] == [row[0] for row in rows]
    for one, other in zip(found, rows, strict=True):
        assert one[1] == pytest.approx(other[1], abs=0.02)  # JPEG changes colours a little
        assert one[2] == pytest.approx(other[2], abs=0.01)


def drawn(path, original):
    """Return whether a picture is the original with detections drawn on top."""
    found = cv2.imread(str(path))
    assert found.shape == original.shape
    changed = np.abs(found.astype(int) - original).max(axis=2) > 60
    return 0.001 < changed.mean() < 0.3
