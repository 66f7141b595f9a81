# SPDX-License-Identifier: Apache-2.0
"""Tests of the cache of calibration ranges: ranges are reused only for equal inputs."""

import json
import os
from dataclasses import replace

import onnx
import pytest

from support.models import small_detectors
from support.models.digits import CALIBRATION_IMAGES
from support.models.scaled_models import SMALL_PREPROCESSING
from trt_perception.offline.building.calibration import cache as calibration_cache
from trt_perception.offline.building.calibration import images as calibration_images
from trt_perception.offline.building.calibration.cache import (
    cache_path,
    calibration_identity,
    read_ranges,
    write_ranges,
)
from trt_perception.offline.building.calibration.images import CalibrationImages, select_images
from trt_perception.offline.building.precision.quantise import quantise

RANGES = {'x': 1.5, 'y': 0.0}


def test_second_calibration_reuses_ranges(tmp_path):
    model, *_ = small_detectors.anchor_free()
    images = select_images(CALIBRATION_IMAGES, 8)
    ran = []

    def again(model=model, images=images, preprocessing=SMALL_PREPROCESSING, **changes):
        ran.clear()
        checked = CalibrationImages(images, preprocessing, lambda step, *_: ran.append(step))
        return quantise(model, checked, **{'cache_dir': tmp_path / 'new' / 'folder', **changes})

    first = again()
    assert first.report.cache.startswith('not reused: ')
    assert 'calibrating' in ran
    second = again()
    assert second.report.cache.startswith('reused: ')
    assert 'calibrating' not in ran
    assert second.model == first.model
    assert again(cache_dir=None).report.cache == 'off'
    # A change of any input needs another cache file.
    changed, *_ = small_detectors.anchor_free(opset=18)
    changed.graph.initializer[0].raw_data = bytes(len(changed.graph.initializer[0].raw_data))
    for change in (
        {'images': select_images(CALIBRATION_IMAGES, 9)},
        {'preprocessing': replace(SMALL_PREPROCESSING, scale=1.0)},
        {'method': 'percentile'},
        {'model': changed},
    ):
        assert again(**change).report.cache.startswith('not reused: ')
        assert 'calibrating' in ran
    assert again().report.cache.startswith('reused: ')
    assert len(list((tmp_path / 'new' / 'folder').iterdir())) == 5


def test_two_equal_calibrations_decode_each_image_once(monkeypatch, tmp_path):
    model, *_ = small_detectors.raw_maps()
    images = select_images(CALIBRATION_IMAGES, 8)
    decode, read = calibration_images.read_image, []

    def counted(path):
        read.append(path)
        return decode(path)

    monkeypatch.setattr(calibration_images, 'read_image', counted)
    for _ in range(2):
        quantise(model, CalibrationImages(images, SMALL_PREPROCESSING), cache_dir=tmp_path)
    assert read == list(images.paths)


def test_written_ranges_are_read_back(tmp_path, golden_messages):
    path = tmp_path / 'ranges.json'
    assert write_ranges(path, RANGES) == ''
    found, sentence = read_ranges(path, ['y', 'x'])
    assert found == RANGES
    assert sentence == f'reused: {path}'
    assert list(tmp_path.iterdir()) == [path]
    assert read_ranges(path, ['x'])[0] == {'x': 1.5}
    found, sentence = read_ranges(path, ['x', 'z'])
    assert found is None
    golden_messages.add(sentence)


def test_each_input_changes_the_name_of_the_cache_file(tmp_path):
    model, *_ = small_detectors.raw_maps()
    identity = calibration_identity(
        model, select_images(CALIBRATION_IMAGES, 8), SMALL_PREPROCESSING
    )
    parts = [(identity, 'minmax', 1), (identity, 'minmax', 2), (identity, 'entropy', 1)]
    names = {cache_path(tmp_path, 'json', *each) for each in parts}
    names.add(cache_path(tmp_path, 'tensorrt', *parts[0]))
    assert len(names) == 4
    assert {path.parent for path in names} == {tmp_path}
    assert cache_path(None, 'json', *parts[0]) is None


@pytest.mark.parametrize(
    'content',
    [
        b'',
        b'{',
        b'[]',
        b'null',
        b'\xff\xfe',
        b'"x"',
        b'1',
        b'{}',
        b'[' * 100_000,
        *(json.dumps({'x': value}).encode() for value in (float('nan'), -1, True, '1', None, [1])),
        # below 0, or above the largest finite number of float32
        *(json.dumps({'x': value}).encode() for value in (1e39, 10**400, float('inf'), -1e-45)),
    ],
)
def test_damaged_cache_is_reported_and_not_used(tmp_path, content):
    path = tmp_path / 'ranges.json'
    path.write_bytes(content)
    found, sentence = read_ranges(path, ['x'])
    assert found is None
    assert str(path) in sentence


def test_huge_cache_is_not_read(tmp_path, monkeypatch, golden_messages):
    path = tmp_path / 'ranges.json'
    write_ranges(path, RANGES)
    monkeypatch.setattr(calibration_cache, '_MAX_BYTES', 9)
    golden_messages.add(read_ranges(path, ['x'])[1])


def test_cache_that_cannot_be_written_or_read_raises_no_error(tmp_path, golden_messages):
    folder = tmp_path / 'file'
    folder.write_text('')
    golden_messages.add(write_ranges(folder / 'ranges.json', RANGES))
    golden_messages.add(read_ranges(folder / 'ranges.json', ['x'])[1])


def test_failed_write_leaves_no_files(tmp_path, monkeypatch):
    path = tmp_path / 'ranges.json'
    write_ranges(path, RANGES)

    def full(_descriptor):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(os, 'fsync', full)
    assert 'No space left' in write_ranges(path, {'x': 9.0})
    assert read_ranges(path, ['x'])[0] == {'x': 1.5}
    assert len(list(tmp_path.iterdir())) == 1


def test_calibration_identity_changes_with_each_input(monkeypatch):
    model, *_ = small_detectors.raw_maps()
    images = select_images(CALIBRATION_IMAGES, 8)
    identity = calibration_identity(model, images, SMALL_PREPROCESSING)
    copied = onnx.load_from_string(model.SerializeToString())
    assert calibration_identity(copied, images, SMALL_PREPROCESSING) == identity
    changed = replace(SMALL_PREPROCESSING, color_order='bgr')
    assert calibration_identity(model, images, changed) != identity
    assert (
        calibration_identity(model, select_images(CALIBRATION_IMAGES, 9), SMALL_PREPROCESSING)
        != identity
    )
    with monkeypatch.context() as context:
        context.setattr(
            calibration_cache, 'package_versions', lambda names: dict.fromkeys(names, '99.0')
        )
        assert calibration_identity(model, images, SMALL_PREPROCESSING) != identity
    model.graph.node[0].name += 'x'
    assert calibration_identity(model, images, SMALL_PREPROCESSING) != identity
