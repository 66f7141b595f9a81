# SPDX-License-Identifier: Apache-2.0
"""Tests of ONNX Runtime's execution providers, with the installed build and a stand-in."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import stat
import sys
import types
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from support.gpu_onnx_runtime import CPU, CUDA, TENSORRT, GpuOnnxRuntime, install_gpu_build
from support.models.support_models import tiny_onnx
from trt_perception.errors import EngineError
from trt_perception.files.cache import cache_folder
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.files.onnx_external import has_half_weights
from trt_perception.stages.onnx_runtime import OnnxModel, installed_providers, providers

RELEASE = tuple(int(part) for part in onnxruntime.__version__.split('.')[:2])
ONLY_CPU = CUDA not in onnxruntime.get_available_providers()
IMAGE = {'images': np.zeros((1, 3, 48, 64), np.float32)}


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))


@pytest.fixture
def install(monkeypatch):
    return functools.partial(install_gpu_build, monkeypatch)


def model_of(content):
    return ModelFile(Path('tiny.onnx'), content, hashlib.sha256(content).hexdigest(), None)


MODEL = model_of(tiny_onnx())


@pytest.mark.skipif(not ONLY_CPU, reason='this build has GPU providers')
@pytest.mark.parametrize('provider', ['cuda', 'tensorrt'])
def test_cpu_build_refuses_a_gpu_provider(provider, golden_messages):
    with golden_messages.raises(EngineError) as refused:
        OnnxModel(MODEL, 1, provider)
    assert refused.value.expected


def test_installed_providers_are_found(install):
    assert ('cuda' in installed_providers('tiny.onnx')) is not ONLY_CPU
    install()
    assert installed_providers('tiny.onnx') == ['cpu', 'cuda', 'tensorrt']


@pytest.mark.skipif(not ONLY_CPU, reason='this build has GPU providers')
@pytest.mark.parametrize('provider', ['cuda', 'tensorrt'])
def test_provider_that_cannot_be_loaded_is_refused(install, provider, capfd, golden_messages):
    install()
    with golden_messages.raises(EngineError):
        OnnxModel(MODEL, 1, provider)
    assert capfd.readouterr() == ('', '')


def test_library_that_the_linker_refuses_is_the_reason(install, monkeypatch, tmp_path):
    install()
    library = tmp_path / 'capi' / 'libonnxruntime_providers_cuda.so'
    library.parent.mkdir()
    library.write_bytes(b'no library')
    monkeypatch.setattr(onnxruntime, '__file__', str(tmp_path / '__init__.py'))
    with pytest.raises(EngineError) as refused:
        OnnxModel(MODEL, 1, 'cuda')
    with pytest.raises(OSError, match='capi') as expected:
        ctypes.CDLL(str(library))
    assert refused.value.found == str(expected.value)


def test_provider_that_works_runs_the_model(install):
    runtime = install(CUDA)
    model = OnnxModel(MODEL, 1, 'cuda', device_id=3)
    assert model.run(IMAGE)[0].shape == (1, 6, 8)
    assert model.provider == 'cuda'
    (requested,) = runtime.requested
    assert list(requested) == [CUDA, CPU]
    assert requested[CUDA]['device_id'] == 3


def test_release_without_preload_dlls_runs_the_model(install, monkeypatch):
    install(CUDA)
    monkeypatch.delattr(GpuOnnxRuntime, 'preload_dlls')
    monkeypatch.delattr(onnxruntime, 'preload_dlls')
    assert OnnxModel(MODEL, 1, 'cuda').run(IMAGE)[0].shape == (1, 6, 8)


def scaled_model(dtype, weight=1, *, quantised=False):
    """Return y = x * weight with values of this type, optionally with Q/DQ nodes after x."""
    from onnx import TensorProto, helper, numpy_helper

    nodes, source = [], 'x'
    weights = [numpy_helper.from_array(np.full(4, weight, dtype), 'w')]
    if quantised:
        weights.append(numpy_helper.from_array(np.array(0.1, dtype), 's'))
        nodes.append(helper.make_node('QuantizeLinear', ['x', 's'], ['q']))
        nodes.append(helper.make_node('DequantizeLinear', ['q', 's'], ['d']))
        source = 'd'
    nodes.append(helper.make_node('Mul', [source, 'w'], ['y']))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    ends = [helper.make_tensor_value_info(name, kind, [4]) for name in ('x', 'y')]
    graph = helper.make_graph(nodes, 'g', ends[:1], ends[1:], weights)
    assert kind in (TensorProto.FLOAT, TensorProto.FLOAT16)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)
    return model.SerializeToString()


def tensorrt_options(runtime, content):
    OnnxModel(model_of(content), 1, 'tensorrt')
    requested = runtime.requested[-1]
    assert list(requested) == [TENSORRT, CUDA, CPU]
    return requested[TENSORRT]


def test_each_model_has_a_private_cache_folder(install):
    runtime = install(TENSORRT)
    first = tensorrt_options(runtime, tiny_onnx())
    assert tensorrt_options(runtime, tiny_onnx()) == first
    folder = Path(first['trt_engine_cache_path'])
    assert first['trt_timing_cache_path'] == str(folder)
    assert folder.parent == cache_folder('onnx_providers')
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_models_with_other_weights_have_other_cache_folders(install):
    # TensorRT's names of cached engines do not depend on the weights.
    runtime = install(TENSORRT)
    folders = {
        tensorrt_options(runtime, scaled_model(np.float32, weight))['trt_engine_cache_path']
        for weight in (1, 2)
    }
    assert len(folders) == 2


def test_folder_that_others_can_write_is_not_used(install, caplog):
    runtime = install(TENSORRT)
    folder = Path(tensorrt_options(runtime, tiny_onnx())['trt_engine_cache_path'])
    folder.chmod(0o777)
    assert not any('cache' in name for name in tensorrt_options(runtime, tiny_onnx()))
    assert [record.show for record in caplog.records] == [True]


def test_tensorrt_uses_the_precision_of_the_model(install):
    runtime = install(TENSORRT)
    single, half = scaled_model(np.float32), scaled_model(np.float16)
    quantised = scaled_model(np.float32, quantised=True)
    assert [has_half_weights(each) for each in (single, half, quantised)] == [False, True, False]
    flags = [
        (options['trt_fp16_enable'], options['trt_int8_enable'])
        for options in (tensorrt_options(runtime, each) for each in (single, half, quantised))
    ]
    assert flags == [(False, False), (True, False), (False, True)]


@pytest.mark.skipif(RELEASE < (1, 24), reason='ONNX Runtime 1.24 counts nodes by provider')
def test_installed_build_counts_all_nodes():
    # ONNX Runtime counts the nodes that remain after its optimisation, which keeps these three.
    model = model_of(scaled_model(np.float32, quantised=True))
    assert OnnxModel(model, 1).node_counts == {'cpu': 3}


@pytest.mark.skipif(RELEASE >= (1, 24), reason='ONNX Runtime 1.24 counts nodes by provider')
def test_older_build_says_that_it_does_not_count_nodes(golden_messages):
    model = OnnxModel(MODEL, 1)
    assert model.node_counts is None
    golden_messages.add('\n'.join(': '.join(pair) for pair in model.diagnostic_values))


def test_nodes_are_counted_by_provider(install, golden_messages):
    install(CUDA, nodes={CUDA: 7, CPU: 2, 'OtherExecutionProvider': 1})
    model = OnnxModel(MODEL, 1, 'cuda')
    assert model.node_counts == {'cuda': 7, 'cpu': 2, 'OtherExecutionProvider': 1}
    golden_messages.add('\n'.join(': '.join(pair) for pair in model.diagnostic_values))


# The plugin for TensorRT-RTX. The device of the CPU, which each build has, stands in for a GPU.


@pytest.fixture
def install_plugin(monkeypatch):
    registered = []

    def install_it(version='1.24.0', error=None):
        def register(name, path):
            registered.append((name, path))
            if error:
                raise error

        module = types.ModuleType('onnxruntime_ep_nv_tensorrt_rtx')
        module.__spec__ = types.SimpleNamespace()
        module.get_library_path = lambda: '/plugin.so'
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(providers.NAMES_BY_PROVIDER, 'tensorrt_rtx', CPU)
        monkeypatch.setattr(onnxruntime, '__version__', version)
        monkeypatch.setattr(onnxruntime, 'register_execution_provider_library', register)
        return registered

    providers._register_tensorrt_rtx.cache_clear()
    yield install_it
    providers._register_tensorrt_rtx.cache_clear()


def test_plugin_is_registered_once_and_runs_the_model(install_plugin):
    registered = install_plugin()
    for _ in range(2):
        model = OnnxModel(MODEL, 1, 'tensorrt_rtx')
        assert model.run(IMAGE)[0].shape == (1, 6, 8)
    assert registered == [(CPU, '/plugin.so')]
    assert list(cache_folder('onnx_providers').iterdir())


def test_plugin_that_cannot_be_loaded_is_refused(install_plugin, golden_messages):
    install_plugin(error=RuntimeError('libcuda.so.1: cannot open shared object file'))
    with golden_messages.raises(EngineError):
        OnnxModel(MODEL, 1, 'tensorrt_rtx')


def test_device_without_the_plugin_is_refused(install_plugin, golden_messages):
    install_plugin()
    with golden_messages.raises(EngineError):
        OnnxModel(MODEL, 1, 'tensorrt_rtx', device_id=9)


def test_release_before_plugins_is_refused(install_plugin, golden_messages):
    registered = install_plugin('1.23.2')
    with golden_messages.raises(EngineError):
        OnnxModel(MODEL, 1, 'tensorrt_rtx')
    assert not registered
