"""doctor is red exactly where *configure* fails: both do the same with the same parameters."""

import contextlib
import functools
import io
import json
import os
import signal
from unittest import mock

import numpy as np
import pytest

from support.models.open_model import open_by_parameters
from support.models.support_models import write_model
from support.models.tiny_model import CLASS_NAMES, write_tiny_model
from support.nodes import faults
from support.oracles.family_outputs import NAMES, NETWORK, OUTPUTS, batched, known, network
from support.programs import UNMEASURED, Program, executable, unmeasured
from trt_perception.checks.model import check_model
from trt_perception.checks.software import import_modules
from trt_perception.parameters.camera import NodeConfig
from trt_perception.pipelines.warm_up import warm_up
from trt_perception.ros.doctor import doctor
from trt_perception.ros.doctor.doctor import trial_run

TINY = {
    'model.decoder': 'dense',
    'model.class_names': list(CLASS_NAMES),
    'model.resize': 'letterbox',
    'model.color_order': 'rgb',
    'model.scale': 1 / 255,
}


def bare(folder):
    return write_tiny_model(folder / 'tiny.onnx', manifest=False)


def batch_of_two(folder):
    rng = np.random.default_rng(1)
    name = 'end_to_end'
    outputs = batched(name, [OUTPUTS[name](rng, *known(rng, 6))] * 2)
    path = folder / 'two.onnx'
    path.write_bytes(network(outputs, image=(2, 3, NETWORK[1], NETWORK[0])))
    return path


def no_detector(folder):
    import onnx
    from onnx import TensorProto, helper

    path = folder / 'other.onnx'
    image = helper.make_tensor_value_info('image', TensorProto.FLOAT, [1, 3, 8, 8])
    number = helper.make_tensor_value_info('number', TensorProto.FLOAT, [1])
    node = helper.make_node('ReduceMean', ['image'], ['number'], axes=[1, 2, 3], keepdims=0)
    graph = helper.make_graph([node], 'other', [image], [number])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)
    onnx.save(model, path)
    return path


def fails_when_it_runs(folder):
    """Write a model that loads and cannot run: two halves of an image do not fit together."""
    from onnx import TensorProto, helper

    image = helper.make_tensor_value_info('images', TensorProto.FLOAT, [1, 3, 48, 64])
    rows = helper.make_tensor_value_info('output0', TensorProto.FLOAT, None)
    shape = helper.make_tensor('shape', TensorProto.INT64, [3], [1, 7, -1])
    nodes = [
        helper.make_node('NonZero', ['images'], ['places']),
        helper.make_node('Reshape', ['places', 'shape'], ['output0']),
    ]
    graph = helper.make_graph(nodes, 'fails', [image], [rows], [shape])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)
    outputs = [{'name': 'output0', 'shape': [1, 7, -1], 'dtype': 'float32'}]
    names = ['a', 'b', 'c']
    content = model.SerializeToString()
    return write_model(folder, 'fails.onnx', content, outputs=outputs, class_names=names)


CASES = {
    'good': (faults.tiny, {}),
    'good by parameters': (bare, TINY),
    'class filter': (faults.tiny, {'class_filter': ['nothing']}),
    'class filter of a camera': (
        faults.tiny,
        {'cameras': ['a', 'b'], 'camera.b.class_filter': ['nothing']},
    ),
    'class filter of a camera that fits': (
        faults.tiny,
        {'cameras': ['a', 'b'], 'camera.b.class_filter': [CLASS_NAMES[0]]},
    ),
    'class filter that fits': (faults.tiny, {'class_filter': [CLASS_NAMES[0]]}),
    'wrong decoder': (faults.tiny, {'model.decoder': 'torchvision'}),
    'wrong size': (faults.tiny, {'model.input_size': [32, 32]}),
    'too few names': (faults.tiny, {'model.class_names': ['one']}),
    'parameters are missing': (bare, {'model.class_names': list(CLASS_NAMES)}),
    'batch of two': (batch_of_two, {**TINY, 'model.class_names': list(NAMES)}),
    'no detector': (no_detector, {}),
    'fails when it runs': (fails_when_it_runs, {}),
    'a folder': (lambda folder: folder, {}),
    'another suffix': (lambda folder: bare(folder).rename(folder / 'tiny.bin'), {}),
    'an engine of elsewhere': (faults.engine, TINY),
    'no engine': (faults._truncated_engine, TINY),
    **{
        fault.name: (fault.model, fault.parameters)
        for fault in faults.FAULTS
        if fault.phase == 'configure' and not fault.on_gpu and fault.model is not faults.tiny
    },
}


#: Imports each in a process of its own; once is enough, as nothing is installed meanwhile.
imported = functools.cache(import_modules)


@pytest.fixture(scope='module')
def modules():
    return imported()


@pytest.mark.parametrize('name', CASES)
def test_red_is_what_configure_refuses(name, tmp_path, modules):
    make, parameters = CASES[name]
    path = make(tmp_path)
    values = {**parameters, 'engine_path': str(path)}
    refused = ''
    try:
        configs = NodeConfig.from_values(values)
        with contextlib.closing(open_by_parameters(configs.node)) as pipeline:
            warm_up(pipeline)
            for camera in ('', *configs.node.cameras):
                configs.camera(camera).thresholds(pipeline.spec.class_names)
    except Exception as error:
        refused = str(error)
    findings = []
    failed = ''
    try:
        findings.extend(check_model(str(path), modules, (), trial=lambda: trial_run(values)))
    except Exception as error:  # doctor makes a red finding of it
        failed = str(error)
    red = [finding for finding in findings if finding.level == 'red']
    assert bool(red or failed) == bool(refused), (refused, findings)
    if red and red[0].name in ('file', 'trial run'):
        # The same reason, of which the fix may be a part; a camera's is said by its name.
        assert red[0].found.removeprefix("camera 'b': ")[:60] in refused


def run(*arguments):
    """Run doctor in this process and return its findings; test_doctor.py starts the command.

    What it lets others do, reading the parameters and the trial run, are processes as ever.
    """
    output, errors = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, unmeasured(), clear=True),
        mock.patch.object(doctor, 'import_modules', imported),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        code = doctor.main([*map(str, arguments), '--seconds', '0', '--json'])
    assert 'Traceback' not in errors.getvalue()
    report = json.loads(output.getvalue())
    assert code == int(report['red'] > 0), report
    assert report['interrupted'] is False
    return report['findings']


def reds(findings):
    return [entry['found'] for entry in findings if entry['level'] == 'red']


def as_arguments(parameters):
    return [word for name, value in parameters.items() for word in ('-p', f'{name}:={value}')]


def test_parameters_from_the_command_line(tmp_path):
    path = bare(tmp_path)
    (unsaid,) = reds(run(path))
    assert 'model.class_names' in unsaid
    findings = run(path, *as_arguments(TINY))
    assert reds(findings) == []
    assert findings[-1]['area'] == 'model'
    named = next(entry for entry in findings if entry['area'] == 'parameters')
    assert 'model.decoder' in named['found']


@pytest.mark.parametrize('section', ['/**', 'detector', '/detector', '/front/detector'])
def test_parameters_from_a_file(tmp_path, section):
    lines = [f'    {name}: {json.dumps(value)}' for name, value in TINY.items()]
    lines.append(f'    engine_path: {bare(tmp_path)}')
    file = tmp_path / 'my.yaml'
    file.write_text('\n'.join([f'{section}:', '  ros__parameters:', *lines]))
    name = '/front/detector' if section.startswith('/front') else '/detector'
    findings = run('--params-file', file, '--node', name)
    assert reds(findings) == []
    assert findings[-1]['area'] == 'model'
    # What comes later wins, as for a node.
    filtered = run('--params-file', file, '--node', name, '-p', 'class_filter:=[nothing]')
    (refusal,) = reds(filtered)
    assert "'class_filter'" in refusal


def test_a_file_for_another_node(tmp_path):
    file = tmp_path / 'my.yaml'
    file.write_text('/rear/detector:\n  ros__parameters:\n    class_filter: [nothing]\n')
    findings = run(faults.tiny(tmp_path), '--params-file', file)
    assert reds(findings) == []
    (unused,) = [e for e in findings if e['area'] == 'parameters' and e['level'] == 'yellow']
    assert '/rear/detector' in unused['found']
    there = run(tmp_path / 'tiny.onnx', '--params-file', file, '--node', '/rear/detector')
    assert len(reds(there)) == 1


@pytest.mark.parametrize(
    'fault', [f for f in faults.FAULTS if f.phase == 'start'], ids=lambda f: f.name
)
def test_what_keeps_a_node_from_starting(fault, tmp_path, monkeypatch, golden_messages):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'broken.yaml').write_text('{')
    findings = run(faults.tiny(tmp_path), *fault.parameters)
    (refusal,) = reds(findings)
    # rcl itself refuses the broken file; its words name places in its sources.
    golden_messages.add('broken.yaml' if 'broken.yaml' in refusal else refusal)
    # Nothing is said of a model whose use is not known.
    assert [e['level'] for e in findings if e['area'] == 'model'] == ['yellow']


def test_parameters_of_cameras(tmp_path, golden_messages):
    path = faults.tiny(tmp_path)
    cameras = ['-p', 'cameras:=[front, rear]']
    assert reds(run(path, *cameras, '-p', 'camera.rear.max_rate_hz:=5.0')) == []
    (refusal,) = reds(run(path, *cameras, '-p', 'camera.rear.class_filter:=[nothing]'))
    golden_messages.add(refusal)
    (refusal,) = reds(run(path, *cameras, '-p', 'camera.raer.enabled:=true'))
    golden_messages.add(refusal)


def test_a_file_without_a_model_is_what_configure_refuses(golden_messages):
    (refusal,) = reds(run('-p', 'confidence_threshold:=0.5'))
    golden_messages.add(refusal)


def test_it_prints_as_it_goes_and_what_it_has_on_ctrl_c(tmp_path):
    """Its look at the graph hangs; all findings before it are there, and Ctrl-C ends it."""
    hang = tmp_path / 'sitecustomize.py'
    hang.write_text(
        'import sys, time\n'
        "if 'trt_perception.ros.doctor.ros_graph' in sys.orig_argv:\n    time.sleep(100)\n"
    )
    path = f'{tmp_path}{os.pathsep}{os.environ["PYTHONPATH"]}'
    command = [executable('doctor'), write_tiny_model(tmp_path / 'tiny.onnx')]
    program = Program(command, environment={**UNMEASURED, 'PYTHONPATH': path})
    program.wait_for_output(': detect, dense, input 64x48, 3 ')  # the trial run
    program.send(signal.SIGINT)
    assert program.wait() == 130
    assert 'doctor: ' in program.output
