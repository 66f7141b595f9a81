"""How long measurements go on, and what is said meanwhile.

A measurement ends after so many frames, after so many seconds, or when it was asked to: whatever
comes first, but never before its first frame.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from tqdm import tqdm

__all__ = ['BenchmarkProgress', 'MeasurementControl', 'stop_on_interrupt']

# Of the time of a measurement, what its warm-up may take at most.
_WARM_UP_SHARE: Final = 0.2
# Between two words on a terminal, and elsewhere; each takes as long as a frame of a fast model.
_BAR_INTERVAL_S: Final = 0.5
_LINE_INTERVAL_S: Final = 10.0


class BenchmarkProgress:
    """Says on standard error what is measured: a bar on a terminal, else lines.

    Args:
        total: how many measurements there will be.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._number = 0
        self._name = ''
        tqdm.monitor_interval = 0  # no thread of its own next to what is measured
        self._bar: Any = None
        if sys.stderr.isatty():
            self._bar = tqdm(total=total, leave=False, bar_format='{l_bar}{bar}| {n}/{total}')
        self._interval_s = _LINE_INTERVAL_S if self._bar is None else _BAR_INTERVAL_S
        self._next_report_s = 0.0

    def __enter__(self) -> BenchmarkProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def step(self, name: str) -> None:
        """Say what is measured next."""
        self._number += 1
        self._name = name
        self._next_report_s = time.perf_counter() + self._interval_s
        if self._bar is not None:
            self._bar.n = self._number - 1
            self._bar.set_description(name)
        else:
            self._print_line(name)

    def frame(self, what: str, done: int, count: int, seconds: float) -> None:
        """Say how far it has come, now and then: it is called for each frame."""
        now = time.perf_counter()
        if now < self._next_report_s:
            return
        self._next_report_s = now + self._interval_s
        text = f'{self._name}: {what}, {done} of {count} frames, {seconds:.0f} s'
        if self._bar is not None:
            self._bar.set_description(text)
        else:
            self._print_line(text)

    def clear(self) -> None:
        """Make room for other text on the terminal."""
        if self._bar is not None:
            self._bar.clear()

    def _print_line(self, text: str) -> None:
        print(f'[{self._number}/{self._total}] {text}', file=sys.stderr, flush=True)


class MeasurementControl:
    """Says when measurements end.

    Args:
        count: most frames of each.
        warmup: most frames before each that do not count.
        seconds: most seconds of each, None for as long as the frames take.
        progress: called for each frame; None says nothing.

    Attributes:
        stopped: it was asked to end: what has begun ends, and nothing more begins.
    """

    def __init__(
        self,
        count: int,
        warmup: int = 0,
        seconds: float | None = None,
        progress: BenchmarkProgress | None = None,
    ) -> None:
        self.count = count
        self.warmup = warmup
        self.seconds = seconds
        self.stopped = False
        self._progress = progress
        self._what = ''
        self._max_frames = 0
        self._start = 0.0
        self._limit: float | None = None

    def step(self, name: str) -> None:
        """Say what is measured next."""
        if self._progress is not None:
            self._progress.step(name)

    def begin(self, what: str, most: int | None = None) -> None:
        """Start the clock of a measurement.

        Args:
            what: a word for people.
            most: frames, ``count`` by default.
        """
        self._begin(what, self.count if most is None else most, self.seconds)

    def begin_warm_up(self, least: int = 0) -> None:
        """Start the clock of a warm-up; ``least`` are the frames that there must be."""
        share = None if self.seconds is None else self.seconds * _WARM_UP_SHARE
        self._begin('warming up', max(self.warmup, least), share)

    def _begin(self, what: str, most: int, limit: float | None) -> None:
        self._what, self._max_frames, self._limit = what, most, limit
        self._start = time.perf_counter()

    def must_continue(self, done: int, least: int = 1) -> bool:
        """Return whether another frame is to begin.

        Args:
            done: how many have begun.
            least: so many begin in any case, unless ``begin`` was given fewer.
        """
        if done >= self._max_frames:
            return False
        seconds = time.perf_counter() - self._start
        if self._progress is not None:
            self._progress.frame(self._what, done, self._max_frames, seconds)
        if done < least:
            return True
        return not self.stopped and (self._limit is None or seconds < self._limit)

    def runs_that_fit(self, seconds_each: float, most: int) -> int:
        """Return how many runs of a known time fit into a measurement, at least one."""
        if self.stopped:
            return 1
        if self.seconds is None or seconds_each <= 0:
            return most
        return min(most, max(1, int(self.seconds / seconds_each)))


@contextlib.contextmanager
def stop_on_interrupt(control: MeasurementControl) -> Iterator[None]:
    """Let the first Ctrl-C stop the measurements; the second gives up at once.

    An exception in the middle of a call into CUDA, TensorRT or ONNX Runtime would leave things
    half done.
    """
    previous_handler = signal.getsignal(signal.SIGINT)
    if previous_handler in (signal.SIG_IGN, None):  # a shell in the background ignores it
        yield
        return

    def stop(*_: object) -> None:
        control.stopped = True
        signal.signal(signal.SIGINT, previous_handler)
        # Not by print: the signal may come in the middle of one.
        os.write(2, b'ending with the frame in work; Ctrl-C again gives up\n')

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous_handler)
