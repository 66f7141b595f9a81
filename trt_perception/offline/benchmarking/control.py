# SPDX-License-Identifier: Apache-2.0
"""Decides when each measurement ends, and reports progress.

A measurement ends after a number of frames, after a number of seconds, or after a request to stop,
whichever comes first. It always includes at least one frame.
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

from trt_perception.files.plain_text import counted

# Maximum duration of a warm-up as a share of the measurement's time limit.
_WARM_UP_SHARE: Final = 0.2
# Time between progress reports on a terminal, and in other outputs. A report takes as long as a
# frame of a fast model.
_BAR_INTERVAL_S: Final = 0.5
_LINE_INTERVAL_S: Final = 10.0


class BenchmarkProgress:
    """Reports progress on standard error: as a bar on a terminal, else as lines."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._number = 0
        self._name = ''
        tqdm.monitor_interval = 0  # the monitor thread of tqdm would disturb measurements
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

    def announce(self, name: str) -> None:
        """Show the name of the measurement that starts now."""
        self._number += 1
        self._name = name
        self._next_report_s = time.perf_counter() + self._interval_s
        if self._bar is not None:
            self._bar.n = self._number - 1
            self._bar.set_description(name)
        else:
            self._print_line(name)

    def report_frame(self, what: str, done: int, count: int, seconds: float) -> None:
        """Report progress, at most once per interval. Call this method for each frame.

        Args:
            seconds: time since the start of this part.
        """
        now = time.perf_counter()
        if now < self._next_report_s:
            return
        self._next_report_s = now + self._interval_s
        text = f'{self._name}: {what}, {done} of {counted(count, "frame")}, {seconds:.0f} s'
        if self._bar is not None:
            self._bar.set_description(text)
        else:
            self._print_line(text)

    def clear(self) -> None:
        """Clear the bar, so that other text can be printed on the terminal."""
        if self._bar is not None:
            self._bar.clear()

    def _print_line(self, text: str) -> None:
        print(f'[{self._number}/{self._total}] {text}', file=sys.stderr, flush=True)


class MeasurementControl:
    """Decides when each measurement ends.

    Args:
        count: maximum frames of each measurement.
        warmup: maximum frames of each warm-up.
        seconds: maximum seconds of each measurement; None sets no limit.
        progress: receives the progress of each frame; None reports nothing.

    Attributes:
        stopped: set to True to stop. The current measurement ends, and no other begins.
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

    def announce(self, name: str) -> None:
        """Show the name of the measurement that starts now."""
        if self._progress is not None:
            self._progress.announce(name)

    def begin(self, what: str, max_frames: int | None = None) -> None:
        """Start the clock of a measurement.

        Args:
            max_frames: maximum number of frames; ``count`` by default.
        """
        self._begin(what, self.count if max_frames is None else max_frames, self.seconds)

    def begin_warm_up(self, min_frames: int = 0) -> None:
        """Start the clock of a warm-up of at most ``warmup`` or ``min_frames`` frames."""
        share = None if self.seconds is None else self.seconds * _WARM_UP_SHARE
        self._begin('warming up', max(self.warmup, min_frames), share)

    def _begin(self, what: str, max_frames: int, limit: float | None) -> None:
        self._what, self._max_frames, self._limit = what, max_frames, limit
        self._start = time.perf_counter()

    def must_continue(self, done: int, min_frames: int = 1) -> bool:
        """Return whether to start another frame.

        Args:
            min_frames: number of frames that start even after a stop or the time limit, unless
                ``begin`` set a lower maximum.
        """
        if done >= self._max_frames:
            return False
        seconds = time.perf_counter() - self._start
        if self._progress is not None:
            self._progress.report_frame(self._what, done, self._max_frames, seconds)
        if done < min_frames:
            return True
        return not self.stopped and (self._limit is None or seconds < self._limit)

    def runs_that_fit(self, seconds_each: float, max_runs: int) -> int:
        """Return how many runs of ``seconds_each`` fit into a measurement: 1 to ``max_runs``."""
        if self.stopped:
            return 1
        if self.seconds is None or seconds_each <= 0:
            return max_runs
        return min(max_runs, max(1, int(self.seconds / seconds_each)))


@contextlib.contextmanager
def stop_on_interrupt(control: MeasurementControl) -> Iterator[None]:
    """Let the first Ctrl-C stop the measurements, and the second raise KeyboardInterrupt.

    The first Ctrl-C raises no exception, because an exception during a call to CUDA, TensorRT or
    ONNX Runtime could leave an invalid state.
    """
    previous_handler = signal.getsignal(signal.SIGINT)
    if previous_handler in (signal.SIG_IGN, None):  # background jobs ignore it
        yield
        return

    def stop(*_: object) -> None:
        control.stopped = True
        signal.signal(signal.SIGINT, previous_handler)
        # Do not print, because the signal may arrive during another print.
        os.write(2, b'stopping after the current frame; press Ctrl-C again to exit at once\n')

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous_handler)
