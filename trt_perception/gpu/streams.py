"""Streams, events, and work that is captured once and launched many times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trt_perception.errors import CudaError
from trt_perception.gpu.bindings import Resource, call, cuda_error, runtime

__all__ = ['Event', 'Graph', 'Stream']


class Stream(Resource):
    """A non-blocking stream; ``handle`` is its integer."""

    def __init__(self) -> None:
        self._stream = call('cudaStreamCreateWithFlags', runtime().cudaStreamNonBlocking)
        self.handle = int(self._stream)

    def synchronize(self) -> None:
        """Wait for all work on the stream."""
        call('cudaStreamSynchronize', self.handle)

    def wait(self, event: Event) -> None:
        """Let what is queued from now on wait for an event as it was recorded last."""
        call('cudaStreamWaitEvent', self.handle, event.handle, 0)

    def raise_if_lost(self) -> None:
        """Raise CudaError where the context is lost; whatever else is wrong passes."""
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
    """A point in a stream's work that can be waited for and timed.

    Args:
        blocking: waiting sleeps until an interrupt comes, which takes up to 0.3 ms longer than
            spinning but leaves the core to others.
    """

    def __init__(self, *, blocking: bool = False) -> None:
        flags = runtime().cudaEventBlockingSync if blocking else runtime().cudaEventDefault
        self._event = call('cudaEventCreateWithFlags', flags)
        self.handle = int(self._event)

    def record(self, stream: Stream) -> None:
        """Record the event behind the work that the stream has."""
        call('cudaEventRecord', self.handle, stream.handle)

    def is_done(self) -> bool:
        """Tell without waiting whether the work is done."""
        (status,) = runtime().cudaEventQuery(self.handle)
        if not status:
            return True
        if status == runtime().cudaError_t.cudaErrorNotReady:
            return False
        raise cuda_error('cudaEventQuery', status)

    def synchronize(self) -> None:
        """Wait until the work is done."""
        call('cudaEventSynchronize', self.handle)

    def seconds_since(self, start: Event) -> float:
        """Return the time between two events that are done."""
        return float(call('cudaEventElapsedTime', start.handle, self.handle)) * 1e-3

    def close(self) -> None:
        """Destroy the event."""
        if self.handle:
            self.handle = 0
            call('cudaEventDestroy', self._event)


class Graph(Resource):
    """Work captured once and launched many times with one call.

    Args:
        stream: captured on it.
        record: issues the work; it must not synchronise or allocate.

    Raises:
        CudaError: something in it cannot be captured; the stream can be used again.
    """

    def __init__(self, stream: Stream, record: Callable[[], None]) -> None:
        mode = runtime().cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._executable: Any = None
        call('cudaStreamBeginCapture', stream.handle, mode)
        try:
            record()
        except BaseException:
            # Ends the capture, which may be invalid by now, and clears the error it left behind.
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
        """Queue all the work on the stream."""
        call('cudaGraphLaunch', self._executable, stream.handle)

    def close(self) -> None:
        """Destroy the graph."""
        if self._executable is not None:
            executable, self._executable = self._executable, None
            call('cudaGraphExecDestroy', executable)
