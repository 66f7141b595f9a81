# SPDX-License-Identifier: Apache-2.0
"""Read the images of bags, and compare them with OpenCV and the original pixels."""

import itertools

import cv2
import numpy as np
import pytest
from rosbags.rosbag2 import StoragePlugin, Writer

from support.bags import SECOND, START, STORE, TYPES
from support.bags import compressed_image as compressed
from support.bags import random_image as picture
from support.bags import raw_image as raw
from support.bags import write_typed_folder as write_bag
from trt_perception.bags.open_bag import open_bag
from trt_perception.errors import ConfigError, ImageError
from trt_perception.images.bag_images import RAW, image_topics, parse_bag_image
from trt_perception.images.bag_selection import BagSelection
from trt_perception.images.image_files import read_image_bytes, read_image_file
from trt_perception.images.image_source import ImageSource, find_images
from trt_perception.offline.building.calibration.images import select_images


@pytest.fixture
def bag(tmp_path):
    return write_bag(
        tmp_path / 'drive', {'/front/image_raw': [raw(picture(n), 'bgr8') for n in range(12)]}
    )


@pytest.mark.parametrize('storage', ['MCAP', 'SQLITE3'])
def test_images_of_a_bag_are_found_and_read(storage, tmp_path):
    topics = {'/front/image_raw': [raw(picture(n), 'bgr8') for n in range(12)]}
    folder = write_bag(tmp_path / 'drive', topics, storage)
    found = find_images(folder)
    assert [path.name for path in found] == [
        f'drive#front.image_raw@{START + n * SECOND // 10}.png' for n in range(12)
    ]
    assert [path.parent for path in found] == 12 * [tmp_path]
    for number, path in enumerate(found):
        assert (read_image_file(path) == picture(number)).all()
    for number, (name, bgr) in enumerate(ImageSource(str(folder))):
        assert name == found[number].name
        assert (bgr == picture(number)).all()
    assert sorted(map(str, found)) == list(map(str, found))


def test_images_of_a_bag_in_the_current_folder_are_read(bag, monkeypatch):
    monkeypatch.chdir(bag)
    found = find_images('.')
    assert found[0].name.startswith('drive#front.image_raw@')
    assert [(read_image_file(path) == picture(n)).all() for n, path in enumerate(found)] == 12 * [
        1
    ]


def test_images_are_converted_to_bgr(tmp_path):
    bgr = picture(1)
    messages = {
        '/bgr8': raw(bgr, 'bgr8'),
        '/rgb8': raw(bgr[..., ::-1], 'rgb8'),
        '/bgra8': raw(cv2.cvtColor(bgr, cv2.COLOR_BGR2BGRA), 'bgra8'),
        '/mono8': raw(bgr[..., 0], 'mono8'),
        '/mono16': raw(bgr[..., 0].astype(np.uint16) * 257, 'mono16'),
        '/nv12': raw(picture(2, (36, 32)), 'nv12'),
        '/bayer': raw(picture(3, (24, 32)), 'bayer_rggb8'),
        '/png/compressed': compressed(bgr, '.png', 'bgr8; png compressed bgr8'),
        '/jpeg/compressed': compressed(bgr, '.jpg', 'jpeg'),
    }
    messages['/nv12'].height = 24
    grey = np.repeat(bgr[..., :1], 3, axis=2)
    expected = {
        **dict.fromkeys(['/bgr8', '/rgb8', '/bgra8', '/png/compressed'], bgr),
        **dict.fromkeys(['/mono8', '/mono16'], grey),
        '/nv12': cv2.cvtColor(picture(2, (36, 32)), cv2.COLOR_YUV2BGR_NV12),
        '/bayer': cv2.cvtColor(picture(3, (24, 32)), cv2.COLOR_BayerBG2BGR),
        '/jpeg/compressed': cv2.imdecode(cv2.imencode('.jpg', bgr)[1], cv2.IMREAD_COLOR),
    }
    folder = write_bag(tmp_path / 'a', {topic: [sent] for topic, sent in messages.items()})
    for topic, image in expected.items():
        ((name, found),) = ImageSource(str(folder), selection=BagSelection(topic))
        difference = np.abs(found.astype(int) - image.astype(int)).max()
        assert difference <= (1 if topic == '/jpeg/compressed' else 0), topic
        (path,) = find_images(folder, selection=BagSelection(topic))
        assert path.name == name
        assert (read_image_file(path) == found).all()
    assert image_topics(open_bag(folder)) == sorted(expected)


def test_topic_is_chosen(tmp_path, golden_messages):
    depth = raw(np.ones((24, 32), np.uint16), '16UC1')
    color, packed = raw(picture(1), 'bgr8'), compressed(picture(1), '.png', 'png')
    points = compressed(picture(1), '.png', '16UC1; compressedDepth png')
    text = TYPES['std_msgs/msg/String']('a')
    one = write_bag(tmp_path / 'one', {'/d': [depth], '/p': [points], '/s': [text], '/c': [color]})
    (path,) = find_images(one)
    assert path.name.startswith('one#c@')
    two = write_bag(tmp_path / 'two', {'/c': [color], '/c/compressed': [packed], '/s': [text]})
    none = write_bag(tmp_path / 'none', {'/d': [depth], '/s': [text]})
    with golden_messages.raises(ConfigError):
        find_images(two)
    with golden_messages.raises(ConfigError):
        find_images(none)
    with golden_messages.raises(ConfigError):
        find_images(two, selection=BagSelection('/s'))
    with golden_messages.raises(ConfigError):
        find_images(two, selection=BagSelection('/x'))
    with golden_messages.raises(ConfigError):
        find_images(two, selection=BagSelection('/c/compresse'))
    assert len(find_images(two, selection=BagSelection('/c/compressed'))) == 1
    (depth_path,) = find_images(none, selection=BagSelection('/d'))
    with pytest.raises(ImageError) as caught:
        read_image_file(depth_path)
    assert caught.value.reason == 'unknown_encoding'


@pytest.mark.parametrize('every', [1, 2, 5, 12, 100])
def test_every_nth_image_is_used(every, bag):
    found = find_images(bag, selection=BagSelection(every=every))
    assert found == find_images(bag)[::every]
    names = [name for name, _ in ImageSource(str(bag), selection=BagSelection(every=every))]
    assert names == [path.name for path in found]


def test_images_of_one_time_have_different_names(tmp_path):
    with Writer(tmp_path / 'a', version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        connection = writer.add_connection('/c', RAW, typestore=STORE)
        for number in range(4):
            data = STORE.serialize_cdr(raw(picture(number), 'bgr8'), RAW)
            writer.write(connection, START + number // 3, data)
    found = find_images(tmp_path / 'a')
    stems = [f'a#c@{START}', f'a#c@{START}+1', f'a#c@{START}+2', f'a#c@{START + 1}']
    assert [path.name for path in found] == [f'{stem}.png' for stem in stems]
    for number, path in enumerate(found):
        assert (read_image_file(path) == picture(number)).all()


def test_folder_with_image_files_is_not_a_bag(bag):
    cv2.imwrite(str(bag / 'a.png'), picture(1))
    assert [path.name for path in find_images(bag)] == ['a.png']
    (bag / 'a.png').unlink()
    assert len(find_images(bag)) == 12


def test_file_with_the_name_of_an_image_in_a_bag_is_read(bag):
    path = find_images(bag)[0]
    assert parse_bag_image(path)
    cv2.imwrite(str(path), picture(99))
    assert not parse_bag_image(path)
    assert (read_image_file(path) == picture(99)).all()


def test_unreadable_images_are_skipped(tmp_path):
    sent = [raw(picture(n), 'bgr8') for n in range(3)]
    sent[1].height = 1000
    folder = write_bag(tmp_path / 'a', {'/c': sent})
    reasons = []
    found = list(ImageSource(str(folder), reasons.append))
    assert [bgr[0, 0, 0] for _, bgr in found] == [picture(0)[0, 0, 0], picture(2)[0, 0, 0]]
    assert len(reasons) == 1
    with pytest.raises(ConfigError):
        list(ImageSource(str(folder)))


def test_damaged_part_of_a_bag_is_reported(bag):
    (file,) = bag.glob('*.mcap')
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    reasons = []
    found = list(ImageSource(str(bag), reasons.append))
    assert 2 < len(found) < 12
    assert reasons
    with pytest.raises(ConfigError):
        list(ImageSource(str(bag)))


@pytest.mark.parametrize('name', ['a#c@5.png', 'drive#x@5.png', 'drive#front.image_raw@5.png'])
def test_missing_image_is_refused(name, bag):
    for read, error in ((read_image_file, ImageError), (read_image_bytes, ConfigError)):
        with pytest.raises(error):
            read(bag.parent / name)


def test_calibration_selects_images_of_a_bag(bag):
    chosen = select_images(bag, limit=9, seed=1)
    assert (len(chosen.paths), chosen.found) == (9, 12)
    assert chosen == select_images(bag, limit=9, seed=1)
    assert chosen.sha256 != select_images(bag, limit=9, seed=2).sha256
    halved = select_images(bag, selection=BagSelection('/front/image_raw', 2))
    assert list(halved.paths) == find_images(bag)[::2]


def test_damaged_bags_are_images_or_errors(bag, tmp_path):
    """Flipped bits in messages, which have no checksums in the files of rosbags."""
    (file,) = bag.glob('*.mcap')
    content = file.read_bytes()
    rng = np.random.default_rng(5)
    counts = set()
    for number in range(60):
        copy = tmp_path / f'copy{number}.mcap'
        damaged = bytearray(content)
        for place in rng.integers(0, len(damaged), 200 if number % 2 else 3):
            damaged[place] ^= 1 << int(rng.integers(8))
        copy.write_bytes(damaged)
        try:
            source = ImageSource(str(copy), lambda _: None)
            images = list(itertools.islice(source, 20))
        except ConfigError:
            continue
        assert all(bgr.dtype == np.uint8 and bgr.ndim == 3 for _, bgr in images)
        counts.add(len(images))
    assert max(counts) >= 11
