# SPDX-License-Identifier: Apache-2.0
"""A build lists each folder once, reads each file once and describes the manifest once."""

from __future__ import annotations

import collections
import os
import sys
from pathlib import Path

import pytest

from support.models.detector_models import (
    DECODER_AND_CLASSES_ARGUMENTS,
    int8_arguments,
    run_build_engine,
    write_detector,
    write_images,
)
from trt_perception.images.bag_images import bag_losses
from trt_perception.offline.building import engine_manifest
from trt_perception.offline.building.calibration.images import find_image_files

pytest.importorskip('tensorrt_rtx', reason='needs tensorrt_rtx')
pytestmark = pytest.mark.engine_build

_COUNTS: list[collections.Counter] = []


#: Maps audit events to what they do. Path.iterdir and Path.glob list folders with os.listdir or
#: os.scandir, depending on the version of Python.
_EVENTS = {'open': 'open', 'os.listdir': 'list', 'os.scandir': 'list'}


def _count_event(event, arguments):
    if _COUNTS and event in _EVENTS and isinstance(arguments[0], str | os.PathLike):
        _COUNTS[-1][_EVENTS[event], Path(arguments[0])] += 1


sys.addaudithook(_count_event)  # the hook is permanent, but counts only in a test


@pytest.fixture
def file_counts(monkeypatch, tmp_path_factory):
    """Return the number of file openings and folder listings, by path."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))
    _COUNTS.append(collections.Counter())
    yield _COUNTS[-1]
    _COUNTS.pop()


def reads(file_counts, folder):
    """Return how often each image of a folder was read. All images must have the same count."""
    (times,) = {file_counts['open', path] for path in folder.iterdir()}
    return times


def is_listed_once(file_counts, folder):
    during_the_build = file_counts['list', folder]
    find_image_files(folder)
    bag_losses(folder)  # looks for images, because a folder with images is no bag
    return file_counts['list', folder] == 2 * during_the_build


def test_each_image_is_read_once_for_each_purpose(tmp_path, file_counts):
    path = write_detector(tmp_path)
    calibration = write_images(tmp_path / 'calibration', 10)
    validation = write_images(tmp_path / 'validation', 4)
    build_arguments = int8_arguments(path, calibration)
    file_counts.clear()
    assert run_build_engine(*build_arguments, '--validate', validation) == 0
    # These lines come first, because reads() lists the folders, too.
    assert is_listed_once(file_counts, calibration)
    assert is_listed_once(file_counts, validation)
    assert file_counts['open', path] == 1
    assert reads(file_counts, calibration) == 2  # the hash and the calibration read each image
    assert reads(file_counts, validation) == 2  # the original and the built model read each image


def test_images_of_a_build_from_the_store_are_only_hashed(tmp_path, file_counts):
    path = write_detector(tmp_path)
    calibration = write_images(tmp_path / 'calibration', 10)
    validation = write_images(tmp_path / 'validation', 4)
    build_arguments = int8_arguments(path, calibration)
    build_arguments += (
        '--validate',
        validation,
        '--store',
        tmp_path / 'store',
        '--no-compare-fp16',
    )
    assert run_build_engine(*build_arguments) == 0
    assert (reads(file_counts, calibration), reads(file_counts, validation)) == (2, 3)
    file_counts.clear()
    assert run_build_engine(*build_arguments) == 0
    assert (reads(file_counts, calibration), reads(file_counts, validation)) == (1, 1)
    assert file_counts['open', path] == 1


def test_cached_calibration_decodes_no_images(tmp_path, file_counts):
    path = write_detector(tmp_path)
    images = write_images(tmp_path / 'calibration', 10)
    build_arguments = int8_arguments(path, images)
    build_arguments += ('--no-compare-fp16',)
    assert run_build_engine(*build_arguments) == 0
    first = reads(file_counts, images)
    file_counts.clear()
    assert run_build_engine(*build_arguments) == 0
    assert reads(file_counts, images) == first - 1


def test_engine_manifest_is_described_once(tmp_path, monkeypatch, file_counts):
    described = []
    real = engine_manifest.with_description
    monkeypatch.setattr(
        engine_manifest,
        'with_description',
        lambda file, *other_arguments: (
            described.append(file.path.name) or real(file, *other_arguments)
        ),
    )
    assert (
        run_build_engine('--onnx', write_detector(tmp_path), *DECODER_AND_CLASSES_ARGUMENTS) == 0
    )
    assert described == ['net.engine']
