# SPDX-License-Identifier: Apache-2.0
"""build_engine writes engine, manifest and report from ONNX, in real TensorRT-RTX builds."""

import errno
import hashlib
import json
import signal
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from support.folders import contents_by_path
from support.gpu.gpu_support import why_no_gpu
from support.gpu.host_kernels import needs_compiler
from support.gpu.plugin_libraries import make_plugin_library
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
    yolo_sized_detector,
)
from support.programs import UNMEASURED, Program, executable
from trt_perception.model.build_record import FileIdentity
from trt_perception.model.files.model_file import read_model_file
from trt_perception.offline.building import engine_store
from trt_perception.offline.building.engine import capabilities
from trt_perception.offline.building.options.sources import load_options
from trt_perception.offline.building.precision.calibrate import unused_calibration_options
from trt_perception.stages.tensorrt.runtime import read_plan_header

pytest_plugins = ['support.building.build_fixtures']
pytest.importorskip('tensorrt_rtx', reason='needs tensorrt_rtx')
pytestmark = [pytest.mark.engine_build, pytest.mark.usefixtures('reuse_equal_plans', 'own_caches')]
ROOT = Path(__file__).parents[4]
DIGITS = ROOT / 'models' / 'digits.onnx'
SCENES = ROOT / 'demo' / 'scenes'


@pytest.mark.parametrize('precision', ['fp32', 'tf32', 'fp16', 'bf16'])
def test_each_precision_gives_engine_manifest_and_report(tmp_path, precision, capsys):
    path = write_detector(tmp_path)
    assert (
        run_build_engine(
            '--onnx',
            path,
            *DECODER_AND_CLASSES_ARGUMENTS,
            '--precision',
            precision,
            '--json',
            tmp_path / 'r.json',
        )
        == 0
    )
    engine = tmp_path / 'net.engine'
    check_report(read_report(tmp_path / 'r.json'), engine)
    # Load the engine as the node does, as far as possible without a GPU.
    model = read_model_file(engine)
    assert read_plan_header(model.content, engine.name).module == 'tensorrt_rtx'
    manifest = model.manifest
    assert manifest == read_manifest_beside(engine)
    assert manifest.class_names == CLASS_NAMES
    assert manifest.onnx.sha256 == read_model_file(path).sha256
    assert [(t.name, t.shape, t.dtype) for t in manifest.inputs] == [
        ('images', (1, 3, 64, 64), 'float32')
    ]
    assert [(t.name, t.shape, t.dtype) for t in manifest.outputs] == [
        ('output', (1, 6, 64), 'float32')
    ]
    assert manifest.build.precision.asked == precision
    assert manifest.build.precision.as_built is None  # only a machine with a GPU can read this
    assert 'unverified' in capsys.readouterr().out
    assert manifest.build.options['class_names'] == CLASS_NAMES
    assert manifest.build.calibration is None


@needs_compiler
def test_plugin_libraries_are_recorded_in_the_manifest(tmp_path, monkeypatch):
    # The builder refuses plugins with TensorRT-RTX, although the registry loads libraries.
    monkeypatch.setattr(capabilities, '_rtx_errors', lambda *_: ())
    path, library = write_detector(tmp_path), make_plugin_library(tmp_path, 'Recorded')
    module, imported = tmp_path / 'creators.py', tmp_path / 'imported'
    module.write_text(f'open({str(imported)!r}, "x")')
    module.chmod(0o644)
    given = (
        '--onnx',
        path,
        *DECODER_AND_CLASSES_ARGUMENTS,
        '--plugins',
        library,
        module,
        '--json',
        tmp_path / 'r.json',
    )
    assert run_build_engine(*given) == 0
    assert (
        run_build_engine(*given, '--precision', 'fp32') == 0
    )  # the registry refuses a library that is loaded already
    assert imported.exists()
    content = library.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    expected = FileIdentity('libRecorded.so', digest, len(content))
    assert read_manifest_beside(tmp_path / 'net.engine').build.plugins == (expected,)


def test_int8_build_uses_calibration_and_validation_images(tmp_path, monkeypatch, golden_messages):
    parsed = parsed_models(monkeypatch)
    path, images = write_detector(tmp_path), write_images(tmp_path / 'images', 12)
    arguments = int8_arguments(path, images)
    arguments += ('--calibration-count', '10', '--calibration-method', 'minmax')
    arguments += ('--validate', images, '--json', tmp_path / 'r.json')
    assert run_build_engine(*arguments) == 0
    engine = tmp_path / 'net.engine'
    report = read_report(tmp_path / 'r.json')
    check_report(report, engine)
    manifest = read_manifest_beside(engine)
    calibration = manifest.build.calibration
    assert (calibration.tool, calibration.method) == ('onnxruntime', 'minmax')
    assert calibration.images == 10
    assert report['optimization']['calibration']['images']['found'] == 12
    assert manifest.build.accuracy.measure == 'agreement'
    assert manifest.build.accuracy.images == 12
    golden_messages.add(manifest.build.accuracy.runtime)
    assert report['accuracy']['built'] == manifest.build.accuracy.built
    assert 0.8 < report['accuracy']['built'] <= 1
    types = {node.op_type for node in parsed[0].graph.node}
    assert {'QuantizeLinear', 'DequantizeLinear'} <= types
    golden_messages.add(
        '\n'.join(text for text in report['warnings'] if text.startswith('10 images '))
    )


def test_engine_manifest_copies_the_onnx_manifest(tmp_path):
    engine = tmp_path / 'digits.engine'
    assert run_build_engine('--onnx', DIGITS, '--output', engine) == 0
    theirs = read_model_file(DIGITS).manifest
    ours = read_manifest_beside(engine)
    for name in ('inputs', 'outputs', 'preprocessing', 'decoder', 'class_names', 'notes', 'onnx'):
        assert getattr(ours, name) == getattr(theirs, name), name


def test_options_override_the_manifest(tmp_path):
    engine = tmp_path / 'digits.engine'
    arguments = ('--resize', 'center_crop', '--shorter-side', '500', '--filter', 'bicubic')
    arguments += ('--color-order', 'bgr', '--scale', '1', '--pad-value', '0')
    arguments += ('--mean', '1', '2', '3', '--std', '4', '5', '6', '--antialias')
    assert run_build_engine('--onnx', DIGITS, '--output', engine, *arguments) == 0
    preprocessing = read_manifest_beside(engine).preprocessing
    assert (
        preprocessing.resize,
        preprocessing.shorter_side,
        preprocessing.filter,
        preprocessing.color_order,
        preprocessing.scale,
        preprocessing.pad_value,
    ) == (*('center_crop', 500, 'bicubic', 'bgr', 1.0, 0),)
    assert (preprocessing.mean, preprocessing.std, preprocessing.antialias) == (
        (1, 2, 3),
        (4, 5, 6),
        True,
    )


def test_report_distinguishes_options_from_manifest_values(tmp_path, golden_messages):
    arguments = ('--onnx', DIGITS, '--output', tmp_path / 'digits.engine')
    arguments += ('--json', tmp_path / 'r.json')
    names = [f'digit {number}' for number in range(10)]
    for options in (('--class-names', *names, '--scale', '1'), ()):
        assert run_build_engine(*arguments, *options) == 0
        golden_messages.add('\n'.join(read_report(tmp_path / 'r.json')['input_model']['evidence']))


def test_options_without_effect_give_a_warning(tmp_path, golden_messages):
    arguments = ('--onnx', DIGITS, '--output', tmp_path / 'digits.engine')
    arguments += ('--json', tmp_path / 'r.json')
    for options in (('--keep-float', 'x', '--calibration-method', 'entropy'), ()):
        assert run_build_engine(*arguments, *options) == 0
        warnings = [text for text in read_report(tmp_path / 'r.json')['warnings'] if 'fp8' in text]
        assert bool(warnings) == bool(options)
        golden_messages.add('\n'.join(warnings))


def test_calibration_of_a_quantised_model_gives_a_warning(golden_messages):
    arguments = {'onnx': 'a.onnx', 'precision': 'int8', 'calibration_images': 'images'}
    options = load_options(None, arguments)
    golden_messages.add(unused_calibration_options(options, quantised=True))
    assert unused_calibration_options(options, quantised=False) == ''


def test_full_store_does_not_stop_a_build(tmp_path, monkeypatch, golden_messages):
    def raise_no_space(*_):
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(engine_store, 'write_atomically', raise_no_space)
    engine = tmp_path / 'digits.engine'
    arguments = ('--onnx', DIGITS, '--output', engine, '--store', tmp_path / 'store')
    assert run_build_engine(*arguments, '--json', tmp_path / 'r.json') == 0
    report = read_report(tmp_path / 'r.json')
    (warning,) = [text for text in report['warnings'] if '--store' in text]
    golden_messages.add(warning)
    check_report(report, engine)
    assert list((tmp_path / 'store').iterdir()) == []


def test_open_shapes_become_profiles(tmp_path):
    path = write_detector(tmp_path, sides=('n', 3, 64, 64))
    shapes = '1x3x64x64:2x3x64x64:4x3x64x64'
    assert (
        run_build_engine(
            '--onnx', path, *DECODER_AND_CLASSES_ARGUMENTS, '--shapes', shapes, '1x3x64x64'
        )
        == 0
    )
    manifest = read_manifest_beside(tmp_path / 'net.engine')
    assert manifest.inputs[0].shape == (-1, 3, 64, 64)
    wide, narrow = (profile['images'] for profile in manifest.build.profiles)
    assert (wide.min[0], wide.opt[0], wide.max[0]) == (1, 2, 4)
    assert (narrow.min[0], narrow.max[0]) == (1, 1)
    assert manifest.build.options['shapes'] == (shapes, '1x3x64x64')
    assert run_build_engine('--onnx', path, *DECODER_AND_CLASSES_ARGUMENTS, '--batch', '1') == 0
    (profile,) = read_manifest_beside(tmp_path / 'net.engine').build.profiles
    assert profile['images'].max == (1, 3, 64, 64)


@pytest.mark.parametrize('source', ['metadata', 'manifest'])
def test_open_sides_get_the_size_that_the_model_states(tmp_path, capsys, source):
    path = write_detector(tmp_path, sides=('n', 3, 'h', 'w'))
    arguments = ['--onnx', path, *DECODER_AND_CLASSES_ARGUMENTS]
    if source == 'metadata':
        model = onnx.load(path)
        # As Ultralytics writes them: height, then width.
        metadata = {'author': 'Ultralytics', 'task': 'detect', 'imgsz': '[32, 128]'}
        for key, value in {**metadata, 'names': "{0: 'a', 1: 'b'}"}.items():
            model.metadata_props.add(key=key, value=value)
        onnx.save(model, path)
    else:
        assert run_build_engine(*arguments, '--batch', '1', '--input-size', '128x32') == 0
        engine_manifest = json.loads((tmp_path / 'net.engine.json').read_text())
        onnx_manifest = {**engine_manifest, 'engine': None, 'build': None}
        (tmp_path / 'net.onnx.json').write_text(json.dumps(onnx_manifest))
    assert run_build_engine(*arguments) == 1
    assert run_build_engine(*arguments, '--batch', '1') == 0
    manifest = read_manifest_beside(tmp_path / 'net.engine')
    (profile,) = manifest.build.profiles
    assert profile['images'].max == (1, 3, 32, 128)
    assert manifest.preprocessing.input_size == (128, 32)
    # The user's own size comes first.
    assert run_build_engine(*arguments, '--batch', '1', '--input-size', '64x64') == 0
    (profile,) = read_manifest_beside(tmp_path / 'net.engine').build.profiles
    assert profile['images'].max == (1, 3, 64, 64)


def test_existing_engine_is_replaced_atomically_without_leftover_files(tmp_path, capsys):
    path = write_detector(tmp_path)
    assert (
        run_build_engine('--onnx', path, *DECODER_AND_CLASSES_ARGUMENTS, '--precision', 'fp32')
        == 0
    )
    first = (tmp_path / 'net.engine').read_bytes()
    capsys.readouterr()
    with open(tmp_path / 'net.engine', 'rb') as reader:
        assert (
            run_build_engine('--onnx', path, *DECODER_AND_CLASSES_ARGUMENTS, '--precision', 'fp16')
            == 0
        )
        assert reader.read() == first  # a program that has opened the old engine keeps it
    assert 'replaces' in capsys.readouterr().out
    assert (tmp_path / 'net.engine').read_bytes() != first
    read_model_file(tmp_path / 'net.engine')
    assert sorted(contents_by_path(tmp_path)) == ['net.engine', 'net.engine.json', 'net.onnx']


def test_command_line_overrides_the_options_file(tmp_path):
    write_detector(tmp_path)
    config = tmp_path / 'build.yaml'
    config.write_text(
        'onnx: net.onnx\nprecision: fp32\ndecoder: dense\nclass_names: [cat, dog]\n'
        'output: from_yaml.engine\n'
    )
    assert run_build_engine('--config', config) == 0
    assert read_manifest_beside(tmp_path / 'from_yaml.engine').build.precision.asked == 'fp32'
    assert run_build_engine('--config', config, '--precision', 'fp16') == 0
    assert read_manifest_beside(tmp_path / 'from_yaml.engine').build.precision.asked == 'fp16'


def test_converted_model_computes_the_same_as_the_original(tmp_path, monkeypatch):
    parsed = parsed_models(monkeypatch)
    path = write_detector(tmp_path)
    assert run_build_engine('--onnx', path, *DECODER_AND_CLASSES_ARGUMENTS) == 0
    feed = {'images': np.random.default_rng(1).random((1, 3, 64, 64), np.float32)}
    original, converted = (
        onnxruntime.InferenceSession(content).run(None, feed)[0]
        for content in (path.read_bytes(), parsed[0].SerializeToString())
    )
    assert converted.dtype == np.float32
    np.testing.assert_allclose(converted, original, rtol=0.02, atol=0.02 * np.abs(original).max())
    assert not np.array_equal(original, converted)  # proves that the model computes in FP16


def test_external_weights_are_part_of_the_engine(tmp_path):
    inside = write_detector(tmp_path)
    model = onnx.load_model(inside)
    onnx.save_model(
        model, tmp_path / 'ext.onnx', save_as_external_data=True, location='w', size_threshold=0
    )
    arguments = ('--compute-capabilities', '8.6', '--precision', 'fp32')
    for name in ('net.onnx', 'ext.onnx'):
        assert (
            run_build_engine('--onnx', tmp_path / name, *DECODER_AND_CLASSES_ARGUMENTS, *arguments)
            == 0
        )
    sizes = [(tmp_path / name).stat().st_size for name in ('net.engine', 'ext.engine')]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)


@pytest.mark.parametrize(
    ('number', 'step_output'), [(signal.SIGINT, 'slim  '), (signal.SIGTERM, 'precision  ')]
)
def test_signal_stops_a_build_and_leaves_no_files(tmp_path_factory, tmp_path, number, step_output):
    """The signal arrives during calibration, which takes 30 s, or during the TensorRT build."""
    path = tmp_path_factory.mktemp('yolo') / 'yolo.onnx'
    onnx.save_model(yolo_sized_detector(), path)
    names = tmp_path / 'names.txt'
    names.write_text('\n'.join(f'class {n}' for n in range(80)))
    engine, report = tmp_path / 'yolo.engine', tmp_path / 'r.json'
    command = [executable('build_engine'), '--onnx', path, '--output', engine]
    command += ['--decoder', 'dense', '--class-names-file', names, '--json', report]
    command += ['--calibration-cache', 'off']
    if step_output.startswith('slim'):
        command += ['--precision', 'int8', '--calibration-images', SCENES]
    program = Program(command, UNMEASURED)
    program.wait_for_output(step_output)
    # Under `ros2 launch` or `timeout`, a process may get a signal twice. Two signals within a
    # second count as one.
    program.send(number)
    program.send(signal.SIGTERM)
    assert program.wait() == 130
    assert program.count('stopping') == 1
    assert f'; {report} ' in program.output
    assert 'Traceback' not in program.output
    assert sorted(contents_by_path(tmp_path)) == ['names.txt', 'r.json']
    content = read_report(report)
    assert content['status'] == 'interrupted'
    last = content['steps'][-1]
    running = 'precision' if step_output.startswith('slim') else 'build'
    # On a busy machine the signal may arrive before the next step begins.
    assert (last['name'], last['status']) in (
        (running, 'interrupted'),
        (step_output.strip(), 'done'),
    )


def simulate_gpu(monkeypatch, int8_ms, fp16_ms):
    """Simulate a GPU that loads engines and measures their latency."""
    from trt_perception.offline.building.engine.verify import EngineCheck, EngineLatency
    from trt_perception.offline.building.inspection.layers import LayerInfo
    from trt_perception.offline.building.steps import engine_steps, validation

    kinds = ['int8'] * 5 + ['fp16'] * 2
    layers = tuple(LayerInfo(f'l{i}', inputs=(kind,)) for i, kind in enumerate(kinds))
    engine_check = EngineCheck(layers, {'head': 'fp16'}, 1024, EngineLatency(int8_ms, int8_ms))
    monkeypatch.setattr(engine_steps, 'why_not_loadable', lambda *_: '')
    monkeypatch.setattr(engine_steps, 'verify_engine', lambda *_: engine_check)
    monkeypatch.setattr(engine_steps, 'Device', lambda _: None)
    monkeypatch.setattr(
        engine_steps, 'measure_latency', lambda *_: EngineLatency(fp16_ms, fp16_ms)
    )
    real = validation.open_model
    originals = []

    def open_original(file):
        """Run the original model instead of the engine."""
        originals.extend([file] if file.is_onnx else [])
        return real(originals[0])

    monkeypatch.setattr(validation, 'open_model', open_original)


@pytest.mark.parametrize(('int8_ms', 'slower'), [(2.0, True), (0.5, False)])
def test_int8_engine_slower_than_fp16_gives_a_warning(
    tmp_path, monkeypatch, int8_ms, slower, golden_messages
):
    simulate_gpu(monkeypatch, int8_ms, 1.0)
    path, images = write_detector(tmp_path), write_images(tmp_path / 'images')
    arguments = int8_arguments(path, images)
    assert run_build_engine(*arguments, '--json', tmp_path / 'r.json') == 0
    report = read_report(tmp_path / 'r.json')
    assert report['performance']['latency_ms']['p50'] == int8_ms
    assert report['performance']['fp16_latency_ms']['p50'] == 1.0
    assert report['optimization']['not_as_asked'] == {'head': 'fp16'}
    assert [layer['precision'] for layer in report['optimization']['layers']][4:6] == [
        'int8',
        'fp16',
    ]
    warnings = [text for text in report['warnings'] if 'head' in text or ' ms)' in text]
    assert len(warnings) == 1 + slower
    golden_messages.add('\n'.join(warnings))
    build = read_manifest_beside(tmp_path / 'net.engine').build
    assert build.precision.as_built == {'int8': 5, 'fp16': 2}
    assert run_build_engine(*arguments, '--json', tmp_path / 'r.json', '--no-compare-fp16') == 0
    assert 'fp16_latency_ms' not in read_report(tmp_path / 'r.json')['performance']


def test_quantised_model_is_compared_with_fp16(tmp_path, monkeypatch):
    path, images = write_detector(tmp_path), write_images(tmp_path / 'images')
    qdq, report = tmp_path / 'qdq.onnx', tmp_path / 'r.json'
    arguments = ('--precision', 'int8', '--json', report)
    calibration_arguments = ('--calibration-images', images, '--qdq-onnx', qdq)
    assert (
        run_build_engine(
            '--onnx', path, *DECODER_AND_CLASSES_ARGUMENTS, *arguments, *calibration_arguments
        )
        == 0
    )
    simulate_gpu(monkeypatch, 2.0, 1.0)
    parsed = parsed_models(monkeypatch)
    assert run_build_engine('--onnx', qdq, *arguments) == 0
    assert any('fp16' in text and ' ms)' in text for text in read_report(report)['warnings'])
    kinds = [{node.op_type for node in model.graph.node} for model in parsed]
    assert [('QuantizeLinear' in ops, 'DequantizeLinear' in ops) for ops in kinds] == [
        (True, True),
        (False, False),
    ]


@pytest.mark.skipif(not why_no_gpu(), reason='needs a machine without a GPU')
def test_driver_without_a_usable_gpu_is_reported(tmp_path, monkeypatch, capsys):
    from trt_perception.offline.building.engine import release as tensorrt_release

    monkeypatch.setattr(tensorrt_release, '_DRIVER_DEVICE', write_detector(tmp_path))
    assert run_build_engine('--onnx', tmp_path / 'net.onnx', *DECODER_AND_CLASSES_ARGUMENTS) == 0
    assert 'the GPU of' in capsys.readouterr().out


def test_help_mentions_the_options(capsys):
    with pytest.raises(SystemExit) as caught:
        run_build_engine('--help')
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for word in ('--calibration-images', '--keep-fp32', '--config', '--store', 'examples:'):
        assert word in text
    assert ' 130 ' in text
