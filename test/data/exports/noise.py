# SPDX-License-Identifier: Apache-2.0
"""The images that the recordings of depth models and image processors were made from."""

import zlib

import numpy as np

SIZES = ((517, 333), (1920, 1080), (333, 517))


def picture(size):
    """Return RGB noise of two scales, uint8 (height, width, 3)."""
    width, height = size
    rng = np.random.default_rng(11)
    coarse = rng.integers(20, 236, (height // 8 + 1, width // 8 + 1, 3))
    fine = rng.integers(-40, 41, (height, width, 3))
    return (coarse.repeat(8, 0).repeat(8, 1)[:height, :width] + fine).clip(0, 255).astype(np.uint8)


def checksums():
    """Return the CRC-32 of each picture, by the key that a recording has for it."""
    return {
        f'crc {width}x{height}': np.uint32(zlib.crc32(picture((width, height))))
        for width, height in SIZES
    }
