# SPDX-License-Identifier: Apache-2.0
"""Tests of annotation files, and of the assignment of class names and image files."""

import json
import os

import cv2
import numpy as np
import pytest

from support import golden
from support.oracles.evaluation_support import CLASSES, truth, written
from trt_perception.errors import ConfigError, ImageError, WriteError
from trt_perception.files.atomic_files import write_json
from trt_perception.offline.evaluation.coco.annotations import read_annotations
from trt_perception.offline.evaluation.coco.classes import match_classes, read_class_map
from trt_perception.offline.evaluation.coco.images import match_images, read_image
from trt_perception.offline.evaluation.coco.section import MAX_BYTES

BOX = (10, 20, 30, 40)


def changed_annotations(key, **values):
    """Return annotations with changes in the first entry of a list. None removes a key."""
    content = truth([(0, 'cat', BOX)])
    entry = {**content[key][0], **values}
    content[key][0] = {name: value for name, value in entry.items() if value is not None}
    return content


def test_annotations_are_read_with_defaults_for_missing_keys(tmp_path):
    content = truth([(1, 'dog', BOX, {'iscrowd': 1, 'area': 5}), (1, 'cat', (0, 0, 3, 7))])
    del content['annotations'][1]['area'], content['annotations'][1]['iscrowd']
    del content['images'][0]['width'], content['images'][0]['height']
    annotations = read_annotations(written(tmp_path, content))
    assert [(i.id, i.file_name, i.size_wh) for i in annotations.images] == [
        (100, '000.png', None),
        (101, '001.png', (320, 240)),
    ]
    assert annotations.categories == {7: 'cat', 17: 'dog'}
    (dog, cat) = annotations.objects[101]
    assert (dog.category_id, dog.xywh, dog.area, dog.crowd) == (17, BOX, 5, True)
    assert (cat.category_id, cat.xywh, cat.area, cat.crowd) == (7, (0, 0, 3, 7), 21, False)
    assert set(annotations.objects) == {101}


REFUSED = [
    *('', '{"images": [', '[' * 100_000, b'"\xff"', '[]', '3', '{}'),
    truth([(0, 'cat', BOX)], annotations={}),
    truth([], images=0),
    truth([], categories=()),
    truth([]),
    {**truth([(0, 'cat', BOX)]), 'images': [5]},
]
REFUSED_CHANGES = [
    *(('images', {'id': value}) for value in ('7', True, 10**30)),
    *(('images', {'file_name': value}) for value in (None, 5, 'a\0')),
    *(('images', {'width': value}) for value in (0, None)),
    ('categories', {'name': ''}),
    ('categories', {'id': 17}),
    ('annotations', {'image_id': 5}),
    ('annotations', {'category_id': 5}),
    *(
        ('annotations', {'bbox': value})
        for value in (
            *(None, [1, 2, 3], [1, 2, 3, '4'], [1, 2, 3, 10**400], [1, 2, 3, float('nan')]),
            *([1e300, 2, 3, 4], [2**40, 2, 3, 4], [1, 2, 3, 10**30]),
            *([1, 2, -3, 4], [0.1, 0.2, 0.5, 1], [100, 90, 300, 200], [30, 200, 90, 42]),
        )
    ),
    *(('annotations', {'area': value}) for value in (-1, 'big')),
    ('annotations', {'iscrowd': 2}),
]


def test_wrong_annotations_are_refused(tmp_path):
    path = tmp_path / 'truth.json'
    changes = [
        (f'{key} {str(more)[:60]}', changed_annotations(key, **more))
        for key, more in REFUSED_CHANGES
    ]
    lines = []
    for label, content in [*((str(it)[:60], it) for it in REFUSED), *changes]:
        text = json.dumps(content) if isinstance(content, dict) else content
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        with pytest.raises(ConfigError) as caught:
            read_annotations(path)
        lines.append(f'{label}\n  {golden.without_folder(str(caught.value), tmp_path)}')
    golden.check('offline/evaluation/annotations.txt', '\n'.join(lines))


def test_annotations_with_few_boxes_beyond_their_image_are_accepted(tmp_path):
    boxes = [(0, 'cat', BOX), (0, 'cat', (300, 200, 21, 41)), (0, 'dog', (300, 200, 100, 100))]
    assert len(read_annotations(written(tmp_path, truth(boxes))).objects[100]) == 3


def test_repeated_ids_are_refused(tmp_path, golden_messages):
    content = truth([(1, 'cat', BOX)])
    content['images'][1]['id'] = 100
    with golden_messages.raises(ConfigError):
        read_annotations(written(tmp_path, content))


def test_unreadable_annotation_files_are_refused(tmp_path, golden_messages):
    os.mkfifo(tmp_path / 'pipe', 0o600)
    with (tmp_path / 'large').open('wb') as file:
        file.truncate(MAX_BYTES + 1)
    for name in ('gone', 'pipe', 'large'):
        with golden_messages.raises(ConfigError):
            read_annotations(tmp_path / name)
    with golden_messages.raises(ConfigError):
        read_annotations(tmp_path)


def test_json_is_written_whole_or_not_at_all(tmp_path, golden_messages):
    path = tmp_path / 'file.json'
    write_json(path, {'a': 1})
    assert json.loads(path.read_text()) == {'a': 1}
    for wrong, error in (([float('nan')], ValueError), ([object()], TypeError)):
        with pytest.raises(error):
            write_json(path, wrong)
    assert [entry.name for entry in tmp_path.iterdir()] == ['file.json']
    assert json.loads(path.read_text()) == {'a': 1}
    with golden_messages.raises(WriteError):
        write_json(tmp_path / 'missing' / 'file.json', {})


# Class names.


def match_written_classes(tmp_path, class_names, boxes, **options):
    categories = options.pop('categories', CLASSES)
    annotations = read_annotations(written(tmp_path, truth(boxes, categories=categories)))
    return match_classes(class_names, annotations, **options)


BOTH = [(0, 'cat', BOX), (0, 'dog', BOX)]


def test_classes_are_matched_by_name(tmp_path):
    classes = match_written_classes(tmp_path, ('dog', 'cat'), BOTH)
    assert classes.category_ids == (17, 7)
    assert classes.categories == {7: 'cat', 17: 'dog'}
    assert classes.ignored_classes == classes.ignored_categories == ()


def test_category_without_objects_needs_no_class(tmp_path):
    classes = match_written_classes(tmp_path, ('cat',), BOTH[:1])
    assert classes.category_ids == (7,)
    assert classes.categories == {7: 'cat'}
    assert classes.ignored_categories == ()


@pytest.mark.parametrize(
    'class_names',
    [
        ('cat', 'dog', 'Cow'),
        ('Cat', 'dog'),
        ('cat',),
        ('0', '1'),
    ],
)
def test_class_names_that_do_not_match_are_refused(tmp_path, class_names, golden_messages):
    with golden_messages.raises(ConfigError):
        match_written_classes(tmp_path, class_names, BOTH)


def test_long_lists_in_messages_are_shortened(tmp_path, golden_messages):
    names = [f'{number:02d}' for number in range(30)]
    with golden_messages.raises(ConfigError):
        match_written_classes(tmp_path, names, BOTH)


def test_common_classes_are_measured_if_a_subset_is_allowed(tmp_path, golden_messages):
    classes = match_written_classes(tmp_path, ('cow', 'dog'), BOTH, allow_subset=True)
    assert classes.category_ids == (None, 17)
    assert classes.categories == {17: 'dog'}
    assert classes.ignored_classes == ('cow',)
    assert classes.ignored_categories == ('cat',)
    with golden_messages.raises(ConfigError):
        match_written_classes(tmp_path, ('cow',), BOTH, allow_subset=True)


def test_class_map_assigns_categories(tmp_path, golden_messages):
    given = {'kitten': 'cat', 'tiger': 'cat', 'tree': None}
    classes = match_written_classes(
        tmp_path, ('tiger', 'tree', 'dog', 'kitten'), BOTH, class_map=given
    )
    assert classes.category_ids == (7, None, 17, 7)
    assert classes.ignored_classes == ('tree',)
    with golden_messages.raises(ConfigError):
        match_written_classes(tmp_path, ('kitten', 'dog'), BOTH, class_map={'kiten': 'cat'})
    with golden_messages.raises(ConfigError):
        match_written_classes(tmp_path, ('kitten', 'dog'), BOTH, class_map={'kitten': 'cats'})


def test_class_map_file_is_read_or_refused(tmp_path, golden_messages):
    assert read_class_map(written(tmp_path, '{"a": "b", "c": null}')) == {'a': 'b', 'c': None}
    for wrong in ('[]', '{"a": 3}', '{"a": ["b"]}'):
        with golden_messages.raises(ConfigError):
            read_class_map(written(tmp_path, wrong))


def test_repeated_category_name_is_refused(tmp_path, golden_messages):
    content = truth(BOTH)
    content['categories'][1]['name'] = 'cat'
    annotations = read_annotations(written(tmp_path, content))
    with golden_messages.raises(ConfigError):
        match_classes(CLASSES, annotations)


# Image files.


def annotations_of_files(tmp_path, *names):
    content = truth([(0, 'cat', BOX)], images=len(names))
    for entry, name in zip(content['images'], names, strict=True):
        entry['file_name'] = name
    return read_annotations(written(tmp_path, content))


@pytest.mark.parametrize(
    ('name', 'files', 'expected'),
    [
        ('a.png', ['x/a.png', 'x/b.png'], 'x/a.png'),
        ('y/a.png', ['x/a.png', 'y/a.png'], 'y/a.png'),
        ('val2017/a.png', ['images/a.png'], 'images/a.png'),  # the folder has another name
        ('C:\\data\\y\\a.png', ['y/a.png'], 'y/a.png'),
        ('/elsewhere/a.png', ['x/a.png'], 'x/a.png'),
        ('../a.png', ['x/a.png'], 'x/a.png'),
    ],
)
def test_image_files_are_found_by_name(tmp_path, name, files, expected):
    paths = [tmp_path / file for file in files]
    ((image, path),) = match_images(annotations_of_files(tmp_path, name), paths)
    assert image.id == 100
    assert path == tmp_path / expected


def test_file_name_of_two_files_is_refused(tmp_path, golden_messages):
    paths = [tmp_path / 'x' / 'a.png', tmp_path / 'y' / 'a.png']
    with golden_messages.raises(ConfigError):
        match_images(annotations_of_files(tmp_path, 'a.png'), paths)


def test_images_without_a_file_are_refused_unless_allowed(tmp_path, golden_messages):
    annotations = annotations_of_files(tmp_path, *(f'{letter}.png' for letter in 'abcdefg'))
    paths = [tmp_path / 'a.png', tmp_path / 'b.png', tmp_path / 'z.png']
    with golden_messages.raises(ConfigError):
        match_images(annotations, paths)
    pairs = match_images(annotations, paths, allow_missing=True)
    assert [path.name for _, path in pairs] == ['a.png', 'b.png']
    for allow in (False, True):
        with golden_messages.raises(ConfigError):
            match_images(annotations, paths[2:], allow_missing=allow)


def test_image_is_read_and_its_size_is_checked(tmp_path, golden_messages):
    path = tmp_path / 'a.png'
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    cv2.imwrite(str(path), pixels)
    assert np.array_equal(read_image(path), pixels)
    assert np.array_equal(read_image(path, (3, 2)), pixels)
    with golden_messages.raises(ImageError):
        read_image(path, (2, 3))
    path.write_bytes(b'not an image')
    with golden_messages.raises(ImageError):
        read_image(path)
    path.write_bytes(b'')
    with golden_messages.raises(ImageError):
        read_image(path)
    with golden_messages.raises(ImageError):
        read_image(tmp_path / 'gone.png')


@pytest.mark.parametrize('suffix', ['.png', '.jpg'])
def test_truncated_image_is_refused(tmp_path, suffix):
    path = tmp_path / f'a{suffix}'
    noise = np.random.default_rng(1).integers(0, 255, (300, 400, 3), dtype=np.uint8)
    cv2.imwrite(str(path), noise)
    assert read_image(path).shape == noise.shape
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ImageError, match='truncated'):
        read_image(path)


def test_image_is_turned_to_its_annotated_size(tmp_path):
    path = tmp_path / 'a.jpg'
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:, :16] = 255
    encoded = cv2.imencode('.jpg', pixels)[1].tobytes()
    # A big-endian TIFF with one entry: Exif orientation 6 (rotate by 90 degrees clockwise).
    exif = b'Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0'
    segment = b'\xff\xe1' + (len(exif) + 2).to_bytes(2, 'big') + exif
    path.write_bytes(encoded[:2] + segment + encoded[2:])
    upright, stored = read_image(path, (16, 32)), read_image(path, (32, 16))
    assert np.array_equal(upright, read_image(path))
    assert upright.shape == (32, 16, 3)
    assert upright[:12].min() > 200
    assert upright[20:].max() < 50
    assert stored[:, :12].min() > 200
