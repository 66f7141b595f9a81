"""After a build: does what was built find what the original finds? On the digits, end to end."""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import onnx
import pytest
from detector_models import listing
from detector_models import parsed_models
from detector_models import report_of
from detector_models import run
from gpu_support import why_no_gpu
from onnx import numpy_helper
from programs import Program
from programs import executable
from small_detectors import Net

from trt_perception.building import agreement_gate
from trt_perception.building import engine_steps
from trt_perception.building import validation
from trt_perception.building.accuracy_gate import opened
from trt_perception.building.agreement_gate import compare_until_sure
from trt_perception.building.engine import capabilities
from trt_perception.building.engine.verify import EngineLatency
from trt_perception.building.engine.verify import Verified
from trt_perception.building.graph.graph_index import match_nodes
from trt_perception.building.graph.graph_index import name_nodes
from trt_perception.building.graph.query_decoder import QUERY_FAMILIES
from trt_perception.building.graph.query_decoder import find_query_decoder
from trt_perception.building.precision import calibrate
from trt_perception.checks.model import check_model
from trt_perception.config import Thresholds
from trt_perception.detections import Detections
from trt_perception.errors import EngineError
from trt_perception.evaluation.agreement import compare_runs
from trt_perception.evaluation.run import detect_images
from trt_perception.model.build_record import AgreementRecord
from trt_perception.model.decoder_spec import FAMILIES
from trt_perception.model.manifest import parse_manifest
from trt_perception.model.model_file import read_model_file
from trt_perception.tools import inspect_engine

pytest.importorskip('tensorrt_rtx', reason='needs tensorrt_rtx')
ROOT = Path(__file__).parents[2]
DIGITS = ROOT / 'models' / 'digits.onnx'
SCENES = ROOT / 'demo' / 'scenes'
EXPORTS = ROOT / 'test' / 'data' / 'exports'
CALIBRATION = ROOT / 'test' / 'data' / 'calibration'
INT8 = ('--precision', 'int8', '--calibration-images', CALIBRATION)
pytestmark = [
    pytest.mark.engine_build,
    pytest.mark.skipif(not why_no_gpu(), reason='there is a GPU: test_gpu_build_engine'),
]


@pytest.fixture(autouse=True)
def _caches(tmp_path_factory, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))


@pytest.fixture
def build(tmp_path):
    """Return a function that builds the digits and returns exit code, report and manifest."""

    def built(*words, onnx_file=DIGITS):
        engine, report = tmp_path / 'digits.engine', tmp_path / 'r.json'
        code = run('--onnx', onnx_file, '--output', engine, '--json', report, *words)
        beside = engine.with_name('digits.engine.json')
        manifest = parse_manifest(beside.read_bytes(), 'm') if beside.exists() else None
        return SimpleNamespace(code=code, report=report_of(report), manifest=manifest)

    return built


@pytest.fixture
def spoil(monkeypatch):
    """Return a function that makes the quantisation cut all data at a share of their range."""

    def spoiled(share):
        real = calibrate.quantise

        def quantise(*arguments, **named):
            done = real(*arguments, **named)
            index = {tensor.name: tensor for tensor in done.model.graph.initializer}
            scales = {n.input[1] for n in done.model.graph.node if n.op_type == 'QuantizeLinear'}
            for name in scales:
                scale = numpy_helper.to_array(index[name]) * np.float32(share)
                index[name].CopyFrom(numpy_helper.from_array(np.asarray(scale), name))
            return done

        monkeypatch.setattr(calibrate, 'quantise', quantise)

    return spoiled


def summed_up(report):
    return {key: report['agreement'][key] for key in AgreementRecord.__dataclass_fields__}


def test_int8_that_agrees_is_measured_on_the_images_of_the_calibration(build):
    done = build(*INT8)
    assert done.code == 0
    found = done.report['agreement']
    assert found['f1'] > 0.95
    assert found['images_of'] == 'calibration'
    assert found['images'] == found['images_given'] == 16
    assert sorted(map(Path, found['files'])) == sorted(CALIBRATION.glob('*.jpg'))
    assert found['reference_detections'] == found['details']['reference'] > 100
    assert found['warning'] == ''
    assert found['runtime'] == 'ONNX Runtime, not the engine'
    assert vars(done.manifest.build.agreement) == summed_up(done.report)
    (step,) = [step for step in done.report['steps'] if step['name'] == 'validate']
    assert step['seconds'] > 0.1
    assert f'{found["f1"]:.1%} of the detections agree with FP32' in step['outcome']
    assert not [text for text in done.report['warnings'] if 'agree' in text]


def test_f1_is_that_of_evaluate_engine(build, tmp_path):
    """Counted anew from the two ONNX files, through the evaluation's own way."""
    qdq = tmp_path / 'qdq.onnx'
    done = build(*INT8, '--qdq-onnx', qdq, '--validate', SCENES)
    runs = []
    for path in (DIGITS, qdq):
        with opened(read_model_file(path)) as pipeline:
            pictures = [(picture, None) for picture in sorted(SCENES.glob('*.jpg'))]
            runs.append(detect_images(pipeline, pictures, Thresholds(), lambda *_: None))
    names = [str(digit) for digit in range(10)]
    counted = compare_runs(runs[0].detections, runs[1].detections, names).overall
    found = done.report['agreement']
    assert found['f1'] == pytest.approx(counted.f1)
    assert found['reference_detections'] == counted.reference
    assert (found['images'], found['images_of']) == (60, 'validation')
    assert found['f1'] == done.report['accuracy']['built']  # without labels they are the same


def test_a_spoiled_quantisation_is_an_error(build, spoil, tmp_path, capsys):
    spoil(0.2)
    before = sorted(path for path in listing(tmp_path))
    done = build(*INT8)
    assert done.code == 1
    assert done.manifest is None
    assert sorted(listing(tmp_path)) == [*before, 'r.json']
    found = done.report['agreement']
    assert found['f1'] < 0.5
    assert found['reference_detections'] > 100
    said = capsys.readouterr().err
    assert f'only {found["f1"]:.1%} of the detections agree with FP32' in said
    for advice in ('--calibration-method', '--keep-float', '--accept-disagreement'):
        assert advice in said
    assert done.report['error'] in said
    assert done.report['steps'][-1]['name'] == 'validate'
    assert done.report['steps'][-1]['status'] == 'failed'


def test_accepted_it_stands_in_report_and_manifest(build, spoil, capsys):
    spoil(0.2)
    done = build(*INT8, '--accept-disagreement')
    assert done.code == 0
    record = done.manifest.build.agreement
    assert record.f1 < 0.5
    assert f'only {record.f1:.1%} of the detections agree with FP32' in record.warning
    assert record.warning in done.report['warnings']
    assert f'warning: {record.warning}' in capsys.readouterr().out
    assert done.manifest.build.options['accept_disagreement'] is True


def test_between_half_and_nineteen_twentieths_it_is_a_warning(build, spoil):
    spoil(0.55)
    done = build(*INT8)
    assert done.code == 0
    record = done.manifest.build.agreement
    assert 0.5 <= record.f1 < 0.95
    assert f'only {record.f1:.1%}' in record.warning
    assert record.warning in done.report['warnings']


def test_doctor_and_inspect_engine_tell_it(build, spoil, tmp_path, capsys):
    spoil(0.55)
    done = build(*INT8)
    engine = tmp_path / 'digits.engine'
    record = done.manifest.build.agreement
    modules = {'tensorrt_rtx': SimpleNamespace(version='1.7.1.116', error='')}
    found = list(check_model(str(engine), modules, None, trial=str))
    (finding,) = [one for one in found if one.name == 'accuracy']
    assert finding.level == 'yellow'
    assert finding.found == f'{record.f1:.1%} of the detections agreed with the original'
    assert finding.fix == record.warning
    capsys.readouterr()
    assert inspect_engine.main(['--no-gpu', str(engine)]) == 0
    text = capsys.readouterr().out
    assert f'{record.f1:.1%} of the detections agree with the original' in text
    assert record.warning in text


@pytest.mark.parametrize('precision', ['fp32', 'tf32', 'fp16', 'bf16'])
def test_without_images_it_says_what_to_give(build, precision):
    done = build('--precision', precision)
    assert done.code == 0
    record = done.manifest.build.agreement
    assert (record.f1, record.images, record.images_of) == (None, 0, 'none')
    assert record.warning.startswith('accuracy was not measured: ')
    assert record.warning in done.report['warnings']
    if precision == 'fp16':
        assert 'give --validate DIR' in record.warning
    else:
        assert 'on the target: ros2 run trt_perception evaluate_engine --engine' in record.warning
        assert str(DIGITS) in record.warning


def test_fp16_is_compared_where_images_are_given(build):
    done = build('--validate', SCENES)
    assert done.manifest.build.agreement.f1 > 0.99
    assert done.manifest.build.agreement.images_of == 'validation'


def test_with_labels_both_are_measured(build):
    done = build(*INT8, '--validate', SCENES, '--annotations', ROOT / 'demo' / 'truth.json')
    assert done.code == 0
    assert done.report['accuracy']['measure'] == 'mAP50'
    record = done.manifest.build.agreement
    # Of what lies above the node's threshold, not of all that enters mAP.
    assert 300 < record.reference_detections < 600
    assert record.f1 > 0.95
    (step,) = [step for step in done.report['steps'] if step['name'] == 'validate']
    assert 'mAP50' in step['outcome'].splitlines()[0]
    assert 'agree with FP32' in step['outcome'].splitlines()[1]


def test_too_few_detections_are_not_measured(build):
    few = SCENES / 'scene_00[1-3].jpg'
    done = build(*INT8, '--validate', few)
    assert done.code == 0
    record = done.manifest.build.agreement
    assert record.f1 is None
    assert 0 < record.reference_detections < 50
    assert (record.images, record.images_of) == (3, 'validation')
    assert f'FP32 finds {record.reference_detections} objects on 3 validation' in record.warning
    assert 'fewer than 50 say nothing: give --validate DIR with more images' in record.warning
    assert record.warning in done.report['warnings']


def test_too_few_detections_hide_no_spoiled_quantisation_silently(build, spoil):
    spoil(0.05)
    done = build(*INT8, '--validate', SCENES / 'scene_00[1-3].jpg')
    record = done.manifest.build.agreement
    assert record.f1 is None
    assert 'and what was built 0' in record.warning


def test_a_model_that_came_quantised_is_not_compared_with_itself(build, tmp_path):
    qdq = tmp_path / 'qdq.onnx'
    assert build(*INT8, '--qdq-onnx', qdq).code == 0
    for words in ((), ('--validate', SCENES)):
        done = build('--precision', 'int8', *words, onnx_file=qdq)
        assert done.code == 0
        record = done.manifest.build.agreement
        assert record.f1 is None
        assert 'came quantised' in record.warning
        assert 'on the target: ros2 run trt_perception evaluate_engine' in record.warning


def test_what_onnx_runtime_cannot_run_is_not_measured(build, monkeypatch):
    def cannot(*_):
        raise EngineError('ONNX Runtime cannot load it:\n\t\x1b[31mno kernel')

    monkeypatch.setattr(validation, 'onnx_file', cannot)
    done = build(*INT8)
    assert done.code == 0
    warning = done.manifest.build.agreement.warning  # one line, or it could not be read
    assert 'ONNX Runtime cannot load it: \\x1b[31mno kernel; on the target: ros2 run' in warning
    assert done.manifest.build.agreement.f1 is None


def test_a_stand_in_that_fails_on_an_image_is_not_measured(build, monkeypatch):
    def fails(*_):
        raise EngineError('the model fails')

    monkeypatch.setattr(validation, 'compare_until_sure', fails)
    done = build(*INT8)
    assert done.code == 0
    assert 'the model fails; on the target' in done.manifest.build.agreement.warning
    gpu_that_runs(monkeypatch, DIGITS)
    done = build(*INT8)
    assert done.code == 1
    assert done.report['error'] == 'the model fails'


def test_an_engine_from_the_store_keeps_what_was_found(build, spoil, tmp_path):
    spoil(0.55)
    given = (*INT8, '--store', tmp_path / 'store')
    first, second = build(*given), build(*given)
    assert second.report['reused'] is True
    assert second.report['agreement'] == first.report['agreement']
    assert second.manifest.build.agreement == first.manifest.build.agreement
    assert second.manifest.build.agreement.warning in second.report['warnings']
    # What is an error without the option must not come from the store with it, and back.
    assert build(*given, '--accept-disagreement').report['reused'] is False


def test_int8_that_is_larger_than_fp16_is_told(build):
    done = build(*INT8)
    sizes = done.report['performance']
    assert sizes['size_bytes'] > sizes['fp16_size_bytes'] > 0
    assert any('int8 is larger than fp16 (' in text for text in done.report['warnings'])
    again = build('--precision', 'fp16')
    assert again.report['performance']['size_bytes'] == pytest.approx(
        sizes['fp16_size_bytes'], rel=0.01
    )
    assert 'fp16_size_bytes' not in again.report['performance']
    assert 'fp16_size_bytes' not in build(*INT8, '--no-compare-fp16').report['performance']


# --- how many images -----------------------------------------------------------------------------


class Counting:
    """A pipeline that finds a number of objects on each picture."""

    def __init__(self, monkeypatch, each):
        self.spec = SimpleNamespace(class_names=('thing',), batch=1)
        self.seen = []

        def detect(_pipeline, pictures, _thresholds, progress):
            self.seen.append([path for path, _ in pictures])
            progress(len(pictures), len(pictures))
            corner = np.arange(each, dtype=np.float32)[:, None] * 20
            boxes = np.concatenate([corner, corner, corner + 9, corner + 9], axis=1)
            scores, ids = np.full(each, 0.9, np.float32), np.zeros(each, np.int32)
            return SimpleNamespace(detections=[Detections(boxes, scores, ids)] * len(pictures))

        monkeypatch.setattr(agreement_gate, 'detect_images', detect)


@pytest.mark.parametrize(
    ('given', 'each', 'used'),
    [(5, 1, 5), (400, 0, 300), (400, 1, 300), (400, 3, 170), (400, 25, 20), (400, 300, 20)],
)
def test_as_many_images_are_looked_at_as_are_needed(monkeypatch, given, each, used):
    pipeline = Counting(monkeypatch, each)
    images = [Path(f'{number}.png') for number in range(given)]
    told = []
    agreement, files = compare_until_sure(
        pipeline, pipeline, images, lambda *facts: told.append(facts), 'FP32'
    )
    assert len(files) == len(set(files)) == used
    assert agreement.overall.reference == used * each
    assert [path for part in pipeline.seen[:-1] for path in part] == pipeline.seen[-1] == files
    if each and used >= 20:
        assert agreement.overall.f1 == 1
    running = [done for step, done, _ in told if step == 'running FP32']
    assert running == sorted(running)
    assert running[-1] == used
    assert {total for step, _, total in told if step == 'running FP32'} == {min(given, 300)}
    again = compare_until_sure(pipeline, pipeline, images, lambda *_: None, 'FP32')[1]
    assert again == files
    if used < given:
        assert files != images[:used]  # spread over all of them


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_while_they_are_compared_leaves_nothing(tmp_path, number):
    images = tmp_path / 'many'
    images.mkdir()
    scene = cv2.imread(str(SCENES / 'scene_000.jpg'))
    for place in range(400):  # a few minutes of work
        cv2.imwrite(str(images / f'{place}.bmp'), np.roll(scene, place * 7, axis=1)[:64, :96])
    engine, report = tmp_path / 'd.engine', tmp_path / 'r.json'
    command = [executable('build_engine'), '--onnx', DIGITS, '--output', engine]
    command += ['--json', report, '--validate', images, '--calibration-cache', 'off']
    before = set(os.listdir(tmp_path))
    program = Program(command)
    program.wait_for_output('verify  ')
    program.send(number)
    assert program.wait() == 130
    assert 'Traceback' not in program.output
    assert set(os.listdir(tmp_path)) == before | {'r.json'}
    last = report_of(report)['steps'][-1]
    assert (last['name'], last['status']) in (('validate', 'interrupted'), ('verify', 'skipped'))


# --- on a GPU, by a stand-in ---------------------------------------------------------------------


def gpu_that_runs(monkeypatch, model):
    """Stand in for a GPU: engines run, and find what an ONNX file finds."""
    seen = Verified((), {}, 1024, EngineLatency(1.0, 1.0))
    monkeypatch.setattr(engine_steps, 'runs_here', lambda *_: '')
    monkeypatch.setattr(engine_steps, 'verify_engine', lambda *_: seen)
    monkeypatch.setattr(engine_steps, 'Device', lambda _: None)
    monkeypatch.setattr(engine_steps, 'measure_latency', lambda *_: EngineLatency(2.0, 2.0))
    monkeypatch.setattr(capabilities, '_NOT_BY_ONNX_RUNTIME', {})
    engines = []

    def stand_in(file):
        if not file.is_onnx:
            engines.append(file)
            file = read_model_file(model)
        return opened(file)

    monkeypatch.setattr(validation, 'opened', stand_in)
    monkeypatch.setattr('trt_perception.building.accuracy_gate.opened', stand_in)
    return engines


@pytest.mark.parametrize('words', [('--validate', SCENES), INT8])
def test_on_a_gpu_the_engine_itself_is_compared(build, monkeypatch, words):
    engines = gpu_that_runs(monkeypatch, DIGITS)
    done = build(*words)
    assert done.code == 0
    assert [engine.path.name for engine in engines] == ['digits.engine']
    record = done.manifest.build.agreement
    assert record.f1 == 1
    assert record.runtime.startswith('tensorrt_rtx ')
    assert record.warning == ''


@pytest.mark.parametrize('precision', ['fp32', 'tf32', 'fp16', 'bf16'])
def test_on_a_gpu_every_precision_is_held_to_it(build, monkeypatch, tmp_path, precision):
    spoiled = onnx.load(DIGITS)
    for tensor in spoiled.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.ndim == 4:
            rounded = np.round(values * 8) / np.float32(8)
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    path = tmp_path / 'spoiled.onnx'
    onnx.save(spoiled, path)
    beside = json.loads(DIGITS.with_name('digits.onnx.json').read_text())
    model = read_model_file(path)
    beside['onnx'] = {'file': path.name, 'sha256': model.sha256, 'size_bytes': len(model.content)}
    path.with_name('spoiled.onnx.json').write_text(json.dumps(beside))
    gpu_that_runs(monkeypatch, path)
    done = build('--precision', precision, '--validate', SCENES)
    assert done.code == 1
    assert done.report['agreement']['f1'] < 0.5
    assert 'another detector' in done.report['error']
    assert build('--precision', precision).code == 0  # nothing to see it on


def test_an_engine_that_does_not_run_is_an_error(build, monkeypatch):
    gpu_that_runs(monkeypatch, DIGITS)
    stand_in = validation.opened

    def fails(file):
        if not file.is_onnx:
            raise EngineError('the engine cannot be run')
        return stand_in(file)

    monkeypatch.setattr(validation, 'opened', fails)
    done = build(*INT8)
    assert done.code == 1
    assert done.report['error'] == 'the engine cannot be run'


# --- decoders of queries -------------------------------------------------------------------------


def exported(family):
    model = onnx.load(EXPORTS / family / 'model.onnx')
    name_nodes(model)
    image = model.graph.input[0]
    sides = image.type.tensor_type.shape.dim
    return model, {image.name: [side.dim_value for side in sides]}


@pytest.mark.parametrize(
    ('family', 'attention'),
    # Each layer of a decoder has two products for self-attention; those for cross-attention are
    # products in DETR, and samplings at each of three levels elsewhere.
    [
        ('rt_detr', {'GridSample': 6, 'Softmax': 4}),
        ('detr', {'GridSample': 0, 'Softmax': 4}),
        ('deformable_detr', {'GridSample': 6, 'Softmax': 4}),
    ],
)
def test_the_decoder_is_found_by_its_queries(family, attention):
    model, shapes = exported(family)
    found = find_query_decoder(model, shapes)
    kinds = [node.op_type for node in model.graph.node if node.name in found.nodes]
    assert {kind: kinds.count(kind) for kind in attention} == attention
    assert 'Conv' not in kinds
    assert 0 < found.share < 0.2
    # All that comes after the queries were chosen, or learned, up to the outputs.
    made = {name: node for node in model.graph.node for name in node.output}
    assert {made[output.name].name for output in model.graph.output} <= set(found.nodes)


def test_names_with_levels_make_one_pattern():
    model, shapes = exported('rt_detr')
    nodes = set(find_query_decoder(model, shapes).nodes)
    for number, node in enumerate(model.graph.node):
        part = 'decoder/layers[0]' if node.name in nodes else 'encoder'
        node.name = f'/model/{part}/{node.op_type}_{number}'
    found = find_query_decoder(model, shapes)
    assert len(found.patterns) == 1
    assert set(match_nodes(model, found.patterns)) == set(found.nodes)
    assert "--keep-fp32 '/model/decoder/*'" in found.advice('fp16')
    assert '--keep-fp32 and --keep-float' in found.advice('int8')


def test_a_feature_map_of_as_many_columns_belongs_to_no_decoder():
    net = Net()
    x = net.conv(net.conv('images', 3, 8, stride=2), 8, 8, stride=2)  # 16 x 16
    backbone = {node.name for node in net.nodes}
    tokens = net.node('Transpose', [net.reshape(x, 1, 8, 256)], perm=[0, 2, 1])
    keys = net.node('Transpose', [net.linear(tokens, 8, 8)], perm=[0, 2, 1])
    rest = {node.name for node in net.nodes}
    queries = net.constant(np.random.default_rng(0).standard_normal((1, 16, 8)))
    scores = net.node('Softmax', [net.node('MatMul', [queries, keys])], axis=-1)
    found = net.node('MatMul', [scores, tokens])
    model = net.model([net.linear(found, 8, 5), net.linear(found, 8, 4)])
    decoder = set(find_query_decoder(model, {'images': (1, 3, 64, 64)}).nodes)
    assert not decoder & (backbone | rest)
    assert decoder == {node.name for node in model.graph.node} - backbone - rest


@pytest.mark.parametrize('family', ['yolos'])
def test_other_transformers_have_a_head_of_queries(family):
    found = find_query_decoder(*exported(family))
    assert len(found.nodes) < 25


def test_convolutions_have_no_queries(build):
    assert set(QUERY_FAMILIES) <= set(FAMILIES)
    done = build()
    assert 'query_decoder' not in done.report['optimization']
    assert not [text for text in done.report['warnings'] if 'queries' in text]


@pytest.mark.parametrize('family', ['rt_detr', 'detr'])
def test_a_decoder_in_fp16_is_told_and_can_be_kept(build, tmp_path, monkeypatch, family):
    path = EXPORTS / family / 'model.onnx'
    done = build(onnx_file=path)
    assert done.code == 0
    told = done.report['optimization']['query_decoder']
    (warning,) = [text for text in done.report['warnings'] if 'queries' in text]
    assert 'a tenth of AP' in warning
    assert f'the {told["nodes"]} nodes of the decoder' in warning
    assert 'optimization: query_decoder' in warning
    config = tmp_path / 'build.yaml'
    config.write_text(json.dumps({'keep_fp32': told['keep_fp32']}))
    parsed = parsed_models(monkeypatch)
    kept = build('--config', config, onnx_file=path)
    assert kept.code == 0
    assert not [text for text in kept.report['warnings'] if 'queries' in text]
    inferred = onnx.shape_inference.infer_shapes(parsed[0]).graph
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*inferred.value_info, *inferred.output)
    }
    narrow = onnx.TensorProto.FLOAT16
    wanted = set(told['keep_fp32'])
    outputs = [n.output[0] for n in parsed[0].graph.node if n.name in wanted]
    assert len(outputs) == told['nodes']
    assert narrow not in {types[name] for name in outputs}
    assert narrow in types.values()
    assert not [
        text
        for text in build('--precision', 'fp32', onnx_file=path).report['warnings']
        if 'queries' in text
    ]


def test_a_decoder_that_did_well_on_the_gpu_is_not_warned_of(build, monkeypatch):
    path = EXPORTS / 'rt_detr' / 'model.onnx'
    gpu_that_runs(monkeypatch, path)
    monkeypatch.setattr(agreement_gate, 'FEWEST', 1)
    done = build('--validate', SCENES / 'scene_00?.jpg', onnx_file=path)
    assert done.code == 0
    assert done.report['agreement']['f1'] == 1
    assert done.report['optimization']['query_decoder']['nodes'] > 100
    assert not [text for text in done.report['warnings'] if 'queries' in text]
