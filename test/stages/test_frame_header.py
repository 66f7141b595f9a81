# SPDX-License-Identifier: Apache-2.0
"""Values that change with each frame are in the header that the kernels read."""

import dataclasses

import numpy as np
import pytest

from support.oracles.reference_images import random_frame
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.thresholds import FrameParameters, Thresholds
from trt_perception.stages.frame_header import FrameHeaderWriter

#: Values that are not the defaults.
CHANGED_THRESHOLDS = {
    **{field.name: 0.125 for field in dataclasses.fields(FrameParameters)},
    'class_ids': (2, 33),
}


def written(thresholds, pixels=0):
    frame = random_frame(np.random.default_rng(1), 'bgr8', 8, 6)
    header = FrameHeaderWriter(40)
    content = np.zeros(header.size, np.uint8)
    geometry = Letterbox.fit((8, 6), (16, 16), 'letterbox')
    header.write(content, header.content(frame, geometry, thresholds), pixels)
    return content.tobytes()


def test_each_threshold_changes_the_header():
    contents = {written(Thresholds(**{name: value})) for name, value in CHANGED_THRESHOLDS.items()}
    # Only the host reads these values.
    unread = {'wanted_topics', 'sky', 'focal_length_px', 'normalised_focal_lengths'}
    names = {field.name for field in dataclasses.fields(Thresholds)} - unread
    assert names == set(CHANGED_THRESHOLDS)
    assert len({written(Thresholds()), *contents}) == 1 + len(CHANGED_THRESHOLDS)


@pytest.mark.parametrize('pixels', [0, 256, 260, -(2**40) - 4, 2**40 + 8])
def test_pixel_address_changes_nothing_else(pixels):
    plain, content = written(Thresholds()), written(Thresholds(), pixels)
    assert int.from_bytes(content[40:48], 'little', signed=True) == pixels
    assert content[:40] + content[48:] == plain[:40] + plain[48:]


def test_new_header_replaces_the_previous_header():
    frame = random_frame(np.random.default_rng(1), 'bgr8', 8, 6)
    header = FrameHeaderWriter(70)
    geometry = Letterbox.fit((8, 6), (16, 16), 'letterbox')
    plain = header.content(frame, geometry, Thresholds())
    target = np.zeros(header.size, np.uint8)
    for thresholds in (Thresholds(class_ids=(0, 33, 69)), Thresholds()):
        header.write(target, header.content(frame, geometry, thresholds), 0)
    assert target.tobytes() == plain.tobytes() + bytes(header.size - plain.size)
