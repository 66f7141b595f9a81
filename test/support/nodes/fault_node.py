# SPDX-License-Identifier: Apache-2.0
"""Run a detector_node with the faults of nodes/faults.py, which a test can switch on and off.

    python fault_node.py FLAG stand-in|real --ros-args ...

The file FLAG holds the name of the active fault. An empty or missing file means no fault. With
``stand-in``, fake_cuda and fake_tensorrt replace the GPU and TensorRT.
"""

import errno
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.publisher import Publisher

# Python starts this file by its path, so the folder of the tests' support is not in sys.path.
sys.path.append(str(Path(__file__).resolve().parents[2]))
from support.gpu import fake_cuda
from support.gpu.fake_tensorrt import FakeTensorRt
from trt_perception.files import atomic_files, cache
from trt_perception.gpu import bindings
from trt_perception.pipelines.host import array_pipeline
from trt_perception.ros.camera.publishers import CameraPublishers
from trt_perception.ros.detector_program import main
from trt_perception.ros.intake import subscriptions
from trt_perception.ros.node_monitor import NodeMonitor
from trt_perception.scheduling.worker import PipelineWorker
from trt_perception.stages.onnx_runtime import OnnxModel
from trt_perception.stages.tensorrt.runtime import TensorRtEngine

FLAG = Path(sys.argv[1])


def is_fault_on(name):
    return FLAG.is_file() and FLAG.read_text() == name


def while_fault_on(name, original, fail):
    """Return a function that calls ``fail`` while the fault is active, otherwise ``original``."""

    def call(*arguments, **keywords):
        return (fail if is_fault_on(name) else original)(*arguments, **keywords)

    return call


def raise_error(error):
    def fail(*_, **__):
        raise error

    return fail


class Override:
    """Forwards to an object, and replaces some of its attributes."""

    def __init__(self, original, **changes):
        self.__dict__.update(changes)
        self._original = original

    def __getattr__(self, name):
        return getattr(self._original, name)


def cuda_with_faults(driver, nvrtc, runtime):
    """Add faults to the bindings."""
    errors = runtime.cudaError_t

    def wrapped(module, faults):
        changes = {}
        for name, function, fail in faults:
            changes[function] = while_fault_on(
                name, changes.get(function, getattr(module, function)), fail
            )
        return Override(module, **changes)

    no_memory = (errors.cudaErrorMemoryAllocation, None)
    invalid = (errors.cudaErrorInvalidValue,)
    missing = RuntimeError('the library cannot be loaded')
    runtime = wrapped(
        runtime,
        [
            ('no driver', 'cudaGetDeviceCount', raise_error(missing)),
            ('out of device memory', 'cudaMalloc', lambda *_: no_memory),
            ('out of pinned memory', 'cudaHostAlloc', lambda *_: no_memory),
            ('copy raises', 'cudaMemcpyAsync', lambda *_: invalid),
            ('collect raises', 'cudaEventSynchronize', lambda *_: invalid),
            (
                'poisoned GPU context',
                'cudaEventSynchronize',
                lambda *_: (errors.cudaErrorIllegalAddress,),
            ),
        ],
    )
    compilation = nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION
    nvrtc = wrapped(
        nvrtc,
        [
            ('no NVRTC', 'nvrtcVersion', raise_error(missing)),
            ('kernel fails to compile', 'nvrtcCompileProgram', lambda *_: (compilation,)),
        ],
    )
    return driver, nvrtc, runtime


def install_faults():
    """Install every fault."""
    install_faults_in_cuda()
    install_faults_in_files()
    install_faults_in_models()
    install_faults_in_ros()


def install_faults_in_cuda():
    if sys.argv[2] == 'stand-in':
        modules = cuda_with_faults(*fake_cuda.bindings())
        tensorrt = FakeTensorRt()
        real_answer = tensorrt.answer

        def answer(*call, **keywords):
            tensorrt.refuses = 'deserialize_cuda_engine' if is_fault_on('wrong version') else ''
            return real_answer(*call, **keywords)

        tensorrt.answer = answer
        sys.modules.update(tensorrt=tensorrt, tensorrt_lean=None, tensorrt_rtx=None)
    else:
        modules = cuda_with_faults(*bindings.load_bindings())
    bindings.load_bindings = lambda: modules

    real_context = TensorRtEngine._new_context

    def new_context(self):
        context = real_context(self)
        execute = while_fault_on(
            'enqueue returns False', context.execute_async_v3, lambda *_: False
        )
        return Override(context, execute_async_v3=execute)

    TensorRtEngine._new_context = new_context


def install_faults_in_files():
    full = OSError(errno.ENOSPC, 'No space left on device')
    atomic_files.tempfile = SimpleNamespace(
        mkstemp=while_fault_on(
            'cache folder full', atomic_files.tempfile.mkstemp, raise_error(full)
        )
    )
    cache.cache_folder = while_fault_on(
        'cache folder unwritable', cache.cache_folder, lambda kind: Path('/dev/null') / kind
    )


def install_faults_in_models():
    broken = RuntimeError('the model broke')
    for name in ('warm-up raises', 'ONNX Runtime raises'):
        OnnxModel.run = while_fault_on(name, OnnxModel.run, raise_error(broken))
    run = OnnxModel.run
    OnnxModel.run = while_fault_on(
        'output invalid', run, lambda *call: [output + 2 for output in run(*call)]
    )
    broken = RuntimeError('the decoder broke')
    array_pipeline.decode = while_fault_on(
        'decoder raises', array_pipeline.decode, raise_error(broken)
    )


def install_faults_in_ros():
    CameraPublishers.publish = while_fault_on(
        'publish raises', CameraPublishers.publish, raise_error(RuntimeError('publishing broke'))
    )
    publish = Publisher.publish

    def refuse(self, message):
        if self.topic_name.endswith('/detections'):
            raise rclpy_implementation.RCLError('cannot publish data')
        publish(self, message)

    Publisher.publish = while_fault_on('detections refused', publish, refuse)
    threading.Thread.start = while_fault_on(
        'no thread left',
        threading.Thread.start,
        raise_error(RuntimeError("can't start new thread")),
    )
    middleware = subscriptions._rclpy
    subscribe = while_fault_on(
        'no subscription',
        middleware.Subscription,
        raise_error(RuntimeError('failed to create subscription')),
    )
    subscriptions._rclpy = Override(middleware, Subscription=subscribe)
    PipelineWorker.step = while_fault_on(
        'worker thread dies', PipelineWorker.step, lambda self: False
    )

    real_check = NodeMonitor._check

    def lose(self):
        if not getattr(self, 'lost', False):
            self.lost = True
            self._cameras[0]._input._subscription.close()
        real_check(self)

    NodeMonitor._check = while_fault_on('subscription lost', real_check, lose)


if __name__ == '__main__':
    os.environ['XDG_CACHE_HOME'] = str(FLAG.with_name('cache'))
    install_faults()
    sys.exit(main([sys.argv[0], *sys.argv[3:]]))
