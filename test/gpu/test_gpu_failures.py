# SPDX-License-Identifier: Apache-2.0
"""A pipeline that fails to open on a GPU raises a clear error and frees all memory.

These tests use real CUDA and TensorRT. test_gpu_rollback checks every call with stand-ins.
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
from support.gpu.fake_tensorrt import PLAN
from support.gpu.gpu_support import build_plan, needs_gpu, needs_tensorrt, tensorrt
from support.models.open_model import open_by_parameters
from support.models.patch_model import patch_onnx, write_engine
from support.optional_packages import needs
from trt_perception import gpu
from trt_perception.errors import CudaError, EngineError
from trt_perception.gpu import bindings
from trt_perception.images.frame import Frame
from trt_perception.model.decoders.anchors import Dense
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.cuda import slot as cuda_slot
from trt_perception.pipelines.pipeline import detect_one
from trt_perception.stages import gpu_kernels
from trt_perception.stages.tensorrt.runtime import TensorRtEngine

# Gives contents to the real lean runtime, whose Runtime ends a process without a driver. Prints
# TensorRT's errors for each content, and the package's error for the last.
LOAD_WITH_LEAN = """
import json, sys
from pathlib import Path
from trt_perception import gpu
from trt_perception.errors import EngineError
from trt_perception.model.files.model_file import read_model_file
from trt_perception.stages.tensorrt.log import TensorRtLog
from trt_perception.stages.tensorrt.runtime import TensorRtEngine

device = gpu.Device(0)
import tensorrt_lean
sys.modules['tensorrt'] = None
results = []
for path in sys.argv[1:]:
    log = TensorRtLog(tensorrt_lean)
    engine = tensorrt_lean.Runtime(log.logger).deserialize_cuda_engine(Path(path).read_bytes())
    results.append('' if engine is not None else log.last_errors())
try:
    TensorRtEngine(read_model_file(path), device)
except EngineError as error:
    results.append(error.found)
print(json.dumps(results))
"""
MIB = 2**20
SIZE = (64, 48)
DECODER = Dense()
# TensorRT-RTX 1.4 never frees about 0.05 MiB for each execution context that a process created.
# The driver allocates memory in steps of 2 MiB.
CONTEXT_KEEPS = 64 * 1024
STEP = 2 * MIB


@pytest.fixture(scope='module')
def plan():
    return build_plan(patch_onnx(SIZE, DECODER))


@pytest.fixture
def path(plan, tmp_path):
    return write_engine(tmp_path / 'patches.engine', plan, SIZE, DECODER)


@pytest.fixture
def recorder(monkeypatch):
    """Record all CUDA calls of the test. Check afterwards that all CUDA objects are released."""
    recorder = Recorder(bindings.load_bindings())
    monkeypatch.setattr(bindings, 'load_bindings', lambda: recorder.modules)
    yield recorder
    assert recorder.kinds() == []
    assert recorder.mistakes == []


def frame(seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, 48 * 64 * 3, np.uint8)
    return Frame.view(pixels, width=64, height=48, step=192, encoding='bgr8')


def detect(pipeline):
    """Return boxes and scores of several frames, which use the slots in turn."""
    detections = []
    for index in range(2 * pipeline.depth):
        slot = index % pipeline.depth
        detections.append(detect_one(pipeline, frame(index), Thresholds(0.3), slot).detections)
    return np.concatenate([np.column_stack([result.xyxy, result.scores]) for result in detections])


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
def test_failed_allocation_leaks_nothing(path, recorder, monkeypatch):
    parameters = ParameterValues(engine_path=str(path))
    contexts = []
    create = TensorRtEngine.create_context
    monkeypatch.setattr(
        TensorRtEngine,
        'create_context',
        lambda *arguments: contexts.append(1) or create(*arguments),
    )
    for _ in range(3):
        open_by_parameters(parameters).close()
    recorder.calls.clear()
    open_by_parameters(parameters).close()
    calls = list(recorder.calls)
    device = gpu.Device(0)
    free_before, contexts[:] = device.memory()[0], []
    failed = 0
    for failing, name in enumerate(calls):
        if name not in ALLOCATIONS:
            continue
        recorder.calls.clear()
        recorder.fails = lambda index, _: (
            'cudaErrorMemoryAllocation' if index == failing else None  # noqa: B023
        )
        with pytest.raises(CudaError, match=name):
            open_by_parameters(parameters)
        assert recorder.kinds() == []
        failed += 1
    recorder.fails = lambda index, name: None
    leaked = free_before - device.memory()[0]
    print(f'{failed} failed allocations, {len(contexts)} contexts, {leaked} bytes leaked')
    assert failed > 30
    assert leaked <= len(contexts) * CONTEXT_KEEPS + STEP
    pipeline = open_by_parameters(parameters)
    assert len(detect(pipeline))
    pipeline.close()


@pytest.mark.whole_gpu
@needs_tensorrt
def test_full_gpu_is_reported_and_leaks_nothing(path):
    script = Path(__file__).parents[1] / 'support' / 'gpu' / 'full_gpu.py'
    process = subprocess.run(
        [sys.executable, script, path], capture_output=True, text=True, timeout=300, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    report = json.loads(process.stdout.splitlines()[-1])
    for entry in report['attempts']:
        print({**entry, 'message': entry['message'][:600]})
    print('bytes still in use at the end:', report['before'] - report['after'])
    *failures, last = report['attempts']
    assert failures
    assert last['kind'] == ''
    for entry in failures:
        assert entry['kind'] in ('CudaError', 'EngineError', 'GpuMemoryError')
        assert re.search('memory|[MG]iB free', entry['message'])
    assert (
        report['before'] - report['after'] <= (3 * len(report['attempts'])) * CONTEXT_KEEPS + STEP
    )


def load_and_expect_refusal(path, content, match):
    path.write_bytes(content)
    path.with_name(path.name + '.json').unlink(missing_ok=True)
    with pytest.raises(EngineError, match=match) as caught:
        open_by_parameters(ParameterValues(engine_path=str(path)))
    print(caught.value)
    return str(caught.value)


@needs_tensorrt
@pytest.mark.skipif(
    not os.environ.get('FOREIGN_PLANS'),
    reason='FOREIGN_PLANS must name a folder of plans that other TensorRT releases built',
)
def test_real_plans_of_other_releases_are_refused(path, recorder):
    plans = sorted(Path(os.environ['FOREIGN_PLANS']).glob('*.engine'))
    assert plans
    for plan in plans:
        content = plan.read_bytes()
        message = load_and_expect_refusal(path, content, 'cannot (load it|be imported)')
        assert '.'.join(map(str, content[24:28])) in message
        assert tensorrt().__version__ in message
        assert 'build_engine' in message
        assert 'reported: nothing' not in message


@needs_tensorrt
@pytest.mark.parametrize('target', ['SM75', 'SM89', 'SM120'])
def test_plan_for_another_gpu_is_refused_or_computes_correctly(path, tmp_path, recorder, target):
    """TensorRT-RTX 1.4 can compile some plans for a GPU other than the plan's target."""
    if not hasattr(tensorrt(), 'ComputeCapability'):
        pytest.skip('only TensorRT-RTX builds plans for other GPUs than the one in the machine')
    content = build_plan(patch_onnx(SIZE, DECODER), capabilities=[target])
    foreign = write_engine(tmp_path / 'foreign.engine', content, SIZE, DECODER)
    try:
        pipeline = open_by_parameters(ParameterValues(engine_path=str(foreign)))
    except EngineError as error:
        pipeline, message = None, str(error)
    if pipeline is None:
        print(target, message)
        capability = gpu.Device(0).compute_capability
        assert f'compute capability {capability[0]}.{capability[1]}' in message
        assert 'reported: nothing' not in message
        return
    print(target, 'loads on this GPU')
    found = detect(pipeline)
    pipeline.close()
    native = open_by_parameters(ParameterValues(engine_path=str(path)))
    expected = detect(native)
    native.close()
    assert len(expected)
    np.testing.assert_allclose(found, expected, atol=1e-3, rtol=0)


@needs_tensorrt
@pytest.mark.parametrize('share', [0.0, 0.05, 0.5, 0.99])
def test_truncated_plan_is_refused(path, plan, recorder, share):
    load_and_expect_refusal(path, plan[: max(64, int(len(plan) * share))], 'cannot load it')


@needs_tensorrt
def test_refused_plan_without_a_manifest_leaks_nothing(path, plan, recorder):
    load_and_expect_refusal(path, plan, r'model\.')


@needs_tensorrt
def test_failed_graph_capture_keeps_the_pipeline(path, recorder, monkeypatch, caplog):
    parameters = ParameterValues(engine_path=str(path))
    with_graph = open_by_parameters(parameters)
    expected = detect(with_graph)
    with_graph.close()

    class FailingGraph(gpu.Graph):
        def __init__(self, stream, record):
            def record_and_synchronize():
                record()
                stream.synchronize()  # not allowed during a capture

            super().__init__(stream, record_and_synchronize)

    monkeypatch.setattr(cuda_slot, 'Graph', FailingGraph)
    caplog.clear()
    pipeline = open_by_parameters(parameters)
    recorder.calls.clear()
    found = detect(pipeline)
    assert 'cudaGraphLaunch' not in recorder.calls
    pipeline.close()
    warnings = [r.message for r in caplog.records if 'graph' in r.message.lower()]
    print(warnings)
    assert len(warnings) == 1
    assert 'no CUDA graph' in warnings[0]
    assert len(expected)
    np.testing.assert_array_equal(found, expected)


@needs_tensorrt
def test_cuda_graphs_can_be_switched_off(path, recorder, caplog):
    found = []
    for use in (True, False):
        pipeline = open_by_parameters(ParameterValues(engine_path=str(path), use_cuda_graph=use))
        recorder.calls.clear()
        found.append(detect(pipeline))
        assert ('cudaGraphLaunch' in recorder.calls) == use
        pipeline.close()
    np.testing.assert_array_equal(*found)
    assert not [record for record in caplog.records if 'graph' in record.message.lower()]


@needs_tensorrt
def test_kernel_that_does_not_compile_is_reported(path, recorder, monkeypatch):
    monkeypatch.setitem(gpu_kernels._C_TYPES, 'float32', 'no_such_type')
    with pytest.raises(CudaError, match=r'NVRTC .* cannot compile[^$]*no_such_type'):
        open_by_parameters(ParameterValues(engine_path=str(path)))


def are_bindings_missing():
    try:
        return importlib.util.find_spec('cuda.bindings') is None
    except ModuleNotFoundError:
        return True


needs_bindings = pytest.mark.skipif(are_bindings_missing(), reason='needs cuda-bindings')


def run_python(code, **environment):
    """Return the output of a new Python process."""
    folders = [entry for entry in sys.path if entry]
    process = subprocess.run(
        [sys.executable, '-c', code],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(folders), **environment},
    )
    assert process.returncode == 0, process.stderr
    print(process.stdout)
    return process.stdout


OPEN_DEVICE = """
from trt_perception import gpu
from trt_perception.errors import CudaError
try:
    gpu.Device(0)
except CudaError as error:
    print(error)
"""


@needs_bindings
def test_missing_driver_is_reported(tmp_path):
    # The loader opens a file of this name that is not a library.
    (tmp_path / 'libcuda.so.1').write_bytes(b'')
    printed = run_python(OPEN_DEVICE, LD_LIBRARY_PATH=str(tmp_path))
    assert re.search('no NVIDIA driver was found|no CUDA driver', printed)
    assert 'install the NVIDIA driver' in printed


@needs_tensorrt
def test_hidden_gpu_is_reported():
    assert 'CUDA_VISIBLE_DEVICES' in run_python(OPEN_DEVICE, CUDA_VISIBLE_DEVICES='')


@needs_bindings
def test_missing_compiler_is_reported(tmp_path):
    printed = run_python(
        """
import cuda.pathfinder as pathfinder
from cuda.pathfinder import DynamicLibNotFoundError
load = pathfinder.load_nvidia_dynamic_lib
def load_without_nvrtc(name):
    if name == 'nvrtc':
        raise DynamicLibNotFoundError('libnvrtc is missing')
    return load(name)
pathfinder.load_nvidia_dynamic_lib = load_without_nvrtc
from trt_perception import gpu
from trt_perception.errors import CudaError
try:
    gpu.compile_kernels('extern "C" __global__ void nothing() {}', (8, 7))
except CudaError as error:
    print(error)
""",
        XDG_CACHE_HOME=str(tmp_path),
    )
    assert 'NVRTC is missing' in printed
    assert 'pip install nvidia-cuda-nvrtc' in printed
    assert 'apt install' in printed


@needs_bindings
def test_compile_error_has_the_compiler_log(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    try:
        gpu.compile_kernels('extern "C" __global__ void nothing() {}', (9, 0))
    except CudaError as error:
        pytest.skip(str(error))
    with pytest.raises(CudaError, match=r'NVRTC \d+\.\d+ cannot compile.*sm_90[^$]*no_such_name'):
        gpu.compile_kernels('__global__ void f() { no_such_name; }', (9, 0))
    with pytest.raises(CudaError, match='sm_11'):
        gpu.compile_kernels('__global__ void f() {}', (1, 1))


@needs_gpu
@needs('tensorrt_lean')
def test_lean_runtime_refuses_what_is_no_version_compatible_plan(tmp_path):
    contents = [b'', bytes(range(256)) * 4, b'vtrt' + PLAN[4:], PLAN]
    files = [tmp_path / f'{number}.engine' for number in range(len(contents))]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)

    done = subprocess.run(
        [sys.executable, '-c', LOAD_WITH_LEAN, *map(str, files)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, sys.path))},
    )

    assert done.returncode == 0, done.stderr
    empty, garbage, rtx, truncated, refusal = json.loads(done.stdout.splitlines()[-1])
    assert 'empty memory buffer' in empty
    assert 'magicTag' in garbage
    assert 'magicTag' in rtx
    assert truncated not in ('', 'nothing')
    assert 'tensorrt_lean ' in refusal
