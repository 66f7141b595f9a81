# SPDX-License-Identifier: Apache-2.0
"""build_engine builds both detector sizes in each precision, with fixed and open shapes."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from support.models.batch_models import with_open_batch
from support.models.detector_models import (
    parsed_models,
    read_report,
    run_build_engine,
    yolo_sized_detector,
)
from trt_perception.model.files.model_file import read_model_file

pytest.importorskip('tensorrt_rtx', reason='needs tensorrt_rtx')
pytest_plugins = ['support.building.build_fixtures']
pytestmark = [pytest.mark.engine_build, pytest.mark.usefixtures('reuse_equal_results')]
ROOT = Path(__file__).parents[4]
DIGITS = ROOT / 'models' / 'digits.onnx'
CALIBRATION = ROOT / 'test' / 'data' / 'calibration'
TYPES = {
    'fp32': TensorProto.FLOAT,
    'fp16': TensorProto.FLOAT16,
    'bf16': TensorProto.BFLOAT16,
    'int8': TensorProto.INT8,
}
# TensorRT does not document this: byte 32 of a plan has a bit for each target GPU.
TARGET_BITS = {'7.5': 1, '8.0': 2, '8.6': 4, '8.9': 8, '12.0': 16, '12.1': 32}


@pytest.fixture(scope='module')
def models(tmp_path_factory):
    """Return ONNX files and their build options, by name."""
    folder = tmp_path_factory.mktemp('models')
    digits, yolo = onnx.load_model(DIGITS), yolo_sized_detector(320)
    names = folder / 'names.txt'
    names.write_text('\n'.join(f'class {n}' for n in range(80)))
    yolo_options = ('--decoder', 'dense', '--class-names-file', names)
    files_and_options = {}
    for name, model, side, options in (
        ('digits', digits, '480x640', ()),
        ('yolo', yolo, '320x320', yolo_options),
    ):
        path = folder / f'{name}.onnx'
        onnx.save_model(model, path)
        files_and_options[name] = (path, options)
        path = folder / f'{name}_open.onnx'
        onnx.save_model(with_open_batch(model), path)
        shapes = ':'.join(f'{batch}x3x{side}' for batch in (1, 1, 4))
        files_and_options[f'{name}_open'] = (path, (*options, '--shapes', shapes))
    return files_and_options


def convolutions(model):
    return [node for node in model.graph.node if node.op_type == 'Conv']


def multiplications(model):
    """Return the multiplications of each convolution: weights times output positions."""
    weights = {t.name: np.prod(t.dims) for t in model.graph.initializer}
    places = {
        value.name: np.prod([side.dim_value for side in value.type.tensor_type.shape.dim[2:]])
        for value in onnx.shape_inference.infer_shapes(model).graph.value_info
    }
    return {n.name: weights[n.input[1]] * places[n.output[0]] for n in convolutions(model)}


def operand_types(model):
    """Return the operand types of each convolution: INT8 after DequantizeLinear."""
    producers = {name: node for node in model.graph.node for name in node.output}
    kinds = {t.name: t.data_type for t in model.graph.initializer}
    kinds |= {
        value.name: value.type.tensor_type.elem_type
        for graph in (model.graph, onnx.shape_inference.infer_shapes(model).graph)
        for value in (*graph.input, *graph.value_info)
    }

    def kind(name):
        node = producers.get(name)
        is_int8 = node is not None and node.op_type == 'DequantizeLinear'
        return TensorProto.INT8 if is_int8 else kinds[name]

    return {n.name: tuple(kind(name) for name in n.input[:2]) for n in convolutions(model)}


@pytest.mark.parametrize(
    ('precision', 'name', 'targets'),
    [  # each precision is built for both sizes, with a fixed and an open batch
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
def test_both_detector_sizes_build_in_each_precision(
    models, tmp_path, monkeypatch, precision, name, targets
):
    path, options = models[name]
    engine, report = tmp_path / 'x.engine', tmp_path / 'r.json'
    arguments = ['--onnx', path, '--output', engine, '--json', report, *options]
    arguments += ['--precision', precision, '--compute-capabilities', *targets]
    if precision == 'int8':
        image_list = tmp_path / 'few.txt'
        image_list.write_text('\n'.join(map(str, sorted(CALIBRATION.glob('*.jpg'))[:8])))
        arguments += ['--calibration-images', image_list]
    parsed = parsed_models(monkeypatch)
    assert run_build_engine(*arguments) == 0
    read = read_model_file(engine)  # checks that the manifest fits the engine
    assert read.content[32] == sum(TARGET_BITS[target] for target in targets)
    assert read.manifest.build.precision.asked == precision
    batch = -1 if name.endswith('open') else 1
    assert read.manifest.inputs[0].shape[0] == read.manifest.outputs[0].shape[0] == batch
    ranges = [(p['images'].min[0], p['images'].max[0]) for p in read.manifest.build.profiles]
    assert ranges == ([(1, 4)] if batch == -1 else [])
    # Recompute the reported share from the original model and from the model given to TensorRT.
    macs, found = multiplications(onnx.load_model(path)), operand_types(parsed[0])
    assert found.keys() == macs.keys()
    expected_types = (TYPES[precision],) * 2
    share = sum(macs[n] for n in found if found[n] == expected_types) / sum(macs.values())
    # INT8 and BF16 keep the head's output layers in float32: BF16 has only 8 significant bits.
    assert share >= {'int8': 0.9, 'bf16': 0.95}.get(precision, 1)
    reported = read_report(report)['optimization']['conversion']['macs'][precision]
    assert reported == pytest.approx(share, abs=0.005)


def test_quantised_digits_lose_at_most_0_01_map(tmp_path, capsys):
    """ONNX Runtime measures with held-out scenes. The written QDQ file builds without images."""
    qdq, report_path = tmp_path / 'digits_int8.onnx', tmp_path / 'r.json'
    arguments = ['--onnx', DIGITS, '--output', tmp_path / 'a.engine', '--json', report_path]
    arguments += ['--precision', 'int8', '--calibration-images', CALIBRATION, '--qdq-onnx', qdq]
    arguments += ['--validate', ROOT / 'demo' / 'scenes' / 'scene_0[0-2]?.jpg']
    arguments += ['--annotations', ROOT / 'demo' / 'truth.json', '--max-accuracy-drop', '0.01']
    assert run_build_engine(*arguments) == 0
    report_content = read_report(report_path)
    accuracy = report_content['accuracy']
    assert accuracy['measure'] == 'mAP50'
    assert accuracy['images'] == 30
    assert accuracy['reference'] > 0.95
    assert abs(accuracy['reference'] - accuracy['built']) <= 0.01
    exact, ours = (model['metrics'] for model in accuracy['details']['models'].values())
    assert ours['mAP'] > exact['mAP'] - 0.015
    # This count has only detections above the node's threshold. mAP also uses lower scores.
    assert 150 < report_content['agreement']['reference_detections'] < 300
    assert report_content['agreement']['f1'] > 0.95
    (step,) = [step for step in report_content['steps'] if step['name'] == 'validate']
    measured, agreed = step['outcome'].splitlines()
    assert 'mAP50' in measured
    assert 'FP32' in agreed
    assert accuracy['reference'] != accuracy['built']
    assert report_content['output_engine']['qdq_onnx'] == str(qdq)
    assert str(qdq) in capsys.readouterr().out
    written = read_model_file(qdq)
    assert written.manifest.class_names == read_model_file(DIGITS).manifest.class_names
    macs, found = multiplications(onnx.load_model(DIGITS)), operand_types(onnx.load_model(qdq))
    share = sum(macs[n] for n, kinds in found.items() if kinds == (TYPES['int8'],) * 2)
    assert share / sum(macs.values()) >= 0.9
    # Layers in float must be FP32, because no GPU rounds FP16 like ONNX Runtime's QuantizeLinear.
    assert TensorProto.FLOAT16 not in {t.data_type for t in onnx.load_model(qdq).graph.initializer}
    rebuild_arguments = ['--onnx', qdq, '--output', tmp_path / 'b.engine', '--precision', 'int8']
    few_images = ['--validate', ROOT / 'demo' / 'scenes' / 'scene_00[1-3].jpg']
    assert run_build_engine(*rebuild_arguments, *few_images) == 0
    # A quantised file has no original to compare with.
    assert 'the ONNX file is quantised already' in capsys.readouterr().out
    built = [read_model_file(tmp_path / f'{name}.engine') for name in 'ab']
    assert len(built[0].content) == pytest.approx(len(built[1].content), rel=0.01)
    assert run_build_engine(*rebuild_arguments, '--qdq-onnx', tmp_path / 'c.onnx') == 2
    assert 'quantised already' in capsys.readouterr().err
