# SPDX-License-Identifier: Apache-2.0
"""Builds reuse engines of the store while model, options and images are unchanged."""

import hashlib
import json
import os
import time

import pytest

from support.folders import contents_by_path
from support.models.detector_models import (
    CLASS_NAMES,
    DECODER_AND_CLASSES_ARGUMENTS,
    check_report,
    int8_arguments,
    parsed_models,
    read_manifest_beside,
    read_report,
    run_build_engine,
    write_detector,
    write_images,
)
from trt_perception.model.files.model_file import read_model_file

pytest_plugins = ['support.building.build_fixtures']
pytest.importorskip('tensorrt_rtx', reason='needs tensorrt_rtx')
pytestmark = [pytest.mark.engine_build, pytest.mark.usefixtures('own_caches')]


def test_same_build_comes_from_the_store(tmp_path, capsys, monkeypatch):
    path, images = write_detector(tmp_path), write_images(tmp_path / 'images')
    arguments = int8_arguments(path, images)
    arguments += (
        '--store',
        tmp_path / 'store',
        '--json',
        tmp_path / 'r.json',
        '--no-compare-fp16',
    )
    assert run_build_engine(*arguments) == 0
    first = contents_by_path(tmp_path)
    parsed = parsed_models(monkeypatch)
    engine = tmp_path / 'other.engine'
    assert run_build_engine(*arguments, '--output', engine) == 0
    assert parsed == []
    assert 'reused' in capsys.readouterr().out
    assert engine.read_bytes() == first['net.engine']
    report = read_report(tmp_path / 'r.json')
    assert report['reused'] is True
    check_report(report, engine)
    assert report['optimization'] == json.loads(first['r.json'])['optimization']
    manifest = read_manifest_beside(engine)
    assert manifest.engine.file == 'other.engine'
    assert manifest.build.calibration.images == 10
    read_model_file(engine)  # checks that the manifest fits the engine
    # A changed image, option or model needs another engine.
    (images / '0.png').write_bytes((images / '1.png').read_bytes())
    assert run_build_engine(*arguments) == 0
    assert len(parsed) == 1
    assert run_build_engine(*arguments, '--keep-float', 'body') == 0
    assert len(parsed) == 2
    write_detector(tmp_path, opset=20)
    assert run_build_engine(*arguments) == 0
    assert len(parsed) == 3
    assert run_build_engine(*arguments) == 0
    assert len(parsed) == 3


def test_unused_engines_are_removed_from_the_store(tmp_path):
    path, folder = write_detector(tmp_path), tmp_path / 'store'
    arguments = ('--onnx', path, *DECODER_AND_CLASSES_ARGUMENTS, '--store', folder)
    for precision in ('fp16', 'fp32'):
        assert run_build_engine(*arguments, '--precision', precision) == 0
    for entry in folder.glob('*/entry.json'):
        os.utime(entry, (time.time() - 10 * 24 * 3600,) * 2)
    assert run_build_engine(*arguments, '--precision', 'fp16', '--store-keep-days', '11') == 0
    assert len(list(folder.iterdir())) == 2
    assert run_build_engine(*arguments, '--precision', 'fp16', '--store-keep-days', '5') == 0
    (remaining,) = folder.glob('*/entry.json')
    assert '"asked": "fp16"' in remaining.with_name('manifest.json').read_text()


def test_qdq_file_is_written_even_if_the_store_has_the_engine(tmp_path, capsys):
    path, images = write_detector(tmp_path), write_images(tmp_path / 'images')
    arguments = int8_arguments(path, images)
    arguments += ('--store', tmp_path / 'store')
    assert run_build_engine(*arguments) == 0
    assert run_build_engine(*arguments, '--qdq-onnx', tmp_path / 'qdq.onnx') == 0
    assert read_model_file(tmp_path / 'qdq.onnx').manifest.class_names == CLASS_NAMES
    assert run_build_engine(*arguments) == 0
    assert 'reused' in capsys.readouterr().out


def test_damaged_store_entry_is_replaced(tmp_path, monkeypatch):
    path = write_detector(tmp_path)
    arguments = ('--onnx', path, *DECODER_AND_CLASSES_ARGUMENTS, '--store', tmp_path / 'store')
    assert run_build_engine(*arguments) == 0
    (entry,) = (tmp_path / 'store').glob('*/model.engine')
    entry.write_bytes(entry.read_bytes()[:-1])
    parsed = parsed_models(monkeypatch)
    assert run_build_engine(*arguments) == 0
    assert len(parsed) == 1


@pytest.mark.parametrize('forged', ['engine', 'manifest', 'report', 'deep report'])
def test_inconsistent_store_entry_is_replaced(tmp_path, capsys, monkeypatch, forged):
    """The hashes match, but a part of the entry is invalid or belongs to another engine."""
    path = write_detector(tmp_path)
    arguments = ('--onnx', path, *DECODER_AND_CLASSES_ARGUMENTS, '--store', tmp_path / 'store')
    assert run_build_engine(*arguments) == 0
    (entry,) = (tmp_path / 'store').glob('*/entry.json')
    name = {'engine': 'model.engine', 'manifest': 'manifest.json'}.get(forged, 'report.json')
    content = {
        'engine': b'ftrt another plan',
        'manifest': b'{}',
        'report': b'{"warnings": 3}',
        'deep report': b'[' * 100_000,
    }[forged]
    entry.with_name(name).write_bytes(content)
    facts = json.loads(entry.read_bytes())
    facts['sha256'][forged.split()[-1]] = hashlib.sha256(content).hexdigest()
    entry.write_text(json.dumps(facts))
    parsed = parsed_models(monkeypatch)
    assert run_build_engine(*arguments) == 0
    assert len(parsed) == 1
    printed = capsys.readouterr()
    assert 'stored' in printed.out + printed.err
    read_model_file(tmp_path / 'net.engine')
