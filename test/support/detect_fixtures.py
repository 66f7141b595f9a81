# SPDX-License-Identifier: Apache-2.0
"""Provide input files for tests of detect_images: pytest_plugins = ['support.detect_fixtures']."""

import cv2
import numpy as np
import pytest

from support.detect_runs import COLORS, SIZE, picture
from support.models.tiny_model import write_tiny_model


@pytest.fixture
def tiny(tmp_path):
    return write_tiny_model(tmp_path / 'tiny.onnx')


@pytest.fixture
def pictures(tmp_path):
    """Return a folder with a picture of each colour."""
    folder = tmp_path / 'images'
    folder.mkdir()
    for name, rgb in COLORS.items():
        cv2.imwrite(str(folder / name), picture(rgb))
    return folder


@pytest.fixture
def clip(tmp_path):
    """Return a video of 12 frames: four red, four green, four blue."""
    path = tmp_path / 'colors.avi'
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*'MJPG'), 12.5, SIZE)
    assert writer.isOpened()
    for number in range(12):
        writer.write(picture(np.eye(3, dtype=int)[number // 4] * 255))
    writer.release()
    return path
