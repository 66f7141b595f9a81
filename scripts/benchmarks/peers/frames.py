"""The frames of all sides: the demo's pictures, scaled to 1080p."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

SCENES = Path(__file__).resolve().parents[3] / 'demo' / 'scenes'
WIDTH, HEIGHT = 1920, 1080


COUNT = 8


def scenes(count=COUNT):
    """Return the first ``count`` of 8 pictures: uint8 (count, 1080, 1920, 3), BGR."""
    paths = sorted(SCENES.glob('*.jpg'))
    chosen = paths[:: len(paths) // COUNT][:count]
    pictures = [cv2.resize(cv2.imread(str(path)), (WIDTH, HEIGHT)) for path in chosen]
    return np.stack(pictures)
