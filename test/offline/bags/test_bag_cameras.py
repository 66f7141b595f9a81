# SPDX-License-Identifier: Apache-2.0
"""Tests of the cameras that are found in a bag, and of their names."""

import contextlib

import numpy as np
import pytest

from support.detect_bags import (
    START_NS,
    STORE,
    camera_info,
    camera_rows,
    png_image,
    raw_image,
    write_bag,
)
from support.optional_packages import needs
from trt_perception.bags.bag import BagMessage
from trt_perception.bags.definitions import bag_topic
from trt_perception.bags.open_bag import open_bag
from trt_perception.bags.writer import BagWriter
from trt_perception.errors import ConfigError
from trt_perception.offline.bags.cameras import find_cameras

pytestmark = [needs('rosbags'), needs('mcap')]
PICTURE = np.zeros((8, 16, 3), np.uint8)


def found_in(folder, topics, given=None, values=None, compressed=False):
    rows = []
    for topic in topics:
        make = png_image if topic.endswith('/compressed') else raw_image
        rows += camera_rows(topic, [PICTURE], make=make)
    write_bag(folder, rows)
    with contextlib.closing(open_bag(folder)) as bag:
        return find_cameras(bag, 'BAG', given or {}, values or {}, prefers_compressed=compressed)


def names(found):
    return {camera.name: camera.topic for camera in found.cameras}


@pytest.mark.parametrize(
    ('topics', 'expected'),
    [
        (['/image_raw'], {'': '/image_raw'}),
        (['/front/image_raw'], {'front': '/front/image_raw'}),
        (['/front/image_raw/compressed'], {'front': '/front/image_raw/compressed'}),
        (['/robot/front/color/image'], {'robot_front_color': '/robot/front/color/image'}),
        (['/image', '/rear/image'], {'image': '/image', 'rear': '/rear/image'}),
        (
            ['/front/image_raw', '/front/image_rect'],
            {'front_image_raw': '/front/image_raw', 'front_image_rect': '/front/image_rect'},
        ),
    ],
)
def test_name_of_a_camera_is_the_folder_of_its_topic(tmp_path, topics, expected):
    found = found_in(tmp_path / 'bag', topics)
    assert names(found) == expected
    assert found.image_wh == (16, 8)


@pytest.mark.parametrize(
    ('transport', 'prefers_compressed', 'expected'),
    [('raw', True, 'image'), ('compressed', False, 'compressed'), ('auto', True, 'compressed')],
)
def test_one_transport_of_each_camera_is_taken(tmp_path, transport, prefers_compressed, expected):
    found = found_in(
        tmp_path / 'bag',
        ['/front/image', '/front/image/compressed'],
        values={'image_transport': 'raw', 'camera.front.image_transport': transport},
        compressed=prefers_compressed,
    )
    (camera,) = found.cameras
    assert camera.topic.rpartition('/')[2] == expected
    assert camera.is_compressed == (expected == 'compressed')
    assert len(found.remarks) == 1


def test_given_cameras_are_taken_as_they_are(tmp_path):
    topics = ['/a/image', '/b/image']
    found = found_in(tmp_path / 'bag', topics, given={'left': '/b/image'})
    assert names(found) == {'left': '/b/image'}


def test_calibration_is_next_to_the_images(tmp_path):
    rows = camera_rows('/front/image_raw', [PICTURE])
    rows.append(('/front/camera_info', START_NS, camera_info(START_NS, (16, 8), 10)))
    write_bag(tmp_path / 'bag', rows)
    with contextlib.closing(open_bag(tmp_path / 'bag')) as bag:
        (camera,) = find_cameras(bag, 'BAG', {}, {}, prefers_compressed=False).cameras
    assert camera.info_topic == '/front/camera_info'


@pytest.mark.parametrize('options', [{'given': {'a': '/gone'}}, {'values': {'cameras': ['gone']}}])
def test_missing_camera_is_refused(tmp_path, options):
    with pytest.raises(ConfigError):
        found_in(tmp_path / 'bag', ['/front/image'], **options)


def depth_rows():
    depth = np.zeros((8, 16), np.uint16)
    return camera_rows('/depth/image', [depth], make=lambda a, t: raw_image(a, t, '', '16UC1'))


def info_rows():
    return camera_rows('/front/camera_info', [(16, 8)], make=lambda a, t: camera_info(t, a, 9.0))


@pytest.mark.parametrize('rows', [depth_rows(), info_rows()], ids=['depth', 'no_images'])
@pytest.mark.parametrize(
    'given',
    [{}, {'front': '/front/image'}, {'front': '/front/camera_info'}],
    ids=['found', 'unknown', 'of_another_type'],
)
def test_bag_without_colour_images_is_refused(tmp_path, rows, given, golden_messages):
    write_bag(tmp_path / 'bag', rows)
    with (
        contextlib.closing(open_bag(tmp_path / 'bag')) as bag,
        golden_messages.raises(ConfigError),
    ):
        find_cameras(bag, 'BAG', given, {}, prefers_compressed=False)


@pytest.mark.parametrize('given', [{}, {'front': '/front/image'}], ids=['found', 'given'])
def test_camera_whose_messages_are_damaged_is_refused_with_the_damage(
    tmp_path, given, golden_messages
):
    folder = tmp_path / 'bag'
    ((topic, log_ns, (kind, image)),) = camera_rows('/front/image', [PICTURE])
    with BagWriter(folder, [bag_topic(topic, 'sensor_msgs/Image')], compression='none') as writer:
        writer.begin_file()
        writer.write(BagMessage(topic, log_ns, log_ns, STORE.serialize_cdr(image, kind)))
    file = folder / 'bag_0.mcap'
    content = file.read_bytes()
    file.write_bytes(content.replace(PICTURE.tobytes(), PICTURE.tobytes()[1:] + b'\1'))
    with contextlib.closing(open_bag(folder)) as bag, golden_messages.raises(ConfigError):
        find_cameras(bag, 'BAG', given, {}, prefers_compressed=False)


@pytest.mark.parametrize(
    'topics',
    [
        ['/a/b/image', '/a_b/image'],
        ['/front/image_raw', '/front/image_rect', '/front/image_raw/left'],
        ['/front-left/image'],
        ['/../../etc/image'],
        ['/' + 'x' * 65 + '/image'],
    ],
)
def test_topics_without_different_valid_names_are_refused(tmp_path, topics):
    with pytest.raises(ConfigError):
        found_in(tmp_path / 'bag', topics)
    given = {f'c{number}': topic for number, topic in enumerate(topics)}
    assert names(found_in(tmp_path / 'again', topics, given=given)) == given


def test_names_of_cameras_that_are_left_out_may_be_invalid(tmp_path):
    topics = ['/front/image', '/rear-left/image', '/a/b/image', '/a_b/image']
    found = found_in(tmp_path / 'bag', topics, values={'cameras': ['front']})
    assert names(found) == {'front': '/front/image'}
