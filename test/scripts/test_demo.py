# SPDX-License-Identifier: Apache-2.0
"""Test scripts/demo.py over DDS, also with several cameras and with unsuitable models."""

import json

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco_masks
from pycocotools.coco import COCO
from rcl_interfaces.msg import ParameterEvent

from support.demo_runs import LONGEST_S, ROOT, demo_command, run_demo
from support.models.image_models import tool_arguments
from support.models.task_models import write_task_model
from support.models.tiny_model import write_tiny_model
from support.optional_packages import needs
from support.programs import Program
from trt_perception.api import load
from trt_perception.offline.tools import write_manifest

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = [pytest.mark.ros, pytest.mark.timeout(400)]  # longer than a run of the demo

DIGITS = ROOT / 'models' / 'digits.onnx'


def demo(folder, *arguments, in_step=False):
    process = run_demo(*arguments, folder=folder, in_step=in_step)
    assert process.returncode == 0, process.stderr
    assert 'Traceback' not in process.stderr
    return process, json.loads((folder / 'summary.json').read_text())


def read_detections(folder):
    return COCO(str(folder / 'detections.json'))


def detections_below(coco, folder):
    """Yield the name and the detections of each image of a folder."""
    for image in coco.imgs.values():
        if image['file_name'].startswith(folder):
            rows = coco.imgToAnns[image['id']]
            fields = [(row['category_id'], row['score'], row['bbox']) for row in rows]
            yield image['file_name'].removeprefix(folder), fields


def test_accuracy_is_not_measured_for_a_model_without_the_digit_classes(tmp_path):
    model = write_tiny_model(tmp_path / 'tiny.onnx')
    process, summary = demo(tmp_path / 'out', '--model', model, '--rate', '60')
    assert summary['precision'] is None
    assert summary['recall'] is None
    assert summary['published'] > 0
    note = 'the scenes show 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, but the model has only these'
    # The demo prints the note before it sends the pictures, and again below the table.
    assert note in process.stderr
    assert note in process.stdout
    assert 'red, green, blue' in process.stdout
    assert process.stdout.count('  not measured\n') == 2


@needs('onnx', 'tritonclient')
def test_served_model_gives_the_detections_of_the_file(tmp_path):
    from support.triton_server import installed_server  # needs onnx

    installed_server()  # skips the test if the server cannot be installed
    boxes = []
    for folder, arguments in (('file', ()), ('served', ('--triton',))):
        demo(tmp_path / folder, '--model', DIGITS, *arguments, in_step=True)
        found = read_detections(tmp_path / folder)
        boxes.append([row['bbox'] for row in found.anns.values()])
    assert len(boxes[0]) > 100
    np.testing.assert_allclose(boxes[1], boxes[0], atol=0.01)


def test_two_cameras_get_equal_detections_for_equal_scenes(tmp_path):
    arguments = ('--model', DIGITS, '--cameras', 'front,rear')
    process, summary = demo(tmp_path / 'out', *arguments, in_step=True)
    table = process.stdout.splitlines()
    for name in ('front', 'rear'):
        camera_summary = summary['cameras'][name]
        assert camera_summary['precision'] > 0.9
        assert camera_summary['sent'] == 20
        accounted_for = (
            sum(camera_summary['dropped'].values())
            + camera_summary['published']
            + camera_summary['failed']
        )
        assert camera_summary['received'] == accounted_for
        assert sum(line.split()[:2] == [name, '20'] for line in table) == 1
        assert (tmp_path / 'out' / f'overview_{name}.jpg').is_file()
    coco = read_detections(tmp_path / 'out')
    front, rear = ([*detections_below(coco, f'{name}/')] for name in ('front', 'rear'))
    assert len(front) == 20
    assert sum(len(boxes) for _, boxes in front) > 100
    assert front == rear


def test_demo_reaches_its_precision_with_scaled_scenes(tmp_path):
    arguments = ('--model', DIGITS, '--size', '1280x960')
    _, summary = demo(tmp_path / 'out', *arguments, in_step=True)
    assert summary['precision'] > 0.9


def test_cameras_are_switched_off_before_the_detector_ends(client, tmp_path):
    # The demo switches a camera off before the camera ends. Otherwise the log reports an error.
    events, subscription = client.subscribe(ParameterEvent, '/parameter_events')
    arguments = ('--cameras', 'front,rear')
    program = Program(demo_command(*arguments, folder=tmp_path, in_step=True))
    try:
        client.spin_until(lambda: program.code is not None, 'the end of the demo', LONGEST_S)
    finally:
        program.close()
        client.node.destroy_subscription(subscription)
    changed = {
        each.name: each.value.bool_value
        for event in events
        if event.node == '/detector'
        for each in event.changed_parameters
    }
    assert changed == {f'camera.{name}.enabled': False for name in ('front', 'rear')}
    for of_camera in json.loads((tmp_path / 'summary.json').read_text())['cameras'].values():
        assert (of_camera['received'], of_camera['published']) == (20, 20)


def test_masks_arrive_with_their_boxes(tmp_path):
    model = write_task_model(tmp_path / 'segment.onnx', 'segment')
    arguments = ('--task', 'segment', '--model', model)
    _, summary = demo(tmp_path / 'out', *arguments, in_step=True)
    assert (tmp_path / 'out' / 'overview.jpg').is_file()
    assert summary['sent'] == 20
    shares = []
    for detection in read_detections(tmp_path / 'out').anns.values():
        x, y, width, height = detection['bbox']
        left, top, right, bottom = np.ceil([x, y, x + width, y + height])
        pixels = coco_masks.area(detection['segmentation'])
        shares.append(pixels / ((right - left) * (bottom - top)))
    # The model's masks fill their boxes. Masks with a higher score hide a few of them.
    assert np.median(shares) == 1


def test_images_without_results_have_no_picture_and_do_not_lower_the_recall(tmp_path):
    # A camera of 1000 Hz is faster than every machine, so images are replaced.
    process, summary = demo(tmp_path, '--model', DIGITS, '--rate', '1000')
    assert 0 < summary['with_result'] < summary['sent'] == 60
    written = {one['file_name'] for one in read_detections(tmp_path).imgs.values()}
    assert {path.name for path in (tmp_path / 'pictures').iterdir()} == written
    assert len(written) == summary['with_result']
    assert f'{60 - len(written)} of 60 images have no result' in process.stdout
    # The recall of all 60 images could not exceed the share of the images.
    assert summary['recall'] > min(0.5, summary['with_result'] / 60)


def test_shipped_digits_model_is_accurate(tmp_path):
    process, summary = demo(tmp_path / 'out', '--model', DIGITS)
    assert 'has none of these classes' not in process.stdout
    assert summary['precision'] > 0.9
    assert summary['recall'] > 0


def test_classes_of_crops_are_accurate(tmp_path):
    process, summary = demo(tmp_path / 'out', '--task', 'classify', in_step=True)
    assert summary['sent'] == summary['published'] == 20
    assert summary['top1'] > 0.9
    [line] = [line for line in process.stdout.splitlines() if 'top-1 accuracy' in line]
    assert line.split()[-1] == str(summary['top1'])
    assert 'stamp to classification' in process.stdout
    assert not (tmp_path / 'out' / 'detections.json').exists()
    assert (tmp_path / 'out' / 'overview.jpg').is_file()


def test_class_maps_arrive_without_changes(tmp_path):
    file = tmp_path / 'semantic.onnx'
    names = ['background', '0', '1', '2']
    words = tool_arguments('semantic', file, model_class_names=names)
    assert write_manifest.main(words) == 0
    arguments = ('--task', 'semantic', '--model', file)
    process, summary = demo(tmp_path / 'out', *arguments, in_step=True)
    assert summary['sent'] == summary['published'] == 20
    assert 'mean IoU of the classes' in process.stdout
    assert (tmp_path / 'out' / 'overview.jpg').is_file()
    # The digits 3 to 9 are not classes of this model, so their pixels do not count.
    truth = COCO(str(ROOT / 'demo' / 'truth.json'))
    right = pixels = 0
    with load(file) as model:
        for image_id in range(1, 21):
            name = truth.imgs[image_id]['file_name']
            found = model(cv2.imread(str(ROOT / 'demo' / 'scenes' / name))).class_ids()
            true = np.zeros_like(found)
            for one in truth.imgToAnns[image_id]:
                true[coco_masks.decode(one.get('visible', one['segmentation'])) > 0] = (
                    one['category_id'] + 1
                )
            right += np.sum((found == true) & (true <= 3))
            pixels += np.sum(true <= 3)
    assert summary['pixel_accuracy'] == pytest.approx(right / pixels, abs=1e-4)
