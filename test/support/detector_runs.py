"""Frames through a detector as fast as it takes them."""

import time

from trt_perception.camera import Camera
from trt_perception.config import Thresholds
from trt_perception.detector import Detector


def published_in_order(pipeline, frames, count):
    """Return (index, detections) of so many frames, which are taken in turn; none may fail."""
    taken, published, faults = [-1], [], []

    def read(index):
        taken.append(index)
        return frames[index % len(frames)]

    camera = Camera(
        '',
        read,
        lambda index, frame, detections: published.append((index, detections)),
        faults.append,
        Thresholds(),
    )
    detector = Detector([pipeline], [camera], faulted=faults.append)
    detector.start()
    deadline = time.monotonic() + 30
    for index in range(count):
        detector.submit(0, index)
        while taken[-1] != index and time.monotonic() < deadline:
            time.sleep(1e-4)
    detector.stop()
    assert faults == []
    assert detector.statistics()[0].published == count
    assert [index for index, _ in published] == list(range(count))
    return published
