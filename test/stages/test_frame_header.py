"""What changes from one frame to the next is in the header that the kernels read."""

import dataclasses

import numpy as np
from reference_images import noise_frame

from trt_perception.config import Thresholds
from trt_perception.images.letterbox import Letterbox
from trt_perception.stages.frame_header import FrameHeader

CHANGED = {'confidence': 0.5, 'iou': 0.6, 'class_ids': (2, 33)}


def written(thresholds):
    frame, _ = noise_frame(np.random.default_rng(1), 'bgr8', 8, 6)
    header = FrameHeader(40)
    content = np.zeros(header.size, np.uint8)
    header.write(content, frame, Letterbox.fit((8, 6), (16, 16), 'letterbox'), thresholds)
    return content.tobytes()


def test_each_threshold_is_written():
    contents = {written(Thresholds(**{name: value})) for name, value in CHANGED.items()}
    assert {field.name for field in dataclasses.fields(Thresholds)} == set(CHANGED)
    assert len({written(Thresholds()), *contents}) == 1 + len(CHANGED)
