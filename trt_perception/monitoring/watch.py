"""Silence is a fault: what the counts of an active node say, in one sentence that says what to do.

``SilenceWatch`` is asked twice a second and answers with one ``Problem``, the worst that holds. It
takes the time as a number, so that it can be tested without waiting.

What is found, worst first:
    no_output          a frame went in and does not come out: the pipeline hangs
    qos_mismatch       a camera publishes, but its QoS or type keeps its images from us
    camera_gone        there were images, and now nobody publishes any more
    no_publisher       nobody has published yet
    not_arriving       somebody publishes, and no image has ever arrived
    stalled            there were images, the camera is still there, and none comes any more
    all_dropped        images arrive, and every one is unreadable or cannot be published
    same_name          other nodes have this one's name; what else holds is said with it
    engine_slower      the camera is faster than the model, whether or not more are lost before
    lost_in_transport  some images never reach the node
    unreadable         some images cannot be read
    not_published      the middleware does not take some detections
    note               something else that somebody should look at
Within two seconds, for cameras of 2 Hz and more; a slower one is missed after three of its
periods. A camera that has not been there yet is waited for some seconds longer: node and camera
are often started together, and to find each other takes time, too.
"""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trt_perception.monitoring.frame_statistics import FrameStatistics
from trt_perception.monitoring.problem import Level, Problem
from trt_perception.monitoring.rates import EvenRate
from trt_perception.transport.advice import LARGE_BYTES, how_to_start

__all__ = ['PERIOD_S', 'CameraState', 'SilenceWatch']

#: How often the watch wants to be asked.
PERIOD_S: Final = 0.5
# Two periods, less what a busy machine makes one of them shorter.
_SILENCE_S: Final = 2 * PERIOD_S - 0.1
# A camera takes seconds to start on a small machine, and three more to be found where the first
# words of the two miss each other.
_START_S: Final = 10.0
# Shares of the last two seconds. Below this many images a share says nothing.
_WINDOW_S: Final = 2.0
_SHARE: Final = 0.1
_AT_LEAST: Final = 3
# A frame may take this many times as long as usual, and a camera this many of its periods.
_LATE_FRAME: Final = 4.0
_LATE_CAMERA: Final = 3.0
# These are what was asked for.
_UNWANTED: Final = ('inactive', 'disabled', 'rate_limit')
_ON_PURPOSE: Final = ('replaced', *_UNWANTED)


@dataclass(frozen=True)
class CameraState:
    """What the graph knows of the topic's publishers.

    Attributes:
        publishers: of the right type, whatever their QoS.
        mismatch: why one of them does not reach us, and the setting to change; empty: all do.
        elsewhere: where images are published instead and how to take them; empty: nowhere.
        since_s: when we began to ask for what they offer, of the watch's clock; 0: long ago.
    """

    publishers: int = 0
    mismatch: str = ''
    elsewhere: str = ''
    since_s: float = 0.0


@dataclass(frozen=True)
class _Moment:
    time_s: float
    received: int
    published: int
    dropped: Mapping[str, int]
    not_delivered: int | None

    @property
    def finished(self) -> int:
        return self.published + sum(
            count for reason, count in self.dropped.items() if reason not in _ON_PURPOSE
        )


class SilenceWatch:
    """Judges one activation.

    Args:
        topic: of the images.
        start_s: time of the activation, of any clock that only goes forward.
        frame_s: seconds that one frame takes, as the warm-up showed.
        turns: batches of which one is this camera's, where all cameras send more than the model
            takes: it may have to wait for so many.
        look: looks the topic up in the graph; asked only while nothing arrives.
        loss_cure: what to do about large images that the transport loses.
        message_bytes: returns the size of the last image as it came.
        camera: its name, empty where there is only one.
    """

    def __init__(
        self,
        topic: str,
        *,
        start_s: float,
        frame_s: float = 0.0,
        turns: int = 1,
        look: Callable[[], CameraState] = CameraState,
        loss_cure: str = '',
        message_bytes: Callable[[], int] = lambda: LARGE_BYTES,
        camera: str = '',
    ) -> None:
        self._topic = topic
        self._camera = camera
        self._frame_s = frame_s
        self._turns = turns
        self._look = look
        self._loss_cure = loss_cure
        self._message_bytes = message_bytes
        self._start_s = start_s
        self._moments = deque([_Moment(start_s, 0, 0, {}, 0)])
        self._sent, self._done = EvenRate(), EvenRate()
        # Since when the camera is faster than the model.
        self._slower_s: float | None = None
        self._received_s = start_s
        # When the graph was last seen without a camera: one that appears later has its time, too.
        self._alone_s = start_s
        # The median of the last ones: one long pause must not make the next one look usual.
        self._periods: deque[float] = deque(maxlen=5)
        # The last time at which a frame was finished or none was in flight.
        self._moved_s = start_s
        # What was dropped is judged since then: the last output, or what made a new beginning.
        self._judged_since = self._moments[0]

    def worst_problem(
        self,
        time_s: float,
        counts: FrameStatistics,
        not_delivered: int | None = 0,
        *,
        refusal: str = '',
        same_name: str = '',
        notes: Sequence[str] = (),
        off: str = '',
    ) -> Problem:
        """Return the worst that holds.

        Args:
            time_s: now.
            counts: since the activation.
            not_delivered: images that never reached the node, None where that is unknown.
            refusal: why the last image was dropped that could not be read, or not be published.
            same_name: that other nodes have this one's name, '' where none has.
            notes: sentences about other things that somebody should look at.
            off: that the camera is switched off, '' where it is not: then nothing of it is wrong.
        """
        now = _Moment(time_s, counts.received, counts.published, counts.dropped, not_delivered)
        self._follow(now, counts)
        if off:
            self._judged_since = now
        found = (
            (None if off else self._wrong_with_camera(now, counts, refusal))
            or (Problem(Level.WARN, 'note', '; '.join(notes)) if notes else None)
            or (Problem(Level.OK, '', off) if off else self._well(now))
        )
        if not same_name or found.level == Level.ERROR:
            return found
        also = [found.message] if found.kind else []
        return Problem(Level.WARN, 'same_name', '; '.join([same_name, *also]))

    def _wrong_with_camera(
        self, now: _Moment, counts: FrameStatistics, refusal: str
    ) -> Problem | None:
        return (
            self._no_output(now, counts)
            or self._no_images(now)
            or self._all_dropped(now, refusal)
            or self._slower(now)
            or self._lost(now)
            or self._some_dropped(now, refusal)
        )

    def _follow(self, now: _Moment, counts: FrameStatistics) -> None:
        last = self._moments[-1]
        if now.received > last.received:
            if now.time_s - self._received_s > self._patience_s:
                self._judged_since = last  # what comes now is judged by itself
            if last.received:
                came = now.received - last.received
                self._periods.append((now.time_s - self._received_s) / came)
            self._received_s = now.time_s
        if not counts.in_flight or now.finished > last.finished:
            self._moved_s = now.time_s
        if now.published > last.published:
            self._judged_since = now
        if now.not_delivered is None:
            self._sent.forget()
        elif now.received > last.received:
            self._sent.look(now.received + now.not_delivered, counts.received_s)
        self._done.look(now.published, counts.published_s)
        self._moments.append(now)
        while len(self._moments) > 2 and now.time_s - self._moments[1].time_s >= _WINDOW_S - 0.1:
            self._moments.popleft()

    @property
    def _patience_s(self) -> float:
        """How long no image is nothing to worry about."""
        usual_s = statistics.median(self._periods) if self._periods else 0.0
        return max(_SILENCE_S, _LATE_CAMERA * usual_s)

    def _no_output(self, now: _Moment, counts: FrameStatistics) -> Problem | None:
        waited_s = now.time_s - self._moved_s
        if waited_s < _SILENCE_S:
            return None
        if waited_s < _LATE_FRAME * self._turn_s(counts):
            return None
        return Problem(
            Level.ERROR,
            'no_output',
            f'images arrive on {self._topic}, but nothing has come out for {waited_s:.1f} s: the '
            'pipeline does not finish its frame; if that lasts, end the node (Ctrl-C twice) and '
            'try the model alone: ros2 run trt_perception benchmark_engine',
        )

    def _turn_s(self, counts: FrameStatistics) -> float:
        """Return how long it takes until a frame comes out, with its camera's turn waited for."""
        latency = counts.latency
        if not latency:
            return self._turns * self._frame_s
        # A frame that comes out is young: while its camera waited, newer ones replaced older ones.
        others_s = (self._turns - 1) * latency['compute'].p50_ms * 1e-3
        return latency['total'].p50_ms * 1e-3 + others_s

    def _no_images(self, now: _Moment) -> Problem | None:
        silent_s = now.time_s - self._received_s
        if silent_s < self._patience_s:
            return None
        camera = self._look()
        self._alone_s = max(self._alone_s, camera.since_s)
        if camera.mismatch:
            return Problem(Level.ERROR, 'qos_mismatch', camera.mismatch)
        if not camera.publishers:
            self._alone_s = now.time_s
            if not now.received and now.time_s - self._start_s < _START_S:
                return None
            return self._nobody(now, silent_s, camera)
        silent_s = min(silent_s, now.time_s - self._alone_s)
        if silent_s < self._patience_s:  # it has just appeared
            return self._nobody(now, silent_s, camera)
        if now.received:
            why = 'the camera has stalled, or its process was killed; look at its driver'
            if now.not_delivered and self._message_bytes() >= LARGE_BYTES:
                # Of a best effort camera nobody hears what is sent while all of it is lost.
                why = (
                    f'either the camera has stalled: look at its driver; or the transport, which '
                    f'has lost {now.not_delivered} before, loses all: {self._loss_cure}'
                )
            return Problem(
                Level.ERROR,
                'stalled',
                f'no image on {self._topic} for {silent_s:.1f} s, though its camera is still '
                f'there: {why}',
            )
        return Problem(
            Level.WARN,
            'not_arriving',
            f'a camera is there on {self._topic}, but no image has arrived for {silent_s:.1f} s: '
            f'either it sends none, or the transport loses them: {self._loss_cure}',
        )

    def _nobody(self, now: _Moment, silent_s: float, camera: CameraState) -> Problem:
        """Return that there is no camera, or one that has not had the time to send yet."""
        start = how_to_start('/its/topic', camera=self._camera)
        instead = camera.elsewhere or f'start the camera, or the node with {start}'
        if now.received:
            gone = f'has been gone for {silent_s:.1f} s; {instead}'
            state = 'is back, and no image yet' if camera.publishers else gone
            return Problem(Level.ERROR, 'camera_gone', f'the camera on {self._topic} {state}')
        alone = f'nobody publishes on {self._topic}; {instead}'
        if camera.publishers:
            appeared = f'a camera has appeared on {self._topic}, and no image yet'
            return Problem(Level.OK, '', appeared)
        return Problem(Level.WARN, 'no_publisher', alone)

    def _all_dropped(self, now: _Moment, refusal: str) -> Problem | None:
        then = self._judged_since
        seconds = now.time_s - then.time_s
        bad = _bad(then, now)
        if not bad or seconds < self._patience_s:
            return None
        every = f'every image of the last {seconds:.1f} s was dropped'
        if any(now.dropped.get(reason, 0) > then.dropped.get(reason, 0) for reason in _UNWANTED):
            # Of those that were wanted there may have been one only.
            if sum(bad.values()) < _AT_LEAST:
                return None
            every = f'every image of the last {seconds:.1f} s that was wanted was dropped'
        return Problem(Level.ERROR, 'all_dropped', f'{every}: {_told(bad, refusal)}')

    def _slower(self, now: _Moment) -> Problem | None:
        then = self._moments[0]
        replaced = now.dropped.get('replaced', 0) - then.dropped.get('replaced', 0)
        received = now.received - then.received
        if replaced < _AT_LEAST or replaced <= _SHARE * received:
            self._slower_s = None
            return None
        self._slower_s = now.time_s if self._slower_s is None else self._slower_s
        sent_hz, done_hz = self._sent.hz(), self._done.hz()
        if sent_hz is not None and done_hz is not None and done_hz < (1 - _SHARE) * sent_hz:
            # No share with it: that is of other seconds than the rates.
            seen = (
                f'the camera sends {sent_hz:.1f} Hz, of which the model takes {done_hz:.1f} Hz: '
                'the other images'
            )
        elif now.time_s - self._slower_s >= _SILENCE_S:  # nor will it be known soon
            seen = (
                f'images come faster than the model takes them: {replaced / received:.0%} of them'
            )
        else:
            return None
        return Problem(
            Level.WARN,
            'engine_slower',
            f'{seen} give way to newer ones; lower the rate of the camera, or take a faster '
            'engine, to have every image processed',
        )

    def _lost(self, now: _Moment) -> Problem | None:
        then = self._moments[0]
        if now.not_delivered is None or then.not_delivered is None:
            return None
        lost = now.not_delivered - then.not_delivered
        sent = lost + now.received - then.received
        if lost < _AT_LEAST or lost <= _SHARE * sent:
            return None
        cure = 'if they come in bursts, raise image_qos.depth'
        if self._message_bytes() < LARGE_BYTES:
            cure += '; else lower the rate of the camera: they are small, and still too many'
        else:
            cure = f'{self._loss_cure}; {cure}'
        return Problem(
            Level.WARN,
            'lost_in_transport',
            f'{lost} of {sent} images were sent and never reached the node: {cure}',
        )

    def _some_dropped(self, now: _Moment, refusal: str) -> Problem | None:
        bad = _bad(self._moments[0], now)
        if not bad:
            return None
        told = _told(bad, refusal)
        if set(bad) == {'not_published'}:
            message = f'what was found in some images cannot be published: {told}'
            return Problem(Level.WARN, 'not_published', message)
        return Problem(Level.WARN, 'unreadable', f'some images cannot be read: {told}')

    def _well(self, now: _Moment) -> Problem:
        if not now.received:
            return Problem(Level.OK, '', 'active, waiting for images')
        rate_hz = self._done.hz()
        return Problem(Level.OK, '', 'active' if rate_hz is None else f'active, {rate_hz:.1f} Hz')


def _bad(then: _Moment, now: _Moment) -> dict[str, int]:
    """Return how many images were dropped in between that nobody asked to, by reason."""
    counts = Counter(now.dropped) - Counter(then.dropped)
    return {reason: n for reason, n in sorted(counts.items()) if reason not in _ON_PURPOSE}


def _told(bad: Mapping[str, int], refusal: str) -> str:
    """Return these images in words, '' where there are none."""
    counts = ', '.join(f'{n} x {reason}' for reason, n in bad.items())
    return f'{counts}; the last one: {refusal}' if bad else ''
