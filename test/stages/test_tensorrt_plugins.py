# SPDX-License-Identifier: Apache-2.0
"""Tests of TensorRT plugins, with a stand-in for TensorRT and real registries of both flavours."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pytest

from support.folders import open_paths
from support.gpu.fake_tensorrt import MODEL_PARAMETERS, PLAN, FakeTensorRt, FakeTensorRtLean
from support.gpu.host_kernels import needs_compiler
from support.gpu.plugin_libraries import (
    make_library_without_plugins,
    make_plugin_library,
    make_plugin_library_with_neighbour,
)
from support.models.written_manifest import write_manifest
from support.optional_packages import needs
from trt_perception.errors import EngineError, MissingFileError
from trt_perception.model.build_record import FileIdentity
from trt_perception.model.decoders.anchors import Dense
from trt_perception.stages.tensorrt.log import TensorRtLog
from trt_perception.stages.tensorrt.plugins import load_plugins

IMAGE, OUTPUT = ('images', (1, 3, 48, 64), 'float32'), ('output', (1, 7, 4), 'float32')
LIBRARY = b'library of Fancy'

# Opens an engine twice, like two *configure* transitions or two GPUs. Prints TensorRT's calls.
OPEN_TWICE_SCRIPT = """
import json, sys
from support.gpu import fake_cuda
from support.gpu.cuda_recorder import Recorder
from support.gpu.fake_tensorrt import FakeTensorRt
from support.models.open_model import open_by_parameters
from trt_perception.gpu import bindings
from trt_perception.errors import EngineError
from trt_perception.parameters.values import ParameterValues

module = sys.modules['tensorrt'] = FakeTensorRt()
recorder = Recorder(fake_cuda.bindings())
bindings.load_bindings = lambda: recorder.modules
values = json.loads(sys.argv[1])
parameters = ParameterValues(
    **{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
)
refusal = ''
try:
    for _ in range(2):
        open_by_parameters(parameters).close()
except EngineError as error:
    refusal = str(error)
calls = ('init_libnvinfer_plugins', 'load_library', 'deserialize_cuda_engine')
print(json.dumps([[call for call in module.calls if call in calls], refusal]))
"""

# Loads plugin libraries with a real registry. Prints the results and the existing creators.
LOAD_EACH_SCRIPT = """
import importlib, json, sys
from trt_perception.errors import EngineError
from trt_perception.stages.tensorrt.log import TensorRtLog
from trt_perception.stages.tensorrt.plugins import load_plugins

module = importlib.import_module(sys.argv[1])
log = TensorRtLog(module)
results = []
for libraries in json.loads(sys.argv[2]):
    try:
        loaded = load_plugins(module, log, libraries)
        results.append(['loaded', *(library.file for library in loaded)])
    except EngineError as error:
        results.append([str(error)])
registry = module.get_plugin_registry()
names = [name for name in ('One', 'Two', 'Far') if registry.get_creator(name, '1', '') is not None]
print(json.dumps([results, names]))
"""


def json_from_process(code, *arguments):
    """Return the JSON value that a new process prints."""
    folders = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, '-c', code, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, 'PYTHONPATH': folders},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def library(tmp_path):
    path = tmp_path / 'libfancy.so'
    path.write_bytes(LIBRARY)
    return path


def load(module, *libraries, needed=()):
    return load_plugins(module, TensorRtLog(module), libraries, 'tiny.engine', needed)


def open_twice(tmp_path, needed=(), **parameters):
    engine = tmp_path / 'tiny.engine'
    engine.write_bytes(PLAN)
    if needed:
        write_manifest(engine, (64, 48), IMAGE, OUTPUT, Dense(), ('red', 'green', 'blue'), needed)
    return json_from_process(
        OPEN_TWICE_SCRIPT,
        json.dumps({**MODEL_PARAMETERS, 'engine_path': str(engine), **parameters}),
    )


def test_own_plugins_of_tensorrt_are_registered_before_the_plan_is_loaded(tmp_path):
    calls, _ = open_twice(tmp_path)

    assert calls == ['init_libnvinfer_plugins', 'deserialize_cuda_engine'] * 2


def test_library_is_loaded_before_the_plan_and_once_in_a_process(tmp_path, library):
    calls, _ = open_twice(tmp_path, plugin_libraries=[str(library)])

    plan = ['init_libnvinfer_plugins', 'deserialize_cuda_engine']
    assert calls == [plan[0], 'load_library', plan[1], *plan]


def test_module_without_plugins_of_its_own_loads_libraries(library):
    module = FakeTensorRtLean()

    load(module, library)

    assert module.registry.libraries == [LIBRARY]


def test_copy_of_a_loaded_library_is_not_loaded_again(tmp_path, library):
    copy = tmp_path / 'libcopy.so'
    copy.write_bytes(LIBRARY)
    module = FakeTensorRt()

    found = load(module, library, copy, library)

    digest = hashlib.sha256(LIBRARY).hexdigest()
    expected = [FileIdentity(name, digest, len(LIBRARY)) for name in ('libfancy.so', 'libcopy.so')]
    assert found == (*expected, expected[0])
    assert module.registry.libraries == [LIBRARY]


@pytest.mark.parametrize('origin', ['', '$ORIGIN/lib', '${ORIGIN}'])
def test_only_a_library_with_neighbours_is_loaded_by_its_path(tmp_path, origin, monkeypatch):
    path = tmp_path / 'libfancy.so'
    path.write_bytes(LIBRARY + origin.encode())
    link = tmp_path / 'link.so'
    link.symlink_to(path)
    module, names = FakeTensorRt(), []
    monkeypatch.setattr(module.registry, 'load_library', lambda name: names.append(name) or 1)

    load(module, link)

    (name,) = names
    assert os.path.samefile(name, path)  # the file stays open
    assert (name == str(path)) == bool(origin)
    assert name.startswith('/proc/self/fd/') == (not origin)


def test_refused_library_is_reported_with_the_reason(tmp_path, library, golden_messages):
    (tmp_path / 'broken.so').write_bytes(b'no plugin library')
    (tmp_path / 'open.so').write_bytes(LIBRARY)
    (tmp_path / 'open.so').chmod(0o666)
    (tmp_path / 'empty.so').write_bytes(b'')
    os.mkfifo(tmp_path / 'pipe.so')
    module = FakeTensorRt()
    for name in ('broken.so', 'open.so', 'empty.so', 'pipe.so', 'missing.so', ''):
        with golden_messages.raises(EngineError):
            load(module, tmp_path / name)
    module.registry.libraries.append(LIBRARY)  # the program loaded the library itself
    with golden_messages.raises(EngineError):
        load(module, library)
    with pytest.raises(MissingFileError):
        load(module, library, tmp_path / 'missing.so')

    assert module.registry.libraries == [LIBRARY]
    assert module.registry.error_recorder is None
    assert not open_files(tmp_path)


def open_files(folder):
    """Return the open files of this process in a folder."""
    return open_paths() & {str(path) for path in folder.iterdir()}


def test_refused_library_is_loaded_after_it_was_corrected(library):
    module = FakeTensorRt()
    library.write_bytes(b'no plugin library')
    with pytest.raises(EngineError):
        load(module, library)
    library.write_bytes(LIBRARY)

    load(module, library)

    assert module.registry.libraries == [LIBRARY]


def test_missing_library_of_an_engine_is_named(tmp_path, library, golden_messages):
    module = FakeTensorRt()
    needed = FileIdentity('libfancy.so', hashlib.sha256(LIBRARY).hexdigest(), len(LIBRARY))
    with golden_messages.raises(EngineError):
        load(module, needed=[needed])
    library.write_bytes(LIBRARY + b', another build')
    with golden_messages.raises(EngineError):
        load(module, library, needed=[needed])
    assert module.calls == []

    library.write_bytes(LIBRARY)
    load(module, library.rename(tmp_path / 'libother.so'), needed=[needed])
    load(module, needed=[needed])  # it is still loaded

    assert module.registry.libraries == [LIBRARY]


def test_engine_whose_manifest_mentions_a_library_needs_it(tmp_path, library):
    needed = FileIdentity('libfancy.so', hashlib.sha256(LIBRARY).hexdigest(), len(LIBRARY))

    calls, refusal = open_twice(tmp_path, [needed])
    assert calls == []
    assert refusal.startswith('tiny.engine: expected the plugin library libfancy.so ')

    calls, refusal = open_twice(tmp_path, [needed], plugin_libraries=[str(library)])
    assert calls.count('deserialize_cuda_engine') == 2
    assert refusal == ''


with_real_registries = pytest.mark.parametrize(
    'flavour',
    [pytest.param(name, marks=needs(name)) for name in ('tensorrt_rtx', 'tensorrt_lean')],
)


@needs_compiler
@with_real_registries
def test_refused_library_that_stays_loaded_does_not_replace_the_next(tmp_path, flavour):
    one, two = (make_plugin_library(tmp_path, name) for name in ('One', 'Two'))
    wrong = make_library_without_plugins(tmp_path, 'wrong')

    results, creators = json_from_process(
        LOAD_EACH_SCRIPT, flavour, json.dumps([[wrong]] * 2 + [[one], [wrong], [two]], default=str)
    )

    assert [result[0] for result in (results[2], results[4])] == ['loaded'] * 2
    assert all('getCreators' in results[index][0] for index in (0, 1, 3))
    assert creators == ['One', 'Two']


@needs_compiler
@with_real_registries
def test_real_registry_loads_libraries_and_says_why_not(tmp_path, flavour):
    one, two = (make_plugin_library(tmp_path, name) for name in ('One', 'Two'))
    far = make_plugin_library_with_neighbour(tmp_path, 'Far')
    broken = tmp_path / 'broken.so'
    broken.write_bytes(one.read_bytes()[:40] + bytes(1000))
    calls = [[tmp_path / 'none.so'], [broken], [far.with_name('libneighbour.so')], [one], [two]]
    calls += [[one, two, far]] * 20

    results, creators = json_from_process(
        LOAD_EACH_SCRIPT, flavour, json.dumps(calls, default=str)
    )

    missing, cut, without_creators, *others = results
    assert missing == [
        f'plugin library {calls[0][0]}: cannot be opened: No such file or directory'
    ]
    assert f'Unable to load library: {broken}: ' in cut[0]
    assert 'getCreators' in without_creators[0]
    names = [path.name for path in (one, two, far)]
    assert others == [['loaded', names[0]], ['loaded', names[1]]] + [['loaded', *names]] * 20
    assert creators == ['One', 'Two', 'Far']


@needs_compiler
@pytest.mark.parametrize('share', [0.01, 0.5, 0.7])
def test_truncated_library_is_refused_before_it_ends_the_process(tmp_path, share):
    path = make_plugin_library(tmp_path, 'One')
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])

    with pytest.raises(EngineError, match='is truncated; copy it again'):
        load(FakeTensorRt(), path)
