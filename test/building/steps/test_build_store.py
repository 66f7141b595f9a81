"""Engines that were built before come from the store, as long as they are what they were."""

import hashlib
import json
import os
import time

import pytest

from support.models.detector_models import (
    CLASSES,
    KNOWN,
    check_report,
    listing,
    manifest_beside,
    parsed_models,
    report_of,
    run,
    write_detector,
    write_images,
)
from trt_perception.model.files.model_file import read_model_file

pytest_plugins = ['support.building.build_fixtures']
pytest.importorskip('tensorrt_rtx', reason='needs tensorrt_rtx')
pytestmark = [pytest.mark.engine_build, pytest.mark.usefixtures('own_caches')]


def test_the_same_build_again_comes_from_the_store(tmp_path, capsys, monkeypatch):
    path, images = write_detector(tmp_path), write_images(tmp_path / 'images')
    given = ('--onnx', path, *KNOWN, '--precision', 'int8', '--calibration-images', images)
    given += ('--store', tmp_path / 'store', '--json', tmp_path / 'r.json', '--no-compare-fp16')
    assert run(*given) == 0
    first = listing(tmp_path)
    parsed = parsed_models(monkeypatch)
    engine = tmp_path / 'other.engine'
    assert run(*given, '--output', engine) == 0
    assert parsed == []
    assert 'reused' in capsys.readouterr().out
    assert engine.read_bytes() == first['net.engine']
    report = report_of(tmp_path / 'r.json')
    assert report['reused'] is True
    check_report(report, engine)
    assert report['optimization'] == json.loads(first['r.json'])['optimization']
    manifest = manifest_beside(engine)
    assert manifest.engine.file == 'other.engine'
    assert manifest.build.calibration.images == 10
    read_model_file(engine)  # its manifest fits it
    # Another image, another option, another model: each is another engine.
    (images / '0.png').write_bytes((images / '1.png').read_bytes())
    assert run(*given) == 0
    assert len(parsed) == 1
    assert run(*given, '--keep-float', 'body') == 0
    assert len(parsed) == 2
    write_detector(tmp_path, opset=20)
    assert run(*given) == 0
    assert len(parsed) == 3
    assert run(*given) == 0
    assert len(parsed) == 3


def test_engines_that_nobody_used_leave_the_store(tmp_path):
    path, folder = write_detector(tmp_path), tmp_path / 'store'
    given = ('--onnx', path, *KNOWN, '--store', folder)
    for precision in ('fp16', 'fp32'):
        assert run(*given, '--precision', precision) == 0
    for entry in folder.glob('*/entry.json'):
        os.utime(entry, (time.time() - 10 * 24 * 3600,) * 2)
    assert run(*given, '--precision', 'fp16', '--store-keep-days', '11') == 0
    assert len(list(folder.iterdir())) == 2
    assert run(*given, '--precision', 'fp16', '--store-keep-days', '5') == 0
    (left,) = folder.glob('*/entry.json')
    assert '"asked": "fp16"' in left.with_name('manifest.json').read_text()


def test_a_quantised_model_is_written_though_the_store_has_the_engine(tmp_path, capsys):
    path, images = write_detector(tmp_path), write_images(tmp_path / 'images')
    given = ('--onnx', path, *KNOWN, '--precision', 'int8', '--calibration-images', images)
    given += ('--store', tmp_path / 'store')
    assert run(*given) == 0
    assert run(*given, '--qdq-onnx', tmp_path / 'qdq.onnx') == 0
    assert read_model_file(tmp_path / 'qdq.onnx').manifest.class_names == CLASSES
    assert run(*given) == 0
    assert 'reused' in capsys.readouterr().out


def test_a_damaged_entry_of_the_store_is_made_again(tmp_path, monkeypatch):
    path = write_detector(tmp_path)
    given = ('--onnx', path, *KNOWN, '--store', tmp_path / 'store')
    assert run(*given) == 0
    (entry,) = (tmp_path / 'store').glob('*/model.engine')
    entry.write_bytes(entry.read_bytes()[:-1])
    parsed = parsed_models(monkeypatch)
    assert run(*given) == 0
    assert len(parsed) == 1


@pytest.mark.parametrize('forged', ['engine', 'manifest', 'report', 'deep report'])
def test_a_forged_entry_of_the_store_is_made_again(tmp_path, capsys, monkeypatch, forged):
    """Its own hashes fit; what it holds does not belong together, or cannot be read."""
    path = write_detector(tmp_path)
    given = ('--onnx', path, *KNOWN, '--store', tmp_path / 'store')
    assert run(*given) == 0
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
    assert run(*given) == 0
    assert len(parsed) == 1
    said = capsys.readouterr()
    assert 'stored' in said.out + said.err
    read_model_file(tmp_path / 'net.engine')
