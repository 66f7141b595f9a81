# SPDX-License-Identifier: Apache-2.0
"""Run a detector node whose pipeline loses its GPU context after some frames.

    python lost_gpu_node.py pretend | ENGINE

With ``pretend``, the pipeline raises the error of a lost context. With an engine, a kernel writes
to an invalid address.
"""

import ctypes
import sys
import time

from trt_perception import gpu
from trt_perception.errors import CudaError
from trt_perception.images.detections import Detections
from trt_perception.images.memory import NumpyMemory
from trt_perception.model.decoders.anchors import Dense
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tensors import TensorSpec
from trt_perception.pipelines.cuda.cuda_pipeline import CudaPipeline
from trt_perception.pipelines.open_pipeline import open_pipeline
from trt_perception.pipelines.pipeline import Result
from trt_perception.ros.detector_program import main

FRAMES = 45  # for 4.5 s, because discovery may take one period of 3 s


class Pretended:
    """A pipeline that returns no detections, and then raises the error of a lost context."""

    depth = max_in_flight = 1
    batch = 1
    decodes_jpeg = False
    diagnostic_values = ()
    opening_reason = ''
    allocate = NumpyMemory
    spec = ModelSpec(
        TensorSpec('images', (1, 3, 64, 64), 'float32'),
        (TensorSpec('output0', (1, 5, 9), 'float32'),),
        Preprocessing((64, 64)),
        Dense(),
        ('thing',),
        True,
    )

    def __init__(self):
        self._seen = 0

    def enqueue(self, slot, frames, thresholds):
        self._seen += 1
        (self._frame,) = frames

    def is_done(self, slot):
        return True

    def collect(self, slot):
        if self._seen > FRAMES:
            print(f'dead at {time.time()}', flush=True)
            raise CudaError('cudaEventSynchronize', 'cudaErrorIllegalAddress', sticky=True)
        return [Result(Detections.empty(), 0.0, self._frame)]

    def close(self):
        raise CudaError('cudaFree', 'cudaErrorIllegalAddress', sticky=True)


class Poisoned(CudaPipeline):
    """The real pipeline, which then launches a kernel that writes to an invalid address."""

    _seen = 0

    def enqueue(self, slot, frames, thresholds):
        self._seen += 1
        if self._seen == FRAMES + 4:  # the warm-up fills every slot once
            source = 'extern "C" __global__ void bad(int* p) { *p = 1; }'
            kernels = gpu.Kernels(gpu.compile_kernels(source, gpu.Device(0).compute_capability))
            print(f'dead at {time.time()}', flush=True)
            kernels.launch(
                'bad', (1, 1, 1), (1, 1, 1), [(8, ctypes.c_void_p)], self.slots[slot].stream
            )
        super().enqueue(slot, frames, thresholds)


def make(path, options):
    if sys.argv[1] == 'pretend':
        return Pretended()
    pipeline = open_pipeline(path, options)
    pipeline.__class__ = Poisoned
    return pipeline


if __name__ == '__main__':
    engine = [] if sys.argv[1] == 'pretend' else ['-p', f'engine_path:={sys.argv[1]}']
    sys.exit(
        main(
            ['lost', '--ros-args', '-p', 'autostart:=true', *engine],
            open_pipeline=make,
        )
    )
