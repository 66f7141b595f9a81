# SPDX-License-Identifier: Apache-2.0
"""Run frames through a pool as fast as possible."""

import itertools
import time

from support.camera_callbacks import FaultCallback, camera_of
from trt_perception.errors import ImageError
from trt_perception.model.thresholds import Thresholds
from trt_perception.scheduling.worker_pool import WorkerPool

#: Time limit of a run in seconds. It is long, because the machine may be busy.
DEADLINE_S = 200


def published_in_order(pipeline, frames, count):
    """Send frames in turn; return (index of the frame, detections) of ``count`` results in order.

    No frame may fail.
    """
    taken, published, faults = [-1], [], []

    def read(index):
        taken.append(index)
        return frames[index % len(frames)]

    camera = camera_of(
        '',
        read,
        lambda index, frame, detections: published.append((index, detections)),
        faults.append,
        Thresholds(),
    )
    pool = WorkerPool([pipeline], [camera], fault_handler=FaultCallback(faults.append))
    pool.start()
    deadline = time.monotonic() + DEADLINE_S
    for index in range(count):
        pool.submit(0, index)
        while taken[-1] != index and time.monotonic() < deadline:
            time.sleep(1e-4)
    pool.stop()
    assert faults == []
    assert pool.statistics()[0].published == count
    assert [index for index, _ in published] == list(range(count))
    return published


def found_by_cameras(pipelines, sources, thresholds, count, bad=(), place=lambda frame: frame):
    """Send frames of several cameras to one pool at the same time, as fast as possible.

    Args:
        pipelines: pipelines, to which the cameras are assigned in turn.
        sources: frames of each camera, which the camera sends in turn.
        thresholds: thresholds of each camera.
        count: smallest number of results per camera.
        bad: cameras for which reading every third message fails.
        place: returns a copy of a frame in the kind of memory that the test uses.

    Returns:
        The detections of each camera as (index of the frame, Detections), and the statistics of
        cameras and pipelines. Counts and order are checked.
    """
    found, faults = [[] for _ in sources], []

    def camera(index):
        taken = itertools.count()

        def read(number):
            if next(taken) % 3 == 1 and index in bad:
                raise ImageError('bad_step', 'image', 'bad')
            return place(sources[index][number % len(sources[index])])

        def publish(number, frame, detections):
            found[index].append((number, detections))

        return camera_of(
            str(index),
            read,
            publish,
            lambda _: None,
            thresholds[index],
            pipeline=index % len(pipelines),
        )

    pool = WorkerPool(
        pipelines,
        [camera(index) for index in range(len(sources))],
        fault_handler=FaultCallback(faults.append),
    )
    pool.start()
    deadline = time.monotonic() + DEADLINE_S
    number = 0
    while min(map(len, found)) < count and not faults and time.monotonic() < deadline:
        for index in range(len(sources)):
            pool.submit(index, number)
        number += 1
        time.sleep(2e-4)
    pool.stop()
    assert faults == []
    for index, part in enumerate(pool.statistics()):
        numbers = [number for number, _ in found[index]]
        assert len(numbers) >= count
        assert part.received == number
        check_counts(part, numbers, bad=index in bad)
    results = [
        [(number % len(frames), detections) for number, detections in each]
        for frames, each in zip(sources, found, strict=True)
    ]
    return results, pool.statistics(), pool.pipeline_statistics()


def check_counts(part, numbers, *, bad):
    """Check a camera's counts against the ascending numbers of its published results."""
    assert numbers == sorted(set(numbers))
    assert (part.published, part.in_flight, part.failed) == (len(numbers), 0, 0)
    assert part.received == part.published + sum(part.dropped.values())
    assert ('bad_step' in part.dropped) == bad
    assert set(part.dropped) <= {'replaced', 'inactive', 'bad_step'}
