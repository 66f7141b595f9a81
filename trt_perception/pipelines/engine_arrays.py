"""An engine that is run on arrays: up, through the network, and down again, one after the other.

For offline tools, where an engine takes several images at once. A node's frames never go this way.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trt_perception.gpu import Device
from trt_perception.gpu import DeviceBuffer
from trt_perception.gpu import PinnedBuffer
from trt_perception.gpu import Stream
from trt_perception.gpu import copy_async
from trt_perception.model.input_layout import split_inputs
from trt_perception.model.model_file import ModelFile
from trt_perception.pipelines.cuda_results import array_of
from trt_perception.stages.tensorrt_runtime import TensorRtContext
from trt_perception.stages.tensorrt_runtime import TensorRtEngine

__all__ = ['EngineArrays']


class EngineArrays:
    """What OnnxModel is for an ONNX file.

    Args:
        model: a TensorRT plan.
        device_id: CUDA device.

    Attributes:
        inputs: name, shape and dtype of each input; -1 for a dimension that may vary.
        outputs: likewise.
        metadata: what stands in front of the plan, texts by key.

    Raises:
        CudaError: no driver, no such device, or not enough memory.
        EngineError: the plan is for another GPU or version.
    """

    def __init__(self, model: ModelFile, device_id: int) -> None:
        self._name = model.path.name
        self._closing = ExitStack()
        self._context: TensorRtContext | None = None
        self._buffers: dict[str, tuple[PinnedBuffer, DeviceBuffer]] = {}
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            self._device = Device(device_id)
            self._engine = TensorRtEngine(model, self._device)
            self._closing.callback(self._engine.close)
            self._stream: Stream = self._closing.enter_context(Stream())
            undo.pop_all()
        self.inputs = self._engine.inputs
        self.outputs = self._engine.outputs
        self.metadata: Mapping[str, str] = model.metadata

    def run(self, tensors: Mapping[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """Run the engine on its inputs, by name, of the same shapes each time.

        Returns:
            All outputs, in their order; valid until the next call, bfloat16 as float32.

        Raises:
            EngineError: no profile holds the shapes, or TensorRT fails.
            CudaError: a CUDA call failed.
        """
        self._device.use()
        if self._context is None:
            self._context = self._prepare(tensors)
        for name, values in tensors.items():
            pinned, device = self._buffers[name]
            pinned.array[: values.nbytes] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            copy_async(device.pointer, pinned.pointer, values.nbytes, self._stream)
        self._context.enqueue(self._stream)
        for tensor in self._context.outputs:
            pinned, device = self._buffers[tensor.name]
            copy_async(pinned.pointer, device.pointer, tensor.size_bytes, self._stream)
        self._stream.synchronize()
        return [
            array_of(self._buffers[tensor.name][0].array, tensor)
            for tensor in self._context.outputs
        ]

    def close(self) -> None:
        """Free everything on the device."""
        self._closing.callback(self._device.use)  # comes first, and if it fails the rest is freed
        self._closing.close()

    def _prepare(self, tensors: Mapping[str, npt.NDArray[Any]]) -> TensorRtContext:
        image, auxiliary_inputs = split_inputs(self._name, self.inputs)
        closed = [
            replace(tensor, shape=tensors[tensor.name].shape)
            for tensor in (image, *auxiliary_inputs)
        ]
        context = self._engine.create_context(closed[0], self._stream, closed[1:])
        self._closing.callback(context.close)
        for tensor in (*closed, *context.outputs):
            pinned = self._closing.enter_context(PinnedBuffer(tensor.size_bytes))
            device = self._closing.enter_context(DeviceBuffer(tensor.size_bytes))
            self._buffers[tensor.name] = pinned, device
            context.bind({tensor.name: device.pointer})
        return context
