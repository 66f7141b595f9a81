"""Ranges are used again exactly where everything is as it was."""

import json
import os
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import small_detectors

from trt_perception.building.precision import calibration_cache
from trt_perception.building.precision.calibration_cache import CacheKey
from trt_perception.building.precision.calibration_cache import read_ranges
from trt_perception.building.precision.calibration_cache import write_ranges
from trt_perception.building.precision.calibration_images import select_images
from trt_perception.building.precision.quantise import quantise
from trt_perception.model.preprocessing import Preprocessing

SCENES = Path(__file__).resolve().parents[1] / 'data/calibration'
SMALL = Preprocessing(input_size=(64, 64))
KEY = CacheKey(model='a1' * 32, images='b2', preprocessing='c3', method='minmax', version='1')
RANGES = {'x': 1.5, 'y': 0.0}


def test_the_second_calibration_takes_the_ranges_of_the_first(tmp_path):
    model, *_ = small_detectors.anchor_free()
    images = select_images(SCENES, 8)
    ran = []

    def again(**changes):
        settings = {
            'model': model,
            'preprocessing': SMALL,
            'images': images,
            'cache_dir': tmp_path / 'new' / 'folder',
            'progress': lambda step, _done, _count: ran.append(step),
            **changes,
        }
        ran.clear()
        return quantise(**settings)

    first = again()
    assert first.report.cache.startswith('computed: no cache')
    assert 'calibrating' in ran
    second = again()
    assert second.report.cache.startswith('reused: ')
    assert 'calibrating' not in ran
    assert second.model == first.model
    assert again(cache_dir=None).report.cache == 'off'
    other = again(images=select_images(SCENES, 9))
    assert 'made from other images' in other.report.cache
    again()
    assert 'other preprocessing' in again(preprocessing=replace(SMALL, scale=1.0)).report.cache
    # The ranges of another method and of another model have files of their own.
    assert 'no cache' in again(method='percentile').report.cache
    changed, *_ = small_detectors.anchor_free(opset=18)
    changed.graph.initializer[0].raw_data = bytes(len(changed.graph.initializer[0].raw_data))
    assert 'no cache' in again(model=changed).report.cache
    assert len(list((tmp_path / 'new' / 'folder').iterdir())) == 3


def test_what_is_written_is_read(tmp_path):
    assert write_ranges(tmp_path, KEY, RANGES) == ''
    found, sentence = read_ranges(tmp_path, KEY, ['y', 'x'])
    assert found == RANGES
    assert sentence == f'reused: {KEY.file(tmp_path)}'
    assert [path.name for path in tmp_path.iterdir()] == ['a1a1a1a1a1a1a1a1-minmax.json']
    assert read_ranges(tmp_path, KEY, ['x'])[0] == {'x': 1.5}
    assert 'lacks 1 of 2 tensors' in read_ranges(tmp_path, KEY, ['x', 'z'])[1]


@pytest.mark.parametrize(
    ('field', 'value', 'said'),
    [
        ('model', 'a1' * 31 + 'ff', 'another model'),
        ('images', 'ff', 'other images'),
        ('preprocessing', 'ff', 'other preprocessing'),
        ('method', 'minmax 2', 'another method'),
        ('version', '2', 'another version of this tool'),
    ],
)
def test_what_differs_is_said(tmp_path, field, value, said):
    write_ranges(tmp_path, KEY, RANGES)
    found, sentence = read_ranges(tmp_path, replace(KEY, **{field: value}), ['x'])
    assert found is None
    assert sentence.endswith(f'was made from {said}')


@pytest.mark.parametrize(
    'content',
    [
        b'',
        b'{',
        b'[]',
        b'null',
        b'\xff\xfe',
        b'{"key": {}, "ranges": []}',
        b'{"key": [], "ranges": {}}',
        b'[' * 100_000,
        json.dumps({'key': vars(KEY), 'ranges': {'x': float('nan')}}).encode(),
        json.dumps({'key': vars(KEY), 'ranges': {'x': -1}}).encode(),
        json.dumps({'key': vars(KEY), 'ranges': {'x': True}}).encode(),
        json.dumps({'key': vars(KEY), 'ranges': {'x': '1'}}).encode(),
        json.dumps({'key': vars(KEY)}).encode(),
    ],
)
def test_a_damaged_cache_is_said_and_not_used(tmp_path, content):
    KEY.file(tmp_path).write_bytes(content)
    found, sentence = read_ranges(tmp_path, KEY, ['x'])
    assert found is None
    assert 'is damaged' in sentence or 'another version' in sentence
    assert str(KEY.file(tmp_path)) in sentence


def test_a_huge_cache_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(calibration_cache, '_MOST_BYTES', 50)
    write_ranges(tmp_path, KEY, RANGES)
    assert 'at most 50 bytes' in read_ranges(tmp_path, KEY, ['x'])[1]


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    folder = tmp_path / 'file'
    folder.write_text('')
    assert 'not kept' in write_ranges(folder, KEY, RANGES)
    assert 'cannot be read' in read_ranges(folder, KEY, ['x'])[1]


def test_nothing_is_left_of_a_write_that_failed(tmp_path, monkeypatch):
    write_ranges(tmp_path, KEY, RANGES)

    def full(_descriptor):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(os, 'fsync', full)
    assert 'No space left' in write_ranges(tmp_path, KEY, {'x': 9.0})
    assert read_ranges(tmp_path, KEY, ['x'])[0] == {'x': 1.5}
    assert len(list(tmp_path.iterdir())) == 1


def test_the_key_follows_what_it_is_made_of():
    model, *_ = small_detectors.raw_maps()
    images = select_images(SCENES, 8)
    key = CacheKey.of(model, images, SMALL, 'minmax')
    assert key == CacheKey.of(
        onnx.load_from_string(model.SerializeToString()), images, SMALL, 'minmax'
    )
    changed = replace(SMALL, color_order='bgr')
    assert CacheKey.of(model, images, changed, 'minmax').preprocessing != key.preprocessing
    model.graph.node[0].name += 'x'
    assert CacheKey.of(model, images, SMALL, 'minmax').model != key.model
