# SPDX-License-Identifier: Apache-2.0
"""Sources of digits and backgrounds, and their splits.

No scan and no photograph is in two splits. Views of one scene are never in two splits either: the
only stereo pair in scikit-image is unused, because its licence is not stated there.
"""

import functools
import pathlib
from typing import Literal

import cv2
import numpy as np
import skimage
from sklearn.datasets import load_digits

Split = Literal['train', 'dev', 'eval']

# Licences are as stated in scikit-image's docstrings of the loaders. Unused: motorcycle_left/right
# (Middlebury stereo, no licence stated), page and moon (no licence stated), text (handwriting with
# unlabelled digit-like strokes), drawings and binary masks.
PHOTOGRAPHS: dict[Split, dict[str, str]] = {
    'train': {
        'astronaut.png': 'public domain (NASA)',
        'hubble_deep_field.jpg': 'public domain (NASA, ESA)',
        'ihc.png': 'no known copyright restrictions (CMMI)',
        'retina.jpg': 'CC0 1.0 (Mikael Haggstrom)',
        'camera.png': 'CC0 (Lav Varshney)',
        'brick.png': 'CC0 (CC0Textures)',
        'grass.png': 'CC0 (linolafett)',
        'gravel.png': 'CC0 (CC0Textures)',
        'cell.png': 'CC0 (Paul Mueller et al.)',
        'coins.png': 'no known copyright restrictions (Brooklyn Museum)',
    },
    'dev': {
        'clock_motion.png': 'public domain (Stefan van der Walt)',
    },
    'eval': {
        'chelsea.png': 'CC0 (Stefan van der Walt)',
        'coffee.png': 'CC0 (Rachel Michetti)',
        'rocket.jpg': 'public domain (SpaceX)',
    },
}

# Split by position in the file, because adjacent scans often share a writer. A shuffled split
# would put most writers into several splits and improve the figures wrongly.
SCANS: dict[Split, range] = {
    'train': range(1197),
    'dev': range(1197, 1297),
    'eval': range(1297, 1797),
}


@functools.cache
def photographs(split: Split) -> list[np.ndarray]:
    """Return the photographs of a split, each (h, w, 3) uint8 RGB, sorted by file name."""
    folder = pathlib.Path(skimage.__file__).parent / 'data'
    images = []
    for name in sorted(PHOTOGRAPHS[split]):
        bgr = cv2.imread(str(folder / name), cv2.IMREAD_COLOR)
        if bgr is None:
            raise FileNotFoundError(f'scikit-image must bundle data/{name} (not readable)')
        images.append(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB))
    return images


@functools.cache
def scans_by_digit(split: Split) -> list[np.ndarray]:
    """Return a split's scans: ten arrays (n, 8, 8) float32 in [0, 1], one per digit."""
    digits = load_digits()
    index = np.asarray(SCANS[split])
    ink = (digits.images[index] / 16.0).astype(np.float32)
    labels = digits.target[index]
    return [ink[labels == digit] for digit in range(10)]
