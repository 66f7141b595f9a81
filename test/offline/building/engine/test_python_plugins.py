# SPDX-License-Identifier: Apache-2.0
"""Tests of Python modules with plugin creators, with the real registry of the lean runtime."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

from support.gpu.fake_tensorrt import FakeTensorRt
from support.optional_packages import needs
from trt_perception.errors import EngineError, MissingFileError
from trt_perception.offline.building.engine.python_plugins import registered_creators
from trt_perception.stages.tensorrt.log import TensorRtLog
from trt_perception.stages.tensorrt.plugins import load_plugins

CREATORS = """
import dataclasses
import tensorrt_lean as trt

class Creator(trt.IPluginCreatorV3One):
    def __init__(self, name):
        trt.IPluginCreatorV3One.__init__(self)
        self.name, self.plugin_version, self.plugin_namespace = name, '1', 'test'
        self.field_names = trt.PluginFieldCollection([])

@dataclasses.dataclass  # needs the module in sys.modules
class Setting:
    value: int = 0

CREATORS = [Creator(name) for name in NAMES]
"""
# Registers creators of modules with the real registry. Prints which creators exist in between.
REGISTER = """
import json, sys
from pathlib import Path
import tensorrt_lean as trt
from trt_perception.offline.building.engine.python_plugins import registered_creators
from trt_perception.errors import EngineError

def existing():
    registry = trt.get_plugin_registry()
    return [name for name in ('One', 'Two') if registry.get_creator(name, '1', 'test') is not None]

states = []
for names in json.loads(sys.argv[1]):
    try:
        with registered_creators(trt, list(map(Path, names))):
            states.append(existing())
    except EngineError as error:
        states.append(error.subject)
    states.append(existing())
print(json.dumps(states))
"""


def write_module(path, text):
    path.write_text(text)
    path.chmod(0o644)
    return path


@needs('tensorrt_lean')
def test_real_registry_has_the_creators_of_modules_during_the_build_only(tmp_path):
    one, two, copy = (
        write_module(tmp_path / f'{name}.py', CREATORS.replace('NAMES', names))
        for name, names in (('one', "['One']"), ('two', "['Two']"), ('copy', "['Two', 'One']"))
    )
    calls = [[one], [one, two], [one, copy], [two]]

    done = subprocess.run(
        [sys.executable, '-c', REGISTER, json.dumps(calls, default=str)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(entry for entry in sys.path if entry)},
    )

    assert done.returncode == 0, done.stderr
    states = json.loads(done.stdout.splitlines()[-1])
    refused = f'plugin module {copy}'  # after its creator Two was registered
    assert states == [['One'], [], ['One', 'Two'], [], refused, [], ['Two'], []]


class Registry:
    """Records the registered creators."""

    def __init__(self):
        self.creators = []

    def register_creator(self, creator, namespace):
        self.creators.append((creator.name, namespace))
        return True

    def deregister_creator(self, creator):
        self.creators.remove((creator.name, creator.plugin_namespace))
        return True


def test_creators_are_removed_after_a_failed_build_and_the_module_runs_once(tmp_path):
    path = write_module(
        tmp_path / 'fancy.py',
        'from pathlib import Path\n'
        "with Path(__file__).with_suffix('.txt').open('a') as file:\n    file.write('x')\n"
        'class Fancy:\n    name, plugin_namespace = "Fancy", "mine"\nCREATORS = [Fancy]\n',
    )
    registry = Registry()
    trt = SimpleNamespace(get_plugin_registry=lambda: registry)
    for _ in range(2):
        creators = registered_creators(trt, [path])
        creators.__enter__()
        assert registry.creators == [('Fancy', 'mine')]
        assert not creators.__exit__(ValueError, ValueError('failed build'), None)
        assert registry.creators == []
    assert path.with_suffix('.txt').read_text() == 'x'
    assert {entry.name for entry in tmp_path.iterdir()} == {'fancy.py', 'fancy.txt'}  # no cache


def test_unusable_module_is_refused(tmp_path, golden_messages):
    for name, text in (('wrong.py', 'import none_such'), ('broken.py', 'def'), ('open.py', '1')):
        write_module(tmp_path / name, text)
    (tmp_path / 'open.py').chmod(0o666)
    before = set(sys.modules)
    for name in ('wrong.py', 'broken.py', 'open.py', 'missing.py'):
        error = MissingFileError if name == 'missing.py' else EngineError
        with golden_messages.raises(error), registered_creators(None, [tmp_path / name]):
            pass
    assert not {name for name in set(sys.modules) - before if name.startswith('trt_perception_')}


def test_runtime_refuses_a_python_module(tmp_path, golden_messages):
    marker = tmp_path / 'ran'
    path = write_module(tmp_path / 'fancy.py', f'open({str(marker)!r}, "w")')
    module = FakeTensorRt()
    with golden_messages.raises(EngineError):
        load_plugins(module, TensorRtLog(module), [path])
    assert not marker.exists()
