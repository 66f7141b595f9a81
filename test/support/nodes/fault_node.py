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
from trt_perception.pipelines import host_pipeline
from trt_perception.ros.camera.outputs import DetectorOutputs
from trt_perception.ros.detector_program import main
from trt_perception.ros.health import NodeHealth
from trt_perception.ros.intake import subscriptions
from trt_perception.scheduling.worker import PipelineWorker
from trt_perception.stages.onnx_runtime import OnnxModel
from trt_perception.stages.tensorrt_runtime import TensorRtEngine

FLAG = Path(sys.argv[1])


def on(name):
    return FLAG.is_file() and FLAG.read_text() == name


def during(name, original, fail):
    """Return a function that calls ``fail`` while the fault is active, otherwise ``original``."""

    def call(*arguments, **keywords):
        return (fail if on(name) else original)(*arguments, **keywords)

    return call


def raises(error):
    def fail(*_, **__):
        raise error

    return fail


class Over:
    """Forwards to an object, and replaces some of its attributes."""

    def __init__(self, original, **changes):
        self.__dict__.update(changes)
        self._original = original

    def __getattr__(self, name):
        return getattr(self._original, name)


def cuda(driver, nvrtc, runtime):
    """Add faults to the bindings."""
    errors = runtime.cudaError_t

    def wrapped(module, faults):
        changes = {}
        for name, function, fail in faults:
            changes[function] = during(
                name, changes.get(function, getattr(module, function)), fail
            )
        return Over(module, **changes)

    no_memory = (errors.cudaErrorMemoryAllocation, None)
    invalid = (errors.cudaErrorInvalidValue,)
    missing = RuntimeError('the library cannot be loaded')
    runtime = wrapped(
        runtime,
        [
            ('no driver', 'cudaGetDeviceCount', raises(missing)),
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
            ('no NVRTC', 'nvrtcVersion', raises(missing)),
            ('kernel fails to compile', 'nvrtcCompileProgram', lambda *_: (compilation,)),
        ],
    )
    return driver, nvrtc, runtime


def install():
    """Install every fault."""
    install_in_cuda()
    install_in_files()
    install_in_models()
    install_in_ros()


def install_in_cuda():
    if sys.argv[2] == 'stand-in':
        modules = cuda(*fake_cuda.bindings())
        tensorrt = FakeTensorRt()
        real_answer = tensorrt.answer

        def answer(*call, **keywords):
            tensorrt.refuses = 'deserialize_cuda_engine' if on('wrong version') else ''
            return real_answer(*call, **keywords)

        tensorrt.answer = answer
        sys.modules.update(tensorrt=tensorrt, tensorrt_rtx=None)
    else:
        modules = cuda(*bindings.load_bindings())
    bindings.load_bindings = lambda: modules

    real_context = TensorRtEngine._new_context

    def new_context(self):
        context = real_context(self)
        execute = during('enqueue returns False', context.execute_async_v3, lambda *_: False)
        return Over(context, execute_async_v3=execute)

    TensorRtEngine._new_context = new_context


def install_in_files():
    full = OSError(errno.ENOSPC, 'No space left on device')
    atomic_files.tempfile = SimpleNamespace(
        mkstemp=during('cache folder full', atomic_files.tempfile.mkstemp, raises(full))
    )
    cache.cache_folder = during(
        'cache folder unwritable', cache.cache_folder, lambda kind: Path('/dev/null') / kind
    )


def install_in_models():
    broken = RuntimeError('the model broke')
    for name in ('warm-up raises', 'ONNX Runtime raises'):
        OnnxModel.run = during(name, OnnxModel.run, raises(broken))
    run = OnnxModel.run
    OnnxModel.run = during(
        'output invalid', run, lambda *call: [output + 2 for output in run(*call)]
    )
    for name in [name for name in vars(host_pipeline) if name.startswith('decode')]:
        if callable(getattr(host_pipeline, name)):
            broken = RuntimeError('the decoder broke')
            setattr(
                host_pipeline,
                name,
                during('decoder raises', getattr(host_pipeline, name), raises(broken)),
            )


def install_in_ros():
    DetectorOutputs.publish = during(
        'publish raises', DetectorOutputs.publish, raises(RuntimeError('publishing broke'))
    )
    publish = Publisher.publish

    def refuse(self, message):
        if self.topic_name.endswith('/detections'):
            raise rclpy_implementation.RCLError('cannot publish data')
        publish(self, message)

    Publisher.publish = during('detections refused', publish, refuse)
    threading.Thread.start = during(
        'no thread left',
        threading.Thread.start,
        raises(RuntimeError("can't start new thread")),
    )
    middleware = subscriptions._rclpy
    subscribe = during(
        'no subscription',
        middleware.Subscription,
        raises(RuntimeError('failed to create subscription')),
    )
    subscriptions._rclpy = Over(middleware, Subscription=subscribe)
    PipelineWorker.step = during('worker thread dies', PipelineWorker.step, lambda self: False)

    real_check = NodeHealth._check

    def lose(self):
        if not getattr(self, 'lost', False):
            self.lost = True
            self._cameras[0]._input._subscription.close()
        real_check(self)

    NodeHealth._check = during('subscription lost', real_check, lose)


if __name__ == '__main__':
    os.environ['XDG_CACHE_HOME'] = str(FLAG.with_name('cache'))
    install()
    sys.exit(main([sys.argv[0], *sys.argv[3:]]))
