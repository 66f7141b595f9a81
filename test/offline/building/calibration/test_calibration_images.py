# SPDX-License-Identifier: Apache-2.0
"""Tests of the selection of calibration images, and of refused images."""

import random

import cv2
import numpy as np
import pytest

from support.building.messages import without_variable_text
from trt_perception.errors import ConfigError
from trt_perception.images.frame import frame_from_bgr
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.offline.building.calibration.images import (
    CalibrationImages,
    read_image,
    select_images,
)

NAMES = ['img1.png', 'img2.png', 'img10.png', 'img20.jpg', 'sub/img3.png', 'sub/IMG4.PNG']


def random_image(seed, size=(48, 64)):
    """Return an image whose large parts depend on the seed."""
    coarse = np.random.default_rng(seed).integers(0, 255, (6, 8, 3)).astype(np.uint8)
    return cv2.resize(coarse, size[::-1], interpolation=cv2.INTER_NEAREST)


def write_image(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), image)


@pytest.fixture
def folder(tmp_path):
    for index, name in enumerate(random.Random(1).sample(NAMES, len(NAMES))):
        write_image(tmp_path / name, random_image(index))
    write_image(tmp_path / '.hidden/no.png', random_image(9))
    (tmp_path / 'labels.txt').write_text('1 2 3')
    return tmp_path


def names(images, folder):
    return [str(path.relative_to(folder)) for path in images.paths]


def read_and_check(images, input_size=(64, 48)):
    """Read all images, and return the warnings."""
    done = []
    checked = CalibrationImages(
        images, Preprocessing(input_size), lambda _step, *counts: done.append(counts)
    )
    found = [(path, tensor.shape) for path, tensor in checked]
    assert found == [(path, (1, 3, *input_size[::-1])) for path in images.paths]
    assert done == [(number, len(found)) for number in range(len(found) + 1)]
    return tuple(checked.warnings)


def test_folder_and_subfolders_are_read_in_natural_order(folder):
    images = select_images(folder)
    assert names(images, folder) == [*NAMES[:4], 'sub/IMG4.PNG', 'sub/img3.png']
    assert images.found == 6
    assert images.as_dict()['used'] == 6


def test_pattern_and_single_file_are_sources(folder):
    assert names(select_images(f'{folder}/img*'), folder) == NAMES[:4]
    assert len(select_images(f'{folder}/**/*.png').paths) == 4
    assert names(select_images(folder / 'img2.png'), folder) == ['img2.png']


def test_list_file_selects_images_relative_to_its_folder(folder, golden_messages):
    listed = folder / 'sub' / 'list.txt'
    listed.write_text(f'# chosen\n\n  ../img10.png\nimg3.png\n{folder}/img2.png\nimg3.png\n')
    found = [path.resolve() for path in select_images(listed).paths]
    assert set(found) == {folder / 'img10.png', folder / 'img2.png', folder / 'sub/img3.png'}
    assert len(found) == 3
    listed.write_text('img3.png\ngone.png\n')
    with golden_messages.raises(ConfigError):
        select_images(listed)
    listed.write_text('# nothing\n')
    with golden_messages.raises(ConfigError):
        select_images(listed)
    listed.write_bytes(b'\xff\xfe\xfa')
    with golden_messages.raises(ConfigError):
        select_images(listed)


def test_selection_depends_on_the_seed(folder):
    for index in range(40):
        write_image(folder / f'more/{index}.png', random_image(index))
    chosen = select_images(folder, 10, seed=3)
    assert chosen == select_images(folder, 10, seed=3)
    assert chosen.found == 46
    assert len(set(chosen.paths)) == 10
    other = select_images(folder, 10, seed=4)
    assert other.paths != chosen.paths
    assert other.sha256 != chosen.sha256
    numbers = [int(path.stem) for path in chosen.paths if path.parent.name == 'more']
    assert numbers == sorted(numbers)
    assert len(numbers) >= 5
    assert select_images(folder, 46).paths == select_images(folder, 1000, seed=9).paths


def test_hash_depends_on_contents_and_order_only(folder, tmp_path_factory):
    before = select_images(folder).sha256
    moved = tmp_path_factory.mktemp('moved')
    for path in select_images(folder).paths:
        target = moved / path.relative_to(folder)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes())
    assert select_images(moved).sha256 == before
    (moved / 'img1.png').rename(moved / 'img99.png')
    assert select_images(moved).sha256 != before
    write_image(folder / 'img1.png', random_image(77))
    assert select_images(folder).sha256 != before


@pytest.mark.parametrize('source', ['nowhere', '*.gif', 'empty'])
def test_source_without_images_is_refused(tmp_path, source, golden_messages):
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'empty' / 'readme.md').write_text('')
    with golden_messages.raises(ConfigError):
        select_images(tmp_path / source)


@pytest.mark.parametrize(
    ('name', 'content'),
    [('a.png', b''), ('a.png', b'no picture'), ('a.jpg', b'\xff\xd8\xff\xe0 more \xff\xd9')],
)
def test_error_mentions_a_file_that_is_not_an_image(tmp_path, name, content, golden_messages):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_image(tmp_path / name)
    golden_messages.add(without_variable_text(caught.value))


@pytest.mark.parametrize('suffix', ['.jpg', '.png'])
@pytest.mark.parametrize('share', [0.3, 0.9])
def test_truncated_image_is_refused(tmp_path, suffix, share):
    path = tmp_path / f'cut{suffix}'
    write_image(path, random_image(0, (480, 640)))
    content = path.read_bytes()
    read_image(path)
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ConfigError, match='truncated'):
        read_image(path)


def test_grey_image_becomes_bgr_and_frame_keeps_pixels(tmp_path):
    write_image(tmp_path / 'grey.png', random_image(0)[..., 0])
    bgr = read_image(tmp_path / 'grey.png')
    assert bgr.shape == (48, 64, 3)
    frame = frame_from_bgr(bgr[:, ::2])
    assert (frame.width, frame.height, frame.format.name) == (32, 48, 'bgr8')
    assert np.array_equal(frame.plane().reshape(48, 32, 3), bgr[:, ::2])


def fill(folder, count, make):
    for index in range(count):
        write_image(folder / f'{index}.png', make(index))
    return select_images(folder)


def test_too_few_images_are_refused(tmp_path, golden_messages):
    with golden_messages.raises(ConfigError):
        read_and_check(fill(tmp_path, 7, random_image))
    (few,) = read_and_check(fill(tmp_path, 8, random_image))
    golden_messages.add(few)
    assert read_and_check(fill(tmp_path, 100, random_image)) == ()


def test_images_that_are_alike_are_refused(tmp_path, golden_messages):
    rng = np.random.default_rng(0)
    for name, make in {
        'same': lambda _: random_image(0),
        # Images of a fixed camera differ only by noise.
        'noise': lambda _: random_image(0) // 2 + rng.integers(0, 9, (48, 64, 3)),
        'flat': lambda number: np.full((48, 64, 3), 20 * number, np.uint8),
    }.items():
        with golden_messages.raises(ConfigError):
            read_and_check(fill(tmp_path / name, 9, make))


def test_warnings_count_duplicate_flat_and_small_images(tmp_path, golden_messages):
    def make(index):
        if index < 3:
            return random_image(0)
        return np.full((48, 64, 3), 128, np.uint8) if index == 3 else random_image(index)

    warnings = read_and_check(fill(tmp_path, 100, make), input_size=(130, 100))
    golden_messages.add('\n'.join(warnings))
    assert len(warnings) == 3
    assert read_and_check(select_images(tmp_path), input_size=(128, 200))[2:] == ()


def test_unreadable_image_stops_the_iteration(tmp_path, golden_messages):
    images = fill(tmp_path, 8, random_image)
    images.paths[5].write_bytes(b'gone bad')
    with golden_messages.raises(ConfigError):
        read_and_check(images)
