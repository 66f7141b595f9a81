# SPDX-License-Identifier: Apache-2.0
"""Tests of finding the image files of a folder, a pattern or a path."""

import pytest

from trt_perception.errors import ConfigError
from trt_perception.images.image_source import find_images
from trt_perception.offline.building.calibration.images import find_image_files


@pytest.fixture
def folder(tmp_path):
    for name in ('c.PNG', 'b/a.jpg', 'b/.hidden/d.jpg', 'b/._a.jpg', 'notes.txt', 'e.png/f.bmp'):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def names(folder, source, **options):
    return [path.relative_to(folder).as_posix() for path in find_images(source, **options)]


def test_folder_yields_its_image_files(folder):
    assert names(folder, folder) == ['c.PNG']
    assert names(folder, str(folder), subfolders=True) == ['b/a.jpg', 'c.PNG', 'e.png/f.bmp']


def test_pattern_and_file_select_the_matching_images(folder):
    assert names(folder, folder / 'b' / '*.jpg') == ['b/a.jpg']
    assert names(folder, folder / '**' / '[ac].*') == ['b/a.jpg', 'c.PNG']
    assert names(folder, folder / 'c.PNG', subfolders=True) == ['c.PNG']


def test_numbers_in_names_are_sorted_by_value(tmp_path):
    """The frames of a video are often numbered without leading zeros."""
    sequence = ['01/2.jpg', '1/1.jpg', '2/f9.jpg', '2/f10.jpg', '2/f010.jpg', '10/3.jpg']
    for name in sequence[::-1]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    expected = [*sequence[:3], '2/f010.jpg', '2/f10.jpg', '10/3.jpg']
    assert names(tmp_path, tmp_path, subfolders=True) == expected
    assert names(tmp_path, tmp_path / '**') == expected


def test_circular_links_are_not_followed(folder):
    for name in ('one', 'two'):
        (folder / name).symlink_to(folder)
    assert names(folder, folder / '**' / '*.jpg') == ['b/a.jpg']
    assert names(folder, folder / '**') == ['b/a.jpg', 'c.PNG', 'e.png/f.bmp']
    assert names(folder, folder, subfolders=True) == ['b/a.jpg', 'c.PNG', 'e.png/f.bmp']
    assert names(folder, folder / 'one' / 'b' / '*.jpg') == [
        'one/b/a.jpg'
    ]  # the pattern names the link, so the search follows the link


@pytest.mark.parametrize('source', ['~nobody_is_called_so/a.jpg', 'x' * 300, 'x' * 5000])
@pytest.mark.parametrize('find', [find_images, find_image_files])
def test_path_that_cannot_exist_is_refused(source, find, tmp_path, golden_messages):
    with golden_messages.raises(ConfigError):
        find(source)
    (tmp_path / 'list.txt').write_text(source)
    with golden_messages.raises(ConfigError):
        find_image_files(tmp_path / 'list.txt')


@pytest.mark.parametrize('subfolders', [False, True])
@pytest.mark.parametrize(
    'source',
    ['empty', 'gone', '*.gif', '*.txt', 'notes.txt'],
)
def test_source_without_images_is_refused(folder, source, subfolders, golden_messages):
    (folder / 'empty').mkdir()
    with golden_messages.raises(ConfigError) as caught:
        find_images(folder / source, subfolders=subfolders)
    assert caught.value.subject == str(folder / source)
