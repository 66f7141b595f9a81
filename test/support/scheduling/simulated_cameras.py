# SPDX-License-Identifier: Apache-2.0
"""Run the real pool in the caller's thread, with cameras and a pipeline on a simulated clock.

The clock advances while the worker reads, computes, publishes or sleeps. Images that are due
meanwhile are submitted at their own times. A simple model of the expected state checks every
step of the pool:
    * no slot is idle while a message waits (for longer than ``delay_s``);
    * no waiting camera is passed over in more than cameras / batch batches, rounded up;
    * a camera is served before all cameras that were served more recently;
    * counts are exact for each camera, and results are in the order of its messages;
    * a message is kept only while it waits, is in a slot or waits to be published.
"""

import functools
import heapq
import itertools
import weakref
from collections import Counter, deque

from support.camera_callbacks import FaultCallback, camera_of
from support.scheduling.fake_pipeline import detections_of
from trt_perception.errors import ImageError, OutputError
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.pipeline import Result
from trt_perception.scheduling.worker_pool import WorkerPool

_EPSILON_S = 1e-9
#: Time of a poll of the pipeline.
_POLL_S = 20e-6


class Message:
    """A message of a camera. The pipeline uses the same object as the frame."""

    is_decoded = True

    def __init__(self, camera, number):
        self.camera, self.number = camera, number


class _Pipeline:
    """Computes one batch after the other, like a GPU. More slots add no throughput."""

    decodes_jpeg = False
    opening_reason = ''

    def __init__(self, world, schedule):
        self.depth = self.max_in_flight = schedule.depth
        self.batch = schedule.batch
        self._world, self._schedule = world, schedule
        self.slots = {}
        self._free_s = 0.0
        self._collected = 0
        self.times_s = []

    def enqueue(self, slot, frames, thresholds):
        assert slot not in self.slots
        assert 1 <= len(frames) == len(thresholds) <= self.batch
        assert len({frame.camera for frame in frames}) == len(frames), 'one of each camera'
        for frame, given in zip(frames, thresholds, strict=True):
            assert given is self._world.cameras[frame.camera].thresholds
        took_s = self._schedule.batch_s(len(frames))
        self.times_s.append(took_s)
        self._free_s = max(self._free_s, self._world.now_s) + took_s
        self.slots[slot] = frames, self._free_s, took_s

    def is_done(self, slot):
        return self._world.now_s >= self.slots[slot][1]

    def collect(self, slot):
        _, ready_s, took_s = self.slots[slot]
        if not self.is_done(slot):
            self._world.look_for_idleness()
            self._world.advance(ready_s)
        frames, *_ = self.slots.pop(slot)
        self._collected += 1
        if self._collected == self._schedule.fault:
            raise RuntimeError('the pipeline broke')
        return [self._result(frame, took_s) for frame in frames]

    def _result(self, frame, took_s):
        if self._schedule.bad.get((frame.camera, frame.number)) == 'collect':
            if frame.number % 2:
                return OutputError('model', 'bad')
            return ImageError('late', 'image', 'bad')
        return Result(detections_of(frame.number), took_s, frame, took_s)


class World:
    """Runs a schedule on the simulated clock, and checks each step of the pool.

    Attributes:
        now_s: time of the simulated clock.
        published: (number, age of the message when published in seconds) by camera.
        times_s: times of the batches.
        counts: the counts that the pool reports, by camera.
    """

    def __init__(self, schedule):
        self._schedule = schedule
        self.now_s = 0.0
        count = len(schedule.sent)
        self.pipeline = _Pipeline(self, schedule)
        self.cameras = [
            camera_of(
                f'camera_{index}',
                self._read,
                self._publish,
                functools.partial(self._refused, index),
                Thresholds(),
                max_rate_hz=schedule.max_rate_hz.get(index, 0.0),
            )
            for index in range(count)
        ]
        self.faults = []
        self.pool = WorkerPool(
            [self.pipeline],
            self.cameras,
            fault_handler=FaultCallback(self.faults.append),
            batch_max_delay_s=schedule.delay_s,
            clock=lambda: self.now_s,
        )
        (self._worker,) = self.pool._workers
        self._worker._sleep = self._sleep
        scheduler = self._worker.scheduler
        self._take, scheduler.next_batch = scheduler.next_batch, self._on_take
        self._withdraw, scheduler.remove = scheduler.remove, self._on_withdraw
        self.counts = self.pool._state.camera_statistics
        # The expected state: the waiting messages, the time since which each camera waits, the
        # messages in progress, and the outcomes of all other messages.
        self.waiting, self._since_s = {}, {}
        self._passed, self._served, self._batches = Counter(), {}, 0
        self._flying = [deque() for _ in range(count)]
        self._received, self._dropped = Counter(), Counter()
        self.published = [[] for _ in range(count)]
        self._sent_s = {}
        self._alive = {}
        self._stopped = False
        numbers = [itertools.count() for _ in range(count)]
        sent = [
            [(when, camera, None) for when in times] for camera, times in enumerate(schedule.sent)
        ]
        stop = [(schedule.stop_s, -1, None)] if schedule.stop_s is not None else []
        self._events = deque(
            heapq.merge(*sent, sorted(schedule.switches), stop, key=lambda e: e[0])
        )
        self._number = lambda camera: next(numbers[camera])

    def run(self):
        """Run until the schedule has ended, and return self."""
        self.pool._state.is_running = True
        self._worker._run()
        while self._events:
            self.advance(self._events[0][0])
        self._check_all()
        self.pipeline.slots.clear()
        if not self.faults:
            assert not any(self._flying)
            assert not self.waiting
        for counts in self.counts:
            assert counts.in_flight == 0
        assert not self._alive, 'unused messages are kept'
        return self

    @property
    def times_s(self):
        return self.pipeline.times_s

    # Methods that advance the clock.

    def advance(self, to_s):
        """Advance the clock to a time, and execute all events that are due until then."""
        while self._events and self._events[0][0] <= to_s:
            when_s, camera, enabled = self._events.popleft()
            self.now_s = max(self.now_s, when_s)
            if camera < 0:
                self._stop()
            elif enabled is None:
                self._submit(camera)
            else:
                self.cameras[camera].enabled = enabled
        self.now_s = max(self.now_s, to_s)

    def _sleep(self, seconds):
        self.look_for_idleness()
        self._look_for_holders()
        until_s = float('inf') if seconds is None else self.now_s + seconds
        while self._worker._is_sleeping and self._events and self._events[0][0] <= until_s:
            self.advance(self._events[0][0])
        if not self._worker._is_sleeping:
            return
        if seconds is not None:
            self.now_s = max(until_s, self.now_s + _POLL_S)
        elif not self._events:
            self._stop()

    def _stop(self):
        self._stopped = True
        with self.pool._state.lock:
            self.pool._stop_accepting()

    # Functions that the pool calls, and submitted messages.

    def _submit(self, camera):
        message = Message(camera, self._number(camera))
        number = message.number
        self._alive[camera, number] = weakref.ref(
            message, lambda _: self._alive.pop((camera, number))
        )
        limited = self.counts[camera].dropped.get('rate_limit', 0)
        self.pool.submit(camera, message)
        self._received[camera] += 1
        if self._stopped or self.faults:
            self._dropped[camera, 'inactive'] += 1
        elif not self.cameras[camera].enabled:
            self._dropped[camera, 'disabled'] += 1
        elif self.counts[camera].dropped.get('rate_limit', 0) > limited:
            self._dropped[camera, 'rate_limit'] += 1
        else:
            if camera in self.waiting:
                self._dropped[camera, 'replaced'] += 1
                assert (camera, self.waiting[camera]) not in self._alive, (
                    'a replaced message is still alive'
                )
            self.waiting[camera] = number
            self._since_s.setdefault(camera, self.now_s)
            self._sent_s[camera, number] = self.now_s
        self._check(camera)

    def _on_take(self):
        enabled = sum(camera.enabled for camera in self.cameras)
        full = len(self.waiting) >= min(self._schedule.batch, enabled)
        late = self._waited_s() >= self._schedule.delay_s - _EPSILON_S
        assert full or late, 'taken too early'
        jobs = self._take()
        chosen = [job.camera_index for job in jobs]
        assert 1 <= len(set(chosen)) == len(chosen) <= self._schedule.batch
        rest = set(self.waiting).difference(chosen)
        assert len(chosen) == self._schedule.batch or not rest
        served = {camera: self._served.get(camera, -1) for camera in self.waiting}
        if rest:
            assert max(served[camera] for camera in chosen) <= min(served[c] for c in rest)
        for job in jobs:
            assert job.message.number == self.waiting.pop(job.camera_index)
            del self._since_s[job.camera_index]
            self._passed.pop(job.camera_index, None)
            self._served[job.camera_index] = self._batches
            self._flying[job.camera_index].append(job.message.number)
        self._batches += 1
        for camera in rest:
            self._passed[camera] += 1
            most = -(-len(self.cameras) // self._schedule.batch)
            assert self._passed[camera] <= most, 'passed over too often'
        return jobs

    def _on_withdraw(self, camera):
        reason = 'inactive' if self._stopped or not self.pool._state.is_running else 'disabled'
        assert reason == 'inactive' or not self.cameras[camera].enabled
        del self.waiting[camera], self._since_s[camera]
        self._passed.pop(camera, None)
        self._dropped[camera, reason] += 1
        return self._withdraw(camera)

    def _read(self, message):
        self.advance(self.now_s + self._schedule.read_s)
        if self._schedule.bad.get((message.camera, message.number)) == 'read':
            raise ImageError('early', 'image', 'bad')
        return message

    def _publish(self, message, frame, detections):
        assert frame is message
        assert detections.class_ids.tolist() == [message.number]
        self.look_for_idleness()
        self.advance(self.now_s + self._schedule.publish_s)
        flying = self._flying[message.camera]
        assert message.number == flying[0], 'out of order'
        flying.popleft()
        age_s = self.now_s - self._sent_s.pop((message.camera, message.number))
        self.published[message.camera].append((message.number, age_s))

    def _refused(self, camera, error):
        flying = self._flying[camera]
        where = {'early': 'read'}.get(error.reason, 'collect')
        # A recent message may be refused while an older message is in a slot.
        index = next(
            i for i, n in enumerate(flying) if self._schedule.bad.get((camera, n)) == where
        )
        assert where == 'read' or index == 0, 'out of order'
        del flying[index]
        self._dropped[camera, error.reason] += 1
        self._check(camera)

    # Checks of the pool against the expected state.

    def _waited_s(self):
        return self.now_s - min(self._since_s.values())

    def look_for_idleness(self):
        """Check that the worker does not wait while it could fill a slot."""
        if not self.waiting or len(self.pipeline.slots) == self._schedule.depth:
            return
        enabled = sum(camera.enabled for camera in self.cameras)
        assert self._schedule.delay_s, 'a slot is free and a message waits'
        assert len(self.waiting) < min(self._schedule.batch, enabled), 'the batch is full'
        assert self._waited_s() < self._schedule.delay_s + _EPSILON_S, 'it has waited too long'

    def _look_for_holders(self):
        needed = {(camera, number) for camera, number in self.waiting.items()}
        for frames, *_ in self.pipeline.slots.values():
            needed |= {(frame.camera, frame.number) for frame in frames}
        assert set(self._alive) == needed, 'held too long'

    def _check(self, camera):
        """Check a camera's counts against the expected state."""
        counts = self.counts[camera]
        dropped = sum(counts.dropped.values())
        total = counts.published + dropped + counts.failed + counts.in_flight
        assert counts.received == total == self._received[camera]
        if self.faults:
            return
        assert counts.published == len(self.published[camera])
        assert counts.in_flight == (camera in self.waiting) + len(self._flying[camera])

    def _check_all(self):
        for camera, counts in enumerate(self.counts):
            self._check(camera)
            if not self.faults:
                expected = {r: n for (c, r), n in self._dropped.items() if c == camera}
                assert counts.dropped == expected


def share(values, quantile):
    """Return the value at a quantile (0 to 1) of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]
