# SPDX-License-Identifier: Apache-2.0
"""inspect_engine reads TensorRT-RTX plans without a GPU, and newly built engines with a GPU."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.gpu.gpu_support import needs_tensorrt, why_no_gpu
from support.models.tiny_model import CLASS_NAMES, write_tiny_model
from trt_perception.errors import EngineError
from trt_perception.model.build_record import (
    AccuracyRecord,
    BuildRecord,
    CalibrationRecord,
    FileIdentity,
    PrecisionRecord,
    TensorRtRecord,
)
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.manifest import parse_manifest, serialise_manifest
from trt_perception.offline.building.engine.build import build_plan
from trt_perception.offline.building.engine.release import find_tensorrt
from trt_perception.offline.building.inspection.inspection_report import (
    EngineReport,
    format_comparison,
    format_engine_report,
    plan_compute_capabilities,
    read_engine_report,
)
from trt_perception.offline.building.inspection.inspector import (
    EngineInfo,
    LayerTime,
    inspect_engine,
    time_layers,
)
from trt_perception.offline.building.inspection.layers import (
    LayerInfo,
    compare_precision,
    layer_precisions,
)
from trt_perception.offline.building.options.sources import load_options
from trt_perception.offline.building.precision.convert import convert_precision
from trt_perception.offline.tools.inspect_engine import main, update_manifest
from trt_perception.stages.tensorrt.runtime import read_plan_header

ROOT = Path(__file__).parents[3]
DIGITS = ROOT / 'models' / 'digits.onnx'
PRECISION = PrecisionRecord('fp16')
TENSORRT = TensorRtRecord('tensorrt_rtx', '1.7.1.116')
BUILD = BuildRecord(TENSORRT, None, None, {}, (), PRECISION)


def write_engine(path, content, build=BUILD):
    """Write an engine and the digits' manifest, adapted to the engine."""
    path.write_bytes(content)
    manifest = parse_manifest(DIGITS.with_name('digits.onnx.json').read_bytes(), 'digits')
    identity = FileIdentity(path.name, hashlib.sha256(content).hexdigest(), len(content))
    manifest = dataclasses.replace(manifest, engine=identity, build=build)
    path.with_name(path.name + '.json').write_bytes(serialise_manifest(manifest))
    return path


def plan(version=(1, 7, 1, 116), targets=0, magic=b'vtrt'):
    return magic + bytes(20) + bytes(version) + bytes(4) + bytes([targets]) + bytes(67)


@pytest.fixture
def engine(tmp_path):
    return write_engine(tmp_path / 'digits.engine', plan(targets=12))


def engine_info(kind='fp16', verbosity='detailed'):
    layers = tuple(LayerInfo(f'conv{i}', 'correlation', (kind,), (kind,)) for i in range(3))
    manifest = parse_manifest(DIGITS.with_name('digits.onnx.json').read_bytes(), 'digits')
    return EngineInfo(
        inputs=manifest.inputs,
        outputs=manifest.outputs,
        profiles=({'images': ((1, 3, 8, 8), (1, 3, 16, 16), (2, 3, 32, 32))},),
        context_bytes=(3 * 1024 * 1024,),
        weight_bytes=None,
        verbosity=verbosity,
        refittable=False,
        extra_streams=2,
        layers=layers if verbosity == 'detailed' else (),
        load_s=0.5,
    )


def report_with(path, **changes):
    return dataclasses.replace(read_engine_report(read_model_file(path)), **changes)


def test_plan_header_and_manifest_are_shown_without_a_gpu(engine, capsys):
    assert main([str(engine), '--no-gpu']) == 0
    text = capsys.readouterr().out
    for part in (
        'tensorrt_rtx 1.7.1.116',
        'compute capability 8.6, 8.9',
        '1x3x480x640 float32',
        'fp16 requested, as built: unverified',
        'a machine without a GPU',
        '640x480 letterbox',
        'not loaded: --no-gpu',
    ):
        assert part in text


def test_calibration_and_accuracy_are_shown(tmp_path, capsys, golden_messages):
    build = dataclasses.replace(
        BUILD,
        calibration=CalibrationRecord('onnxruntime', 'minmax', 300, 'c' * 64),
        accuracy=AccuracyRecord(60, 'mAP50', 0.9607, 0.9613, 'tensorrt 10.3'),
    )
    path = write_engine(tmp_path / 'digits.engine', plan(), build)
    assert main([str(path), '--no-gpu']) == 0
    golden_messages.add(capsys.readouterr().out)


def test_json_report_has_the_values_of_engine_and_manifest(engine, capsys):
    assert main([str(engine), '--no-gpu', '--json', '-']) == 0
    content = json.loads(capsys.readouterr().out)
    assert content['sha256'] == hashlib.sha256(engine.read_bytes()).hexdigest()
    assert content['built_by'] == {'flavour': 'tensorrt_rtx', 'version': '1.7.1.116'}
    assert content['targets'] == ['8.6', '8.9']
    assert content['manifest']['build']['precision']['as_built'] == 'unverified'
    assert content['engine'] is None


def test_json_is_written_to_a_file(engine, tmp_path, capsys, monkeypatch):
    target = tmp_path / 'report.json'
    monkeypatch.setenv('HOME', str(tmp_path))
    assert main([str(engine), '--no-gpu', '--json', '~/report.json']) == 0
    assert json.loads(target.read_text())['file'] == str(engine)
    assert 'built by' in capsys.readouterr().out


def test_onnx_model_is_shown_as_its_manifest_describes_it(tmp_path, capsys):
    expected = json.loads(DIGITS.with_name('digits.onnx.json').read_bytes())
    bare = tmp_path / 'bare.onnx'
    bare.write_bytes(DIGITS.read_bytes())
    for path, section in ((DIGITS, 'manifest'), (bare, 'recognised')):
        assert main([str(path), '--json', '-']) == 0
        content = json.loads(capsys.readouterr().out)
        assert content['built_by'] is None
        assert content[section]['decoder'] == expected['decoder']
        assert content[section]['class_names'] == expected['class_names']
        assert main([str(path)]) == 0
        text = capsys.readouterr().out
        assert f'\n{section}' in text
        assert '1x3x480x640 float32' in text


def test_parameters_complete_the_description_of_an_onnx_model(tmp_path, capsys):
    path = write_tiny_model(tmp_path / 'tiny.onnx', manifest=False)
    assert main([str(path)]) == 1
    names = f'model.class_names:=[{", ".join(CLASS_NAMES)}]'
    assert main([str(path), '-p', names, '-p', 'model.decoder=dense', '--json', '-']) == 0
    assert json.loads(capsys.readouterr().out)['recognised']['class_names'] == list(CLASS_NAMES)


def test_parameters_of_a_model_with_a_manifest_are_refused(engine):
    assert main([str(engine), '--no-gpu', '-p', 'model.decoder=dense']) == 2
    assert main([str(DIGITS), '-p', 'model.decoder=dense']) == 2


def test_engine_without_a_manifest_is_shown(tmp_path, capsys):
    path = tmp_path / 'a.plan'
    path.write_bytes(plan((10, 3, 0, 26), magic=b'ftrt'))
    assert main([str(path), '--no-gpu']) == 0
    text = capsys.readouterr().out
    assert 'tensorrt 10.3.0.26' in text
    assert 'manifest: none' in text
    assert 'built for' not in text


@pytest.mark.skipif(not why_no_gpu(), reason='needs a machine without a GPU')
def test_options_that_need_a_gpu_fail_without_one(engine, capsys, golden_messages):
    assert main([str(engine)]) == 0
    assert 'not loaded: ' in capsys.readouterr().out
    before = engine.with_name('digits.engine.json').read_bytes()
    assert main([str(engine), '--update-manifest']) == 1
    printed = capsys.readouterr()
    assert printed.out == ''
    golden_messages.add(printed.err)
    assert engine.with_name('digits.engine.json').read_bytes() == before
    assert main([str(engine), '--times', '3']) == 1


def test_engine_is_shown_without_the_build_packages(engine):
    code = (
        'import sys; sys.modules.update(dict.fromkeys(["onnx", "onnxruntime", "onnxslim"])); '
        'from trt_perception.offline.tools.inspect_engine import main; '
        'sys.exit(main(sys.argv[1:]))'
    )
    process = subprocess.run(
        [sys.executable, '-c', code, str(engine), '--no-gpu', '--json', '-'],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)['built_by']['version'] == '1.7.1.116'


def test_layer_table_shows_the_slowest_layer_first(engine, golden_messages):
    information = engine_info()
    times = (
        LayerTime(information.layers[2], 0.3, 0.75),
        LayerTime(information.layers[0], 0.1, 0.25),
    )
    golden_messages.add(
        format_engine_report(report_with(engine, engine_info=information, times=times), layers=1)
    )


def test_two_engines_are_compared(engine, tmp_path, capsys, golden_messages):
    other = dataclasses.replace(BUILD, precision=PrecisionRecord('int8'))
    second = write_engine(tmp_path / 'second.engine', plan(targets=4), other)
    assert main([str(engine), str(second), '--no-gpu']) == 0
    golden_messages.add(capsys.readouterr().out)
    assert main([str(engine), str(second), '--no-gpu', '--json', '-']) == 0
    found = json.loads(capsys.readouterr().out)
    assert [report['targets'] for report in found.values()] == [['8.6', '8.9'], ['8.6']]


def test_comparison_shows_layers_and_times(engine, golden_messages):
    first, second = (
        report_with(
            engine,
            engine_info=dataclasses.replace(
                engine_info(),
                layers=(LayerInfo('conv', 'correlation', (kind,), (kind,), nodes=('c', 's')),),
            ),
            times=(LayerTime(LayerInfo('conv'), ms, 1.0),),
            engine_ms=ms,
        )
        for kind, ms in (('fp16', 0.5), ('fp32', 1.0))
    )
    golden_messages.add(format_comparison(first, second, layers=5))
    golden_messages.add(format_comparison(first, first, layers=5))


def test_only_engines_are_compared(engine, capsys):
    assert main([str(engine), str(DIGITS), '--no-gpu']) == 2
    assert main([str(DIGITS), str(engine), '--no-gpu']) == 2
    assert main([str(engine), str(engine), '--update-manifest']) == 2


def test_built_precision_is_written_to_the_manifest(engine):
    assert update_manifest(report_with(engine, engine_info=engine_info())) == {'fp16': 3}
    updated = read_model_file(engine).manifest
    assert updated.build.precision == dataclasses.replace(PRECISION, as_built={'fp16': 3})
    current = report_with(engine).model.manifest
    assert current == updated


def test_manifest_of_a_linked_engine_is_updated(engine, tmp_path):
    link = tmp_path / 'links' / 'current.engine'
    link.parent.mkdir()
    link.symlink_to(engine)
    update_manifest(report_with(link, engine_info=engine_info()))
    assert read_model_file(engine).manifest.build.precision.as_built == {'fp16': 3}
    assert list(link.parent.iterdir()) == [link]


def test_fp32_instead_of_fp16_is_written_and_is_an_error(engine, golden_messages):
    with golden_messages.raises(EngineError):
        update_manifest(report_with(engine, engine_info=engine_info('fp32')))
    assert read_model_file(engine).manifest.build.precision.as_built == {'fp32': 3}


def test_engine_without_layer_types_changes_no_manifest(engine, golden_messages):
    with golden_messages.raises(EngineError):
        update_manifest(report_with(engine, engine_info=engine_info(verbosity='none')))
    assert read_model_file(engine).manifest.build.precision.as_built is None


def test_only_manifests_of_build_engine_are_updated(tmp_path, golden_messages):
    path = write_engine(tmp_path / 'a.engine', plan(), build=None)
    with golden_messages.raises(EngineError):
        update_manifest(report_with(path, engine_info=engine_info()))


def test_targets_are_read_from_tensorrt_rtx_plans():
    for targets in (['7.5'], ['8.0', '8.9'], ['12.0'], ['12.0', '12.1']):
        bits = {'7.5': 1, '8.0': 2, '8.6': 4, '8.9': 8, '12.0': 16, '12.1': 32}
        content = plan(targets=sum(bits[target] for target in targets))
        assert plan_compute_capabilities(content, read_plan_header(content, 'a')) == tuple(targets)
    content = plan(targets=255, magic=b'ftrt')
    assert plan_compute_capabilities(content, read_plan_header(content, 'a')) == ()


# Tests on a GPU.


@pytest.fixture(scope='module')
def built_engines(tmp_path_factory):
    """Build the digits' engines in FP32, in FP16, and in FP16 without layer information."""
    import onnx

    from trt_perception.gpu import Device

    folder = tmp_path_factory.mktemp('engines')
    single = DIGITS.read_bytes()
    model = onnx.load_model_from_string(single)
    half = convert_precision(model, 'fp16', strongly_typed=True).model.SerializeToString()
    tensorrt = find_tensorrt('auto')
    paths = {}
    for name, content, verbosity in (
        ('fp32', single, 'detailed'),
        ('fp16', half, 'detailed'),
        ('mute', half, 'none'),
    ):
        build_options = {'onnx': str(DIGITS), 'precision': 'fp32' if name == 'fp32' else 'fp16'}
        options = load_options(None, {**build_options, 'profiling_verbosity': verbosity})
        plan_result = build_plan(content, options, tensorrt)
        release = TensorRtRecord(plan_result.flavour, plan_result.version)
        record = BuildRecord(release, None, None, {}, (), PRECISION)
        paths[name] = write_engine(folder / f'{name}.engine', plan_result.content, record)
    device = Device(0)
    device.use()
    return device, paths


def convolutions():
    import onnx

    return {node.name for node in onnx.load(DIGITS).graph.node if node.op_type == 'Conv'}


@needs_tensorrt
@pytest.mark.parametrize('name', ['fp32', 'fp16'])
def test_real_engine_reports_its_layer_types(built_engines, name):
    device, paths = built_engines
    information = inspect_engine(read_model_file(paths[name]), device)
    assert (
        max(layer_precisions(information.layers), key=layer_precisions(information.layers).get)
        == name
    )
    check = compare_precision(information.layers, name, convolutions())
    assert (check.share, check.node_count) == (1.0, 50)
    assert compare_precision(information.layers, name).node_count >= 40
    assert information.verbosity == 'detailed'
    assert information.context_bytes[0] > 0
    assert information.inputs[0].shape == (1, 3, 480, 640)


@needs_tensorrt
def test_fp32_instead_of_fp16_is_found_in_a_real_engine(built_engines):
    device, paths = built_engines
    model = read_model_file(paths['fp32'])
    with pytest.raises(EngineError, match='fp16'):
        update_manifest(
            EngineReport(
                model, read_plan_header(model.content, 'x'), (), inspect_engine(model, device)
            )
        )


@needs_tensorrt
def test_engine_without_layer_information_reports_only_tensors(built_engines):
    device, paths = built_engines
    information = inspect_engine(read_model_file(paths['mute']), device)
    assert (information.layers, information.verbosity) == ((), 'none')
    assert information.outputs[0].shape == (1, 14, 6000)


@needs_tensorrt
def test_layers_are_timed(built_engines):
    device, paths = built_engines
    model = read_model_file(paths['fp16'])
    progress_calls = []
    times = time_layers(model, device, runs=5, progress=lambda *step: progress_calls.append(step))
    assert progress_calls[-1] == (5, 5)
    assert [row.ms for row in times] == sorted((row.ms for row in times), reverse=True)
    assert sum(row.share for row in times) == pytest.approx(1)
    layers = {layer.name for layer in inspect_engine(model, device).layers}
    assert {row.layer.name for row in times} <= layers


@needs_tensorrt
def test_tool_times_layers_and_updates_the_manifest_on_a_gpu(built_engines, tmp_path, capsys):
    _, paths = built_engines
    target = tmp_path / 'report.json'
    arguments = [str(paths['fp16']), '--times', '3', '--json', str(target), '--update-manifest']
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert 'slowest first' in text
    content = json.loads(target.read_text())
    assert content['engine']['precision']['fp16'] > 40
    assert len(content['layer_times']) == len(content['engine']['layers'])
    assert read_model_file(paths['fp16']).manifest.build.precision.as_built['fp16'] > 40
