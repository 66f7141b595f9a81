"""Frames on the CPU: OpenCV letterbox, ONNX Runtime, NumPy decoding."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy.typing as npt

from trt_perception.errors import EngineError, ImageError
from trt_perception.images.frame import Frame, PipelineInput
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.memory import HostMemory, NumpyMemory
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.input_layout import constant_inputs, split_inputs
from trt_perception.model.model_spec import resolve_model_spec
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.tasks.task import TaskResult
from trt_perception.model.tensors import ModelInfo, TensorSpec
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines.pipeline import Result
from trt_perception.stages.decode import decode
from trt_perception.stages.host_preprocess import HostPreprocessor
from trt_perception.stages.onnx_runtime import CPU_PROVIDER, OnnxModel

__all__ = ['HostPipeline']

_LOG: Final = logging.getLogger(__name__)
# Frames at once of a model that takes any number. On the CPU eight took 1.2 times as long as one
# after the other (digits and a detector of YOLO11n's size, two cores), and all come at the end.
_OPEN_BATCH_ON_GPU: Final = 8
_OPEN_BATCH_ON_CPU: Final = 1


class HostPipeline:
    """A Pipeline that does its work inside ``collect``: ``preprocess``, ``infer``, ``decode``.

    One slot: what is taken early would only grow old in the queue, and newest wins.

    Attributes:
        batch: most frames at once. A model of a fixed batch is given so many each time, whatever
            lies in the places of those that are missing; one of an open batch as many as there
            are.
    """

    depth = 1
    decodes_jpeg = False

    def __init__(
        self,
        model: ModelFile,
        options: PipelineOptions,
        *,
        provider: str = CPU_PROVIDER,
        open_batch: int | None = None,
    ) -> None:
        """Load the model.

        Args:
            model: an ONNX file.
            options: threads, limits of decoding, and what is known of the model.
            provider: ONNX Runtime's; a node runs on the CPU.
            open_batch: most frames at once of a model that leaves its batch open; None: what is
                fastest as a rule.

        Raises:
            EngineError: the model cannot be loaded, or it is not known how to use it.
        """
        self._model: OnnxModel | None = OnnxModel(
            model, options.cpu_threads or _half_of_the_cores(), provider
        )
        self._file = model.path.name
        found = self._model
        self.spec = resolve_model_spec(
            ModelInfo(self._file, found.inputs, found.outputs, found.metadata, model.config),
            model.manifest,
            options.overrides,
            run_for_shapes=self._output_shapes,
        )
        image, auxiliary = split_inputs(self._file, found.inputs)
        self._is_open = len(image.shape) == 4 and image.shape[0] < 0
        usual = _OPEN_BATCH_ON_CPU if provider == CPU_PROVIDER else _OPEN_BATCH_ON_GPU
        self.batch = (open_batch or usual) if self._is_open else self.spec.batch
        size = self.spec.preprocessing.input_size
        self._constants = constant_inputs(auxiliary, size, self.batch)
        self._preprocessor = HostPreprocessor(self.spec.preprocessing, self.batch)
        self._limits = options.limits
        # Whether it can do what it says, where it says that it takes any number at once.
        self._accepts_batches: bool | None = None if self._is_open else True
        self._enqueued: tuple[list[Frame], list[Thresholds]] | None = None

    def _output_shapes(self, tensors: Mapping[str, npt.NDArray[Any]]) -> list[tuple[int, ...]]:
        """Run the model for the shapes of its outputs alone."""
        assert self._model is not None
        try:
            return [output.shape for output in self._model.run(tensors)]
        except Exception as error:  # ONNX Runtime's exceptions share no base of their own
            fed = ', '.join(f'{name} {list(value.shape)}' for name, value in tensors.items())
            raise EngineError(
                self._file,
                f'fails on {fed}: {error}',
                fix='correct model.input_size, or export it again',
            ) from error

    def allocate(self, size: int) -> HostMemory:
        """Return ordinary memory: pixels are read where they lie."""
        return NumpyMemory(size)

    def enqueue(
        self, slot: int, frames: Sequence[PipelineInput], thresholds: Sequence[Thresholds]
    ) -> None:
        """Keep the frames for ``collect``; their bytes are not copied."""
        assert slot == 0
        assert self._enqueued is None
        assert all(frame.is_decoded for frame in frames), (
            'only a pipeline that decodes JPEG gets one'
        )
        self._enqueued = [frame.read() for frame in frames], list(thresholds)

    def is_done(self, slot: int) -> bool:
        """Return True: there is nothing to wait for."""
        assert slot == 0
        return True

    def collect(self, slot: int) -> list[Result | ImageError]:
        """Do the work on the frames that were enqueued.

        Raises:
            EngineError: the outputs are not what they should be.
        """
        assert slot == 0
        assert self._enqueued is not None
        (frames, thresholds), self._enqueued = self._enqueued, None
        started = time.perf_counter()
        if len(frames) > 1 and self._accepts_batches is None:
            self._accepts_batches = self._try_batch(frames)
        frames_per_run = len(frames) if self._accepts_batches else 1
        found: list[TaskResult] = []
        for first in range(0, len(frames), frames_per_run):
            tensor, letterboxes = self.preprocess(frames[first : first + frames_per_run])
            outputs = self.infer(tensor)
            found += self.decode(outputs, letterboxes, thresholds[first : first + frames_per_run])
        seconds = time.perf_counter() - started
        return [Result(own, seconds, frame) for own, frame in zip(found, frames, strict=True)]

    def _try_batch(self, frames: Sequence[Frame]) -> bool:
        """Whether the model takes so many frames at once; some exports hold to one inside."""
        try:
            outputs = self.infer(self.preprocess(frames)[0])
            self._check_outputs(outputs, len(frames))
        except Exception as error:  # ONNX Runtime's exceptions share no base of their own
            _LOG.warning(
                '%s: takes one image at a time, though its input leaves the batch open: %s',
                self._file,
                error,
            )
            return False
        return True

    def preprocess(self, frames: Sequence[Frame]) -> tuple[npt.NDArray[Any], list[Letterbox]]:
        """Return the image input, valid until the next time, and where each image lies in it."""
        assert 0 < len(frames) <= self.batch
        letterboxes = []
        for place, frame in enumerate(frames):
            tensor, letterbox = self._preprocessor(frame, place)
            letterboxes.append(letterbox)
        if self._is_open:
            return tensor[: len(frames)], letterboxes
        return tensor.reshape(self.spec.input.shape), letterboxes

    def infer(self, tensor: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Return the outputs, in the order of the spec's."""
        assert self._model is not None
        constants = self._constants
        if self._is_open:
            constants = {name: value[: len(tensor)] for name, value in constants.items()}
        return self._model.run({self.spec.input.name: tensor, **constants})

    def decode(
        self,
        outputs: Sequence[npt.NDArray[Any]],
        letterboxes: Sequence[Letterbox],
        thresholds: Sequence[Thresholds],
    ) -> list[TaskResult]:
        """Return what is in each image, by its own thresholds.

        Raises:
            EngineError: the outputs are not what the decoder reads.
        """
        self._check_outputs(outputs, len(letterboxes))
        return decode(outputs, self.spec, letterboxes, thresholds, self._limits)

    def _check_outputs(self, outputs: Sequence[npt.NDArray[Any]], count: int) -> None:
        """Hold the outputs of so many frames to what the decoder reads."""
        found = (
            TensorSpec(output.name, array.shape, str(array.dtype))
            for output, array in zip(self.spec.outputs, outputs, strict=True)
        )
        spec = self.spec.with_batch_size(count) if self._is_open else self.spec
        spec.check_outputs(tuple(found))

    def close(self) -> None:
        """Free the model."""
        if self._model is not None:
            self._model.close()
        self._model = None
        self._enqueued = None


def _half_of_the_cores() -> int:
    """Return half of the number of cores that this process may use, at least 1."""
    return max(1, len(os.sched_getaffinity(0)) // 2)
