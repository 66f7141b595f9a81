# SPDX-License-Identifier: Apache-2.0
"""Finds the worst problem of a camera of an active node from its counts.

The node calls ``CameraWatchdog.check`` twice a second. The result is a
summary with a sentence that names the fix. The time is an argument, so that tests need not wait.

Kinds of problems, worst first:

- no_output: a frame entered the pipeline but no result comes out; the pipeline hangs.
- qos_mismatch: QoS or message type of the publisher prevents delivery.
- camera_gone: images arrived before, but the topic has no publisher now.
- no_publisher: the topic never had a publisher.
- not_arriving: the topic has a publisher, but no image has ever arrived.
- stalled: images arrived before and the camera still exists, but sends no image.
- always_bad_output: the model's outputs for all images of 10 s are invalid.
- all_dropped: images arrive, but all are dropped because of errors.
- unnamed_class: a class that was reported since *configure* has no name.
- same_name: other nodes have the same name. The message includes other problems.
- engine_slower: the camera is faster than the model.
- lost_in_transport: some images never reach the node.
- unreadable: some images cannot be read.
- bad_output: the model's outputs for some images are invalid.
- no_result: a Triton server has no result for some images or for all.
- not_published: the middleware refuses some results.
- clock: the stamps of the images are of another clock.
- note: a less urgent problem.

The module `summary` adds unnamed_class, same_name, clock and note. Silence is reported within
2 s for cameras of at least 2 Hz, and after three periods of slower cameras. After the start, a
camera has 10 s for its publisher, and 3 s from then on for its first image.
"""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trt_perception.monitoring.frame_statistics import FrameStatistics
from trt_perception.monitoring.late_stage import StageLoad, fix_of_stage, late_stage, mean_delay_s
from trt_perception.monitoring.pipeline_statistics import PipelineStatistics
from trt_perception.monitoring.rates import EvenRate
from trt_perception.monitoring.silence import LossFix, SilenceCheck, WatchedCamera
from trt_perception.monitoring.status_summary import Level, StatusSummary
from trt_perception.process.tool_command import tool_command
from trt_perception.transport.advice import LARGE_MESSAGE_BYTES

#: Seconds between two calls of `CameraWatchdog.check`.
PERIOD_S: Final = 0.5
# Two periods. A busy machine may shorten one period by 0.1 s.
_SILENCE_S: Final = 2 * PERIOD_S - 0.1
# Drops and losses are reported if they exceed this share of the images in this window, and reach
# this number.
_WINDOW_S: Final = 2.0
_MIN_SHARE: Final = 0.1
_MIN_IMAGES: Final = 3
# Opening a model again takes less time than this, also if TensorRT first builds its engine.
_MAX_OPENING_S: Final = 600.0
# If all outputs are invalid for this time, the decoder is wrong, not the images.
_BAD_OUTPUT_LIMIT_S: Final = 10.0
# A frame is late after this many times its usual time, an image after this many camera periods.
_LATE_FRAME_FACTOR: Final = 4.0
_LATE_CAMERA_FACTOR: Final = 3.0
# Reasons of drops that the user requested.
_REQUESTED_DROPS: Final = ('inactive', 'disabled', 'rate_limit')
_INTENDED_DROPS: Final = ('replaced', *_REQUESTED_DROPS)
_SERVER_DROPS: Final = frozenset({'server_error', 'timeout'})


@dataclass(frozen=True)
class _CountSnapshot:
    """The counts of a camera at one moment."""

    time_s: float
    received: int
    published: int
    dropped: Mapping[str, int]
    not_delivered: int | None
    transport_ns: int = 0
    intake_ns: int = 0
    worker_s: float = 0.0
    model_s: float = 0.0
    gpu_decodes_jpeg: bool = False

    @property
    def finished(self) -> int:
        return self.published + sum(
            count for reason, count in self.dropped.items() if reason not in _INTENDED_DROPS
        )

    @property
    def replaced(self) -> int:
        return self.dropped.get('replaced', 0)


class CameraWatchdog:
    """Finds the problems of a camera during one activation.

    Args:
        start_s: time of the activation in seconds of a monotonic clock.
        frame_time_s: seconds that the model needs for a frame, measured in the warm-up.
        batches_per_turn: number of batches until each camera has had a turn, if all cameras send
            faster than the model processes images.
        answer_limit_s: longest wait for the answer of a Triton server; 0 for other models.
    """

    def __init__(
        self,
        camera: WatchedCamera,
        *,
        start_s: float,
        frame_time_s: float = 0.0,
        batches_per_turn: int = 1,
        loss_fix: LossFix,
        answer_limit_s: float = 0.0,
    ) -> None:
        self._camera = camera
        self._topic = camera.topic
        self._frame_time_s = frame_time_s
        self._batches_per_turn = batches_per_turn
        self._loss_fix = loss_fix
        self._answer_limit_s = answer_limit_s
        self._silence = SilenceCheck(camera, start_s, loss_fix)
        self._snapshots = deque([_CountSnapshot(start_s, 0, 0, {}, 0)])
        self._sent_rate, self._output_rate = EvenRate(), EvenRate()
        # Start of the time in which the camera is faster than the model; None if it is not.
        self._slower_since_s: float | None = None
        self._received_s = start_s
        # The median of the last periods is used, so that one long pause does not count as usual.
        self._periods: deque[float] = deque(maxlen=5)
        # The last time when a frame was finished, opening the model again began or ended, or no
        # frame was in flight.
        self._last_progress_s = start_s
        self._is_opening = False
        # Drops are counted since this snapshot: the last output, or the end of a silence.
        self._drops_since = self._snapshots[0]

    def check(
        self,
        time_s: float,
        counts: FrameStatistics,
        pipeline: PipelineStatistics,
        refusal: str = '',
    ) -> StatusSummary:
        """Return the summary, with the worst problem if there are several.

        Args:
            refusal: error of the last image that could not be read or published.
        """
        now = self._follow(time_s, counts, pipeline)
        return (
            self._no_output(now, counts)
            or self._no_images(now)
            or (
                StatusSummary(Level.OK, '', pipeline.opening_reason)
                if pipeline.opening_reason
                else None
            )
            or self._all_dropped(now, refusal)
            or self._slow_model(now)
            or self._lost_in_transport(now)
            or self._some_dropped(now, refusal)
            or self._healthy_state(now)
        )

    def skip(self, time_s: float, counts: FrameStatistics, pipeline: PipelineStatistics) -> None:
        """Record the counts of a disabled camera without a check."""
        self._drops_since = self._follow(time_s, counts, pipeline)
        # Do not report images that were lost or replaced while the camera was switched off.
        self._snapshots = deque([self._drops_since])

    def _follow(
        self, time_s: float, counts: FrameStatistics, pipeline: PipelineStatistics
    ) -> _CountSnapshot:
        """Record the counts and the times of changes. Return the counts as a snapshot."""
        last = self._snapshots[-1]
        now = _CountSnapshot(
            time_s,
            counts.received,
            counts.published,
            counts.dropped,
            self._camera.not_delivered,
            self._camera.transport_ns,
            self._camera.intake_ns,
            pipeline.worker_s,
            pipeline.model_s,
            pipeline.decodes_jpeg,
        )
        if now.received > last.received:
            if now.time_s - self._received_s > self._allowed_silence_s:
                self._drops_since = last  # images arrive again after a silence
            if last.received:
                came = now.received - last.received
                self._periods.append((now.time_s - self._received_s) / came)
            self._received_s = now.time_s
        was_opening, self._is_opening = self._is_opening, bool(pipeline.opening_reason)
        changed = now.finished > last.finished or self._is_opening != was_opening
        if changed or not counts.in_flight:
            self._last_progress_s = now.time_s
        if now.published > last.published:
            self._drops_since = now
        if now.not_delivered is None:
            self._sent_rate.reset()
        elif now.received > last.received:
            self._sent_rate.update(now.received + now.not_delivered, counts.received_s)
        self._output_rate.update(now.published, counts.published_s)
        if pipeline.opening_reason:
            self._snapshots.clear()  # do not report images that were replaced while it opens
        self._snapshots.append(now)
        while (
            len(self._snapshots) > 2 and now.time_s - self._snapshots[1].time_s >= _WINDOW_S - 0.1
        ):
            self._snapshots.popleft()
        return now

    @property
    def _allowed_silence_s(self) -> float:
        """The longest time without an image that is not a problem, in seconds."""
        usual_s = statistics.median(self._periods) if self._periods else 0.0
        return max(_SILENCE_S, _LATE_CAMERA_FACTOR * usual_s)

    def _no_output(self, now: _CountSnapshot, counts: FrameStatistics) -> StatusSummary | None:
        waited_s = now.time_s - self._last_progress_s
        # A late answer is a dropped frame. Each frame before it may have been late, too.
        limit_s = _SILENCE_S + self._batches_per_turn * self._answer_limit_s
        if waited_s < (_MAX_OPENING_S if self._is_opening else limit_s):
            return None
        if waited_s < _LATE_FRAME_FACTOR * self._expected_frame_s(counts):
            return None
        return StatusSummary(
            Level.ERROR,
            'no_output',
            f'images arrive on {self._topic}, but the pipeline has finished no frame for '
            f'{waited_s:.1f} s; if this continues, end the node (Ctrl-C twice) and run the model '
            f'alone: {tool_command("benchmark_engine", "MODEL")}',
        )

    def _expected_frame_s(self, counts: FrameStatistics) -> float:
        """Return the usual seconds until a frame is finished, with the wait for other cameras."""
        latency = counts.latency
        if not latency:
            return self._batches_per_turn * self._frame_time_s
        # Measured times lack the wait for other cameras: newer frames replaced the waiting frames.
        others_s = (self._batches_per_turn - 1) * latency['compute'].p50_ms * 1e-3
        return latency['total'].p50_ms * 1e-3 + others_s

    def _no_images(self, now: _CountSnapshot) -> StatusSummary | None:
        silent_s = now.time_s - self._received_s
        allowed_s = self._allowed_silence_s
        if silent_s < allowed_s:
            return None
        return self._silence.find_problem(
            now.time_s, silent_s, received=bool(now.received), allowed_s=allowed_s
        )

    def _all_dropped(self, now: _CountSnapshot, refusal: str) -> StatusSummary | None:
        then = self._drops_since
        seconds = now.time_s - then.time_s
        bad = _unintended_drops(then, now)
        if not bad or seconds < self._allowed_silence_s:
            return None
        every = f'every image of the last {seconds:.1f} s was dropped'
        if any(
            now.dropped.get(reason, 0) > then.dropped.get(reason, 0) for reason in _REQUESTED_DROPS
        ):
            # One dropped image is not a trend: report only from _MIN_IMAGES images on.
            if sum(bad.values()) < _MIN_IMAGES:
                return None
            every = f'every image of the last {seconds:.1f} s was dropped, some because of errors'
        message = f'{every}: {_drop_summary(bad, refusal)}'
        if bad.keys() <= _SERVER_DROPS:
            return _no_result(message)
        if set(bad) == {'bad_output'} and seconds >= _BAD_OUTPUT_LIMIT_S:
            cure = 'the outputs do not fit the decoder: correct model.decoder or the manifest'
            return StatusSummary(Level.ERROR, 'always_bad_output', f'{message}; {cure}')
        return StatusSummary(Level.ERROR, 'all_dropped', message)

    def _slow_model(self, now: _CountSnapshot) -> StatusSummary | None:
        then = self._snapshots[0]
        replaced, received = _replaced_images(then, now), now.received - then.received
        # An overloaded node loses images before and after it takes them, each perhaps a small
        # share. The larger share decides which problem is reported.
        lost = _lost_images(self._snapshots) or 0
        missing = replaced + (lost if lost <= replaced else 0)
        is_few = now.replaced - then.replaced < _MIN_IMAGES
        if is_few or missing <= _MIN_SHARE * (received + missing - replaced):
            self._slower_since_s = None
            return None
        self._slower_since_s = now.time_s if self._slower_since_s is None else self._slower_since_s
        sent_hz, done_hz = self._sent_rate.hz(), self._output_rate.hz()
        # With max_rate_hz, most images between the two rates are dropped as requested.
        is_limited = bool(_limited_images(then, now))
        if (
            not is_limited
            and sent_hz is not None
            and done_hz is not None
            and done_hz < (1 - _MIN_SHARE) * sent_hz
        ):
            # Do not show the share of replaced images: it covers another period than the rates.
            seen = (
                f'the camera sends {sent_hz:.1f} Hz, but the node processes only '
                f'{done_hz:.1f} Hz: the other images'
            )
        elif now.time_s - self._slower_since_s >= _SILENCE_S:  # the rates do not show it
            limited = ' that max_rate_hz lets through' if is_limited else ''
            seen = (
                f'the camera is faster than the node: {replaced / received:.0%} of the images'
                f'{limited}'
            )
        else:
            return None
        load = self._stage_load(now)
        stage = late_stage(load, were_taken=True)
        cure = fix_of_stage(stage, load) or (
            'to process every image, lower the rate of the camera or use a faster engine'
        )
        return StatusSummary(
            Level.WARN,
            'engine_slower',
            f'{seen} are replaced by newer images; {cure}',
            stage,
        )

    def _stage_load(self, now: _CountSnapshot, *, same_clock: bool = True) -> StageLoad:
        """Return the load of the stages in the last second, without delays of another clock."""
        latest = list(self._snapshots)[-3:]  # so that a new cause is seen soon
        then = latest[0]
        seconds, received = now.time_s - then.time_s, now.received - then.received
        sent = received + (_lost_images(latest) or 0)
        transport_ns = now.transport_ns - then.transport_ns if same_clock else 0
        return StageLoad(
            seconds / max(1, sent),
            mean_delay_s(transport_ns, received),
            mean_delay_s(now.intake_ns - then.intake_ns, received),
            (now.worker_s - then.worker_s) / seconds,
            (now.model_s - then.model_s) / seconds,
            now.gpu_decodes_jpeg,
        )

    def _lost_in_transport(self, now: _CountSnapshot) -> StatusSummary | None:
        then = self._snapshots[0]
        lost = _lost_images(self._snapshots)
        if lost is None:
            return None
        sent = lost + now.received - then.received
        # See _slow_model.
        replaced = _replaced_images(then, now)
        missing = lost + (replaced if replaced < lost else 0)
        if lost < _MIN_IMAGES or missing <= _MIN_SHARE * sent:
            return None
        is_here = self._camera.topic_state().on_this_machine
        load = self._stage_load(now, same_clock=is_here is not False)
        stage = late_stage(load, were_taken=False)
        cures = [fix_of_stage(stage, load)]
        if stage in ('', 'transport') and self._camera.message_bytes >= LARGE_MESSAGE_BYTES:
            cures.append(self._loss_fix(is_here))
        cures.append('if images arrive in bursts, raise image_qos.depth')
        if not stage and self._camera.message_bytes < LARGE_MESSAGE_BYTES:
            cures.append(
                'otherwise lower the rate of the camera: its images are small but too many'
            )
        cure = '; '.join(filter(None, cures))
        return StatusSummary(
            Level.WARN,
            'lost_in_transport',
            f'{lost} of {sent} sent images never reached the node: {cure}',
            stage,
        )

    def _some_dropped(self, now: _CountSnapshot, refusal: str) -> StatusSummary | None:
        bad = _unintended_drops(self._snapshots[0], now)
        if not bad:
            return None
        summary = _drop_summary(bad, refusal)
        if set(bad) == {'not_published'}:
            message = f'results of some images cannot be published: {summary}'
            return StatusSummary(Level.WARN, 'not_published', message)
        if bad.keys() <= _SERVER_DROPS:
            return _no_result(f'the server has no result for some images: {summary}')
        if set(bad) == {'bad_output'}:
            message = f"the model's outputs for some images are invalid: {summary}"
            return StatusSummary(Level.WARN, 'bad_output', message)
        return StatusSummary(Level.WARN, 'unreadable', f'some images cannot be read: {summary}')

    def _healthy_state(self, now: _CountSnapshot) -> StatusSummary:
        if not now.received:
            return StatusSummary(Level.OK, '', 'active, waiting for images')
        rate_hz = self._output_rate.hz()
        return StatusSummary(
            Level.OK, '', 'active' if rate_hz is None else f'active, {rate_hz:.1f} Hz'
        )


def _no_result(message: str) -> StatusSummary:
    """Return the problem of images that a Triton server did not answer."""
    return StatusSummary(Level.WARN, 'no_result', message)


def _lost_images(snapshots: Sequence[_CountSnapshot]) -> int | None:
    """Return the number of sent images that did not arrive between the first and last snapshot.

    None if the number was unknown at a snapshot. Losses of that time may be of other cameras.
    """
    counts = [snapshot.not_delivered for snapshot in snapshots]
    known = [count for count in counts if count is not None]
    return known[-1] - known[0] if len(known) == len(counts) else None


def _limited_images(then: _CountSnapshot, now: _CountSnapshot) -> int:
    """Return the number of images that max_rate_hz dropped."""
    return now.dropped.get('rate_limit', 0) - then.dropped.get('rate_limit', 0)


def _replaced_images(then: _CountSnapshot, now: _CountSnapshot) -> float:
    """Return the number of replaced images, scaled to all received images.

    Newer images replace only images that max_rate_hz lets through. The share of the replaced
    images among these images, times all received images, is comparable with the lost images.
    """
    received = now.received - then.received
    offered = received - _limited_images(then, now)
    return (now.replaced - then.replaced) * received / max(1, offered)


def _unintended_drops(then: _CountSnapshot, now: _CountSnapshot) -> dict[str, int]:
    """Return the number of images that were dropped because of an error, by reason."""
    counts = Counter(now.dropped) - Counter(then.dropped)
    return {reason: n for reason, n in sorted(counts.items()) if reason not in _INTENDED_DROPS}


def _drop_summary(bad: Mapping[str, int], refusal: str) -> str:
    """Return the counts of dropped images and the last error as text; empty without drops."""
    counts = ', '.join(f'{n} x {reason}' for reason, n in bad.items())
    return f'{counts}; last error: {refusal}' if bad else ''
