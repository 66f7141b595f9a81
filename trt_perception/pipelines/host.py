"""The whole frame on the CPU: OpenCV letterbox, ONNX Runtime, NumPy decoding."""

from __future__ import annotations

import time

from trt_perception.config import DetectorConfig
from trt_perception.config import Thresholds
from trt_perception.frame import Frame
from trt_perception.input_layout import constant_inputs
from trt_perception.manifest import TensorSpec
from trt_perception.model_file import ModelFile
from trt_perception.model_spec import resolve_model_spec
from trt_perception.pipelines.pipeline import Result
from trt_perception.stages.decoders.decode import decode
from trt_perception.stages.host_preprocess import HostPreprocessor
from trt_perception.stages.onnx_runtime import CPU
from trt_perception.stages.onnx_runtime import OnnxModel

__all__ = ['HostPipeline']


class HostPipeline:
    """A Pipeline that does its work inside ``collect``.

    One frame at a time: a second one taken early would only grow old in the queue, and newest
    wins.
    """

    depth = 1

    def __init__(
        self,
        model: ModelFile,
        config: DetectorConfig,
        *,
        max_candidates: int = 1024,
        provider: str = CPU,
    ) -> None:
        """Load the model.

        Args:
            model: an ONNX file.
            config: the node's parameters.
            max_candidates: most boxes that enter NMS; evaluation needs more than a node.
            provider: ONNX Runtime's; a node runs on the CPU.

        Raises:
            EngineError: the model cannot be loaded, or it is not known how to use it.
        """
        self._model: OnnxModel | None = OnnxModel(model, config.resolved_cpu_threads(), provider)
        self.spec = resolve_model_spec(
            model.path.name,
            model.manifest,
            self._model.inputs,
            self._model.outputs,
            config,
            metadata=self._model.metadata,
            model_config=model.config,
        )
        self._constants = constant_inputs(self.spec.beside, self.spec.preprocessing.input_size)
        self._preprocess = HostPreprocessor(self.spec.preprocessing)
        self._config = config
        self._max_candidates = max_candidates
        self._waiting: tuple[Frame, Thresholds] | None = None

    def enqueue(self, slot: int, frame: Frame, thresholds: Thresholds) -> None:
        """Keep the frame for ``collect``; its bytes are not copied."""
        assert slot == 0
        assert self._waiting is None
        self._waiting = frame, thresholds

    def done(self, slot: int) -> bool:
        """Return True: there is nothing to wait for."""
        assert slot == 0
        return True

    def collect(self, slot: int) -> Result:
        """Do the work on the frame that was enqueued."""
        assert slot == 0
        assert self._waiting is not None
        assert self._model is not None
        (frame, thresholds), self._waiting = self._waiting, None
        started = time.perf_counter()
        tensor, letterbox = self._preprocess(frame)
        image = {self.spec.input.name: tensor.reshape(self.spec.input.shape)}
        outputs = self._model.run({**image, **self._constants})
        self.spec.check_outputs(
            tuple(
                TensorSpec(told.name, array.shape, str(array.dtype))
                for told, array in zip(self.spec.outputs, outputs, strict=True)
            )
        )
        (detections,) = decode(
            outputs,
            self.spec,
            [letterbox],
            thresholds,
            max_detections=self._config.max_detections,
            max_candidates=self._max_candidates,
            class_agnostic=self._config.class_agnostic_nms,
        )
        return Result(detections, time.perf_counter() - started)

    def close(self) -> None:
        """Free the model."""
        self._model = None
        self._waiting = None
