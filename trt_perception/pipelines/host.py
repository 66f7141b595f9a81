"""Frames on the CPU: OpenCV letterbox, ONNX Runtime, NumPy decoding.

Offline it runs batches too, and engines that take no fewer: then only the network is on the GPU.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from trt_perception.config import DetectorConfig
from trt_perception.config import Thresholds
from trt_perception.detections import Detections
from trt_perception.errors import EngineError
from trt_perception.errors import ImageError
from trt_perception.errors import TrtPerceptionError
from trt_perception.images.frame import Frame
from trt_perception.images.jpeg import AnyFrame
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.memory import Memory
from trt_perception.images.memory import PlainMemory
from trt_perception.model.input_layout import constant_inputs
from trt_perception.model.model_file import ModelFile
from trt_perception.model.model_spec import resolve_model_spec
from trt_perception.model.tensors import LoadedModel
from trt_perception.model.tensors import TensorSpec
from trt_perception.pipelines.engine_arrays import EngineArrays
from trt_perception.pipelines.pipeline import Result
from trt_perception.stages.decoders.decode import decode
from trt_perception.stages.host_preprocess import HostPreprocessor
from trt_perception.stages.onnx_runtime import CPU
from trt_perception.stages.onnx_runtime import OnnxModel

__all__ = ['HostPipeline']


class HostPipeline:
    """A Pipeline that does its work inside ``collect``: ``preprocess``, ``infer``, ``decode``.

    One slot: what is taken early would only grow old in the queue, and newest wins.

    Attributes:
        batch: most frames at once; a model of a fixed batch is given so many each time, whatever
            lies in the places of those that are missing.
    """

    depth = 1
    front = 0
    decodes_jpeg = False

    def __init__(
        self,
        model: ModelFile,
        config: DetectorConfig,
        *,
        max_candidates: int = 1024,
        provider: str = CPU,
        any_batch: bool = False,
    ) -> None:
        """Load the model.

        Args:
            model: an ONNX file, or an engine.
            config: the node's parameters.
            max_candidates: most boxes that enter NMS; evaluation needs more than a node.
            provider: ONNX Runtime's; a node runs on the CPU.
            any_batch: the model may take several images at once.

        Raises:
            BatchError: it does, and must not.
            EngineError: the model cannot be loaded, or it is not known how to use it.
        """
        self._model: OnnxModel | EngineArrays | None = (
            OnnxModel(model, config.resolved_cpu_threads(), provider)
            if model.is_onnx
            else EngineArrays(model, config.device_id)
        )
        self._file = model.path.name
        found = self._model
        self.spec = resolve_model_spec(
            LoadedModel(self._file, found.inputs, found.outputs, found.metadata, model.config),
            model.manifest,
            config.model_overrides(),
            any_batch=any_batch,
            run=self._output_shapes,
        )
        self._constants = constant_inputs(
            self.spec.auxiliary_inputs, self.spec.preprocessing.input_size, self.spec.batch
        )
        self._preprocessor = HostPreprocessor(self.spec.preprocessing, self.spec.batch)
        self._config = config
        self._max_candidates = max_candidates
        self.batch = self.spec.batch
        self._waiting: tuple[list[Frame], list[Thresholds]] | None = None

    def _output_shapes(self, tensors: Mapping[str, npt.NDArray[Any]]) -> list[tuple[int, ...]]:
        """Run the model for the shapes of its outputs alone."""
        assert self._model is not None
        try:
            return [output.shape for output in self._model.run(tensors)]
        except TrtPerceptionError:  # an engine's
            raise
        except Exception as error:  # ONNX Runtime's exceptions share no base of their own
            fed = ', '.join(f'{name} {list(value.shape)}' for name, value in tensors.items())
            raise EngineError(
                self._file,
                f'fails on {fed}: {error}',
                fix='correct model.input_size, or export it again',
            ) from error

    def allocate(self, size: int) -> Memory:
        """Return ordinary memory: pixels are read where they lie."""
        return PlainMemory(size)

    def enqueue(
        self, slot: int, frames: Sequence[AnyFrame], thresholds: Sequence[Thresholds]
    ) -> None:
        """Keep the frames for ``collect``; their bytes are not copied."""
        assert slot == 0
        assert self._waiting is None
        plain = [frame for frame in frames if isinstance(frame, Frame)]
        assert len(plain) == len(frames), 'nobody gives a JPEG to who does not decode it'
        self._waiting = plain, list(thresholds)

    def done(self, slot: int) -> bool:
        """Return True: there is nothing to wait for."""
        assert slot == 0
        return True

    def collect(self, slot: int) -> list[Result | ImageError]:
        """Do the work on the frames that were enqueued.

        Raises:
            EngineError: the outputs are not what they should be.
        """
        assert slot == 0
        assert self._waiting is not None
        (frames, thresholds), self._waiting = self._waiting, None
        started = time.perf_counter()
        tensor, letterboxes = self.preprocess(frames)
        found = self.decode(self.infer(tensor), letterboxes, thresholds)
        seconds = time.perf_counter() - started
        return [Result(detections, seconds) for detections in found]

    def preprocess(self, frames: Sequence[Frame]) -> tuple[npt.NDArray[Any], list[Letterbox]]:
        """Return the image input, valid until the next time, and where each image lies in it."""
        assert 0 < len(frames) <= self.batch
        letterboxes = []
        for place, frame in enumerate(frames):
            tensor, letterbox = self._preprocessor(frame, place)
            letterboxes.append(letterbox)
        return tensor.reshape(self.spec.input.shape), letterboxes

    def infer(self, tensor: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Return the outputs, in the order of the spec's."""
        assert self._model is not None
        return self._model.run({self.spec.input.name: tensor, **self._constants})

    def decode(
        self,
        outputs: Sequence[npt.NDArray[Any]],
        letterboxes: Sequence[Letterbox],
        thresholds: Sequence[Thresholds],
    ) -> list[Detections]:
        """Return the boxes of each image, by its own thresholds.

        Raises:
            EngineError: the outputs are not what the decoder reads.
        """
        self.spec.check_outputs(
            tuple(
                TensorSpec(told.name, array.shape, str(array.dtype))
                for told, array in zip(self.spec.outputs, outputs, strict=True)
            )
        )
        return decode(
            outputs,
            self.spec,
            letterboxes,
            thresholds,
            max_detections=self._config.max_detections,
            max_candidates=self._max_candidates,
            class_agnostic=self._config.class_agnostic_nms,
        )

    def close(self) -> None:
        """Free the model."""
        if self._model is not None:
            self._model.close()
        self._model = None
        self._waiting = None
