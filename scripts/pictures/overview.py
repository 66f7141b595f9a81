# SPDX-License-Identifier: Apache-2.0
"""Put three results side by side for the README: scripts/run scripts/pictures/overview.py

The left picture shows masks that a shipped model finds on a scene of the demo. The others are
docs/images/tracks.jpg and the left half of docs/images/markers.jpg. Writes
docs/images/overview.jpg, or the file that an argument names.
"""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np

import trt_perception as tp

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / 'docs' / 'images'
MODEL, SCENE = ROOT / 'models' / 'digits_segment.onnx', ROOT / 'demo' / 'scenes' / 'scene_026.jpg'
SIZE_WH = (480, 360)


def main():
    path = Path(sys.argv[1]) if sys.argv[1:] else IMAGES / 'overview.jpg'
    with tp.load(MODEL) as model:
        masks = model(cv2.imread(str(SCENE))).plot()
    tracks, markers = (cv2.imread(str(IMAGES / f'{name}.jpg')) for name in ('tracks', 'markers'))
    pictures = masks, tracks, markers[:, : markers.shape[1] // 2]
    small = [cv2.resize(picture, SIZE_WH, interpolation=cv2.INTER_AREA) for picture in pictures]
    cv2.imwrite(str(path), np.hstack(small), [cv2.IMWRITE_JPEG_QUALITY, 85])
    print(f'wrote {path}')


if __name__ == '__main__':
    main()
