# SPDX-License-Identifier: Apache-2.0
"""The pipeline of a model on a Triton server: preprocessing and decoding here, the model there."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trt_perception.errors import OutputError, ServerError
from trt_perception.files.plain_text import size_text
from trt_perception.images.frame import DeferredFrame, Frame
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.files.triton_address import TritonAddress
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.tensors import ModelInfo
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.host.array_pipeline import ArrayPipeline
from trt_perception.pipelines.nvtx_ranges import mark_pipeline
from trt_perception.pipelines.pipeline import FrameError, Result
from trt_perception.stages.triton.model import TritonModel

_LOG: Final = logging.getLogger(__name__)
#: The largest sum of the inputs of all requests in flight. One larger request is allowed.
MAX_REQUESTS_BYTES: Final = 512 * 2**20
# An answer after this share of the time limit is slow.
_SLOW_SHARE: Final = 0.5


@dataclass
class _Batch:
    """Frames in flight.

    Attributes:
        thresholds: thresholds of each frame.
        letterboxes: position of each frame in the input tensor.
        started_s: time.perf_counter() before preprocessing.
    """

    frames: list[Frame]
    thresholds: list[Thresholds]
    letterboxes: list[Letterbox]
    started_s: float


class TritonPipeline(ArrayPipeline):
    """A Pipeline with one request in flight for each slot.

    If the model has an open batch, each frame is a request, because the server makes the batches.

    After an error or a slow answer, only one request may be in flight. Each fast answer allows one
    more. Otherwise many clients of one server could keep more requests in its queue than it can
    answer in time. The server would then work only on requests whose frames are already dropped.

    Attributes:
        depth: number of slots; fewer than in the options if the inputs are large.
        max_in_flight: number of requests that may be in flight.

    Raises:
        EngineError: the server does not answer, or its model cannot be used.
    """

    def __init__(self, address: TritonAddress, options: PipelineOptions) -> None:
        served = TritonModel(address, options.triton)
        try:
            info = ModelInfo(str(address), served.inputs, served.outputs, path=str(address))
            super().__init__(served, info, served.manifest, options, open_batch=1)
            self.depth = self.max_in_flight = self._largest_depth(options.depth)
            served.use_shared_memory(self.depth, self.batch)
            if options.nvtx:
                mark_pipeline(self, [self])
        except BaseException:
            served.close()
            raise
        self._served = served
        self._slow_s = _SLOW_SHARE * options.triton.timeout_s
        self._batches: dict[int, _Batch] = {}

    def _largest_depth(self, wanted: int) -> int:
        """Return a number of slots whose inputs need at most MAX_REQUESTS_BYTES, at least 1."""
        size = sum(each.size_bytes for each in (self.spec.input, *self.spec.auxiliary_inputs))
        depth = max(1, min(wanted, MAX_REQUESTS_BYTES // size))
        if depth < wanted:
            text = '%s: at most %d requests in flight instead of %d, because each has %s of inputs'
            _LOG.info(text, self._name, depth, wanted, size_text(size))
        return depth

    def enqueue(
        self, slot: int, frames: Sequence[Frame | DeferredFrame], thresholds: Sequence[Thresholds]
    ) -> None:
        """Preprocess the frames and send the request."""
        assert slot not in self._batches
        assert all(frame.is_decoded for frame in frames), 'the pipeline cannot decode JPEG'
        started_s = time.perf_counter()
        read = [frame.read() for frame in frames]
        tensor, letterboxes = self.preprocess(read)
        self._served.start(slot, self.all_inputs(tensor))
        self._batches[slot] = _Batch(read, list(thresholds), letterboxes, started_s)

    def is_done(self, slot: int) -> bool:
        """Return whether the answer has arrived or is too late."""
        return self._served.is_done(slot)

    def collect(self, slot: int) -> list[Result | FrameError]:
        """Wait for the answer, at most until it is too late. Return each frame's result or error.

        Raises:
            EngineError: the server now has another model.
        """
        batch = self._batches.pop(slot)
        try:
            outputs = self._served.result(slot)
            found = self.decode(outputs, batch.letterboxes, batch.thresholds)
        except ServerError as error:
            self.max_in_flight = 1
            return [error] * len(batch.frames)
        finally:
            self._served.release(slot)
        seconds = time.perf_counter() - batch.started_s
        is_slow = seconds > self._slow_s
        self.max_in_flight = 1 if is_slow else min(self.max_in_flight + 1, self.depth)
        return [
            own if isinstance(own, OutputError) else Result(own, seconds, frame)
            for own, frame in zip(found, batch.frames, strict=True)
        ]

    def close(self) -> None:
        """Close the connection. May be called again."""
        super().close()
        self._batches.clear()
