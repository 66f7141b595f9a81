# SPDX-License-Identifier: Apache-2.0
"""Tests of the store of finished engines: keys, complete entries, damaged entries, age."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import logging
import os
import subprocess
import sys
import time

import pytest

from trt_perception.errors import ConfigError, WriteError
from trt_perception.offline.building import engine_store as store_module
from trt_perception.offline.building.engine.release import BuildGpu, TensorRt
from trt_perception.offline.building.engine_manifest import recorded_options
from trt_perception.offline.building.engine_store import EngineStore, StoredEngine, store_key
from trt_perception.offline.building.options.build_options import OPTIONS
from trt_perception.offline.building.options.sources import load_options

ORIN = BuildGpu('Orin', '8.7', {'driver': '12.6', 'runtime': '12.6'})
TENSORRT = TensorRt(None, 'tensorrt', '10.3.0.26', ORIN)
STORED = StoredEngine(b'plan' * 100, b'{}', b'{"status": "done"}')
KEY = 'a' * 64
AFFECTS = {row.name: row.affects for row in OPTIONS}


def key(onnx='1' * 64, tensorrt=TENSORRT, contents=None, **options_given):
    options = load_options(None, {'onnx': 'folder/model.onnx', **options_given})
    return store_key(onnx, options, tensorrt, contents or {})


def recorded_values(**options_given):
    return recorded_options(load_options(None, {'onnx': 'folder/model.onnx', **options_given}))


@pytest.fixture
def store(tmp_path):
    return EngineStore(tmp_path / 'store')


def test_same_build_has_the_same_key():
    assert key() == key()
    assert len(key()) == 64


@pytest.mark.parametrize(
    'options_given',
    [
        {'onnx': '2' * 64},
        {'precision': 'fp32'},
        {'keep_fp32': ['*head*']},
        {'workspace_mib': 64},
        {'input_size': '640x480'},
        {'contents': {'images': '3' * 64}},
        {'tensorrt': dataclasses.replace(TENSORRT, version='10.3.0.30')},
        {'tensorrt': dataclasses.replace(TENSORRT, flavour='tensorrt_rtx')},
        {'tensorrt': dataclasses.replace(TENSORRT, gpu=None)},
        {'tensorrt': dataclasses.replace(TENSORRT, gpu=dataclasses.replace(ORIN, name='Thor'))},
    ],
)
def test_each_engine_option_changes_the_key(options_given):
    assert key(**options_given) != key()


@pytest.mark.parametrize(
    'options_given',
    [
        {'output': 'b.engine'},
        {'json': 'r.json'},
        {'store': 's'},
        {'verbose': True},
        {'timing_cache': 'off'},
        {'calibration_cache': 'off'},
        {'store': 's', 'store_keep_days': 3},
        {'qdq_onnx': 'q.onnx', 'precision': 'int8', 'calibration_images': 'i'},
    ],
)
def test_output_paths_do_not_change_the_key(options_given):
    same = {name: value for name, value in options_given.items() if AFFECTS[name] != 'nothing'}
    assert len(same) < len(options_given)
    assert key(**options_given) == key(**same)
    assert recorded_values(**options_given) == recorded_values(**same)


def test_report_options_change_the_key_but_are_not_recorded():
    for row in OPTIONS:
        if row.affects == 'report':
            assert (row.kind, row.default) == ('bool', True)
            assert key(**{row.name: False}) != key()
            assert recorded_values(**{row.name: False}) == recorded_values()
    assert AFFECTS['compare_fp16'] == 'report'


def test_environment_changes_the_key(monkeypatch):
    monkeypatch.delenv('NVIDIA_TF32_OVERRIDE', raising=False)
    before = key()
    monkeypatch.setenv('NVIDIA_TF32_OVERRIDE', '0')
    assert key() != before


@pytest.mark.parametrize(('name', 'value'), [('BUILDER_REVISION', 99), ('__version__', '99.0')])
def test_version_of_this_package_changes_the_key(monkeypatch, name, value):
    before = key()
    monkeypatch.setattr(store_module, name, value)
    assert key() != before


@pytest.mark.parametrize(
    'package', ['onnx', 'onnxslim', 'onnxruntime', 'ml_dtypes', 'simplejpeg', 'pillow']
)
def test_upgrade_of_a_build_package_changes_the_key(monkeypatch, package):
    installed, before = importlib.metadata.version, key()
    monkeypatch.setattr(
        importlib.metadata,
        'version',
        lambda name: '99.0' if name == package else installed(name),
    )
    assert key() != before


def test_stored_engine_is_found(store):
    assert store.find(KEY) is None
    store.put(KEY, STORED)
    assert store.find(KEY) == STORED
    assert store.find('b' * 64) is None


def test_second_put_replaces_the_entry(store, tmp_path):
    store.put(KEY, STORED)
    new = dataclasses.replace(STORED, engine=b'new')
    store.put(KEY, new)
    assert store.find(KEY) == new
    assert [path.name for path in (tmp_path / 'store').iterdir()] == [KEY]


@pytest.mark.parametrize('name', ['model.engine', 'manifest.json', 'report.json', 'entry.json'])
@pytest.mark.parametrize('damage', ['changed', 'cut', 'gone', 'folder'])
def test_damaged_entry_is_ignored_and_can_be_replaced(store, tmp_path, caplog, name, damage):
    store.put(KEY, STORED)
    path = tmp_path / 'store' / KEY / name
    content = path.read_bytes()
    path.unlink()
    if damage == 'changed':
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    if damage == 'cut':
        path.write_bytes(content[:-1])
    if damage == 'folder':
        path.mkdir()
    with caplog.at_level(logging.WARNING):
        assert store.find(KEY) is None
    assert 'damaged' in caplog.text
    store.put(KEY, STORED)
    assert store.find(KEY) == STORED


@pytest.mark.parametrize(
    'text', [100_000 * '[', '[]', '{}', '{"sha256": 3}', '{"sha256": {}}', 'null', '"']
)
def test_invalid_entry_file_is_ignored(store, tmp_path, text):
    store.put(KEY, STORED)
    (tmp_path / 'store' / KEY / 'entry.json').write_text(text)
    assert store.find(KEY) is None


def test_lookup_updates_the_time_of_use(store, tmp_path):
    store.put(KEY, STORED)
    os.utime(tmp_path / 'store' / KEY / 'entry.json', (0, 0))
    store.find(KEY)
    store.prune(5)
    assert store.find(KEY) == STORED


def test_old_entries_are_removed(store, tmp_path):
    for name, days in (('a', 10), ('b', 1)):
        store.put(name * 64, STORED)
        then = time.time() - days * 24 * 3600
        os.utime(tmp_path / 'store' / (name * 64) / 'entry.json', (then, then))
    (tmp_path / 'store' / 'notes.txt').write_text('mine')
    (tmp_path / 'store' / ('c' * 64)).mkdir()  # an entry without files is damaged
    store.prune(5)
    left = sorted(path.name for path in (tmp_path / 'store').iterdir())
    assert left == ['b' * 64, 'notes.txt']


def test_store_that_others_may_write_is_refused(tmp_path, golden_messages):
    folder = tmp_path / 'open'
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ConfigError) as caught:
        EngineStore(folder)
    golden_messages.add(str(caught.value).replace(f'owner {os.geteuid()}', 'owner OURS'))


@pytest.mark.skipif(os.geteuid() != 0, reason='needs root to change the owner of a folder')
def test_store_of_another_user_is_refused(tmp_path, golden_messages):
    folder = tmp_path / 'theirs'
    folder.mkdir()
    folder.chmod(0o755)  # whatever the umask is
    os.chown(folder, 12345, -1)
    with golden_messages.raises(ConfigError):
        EngineStore(folder)


def test_store_that_cannot_be_created_is_refused(tmp_path, golden_messages):
    (tmp_path / 'file').write_text('')
    with golden_messages.raises(ConfigError):
        EngineStore(tmp_path / 'file' / 'store')


def test_full_disk_leaves_no_entry(store, tmp_path, monkeypatch, golden_messages):
    def full(files):
        path, content = next(iter(files.items()))
        path.write_bytes(content[:1])
        raise WriteError(str(path), 'cannot be written: No space left', fix='free space there')

    monkeypatch.setattr(store_module, 'write_atomically', full)
    with golden_messages.raises(ConfigError) as caught:
        store.put(KEY, STORED)
    assert caught.value.fix == 'free space there'
    assert list((tmp_path / 'store').iterdir()) == []


def test_ctrl_c_leaves_no_entry(store, tmp_path, monkeypatch):
    def interrupted(files):
        raise KeyboardInterrupt

    monkeypatch.setattr(store_module, 'write_atomically', interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.put(KEY, STORED)
    assert list((tmp_path / 'store').iterdir()) == []


FIND = """
import sys
from pathlib import Path
from trt_perception.offline.building.engine.release import TensorRt
from trt_perception.offline.building.engine_store import EngineStore, StoredEngine, store_key
from trt_perception.offline.building.options.sources import load_options
options = load_options(None, {'onnx': 'model.onnx'})
key = store_key('1' * 64, options, TensorRt(None, 'tensorrt', '10.3.0.26', None), {})
store = EngineStore(Path(sys.argv[1]))
store.put(key, StoredEngine(b'plan', b'{}', b'{}'))
print(store.find(key).engine, {'onnx', 'onnxruntime', 'cv2'} & set(sys.modules))
"""


def test_engine_is_found_without_importing_the_build_packages(tmp_path):
    done = subprocess.run(
        [sys.executable, '-c', FIND, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "b'plan' set()", done.stderr
