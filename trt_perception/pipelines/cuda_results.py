"""How a frame's boxes come back from the GPU: decoded there by kernels, or here from the outputs.

A slot has one of the two; the queued part of either is captured into the slot's graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trt_perception.config import DetectorConfig
from trt_perception.config import Thresholds
from trt_perception.detections import Detections
from trt_perception.gpu import DeviceBuffer
from trt_perception.gpu import PinnedBuffer
from trt_perception.gpu import Stream
from trt_perception.gpu import clear_async
from trt_perception.gpu import copy_async
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.tensors import TensorSpec
from trt_perception.stages.decoders.decode import bfloat16_to_float32
from trt_perception.stages.decoders.decode import count_candidates
from trt_perception.stages.decoders.decode import decode
from trt_perception.stages.decoders.selection import check_scores
from trt_perception.stages.gpu_kernels import RESULT_HEAD_BYTES
from trt_perception.stages.gpu_kernels import RESULT_ROW
from trt_perception.stages.gpu_kernels import FrameKernels

__all__ = ['HostDecoded', 'KernelDecoded', 'SlotResult', 'array_of']


class SlotResult(Protocol):
    """The end of a frame's way through a slot."""

    def queue(self, header: int, outputs: Mapping[str, int], stream: Stream) -> None:
        """Queue what follows the engine; all numbers are device addresses, outputs by name."""

    def collect(self, letterbox: Letterbox, thresholds: Thresholds) -> Detections:
        """Return the boxes once the queued work is done."""

    def candidates(self, letterbox: Letterbox, thresholds: Thresholds) -> int:
        """Return how many boxes were above the threshold, before NMS; for measuring."""

    def close(self) -> None:
        """Free everything."""


class KernelDecoded:
    """Dense outputs: kernels decode, only final boxes come back.

    Args:
        kernels: compiled for the model.
        stream: the scratch memory is cleared in its order.
    """

    def __init__(self, kernels: FrameKernels, stream: Stream) -> None:
        self._kernels = kernels
        self._closing = ExitStack()
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            self._scratch = self._closing.enter_context(DeviceBuffer(kernels.scratch_bytes))
            # Written by the last kernel where it lies: 7 KB need no copy of their own.
            self._result = self._closing.enter_context(PinnedBuffer(kernels.result_bytes))
            clear_async(self._scratch.pointer, self._scratch.size, stream)
            undo.pop_all()

    def queue(self, header: int, outputs: Mapping[str, int], stream: Stream) -> None:
        """Queue the kernels of the one output."""
        (output,) = outputs.values()
        self._kernels.decode(
            header, output, self._scratch.pointer, self._result.device_pointer, stream
        )

    def collect(self, letterbox: Letterbox, thresholds: Thresholds) -> Detections:  # noqa: ARG002
        """Copy the rows out of pinned memory; the kernels know geometry and thresholds."""
        count = int(self._result.array[:4].view(np.int32)[0])
        rows = self._result.array[RESULT_HEAD_BYTES:].view(RESULT_ROW)[:count]
        check_scores(rows['score'][:1])  # the best one comes first
        return Detections(rows['xyxy'].copy(), rows['score'].copy(), rows['class_id'].copy())

    def candidates(self, letterbox: Letterbox, thresholds: Thresholds) -> int:  # noqa: ARG002
        """Return what the filter kernel counted."""
        return int(self._result.array[:8].view(np.int32)[1])

    def close(self) -> None:
        """Free the buffers."""
        self._closing.close()


class HostDecoded:
    """Any other outputs: they come back whole and are decoded on the host.

    They are small: a transformer's 300 queries of 80 classes are 100 KB. Dense ones only where
    more boxes shall enter NMS than the kernels have room for.

    Args:
        spec: the model's, without open dimensions.
        config: the node's parameters.
        max_candidates: most boxes that enter NMS.
    """

    def __init__(self, spec: ModelSpec, config: DetectorConfig, max_candidates: int) -> None:
        self._spec = spec
        self._config = config
        self._max_candidates = max_candidates
        self._closing = ExitStack()
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            self._outputs = {
                tensor.name: self._closing.enter_context(PinnedBuffer(tensor.size_bytes))
                for tensor in spec.outputs
            }
            undo.pop_all()

    def queue(self, header: int, outputs: Mapping[str, int], stream: Stream) -> None:  # noqa: ARG002
        """Queue a copy of each output to pinned memory."""
        for name, pinned in self._outputs.items():
            copy_async(pinned.pointer, outputs[name], pinned.size, stream)

    def collect(self, letterbox: Letterbox, thresholds: Thresholds) -> Detections:
        """Decode the outputs."""
        (detections,) = decode(
            self._arrays(),
            self._spec,
            [letterbox],
            [thresholds],
            max_detections=self._config.max_detections,
            max_candidates=self._max_candidates,
            class_agnostic=self._config.class_agnostic_nms,
        )
        return detections

    def candidates(self, letterbox: Letterbox, thresholds: Thresholds) -> int:  # noqa: ARG002
        """Count what the decoder lets pass."""
        return count_candidates(self._arrays(), self._spec, thresholds)

    def _arrays(self) -> list[npt.NDArray[Any]]:
        """Return the outputs where they lie, in the order of the spec's."""
        return [
            array_of(self._outputs[tensor.name].array, tensor) for tensor in self._spec.outputs
        ]

    def close(self) -> None:
        """Free the buffers."""
        self._closing.close()


def array_of(content: npt.NDArray[np.uint8], tensor: TensorSpec) -> npt.NDArray[Any]:
    """Return the bytes of a tensor as an array; NumPy has no bfloat16."""
    own = content[: tensor.size_bytes]
    if tensor.dtype == 'bfloat16':
        return bfloat16_to_float32(own.view(np.uint16)).reshape(tensor.shape)
    return own.view(np.dtype(tensor.dtype)).reshape(tensor.shape)
