# SPDX-License-Identifier: Apache-2.0
"""The work on a frame in host memory: preprocessing and decoding for models with NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy.typing as npt

from trt_perception.errors import (
    EngineError,
    InterruptionError,
    OutputError,
    OutputShapeError,
    ServerError,
)
from trt_perception.images.frame import Frame
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.memory import HostMemory, NumpyMemory
from trt_perception.model.input_layout import constant_inputs, image_mask, split_inputs
from trt_perception.model.manifest import Manifest
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.resolve_spec import resolve_model_spec
from trt_perception.model.tasks.task import TaskResult
from trt_perception.model.tensors import ModelInfo
from trt_perception.model.thresholds import Thresholds
from trt_perception.stages.decode import decode
from trt_perception.stages.host_preprocess import HostPreprocessor


class ArrayModel(Protocol):
    """A model whose inputs and outputs are NumPy arrays."""

    def run(self, tensors: Mapping[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """Run the model, and return all outputs in their order.

        Args:
            tensors: maps the name of each input to its array.
        """

    def close(self) -> None:
        """Free the model. May be called again."""


class ArrayPipeline:
    """Preprocesses frames to arrays, and decodes arrays to results.

    A subclass runs the model between both steps.

    Attributes:
        batch: largest number of frames in a batch. A model with a fixed batch always gets this
            number; unused places contain old data. A model with an open batch gets exactly the
            enqueued frames.
    """

    #: Maps the name of each stage method to the name of its NVTX range.
    stage_ranges: ClassVar[Mapping[str, str]] = {
        'preprocess': 'preprocess',
        'infer': 'infer',
        'decode': 'decode',
    }
    decodes_jpeg = False
    diagnostic_values: tuple[tuple[str, str], ...] = ()
    opening_reason = ''

    def __init__(
        self,
        model: ArrayModel,
        info: ModelInfo,
        manifest: Manifest | None,
        options: PipelineOptions,
        *,
        open_batch: int,
    ) -> None:
        """Describe the model.

        Args:
            model: runs once, if the outputs have dynamic dimensions. `close` closes the model.
            manifest: describes the model; None if there is none.
            open_batch: largest number of frames for a model with an open batch.

        Raises:
            EngineError: the model's tensors cannot be used, or its decoder is unknown.
        """
        self._model: ArrayModel | None = model
        self._name = info.name
        self.spec = resolve_model_spec(
            info, manifest, options.overrides, find_output_shapes=self._find_output_shapes
        )
        image, auxiliary = split_inputs(self._name, info.inputs)
        self._is_open = len(image.shape) == 4 and image.shape[0] < 0
        self.batch = open_batch if self._is_open else self.spec.batch
        if self._is_open:
            self.spec.with_batch_size(self.batch)  # raises for too large tensors
        size = self.spec.preprocessing.input_size
        # The values of the auxiliary inputs. `preprocess` writes the pixel mask of each frame.
        self._auxiliary = constant_inputs(auxiliary, size, self.batch)
        self._preprocessor = HostPreprocessor(self.spec.preprocessing, self.batch)
        self._limits = options.limits

    def _find_output_shapes(
        self, tensors: Mapping[str, npt.NDArray[Any]]
    ) -> list[tuple[int, ...]]:
        """Run the model to find the shapes of its outputs."""
        assert self._model is not None
        try:
            return [output.shape for output in self._model.run(tensors)]
        except (InterruptionError, ServerError):  # a server's message is about the server
            raise
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            fed = ', '.join(f'{name} {list(value.shape)}' for name, value in tensors.items())
            raise EngineError(
                self._name,
                f'fails on {fed}: {error}',
                fix='correct model.input_size, or export the model again',
            ) from error

    def allocate(self, size: int) -> HostMemory:
        """Return ordinary memory of `size` bytes. The pipeline reads pixels in place."""
        return NumpyMemory(size)

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

    def all_inputs(self, tensor: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of all inputs for a tensor from `preprocess`, by name."""
        auxiliary = self._auxiliary
        if self._is_open:
            auxiliary = {name: value[: len(tensor)] for name, value in auxiliary.items()}
        return {self.spec.input.name: tensor, **auxiliary}

    def infer(self, tensor: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Run the model. Return its outputs in the order of the specification."""
        assert self._model is not None
        return self._model.run(self.all_inputs(tensor))

    def decode(
        self,
        outputs: Sequence[npt.NDArray[Any]],
        letterboxes: Sequence[Letterbox],
        thresholds: Sequence[Thresholds],
    ) -> list[TaskResult | OutputError]:
        """Decode the outputs with the thresholds of each image. See `stages.decode.decode`.

        If the decoder cannot read the shapes of the outputs, each image has the same error.
        """
        error = self._shapes_error(outputs, len(letterboxes))
        if error is not None:
            return [error] * len(letterboxes)
        return decode(outputs, self.spec, letterboxes, thresholds, self._limits)

    def _shapes_error(
        self, outputs: Sequence[npt.NDArray[Any]], frames: int
    ) -> OutputShapeError | None:
        """Return why the decoder cannot read the outputs of a batch; None if it can."""
        return self.spec.computed_shapes_error(
            [output.shape for output in outputs],
            frames=frames,
            batch=frames if self._is_open else self.spec.batch,
        )

    def close(self) -> None:
        """Free the model. May be called again."""
        if self._model is not None:
            self._model.close()
        self._model = None
