# SPDX-License-Identifier: Apache-2.0
"""write_manifest describes models without metadata, so that they load without parameters."""

import shlex

import cv2
import pytest

import trt_perception as tp
from support.models.digits import SCENES
from support.models.task_comparison import assert_equal_detections, write_without_metadata
from support.models.task_models import CORNERS, write_task_model
from support.models.tiny_model import write_tiny_model
from trt_perception.offline.tools.write_manifest import main

NAMES = list(map(str, range(10)))
IMAGE = sorted(SCENES.glob('*.jpg'))[5]


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """Work in a folder with a text file of class names. Return the folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'names.txt').write_text('\n'.join(NAMES))
    return tmp_path


def write_pair(folder, task):
    """Write a model with and without metadata. Return the detections with metadata."""
    described = write_task_model(folder / 'described.onnx', task)
    write_without_metadata(described, 'model.onnx')
    with tp.load(described) as opened:
        return opened(cv2.imread(str(IMAGE)))


def assert_manifest_gives(expected):
    with tp.load('model.onnx') as opened:
        found = opened(cv2.imread(str(IMAGE)))
        assert opened.class_names == tuple(NAMES)
    assert_equal_detections(found, expected)


@pytest.mark.parametrize('task', ['segment', 'obb'])
def test_command_in_the_error_writes_the_manifest(in_folder, task):
    expected = write_pair(in_folder, task)
    with pytest.raises(tp.TrtPerceptionError) as refused:
        tp.load('model.onnx', model_class_names=NAMES)
    command = shlex.split(refused.value.fix.partition('write a manifest: ')[2])

    assert command[:4] == ['ros2', 'run', 'trt_perception', 'write_manifest']
    assert main([task if word == 'TASK' else word for word in command[4:]]) == 0

    assert_manifest_gives(expected)


def test_keypoints_have_the_given_names(in_folder, capsys, golden_messages):
    expected = write_pair(in_folder, 'pose')
    arguments = ['--task', 'pose', '--class-names', *NAMES, '--keypoint-names', *CORNERS]
    assert main(['model.onnx', *arguments]) == 0
    golden_messages.add(capsys.readouterr().out)
    assert_manifest_gives(expected)
    with tp.load('model.onnx') as opened:
        assert opened.keypoint_names == CORNERS


@pytest.mark.parametrize(
    ('words', 'code'),
    [
        ('tiny.onnx --task obb', 2),
        ('gone.onnx --task obb', 2),
        ('model.onnx --task obb --keypoint-names a b', 2),
        ('model.onnx --task pose --keypoint-names a a', 2),
        ('model.onnx --task obb --class-names-file gone.txt', 2),
        ('model.onnx --task obb --param model.task=pose', 2),
        ('model.onnx --task obb --class-names a b', 1),
    ],
)
def test_wrong_command_writes_nothing(in_folder, capsys, golden_messages, words, code):
    write_tiny_model(in_folder / 'tiny.onnx')
    write_pair(in_folder, 'obb')
    before = sorted(in_folder.iterdir())
    try:
        ended = main(words.split())
    except SystemExit as end:
        ended = end.code
    assert ended == code
    assert sorted(in_folder.iterdir()) == before
    golden_messages.add(capsys.readouterr().err)
