"""What scripts/demo.py measures of each task, against the truth's own; its command line."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from ament_index_python.packages import get_package_share_directory
from pycocotools import mask as coco_masks
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import Image
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray

from support.demo_runs import ROOT
from support.models.task_models import write_task_model
from trt_perception.api import load
from trt_perception.ros.wire.serialize import DetectionsSerializer

sys.path.append(str(ROOT / 'scripts'))
import demo_results

import demo

pytestmark = pytest.mark.ros

# test_demo shows what of the demo depends on ROS.
SHARE = Path(get_package_share_directory('trt_perception'))
ALL = json.loads((SHARE / 'demo' / 'truth.json').read_text())
#: Twenty scenes of sixty: they show more than a hundred digits.
SCENES = {one['id']: one['file_name'] for one in ALL['images'] if one['file_name'] < 'scene_02'}
TRUTH = [one for one in ALL['annotations'] if one['image_id'] in SCENES]


def carried_of(found, image):
    """Return what the topic of the model's task would say of an image."""
    if found.masks is not None:
        numbers = np.zeros(image.shape[:2], '<u2')
        found.masks.number(numbers)
        return SimpleNamespace(width=image.shape[1], height=image.shape[0], data=numbers.tobytes())
    if found.keypoints is not None:
        return SimpleNamespace(data=found.keypoints.astype('<f4').tobytes())
    return None


def reported(folder, task, file):
    """Return the summary and the detections of all scenes, as the demo reports them."""
    options = SimpleNamespace(
        task=task,
        truth=SHARE / 'demo' / 'truth.json',
        scenes=SHARE / 'demo' / 'scenes',
        output=folder,
        cameras=(),
    )
    sent, detections, carried = [], {}, {}
    with load(file) as model:
        serialize = DetectionsSerializer(model.class_names)
        for stamp, name in SCENES.items():
            image = cv2.imread(str(options.scenes / name))
            found = model(image)
            message = bytes(serialize(Header(), found))
            detections[stamp] = deserialize_message(message, Detection2DArray)
            carried[stamp] = carried_of(found, image)
            sent.append({'name': name, 'stamp_ns': stamp})
        classes = list(model.class_names)
    all_sent = dict.fromkeys(('received', 'published', 'in_flight'), len(sent))
    counts = {**all_sent, 'failed': 0, 'not_delivered': 0, 'dropped': {}}
    camera = SimpleNamespace(
        classes=classes,
        detections=detections,
        carried=carried,
        arrivals_ns={stamp: stamp * 10**9 for stamp in detections},
        counts=lambda: counts,
    )
    assert demo_results.report_results(options, {'': camera}, {'': sent}) == 0
    content = json.loads((folder / 'detections.json').read_text())
    found = [one for image in content.values() for one in image]
    assert len(found) > 100
    return json.loads((folder / 'summary.json').read_text()), found


def shown(folder, task):
    return reported(folder, task, write_task_model(folder / f'{task}.onnx', task))


def test_masks(tmp_path, capsys):
    summary, found = shown(tmp_path, 'segment')
    shares = []
    for one in found:
        x, y, width, height = one['bbox']
        left, top, right, bottom = np.ceil([x, y, x + width, y + height])
        shares.append(one['mask_pixels'] / ((right - left) * (bottom - top)))
    # Boxes are written to a hundredth of a pixel; a better mask on top hides a few.
    assert np.median(shares) == 1
    assert max(shares) < 1.2
    # A mask that fills its box is right where the ink fills half of it.
    ink = np.array([coco_masks.area(one['segmentation']) for one in TRUTH])
    share = np.mean(ink / [one['area'] for one in TRUTH] >= 0.5)
    assert summary['precision'] == pytest.approx(share, abs=0.15)
    assert summary['recall'] <= summary['precision'] + 0.1
    assert 'precision at mask IoU 0.5' in capsys.readouterr().out


def test_oriented_boxes(tmp_path, capsys):
    summary, found = shown(tmp_path, 'obb')
    assert all(one['oriented_bbox'][4] == 0 for one in found)
    assert summary['precision'] > 0.85  # an upright box overlaps nearly every turned one by half
    errors = np.degrees(np.abs([one['oriented_bbox'][4] for one in TRUTH]))
    assert summary['angle_error_deg'] == pytest.approx(np.median(errors), abs=3)
    assert 'median error of the angle' in capsys.readouterr().out


def test_keypoints(tmp_path, capsys):
    summary, found = shown(tmp_path, 'pose')
    for one in found:
        x, y, width, height = one['bbox']
        corners = [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
        np.testing.assert_allclose([point[:2] for point in one['keypoints']], corners, atol=0.03)
        assert all(point[2] == 1 for point in one['keypoints'])
    assert summary['precision'] == pytest.approx(np.mean(list(corners_of_boxes())), abs=0.12)
    assert 'precision at OKS 0.5' in capsys.readouterr().out


def corners_of_boxes():
    """Whether the upright box's corners reach OKS 0.5, for each object of the truth."""
    for one in TRUTH:
        x, y, width, height = one['bbox']
        corners = np.array([(x, y), (x + width, y), (x + width, y + height), (x, y + height)])
        points = np.array(one['keypoints']).reshape(4, 3)
        counts = points[:, 2] > 0
        apart = np.square(corners - points[:, :2]).sum(1)[counts]
        yield np.mean(np.exp(-apart / (2 * (2 * 0.05) ** 2 * one['area']))) >= 0.5


def test_what_the_transport_lost_is_measured_as_nothing_found():
    masks = Image(height=48, width=64, step=128, encoding='mono16', data=bytes(48 * 128))
    options = SimpleNamespace(task='segment', truth=SHARE / 'demo' / 'truth.json')
    camera = SimpleNamespace(classes=['0'], detections={}, carried={7: masks})
    found = demo_results.detections_of(options, camera, 7)
    assert len(found) == 0
    assert found.masks is None


def test_the_shipped_model(tmp_path):
    summary, _ = reported(tmp_path, 'obb', SHARE / 'models' / 'digits_obb.onnx')
    assert summary['precision'] > 0.8
    assert summary['recall'] > 0.8
    assert summary['angle_error_deg'] < 6  # an upright box is 12 degrees off


def test_a_model_of_another_task():
    options = SimpleNamespace(model='digits.onnx', task='obb')
    with pytest.raises(RuntimeError, match='is a model of the task detect, expected obb; give'):
        demo.check_task(options, 'detect')


def parsed(monkeypatch, *arguments):
    monkeypatch.setattr(sys, 'argv', ['demo.py', *map(str, arguments)])
    return demo.parse_arguments()


def test_the_shipped_model_is_taken(monkeypatch):
    assert parsed(monkeypatch, '--task', 'obb').model == SHARE / 'models' / 'digits_obb.onnx'
    assert parsed(monkeypatch).model == SHARE / 'models' / 'digits.onnx'


@pytest.mark.parametrize(
    ('arguments', 'said'),
    [
        (['--cameras', 'front,front'], 'argument --cameras: '),
        (['--task', 'pose', '--size', '640x480'], '--size needs --task detect (got'),
        (['--task', 'obb', '--model', 'none.onnx'], 'none.onnx does not exist'),
    ],
)
def test_arguments_that_cannot_be(monkeypatch, capsys, arguments, said):
    with pytest.raises(SystemExit) as ended:
        parsed(monkeypatch, *arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
