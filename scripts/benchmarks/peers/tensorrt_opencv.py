# SPDX-License-Identifier: Apache-2.0
"""The same engine with TensorRT's Python API, and blocking copies from and to ordinary memory.

Programs look like this after a first TensorRT tutorial. Buffers are allocated once. Letterbox and
NMS run with OpenCV on the CPU.
"""

import importlib
from pathlib import Path

import numpy as np
from cuda.bindings import runtime as cuda
from opencv_steps import boxes_of, clipped, letterbox
from side import plain, serve

UPLOAD = cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
DOWNLOAD = cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost


def tensorrt():
    """Return TensorRT's module, or TensorRT-RTX's if only that is installed."""
    try:
        return importlib.import_module('tensorrt')
    except ImportError:
        return importlib.import_module('tensorrt_rtx')


def check(result):
    """Return the value of a CUDA call. Raise an error if the call failed."""
    error, *values = result
    if error != cuda.cudaError_t.cudaSuccess:
        raise RuntimeError(error)
    return values[0] if values else None


class TensorRtOpenCv:
    def __init__(self, options):
        trt = tensorrt()
        self.runtime = trt.Runtime(trt.Logger(trt.Logger.WARNING))
        self.engine = self.runtime.deserialize_cuda_engine(Path(options.model).read_bytes())
        if self.engine is None:
            raise SystemExit('TensorRT refuses the engine: see its messages above')
        self.context = self.engine.create_execution_context()
        self.stream = check(cuda.cudaStreamCreate())
        self.arrays, self.pointers = {}, {}
        for index in range(self.engine.num_io_tensors):
            name = self.engine.get_tensor_name(index)
            shape = tuple(self.engine.get_tensor_shape(name))
            dtype = np.dtype(trt.nptype(self.engine.get_tensor_dtype(name)))
            if self.engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
                self.input = name
            else:
                self.output = name
            self.arrays[name] = np.empty(shape, dtype)
            self.pointers[name] = check(cuda.cudaMalloc(self.arrays[name].nbytes))
            self.context.set_tensor_address(name, int(self.pointers[name]))
        self.facts = {trt.__name__: trt.__version__}

    def detect(self, frame):
        tensor, scale, offset = letterbox(frame, self.arrays[self.input].shape[2])
        given = np.ascontiguousarray(tensor, self.arrays[self.input].dtype)
        device = self.pointers[self.input]
        check(cuda.cudaMemcpy(device, given.ctypes.data, given.nbytes, UPLOAD))
        if not self.context.execute_async_v3(int(self.stream)):
            raise RuntimeError('TensorRT refused to run the engine')
        check(cuda.cudaStreamSynchronize(self.stream))
        output = self.arrays[self.output]
        device = self.pointers[self.output]
        check(cuda.cudaMemcpy(output.ctypes.data, device, output.nbytes, DOWNLOAD))
        xyxy, scores, class_ids = boxes_of(output.astype(np.float32, copy=False), scale, offset)
        return clipped(xyxy, frame), scores, class_ids


if __name__ == '__main__':
    serve(lambda options, _: plain(TensorRtOpenCv(options)))
