# SPDX-License-Identifier: Apache-2.0
"""Reports the progress of a TensorRT build, and stops the build on request.

TensorRT builds in a separate thread. If it built in the main thread, Python would lose a signal
that arrives inside TensorRT's callbacks.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

#: Called with the name of the current phase, and the numbers of finished and of all steps.
EngineProgress = Callable[[str, int, int], None]
_POLL_S: Final = 0.1
_PROGRESS_STEPS: Final = 1000
_Result = TypeVar('_Result')


def make_progress_monitor(trt: Any, stop: threading.Event) -> Any:
    """Return a TensorRT progress monitor that ends the build after ``stop`` is set.

    Its method ``position`` returns the name of the innermost phase, and the numbers of finished
    and of all steps. Both numbers cover the outermost phase with all its nested phases.
    """

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            # TensorRT may call these methods from any thread.
            self._lock = threading.Lock()
            self._phases: dict[str, list[int]] = {}

        def phase_start(
            self,
            phase_name: str,
            parent_phase: str | None,  # noqa: ARG002
            num_steps: int,
        ) -> None:
            with self._lock:
                self._phases[phase_name] = [0, max(1, num_steps)]

        def phase_finish(self, phase_name: str) -> None:
            with self._lock:
                self._phases.pop(phase_name, None)

        def step_complete(self, phase_name: str, step: int) -> bool:
            with self._lock:
                if phase_name in self._phases:
                    self._phases[phase_name][0] = step + 1
            return not stop.is_set()

        def position(self) -> tuple[str, int, int]:
            with self._lock:
                phases = list(self._phases.items())
            share = 0.0
            for _, (done, total) in reversed(phases):
                share = min(1.0, (done + share) / total)
            return phases[-1][0] if phases else '', int(share * _PROGRESS_STEPS), _PROGRESS_STEPS

    return Monitor()


def run_in_build_thread(
    work: Callable[[], _Result],
    stop: threading.Event,
    *,
    on_poll: Callable[[], None],
) -> _Result:
    """Call ``work`` in a new thread, wait for its end, and return its result.

    Args:
        work: must end soon after ``stop`` is set.
        stop: this function sets the event if an exception interrupts the wait.
        on_poll: called ten times a second in the calling thread, to show progress.

    Raises:
        KeyboardInterrupt: the user pressed Ctrl-C, and the work has ended.
        BaseException: any exception of ``work``.
    """
    results: list[_Result] = []
    errors: list[BaseException] = []
    # Do not use Thread.is_alive: up to Python 3.12, it stays False after an exception within
    # join(). The wait is necessary, because TensorRT aborts the process if the interpreter ends
    # before the build.
    has_started, has_ended = threading.Event(), threading.Event()

    def run() -> None:
        has_started.set()
        try:
            # Ctrl-C may arrive while the thread starts. Then the caller has stopped waiting.
            if not stop.is_set():
                results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            has_ended.set()

    # The interpreter does not wait for a daemon thread, so the process can still end at once.
    thread = threading.Thread(target=run, name='build', daemon=True)
    try:
        thread.start()
        while not has_ended.wait(_POLL_S):
            on_poll()
    except BaseException:
        stop.set()
        while has_started.is_set() and not has_ended.is_set():
            with contextlib.suppress(KeyboardInterrupt):
                has_ended.wait(_POLL_S)
        raise
    if errors:
        raise errors[0]
    return results[0]
