# SPDX-License-Identifier: Apache-2.0
"""Tests that changes of a model file are noticed while the model is loaded."""

import os

import pytest

from trt_perception.monitoring.file_watch import FileWatch


def test_unchanged_file_is_not_reported(tmp_path):
    path = tmp_path / 'model.onnx'
    path.write_bytes(b'one')
    file_watch = FileWatch(str(path))
    assert file_watch.describe_change() == ''
    path.read_bytes()
    assert file_watch.describe_change() == ''


def replace(path):
    other = path.with_suffix('.new')
    other.write_bytes(b'two')
    other.replace(path)


@pytest.mark.parametrize(
    'change',
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b'longer'),
        lambda path: os.utime(path, (1, 1)),
        replace,
    ],
    ids=['removed', 'written', 'touched', 'replaced'],
)
def test_changed_file_is_described(tmp_path, change, golden_messages):
    path = tmp_path / 'model.onnx'
    path.write_bytes(b'one')
    file_watch = FileWatch(str(path))
    change(path)
    assert str(path) in file_watch.describe_change()
    golden_messages.add(file_watch.describe_change())


def test_home_folder_is_expanded_and_invalid_paths_are_ignored(monkeypatch, tmp_path):
    monkeypatch.setenv('HOME', str(tmp_path))
    assert FileWatch('~/model.onnx').path == str(tmp_path / 'model.onnx')
    assert FileWatch('').describe_change() == ''
    assert FileWatch('a\0b').describe_change() == ''
