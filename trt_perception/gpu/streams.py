# SPDX-License-Identifier: Apache-2.0
"""Create, use and destroy CUDA streams, events and graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trt_perception.errors import CudaError
from trt_perception.gpu.bindings import Resource, call, cuda_error, runtime


class Stream(Resource):
    """A non-blocking stream. ``handle`` is the stream as an integer."""

    def __init__(self) -> None:
        self._stream = call('cudaStreamCreateWithFlags', runtime().cudaStreamNonBlocking)
        self.handle = int(self._stream)

    def synchronize(self) -> None:
        """Wait for all work on the stream."""
        call('cudaStreamSynchronize', self.handle)

    def wait(self, event: Event) -> None:
        """Make later work on this stream wait for the last recording of an event."""
        call('cudaStreamWaitEvent', self.handle, event.handle, 0)

    def raise_if_lost(self) -> None:
        """Raise CudaError if the CUDA context is lost. Ignore all other errors."""
        try:
            self.synchronize()
        except CudaError as error:
            if error.sticky:
                raise

    def close(self) -> None:
        """Destroy the stream."""
        if self.handle:
            self.handle = 0
            call('cudaStreamDestroy', self._stream)


class Event(Resource):
    """A point in the work of a stream. Callers wait for events, or measure the time between them.

    Args:
        blocking: sleep in ``synchronize`` until an interrupt. This takes up to 0.3 ms longer than
            spinning, but leaves the core to other threads.
    """

    def __init__(self, *, blocking: bool = False) -> None:
        flags = runtime().cudaEventBlockingSync if blocking else runtime().cudaEventDefault
        self._event = call('cudaEventCreateWithFlags', flags)
        self.handle = int(self._event)

    def record(self, stream: Stream) -> None:
        """Record the event after all work that is queued on the stream."""
        call('cudaEventRecord', self.handle, stream.handle)

    def is_done(self) -> bool:
        """Return whether the work before the event is done. Does not wait."""
        (status,) = runtime().cudaEventQuery(self.handle)
        if not status:
            return True
        if status == runtime().cudaError_t.cudaErrorNotReady:
            return False
        raise cuda_error('cudaEventQuery', status)

    def synchronize(self) -> None:
        """Wait until the work before the event is done."""
        call('cudaEventSynchronize', self.handle)

    def seconds_since(self, start: Event) -> float:
        """Return the time in seconds since another event. Both events must be done."""
        return float(call('cudaEventElapsedTime', start.handle, self.handle)) * 1e-3

    def close(self) -> None:
        """Destroy the event."""
        if self.handle:
            self.handle = 0
            call('cudaEventDestroy', self._event)


class Graph(Resource):
    """A CUDA graph: work that is captured once, and launched with one call.

    Args:
        record: function that queues the work. It must not synchronise or allocate.

    Raises:
        CudaError: part of the work cannot be captured. The stream remains usable.
    """

    def __init__(self, stream: Stream, record: Callable[[], None]) -> None:
        mode = runtime().cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._executable: Any = None
        call('cudaStreamBeginCapture', stream.handle, mode)
        try:
            record()
        except BaseException:
            # End the capture, which may be invalid, and clear CUDA's last error.
            status, graph = (*runtime().cudaStreamEndCapture(stream.handle), None)[:2]
            if status == runtime().cudaError_t.cudaSuccess and int(graph):
                runtime().cudaGraphDestroy(graph)
            runtime().cudaGetLastError()
            raise
        graph = call('cudaStreamEndCapture', stream.handle)
        try:
            self._executable = call('cudaGraphInstantiate', graph, 0)
        finally:
            call('cudaGraphDestroy', graph)

    def launch(self, stream: Stream) -> None:
        """Queue the whole graph on a stream."""
        call('cudaGraphLaunch', self._executable, stream.handle)

    def close(self) -> None:
        """Destroy the graph."""
        if self._executable is not None:
            executable, self._executable = self._executable, None
            call('cudaGraphExecDestroy', executable)
