# SPDX-License-Identifier: Apache-2.0
"""build_engine refuses bad models and options with a message and a code, and changes no file."""

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

from support import golden
from support.building.messages import text_of_messages
from support.models.detector_models import (
    DECODER_AND_CLASSES_ARGUMENTS,
    detector_model,
    parsed_models,
    read_report,
    run_build_engine,
    write_detector,
)
from trt_perception.errors import EngineError
from trt_perception.model.manifest import manifest_path
from trt_perception.offline.building.engine import release as tensorrt_release
from trt_perception.offline.building.engine.capabilities import check_operators
from trt_perception.offline.building.steps import model_steps

pytest.importorskip('tensorrt_rtx', reason='needs tensorrt_rtx')
pytest_plugins = ['support.building.build_fixtures']
INT8 = ('--precision', 'int8')
ROOT = Path(__file__).parents[4]


pytestmark = pytest.mark.usefixtures('own_caches')


def test_missing_build_packages_are_reported():
    code = (
        'import sys; sys.modules["onnx"] = None; '
        'from trt_perception.offline.tools.build_engine import main; sys.exit(main(["--help"]))'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith('build_engine: building engines: needs the package onnx')
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_during_the_tensorrt_import_stops_the_build(monkeypatch):
    """While TensorRT is imported, an exception of a signal handler becomes another error."""

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


def test_missing_plugin_library_is_refused_before_the_model_is_read(
    tmp_path, build_error, monkeypatch
):
    monkeypatch.setattr(model_steps, 'read_model', None)
    arguments = ['--onnx', write_detector(tmp_path), *DECODER_AND_CLASSES_ARGUMENTS]
    build_error(*arguments, '--plugins', tmp_path / 'none.so', code=2)


def truncated_model(folder):
    path = write_detector(folder)
    path.write_bytes(path.read_bytes()[:-2000])
    return ['--onnx', path, *DECODER_AND_CLASSES_ARGUMENTS]


def file_with(name, content):
    def write(folder):
        (folder / name).write_bytes(content)
        return ['--onnx', folder / name, '--output', folder / 'new.engine']

    return write


def model_with_nodes(*nodes):
    return lambda folder: [
        '--onnx',
        write_detector(folder, before=nodes),
        *DECODER_AND_CLASSES_ARGUMENTS,
    ]


def model_with_sides(sides, *words):
    return lambda folder: [
        '--onnx',
        write_detector(folder, sides=sides),
        *DECODER_AND_CLASSES_ARGUMENTS,
        *words,
    ]


def model_with_two_inputs(folder):
    model = detector_model()
    model.graph.input.add().CopyFrom(model.graph.input[0])
    model.graph.input[1].name = 'mask'
    onnx.save_model(model, folder / 'net.onnx')
    return ['--onnx', folder / 'net.onnx', *DECODER_AND_CLASSES_ARGUMENTS]


def manifest_with_too_few_classes(folder):
    digits = ROOT / 'models' / 'digits.onnx'
    (folder / 'digits.onnx').write_bytes(digits.read_bytes())
    manifest = json.loads(manifest_path(digits).read_text())
    manifest['class_names'] = manifest['class_names'][:3]
    manifest_path(folder / 'digits.onnx').write_text(json.dumps(manifest))
    return ['--onnx', folder / 'digits.onnx']


def model_with_one_channel(folder):
    three = helper.make_node('Concat', ['images'] * 3, ['x'], axis=1)
    onnx.save_model(detector_model((1, 1, 64, 64), before=[three]), folder / 'net.onnx')
    return ['--onnx', folder / 'net.onnx', *DECODER_AND_CLASSES_ARGUMENTS]


def bytes_with_a_scale(folder):
    cast = helper.make_node('Cast', ['images'], ['x'], to=onnx.TensorProto.FLOAT)
    model = detector_model(before=[cast])
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    onnx.save_model(model, folder / 'net.onnx')
    return ['--onnx', folder / 'net.onnx', *DECODER_AND_CLASSES_ARGUMENTS]


def build_yaml(folder):
    write_detector(folder)
    (folder / 'build.yaml').write_text('onnx: net.onnx\nprecison: int8\n')
    return ['--config', folder / 'build.yaml']


FIXED, OPEN = (1, 3, 64, 64), ('n', 3, 64, 64)
ODD = {'op_type': 'OddOp', 'inputs': ['images'], 'outputs': ['x'], 'name': 'layer7/odd'}
NON_ZERO = (
    helper.make_node('NonZero', ['images'], ['places']),
    helper.make_node('Identity', ['images'], ['x']),
)
ENGINE = b'ftrt' + bytes(20) + bytes((10, 3, 0, 26)) + bytes(100)
#: For each folder of files: the exit code, and the function that writes the files.
REFUSED = {
    'no_file': (2, lambda folder: ['--onnx', folder / 'none.onnx']),
    'cut_off': (1, truncated_model),
    'pytorch': (2, file_with('net.pt', b'PK')),
    'engine': (2, file_with('old.engine', ENGINE)),
    'engine_by_another_name': (1, file_with('old.onnx', ENGINE)),
    'unknown_operator': (1, model_with_nodes(helper.make_node(**ODD))),
    'unknown_domain': (1, model_with_nodes(helper.make_node(**ODD, domain='mine'))),
    'nms': (1, model_with_nodes(*NON_ZERO)),
    'open_batch': (1, model_with_sides(OPEN)),
    'open_sides': (1, model_with_sides((1, 3, 'h', 'w'))),
    'other_shape': (1, model_with_sides(FIXED, '--shapes', '1x3x32x32')),
    'other_batch': (1, model_with_sides(FIXED, '--batch', '2')),
    'other_size': (1, model_with_sides(FIXED, '--input-size', '32x32')),
    'no_profile': (2, model_with_sides(OPEN, '--shapes', '4x3x64x64:1x3x64x64:8x3x64x64')),
    'two_images': (1, model_with_two_inputs),
    'no_manifest': (1, lambda folder: ['--onnx', write_detector(folder)]),
    'fewer_classes': (1, manifest_with_too_few_classes),
    'grey': (1, model_with_one_channel),
    'bytes_with_a_scale': (1, bytes_with_a_scale),
    'pattern': (2, model_with_sides(FIXED, '--keep-fp32', 'haed')),
    'plugin': (2, lambda folder: ['--onnx', folder / 'none.onnx', '--plugins', folder / 'a.so']),
    'build_yaml': (2, build_yaml),
}


def test_refused_build_prints_a_message_and_changes_no_file(tmp_path, build_error):
    messages = []
    for name, (code, write) in REFUSED.items():
        (tmp_path / name).mkdir()
        messages.append(build_error(*write(tmp_path / name), code=code))
    golden.check('offline/building/refused_builds.txt', text_of_messages(messages, tmp_path))


@pytest.mark.parametrize(
    ('is_rtx', 'release', 'operators', 'is_refused'),
    [
        (True, (1, 7), ['Conv', 'NonZero'], True),
        (True, (1, 4), ['NonZero'], True),
        (True, (1, 8), ['NonZero'], False),
        (True, (1, 7), ['Conv'], False),
        (False, (10, 3), ['NonZero'], False),
    ],
)
def test_unsupported_operators_are_refused(is_rtx, release, operators, is_refused):
    tensorrt = SimpleNamespace(is_rtx=is_rtx, release=release, label='this one')
    expected = (
        pytest.raises(EngineError, match='NonZero') if is_refused else contextlib.nullcontext()
    )
    with expected:
        check_operators(tensorrt, 'x.onnx', operators)


def test_model_that_the_loader_refuses_is_not_built(
    tmp_path, build_error, monkeypatch, golden_messages
):
    """The manifest next to the model is valid, but the options are not."""
    parsed = parsed_models(monkeypatch)
    digits = ROOT / 'models' / 'digits.onnx'
    arguments = ('--onnx', digits, '--output', tmp_path / 'x.engine')
    qdq = (*INT8, '--calibration-images', ROOT / 'demo' / 'scenes')
    qdq += ('--qdq-onnx', tmp_path / 'q.onnx')
    for more_arguments in ((), qdq):
        golden_messages.add(
            build_error(*arguments, *more_arguments, '--class-names', 'a', 'b', 'c')
        )
        assert 'the decoder dense' in build_error(
            *arguments, *more_arguments, '--decoder', 'yolox'
        )
        assert 'the decoder detr' in build_error(*arguments, *more_arguments, '--decoder', 'detr')
    assert parsed == []


def test_unknown_option_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        run_build_engine('--onnx', tmp_path / 'x.onnx', '--presicion', 'int8')
    assert caught.value.code == 2
    assert '--presicion' in capsys.readouterr().err


def test_failed_build_writes_a_report(tmp_path, capsys, golden_messages):
    path = write_detector(tmp_path, sides=('n', 3, 64, 64))
    assert (
        run_build_engine(
            '--onnx', path, *DECODER_AND_CLASSES_ARGUMENTS, '--json', tmp_path / 'report.json'
        )
        == 1
    )
    report = read_report(tmp_path / 'report.json')
    assert report['operation'] == 'build_engine'
    assert report['status'] == 'failed'
    golden_messages.add(report['error'])
    assert report['error'] in capsys.readouterr().err
    assert report['output_engine'] is None
    assert report['steps'][-1]['status'] == 'failed'
    assert report['steps'][0]['status'] == 'done'
