# SPDX-License-Identifier: Apache-2.0
"""The parameter model.task has the same effect as metadata, for models without metadata."""

import ast

import cv2
import numpy as np
import pytest

import trt_perception as tp
from support.models.digits import DIGITS, SCENES
from support.models.recorded_exports import recorded_values, write_export
from support.models.task_comparison import assert_equal_detections, write_without_metadata
from support.models.task_models import write_task_model
from trt_perception.errors import EngineError

NAMES = list(map(str, range(10)))


@pytest.mark.parametrize('task', ['segment', 'obb'])
def test_task_parameter_gives_the_results_of_metadata(tmp_path, task):
    described = write_task_model(tmp_path / 'model.onnx', task)
    stripped = write_without_metadata(described)
    image = cv2.imread(str(sorted(SCENES.glob('*.jpg'))[5]))

    with (
        tp.load(described) as one,
        tp.load(stripped, model_task=task, model_class_names=NAMES) as two,
    ):
        assert_equal_detections(two(image), one(image))


def test_task_pose_gives_a_person_the_keypoints_of_coco(tmp_path):
    told = recorded_values('ultralytics_pose')
    write_export(told, tmp_path / 'model.onnx')
    height, width = ast.literal_eval(dict(told['metadata'].tolist())['imgsz'])
    size = [width, height]
    stripped = write_without_metadata(tmp_path / 'model.onnx')
    image = np.full((64, 64, 3), 114, np.uint8)

    with tp.load(tmp_path / 'model.onnx', confidence_threshold=0.0) as one:
        names = one.class_names
        expected = one(image)
    values = {'model_task': 'pose', 'model_class_names': names, 'model_input_size': size}
    with tp.load(stripped, confidence_threshold=0.0, **values) as two:
        assert_equal_detections(two(image), expected)
        assert two.keypoint_names[:2] == ('nose', 'left_eye')


def test_keypoints_of_other_objects_need_names(tmp_path, monkeypatch, golden_messages):
    monkeypatch.chdir(tmp_path)
    stripped = write_without_metadata(write_task_model(tmp_path / 'model.onnx', 'pose'))
    with golden_messages.raises(EngineError):
        tp.load(stripped.name, model_task='pose', model_class_names=NAMES)


@pytest.mark.parametrize('task', ['segment', 'obb', 'pose'])
@pytest.mark.parametrize('names', [(), NAMES])
def test_error_without_a_task_prints_the_command(
    tmp_path, monkeypatch, golden_messages, task, names
):
    monkeypatch.chdir(tmp_path)
    stripped = write_without_metadata(write_task_model(tmp_path / 'model.onnx', task))
    with golden_messages.raises(EngineError):
        tp.load(stripped.name, model_class_names=names)


def test_task_other_than_that_of_the_manifest_is_refused(golden_messages, tmp_path):
    from support.models.tiny_model import write_tiny_model

    with golden_messages.raises(EngineError):
        tp.load(write_tiny_model(tmp_path / 'tiny.onnx'), model_task='obb')


def test_task_detect_is_accepted_for_a_detector():
    with tp.load(DIGITS, model_task='detect') as model:
        assert len(model(cv2.imread(str(sorted(SCENES.glob('*.jpg'))[5])))) > 0


def test_error_for_too_few_names_says_that_the_file_has_them(
    tmp_path, monkeypatch, golden_messages
):
    monkeypatch.chdir(tmp_path)
    path = write_task_model(tmp_path / 'model.onnx', 'obb')
    with golden_messages.raises(EngineError):
        tp.load(path.name, class_names=['a'])
    with tp.load(path.name) as model:
        assert len(model.class_names) == 10
