# SPDX-License-Identifier: Apache-2.0
"""A model on a Triton server: several requests in flight, each with a time limit.

A request that is too late is not over: the server still reads and writes the shared memory of the
request. So a region is used again only after the server's own answer, or when the server is known
to be another process. Until then the request is lost, and its region waits.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy.typing as npt

from trt_perception.errors import EngineError, ServerError, ServerTimeoutError
from trt_perception.model.files.triton_address import TritonAddress
from trt_perception.model.pipeline_options import TritonOptions
from trt_perception.model.tensors import TensorSpec
from trt_perception.process.interruption import check_interruption, interrupted_for_s
from trt_perception.stages.triton.connection import TritonConnection, request_error
from trt_perception.stages.triton.memory import TritonRegion
from trt_perception.stages.triton.messages import TritonMessages, answer_limit_bytes, with_batch
from trt_perception.stages.triton.server_watch import ServerWatch

_LOG: Final = logging.getLogger(__name__)
# The first answer may take longer, because a server often prepares a model in its first request.
_FIRST_TIMEOUT_S: Final = 60.0
_EXTRA_TIMEOUT_S: Final = 1.0
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
    """One request in flight. The lock of the watch protects the fields.

    Attributes:
        region: shared memory of the request; None if the tensors are in the messages.
        deadline_s: time.monotonic() at which the request is too late.
        is_sent: whether the server may know the request.
        is_lost: whether the caller no longer waits.
        is_over: whether `outputs` or `error` is set.
        answered: contains an element after the end of the request.
    """

    def __init__(self, region: TritonRegion | None, timeout_s: float) -> None:
        self.region = region
        self.timeout_s = timeout_s
        self.deadline_s = time.monotonic() + timeout_s
        self.is_sent = False
        self.is_lost = False
        self.is_over = False
        self.answered: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.outputs: list[npt.NDArray[Any]] = []
        self.error: EngineError | None = None

    def wait(self, limit_s: float) -> None:
        """Wait for the end of the request."""
        with contextlib.suppress(queue.Empty):
            self.answered.get(timeout=limit_s)


class TritonModel:
    """A model on a Triton server. Only one thread may call the methods.

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
            served = self._connection.describe_model()
            self._stub = self._connection.open_stub(answer_limit_bytes(served.outputs))
            self._watch = ServerWatch(address, self._connection, served)
        except BaseException:
            self._connection.close()
            raise
        # At the end of the interpreter, the watches themselves clean up.
        weakref.finalize(self, self._watch.stop).atexit = False
        self.inputs, self.outputs = served.inputs, served.outputs
        self.manifest = served.manifest
        self._messages = TritonMessages(
            self._connection.messages, address, self.inputs, self.outputs
        )
        self._requests: dict[int, _Request] = {}  # by slot
        self._timeout_s = max(_FIRST_TIMEOUT_S, options.timeout_s)  # until the first answer
        self._has_answered = False

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
        try:
            self._watch.share_memory(tensors, 2 * slots)
        except (OSError, EngineError) as error:
            text = '%s: requests contain the tensors, because there is no shared memory: %s'
            _LOG.info(text, self._address, error)

    def start(self, slot: int, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
        """Send a request. Does not wait for the answer.

        Args:
            slot: number of the request, which must not be in flight.
            tensors: maps the name of each input to its array. The arrays are copied.

        Raises:
            EngineError: this process is a forked child of the process that opened the model.
        """
        watch = self._watch
        if watch.is_in_other_process:
            raise EngineError(
                str(self._address),
                'another process opened this model',
                fix='open the model after the fork',
            )
        with watch.lock:
            problem = watch.problem
            region = None if problem else watch.take_region()
            request = _Request(region, self._timeout_s)
            self._requests[slot] = request
        if problem:
            request.error, request.is_over = problem, True
            return
        try:
            message = self._messages.request(tensors, region)
            watch.call_uninterrupted(partial(self._send, request, message))
        except BaseException:  # KeyboardInterrupt, for example
            with watch.lock:
                request.is_lost = True
                if request.region is not None and not request.is_sent:
                    watch.give_back(request.region, is_free=True)
                    request.region = None
            raise

    def _send(self, request: _Request, message: Any) -> None:
        with self._watch.lock:
            request.is_sent = not request.is_lost
            if request.is_lost:
                if request.region is not None:
                    self._watch.give_back(request.region, is_free=True)
                return
        # The server goes on with a late request, and may still write to its region. So such a
        # request has no time limit in gRPC. A request without a region has one, so that the
        # tensors of lost requests do not accumulate. It is later than the own limit, so that
        # an earlier DEADLINE_EXCEEDED is the server's.
        limit_s = None if request.region is not None else request.timeout_s + _EXTRA_TIMEOUT_S
        try:
            future = self._stub.ModelInfer.future(
                message, timeout=limit_s, metadata=self._connection.headers
            )
        except Exception as error:  # the channel was closed
            failed = ServerError(str(self._address), f'the request was not sent: {error!r}')
            self._end(request, [], failed, is_own_answer=True)
        else:
            future.add_done_callback(partial(self._on_answer, request))

    def is_done(self, slot: int) -> bool:
        """Return whether `result` would return at once."""
        request = self._requests[slot]
        return request.is_over or time.monotonic() >= request.deadline_s

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
        with self._watch.lock:
            request.is_lost = not request.is_over
            error = self._watch.change or request.error
        if request.is_lost:
            if must_end:
                check_interruption()
            self._watch.ask_now()
            error = error or self._timeout_error(request)
        if error is not None:
            raise error
        return request.outputs

    def _wait(self, request: _Request) -> bool:
        """Wait until a request is over or too late. Return True if the process must end first."""
        while not request.is_over and (rest_s := request.deadline_s - time.monotonic()) > 0:
            request.wait(min(rest_s, _INTERRUPTION_POLL_S))
            waited_s = interrupted_for_s()
            is_due = waited_s > (_INTERRUPTED_TIMEOUT_S if self._has_answered else 0.0)
            if is_due and not request.is_over:
                return True
        return False

    def release(self, slot: int) -> None:
        """Free the memory of a slot. A request that is not over keeps its memory until then."""
        with self._watch.lock:
            request = self._requests.pop(slot)
            # An exception, such as KeyboardInterrupt, may have ended the wait for the answer.
            request.is_lost = request.is_lost or not request.is_over
            if request.region is not None and not request.is_lost:
                self._watch.give_back(request.region, is_free=True)

    def run(self, tensors: Mapping[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """Send a request and return copies of all outputs. Raises the errors of `result`."""
        self.start(0, tensors)
        try:
            return [output.copy() for output in self.result(0)]
        finally:
            self.release(0)

    def close(self) -> None:
        """Close the connection and remove the shared memory. May be called again.

        In a forked child of the process that opened the model, this method does nothing.
        """
        self._watch.close()

    def _on_answer(self, request: _Request, future: Any) -> None:
        """Store the answer of a request. A thread of gRPC calls this method."""
        outputs: list[npt.NDArray[Any]] = []
        error: EngineError | None = None
        is_own_answer = True
        try:
            answer = self._connection.parse(ServerError, 'ModelInfer', future.result())
            outputs = self._messages.outputs(answer, request.region)
            self._timeout_s = self._options.timeout_s
            self._has_answered = True
        except ServerError as invalid:
            error = invalid
        except self._connection.call_errors as failed:
            code, details = failed.code().name, failed.details() or ''
            is_own_answer = code in _ERRORS_OF_SERVER or details.endswith(_QUEUE_TIMEOUT)
            if code == 'DEADLINE_EXCEEDED' and time.monotonic() >= request.deadline_s:
                error = self._timeout_error(request)
            else:
                error = request_error(ServerError, self._address, failed)
        except Exception as cancelled:  # the channel was closed
            is_own_answer = False
            error = ServerError(str(self._address), f'the request ended: {cancelled!r}')
        self._end(request, outputs, error, is_own_answer=is_own_answer)

    def _end(
        self,
        request: _Request,
        outputs: list[npt.NDArray[Any]],
        error: EngineError | None,
        *,
        is_own_answer: bool,
    ) -> None:
        """Store the end of a request. The server no longer uses its region if it answered."""
        with self._watch.lock:
            if request.region is not None and is_own_answer:
                self._watch.busy_regions.discard(request.region)
            if request.region is not None and (request.is_lost or not is_own_answer):
                self._watch.give_back(request.region, is_free=is_own_answer)
                request.region = None
            request.outputs, request.error, request.is_over = outputs, error, True
        request.answered.put(None)
        if error is not None:
            self._watch.ask_now()

    def _timeout_error(self, request: _Request) -> ServerTimeoutError:
        return ServerTimeoutError(
            str(self._address),
            f'no answer within {request.timeout_s:g} s',
            fix="see the server's log, because it may still prepare the model"
            if request.timeout_s >= _FIRST_TIMEOUT_S
            else 'lower the rate of the cameras, use a faster server, or raise triton.timeout_ms',
        )
