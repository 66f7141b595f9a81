# SPDX-License-Identifier: Apache-2.0
"""Draw the results of shipped models onto their images: scripts/run scripts/pictures/results.py

Runs the models in Python on a scene of the demo, and puts what `plot()` returns side by side:
boxes, masks, keypoints and a class map. Writes docs/images/results.jpg, or the file that
an argument names.
"""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np

import trt_perception as tp

ROOT = Path(__file__).resolve().parents[2]
SCENE = ROOT / 'demo' / 'scenes' / 'scene_046.jpg'
MODELS = ('digits', 'digits_segment', 'digits_pose', 'digits_semantic')


def main():
    path = Path(sys.argv[1]) if sys.argv[1:] else ROOT / 'docs' / 'images' / 'results.jpg'
    bgr = cv2.imread(str(SCENE))
    pictures = [plotted(name, bgr) for name in MODELS]
    rows = [np.hstack(pictures[:2]), np.hstack(pictures[2:])]
    cv2.imwrite(str(path), np.vstack(rows), [cv2.IMWRITE_JPEG_QUALITY, 85])
    print(f'wrote {path}')


def plotted(name, bgr):
    """Return a copy of an image with the result of a shipped model."""
    with tp.load(ROOT / 'models' / f'{name}.onnx') as model:
        return model(bgr).plot()


if __name__ == '__main__':
    main()
