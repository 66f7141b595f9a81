# SPDX-License-Identifier: Apache-2.0
"""Tests of header templates: a stored template equals a newly computed header."""

import numpy as np

from support.oracles.reference_images import random_frame
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.cuda.header_templates import HeaderTemplates
from trt_perception.stages.frame_header import FrameHeaderWriter


def test_stored_headers_equal_new_headers():
    header, preprocessing = FrameHeaderWriter(40), Preprocessing((64, 48), resize='stretch')
    headers = HeaderTemplates(header, preprocessing)
    rng, seen = np.random.default_rng(8), set()
    kinds = [(encoding, width) for encoding in ('bgr8', 'mono16') for width in (8, 20)]
    frames = [random_frame(rng, encoding, width, 10, 0) for encoding, width in kinds]
    thresholds = [Thresholds(step / 200, class_ids=(step % 40,)) for step in range(200)]
    # Use more combinations than are stored, several times and in random order.
    for _ in range(3000):
        frame = frames[int(rng.integers(len(frames)))]
        own = thresholds[int(rng.integers(len(thresholds)))]
        letterbox, content, _ = headers.template(frame, own)
        expected = Letterbox.fit((frame.width, frame.height), (64, 48), 'stretch')
        assert letterbox == expected
        assert content.tobytes() == header.content(frame, expected, own).tobytes()
        seen.add(content.tobytes())
    assert len(seen) > 500
    assert len(headers._templates) <= 256


def test_only_bilinear_sampling_without_antialiasing_skips_rows():
    frame = random_frame(np.random.default_rng(1), 'bgr8', 1920, 1080)
    for values, skips in (
        ({}, True),
        ({'antialias': True}, False),
        ({'filter': 'bicubic'}, False),
        ({'resize': 'center_crop'}, True),
        ({'resize': 'center_crop', 'filter': 'bicubic'}, False),
    ):
        preprocessing = Preprocessing((640, 360), **values)
        rows = HeaderTemplates(FrameHeaderWriter(1), preprocessing).template(frame, Thresholds())
        assert (rows.rows is not None) == skips
