"""Bad models and options of build_engine: each has its message and code, and leaves nothing."""

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
from onnx import helper

from support.models.detector_models import (
    KNOWN,
    detector_model,
    parsed_models,
    report_of,
    run,
    write_detector,
)
from trt_perception.building.engine import release as tensorrt_release
from trt_perception.building.engine.capabilities import check_operators
from trt_perception.errors import EngineError
from trt_perception.model.manifest import manifest_path

pytest.importorskip('tensorrt_rtx', reason='needs tensorrt_rtx')
pytest_plugins = ['support.building.build_fixtures']
INT8 = ('--precision', 'int8')
ROOT = Path(__file__).parents[3]


pytestmark = pytest.mark.usefixtures('own_caches')


def test_packages_of_the_extra_that_are_missing():
    code = (
        'import sys; sys.modules["onnx"] = None; '
        'from trt_perception.tools.build_engine import main; sys.exit(main(["--help"]))'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith('build_engine: building engines: needs onnx, not installed')
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_while_tensorrt_is_imported(monkeypatch):
    """Its import makes another error of whatever a signal handler raises in it."""

    def importing(name):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError(name) from None
        return real(name)

    real = tensorrt_release.importlib.import_module
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(tensorrt_release.importlib, 'import_module', importing)
    with pytest.raises(KeyboardInterrupt):
        tensorrt_release.find_tensorrt('tensorrt_rtx')
    assert signal.getsignal(signal.SIGINT) is before


def test_no_such_onnx(tmp_path, refused):
    message = refused('--onnx', tmp_path / 'none.onnx', code=2)
    assert 'none.onnx: cannot be opened: No such file' in message


def test_onnx_that_is_cut_off(tmp_path, refused):
    path = write_detector(tmp_path)
    path.write_bytes(path.read_bytes()[:-2000])
    assert 'is cut off after' in refused('--onnx', path, *KNOWN)


def test_something_else_than_onnx(tmp_path, refused):
    path = tmp_path / 'net.pt'
    path.write_bytes(b'PK')
    assert 'ends in .onnx' in refused('--onnx', path, code=2)


@pytest.mark.parametrize('domain', ['', 'mine'])
def test_operators_that_tensorrt_does_not_know(tmp_path, refused, domain):
    odd = helper.make_node('OddOp', ['images'], ['x'], name='layer7/odd', domain=domain)
    path = write_detector(tmp_path, before=[odd])
    message = refused('--onnx', path, *KNOWN)
    assert 'OddOp at layer7/odd' in message
    assert '--plugins' in message


def test_nms_inside_is_refused_before_anything_is_calibrated(tmp_path, refused):
    nodes = [
        helper.make_node('NonZero', ['images'], ['places']),
        helper.make_node('Identity', ['images'], ['x']),
    ]
    path = write_detector(tmp_path, before=nodes)
    message = refused('--onnx', path, *KNOWN)
    assert 'does not have these operators of the model: NonZero' in message
    assert 'without nms=True' in message


@pytest.mark.parametrize(
    ('is_rtx', 'release', 'plugins', 'operators', 'says'),
    [
        (True, (1, 7), (), ['Conv', 'NonZero'], True),
        (True, (1, 4), (), ['NonZero'], True),
        (True, (1, 8), (), ['NonZero'], False),
        (True, (1, 7), ('own.so',), ['NonZero'], False),
        (True, (1, 7), (), ['Conv'], False),
        (False, (10, 3), (), ['NonZero'], False),
    ],
)
def test_operators_that_a_release_lacks(is_rtx, release, plugins, operators, says):
    tensorrt = SimpleNamespace(is_rtx=is_rtx, release=release, label='this one')
    options = SimpleNamespace(plugins=plugins)
    refused = pytest.raises(EngineError, match='NonZero') if says else contextlib.nullcontext()
    with refused:
        check_operators(tensorrt, options, 'x.onnx', operators)


def test_open_sides_without_shapes(tmp_path, refused):
    path = write_detector(tmp_path, sides=('n', 3, 64, 64))
    assert '--batch 1 does where only the first is open' in refused('--onnx', path, *KNOWN)
    path = write_detector(tmp_path, sides=(1, 3, 'h', 'w'))
    assert 'leaves sides open (1x3x?x?); give --shapes' in refused('--onnx', path, *KNOWN)


@pytest.mark.parametrize(
    ('options', 'says'),
    [
        (('--shapes', '1x3x32x32'), 'expected 1x3x64x64'),
        (('--batch', '2'), 'expected 1x3x64x64'),
        (('--input-size', '32x32'), 'expected 1x3x64x64'),
    ],
)
def test_shapes_that_the_model_does_not_take(tmp_path, refused, options, says):
    assert says in refused('--onnx', write_detector(tmp_path), *KNOWN, *options)


def test_shapes_that_are_none(tmp_path, refused):
    path = write_detector(tmp_path, sides=('n', 3, 64, 64))
    message = refused('--onnx', path, '--shapes', '4x3x64x64:1x3x64x64:8x3x64x64', code=2)
    assert 'min' in message


def test_more_than_one_image_input(tmp_path, refused):
    model = detector_model()
    model.graph.input.add().CopyFrom(model.graph.input[0])
    model.graph.input[1].name = 'mask'
    onnx.save_model(model, tmp_path / 'net.onnx')
    assert 'one image input' in refused('--onnx', tmp_path / 'net.onnx', *KNOWN)


def test_outputs_that_nobody_can_read(tmp_path, refused):
    path = write_detector(tmp_path).rename(tmp_path / 'model.onnx')
    message = refused('--onnx', path)
    assert 'model.onnx: there is no manifest (model.onnx.json)' in message
    assert 'these are unknown: --class-names' in message
    assert 'model.' not in message.replace('model.onnx', '')
    assert 'parameter' not in message


def test_what_the_loader_would_refuse_is_not_built(tmp_path, refused, monkeypatch):
    """The manifest beside the model is right; the options are not."""
    parsed = parsed_models(monkeypatch)
    digits = ROOT / 'models' / 'digits.onnx'
    given = ('--onnx', digits, '--output', tmp_path / 'x.engine')
    qdq = (*INT8, '--calibration-images', ROOT / 'demo' / 'scenes')
    qdq += ('--qdq-onnx', tmp_path / 'q.onnx')
    for more in ((), qdq):
        message = refused(*given, *more, '--class-names', 'a', 'b', 'c')
        assert 'as the decoder dense (objectness false, transposed false) reads' in message
        assert 'with 3 classes and the task detect (got output0 float32[1, 14, 6000])' in message
        assert 'the decoder dense' in refused(*given, *more, '--decoder', 'yolox')
        assert 'the decoder detr' in refused(*given, *more, '--decoder', 'detr')
    assert parsed == []


def test_a_manifest_that_does_not_fit_its_model(tmp_path, refused):
    digits = ROOT / 'models' / 'digits.onnx'
    (tmp_path / 'digits.onnx').write_bytes(digits.read_bytes())
    manifest = json.loads(manifest_path(digits).read_text())
    manifest['class_names'] = manifest['class_names'][:3]
    manifest_path(tmp_path / 'digits.onnx').write_text(json.dumps(manifest))
    assert 'with 3 classes' in refused('--onnx', tmp_path / 'digits.onnx')


@pytest.mark.parametrize(
    ('kind', 'says'),
    [
        ('gray', 'expected an image of 3 channels'),
        ('uint8', 'expected --scale 1, --mean 0 and --std 1'),
    ],
)
def test_inputs_that_no_pipeline_feeds(tmp_path, refused, kind, says):
    if kind == 'gray':
        three = helper.make_node('Concat', ['images'] * 3, ['x'], axis=1)
        model = detector_model((1, 1, 64, 64), before=[three])
    else:
        cast = helper.make_node('Cast', ['images'], ['x'], to=onnx.TensorProto.FLOAT)
        model = detector_model(before=[cast])
        model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    onnx.save_model(model, tmp_path / 'net.onnx')
    assert says in refused('--onnx', tmp_path / 'net.onnx', *KNOWN)


def test_an_engine_instead_of_a_model(tmp_path, refused):
    """Whichever release built it: an engine is no source of another."""
    engine = tmp_path / 'old.engine'
    engine.write_bytes(b'ftrt' + bytes(20) + bytes((10, 3, 0, 26)) + bytes(100))
    assert "expected an ONNX model, whose name ends in .onnx (got 'old.engine')" in refused(
        *('--onnx', engine, '--output', tmp_path / 'new.engine'), code=2
    )
    named = engine.rename(tmp_path / 'old.onnx')
    assert 'is a TensorRT engine already' in refused('--onnx', named)


def test_patterns_that_match_nothing(tmp_path, refused):
    path = write_detector(tmp_path)
    message = refused('--onnx', path, *KNOWN, '--keep-fp32', 'haed', code=2)
    assert "'haed'" in message
    assert 'head' in message


def test_plugins_that_are_not_there_are_told_first(tmp_path, refused):
    given = ('--onnx', tmp_path / 'none.onnx', '--plugins', tmp_path / 'none.so')
    assert f'--plugins {tmp_path / "none.so"}: cannot be opened' in refused(*given, code=2)


def test_build_yaml_with_an_unknown_option(tmp_path, refused):
    write_detector(tmp_path)
    config = tmp_path / 'build.yaml'
    config.write_text('onnx: net.onnx\nprecison: int8\n')
    message = refused('--config', config, code=2)
    assert f"{config}, line 2: 'precison': is not an option; did you mean 'precision'?" in message


def test_unknown_words_on_the_command_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        run('--onnx', tmp_path / 'x.onnx', '--presicion', 'int8')
    assert caught.value.code == 2
    assert '--presicion' in capsys.readouterr().err


def test_the_report_tells_of_the_failure_too(tmp_path, capsys):
    path = write_detector(tmp_path, sides=('n', 3, 64, 64))
    assert run('--onnx', path, *KNOWN, '--json', tmp_path / 'report.json') == 1
    report = report_of(tmp_path / 'report.json')
    assert report['operation'] == 'build_engine'
    assert report['status'] == 'failed'
    assert 'leaves sides open' in report['error']
    assert report['error'] in capsys.readouterr().err
    assert report['output_engine'] is None
    assert report['steps'][-1]['status'] == 'failed'
    assert report['steps'][0]['status'] == 'done'
