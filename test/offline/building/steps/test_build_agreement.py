# SPDX-License-Identifier: Apache-2.0
"""After a build, the digits model must find the same objects as its original."""

import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from support.building.messages import without_variable_text
from support.folders import contents_by_path
from support.gpu.gpu_support import BUILT_ON_CPU_MARKS
from support.models.detector_models import read_report
from support.models.digits import (
    CALIBRATION_IMAGES,
    DIGITS,
    INT8_ARGUMENTS,
    SCENES,
    SOME_SCENES_PATTERN,
    save_digits,
)
from support.programs import UNMEASURED, Program, executable
from trt_perception.checks.model import model_findings
from trt_perception.errors import EngineError
from trt_perception.model.build_record import AgreementRecord
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.building.steps import validation
from trt_perception.offline.building.steps.validation import open_model
from trt_perception.offline.evaluation.metrics.agreement import compare_detections
from trt_perception.offline.evaluation.offline_detection import detect_in_files
from trt_perception.offline.tools import inspect_engine

pytest_plugins = ['support.building.build_fixtures']
pytest.importorskip('tensorrt_rtx', reason='needs tensorrt_rtx')
pytestmark = [*BUILT_ON_CPU_MARKS, pytest.mark.usefixtures('reuse_equal_plans')]


def stable_warning(record):
    """Return a record's warning without values that differ between machines."""
    share = 'nothing' if record.f1 is None else f'{record.f1:.1%}'
    return without_variable_text(
        record.warning.replace(share, 'SHARE').replace(str(DIGITS.parent), 'MODELS')
    )


def record_fields(report):
    return {key: report['agreement'][key] for key in AgreementRecord.__dataclass_fields__}


def test_int8_is_compared_on_the_calibration_images(build, golden_messages):
    result = build(*INT8_ARGUMENTS)
    assert result.code == 0
    found = result.report['agreement']
    assert found['f1'] > 0.95
    assert found['images_of'] == 'calibration'
    assert found['images'] == found['images_given'] == 16
    assert sorted(map(Path, found['files'])) == sorted(CALIBRATION_IMAGES.glob('*.jpg'))
    assert found['reference_detections'] == found['details']['reference'] > 100
    assert found['warning'] == ''
    golden_messages.add(found['runtime'])
    assert vars(result.manifest.build.agreement) == record_fields(result.report)
    (step,) = [step for step in result.report['steps'] if step['name'] == 'validate']
    assert step['seconds'] > 0
    assert f'{found["f1"]:.1%} of ' in step['outcome']
    assert result.manifest.build.agreement.warning == ''


def test_f1_of_a_build_equals_that_of_evaluate_engine(build, monkeypatch):
    """Compute F1 again from the two models, with the code of evaluate_engine."""
    files = []
    monkeypatch.setattr(
        validation, 'open_model', lambda file: files.append(file) or open_model(file)
    )
    result = build(*INT8_ARGUMENTS, '--validate', SOME_SCENES_PATTERN)
    runs = []
    assert len(files) == 2
    for file in files:
        with open_model(file) as pipeline:
            pictures = [
                (picture, None) for picture in sorted(SCENES.glob(SOME_SCENES_PATTERN.name))
            ]
            runs.append(detect_in_files(pipeline, pictures, Thresholds(), lambda *_: None))
    names = [str(digit) for digit in range(10)]
    counted = compare_detections(runs[0].detections, runs[1].detections, names).overall
    found = result.report['agreement']
    assert found['f1'] == pytest.approx(counted.f1)
    assert found['reference_detections'] == counted.reference
    assert (found['images'], found['images_of']) == (20, 'validation')
    assert found['f1'] == result.report['accuracy']['built']  # equal without labels


def test_bad_quantisation_is_an_error(build, clip_quantisation, tmp_path, capsys, golden_messages):
    clip_quantisation(0.2)
    before = sorted(path for path in contents_by_path(tmp_path))
    result = build(*INT8_ARGUMENTS)
    assert result.code == 1
    assert result.manifest is None
    assert sorted(contents_by_path(tmp_path)) == [*before, 'r.json']
    found = result.report['agreement']
    assert found['f1'] < 0.5
    assert found['reference_detections'] > 100
    golden_messages.add(
        without_variable_text(result.report['error'].replace(f'{found["f1"]:.1%}', 'SHARE'))
    )
    assert result.report['error'] in capsys.readouterr().err
    assert result.report['steps'][-1]['name'] == 'validate'
    assert result.report['steps'][-1]['status'] == 'failed'


def test_accepted_disagreement_is_in_report_and_manifest(
    build, clip_quantisation, capsys, golden_messages
):
    clip_quantisation(0.2)
    result = build(*INT8_ARGUMENTS, '--accept-disagreement')
    assert result.code == 0
    record = result.manifest.build.agreement
    assert record.f1 < 0.5
    golden_messages.add(stable_warning(record))
    assert record.warning in result.report['warnings']
    assert f': {record.warning}' in capsys.readouterr().out
    assert result.manifest.build.options['accept_disagreement'] is True


def test_f1_between_0_5_and_0_95_gives_a_warning(build, clip_quantisation, golden_messages):
    clip_quantisation(0.55)
    result = build(*INT8_ARGUMENTS)
    assert result.code == 0
    record = result.manifest.build.agreement
    assert 0.5 <= record.f1 < 0.95
    golden_messages.add(stable_warning(record))
    assert record.warning in result.report['warnings']


def test_doctor_and_inspect_engine_show_the_agreement(build, clip_quantisation, tmp_path, capsys):
    clip_quantisation(0.55)
    result = build(*INT8_ARGUMENTS)
    engine = tmp_path / 'digits.engine'
    record = result.manifest.build.agreement
    modules = {'tensorrt_rtx': SimpleNamespace(version='1.7.1.116', error='')}
    found = list(model_findings(str(engine), modules, (), trial=str))
    (finding,) = [one for one in found if one.name == 'accuracy']
    assert finding.level == 'yellow'
    assert f'{record.f1:.1%} of ' in finding.found
    assert finding.fix == record.warning
    capsys.readouterr()
    assert inspect_engine.main(['--no-gpu', str(engine)]) == 0
    text = capsys.readouterr().out
    assert f'{record.f1:.1%} of ' in text
    assert record.warning in text


@pytest.mark.parametrize('precision', ['tf32', 'fp16', 'bf16'])
def test_missing_images_give_a_warning_with_a_fix(build, precision, golden_messages):
    result = build('--precision', precision)
    assert result.code == 0
    record = result.manifest.build.agreement
    assert (record.f1, record.images, record.images_of) == (None, 0, 'none')
    golden_messages.add(stable_warning(record))
    assert record.warning in result.report['warnings']


def test_fp16_is_compared_on_given_images(build):
    result = build('--validate', SOME_SCENES_PATTERN)
    assert result.manifest.build.agreement.f1 > 0.99
    assert result.manifest.build.agreement.images_of == 'validation'


def test_fp16_overflow_is_an_error_without_a_gpu(build, tmp_path):
    """The FP32 results are equal. In FP16, as in TensorRT, pixels above 0.66 become infinite."""
    model = onnx.load(DIGITS)
    image = model.graph.input[0].name
    for node in model.graph.node:
        node.input[:] = ['restored' if name == image else name for name in node.input]
    chain = [image, 'large', 'larger', 'restored']
    for number, factor in enumerate((1e4, 10.0, 1e-5)):
        model.graph.initializer.append(
            numpy_helper.from_array(np.array(factor, np.float32), f'factor_{number}')
        )
        scale = helper.make_node('Mul', [chain[number], f'factor_{number}'], [chain[number + 1]])
        model.graph.node.insert(number, scale)
    path = tmp_path / 'overflows.onnx'
    save_digits(model, path)
    result = build('--precision', 'fp16', '--validate', SOME_SCENES_PATTERN, onnx_file=path)
    assert result.code == 1
    assert result.report['agreement'] is None
    assert '--precision fp32' in result.report['error']
    # The infinite input of the first layer's QuantizeLinear becomes its largest value.
    record = build(*INT8_ARGUMENTS, onnx_file=path).manifest.build.agreement
    assert 0.5 < record.f1 < 0.95
    assert record.warning


def test_agreement_is_not_measured_with_too_few_detections(build, golden_messages):
    few = SCENES / 'scene_00[1-3].jpg'
    result = build(*INT8_ARGUMENTS, '--validate', few)
    assert result.code == 0
    record = result.manifest.build.agreement
    assert record.f1 is None
    assert 0 < record.reference_detections < 50
    assert (record.images, record.images_of) == (3, 'validation')
    golden_messages.add(re.sub(r' \d+( objects|,)', r' FEW\1', record.warning))
    assert record.warning in result.report['warnings']


def test_too_few_detections_of_a_bad_quantisation_give_a_warning(
    build, clip_quantisation, golden_messages
):
    clip_quantisation(0.05)
    result = build(*INT8_ARGUMENTS, '--validate', SCENES / 'scene_00[1-3].jpg')
    record = result.manifest.build.agreement
    assert record.f1 is None
    golden_messages.add(record.warning.replace(f' {record.reference_detections} ', ' FEW '))


def test_quantised_model_is_not_compared_with_itself(build, tmp_path, golden_messages):
    qdq = tmp_path / 'qdq.onnx'
    assert build(*INT8_ARGUMENTS, '--qdq-onnx', qdq).code == 0
    for words in ((), ('--validate', SOME_SCENES_PATTERN)):
        result = build('--precision', 'int8', *words, onnx_file=qdq)
        assert result.code == 0
        record = result.manifest.build.agreement
        assert record.f1 is None
        golden_messages.add(record.warning)


def test_agreement_is_not_measured_if_onnx_runtime_fails(build, monkeypatch, golden_messages):
    def raise_engine_error(*_):
        raise EngineError('ONNX Runtime', 'cannot load it:\n\t\x1b[31mno kernel')

    monkeypatch.setattr(validation, 'onnx_model_file', raise_engine_error)
    result = build(*INT8_ARGUMENTS)
    assert result.code == 0
    record = result.manifest.build.agreement
    golden_messages.add(stable_warning(record))  # one line, so that the manifest can be read
    assert record.f1 is None


def test_engine_from_the_store_keeps_its_agreement(build, clip_quantisation, tmp_path):
    clip_quantisation(0.55)
    arguments = (*INT8_ARGUMENTS, '--store', tmp_path / 'store')
    first, second = build(*arguments), build(*arguments)
    assert second.report['reused'] is True
    assert second.report['agreement'] == first.report['agreement']
    assert second.manifest.build.agreement == first.manifest.build.agreement
    assert second.manifest.build.agreement.warning in second.report['warnings']
    # The option changes the result, so both builds need their own store entries.
    assert build(*arguments, '--accept-disagreement').report['reused'] is False


def test_int8_engine_larger_than_fp16_gives_a_warning(build):
    result = build(*INT8_ARGUMENTS)
    sizes = result.report['performance']
    assert sizes['size_bytes'] > sizes['fp16_size_bytes'] > 0
    assert any('fp16' in text and ' MiB' in text for text in result.report['warnings'])
    fp16 = build('--precision', 'fp16')
    assert fp16.report['performance']['size_bytes'] == pytest.approx(
        sizes['fp16_size_bytes'], rel=0.01
    )
    assert 'fp16_size_bytes' not in fp16.report['performance']
    assert (
        'fp16_size_bytes' not in build(*INT8_ARGUMENTS, '--no-compare-fp16').report['performance']
    )


def test_ctrl_c_during_the_comparison_leaves_no_files(tmp_path):
    images = tmp_path / 'many'
    images.mkdir()
    scene = cv2.imread(str(SCENES / 'scene_000.jpg'))
    for place in range(400):  # comparing these images would take a few minutes
        cv2.imwrite(str(images / f'{place}.bmp'), np.roll(scene, place * 7, axis=1)[:64, :96])
    engine, report = tmp_path / 'd.engine', tmp_path / 'r.json'
    command = [executable('build_engine'), '--onnx', DIGITS, '--output', engine]
    command += ['--json', report, '--validate', images, '--calibration-cache', 'off']
    before = set(os.listdir(tmp_path))
    program = Program(command, UNMEASURED)
    program.wait_for_output('verify  ')
    program.send(signal.SIGINT)
    assert program.wait() == 130
    assert 'Traceback' not in program.output
    assert set(os.listdir(tmp_path)) == before | {'r.json'}
    last = read_report(report)['steps'][-1]
    assert (last['name'], last['status']) in (('validate', 'interrupted'), ('verify', 'skipped'))


# A stand-in for a GPU runs the engine, which is compared with the original model.


def test_failing_comparison_is_an_error_only_with_a_gpu(
    build, gpu_that_runs, monkeypatch, golden_messages
):
    def raise_engine_error(*_):
        raise EngineError('the model', 'fails')

    monkeypatch.setattr(validation, 'compare_on_sample', raise_engine_error)
    result = build(*INT8_ARGUMENTS)
    assert result.code == 0
    golden_messages.add(stable_warning(result.manifest.build.agreement))
    gpu_that_runs(DIGITS)
    result = build(*INT8_ARGUMENTS)
    assert result.code == 1
    assert result.report['error'] == 'the model: fails'


@pytest.mark.parametrize('words', [('--validate', SOME_SCENES_PATTERN), INT8_ARGUMENTS])
def test_engine_itself_is_compared_on_a_gpu(build, gpu_that_runs, words):
    engines = gpu_that_runs(DIGITS)
    result = build(*words)
    assert result.code == 0
    assert [engine.path.name for engine in engines] == ['digits.engine']
    record = result.manifest.build.agreement
    assert record.f1 == 1
    assert record.runtime.startswith('tensorrt_rtx ')
    assert record.warning == ''


@pytest.mark.parametrize('precision', ['tf32', 'fp16'])
def test_engine_that_disagrees_on_a_gpu_is_refused_in_each_precision(
    build, gpu_that_runs, tmp_path, precision, golden_messages
):
    spoiled = onnx.load(DIGITS)
    for tensor in spoiled.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.ndim == 4:
            rounded = np.round(values * 8) / np.float32(8)
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    path = tmp_path / 'spoiled.onnx'
    save_digits(spoiled, path)
    gpu_that_runs(path)
    result = build('--precision', precision, '--validate', SOME_SCENES_PATTERN)
    assert result.code == 1
    assert result.report['agreement']['f1'] < 0.5
    share = f'{result.report["agreement"]["f1"]:.1%}'
    golden_messages.add(without_variable_text(result.report['error'].replace(share, 'SHARE')))
    assert build('--precision', precision).code == 0  # without images, nothing is compared


def test_engine_that_does_not_run_is_an_error(build, gpu_that_runs, monkeypatch):
    gpu_that_runs(DIGITS)
    open_stand_in = validation.open_model

    def raise_engine_error(file):
        if not file.is_onnx:
            raise EngineError('the engine', 'cannot be run')
        return open_stand_in(file)

    monkeypatch.setattr(validation, 'open_model', raise_engine_error)
    result = build(*INT8_ARGUMENTS)
    assert result.code == 1
    assert result.report['error'] == 'the engine: cannot be run'
