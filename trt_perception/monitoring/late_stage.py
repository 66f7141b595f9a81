# SPDX-License-Identifier: Apache-2.0
"""Finds the stage that cannot keep up if images of a camera are lost or replaced.

The stages of an image: the transport with the queue of a DDS participant, the intake thread that
takes the image, the worker that reads it and publishes its results, and the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

# A stage that is idle for more than half of the time is not the limit. The share of a worker
# lacks the time for polling and scheduling, so it stays below 1.
_BUSY_SHARE: Final = 0.5
# Images queue in the transport if they wait longer than half of the time between two images.
# Without load, 1080p images at 30 Hz, sent every 33 ms, wait 6 ms in the transport.
_LATE_TRANSPORT_SHARE: Final = 0.5
# The queue of the intake keeps only the newest image by default. If the intake is too slow, it
# takes images of any age up to a period, on average of half a period. Without load, images wait
# less than 1 ms.
_LATE_INTAKE_SHARE: Final = 0.25
# Longer and negative delays come from another clock, or from missing time stamps.
_MAX_DELAY_S: Final = 60.0

# Each node has an interpreter, so several nodes process more images.
_MORE_NODES: Final = (
    'if the node has several cameras, distribute them to more nodes (detect.launch.py nodes:=2)'
)

Stage = Literal['', 'transport', 'intake', 'worker', 'model']


@dataclass(frozen=True)
class StageLoad:
    """How late or busy the stages were in a time window. Unknown values are 0.

    Attributes:
        period_s: mean seconds between two images that the camera sent.
        transport_s: mean seconds from publication to reception by the middleware.
        intake_s: mean seconds from reception to the take.
        worker_share: share of the time in which the worker read images or published results.
        model_share: share of the time in which the model computed, as a mean over its slots.
        gpu_decodes_jpeg: whether the GPU decodes JPEG images.
    """

    period_s: float
    transport_s: float = 0.0
    intake_s: float = 0.0
    worker_share: float = 0.0
    model_share: float = 0.0
    gpu_decodes_jpeg: bool = False


def mean_delay_s(total_ns: int, images: int) -> float:
    """Return the mean delay of images in seconds; 0 if the time stamps cannot be compared."""
    mean_s = total_ns * 1e-9 / max(1, images)
    return mean_s if 0 <= mean_s <= _MAX_DELAY_S else 0.0


def late_stage(load: StageLoad, *, were_taken: bool) -> Stage:
    """Return the stage that cannot keep up; empty if no stage is late or busy.

    Args:
        load: load of the stages.
        were_taken: whether the intake took the missing images, and newer images replaced them.
    """
    worker_is_busier = load.worker_share > load.model_share
    is_busy = max(load.worker_share, load.model_share) >= _BUSY_SHARE
    if were_taken and is_busy:
        return 'worker' if worker_is_busier else 'model'
    intake_is_late = load.intake_s >= _LATE_INTAKE_SHARE * load.period_s
    if load.transport_s >= _LATE_TRANSPORT_SHARE * load.period_s and (
        load.transport_s > load.intake_s or not intake_is_late
    ):
        return 'transport'
    if not intake_is_late:
        return ''
    # A busy worker holds the interpreter's lock, so the intake thread waits for the worker.
    return 'worker' if is_busy and worker_is_busier else 'intake'


def fix_of_stage(stage: Stage, load: StageLoad) -> str:
    """Return the cause and the fix for a late stage as text; empty without a stage."""
    or_nvjpeg = '' if load.gpu_decodes_jpeg else ', or let the GPU decode JPEG images'
    return {
        '': '',
        'transport': (
            f'images wait {1e3 * load.transport_s:.0f} ms in the transport: if cameras share a '
            'DDS participant, raise image_participants (the log says if /dev/shm is too small); '
            'otherwise lower the rate or the size of the images'
        ),
        'intake': (
            f'images wait {1e3 * load.intake_s:.0f} ms for the thread that takes them, because '
            f'the interpreter or the processor is busy: {_MORE_NODES}; if all cores are busy, '
            'serve some cameras on another machine'
        ),
        'worker': (
            f'the worker thread is busy for {load.worker_share:.0%} of the time: '
            f'{_MORE_NODES}{or_nvjpeg}'
        ),
        'model': (
            f'the model computes for {load.model_share:.0%} of the time: use a faster engine, an '
            'engine for batches, or more GPUs (device_ids)'
        ),
    }[stage]
