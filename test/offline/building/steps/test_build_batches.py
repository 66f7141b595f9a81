# SPDX-License-Identifier: Apache-2.0
"""build_engine --batch builds an engine for batches of images from several cameras."""

from pathlib import Path

import pytest

from support.models.batch_models import write_digits_twin
from support.models.detector_models import (
    DECODER_AND_CLASSES_ARGUMENTS,
    read_manifest_beside,
    read_report,
    run_build_engine,
    write_detector,
)
from support.models.digits import DIGITS
from trt_perception.model.manifest import rebuild_command
from trt_perception.offline.tools import inspect_engine

pytest_plugins = ['support.building.build_fixtures']
pytest.importorskip('tensorrt_rtx', reason='needs tensorrt_rtx')
pytestmark = [pytest.mark.engine_build, pytest.mark.usefixtures('reuse_equal_results')]


def ranges(manifest):
    """Return the minimum, optimum and maximum batch size of each profile."""
    return [
        tuple(shape[0] for shape in (p['images'].min, p['images'].opt, p['images'].max))
        for p in manifest.build.profiles
    ]


@pytest.mark.parametrize('precision', ['fp16', 'int8'])
def test_each_batch_size_has_its_own_profile(tmp_path, precision, capsys):
    path = write_digits_twin(tmp_path / 'digits.onnx', 0)
    engine, report = tmp_path / 'digits.engine', tmp_path / 'r.json'
    arguments = ['--onnx', path, '--precision', precision, '--json', report, '--batch', '8,1,4']
    if precision == 'int8':
        arguments += ['--calibration-images', DIGITS.parents[1] / 'test' / 'data' / 'calibration']
        arguments += ['--calibration-count', '8', '--no-compare-fp16']
    assert run_build_engine(*arguments) == 0
    printed = capsys.readouterr().out
    assert '1x3x480x640, 4x3x480x640, 8x3x480x640; letterbox' in printed
    assert not [text for text in read_report(report)['warnings'] if 'cameras' in text]
    manifest = read_manifest_beside(engine)
    assert ranges(manifest) == [(n, n, n) for n in (1, 4, 8)]
    assert {tensor.shape[0] for tensor in (*manifest.inputs, *manifest.outputs)} == {-1}
    assert manifest.build.options['batch'] == (1, 4, 8)
    assert '--batch 1 4 8' in rebuild_command(manifest, engine)
    assert read_report(report)['configuration']['options']['batch'] == [1, 4, 8]
    assert inspect_engine.main([str(engine), '--no-gpu']) == 0
    assert '  1, 4, 8\n' in capsys.readouterr().out


def test_single_batch_size_above_1_gives_a_warning(tmp_path, capsys, golden_messages):
    path = write_detector(tmp_path, sides=('n', 3, 64, 64))
    assert (
        run_build_engine(
            '--onnx',
            path,
            *DECODER_AND_CLASSES_ARGUMENTS,
            '--batch',
            '4',
            '--json',
            tmp_path / 'r.json',
        )
        == 0
    )
    (warning,) = [text for text in read_report(tmp_path / 'r.json')['warnings'] if ' 4 ' in text]
    golden_messages.add(warning)
    engine = Path(path).with_suffix('.engine')
    assert ranges(read_manifest_beside(engine)) == [(4, 4, 4)]
    assert inspect_engine.main([str(engine), '--no-gpu']) == 0
    assert '  4\n' in capsys.readouterr().out


def test_model_with_a_fixed_batch_is_refused_with_a_fix(tmp_path, build_error, golden_messages):
    path = write_detector(tmp_path)
    golden_messages.add(
        build_error('--onnx', path, *DECODER_AND_CLASSES_ARGUMENTS, '--batch', '1,4')
    )
    golden_messages.add(
        build_error('--onnx', path, *DECODER_AND_CLASSES_ARGUMENTS, '--batch', '1,four', code=2)
    )
