"""How far a build is, and stopping it.

TensorRT builds in a thread of its own, so that Ctrl-C reaches Python while C++ works: a signal
that arrives inside TensorRT's callbacks would be swallowed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

__all__ = ['EngineProgress', 'make_progress_monitor', 'run_in_build_thread']

#: Called with what is done now, how many steps of it are done, and of how many.
EngineProgress = Callable[[str, int, int], None]
_POLL_S: Final = 0.1
_FINE: Final = 1000
_Result = TypeVar('_Result')


def make_progress_monitor(trt: Any, stop: threading.Event) -> Any:
    """Return a TensorRT progress monitor that ends the build once ``stop`` is set.

    Its method ``position`` returns (phase, done, total), nested phases in one scale.
    """

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            # TensorRT reports from any thread.
            self._lock = threading.Lock()
            self._phases: dict[str, list[int]] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:  # noqa: ARG002
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
            return phases[-1][0] if phases else '', int(share * _FINE), _FINE

    return Monitor()


def run_in_build_thread(
    work: Callable[[], _Result],
    stop: threading.Event,
    *,
    watch: Callable[[], None],
) -> _Result:
    """Do the work in a thread of its own; return its result.

    Args:
        work: ends soon after ``stop`` is set.
        stop: set when the work shall end early.
        watch: called ten times a second in this thread, to show progress.

    Raises:
        KeyboardInterrupt: Ctrl-C; the work has ended by then.
        BaseException: whatever the work raised.
    """
    results: list[_Result] = []
    errors: list[BaseException] = []
    # Not Thread.is_alive: up to Python 3.12 an exception within join() makes it say no for ever.
    # TensorRT aborts the process where the interpreter ends before it.
    begun, ended = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        try:
            # Ctrl-C may come while the thread starts; then nobody waits for it.
            if not stop.is_set():
                results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            ended.set()

    # A daemon: a process that must end at once does not wait for it.
    thread = threading.Thread(target=run, name='build', daemon=True)
    try:
        thread.start()
        while not ended.wait(_POLL_S):
            watch()
    except BaseException:
        stop.set()
        while begun.is_set() and not ended.is_set():
            with contextlib.suppress(KeyboardInterrupt):
                ended.wait(_POLL_S)
        raise
    if errors:
        raise errors[0]
    return results[0]
