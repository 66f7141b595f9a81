# SPDX-License-Identifier: Apache-2.0
"""Tests of the choice between tensorrt and tensorrt_lean, with stand-ins and the real module."""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
import weakref
from types import SimpleNamespace

import pytest

from support.gpu import fake_tensorrt
from support.gpu.fake_tensorrt import (
    PLAN,
    FakeTensorRt,
    FakeTensorRtLean,
    FakeTensorRtRtx,
    TensorFormat,
)
from support.optional_packages import needs
from trt_perception.errors import EngineError, MissingFileError
from trt_perception.model.files.model_file import ModelFile
from trt_perception.stages.tensorrt.runtime import TensorRtEngine

CARD = SimpleNamespace(name='Card', compute_capability=(8, 7), memory=lambda: (2**30, 2**31))
RTX_PLAN = b'vtrt' + PLAN[4:]
# The message of TensorRT, as the strings of its library have it.
EMBEDDED_CODE = (
    'Cannot deserialize engine with lean runtime since '
    'IRuntime::getEngineHostCodeAllowed() is false.'
)
# Properties of an engine that inspect_engine reads.
INSPECTED = {
    *('profiling_verbosity', 'refittable', 'num_aux_streams', 'get_engine_stat'),
    'get_device_memory_size_for_profile_v2',
}
# The lean runtime lacks these types, and cannot return them.
LACKS = {
    *('TensorFormat', 'ICudaEngine.get_tensor_format'),
    *('EngineInspector', 'ICudaEngine.create_engine_inspector'),
}
# Prints the number of registered plugins, and for each attribute whether the module has it and can
# convert its types.
ASK_THE_MODULE = """
import functools, json, sys
import tensorrt_lean

def is_usable(path):
    try:
        value = functools.reduce(getattr, path.split('.'), tensorrt_lean)
    except AttributeError:
        return False
    return 'nvinfer1::' not in str(value.__doc__)

registry = tensorrt_lean.get_plugin_registry()
usable = {path: is_usable(path) for path in json.loads(sys.argv[1])}
print(json.dumps([tensorrt_lean.__version__, len(registry.all_creators), usable]))
"""


class BrokenImport:
    """Finds the module tensorrt, whose library is missing."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == 'tensorrt':
            raise OSError('libnvinfer.so.10: cannot open shared object file')


def refusing(module, reason=fake_tensorrt.REFUSAL_REASON):
    module.refuses, module.refusal = 'deserialize_cuda_engine', reason
    return module


@pytest.fixture
def open_plan(monkeypatch, tmp_path):
    """Return a function that installs stand-ins and opens a plan.

    A missing module is None. The text 'broken' leaves the import to ``sys.meta_path``.
    """

    def open_with(tensorrt, lean, content=PLAN, rtx=None, **arguments):
        modules = {'tensorrt': tensorrt, 'tensorrt_lean': lean, 'tensorrt_rtx': rtx}
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
            if module == 'broken':
                del sys.modules[name]
        path = tmp_path / 'tiny.engine'
        model = ModelFile(path, content, hashlib.sha256(content).hexdigest(), None)
        return TensorRtEngine(model, CARD, **arguments)

    return open_with


@pytest.mark.parametrize(
    ('tensorrt', 'lean', 'expected'),
    [
        (FakeTensorRt(), FakeTensorRtLean(), 'tensorrt'),
        (FakeTensorRt(), refusing(FakeTensorRtLean()), 'tensorrt'),
        (FakeTensorRt(), None, 'tensorrt'),
        (None, FakeTensorRtLean(), 'tensorrt_lean'),
        (refusing(FakeTensorRt()), FakeTensorRtLean(), 'tensorrt_lean'),
    ],
)
def test_first_module_that_accepts_the_plan_loads_it(open_plan, caplog, tensorrt, lean, expected):
    caplog.set_level(logging.INFO, 'trt_perception')

    engine = open_plan(tensorrt, lean)

    version = {'tensorrt': '10.13.3.9', 'tensorrt_lean': '11.4.0.106'}[expected]
    assert engine.module == expected
    assert [tensor.name for tensor in (*engine.inputs, *engine.outputs)] == ['images', 'output']
    assert f'tiny.engine is loaded with {expected} {version}' in caplog.messages
    refused = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(refused) == (expected == 'tensorrt_lean' and tensorrt is not None)
    assert not lean or ('deserialize_cuda_engine' in lean.calls) == (expected == 'tensorrt_lean')
    engine.close()


def test_module_whose_import_fails_is_reported_and_replaced(open_plan, caplog, monkeypatch):
    monkeypatch.setattr(sys, 'meta_path', [BrokenImport, *sys.meta_path])

    assert open_plan('broken', FakeTensorRtLean()).module == 'tensorrt_lean'

    (warning,) = caplog.messages
    assert 'libnvinfer.so.10: cannot open shared object file' in warning


def test_runtime_that_refuses_is_freed_before_the_next_is_made(open_plan):
    runtimes = []

    class Runtime:
        pass

    class Refusing(FakeTensorRt):
        def Runtime(self, logger):  # noqa: N802
            runtime = Runtime()
            runtime.deserialize_cuda_engine = super().Runtime(logger).deserialize_cuda_engine
            runtimes.append(weakref.ref(runtime))
            return runtime

    class Accepting(FakeTensorRtLean):
        def Runtime(self, logger):  # noqa: N802
            assert [runtime() for runtime in runtimes] == [None]
            return super().Runtime(logger)

    assert open_plan(refusing(Refusing()), Accepting()).module == 'tensorrt_lean'


def test_lean_runtime_never_gets_a_plan_of_tensorrt_rtx(open_plan):
    lean = FakeTensorRtLean()

    with pytest.raises(EngineError):
        open_plan(None, lean, RTX_PLAN, refusing(FakeTensorRtRtx()))

    assert lean.calls == []


def test_plan_that_no_module_loads_is_refused_with_a_way_out(open_plan, golden_messages):
    embedded = refusing(FakeTensorRt(), EMBEDDED_CODE)
    for tensorrt, lean in (
        (None, None),
        (refusing(FakeTensorRt()), None),
        (None, refusing(FakeTensorRtLean())),
        (refusing(FakeTensorRt()), refusing(FakeTensorRtLean())),
        (embedded, None),
        (embedded, refusing(FakeTensorRtLean(), EMBEDDED_CODE)),
    ):
        with golden_messages.raises(EngineError):
            open_plan(tensorrt, lean)


def test_module_whose_runtime_does_not_start_is_replaced(open_plan, golden_messages):
    class Broken(FakeTensorRt):
        def Runtime(self, logger):  # noqa: N802
            raise TypeError('pybind11::init(): factory function returned nullptr')

    assert open_plan(Broken(), FakeTensorRtLean()).module == 'tensorrt_lean'
    with golden_messages.raises(EngineError):
        open_plan(Broken(), None)


def test_missing_plugin_library_is_reported_once(open_plan, tmp_path):
    with pytest.raises(MissingFileError):
        open_plan(FakeTensorRt(), FakeTensorRtLean(), plugin_libraries=[tmp_path / 'none.so'])


@pytest.mark.parametrize('module', [FakeTensorRt(), FakeTensorRtLean()])
def test_tensor_in_another_format_is_refused(open_plan, module):
    module.formats = {0: TensorFormat.CHW32}
    lean = isinstance(module, FakeTensorRtLean)

    with pytest.raises(EngineError, match='LINEAR'):
        open_plan(None if lean else module, module if lean else None)


@needs('tensorrt_lean')
def test_real_lean_runtime_has_plugins_and_all_names_that_the_package_uses():
    members = {
        'ICudaEngine': {*dir(fake_tensorrt._Engine), *INSPECTED},
        'IExecutionContext': {*dir(fake_tensorrt._Context), *fake_tensorrt.REFUSED_RESULTS},
        'DataType': fake_tensorrt.DataType.__members__,
        'TensorIOMode': fake_tensorrt.TensorIOMode.__members__,
        'ExecutionContextAllocationStrategy': {'USER_MANAGED'},
        'IPluginRegistry': {'load_library', 'error_recorder'},
        'Runtime': {'deserialize_cuda_engine'},
        'EngineStat': {'TOTAL_WEIGHTS_SIZE'},
        'ProfilingVerbosity': {'NONE'},
    }
    members['IExecutionContext'] -= {'deserialize_cuda_engine', 'create_execution_context'}
    paths = {
        f'{kind}.{name}' for kind, names in members.items() for name in names if name[0] != '_'
    }
    paths |= {'ILogger', 'IErrorRecorder', 'IProfiler', *LACKS}

    done = subprocess.run(
        [sys.executable, '-c', ASK_THE_MODULE, json.dumps(sorted(paths))],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    version, plugins, usable = json.loads(done.stdout)
    assert tuple(map(int, version.split('.')[:2])) >= (10, 3)
    assert plugins > 0
    assert {path for path, is_usable in usable.items() if not is_usable} == LACKS
