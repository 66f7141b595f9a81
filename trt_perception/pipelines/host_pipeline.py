"""The pipeline on the CPU: OpenCV letterbox, ONNX Runtime, NumPy decoding."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy.typing as npt

from trt_perception.errors import EngineError, OutputError
from trt_perception.images.frame import Frame, PipelineInput
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.memory import HostMemory, NumpyMemory
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.input_layout import constant_inputs, image_mask, split_inputs
from trt_perception.model.model_spec import resolve_model_spec
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.tasks.task import TaskResult
from trt_perception.model.tensors import ModelInfo, TensorSpec
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines.pipeline import FrameError, Result
from trt_perception.stages.decode import decode
from trt_perception.stages.host_preprocess import HostPreprocessor
from trt_perception.stages.onnx_runtime import CPU_PROVIDER, OnnxModel

__all__ = ['HostPipeline']

_LOG: Final = logging.getLogger(__name__)
# Batch sizes for models with an open batch. On the CPU, batches are slower: a batch of eight took
# 1.2 times as long as eight single frames (digits and a detector of YOLO11n's size, two cores).
# Also, the first result of a batch is as late as the last.
_OPEN_BATCH_SIZE_ON_GPU: Final = 8
_OPEN_BATCH_SIZE_ON_CPU: Final = 1


class HostPipeline:
    """A Pipeline that does its work inside `collect`: `preprocess`, `infer`, `decode`.

    It has one slot. With more slots, frames would wait in the pipeline, where newer frames cannot
    replace them.

    Attributes:
        batch: largest number of frames in a batch. A model with a fixed batch always gets this
            number; unused places contain old data. A model with an open batch gets exactly the
            enqueued frames.
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
            options: CPU threads, decoding limits and overrides of the model's manifest.
            provider: execution provider of ONNX Runtime. A node uses the CPU.
            open_batch: largest number of frames for a model with an open batch; None uses the
                number that is usually fastest.

        Raises:
            EngineError: the model cannot be loaded, or its decoder is unknown.
        """
        self._model: OnnxModel | None = OnnxModel(
            model, options.cpu_threads or _half_of_core_count(), provider
        )
        self._file = model.path.name
        found = self._model
        self.spec = resolve_model_spec(
            ModelInfo(
                self._file,
                found.inputs,
                found.outputs,
                found.metadata,
                model.config,
                str(model.path),
            ),
            model.manifest,
            options.overrides,
            find_output_shapes=self._find_output_shapes,
        )
        image, auxiliary = split_inputs(self._file, found.inputs)
        self._is_open = len(image.shape) == 4 and image.shape[0] < 0
        usual = _OPEN_BATCH_SIZE_ON_CPU if provider == CPU_PROVIDER else _OPEN_BATCH_SIZE_ON_GPU
        self.batch = (open_batch or usual) if self._is_open else self.spec.batch
        if self._is_open:
            self.spec.with_batch_size(self.batch)  # raises for too large tensors
        size = self.spec.preprocessing.input_size
        # The values of the auxiliary inputs. `preprocess` writes the pixel mask of each frame.
        self._auxiliary = constant_inputs(auxiliary, size, self.batch)
        self._preprocessor = HostPreprocessor(self.spec.preprocessing, self.batch)
        self._limits = options.limits
        # Whether the model works for several frames; None for an open batch that is not tried yet.
        self._accepts_batches: bool | None = None if self._is_open else True
        self._enqueued: tuple[list[Frame], list[Thresholds]] | None = None

    def _find_output_shapes(
        self, tensors: Mapping[str, npt.NDArray[Any]]
    ) -> list[tuple[int, ...]]:
        """Run the model to find the shapes of its outputs."""
        assert self._model is not None
        try:
            return [output.shape for output in self._model.run(tensors)]
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            fed = ', '.join(f'{name} {list(value.shape)}' for name, value in tensors.items())
            raise EngineError(
                self._file,
                f'fails on {fed}: {error}',
                fix='correct model.input_size, or export the model again',
            ) from error

    def allocate(self, size: int) -> HostMemory:
        """Return ordinary memory of `size` bytes. The pipeline reads pixels in place."""
        return NumpyMemory(size)

    def enqueue(
        self, slot: int, frames: Sequence[PipelineInput], thresholds: Sequence[Thresholds]
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
        """Process the enqueued frames. Return the result or the error of each frame.

        Raises:
            EngineError: the outputs do not fit the model's specification.
        """
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
            self._check_outputs(outputs, len(frames))
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            _LOG.warning(
                '%s: processes one image at a time, although its input has an open batch: %s',
                self._file,
                error,
            )
            return False
        return True

    def preprocess(self, frames: Sequence[Frame]) -> tuple[npt.NDArray[Any], list[Letterbox]]:
        """Return the input tensor and the position of each image in it.

        The tensor has the type and layout of the model's input. The next call overwrites it.
        """
        assert 0 < len(frames) <= self.batch
        letterboxes = []
        for place, frame in enumerate(frames):
            tensor, letterbox = self._preprocessor(frame, place)
            letterboxes.append(letterbox)
            if self.spec.pixel_mask is not None:
                mask = self._auxiliary[self.spec.pixel_mask.name][place]
                mask[:] = image_mask(letterbox, mask.shape)
        if self._is_open:
            return tensor[: len(frames)], letterboxes
        return tensor.reshape(self.spec.input.shape), letterboxes

    def infer(self, tensor: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Run the model. Return its outputs in the order of the specification."""
        assert self._model is not None
        auxiliary = self._auxiliary
        if self._is_open:
            auxiliary = {name: value[: len(tensor)] for name, value in auxiliary.items()}
        return self._model.run({self.spec.input.name: tensor, **auxiliary})

    def decode(
        self,
        outputs: Sequence[npt.NDArray[Any]],
        letterboxes: Sequence[Letterbox],
        thresholds: Sequence[Thresholds],
    ) -> list[TaskResult | OutputError]:
        """Decode the outputs with the thresholds of each image. See `stages.decode.decode`.

        Raises:
            EngineError: the outputs do not fit the decoder.
        """
        self._check_outputs(outputs, len(letterboxes))
        return decode(outputs, self.spec, letterboxes, thresholds, self._limits)

    def _check_outputs(self, outputs: Sequence[npt.NDArray[Any]], count: int) -> None:
        """Check that the outputs of `count` frames fit the decoder. Raises EngineError."""
        found = (
            TensorSpec(output.name, array.shape, str(array.dtype))
            for output, array in zip(self.spec.outputs, outputs, strict=True)
        )
        spec = self.spec.with_batch_size(count) if self._is_open else self.spec
        spec.check_outputs(tuple(found))

    def close(self) -> None:
        """Free the model. May be called again."""
        if self._model is not None:
            self._model.close()
        self._model = None
        self._enqueued = None


def _half_of_core_count() -> int:
    """Return half of the CPU cores that this process may use, at least 1."""
    return max(1, len(os.sched_getaffinity(0)) // 2)
