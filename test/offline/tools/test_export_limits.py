# SPDX-License-Identifier: Apache-2.0
"""export_triton refuses numbers that no configuration can contain, and files it cannot replace."""

import json
import os
import shutil
import socket

import pytest

from support.models.digits import DIGITS
from support.optional_packages import needs
from trt_perception.model.manifest import manifest_path
from trt_perception.offline.tools.export_triton import main

pytestmark = needs('onnx', 'tritonclient')


@pytest.fixture(autouse=True)
def _in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(DIGITS, 'digits.onnx')
    shutil.copy(manifest_path(DIGITS), 'digits.onnx.json')


def export(*words):
    try:
        return main(['digits.onnx', '--repository', 'models', *words])
    except SystemExit as end:
        return end.code


INT32, INT64 = 2**31, 2**63
OPTIONS = {
    '--max-batch': INT32,
    '--queue-delay-ms': INT32,
    '--queue-timeout-ms': INT32,
    '--instances': INT32,
    '--gpus': INT32,
    '--model-version': 10**18,
}


@pytest.mark.parametrize('option', OPTIONS)
def test_number_above_the_limit_is_wrong_usage(option, capsys):
    for value in (OPTIONS[option], INT64, 2 * INT64, 10**30, '9' * 5000):
        assert export(option, str(value)) == 2
        assert 'Traceback' not in capsys.readouterr().err
    assert not os.path.exists('models')


@pytest.mark.parametrize('option', list(OPTIONS)[1:])
def test_largest_number_is_accepted(option):
    assert export(option, str(OPTIONS[option] - 1)) == 0


def change_manifest(change):
    with open('digits.onnx.json', encoding='utf-8') as file:
        manifest = json.load(file)
    change(manifest)
    with open('digits.onnx.json', 'w', encoding='utf-8') as file:
        json.dump(manifest, file)


def set_side(role, place, value):
    def change(manifest):
        manifest[role][0]['shape'][place] = value

    return change


MANIFESTS = {
    f'{role} {place} {value}': set_side(role, place, value)
    for role, place in (('inputs', 0), ('inputs', 2), ('outputs', 1), ('outputs', 2))
    for value in (0, INT32, INT64, 10**30)
}


@pytest.mark.parametrize('name', MANIFESTS)
def test_shape_of_a_manifest_that_no_configuration_can_contain_is_refused(name, capsys):
    change_manifest(MANIFESTS[name])
    assert export() == 2
    assert 'Traceback' not in capsys.readouterr().err
    assert not os.path.exists('models')


def test_zero_does_not_hide_a_large_dimension(capsys):
    change_manifest(lambda manifest: manifest['outputs'][0].update(shape=[1, 0, 2**80]))
    assert export() == 2
    assert 'Traceback' not in capsys.readouterr().err


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)


OTHER_FILES = {
    'FIFO': os.mkfifo,
    'folder': os.mkdir,
    'broken link': lambda path: os.symlink('gone', path),
    'link to a device': lambda path: os.symlink('/dev/null', path),
    'link to itself': lambda path: os.symlink(os.path.basename(path), path),
    'socket': make_socket,
}


@pytest.mark.timeout(60)  # opening a FIFO must not block
@pytest.mark.parametrize('name', ['config.pbtxt', 'labels.txt', '1/model.onnx'])
@pytest.mark.parametrize('kind', OTHER_FILES)
def test_export_replaces_only_files(name, kind, capsys):
    assert export() == 0
    path = f'models/digits/{name}'
    os.unlink(path)
    OTHER_FILES[kind](path)
    before = os.lstat(path)
    assert export('--overwrite') == 2
    assert 'Traceback' not in capsys.readouterr().err
    assert os.lstat(path).st_ino == before.st_ino


@pytest.mark.timeout(60)
@pytest.mark.parametrize('name', ['models', 'models/digits', 'models/digits/1'])
@pytest.mark.parametrize('kind', [kind for kind in OTHER_FILES if kind != 'folder'])
def test_export_writes_only_into_folders(name, kind, capsys):
    os.makedirs(os.path.dirname(name) or '.', exist_ok=True)
    OTHER_FILES[kind](name)
    for words in ([], ['--overwrite']):
        assert export(*words) == 2
        assert 'Traceback' not in capsys.readouterr().err


def test_export_replaces_a_link_to_a_file():
    assert export() == 0
    os.rename('models/digits/config.pbtxt', 'elsewhere')
    os.symlink('../../elsewhere', 'models/digits/config.pbtxt')
    assert export('--overwrite') == 0
    assert not os.path.islink('models/digits/config.pbtxt')
