# SPDX-License-Identifier: Apache-2.0
"""The frames of all sides: the demo's pictures, scaled to 1080p."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

SCENES = Path(__file__).resolve().parents[3] / 'demo' / 'scenes'
WIDTH, HEIGHT = 1920, 1080


COUNT = 8


def picture_files(folder=SCENES):
    """Return the files of at most 8 pictures, spread over the folder."""
    paths = sorted(path for path in folder.iterdir() if path.suffix in ('.jpg', '.png'))
    return paths[:: max(1, len(paths) // COUNT)][:COUNT]


def scenes(count=COUNT, folder=SCENES):
    """Return the first ``count`` of these pictures: uint8 (n, 1080, 1920, 3), BGR."""
    paths = picture_files(folder)[:count]
    return np.stack([cv2.resize(cv2.imread(str(path)), (WIDTH, HEIGHT)) for path in paths])
