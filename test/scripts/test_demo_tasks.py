# SPDX-License-Identifier: Apache-2.0
"""Test the figures that scripts/demo.py reports per task, and its command line."""

import json
import sys
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco_masks
from pycocotools.coco import COCO
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import Image
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray

from support.demo_runs import ROOT
from support.models.task_models import write_task_model
from trt_perception.api import load
from trt_perception.offline.evaluation.coco.annotations import read_annotations
from trt_perception.offline.evaluation.dataset import read_shapes
from trt_perception.wire.serialize import DetectionsSerializer

sys.path.append(str(ROOT / 'scripts'))
import demo_results
import demo_tasks

import demo

pytestmark = pytest.mark.ros

# test_demo.py tests the parts of the demo that depend on ROS.
ALL_TRUTH = json.loads((ROOT / 'demo' / 'truth.json').read_text())
#: The first 20 of the 60 scenes. They contain more than 100 digits.
SCENES = {
    one['id']: one['file_name'] for one in ALL_TRUTH['images'] if one['file_name'] < 'scene_02'
}
TRUTH = [one for one in ALL_TRUTH['annotations'] if one['image_id'] in SCENES]


def task_message(found, image):
    """Return a stand-in for the message with an image's masks or keypoints.

    Return None for a task that has no such message.
    """
    if found.masks is not None:
        numbers = np.zeros(image.shape[:2], '<u2')
        found.masks.number(numbers)
        return SimpleNamespace(width=image.shape[1], height=image.shape[0], data=numbers.tobytes())
    if found.keypoints is not None:
        return SimpleNamespace(data=found.keypoints.astype('<f4').tobytes())
    return None


def report_of_model(folder, task, file):
    """Return the summary and the detections of all scenes, as the demo reports them.

    The detections are those that pycocotools reads from the written file.
    """
    options = SimpleNamespace(
        track=False,
        task=task,
        truth=ROOT / 'demo' / 'truth.json',
        scenes=ROOT / 'demo' / 'scenes',
        output=folder,
        cameras=(),
    )
    sent_scenes, detections, task_messages = [], {}, {}
    with load(file) as model:
        serialize = DetectionsSerializer(model.class_names)
        for stamp, name in SCENES.items():
            image = cv2.imread(str(options.scenes / name))
            found = model(image)
            message = bytes(serialize(Header(), found))
            detections[stamp] = deserialize_message(message, Detection2DArray)
            task_messages[stamp] = task_message(found, image)
            sent_scenes.append({'name': name, 'stamp_ns': stamp})
        classes = list(model.class_names)
    # The detections of one more scene are lost, so the file must leave out this scene.
    sent_scenes.append({'name': 'scene_020.jpg', 'stamp_ns': 10**6})
    all_sent = dict.fromkeys(('received', 'published', 'in_flight'), len(sent_scenes))
    counts = {**all_sent, 'failed': 0, 'not_delivered': 0, 'dropped': {}}
    camera = SimpleNamespace(
        classes=classes,
        results=detections,
        task_messages=task_messages,
        arrivals_ns={stamp: stamp * 10**9 for stamp in detections},
        counts=lambda: counts,
    )
    assert demo_results.report_results(options, {'': camera}, {'': sent_scenes}) == 0
    written = folder / 'detections.json'
    coco = COCO(str(written))
    found = coco.loadAnns(coco.getAnnIds())
    assert len(found) > 100
    assert [one['file_name'] for one in coco.loadImgs(coco.getImgIds())] == list(SCENES.values())
    # evaluate_engine reads the file as annotations of the task.
    annotations = read_annotations(written)
    measure = demo_tasks.measure_of(task, options.truth)
    shapes = read_shapes(annotations, measure, annotations.categories)
    assert sum(map(len, shapes.objects.values())) == len(found)
    return json.loads((folder / 'summary.json').read_text()), found


def report_of_task_model(folder, task):
    return report_of_model(folder, task, write_task_model(folder / f'{task}.onnx', task))


def test_masks_that_fill_their_boxes_give_the_expected_figures(tmp_path, capsys):
    summary, found = report_of_task_model(tmp_path, 'segment')
    shares = []
    for one in found:
        x, y, width, height = one['bbox']
        left, top, right, bottom = np.ceil([x, y, x + width, y + height])
        pixels = coco_masks.area(one['segmentation'])
        assert one['area'] == pixels
        shares.append(pixels / ((right - left) * (bottom - top)))
    # The file rounds boxes to 1e-4 pixels. Masks with a higher score hide parts of a few masks.
    assert np.median(shares) == 1
    assert max(shares) < 1.2
    # A mask that fills its box counts as correct if the ink fills at least half of the box.
    ink = np.array([coco_masks.area(one['segmentation']) for one in TRUTH])
    share = np.mean(ink / [one['area'] for one in TRUTH] >= 0.5)
    assert summary['precision'] == pytest.approx(share, abs=0.15)
    assert summary['recall'] <= summary['precision'] + 0.1
    assert 'precision at mask IoU 0.5' in capsys.readouterr().out


def test_upright_boxes_give_the_median_true_angle_as_error(tmp_path, capsys):
    summary, found = report_of_task_model(tmp_path, 'obb')
    assert all(one['oriented_bbox'][4] == 0 for one in found)
    assert (
        summary['precision'] > 0.85
    )  # nearly all upright boxes reach IoU 0.5 with the rotated box
    errors = np.degrees(np.abs([one['oriented_bbox'][4] for one in TRUTH]))
    assert summary['angle_error_deg'] == pytest.approx(np.median(errors), abs=3)
    assert 'median error of the angle' in capsys.readouterr().out


def test_corners_of_upright_boxes_give_the_expected_keypoint_precision(tmp_path, capsys):
    summary, found = report_of_task_model(tmp_path, 'pose')
    for one in found:
        x, y, width, height = one['bbox']
        corners = [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
        points = np.array(one['keypoints']).reshape(4, 3)
        np.testing.assert_allclose(points[:, :2], corners, atol=0.001)
        assert one['keypoint_scores'] == [1] * 4
    assert summary['precision'] == pytest.approx(
        np.mean(list(correct_upright_corners())), abs=0.12
    )
    assert 'precision at OKS 0.5' in capsys.readouterr().out


def correct_upright_corners():
    """Yield for each true object whether the corners of its upright box reach OKS 0.5."""
    for one in TRUTH:
        x, y, width, height = one['bbox']
        corners = np.array([(x, y), (x + width, y), (x + width, y + height), (x, y + height)])
        points = np.array(one['keypoints']).reshape(4, 3)
        counts = points[:, 2] > 0
        squared_distances = np.square(corners - points[:, :2]).sum(1)[counts]
        yield np.mean(np.exp(-squared_distances / (2 * (2 * 0.05) ** 2 * one['area']))) >= 0.5


def test_scene_without_a_detections_message_has_no_result():
    masks = Image(height=48, width=64, step=128, encoding='mono16', data=bytes(48 * 128))
    options = SimpleNamespace(task='segment', track=False, truth=ROOT / 'demo' / 'truth.json')
    camera = SimpleNamespace(classes=['0'], results={}, task_messages={7: masks})
    assert demo_results.detections_of(options, camera, 7) is None
    assert not demo_results.has_arrived('segment', camera, 7)


def test_shipped_oriented_model_is_accurate(tmp_path):
    summary, _ = report_of_model(tmp_path, 'obb', ROOT / 'models' / 'digits_obb.onnx')
    assert summary['precision'] > 0.8
    assert summary['recall'] > 0.8
    assert summary['angle_error_deg'] < 6  # upright boxes have a median error of 12 degrees


def test_model_of_another_task_is_refused():
    options = SimpleNamespace(model='digits.onnx', task='obb', track=False)
    with pytest.raises(RuntimeError, match='is a model of the task detect, expected obb; give'):
        demo.check_task(options, 'detect')


def parse_with(monkeypatch, *arguments):
    monkeypatch.setattr(sys, 'argv', ['demo.py', *map(str, arguments)])
    return demo.parse_arguments()


def test_default_model_is_the_shipped_model_of_the_task(monkeypatch):
    assert parse_with(monkeypatch, '--task', 'obb').model == ROOT / 'models' / 'digits_obb.onnx'
    assert (
        parse_with(monkeypatch, '--task', 'semantic').model
        == ROOT / 'models' / 'digits_semantic.onnx'
    )
    assert parse_with(monkeypatch, '--task', 'depth').model == ROOT / 'models/depth_tiny.onnx'
    assert parse_with(monkeypatch).model == ROOT / 'models' / 'digits.onnx'


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--cameras', 'front,front'], 'argument --cameras: '),
        (['--task', 'pose', '--size', '640x480'], '--size needs --task detect (got'),
        (['--task', 'obb', '--model', 'none.onnx'], 'none.onnx does not exist'),
    ],
)
def test_wrong_arguments_are_refused(monkeypatch, capsys, arguments, message):
    with pytest.raises(SystemExit) as exit_error:
        parse_with(monkeypatch, *arguments)
    assert exit_error.value.code == 2
    assert message in capsys.readouterr().err
