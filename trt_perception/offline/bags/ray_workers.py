# SPDX-License-Identifier: Apache-2.0
"""Runs parts in workers that Ray places on the machines of a cluster, with a GPU for each.

Ray only places the workers and reports their ends. Bags, models and results are files in folders
that all machines share, so no pixels pass through Ray.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from trt_perception.errors import ConfigError, EngineError, TrtPerceptionError
from trt_perception.files.plain_text import counted, to_one_line
from trt_perception.model.files.model_file import is_onnx
from trt_perception.model.files.triton_address import is_triton_address
from trt_perception.offline.bags.part import Job, Part
from trt_perception.offline.bags.plan import package_digest
from trt_perception.offline.bags.workers import (
    Event,
    Failed,
    Finished,
    Progress,
    WorkerDiedError,
    run_parts_at,
    serve_parts,
)

_PERIOD_S: Final = 5.0
_CONNECTION_S: Final = 10.0
# Ray names the cause after a trace.
_LONGEST_REASON: Final = 2000
# The least that Ray accepts: only short messages pass through its memory.
_OBJECT_STORE_BYTES: Final = 80 * 2**20


def load_ray() -> Any:
    """Return the module of Ray, with its statistics of usage switched off.

    Raises:
        ConfigError: Ray is not installed.
    """
    # Ray reads these variables when it is imported.
    os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')
    os.environ.setdefault('RAY_AUTH_MODE', 'token')
    try:
        return importlib.import_module('ray')
    except ImportError as error:
        raise ConfigError(
            '--ray',
            f'needs Ray ({error})',
            fix="install it: python3 -m pip install 'ray>=2.60,<3'",
        ) from error


def run_parts(
    parts: Sequence[Part], job: Job, workers: int, address: str | None
) -> Generator[Event, None, None]:
    """Run parts in workers of Ray. Closing the generator ends the workers.

    Args:
        parts: in the order in which they start.
        workers: number of workers. Each has a GPU of its own, or a CPU core without GPUs.
        address: HOST:PORT of a cluster, which this machine belongs to; None starts Ray here.

    Raises:
        EngineError: the model cannot be used.
        ConfigError: Ray is missing or cannot be started, or the cluster has too few GPUs or cores,
            or GPUs of several kinds.
        WriteError: a file cannot be written.
    """
    if not parts:
        return
    ray = load_ray()
    with _connected(ray, address, workers):
        yield from run_parts_at(_Cluster(ray, job, workers), parts, job, workers)


@contextlib.contextmanager
def _connected(ray: Any, address: str | None, workers: int) -> Iterator[None]:
    """Connect to a cluster, or start Ray on this machine and end it afterwards."""
    options: dict[str, Any] = {'address': address}
    folder = ''
    if address:
        _check_listens(address)
    else:
        # Ray listens on all interfaces, so it must never run without a token. A token in the
        # environment leaves no file. Ray opens its folder to all users, so it needs a private one
        # around it.
        os.environ['RAY_AUTH_MODE'] = 'token'
        os.environ.setdefault('RAY_AUTH_TOKEN', secrets.token_hex(32))
        # The paths of its sockets must be short, so TMPDIR does not apply.
        folder = tempfile.mkdtemp(prefix='ray_', dir='/tmp')
        options = {
            'address': 'local',
            'num_cpus': max(workers, len(os.sched_getaffinity(0))),
            'include_dashboard': False,
            'object_store_memory': _OBJECT_STORE_BYTES,
            '_temp_dir': os.path.join(folder, 'r'),
        }
    try:
        try:
            ray.init(**options, log_to_driver=False, logging_level='WARNING')
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise ConfigError(
                f'--ray-address {address}' if address else '--ray',
                f'Ray cannot be used: {to_one_line(error)}',
                fix='see docs/bags_many.md' if address else '',
            ) from error
        yield
    finally:
        ray.shutdown()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _check_listens(address: str) -> None:
    """Check that a cluster has this address. Ray would try for two minutes.

    Raises:
        ConfigError: no program listens there.
    """
    host, _, port = address.rpartition(':')
    try:
        socket.create_connection((host.strip('[]'), int(port)), _CONNECTION_S).close()
    except OSError as error:
        raise ConfigError(
            f'--ray-address {address}',
            f'no cluster answers: {error.strerror or error}',
            fix='start it: RAY_AUTH_MODE=token ray start --head',
        ) from error


class _Cluster:
    """Runs workers as actors of Ray.

    Args:
        ray: the module of Ray, connected with a cluster.
        workers: number of workers.

    Raises:
        ConfigError: the cluster has too few GPUs or cores.
    """

    def __init__(self, ray: Any, job: Job, workers: int) -> None:
        self._ray = ray
        self._resource = 'GPU' if _uses_gpu(job, self._places('GPU')) else 'CPU'
        places = self._places(self._resource)
        if sum(places) < workers:
            noun = 'GPU' if self._resource == 'GPU' else 'CPU core'
            raise ConfigError(
                f'--workers {workers}',
                f'Ray has {counted(sum(places), noun)}, and each worker needs one',
                fix='add machines to the cluster, or lower --workers',
            )
        job = replace(job, processes=min(workers, max(places)))
        here = socket.gethostname()
        self._arguments = job, os.getcwd(), here, package_digest()
        gpus = 1 if self._resource == 'GPU' else 0
        # Parts are tried again by this command, which knows what they had finished.
        self._actor = ray.remote(_Actor).options(num_cpus=1, num_gpus=gpus, max_restarts=0)

    def _places(self, resource: str) -> list[int]:
        """Return the number of GPUs or CPU cores of each machine."""
        machines = [node for node in self._ray.nodes() if node['Alive']]
        return [int(machine['Resources'].get(resource, 0)) for machine in machines]

    def start(self) -> _RayWorker:
        """Start a worker. It opens the model as soon as a GPU or core is free."""
        return _RayWorker(self._ray, self._actor.remote(*self._arguments))

    def wait(self, workers: Sequence[_RayWorker]) -> list[_RayWorker]:
        """Wait for a message, at most 5 s."""
        by_stream = {worker.stream: worker for worker in workers if worker.stream is not None}
        ready, _ = self._ray.wait(list(by_stream), num_returns=1, timeout=_PERIOD_S)
        if not ready and not any(self._places(self._resource)):
            raise ConfigError(
                '--ray', 'no machine is left', fix='the same command goes on with the next part'
            )
        return [by_stream[stream] for stream in ready]

    def end(self, workers: Sequence[_RayWorker]) -> None:
        """End workers."""
        for worker in workers:
            # The connection with the cluster may have ended.
            with contextlib.suppress(self._ray.exceptions.RayError, RuntimeError):
                self._ray.kill(worker.actor)


def _uses_gpu(job: Job, gpus: Sequence[int]) -> bool:
    """Return whether a worker needs a GPU.

    Args:
        gpus: numbers of GPUs of the machines. ONNX files may run on CPUs if there is none.
    """
    if is_triton_address(job.model):
        return False
    provider = job.parameters.node.onnx_provider
    return not is_onnx(job.model) or (any(gpus) if provider == 'auto' else provider != 'cpu')


class _RayWorker:
    """A worker as this command sees it.

    Attributes:
        actor: its process.
        stream: its messages; None while it waits for a part.
    """

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray = ray
        self.actor = actor
        self.stream = actor.open.options(num_returns='streaming').remote()
        self._part: Part | None = None

    def send(self, part: Part) -> None:
        """Start a part."""
        self._part = part
        self.stream = self.actor.run.options(num_returns='streaming').remote(part)

    def receive(self) -> Event:
        """Return the next event."""
        try:
            message: Event | Exception = self._ray.get(next(self.stream))
        except StopIteration as error:
            raise WorkerDiedError('its worker ended without a result') from error
        except self._ray.exceptions.RayError as error:
            reason = f'Ray: {to_one_line(error, _LONGEST_REASON)}'
            if self._part is None:
                reason = f'is this package on the path of Python where Ray was started? {reason}'
            raise WorkerDiedError(reason) from error
        if isinstance(message, WorkerDiedError):
            self._ray.kill(self.actor)
        if isinstance(message, Exception):
            raise message
        if not isinstance(message, Progress):
            self.stream = None
        if isinstance(message, Finished):
            # Listing a folder on NFS ends the memory of files that were missing before. The folder
            # itself is missing after its last part was joined.
            with contextlib.suppress(OSError):
                os.listdir(message.part.target.parent)
        return message


class _Actor:
    """The process of a worker. Ray calls its methods.

    Args:
        folder: the folder of the command, from which relative paths start.
        host: the machine of the command.
        digest: hash of the package there.
    """

    def __init__(self, job: Job, folder: str, host: str, digest: str) -> None:
        self._job = job
        self._folder = folder
        self._digest = digest
        self._host = socket.gethostname()
        self._is_elsewhere = self._host != host
        self._parts = SimpleQueue[Part]()
        self._messages = SimpleQueue[Event | Exception]()

    def open(self) -> Iterator[Event | Exception]:
        """Open the model, and yield the message about it."""
        if package_digest() != self._digest:
            yield EngineError(
                'trt_perception',
                f'{self._host} has another version than this machine',
                fix='install one version on all machines',
            )
            return
        if missing := self._missing(self._folder):
            yield missing
            return
        os.chdir(self._folder)
        # Ray runs the methods, which send messages, in another thread than the model.
        threading.Thread(target=self._serve, daemon=True).start()
        yield from self._until_last_message()

    def run(self, part: Part) -> Iterator[Event | Exception]:
        """Run a part, and yield the messages about it."""
        # A machine without the folder would otherwise soon have failed with all parts.
        if missing := self._missing(part.bag, part.target.parent):
            yield missing
            return
        self._parts.put(part)
        yield from self._until_last_message()

    def _missing(self, *paths: str | Path) -> EngineError | None:
        """Return an error if a path, which exists for the command, is missing on this machine."""
        for path in paths:
            if self._is_elsewhere and not os.path.exists(path):
                return EngineError(
                    str(path),
                    f'{self._host} does not have it',
                    fix='mount its folder at the same path on all machines of the cluster',
                )
        return None

    # The channel of `serve_parts`.

    def send(self, message: Event | Exception) -> None:
        """Send a message to the command."""
        self._messages.put(message)

    def recv(self) -> Part:
        """Wait for the next part."""
        return self._parts.get()

    def _serve(self) -> None:
        try:
            # Ray shows a worker its own GPU only.
            serve_parts(self, self._job, 0)
        except BaseException as error:
            self.send(WorkerDiedError(f'{type(error).__name__}: {error}'))

    def _until_last_message(self) -> Iterator[Event | Exception]:
        while True:
            message = self._messages.get()
            yield self._with_host(message) if self._is_elsewhere else message
            if not isinstance(message, Progress):
                return

    def _with_host(self, message: Event | Exception) -> Event | Exception:
        """Name this machine in messages about errors."""
        if isinstance(message, Failed):
            return replace(message, sentence=f'{message.sentence} (on {self._host})')
        if isinstance(message, WorkerDiedError):
            return WorkerDiedError(f'{message} (on {self._host})')
        if isinstance(message, TrtPerceptionError):
            message.found = f'{message.found} (on {self._host})'
        return message
