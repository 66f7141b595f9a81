# SPDX-License-Identifier: Apache-2.0
"""Make fixed or random schedules of simulated cameras: times of images, and faults."""

from dataclasses import dataclass, field


@dataclass
class Schedule:
    """Holds the events of a simulation. Times are in seconds.

    Attributes:
        sent: sending times by camera, ascending.
        batch: largest number of frames in a batch.
        depth: number of slots.
        batch_s: called once per batch with its number of frames; returns the compute time.
        read_s: time to read a message.
        publish_s: time to publish a result.
        delay_s: the pool's batch_max_delay_s.
        switches: (time, camera, enabled).
        max_rate_hz: rate limits by camera.
        bad: (camera, message number) → the step that fails, 'read' or 'collect'.
        stop_s: time at which the pool is stopped; None: when all messages were sent.
        fault: number of the batch whose collect fails; None: no fault.
    """

    sent: list
    batch: int = 1
    depth: int = 1
    batch_s: object = lambda frames: 0.01
    read_s: float = 0.0001
    publish_s: float = 0.0002
    delay_s: float = 0.0
    switches: list = field(default_factory=list)
    max_rate_hz: dict = field(default_factory=dict)
    bad: dict = field(default_factory=dict)
    stop_s: float | None = None
    fault: int | None = None


def even(rate_hz, seconds, phase=0.0, jitter=None):
    """Return a steady camera's sending times. ``jitter`` returns a message's delay in periods."""
    count = int(rate_hz * seconds)
    times = [(index + phase + (jitter() if jitter else 0.0)) / rate_hz for index in range(count)]
    return sorted(times)


def random_schedule(rng, messages):
    """Return a schedule of about ``messages`` messages."""
    cameras = rng.choice([1, 2, 3, 4, 8, 16, rng.randint(1, 64), 64])
    batch = rng.choice([1, 1, 2, 4, 8, rng.randint(1, 16)])
    together = rng.random() < 0.3
    rate_hz = rng.choice([5.0, 20.0, 30.0])
    rates = [rate_hz if together else rng.choice([1, 5, 10, 30, 60]) for _ in range(cameras)]
    seconds = max(1.0, messages / sum(rates))
    sent = [_random_times(rng, rate, seconds, together) for rate in rates]
    # The rate of all cameras, relative to the throughput of the device.
    load = rng.choice([0.25, 0.8, 1.0, 1.5, 4.0])
    frame_s = load / sum(rates)
    fixed_s, slow = frame_s * rng.random() * batch, rng.choice([0.0, 0.05])
    names = list(range(cameras))
    return Schedule(
        sent,
        batch=batch,
        depth=rng.randint(1, 4),
        batch_s=lambda n: (fixed_s + frame_s * n / 2) * (20 if rng.random() < slow else 1),
        read_s=frame_s * rng.choice([0, 0.01, 0.1]),
        publish_s=frame_s * rng.choice([0, 0.02, 0.2]),
        delay_s=rng.choice([0.0, 0.0, 0.0, 0.005, 0.05]),
        switches=[
            (rng.random() * seconds, camera, enabled)
            for camera in names
            if rng.random() < 0.2
            for enabled in (False, True)
        ],
        max_rate_hz={c: rng.choice([1.0, 10.0, 30.0]) for c in names if rng.random() < 0.1},
        bad={
            (camera, number): rng.choice(['read', 'collect'])
            for camera in names
            for number in range(len(sent[camera]))
            if rng.random() < 0.03
        },
        stop_s=seconds * rng.random() if rng.random() < 0.2 else None,
        fault=rng.randint(1, 50) if rng.random() < 0.1 else None,
    )


def _random_times(rng, rate_hz, seconds, together):
    kind = rng.choice(['even', 'jitter', 'bursts', 'gap'])
    if together or kind == 'even':
        return even(rate_hz, seconds, 0.0 if together else rng.random())
    if kind == 'jitter':
        return even(rate_hz, seconds, rng.random(), lambda: rng.random() * 0.8)
    if kind == 'bursts':  # bursts of five messages
        return sorted(t for t in even(rate_hz / 5, seconds, rng.random()) for _ in range(5))
    times = even(rate_hz, seconds, rng.random())
    return times[: len(times) // 3] + times[2 * len(times) // 3 :]
