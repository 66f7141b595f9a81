# SPDX-License-Identifier: Apache-2.0
"""The pipeline of ONNX models: OpenCV letterbox, ONNX Runtime, NumPy decoding."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import Final

from trt_perception.errors import OutputError
from trt_perception.images.frame import DeferredFrame, Frame
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.tasks.task import TaskResult
from trt_perception.model.tensors import ModelInfo
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.host.array_pipeline import ArrayPipeline
from trt_perception.pipelines.nvtx_ranges import mark_pipeline
from trt_perception.pipelines.pipeline import FrameError, Result
from trt_perception.stages.onnx_runtime import OnnxModel

_LOG: Final = logging.getLogger(__name__)
# Batch sizes for models with an open batch. On the CPU, batches are slower: a batch of eight took
# 1.2 times as long as eight single frames (digits and a detector of YOLO11n's size, two cores).
# Also, the first result of a batch is as late as the last.
_OPEN_BATCH_SIZE_ON_GPU: Final = 8
_OPEN_BATCH_SIZE_ON_CPU: Final = 1


class OnnxRuntimePipeline(ArrayPipeline):
    """A Pipeline that does its work inside `collect`: `preprocess`, `infer`, `decode`.

    It has one slot. With more slots, frames would wait in the pipeline, where newer frames cannot
    replace them.

    Attributes:
        node_counts: number of graph nodes by provider; None if ONNX Runtime does not tell.
    """

    depth = max_in_flight = 1

    def __init__(
        self,
        model: ModelFile,
        options: PipelineOptions,
        *,
        provider: str = 'cpu',
        open_batch: int | None = None,
    ) -> None:
        """Load the model.

        Args:
            options: CPU threads, decoding limits and overrides of the model's manifest.
            open_batch: largest number of frames for a model with an open batch; None uses the
                number that is usually fastest.

        Raises:
            EngineError: the model cannot be loaded, or its decoder is unknown.
        """
        # By default, half of the CPU cores that this process may use, shared by all nodes.
        share = len(os.sched_getaffinity(0)) // (2 * options.nodes_on_this_machine)
        threads = options.cpu_threads or max(1, share)
        opened = OnnxModel(model, threads, provider, options.device_id)
        self.provider, self.node_counts = provider, opened.node_counts
        self.diagnostic_values = opened.diagnostic_values
        usual = _OPEN_BATCH_SIZE_ON_CPU
        if provider != 'cpu':
            usual = min(_OPEN_BATCH_SIZE_ON_GPU, options.max_batch or _OPEN_BATCH_SIZE_ON_GPU)
        info = ModelInfo(
            model.path.name,
            opened.inputs,
            opened.outputs,
            opened.metadata,
            model.config,
            str(model.path),
        )
        super().__init__(opened, info, model.manifest, options, open_batch=open_batch or usual)
        # Whether the model works for several frames; None for an open batch that is not tried yet.
        self._accepts_batches: bool | None = None if self._is_open else True
        self._enqueued: tuple[list[Frame], list[Thresholds]] | None = None
        if options.nvtx:
            mark_pipeline(self, [self])

    def enqueue(
        self, slot: int, frames: Sequence[Frame | DeferredFrame], thresholds: Sequence[Thresholds]
    ) -> None:
        """Store the frames for `collect`, without copying their pixels."""
        assert slot == 0
        assert self._enqueued is None
        assert all(frame.is_decoded for frame in frames), 'the pipeline cannot decode JPEG'
        self._enqueued = [frame.read() for frame in frames], list(thresholds)

    def is_done(self, slot: int) -> bool:
        """Return True, because no other thread or device works on the frames."""
        assert slot == 0
        return True

    def collect(self, slot: int) -> list[Result | FrameError]:
        """Process the enqueued frames. Return the result or the error of each frame."""
        assert slot == 0
        assert self._enqueued is not None
        (frames, thresholds), self._enqueued = self._enqueued, None
        started = time.perf_counter()
        if len(frames) > 1 and self._accepts_batches is None:
            self._accepts_batches = self._supports_batches(frames)
        frames_per_run = len(frames) if self._accepts_batches else 1
        found: list[TaskResult | OutputError] = []
        for first in range(0, len(frames), frames_per_run):
            tensor, letterboxes = self.preprocess(frames[first : first + frames_per_run])
            outputs = self.infer(tensor)
            found += self.decode(outputs, letterboxes, thresholds[first : first + frames_per_run])
        seconds = time.perf_counter() - started
        return [
            own if isinstance(own, OutputError) else Result(own, seconds, frame)
            for own, frame in zip(found, frames, strict=True)
        ]

    def _supports_batches(self, frames: Sequence[Frame]) -> bool:
        """Return whether the model works for several frames at once.

        Some exports declare an open batch, but only work for one image.
        """
        try:
            outputs = self.infer(self.preprocess(frames)[0])
        except Exception as failed:  # ONNX Runtime's exceptions have no common base class
            error: Exception | None = failed
        else:
            error = self._shapes_error(outputs, len(frames))
        if error is not None:
            _LOG.warning(
                '%s: processes one image at a time, although its input has an open batch: %s',
                self._name,
                error,
            )
        return error is None

    def close(self) -> None:
        """Free the model. May be called again."""
        super().close()
        self._enqueued = None
