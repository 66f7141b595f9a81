"""What goes wrong when a pipeline is made on a GPU: a clear error, and nothing is kept.

Real CUDA and TensorRT; test_gpu_rollback does the same with stand-ins, for every call.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.gpu.cuda_recorder import Recorder
from support.gpu.gpu_support import build_plan, needs_tensorrt, tensorrt
from support.models.open_model import open_by_parameters
from support.models.patch_model import patch_onnx, write_engine
from trt_perception import gpu
from trt_perception.errors import CudaError, EngineError
from trt_perception.gpu import bindings
from trt_perception.images.frame import Frame
from trt_perception.model.decoders.dense import Dense
from trt_perception.parameters.config import DetectorConfig
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines import cuda_slot
from trt_perception.pipelines.pipeline import detect_one
from trt_perception.stages import gpu_kernels
from trt_perception.stages.tensorrt_runtime import TensorRtEngine

MIB = 2**20
SIZE = (64, 48)
DECODER = Dense()
# TensorRT-RTX 1.4 keeps about 0.05 MiB for each execution context that there was, whoever made
# it; the driver hands memory out in steps of 2 MiB.
CONTEXT_KEEPS = 64 * 1024
STEP = 2 * MIB


@pytest.fixture(scope='module')
def plan():
    return build_plan(patch_onnx(SIZE, DECODER))


@pytest.fixture
def path(plan, tmp_path):
    return write_engine(tmp_path / 'patches.engine', plan, SIZE, DECODER)


@pytest.fixture
def watched(monkeypatch):
    """The recorder of all CUDA calls from here on; there must be nothing left in the end."""
    recorder = Recorder(bindings.load_bindings())
    monkeypatch.setattr(bindings, 'load_bindings', lambda: recorder.modules)
    yield recorder
    assert recorder.kinds() == []
    assert recorder.mistakes == []


def frame(seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, 48 * 64 * 3, np.uint8)
    return Frame.view(pixels, width=64, height=48, step=192, encoding='bgr8')


def detect(pipeline):
    """Return boxes and scores of some frames, each through another slot."""
    found = []
    for index in range(2 * pipeline.depth):
        slot = index % pipeline.depth
        found.append(detect_one(pipeline, frame(index), Thresholds(0.3), slot).detections)
    return np.concatenate([np.column_stack([one.xyxy, one.scores]) for one in found])


ALLOCATIONS = (
    'cudaMalloc',
    'cudaHostAlloc',
    'cudaHostGetDevicePointer',
    'cudaStreamCreateWithFlags',
    'cudaEventCreateWithFlags',
    'cuLibraryLoadData',
)


@pytest.mark.whole_gpu
@needs_tensorrt
def test_whichever_allocation_fails_nothing_is_kept(path, watched, monkeypatch):
    config = DetectorConfig(engine_path=str(path))
    contexts = []
    create = TensorRtEngine.create_context
    monkeypatch.setattr(
        TensorRtEngine,
        'create_context',
        lambda *arguments: contexts.append(1) or create(*arguments),
    )
    for _ in range(3):
        open_by_parameters(config).close()
    watched.calls.clear()
    open_by_parameters(config).close()
    calls = list(watched.calls)
    device = gpu.Device(0)
    before, contexts[:] = device.memory()[0], []
    failed = 0
    for failing, name in enumerate(calls):
        if name not in ALLOCATIONS:
            continue
        watched.calls.clear()
        watched.fails = lambda index, _: (
            'cudaErrorMemoryAllocation' if index == failing else None  # noqa: B023
        )
        with pytest.raises(CudaError, match=name):
            open_by_parameters(config)
        assert watched.kinds() == []
        failed += 1
    watched.fails = lambda index, name: None
    kept = before - device.memory()[0]
    print(f'{failed} allocations failed, {len(contexts)} contexts were made, {kept} bytes kept')
    assert failed > 30
    assert kept <= len(contexts) * CONTEXT_KEEPS + STEP
    pipeline = open_by_parameters(config)
    assert len(detect(pipeline))
    pipeline.close()


@pytest.mark.whole_gpu
@needs_tensorrt
def test_a_full_gpu_is_refused_and_nothing_is_kept(path):
    script = Path(__file__).parents[1] / 'support' / 'gpu' / 'full_gpu.py'
    done = subprocess.run(
        [sys.executable, script, path], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    for entry in report['attempts']:
        print({**entry, 'message': entry['message'][:600]})
    print('kept in the end:', report['before'] - report['after'])
    *failures, last = report['attempts']
    assert failures
    assert last['kind'] == ''
    for entry in failures:
        assert entry['kind'] in ('CudaError', 'EngineError', 'GpuMemoryError')
        assert re.search('memory|MiB free', entry['message'])
    assert (
        report['before'] - report['after'] <= (3 * len(report['attempts'])) * CONTEXT_KEEPS + STEP
    )


def refused(path, content, match):
    path.write_bytes(content)
    path.with_name(path.name + '.json').unlink(missing_ok=True)
    with pytest.raises(EngineError, match=match) as caught:
        open_by_parameters(DetectorConfig(engine_path=str(path)))
    print(caught.value)
    return str(caught.value)


@needs_tensorrt
@pytest.mark.skipif(
    not os.environ.get('FOREIGN_PLANS'),
    reason='FOREIGN_PLANS names no folder with plans that other releases of TensorRT built',
)
def test_real_plans_of_other_releases_are_refused(path, watched):
    plans = sorted(Path(os.environ['FOREIGN_PLANS']).glob('*.engine'))
    assert plans
    for plan in plans:
        content = plan.read_bytes()
        message = refused(path, content, 'cannot (load it|be imported)')
        assert '.'.join(map(str, content[24:28])) in message
        assert tensorrt().__version__ in message
        assert 'build_engine' in message
        assert 'reported: nothing' not in message


@needs_tensorrt
@pytest.mark.parametrize('other', ['SM75', 'SM89', 'SM120'])
def test_a_plan_for_another_gpu_is_refused_or_right(path, tmp_path, watched, other):
    """TensorRT-RTX decides: 1.4 compiles some plans for a GPU that they were not made for."""
    if not hasattr(tensorrt(), 'ComputeCapability'):
        pytest.skip('only TensorRT-RTX builds plans for other GPUs than that of the machine')
    content = build_plan(patch_onnx(SIZE, DECODER), capabilities=[other])
    foreign = write_engine(tmp_path / 'foreign.engine', content, SIZE, DECODER)
    try:
        pipeline = open_by_parameters(DetectorConfig(engine_path=str(foreign)))
    except EngineError as error:
        pipeline, message = None, str(error)
    if pipeline is None:
        print(other, message)
        mine = gpu.Device(0).compute_capability
        assert f'compute capability {mine[0]}.{mine[1]}' in message
        assert 'reported: nothing' not in message
        return
    print(other, 'is loaded here')
    found = detect(pipeline)
    pipeline.close()
    own = open_by_parameters(DetectorConfig(engine_path=str(path)))
    expected = detect(own)
    own.close()
    assert len(expected)
    np.testing.assert_allclose(found, expected, atol=1e-3, rtol=0)


@needs_tensorrt
@pytest.mark.parametrize('part', [0.0, 0.05, 0.5, 0.99])
def test_a_truncated_plan_is_refused(path, plan, watched, part):
    refused(path, plan[: max(64, int(len(plan) * part))], 'cannot load it')


@needs_tensorrt
def test_without_a_manifest_a_refusal_keeps_nothing(path, plan, watched):
    refused(path, plan, r'model\.')


@needs_tensorrt
def test_a_capture_that_fails_costs_the_graph_only(path, watched, monkeypatch, caplog):
    config = DetectorConfig(engine_path=str(path))
    with_graph = open_by_parameters(config)
    expected = detect(with_graph)
    with_graph.close()

    class Broken(gpu.Graph):
        def __init__(self, stream, record):
            def and_wait():
                record()
                stream.synchronize()  # which a capture forbids

            super().__init__(stream, and_wait)

    monkeypatch.setattr(cuda_slot, 'Graph', Broken)
    caplog.clear()
    pipeline = open_by_parameters(config)
    watched.calls.clear()
    found = detect(pipeline)
    assert 'cudaGraphLaunch' not in watched.calls
    pipeline.close()
    warnings = [r.message for r in caplog.records if 'graph' in r.message.lower()]
    print(warnings)
    assert len(warnings) == 1
    assert 'no CUDA graph' in warnings[0]
    assert len(expected)
    np.testing.assert_array_equal(found, expected)


@needs_tensorrt
def test_graphs_can_be_switched_off(path, watched, caplog):
    found = []
    for use in (True, False):
        pipeline = open_by_parameters(DetectorConfig(engine_path=str(path), use_cuda_graph=use))
        watched.calls.clear()
        found.append(detect(pipeline))
        assert ('cudaGraphLaunch' in watched.calls) == use
        pipeline.close()
    np.testing.assert_array_equal(*found)
    assert not [record for record in caplog.records if 'graph' in record.message.lower()]


@needs_tensorrt
def test_a_kernel_that_does_not_compile_is_refused(path, watched, monkeypatch):
    monkeypatch.setitem(gpu_kernels._C_TYPES, 'float32', 'no_such_type')
    with pytest.raises(CudaError, match=r'NVRTC .* cannot compile[^$]*no_such_type'):
        open_by_parameters(DetectorConfig(engine_path=str(path)))


def bindings_missing():
    try:
        return importlib.util.find_spec('cuda.bindings') is None
    except ModuleNotFoundError:
        return True


needs_bindings = pytest.mark.skipif(bindings_missing(), reason='needs cuda-bindings')


def python(code, **environment):
    """Return what a fresh interpreter prints."""
    folders = [entry for entry in sys.path if entry]
    done = subprocess.run(
        [sys.executable, '-c', code],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(folders), **environment},
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    return done.stdout


DEVICE = """
from trt_perception import gpu
from trt_perception.errors import CudaError
try:
    gpu.Device(0)
except CudaError as error:
    print(error)
"""


@needs_bindings
def test_a_missing_driver_is_named(tmp_path):
    # The loader stops at a library of that name that is none.
    (tmp_path / 'libcuda.so.1').write_bytes(b'')
    said = python(DEVICE, LD_LIBRARY_PATH=str(tmp_path))
    assert re.search('no NVIDIA driver was found|no CUDA driver', said)
    assert 'install the NVIDIA driver' in said


@needs_tensorrt
def test_a_driver_that_shows_no_gpu_is_named():
    assert 'CUDA_VISIBLE_DEVICES' in python(DEVICE, CUDA_VISIBLE_DEVICES='')


@needs_bindings
def test_a_missing_compiler_is_named(tmp_path):
    said = python(
        """
import cuda.pathfinder as pathfinder
from cuda.pathfinder import DynamicLibNotFoundError
load = pathfinder.load_nvidia_dynamic_lib
def without(name):
    if name == 'nvrtc':
        raise DynamicLibNotFoundError('no libnvrtc here')
    return load(name)
pathfinder.load_nvidia_dynamic_lib = without
from trt_perception import gpu
from trt_perception.errors import CudaError
try:
    gpu.compile_kernels('extern "C" __global__ void nothing() {}', (8, 7))
except CudaError as error:
    print(error)
""",
        XDG_CACHE_HOME=str(tmp_path),
    )
    assert 'NVRTC is missing' in said
    assert 'pip install nvidia-cuda-nvrtc' in said
    assert 'apt install' in said


@needs_bindings
def test_the_compilers_log_is_in_the_error(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    try:
        gpu.compile_kernels('extern "C" __global__ void nothing() {}', (9, 0))
    except CudaError as error:
        pytest.skip(str(error))
    with pytest.raises(CudaError, match=r'NVRTC \d+\.\d+ cannot compile.*sm_90[^$]*no_such_name'):
        gpu.compile_kernels('__global__ void f() { no_such_name; }', (9, 0))
    with pytest.raises(CudaError, match='sm_11'):
        gpu.compile_kernels('__global__ void f() {}', (1, 1))
