"""build_engine builds both sizes of detector in each precision, in fixed and in open shapes."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from support.models.batch_models import with_open_batch
from support.models.detector_models import parsed_models, report_of, run, yolo_sized
from trt_perception.model.files.model_file import read_model_file

pytest.importorskip('tensorrt_rtx', reason='needs tensorrt_rtx')
pytest_plugins = ['support.building.build_fixtures']
pytestmark = [pytest.mark.engine_build, pytest.mark.usefixtures('reuse_equal_results')]
ROOT = Path(__file__).parents[3]
DIGITS = ROOT / 'models' / 'digits.onnx'
CALIBRATION = ROOT / 'test' / 'data' / 'calibration'
TYPES = {
    'fp32': TensorProto.FLOAT,
    'fp16': TensorProto.FLOAT16,
    'bf16': TensorProto.BFLOAT16,
    'int8': TensorProto.INT8,
}
# Undocumented: the plan's byte 32 has a bit for each GPU it was built for.
TARGET_BITS = {'7.5': 1, '8.0': 2, '8.6': 4, '8.9': 8, '12.0': 16}


@pytest.fixture(scope='module')
def models(tmp_path_factory):
    """Return ONNX files and what must be said of each, by name."""
    folder = tmp_path_factory.mktemp('models')
    digits, yolo = onnx.load_model(DIGITS), yolo_sized(320)
    names = folder / 'names.txt'
    names.write_text('\n'.join(f'class {n}' for n in range(80)))
    known = ('--decoder', 'dense', '--class-names-file', names)
    made = {}
    for name, model, side, said in (
        ('digits', digits, '480x640', ()),
        ('yolo', yolo, '320x320', known),
    ):
        path = folder / f'{name}.onnx'
        onnx.save_model(model, path)
        made[name] = (path, said)
        path = folder / f'{name}_open.onnx'
        onnx.save_model(with_open_batch(model), path)
        shapes = ':'.join(f'{batch}x3x{side}' for batch in (1, 1, 4))
        made[f'{name}_open'] = (path, (*said, '--shapes', shapes))
    return made


def convolutions(model):
    return [node for node in model.graph.node if node.op_type == 'Conv']


def work(model):
    """Return the multiplications of each convolution: its weights, at each place of its output."""
    weights = {t.name: np.prod(t.dims) for t in model.graph.initializer}
    places = {
        value.name: np.prod([side.dim_value for side in value.type.tensor_type.shape.dim[2:]])
        for value in onnx.shape_inference.infer_shapes(model).graph.value_info
    }
    return {n.name: weights[n.input[1]] * places[n.output[0]] for n in convolutions(model)}


def types(model):
    """Return the type of each convolution: int8 where both operands come out of one."""
    made = {name: node for node in model.graph.node for name in node.output}
    kinds = {t.name: t.data_type for t in model.graph.initializer}
    kinds |= {
        value.name: value.type.tensor_type.elem_type
        for graph in (model.graph, onnx.shape_inference.infer_shapes(model).graph)
        for value in (*graph.input, *graph.value_info)
    }

    def kind(name):
        node = made.get(name)
        is_int8 = node is not None and node.op_type == 'DequantizeLinear'
        return TensorProto.INT8 if is_int8 else kinds[name]

    return {n.name: tuple(kind(name) for name in n.input[:2]) for n in convolutions(model)}


@pytest.mark.parametrize(
    ('precision', 'name', 'targets'),
    [  # each precision with both sizes, and with a fixed and an open batch
        ('fp32', 'digits', ['8.6']),
        ('fp32', 'yolo_open', ['8.6', '12.0']),
        ('fp16', 'digits_open', ['8.0', '8.9', '12.0']),
        ('fp16', 'yolo', ['8.9']),
        ('bf16', 'digits', ['8.6']),
        ('bf16', 'yolo_open', ['8.6']),
        ('int8', 'digits_open', ['8.0', '8.9', '12.0']),
        ('int8', 'yolo', ['8.9']),
    ],
)
def test_both_sizes_in_each_precision(models, tmp_path, monkeypatch, precision, name, targets):
    path, said = models[name]
    engine, report = tmp_path / 'x.engine', tmp_path / 'r.json'
    given = ['--onnx', path, '--output', engine, '--json', report, *said]
    given += ['--precision', precision, '--compute-capabilities', *targets]
    if precision == 'int8':
        listed = tmp_path / 'few.txt'
        listed.write_text('\n'.join(map(str, sorted(CALIBRATION.glob('*.jpg'))[:8])))
        given += ['--calibration-images', listed]
    parsed = parsed_models(monkeypatch)
    assert run(*given) == 0
    read = read_model_file(engine)  # its manifest fits it
    assert read.content[32] == sum(TARGET_BITS[target] for target in targets)
    assert read.manifest.build.precision.asked == precision
    batch = -1 if name.endswith('open') else 1
    assert read.manifest.inputs[0].shape[0] == read.manifest.outputs[0].shape[0] == batch
    ranges = [(p['images'].min[0], p['images'].max[0]) for p in read.manifest.build.profiles]
    assert ranges == ([(1, 4)] if batch == -1 else [])
    # What was reported, counted anew: from the original, and from what TensorRT was given.
    counted, found = work(onnx.load_model(path)), types(parsed[0])
    assert found.keys() == counted.keys()
    wanted = (TYPES[precision],) * 2
    share = sum(counted[n] for n in found if found[n] == wanted) / sum(counted.values())
    # In float stay the head's output layers: in INT8, and in BF16, which has 8 bits for a box.
    assert share >= {'int8': 0.9, 'bf16': 0.95}.get(precision, 1)
    told = report_of(report)['optimization']['conversion']['macs'][precision]
    assert told == pytest.approx(share, abs=0.005)


def test_the_quantised_digits_lose_at_most_a_hundredth(tmp_path, capsys):
    """On held-out scenes, by ONNX Runtime; and the file that was written builds without images."""
    qdq, report = tmp_path / 'digits_int8.onnx', tmp_path / 'r.json'
    given = ['--onnx', DIGITS, '--output', tmp_path / 'a.engine', '--json', report]
    given += ['--precision', 'int8', '--calibration-images', CALIBRATION, '--qdq-onnx', qdq]
    given += ['--validate', ROOT / 'demo' / 'scenes' / 'scene_0[0-2]?.jpg']
    given += ['--annotations', ROOT / 'demo' / 'truth.json', '--max-accuracy-drop', '0.01']
    assert run(*given) == 0
    told = report_of(report)
    accuracy = told['accuracy']
    assert accuracy['measure'] == 'mAP50'
    assert accuracy['images'] == 30
    assert accuracy['reference'] > 0.95
    assert abs(accuracy['reference'] - accuracy['built']) <= 0.01
    exact, ours = (model['metrics'] for model in accuracy['details']['models'].values())
    assert ours['mAP'] > exact['mAP'] - 0.015
    # Of what lies above the node's threshold, not of all that enters mAP.
    assert 150 < told['agreement']['reference_detections'] < 300
    assert told['agreement']['f1'] > 0.95
    (step,) = [step for step in told['steps'] if step['name'] == 'validate']
    measured, agreed = step['outcome'].splitlines()
    assert 'mAP50' in measured
    assert 'FP32' in agreed
    assert accuracy['reference'] != accuracy['built']
    assert told['output_engine']['qdq_onnx'] == str(qdq)
    assert str(qdq) in capsys.readouterr().out
    written = read_model_file(qdq)
    assert written.manifest.class_names == read_model_file(DIGITS).manifest.class_names
    counted, found = work(onnx.load_model(DIGITS)), types(onnx.load_model(qdq))
    share = sum(counted[n] for n, kinds in found.items() if kinds == (TYPES['int8'],) * 2)
    assert share / sum(counted.values()) >= 0.9
    # The rest is FP32: what ONNX Runtime's QuantizeLinear does with FP16 no GPU does.
    assert TensorProto.FLOAT16 not in {t.data_type for t in onnx.load_model(qdq).graph.initializer}
    again = ['--onnx', qdq, '--output', tmp_path / 'b.engine', '--precision', 'int8']
    few = ['--validate', ROOT / 'demo' / 'scenes' / 'scene_00[1-3].jpg']
    assert run(*again, *few) == 0
    # What it could be compared with is the file itself.
    assert 'the ONNX file is quantised already' in capsys.readouterr().out
    built = [read_model_file(tmp_path / f'{name}.engine') for name in 'ab']
    assert len(built[0].content) == pytest.approx(len(built[1].content), rel=0.01)
    assert run(*again, '--qdq-onnx', tmp_path / 'c.onnx') == 2
    assert 'quantised already' in capsys.readouterr().err
