"""What a build does once: each folder listed, each file read, each manifest described."""

from __future__ import annotations

import collections
import os
import sys
from pathlib import Path

import pytest

from support.models.detector_models import KNOWN, run, write_detector, write_images
from trt_perception.building import engine_manifest
from trt_perception.building.calibration.images import find_image_files

pytest.importorskip('tensorrt_rtx', reason='needs tensorrt_rtx')
pytestmark = pytest.mark.engine_build

_COUNTS: list[collections.Counter] = []


def _count(event, arguments):
    if _COUNTS and event in ('open', 'os.scandir') and isinstance(arguments[0], str | os.PathLike):
        _COUNTS[-1][event, Path(arguments[0])] += 1


sys.addaudithook(_count)  # stays for the life of the process; counts while a test asks for it


@pytest.fixture
def counted(monkeypatch, tmp_path_factory):
    """Return a count of what is opened and listed, by path."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))
    _COUNTS.append(collections.Counter())
    yield _COUNTS[-1]
    _COUNTS.pop()


def reads(counted, folder):
    """Return how often the images of a folder were read; one number where it is the same."""
    (times,) = {counted['open', path] for path in folder.iterdir()}
    return times


def as_often_as_one_search(counted, folder):
    during_the_build = counted['os.scandir', folder]
    find_image_files(folder)
    return counted['os.scandir', folder] == 2 * during_the_build


def test_each_image_is_read_once_for_each_purpose(tmp_path, counted):
    path = write_detector(tmp_path)
    calibration = write_images(tmp_path / 'calibration', 10)
    validation = write_images(tmp_path / 'validation', 4)
    given = ('--onnx', path, *KNOWN, '--precision', 'int8', '--calibration-images', calibration)
    counted.clear()
    assert run(*given, '--validate', validation) == 0
    assert counted['open', path] == 1
    assert reads(counted, calibration) == 2  # for the hash, and to calibrate
    assert reads(counted, validation) == 2  # by the original and by what was built
    assert as_often_as_one_search(counted, calibration)
    assert as_often_as_one_search(counted, validation)


def test_images_of_a_build_from_the_store_are_only_hashed(tmp_path, counted):
    path = write_detector(tmp_path)
    calibration = write_images(tmp_path / 'calibration', 10)
    validation = write_images(tmp_path / 'validation', 4)
    given = ('--onnx', path, *KNOWN, '--precision', 'int8', '--calibration-images', calibration)
    given += ('--validate', validation, '--store', tmp_path / 'store', '--no-compare-fp16')
    assert run(*given) == 0
    assert (reads(counted, calibration), reads(counted, validation)) == (2, 3)
    counted.clear()
    assert run(*given) == 0
    assert (reads(counted, calibration), reads(counted, validation)) == (1, 1)
    assert counted['open', path] == 1


def test_a_cached_calibration_decodes_no_image(tmp_path, counted):
    path = write_detector(tmp_path)
    images = write_images(tmp_path / 'calibration', 10)
    given = ('--onnx', path, *KNOWN, '--precision', 'int8', '--calibration-images', images)
    given += ('--no-compare-fp16',)
    assert run(*given) == 0
    first = reads(counted, images)
    counted.clear()
    assert run(*given) == 0
    assert reads(counted, images) == first - 1


def test_the_manifest_of_the_engine_is_described_once(tmp_path, monkeypatch, counted):
    described = []
    real = engine_manifest.with_description
    monkeypatch.setattr(
        engine_manifest,
        'with_description',
        lambda file, *more: described.append(file.path.name) or real(file, *more),
    )
    assert run('--onnx', write_detector(tmp_path), *KNOWN) == 0
    assert described == ['net.engine']
