# SPDX-License-Identifier: Apache-2.0
"""The tools read the images of a bag like image files with the same pixels."""

import json

import cv2
import numpy as np
import pytest

from support.bags import SECOND, START, raw_image, write_typed_folder
from support.detect_runs import detections, run_detect_images
from support.models import small_detectors
from support.models.picture_model import picture_with, write_picture_model
from support.models.scaled_models import SMALL_PREPROCESSING
from support.models.tiny_model import write_tiny_model
from support.optional_packages import needs
from trt_perception.errors import ConfigError
from trt_perception.images.bag_selection import BagSelection
from trt_perception.images.image_source import find_images
from trt_perception.offline.building.calibration.images import CalibrationImages, select_images
from trt_perception.offline.building.options.sources import load_options
from trt_perception.offline.building.precision.quantise import quantise
from trt_perception.offline.tools import evaluate_engine

pytestmark = needs('onnx')
TOPIC = '/front/image_raw'


def write_both(tmp_path, pictures):
    """Write the same pictures as a bag and as a folder of PNG files."""
    bag = write_typed_folder(tmp_path / 'drive', {TOPIC: [raw_image(each) for each in pictures]})
    (tmp_path / 'folder').mkdir()
    for number, each in enumerate(pictures):
        cv2.imwrite(str(tmp_path / 'folder' / f'{number:03d}.png'), each)
    return bag, tmp_path / 'folder'


@pytest.fixture
def both(tmp_path):
    rng = np.random.default_rng(3)
    colors = [(0, 0, 255), (128, 255, 0), (0, 0, 0), *rng.integers(0, 256, (7, 3))]
    return write_both(tmp_path, [np.full((60, 80, 3), color, np.uint8) for color in colors])


def test_detect_images_finds_the_same_objects(both, tmp_path):
    model = write_tiny_model(tmp_path / 'tiny.onnx')
    for source in both:
        arguments = ['--source', source, '--output', tmp_path / f'{source.name}_out']
        assert run_detect_images(model, *arguments) == 0
    of_bag, of_folder = (detections(tmp_path / f'{each.name}_out') for each in both)
    assert list(of_bag.values()) == list(of_folder.values())
    assert any(of_bag.values())
    assert list(of_bag) == [path.name for path in find_images(both[0])]
    for name in of_bag:
        assert (tmp_path / 'drive_out' / name).is_file()


def test_detect_images_uses_each_nth_image_of_a_topic(both, tmp_path):
    model = write_tiny_model(tmp_path / 'tiny.onnx')
    options = ('--topic', TOPIC, '--every', 3, '--no-pictures')
    assert run_detect_images(model, '--source', both[0], '--output', tmp_path / 'o', *options) == 0
    names = [path.name for path in find_images(both[0])]
    assert list(detections(tmp_path / 'o')) == names[::3]


def test_objects_are_tracked_by_log_time(tmp_path):
    """The time between images is 0.1 s, as in the folder with --fps 10."""
    moving = [((10 + 2 * step, 20, 10, 12, 0.9),) for step in range(6)]
    bag, folder = write_both(tmp_path, [picture_with(boxes) for boxes in moving])
    model = write_picture_model(tmp_path / 'picture.onnx')
    found = []
    for source, options in ((bag, ()), (folder, ('--fps', 10))):
        arguments = ('--source', source, '--output', tmp_path / f'{source.name}_out')
        assert run_detect_images(model, *arguments, '--track', *options) == 0
        content = json.loads((tmp_path / f'{source.name}_out' / 'detections.json').read_text())
        found.append([(row['track_id'], row['bbox']) for row in content['annotations']])
    assert found[0] == found[1]
    assert found[0][-1][0] == 1


@needs('pycocotools')
def test_evaluate_engine_reads_a_bag_and_its_annotations(both, tmp_path, capsys):
    model = write_tiny_model(tmp_path / 'tiny.onnx')
    arguments = ('--source', both[0], '--output', tmp_path / 'out', '--no-pictures')
    assert run_detect_images(model, *arguments) == 0
    truth = tmp_path / 'out' / 'detections.json'
    command = [model, '--images', both[0], '--annotations', truth, '--json', tmp_path / 'r.json']
    assert evaluate_engine.main(list(map(str, command))) == 0
    report = json.loads((tmp_path / 'r.json').read_text())
    metrics = report['models']['tiny.onnx']['metrics']
    assert (metrics['images'], metrics['objects'], metrics['mAP']) == (10, 20, 1.0)


def test_options_of_bags_without_a_bag_are_refused(both, tmp_path, capsys, golden_messages):
    model = write_tiny_model(tmp_path / 'tiny.onnx')
    for option in (('--topic', '/a'), ('--every', 2)):
        arguments = ('--source', both[1], '--output', tmp_path / 'out')
        assert run_detect_images(model, *arguments, *option) == 2
        golden_messages.add(capsys.readouterr().err)


@needs('onnxruntime')
def test_calibration_with_a_bag_equals_calibration_with_its_images(tmp_path):
    rng = np.random.default_rng(4)
    bag, folder = write_both(tmp_path, list(rng.integers(0, 256, (12, 64, 64, 3), np.uint8)))
    given = {'onnx': 'm.onnx', 'topic': TOPIC, 'every': 2, 'calibration_images': str(bag)}
    options = load_options(None, given)
    assert options.bag_selection == BagSelection(TOPIC, 2)
    chosen = select_images(bag, selection=options.bag_selection)
    files = sorted(folder.iterdir())[::2]
    (tmp_path / 'list.txt').write_text('\n'.join(map(str, files)))
    of_folder = select_images(tmp_path / 'list.txt')
    assert len(chosen.paths) == len(of_folder.paths) == 6
    with pytest.raises(ConfigError):  # fewer than 8 images
        CalibrationImages(chosen, SMALL_PREPROCESSING)
    models = []
    for source in (bag, folder):
        model, *_ = small_detectors.raw_maps()
        images = CalibrationImages(select_images(source), SMALL_PREPROCESSING)
        models.append(quantise(model, images).model.SerializeToString())
    assert models[0] == models[1]


def test_times_of_the_names_are_log_times(both):
    times = [int(path.stem.rpartition('@')[2]) for path in find_images(both[0])]
    assert times == [START + number * SECOND // 10 for number in range(10)]
