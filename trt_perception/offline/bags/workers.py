"""Runs units in processes of this machine. Only this module knows where a unit is run.

Each process opens the model once, and then runs one unit after the other. A unit whose process
dies is tried again twice, in a new process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Final, TypeAlias

from trt_perception.errors import (
    ConfigError,
    CudaError,
    EngineError,
    TrtPerceptionError,
    WriteError,
)
from trt_perception.offline.bags.units import Job, ModelFacts, Unit, UnitRunner

_TRIES: Final = 3
_PROGRESS_PERIOD_S: Final = 0.2
_END_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True)
class Opened:
    """A process has opened the model."""

    facts: ModelFacts


@dataclass(frozen=True)
class Progress:
    """Further images of a unit are finished. If the unit is tried again, they count again."""

    unit: Unit
    images: int


@dataclass(frozen=True)
class Finished:
    """The file of a unit exists."""

    unit: Unit


@dataclass(frozen=True)
class Failed:
    """A unit has no result. Other units go on."""

    unit: Unit
    reason: str


Event: TypeAlias = Opened | Progress | Finished | Failed


@dataclass(eq=False)
class _Process:
    """A process that runs units.

    Attributes:
        unit: the unit that it runs; None if it waits.
        is_open: whether it has opened the model.
        images: number of finished images of the unit.
        last_words: an error that made the process end.
    """

    process: Any
    connection: Connection
    device_id: int
    unit: Unit | None = None
    is_open: bool = False
    images: int = 0
    last_words: str = ''


def run_units(
    units: Sequence[Unit], job: Job, processes: int, device_ids: Sequence[int]
) -> Generator[Event, None, None]:
    """Run units, and yield what happens. Closing the generator ends all processes.

    Args:
        units: in the order in which they start.
        processes: number of processes.
        device_ids: CUDA devices; the processes are distributed evenly.

    Raises:
        EngineError: the model cannot be used.
        ConfigError: the devices are not of one kind.
        WriteError: a file cannot be written, for instance because the disk is full.
    """
    pool = _Pool(deque(units), job, min(processes, len(units)), device_ids)
    try:
        while pool.has_work:
            pool.start_processes()
            pool.send_units()
            yield from pool.events()
    finally:
        pool.close()


class _Pool:
    """The processes, and the units that wait for them."""

    def __init__(
        self, waiting: deque[Unit], job: Job, processes: int, device_ids: Sequence[int]
    ) -> None:
        self._waiting = waiting
        self._job = job
        self._count = processes
        self._device_ids = device_ids
        self._processes: list[_Process] = []
        self._tries: dict[tuple[str, int], int] = {}
        self._facts: ModelFacts | None = None
        self._failed_starts = 0

    @property
    def has_work(self) -> bool:
        """Whether a unit waits or is being run."""
        return bool(self._waiting) or any(process.unit for process in self._processes)

    def start_processes(self) -> None:
        """Start processes for the waiting units."""
        # Only one process opens the model at first, because this may prepare files for the others.
        most = self._count if self._facts is not None else 1
        busy = sum(process.unit is not None for process in self._processes)
        while len(self._processes) < min(most, busy + len(self._waiting)):
            used = Counter(process.device_id for process in self._processes)
            self._processes.append(_start(self._job, min(self._device_ids, key=used.__getitem__)))

    def send_units(self) -> None:
        """Give a unit to each process that waits for one."""
        for process in self._processes:
            if process.is_open and process.unit is None and self._waiting:
                unit = self._waiting.popleft()
                key = unit.bag, unit.number
                self._tries[key] = self._tries.get(key, 0) + 1
                process.unit, process.images = unit, 0
                with contextlib.suppress(ConnectionError):  # it has died: `events` finds out
                    process.connection.send(unit)

    def events(self) -> Iterator[Event]:
        """Wait for messages of processes, and yield what they mean."""
        ready = wait([process.connection for process in self._processes])
        for process in [each for each in self._processes if each.connection in ready]:
            try:
                kind, *values = process.connection.recv()
            except (EOFError, ConnectionError):  # noqa: PERF203
                yield from self._on_death(process)
            else:
                yield from self._on_message(process, kind, values)

    def _on_message(self, process: _Process, kind: str, values: list[Any]) -> Iterator[Event]:
        if kind == 'opened':
            (facts,) = values
            if self._facts is not None and facts.runtime != self._facts.runtime:
                raise _mixed_devices_error(self._facts, facts)
            self._facts, process.is_open = facts, True
            yield Opened(facts)
        elif kind == 'refused':
            raise EngineError(*values[0], expected=values[1], fix=values[2])
        elif kind == 'not written':
            raise WriteError(*values[0], expected=values[1], fix=values[2])
        elif kind == 'dying':
            (process.last_words,) = values
        elif process.unit is not None:
            if kind == 'progress':
                process.images += values[0]
                yield Progress(process.unit, values[0])
                return
            unit, process.unit = process.unit, None
            yield Finished(unit) if kind == 'finished' else Failed(unit, *values)

    def _on_death(self, process: _Process) -> Iterator[Event]:
        """Try the unit of a dead process again, or give it up."""
        self._processes.remove(process)
        reason = _end_reason(process)
        unit = process.unit
        if unit is None:
            self._failed_starts += 1
            if self._failed_starts >= _TRIES:
                raise EngineError(self._job.model, f'cannot be run: {reason}')
            return
        yield Progress(unit, -process.images)
        if self._tries[unit.bag, unit.number] < _TRIES:
            self._waiting.appendleft(unit)
        else:
            yield Failed(unit, reason)

    def close(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.process.terminate()
        for process in self._processes:
            process.process.join(_END_TIMEOUT_S)
            if process.process.is_alive():
                process.process.kill()
                process.process.join()
            process.connection.close()


def _mixed_devices_error(one: ModelFacts, other: ModelFacts) -> ConfigError:
    found = [
        ' with '.join(facts.runtime.get(key, '') for key in ('provider', 'gpu'))
        for facts in (one, other)
    ]
    return ConfigError(
        '--device',
        f'the processes run the model in different ways: {" and ".join(found)}',
        expected='one provider, and GPUs of one kind, because results differ in the last bits',
        fix='name devices of one kind, or set onnx_provider',
    )


def _start(job: Job, device_id: int) -> _Process:
    # A forked process cannot use CUDA.
    context = multiprocessing.get_context('spawn')
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, job, device_id), daemon=True)
    process.start()
    theirs.close()
    return _Process(process, ours, device_id)


def _end_reason(process: _Process) -> str:
    """Wait for the end of a process, and return why it ended."""
    process.process.join(_END_TIMEOUT_S)
    process.connection.close()
    if process.last_words:
        return process.last_words
    code = process.process.exitcode
    if code is not None and code < 0:
        return f'its process was ended by {signal.Signals(-code).name}'
    return f'its process ended with exit code {code}'


def _work(connection: Connection, job: Job, device_id: int) -> None:
    """Run units until the parent closes the connection. The main function of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the parent ends this process
    try:
        _run_all(connection, job, device_id)
    except (EOFError, ConnectionError):
        return  # the parent has ended


def _run_all(connection: Connection, job: Job, device_id: int) -> None:
    try:
        runner = UnitRunner(job, device_id)
    except TrtPerceptionError as error:
        connection.send(('refused', *_fields(error)))
        return
    try:
        connection.send(('opened', runner.facts))
        while True:
            unit = connection.recv()
            progress = _ProgressSender(connection)
            try:
                runner.run(unit, progress)
            except WriteError as error:
                connection.send(('not written', *_fields(error)))
            except CudaError as error:
                connection.send(('dying', str(error)))  # a new process may use the GPU again
                return
            except ConnectionError:
                raise  # the parent has ended
            except (TrtPerceptionError, OSError) as error:
                connection.send(('failed', str(error)))
            else:
                progress.flush()
                connection.send(('finished',))
    finally:
        runner.close()


def _fields(error: TrtPerceptionError) -> tuple[tuple[str, str], str, str]:
    return (error.subject, error.found), error.expected, error.fix


class _ProgressSender:
    """Sends numbers of finished images, at most five times a second."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._count = 0
        self._sent_s = time.monotonic()

    def __call__(self, images: int) -> None:
        """Count finished images."""
        self._count += images
        if time.monotonic() - self._sent_s > _PROGRESS_PERIOD_S:
            self.flush()

    def flush(self) -> None:
        """Send what was counted."""
        self._connection.send(('progress', self._count))
        self._count, self._sent_s = 0, time.monotonic()
