# SPDX-License-Identifier: Apache-2.0
"""detect_bag writes what each task finds. The expected values are those of the Python API."""

import cv2
import numpy as np
import pytest

import trt_perception as tp
from support.detect_bags import (
    camera_rows,
    file_image,
    messages_of,
    png_image,
    run_detect_bag,
    write_bag,
)
from support.models.digits import SCENES
from support.models.image_models import (
    NAMES,
    tool_arguments,
    write_depth_anything,
    write_image_model,
)
from support.models.task_models import write_task_model
from support.optional_packages import needs

pytestmark = [needs('onnx'), needs('rosbags'), needs('mcap')]
SCENE_FILES = sorted(SCENES.glob('*.jpg'))[:4]


@pytest.fixture(scope='module')
def scenes(tmp_path_factory):
    """Return a bag with four scenes."""
    files = [path.read_bytes() for path in SCENE_FILES]
    rows = camera_rows('/front/image_raw/compressed', files, make=file_image)
    return write_bag(tmp_path_factory.mktemp('scenes') / 'scenes', rows)


def pictures():
    return [cv2.imread(str(path)) for path in SCENE_FILES]


def expected_of(path, **parameters):
    with tp.load(path, **parameters) as model:
        return [model(picture) for picture in pictures()]


def test_keypoints_are_written(scenes, tmp_path):
    path = write_task_model(tmp_path / 'pose.onnx', 'pose')
    assert run_detect_bag(path, scenes, '--output', tmp_path / 'out') == 0
    clouds = messages_of(tmp_path / 'out', '/front/keypoints')
    for cloud, expected in zip(clouds, expected_of(path), strict=True):
        shape = cloud.height, cloud.width, 3
        assert shape == expected.keypoints.shape
        assert cloud.data.tobytes() == expected.keypoints.tobytes()


def test_oriented_boxes_are_written(scenes, tmp_path):
    path = write_task_model(tmp_path / 'obb.onnx', 'obb')
    assert run_detect_bag(path, scenes, '--output', tmp_path / 'out') == 0
    messages = messages_of(tmp_path / 'out', '/front/detections')
    for message, expected in zip(messages, expected_of(path), strict=True):
        rows = [
            (
                box.center.position.x,
                box.center.position.y,
                box.size_x,
                box.size_y,
                box.center.theta,
            )
            for box in (each.bbox for each in message.detections)
        ]
        assert np.array_equal(np.array(rows, np.float32), expected.oriented)


def test_masks_are_written_if_asked_for(scenes, tmp_path):
    path = write_task_model(tmp_path / 'segment.onnx', 'segment')
    assert run_detect_bag(path, scenes, '--output', tmp_path / 'out', '--masks') == 0
    images = messages_of(tmp_path / 'out', '/front/masks')
    for image, expected in zip(images, expected_of(path), strict=True):
        assert image.encoding == 'mono16'
        found = image.data.view('<u2').reshape(image.height, image.width)
        numbers = np.zeros(found.shape, np.uint16)
        masks = expected.masks.whole()
        for number in range(len(masks), 0, -1):
            numbers[masks[number - 1]] = number
        assert numbers.any()
        assert np.array_equal(found, numbers)
    assert run_detect_bag(path, scenes, '--output', tmp_path / 'without') == 0
    assert not messages_of(tmp_path / 'without', '/front/masks')


def test_masks_of_another_task_are_refused(scenes, tmp_path):
    path = write_task_model(tmp_path / 'obb.onnx', 'obb')
    assert run_detect_bag(path, scenes, '--output', tmp_path / 'out', '--masks') == 1


def test_masks_follow_the_filter_of_the_tracker(scenes, tmp_path):
    """The numbers in the mask image are those of the detections in the message."""
    path = write_task_model(tmp_path / 'segment.onnx', 'segment')
    options = '--masks', '--track', '--confidence', 0.8
    assert run_detect_bag(path, scenes, '--output', tmp_path / 'out', *options) == 0
    images = messages_of(tmp_path / 'out', '/front/masks')
    messages = messages_of(tmp_path / 'out', '/front/detections')
    for image, message in zip(images, messages, strict=True):
        numbers = image.data.view('<u2').reshape(image.height, image.width)
        assert numbers.max() <= len(message.detections)
        for number, each in enumerate(message.detections, 1):
            x, y = each.bbox.center.position.x, each.bbox.center.position.y
            assert numbers[int(y), int(x)] in range(1, number + 1)


def test_classification_is_written(scenes, tmp_path):
    words = tool_arguments('classify', tmp_path / 'classify.onnx', classification_top_k=3)
    assert run_detect_bag(*with_bag(words, scenes, tmp_path / 'out')) == 0
    values = write_image_model('classify', tmp_path / 'classify.onnx')
    messages = messages_of(tmp_path / 'out', '/front/classification')
    for message, expected in zip(messages, loaded(values), strict=True):
        ids, scores = expected.best(3)
        assert [each.class_id for each in message.results] == [NAMES[id_] for id_ in ids]
        assert [each.score for each in message.results] == scores.tolist()


def test_class_maps_are_written(scenes, tmp_path):
    words = tool_arguments('semantic', tmp_path / 'semantic.onnx')
    assert run_detect_bag(*with_bag(words, scenes, tmp_path / 'out')) == 0
    values = write_image_model('semantic', tmp_path / 'semantic.onnx')
    out = tmp_path / 'out'
    found = loaded(values)
    for name in ('mask', 'confidence'):
        images = messages_of(out, f'/front/segmentation/{name}')
        for image, expected in zip(images, found, strict=True):
            pixels = expected.class_ids() if name == 'mask' else expected.confidence()
            assert np.array_equal(image.data.reshape(pixels.shape), pixels)
    infos = messages_of(out, '/front/segmentation/label_info')
    assert [each.class_name for each in infos[0].class_map] == list(NAMES)
    assert infos[0].threshold == 0


def test_depth_is_written(scenes, tmp_path):
    words = tool_arguments('depth', tmp_path / 'depth.onnx')
    assert run_detect_bag(*with_bag(words, scenes, tmp_path / 'out')) == 0
    values = write_image_model('depth', tmp_path / 'depth.onnx')
    images = messages_of(tmp_path / 'out', '/front/depth')
    for image, expected in zip(images, loaded(values), strict=True):
        depth = expected.depth()
        assert np.array_equal(image.data.view('<f4').reshape(depth.shape), depth, equal_nan=True)


def test_first_image_may_be_unreadable_for_a_model_that_follows_the_size(tmp_path):
    grey = np.full((48, 64, 3), 90, np.uint8)
    rows = camera_rows('/image_raw/compressed', [grey] * 4, make=png_image)
    topic, log_ns, (kind, message) = rows[0]
    message.data = message.data[:20]
    rows[0] = topic, log_ns, (kind, message)
    bag = write_bag(tmp_path / 'drive', rows)
    out = tmp_path / 'out'
    assert run_detect_bag(write_depth_anything(tmp_path), bag, '--output', out) == 1
    assert len(messages_of(out, '/relative_depth')) == 3


def with_bag(words, bag, output):
    """Return the arguments of detect_bag for a model with parameters."""
    return words[0], bag, '--output', output, *words[1:]


def loaded(values):
    """Return the results of a model with parameters for the four scenes."""
    parameters = {
        name.replace('.', '_').removeprefix('model_'): value for name, value in values.items()
    }
    return expected_of(parameters.pop('engine_path'), **parameters)
