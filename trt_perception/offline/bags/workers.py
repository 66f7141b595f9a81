# SPDX-License-Identifier: Apache-2.0
"""Runs parts in workers, which are processes of this machine or of another place.

Each worker opens the model once, and then runs one part after the other. A part whose worker dies
is tried again twice, in a new worker. `ray_workers` is the other place.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from trt_perception.errors import (
    ConfigError,
    CudaError,
    EngineError,
    TrtPerceptionError,
    WriteError,
)
from trt_perception.offline.bags.part import Job, ModelFacts, Part
from trt_perception.offline.bags.part_runner import PartRunner
from trt_perception.transport.advice import keep_freed_memory

_TRIES: Final = 3
_PROGRESS_PERIOD_S: Final = 0.2
_END_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True)
class Opened:
    """A process has opened the model."""

    facts: ModelFacts


@dataclass(frozen=True)
class Progress:
    """Further images of a part are finished. If the part is tried again, they count again."""

    part: Part
    images: int


@dataclass(frozen=True)
class Finished:
    """The file of a part exists."""

    part: Part


@dataclass(frozen=True)
class Failed:
    """A part has no result. Other parts go on.

    Attributes:
        sentence: names the bag and the reason.
    """

    part: Part
    sentence: str


Event: TypeAlias = Opened | Progress | Finished | Failed


class WorkerDiedError(Exception):
    """A worker has ended before its part, or must end. The text is the reason."""


class Worker(Protocol):
    """A process that runs parts, wherever it is."""

    def send(self, part: Part) -> None:
        """Start a part. `receive` tells if the worker has died."""

    def receive(self) -> Event:
        """Return the next event. Waits for it.

        Raises:
            WorkerDiedError: the worker has died. A new one may run the part.
            TrtPerceptionError: the command must end.
        """


_W = TypeVar('_W', bound=Worker)


class Place(Protocol[_W]):
    """Where workers run."""

    def start(self) -> _W:
        """Start a worker, which opens the model."""

    def wait(self, workers: Sequence[_W]) -> Sequence[_W]:
        """Wait for messages. Return workers whose `receive` does not wait; maybe none.

        Raises:
            ConfigError: no worker can ever run.
        """

    def end(self, workers: Sequence[_W]) -> None:
        """End workers, whatever they do."""


@dataclass(eq=False)
class _State(Generic[_W]):
    """A worker, and what it does.

    Attributes:
        part: the part that it runs; None if it waits.
        is_open: whether it has opened the model.
        images: number of finished images of the part.
    """

    worker: _W
    part: Part | None = None
    is_open: bool = False
    images: int = 0


def run_parts(
    parts: Sequence[Part], job: Job, processes: int, device_ids: Sequence[int]
) -> Generator[Event, None, None]:
    """Run parts in processes of this machine. See `run_parts_at`.

    Args:
        parts: in the order in which they start.
        processes: number of processes.
        device_ids: CUDA devices; the processes are distributed evenly.
    """
    return run_parts_at(_ThisMachine(job, device_ids), parts, job, processes)


def run_parts_at(
    place: Place[_W], parts: Sequence[Part], job: Job, workers: int
) -> Generator[Event, None, None]:
    """Run parts, and yield what happens. Closing the generator ends all workers.

    Args:
        parts: in the order in which they start.
        workers: number of workers.

    Raises:
        EngineError: the model cannot be used.
        ConfigError: the devices are not of one kind, or no worker can run.
        WriteError: a file cannot be written, for instance because the disk is full.
    """
    pool = _Pool(place, deque(parts), job, min(workers, len(parts)))
    try:
        while pool.has_work:
            pool.start_workers()
            pool.send_parts()
            yield from pool.events()
    finally:
        pool.close()


class _Pool(Generic[_W]):
    """The workers, and the parts that wait for them."""

    def __init__(self, place: Place[_W], waiting: deque[Part], job: Job, count: int) -> None:
        self._place = place
        self._waiting = waiting
        self._job = job
        self._count = count
        self._states: list[_State[_W]] = []
        self._tries: dict[tuple[str, int], int] = {}
        self._facts: ModelFacts | None = None
        self._failed_starts = 0

    @property
    def has_work(self) -> bool:
        """Whether a part waits or is being run."""
        return bool(self._waiting) or any(state.part for state in self._states)

    def start_workers(self) -> None:
        """Start workers for the waiting parts."""
        # Only one worker opens the model at first, because this may prepare files for the others.
        most = self._count if self._facts is not None else 1
        busy = sum(state.part is not None for state in self._states)
        while len(self._states) < min(most, busy + len(self._waiting)):
            self._states.append(_State(self._place.start()))

    def send_parts(self) -> None:
        """Give a part to each worker that waits for one."""
        for state in self._states:
            if state.is_open and state.part is None and self._waiting:
                part = self._waiting.popleft()
                key = part.bag, part.number
                self._tries[key] = self._tries.get(key, 0) + 1
                state.part, state.images = part, 0
                state.worker.send(part)

    def events(self) -> Iterator[Event]:
        """Wait for messages of workers, and yield what they mean."""
        ready = self._place.wait([state.worker for state in self._states])
        for state in [each for each in self._states if each.worker in ready]:
            try:
                event = state.worker.receive()
            except WorkerDiedError as error:  # noqa: PERF203
                yield from self._on_death(state, str(error))
            else:
                self._note(state, event)
                yield event

    def _note(self, state: _State[_W], event: Event) -> None:
        if isinstance(event, Opened):
            if self._facts is not None and event.facts.runtime != self._facts.runtime:
                raise _mixed_devices_error(self._facts, event.facts)
            self._facts, state.is_open = event.facts, True
        elif isinstance(event, Progress):
            state.images += event.images
        else:
            state.part = None

    def _on_death(self, state: _State[_W], reason: str) -> Iterator[Event]:
        """Try the part of a dead worker again, or give it up."""
        self._states.remove(state)
        part = state.part
        if part is None:
            self._failed_starts += 1
            if self._failed_starts >= _TRIES:
                raise EngineError(self._job.model, f'cannot be run: {reason}')
            return
        yield Progress(part, -state.images)
        if self._tries[part.bag, part.number] < _TRIES:
            self._waiting.appendleft(part)
        else:
            yield Failed(part, f'{part}: {reason}')

    def close(self) -> None:
        """End all workers."""
        self._place.end([state.worker for state in self._states])


def _mixed_devices_error(one: ModelFacts, other: ModelFacts) -> ConfigError:
    found = [
        ' with '.join(facts.runtime.get(key, '') for key in ('provider', 'gpu'))
        for facts in (one, other)
    ]
    return ConfigError(
        '--device',
        f'the processes run the model in different ways: {" and ".join(found)}',
        expected='one provider, and GPUs of one kind, because results differ in the last bits',
        fix='choose devices and machines of one kind, or set onnx_provider',
    )


class _ThisMachine:
    """Runs workers as processes of this machine.

    Args:
        device_ids: CUDA devices; the processes are distributed evenly.
    """

    def __init__(self, job: Job, device_ids: Sequence[int]) -> None:
        self._job = job
        self._device_ids = device_ids
        self._processes: list[_Process] = []

    def start(self) -> _Process:
        """Start a process."""
        self._processes = [each for each in self._processes if not each.has_ended]
        used = Counter(process.device_id for process in self._processes)
        process = _Process(self._job, min(self._device_ids, key=used.__getitem__))
        self._processes.append(process)
        return process

    def wait(self, workers: Sequence[_Process]) -> list[_Process]:
        """Wait for a message."""
        ready = wait([process.connection for process in workers])
        return [process for process in workers if process.connection in ready]

    def end(self, workers: Sequence[_Process]) -> None:
        """End processes."""
        for process in workers:
            process.process.terminate()
        for process in workers:
            process.process.join(_END_TIMEOUT_S)
            if process.process.is_alive():
                process.process.kill()
                process.process.join()
            process.connection.close()


class _Process:
    """A process of this machine that runs parts.

    Attributes:
        has_ended: whether `receive` has reported the end.
    """

    def __init__(self, job: Job, device_id: int) -> None:
        # A forked process cannot use CUDA.
        context = multiprocessing.get_context('spawn')
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, job, device_id), daemon=True)
        with _interrupts_blocked():
            self.process.start()
        theirs.close()
        self.device_id = device_id
        self.has_ended = False

    def send(self, part: Part) -> None:
        """Start a part."""
        with contextlib.suppress(ConnectionError):  # it has died: `receive` finds out
            self.connection.send(part)

    def receive(self) -> Event:
        """Return the next event."""
        try:
            message: Event | Exception = self.connection.recv()
        except (EOFError, ConnectionError) as error:
            raise WorkerDiedError(self._end_reason()) from error
        if isinstance(message, WorkerDiedError):
            self._end_reason()
        if isinstance(message, Exception):
            raise message
        return message

    def _end_reason(self) -> str:
        """Wait for the end of the process, and return why it ended."""
        self.has_ended = True
        self.process.join(_END_TIMEOUT_S)
        self.connection.close()
        code = self.process.exitcode
        if code is not None and code < 0:
            return f'its process was ended by {signal.Signals(-code).name}'
        return f'its process ended with exit code {code}'


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Start a process that Ctrl-C does not reach, also while it starts: the parent ends it."""
    resource_tracker.ensure_running()  # its start would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(connection: Connection, job: Job, device_id: int) -> None:
    """Run parts until the parent closes the connection. The main function of a process."""
    with contextlib.suppress(EOFError, ConnectionError):  # the parent has ended
        serve_parts(connection, job, device_id)


class Channel(Protocol):
    """Connects a worker with the command."""

    def send(self, message: Event | Exception, /) -> None:
        """Send an event to the command, or an error, which `Worker.receive` raises there."""

    def recv(self) -> Any:
        """Wait for the next part."""


def serve_parts(channel: Channel, job: Job, device_id: int) -> None:
    """Open the model, and run parts until the channel is closed.

    Raises:
        EOFError, ConnectionError: the channel is closed.
    """
    # Without this, page faults are more than half of the CPU time of reading raw images.
    keep_freed_memory()
    try:
        runner = PartRunner(job, device_id)
    except TrtPerceptionError as error:
        channel.send(error)
        return
    try:
        channel.send(Opened(runner.facts))
        while True:
            message = _run(runner, channel.recv(), channel)
            channel.send(message)
            if isinstance(message, WorkerDiedError):
                return
    finally:
        runner.close()


def _run(runner: PartRunner, part: Part, channel: Channel) -> Event | Exception:
    """Run a part, and return the message about its end."""
    progress = _ProgressSender(part, channel)
    try:
        runner.run(part, progress)
    except WriteError as error:
        return error
    except ConfigError as error:
        return Failed(part, str(error))  # about the bag, which the error names
    except CudaError as error:
        return WorkerDiedError(str(error))  # a new process may use the GPU again
    except ConnectionError:
        raise  # the parent has ended
    except (TrtPerceptionError, OSError) as error:
        return Failed(part, f'{part}: {error}')
    progress.flush()
    return Finished(part)


class _ProgressSender:
    """Sends numbers of finished images, at most five times a second."""

    def __init__(self, part: Part, channel: Channel) -> None:
        self._part = part
        self._channel = channel
        self._count = 0
        self._sent_s = time.monotonic()

    def __call__(self, images: int) -> None:
        """Count finished images."""
        self._count += images
        if time.monotonic() - self._sent_s > _PROGRESS_PERIOD_S:
            self.flush()

    def flush(self) -> None:
        """Send what was counted."""
        self._channel.send(Progress(self._part, self._count))
        self._count, self._sent_s = 0, time.monotonic()
