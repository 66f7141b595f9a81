"""A model on a Triton server: several requests in flight, each with a time limit.

A request that is too late is not over: the server still reads and writes the shared memory of the
request. So a region is used again only after the server's own answer, or when the server is known
to be another process. Until then the request is lost, and its region waits.

A thread asks the server once per second whether the model is ready and unchanged. After an error
it asks more often. Until the model is ready again, requests fail at once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy.typing as npt

from trt_perception.errors import EngineError, InterruptionError, ServerError, ServerTimeoutError
from trt_perception.model.files.triton_address import TritonAddress
from trt_perception.model.pipeline_options import TritonOptions
from trt_perception.model.tensors import TensorSpec
from trt_perception.process.interruption import check_interruption, interrupted_for_s
from trt_perception.stages.triton.connection import TritonConnection, request_error
from trt_perception.stages.triton.memory import TritonRegion, remove_left_regions
from trt_perception.stages.triton.messages import TritonMessages, answer_limit_bytes, with_batch

__all__ = ['TritonModel']

_LOG: Final = logging.getLogger(__name__)
_CHECK_PERIOD_S: Final = 1.0
# Time between two checks after an error, and until the model is ready again.
_MIN_CHECK_PERIOD_S: Final = 0.1
# The first answer may take longer, because a server often prepares a model in its first request.
_FIRST_TIMEOUT_S: Final = 60.0
# After a signal, requests in flight may still be answered within this time, except for a first
# request.
_INTERRUPTED_TIMEOUT_S: Final = 1.0
_INTERRUPTION_POLL_S: Final = 0.05
# Errors that only the server can cause. gRPC itself causes the others, too, for example after a
# lost connection, while the server may still run the request.
_ERRORS_OF_SERVER: Final = frozenset({'INVALID_ARGUMENT', 'NOT_FOUND', 'ALREADY_EXISTS'})
# How Triton refuses a request that waited too long in its queue: code UNAVAILABLE, and this text,
# which gRPC itself does not use. The server did not run the request, and will not.
_QUEUE_TIMEOUT: Final = 'Request timeout expired'


class _Request:
    """One request in flight. The lock of the model protects all fields but `is_over`.

    Attributes:
        region: shared memory of the request; None if the tensors are in the messages.
        deadline_s: time.monotonic() at which the request is too late.
        is_lost: whether the caller no longer waits.
        is_over: set when `outputs` or `error` is set.
    """

    def __init__(self, region: TritonRegion | None, deadline_s: float) -> None:
        self.region = region
        self.deadline_s = deadline_s
        self.is_lost = False
        self.is_over = threading.Event()
        self.outputs: list[npt.NDArray[Any]] = []
        self.error: EngineError | None = None


class TritonModel:
    """A model on a Triton server. Only one thread may call the methods.

    Args:
        address: server and model.
        options: time limit, shared memory, headers and TLS.

    Attributes:
        inputs: name, shape and dtype of each input.
        outputs: name, shape and dtype of each output.
        manifest: the manifest in the model's configuration; None without one.

    Raises:
        EngineError: the server does not answer, or its model cannot be used.
    """

    def __init__(self, address: TritonAddress, options: TritonOptions) -> None:
        self._address = address
        self._options = options
        self._connection = TritonConnection(address, options)
        try:
            self._served = self._connection.describe_model()
        except BaseException:
            self._connection.close()
            raise
        self.inputs, self.outputs = self._served.inputs, self._served.outputs
        self.manifest = self._served.manifest
        self._stub = self._connection.open_stub(answer_limit_bytes(self.outputs))
        self._messages = TritonMessages(
            self._connection.messages, address, self.inputs, self.outputs
        )
        self._lock = threading.Lock()
        self._requests: dict[int, _Request] = {}  # by slot
        self._free_regions: list[TritonRegion] = []
        self._waiting_regions: set[TritonRegion] = set()
        self._left_regions = remove_left_regions()
        self._problem: EngineError | None = None  # why requests fail at once
        self._change: EngineError | None = None  # why this object cannot go on
        self._regions: list[TritonRegion] = []
        self._check_now = threading.Event()
        self._timeout_s = max(_FIRST_TIMEOUT_S, options.timeout_s)  # until the first answer
        self._has_answered = False
        self._is_closing = threading.Event()
        self._checker = threading.Thread(target=self._check_forever, name='triton', daemon=True)
        self._checker.start()

    def use_shared_memory(self, slots: int, batch: int) -> None:
        """Try to pass tensors through shared memory. Otherwise the requests contain them.

        Args:
            slots: number of requests in flight. There is twice this number of regions.
            batch: size of the first dimension of each tensor, if this dimension is dynamic.
        """
        tensors = [
            TensorSpec(tensor.name, with_batch(tensor.shape, batch), tensor.dtype)
            for tensor in (*self.inputs, *self.outputs)
        ]
        if not self._options.shared_memory or any(min(t.shape, default=1) < 1 for t in tensors):
            return
        regions: list[TritonRegion] = []
        try:
            for _ in range(2 * slots):
                regions.append(TritonRegion(tensors))
                self._connection.register(regions[-1])
        except (OSError, EngineError) as error:
            text = '%s: requests contain the tensors, because there is no shared memory: %s'
            _LOG.info(text, self._address, error)
            self._remove(regions, regions)
            return
        except BaseException:
            self._remove(regions, regions)
            raise
        with self._lock:
            self._regions, self._free_regions = regions, list(regions)

    def start(self, slot: int, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
        """Send a request. Does not wait for the answer.

        Args:
            slot: number of the request, which must not be in flight.
            tensors: maps the name of each input to its array. The arrays are copied.
        """
        timeout_s = self._timeout_s
        with self._lock:
            problem = self._problem
            region = self._free_regions.pop() if self._free_regions and not problem else None
            request = _Request(region, time.monotonic() + timeout_s)
            self._requests[slot] = request
        if problem:
            request.error = problem
            request.is_over.set()
            return
        message = self._messages.request(tensors, region)
        # The server goes on with a late request, and may still write to its region. So such a
        # request has no time limit in gRPC. A request without a region has one, so that the
        # tensors of lost requests do not accumulate.
        future = self._stub.ModelInfer.future(
            message,
            timeout=None if region is not None else timeout_s,
            metadata=self._connection.headers,
        )
        future.add_done_callback(partial(self._on_answer, request))

    def is_done(self, slot: int) -> bool:
        """Return whether `result` would return at once."""
        request = self._requests[slot]
        return request.is_over.is_set() or time.monotonic() >= request.deadline_s

    def result(self, slot: int) -> list[npt.NDArray[Any]]:
        """Wait for the answer of a slot. Return all outputs in their order.

        The arrays are valid until the next call of `start` or `release`.

        Raises:
            ServerTimeoutError: the answer was too late.
            ServerError: the server or the connection failed.
            EngineError: the server now has another model under this address.
            InterruptionError: the process was asked to end.
        """
        request = self._requests[slot]
        must_end = self._wait(request)
        with self._lock:
            request.is_lost = not request.is_over.is_set()
            error = self._change or request.error
        if request.is_lost:
            if must_end:
                check_interruption()
            self._check_now.set()
            error = error or self._timeout_error()
        if error is not None:
            raise error
        return request.outputs

    def _wait(self, request: _Request) -> bool:
        """Wait until a request is over or too late. Return True if the process must end first."""
        while (wait_s := request.deadline_s - time.monotonic()) > 0:
            if request.is_over.wait(min(wait_s, _INTERRUPTION_POLL_S)):
                break
            waited_s = interrupted_for_s()
            if waited_s > _INTERRUPTED_TIMEOUT_S or (waited_s and not self._has_answered):
                return True
        return False

    def release(self, slot: int) -> None:
        """Free the memory of a slot whose result was read."""
        with self._lock:
            request = self._requests.pop(slot)
            # An exception, such as KeyboardInterrupt, may have ended the wait of `result`.
            request.is_lost = not request.is_over.is_set()
            if request.region is not None and not request.is_lost:
                self._free_regions.append(request.region)

    def run(self, tensors: Mapping[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """Send a request and return copies of all outputs. Raises the errors of `result`."""
        self.start(0, tensors)
        try:
            return [output.copy() for output in self.result(0)]
        finally:
            self.release(0)

    def close(self) -> None:
        """Close the connection and remove the shared memory. May be called again."""
        if self._is_closing.is_set():
            return
        self._is_closing.set()
        self._check_now.set()
        self._checker.join()
        with self._lock:
            free, regions = self._free_regions, self._regions
            self._free_regions, self._regions = [], []
        # A server that still runs a request of a region would crash without the region.
        self._remove(regions, free)
        self._connection.close()

    def _remove(
        self, regions: Sequence[TritonRegion], unused_regions: Sequence[TritonRegion]
    ) -> None:
        """Remove regions, and let the server forget the unused regions, if it answers."""
        with contextlib.suppress(EngineError):  # a stopped server costs only one time limit
            self._connection.unregister(*(region.name for region in unused_regions))
        for region in regions:
            region.close()

    def _on_answer(self, request: _Request, future: Any) -> None:
        """Store the answer of a request. A thread of gRPC calls this method."""
        outputs: list[npt.NDArray[Any]] = []
        error: EngineError | None = None
        is_own_answer = True
        try:
            outputs = self._messages.outputs(future.result(), request.region)
            self._timeout_s = self._options.timeout_s
            self._has_answered = True
        except ServerError as invalid:
            error = invalid
        except self._connection.call_errors as failed:
            code, details = failed.code().name, failed.details() or ''
            is_own_answer = code in _ERRORS_OF_SERVER or details.endswith(_QUEUE_TIMEOUT)
            if code == 'DEADLINE_EXCEEDED':
                error = self._timeout_error()
            else:
                error = request_error(ServerError, self._address, failed)
        except Exception as cancelled:  # the channel was closed
            is_own_answer = False
            error = ServerError(str(self._address), f'the request ended: {cancelled!r}')
        with self._lock:
            if request.region is not None and (request.is_lost or not is_own_answer):
                if is_own_answer:
                    self._free_regions.append(request.region)
                else:
                    self._waiting_regions.add(request.region)
                request.region = None
            request.outputs, request.error = outputs, error
            request.is_over.set()
        if error is not None:
            self._check_now.set()

    # The checking thread calls these methods.

    def _check_forever(self) -> None:
        while True:
            if self._problem is None:
                self._check_now.wait(_CHECK_PERIOD_S)
            if self._is_closing.wait(_MIN_CHECK_PERIOD_S):
                return
            self._check_now.clear()
            try:
                self._check()
            except InterruptionError:
                return

    def _check(self) -> None:
        """Ask whether the model is ready, and let requests fail until it is."""
        try:
            served = self._connection.describe_model()
        except EngineError as error:
            with self._lock:
                if self._problem is None:
                    _LOG.warning('%s', error)
                self._problem = ServerError(error.subject, error.found, fix=error.fix)
            return
        with contextlib.suppress(EngineError):  # requests contain the tensors until it succeeds
            self._register_again()
        with self._lock:
            if self._problem is not None:
                _LOG.info('%s: the model is ready again', self._address)
            self._problem = None
            if served != self._served:
                self._change = EngineError(
                    str(self._address),
                    'the server now has another model under this name',
                    fix='configure again',
                )

    def _register_again(self) -> None:
        """Register regions that a restarted server does not know. Raises EngineError."""
        if not self._regions and not self._left_regions:
            return
        with self._lock:
            waiting = set(self._waiting_regions)
        known = self._connection.known_regions()
        while self._left_regions:
            if self._left_regions[-1] in known:
                self._connection.unregister(self._left_regions[-1])
            self._left_regions.pop()
        # A server without a waiting region is another process. A region that began to wait after
        # the server's answer may still be in use.
        with self._lock:
            missing = [r for r in (*self._free_regions, *waiting) if r.name not in known]
            self._free_regions = [r for r in self._free_regions if r not in missing]
            self._waiting_regions.update(missing)
        for region in missing:
            self._connection.register(region)
            with self._lock:
                self._waiting_regions.remove(region)
                self._free_regions.append(region)

    def _timeout_error(self) -> ServerTimeoutError:
        return ServerTimeoutError(
            str(self._address),
            f'no answer within {self._timeout_s:g} s',
            fix='lower the rate of the cameras, use a faster server, or raise triton.timeout_ms',
        )
