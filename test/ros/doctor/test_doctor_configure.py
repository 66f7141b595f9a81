# SPDX-License-Identifier: Apache-2.0
"""Tests that doctor is red exactly if *configure* fails with the same parameters."""

import contextlib
import functools
import io
import json
import os
import signal
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from support.models.image_models import IMAGE_TASKS, write_image_model
from support.models.open_model import open_by_parameters
from support.models.support_models import write_model
from support.models.tiny_model import CLASS_NAMES, write_tiny_model
from support.nodes import faults
from support.oracles.family_outputs import (
    NAMES,
    NETWORK,
    OUTPUTS,
    batched,
    network,
    random_objects,
)
from support.programs import UNMEASURED, Program, executable, unmeasured
from trt_perception.checks.model import model_findings
from trt_perception.checks.software import import_modules
from trt_perception.parameters.camera import NodeParameters
from trt_perception.pipelines.warm_up import warm_up
from trt_perception.ros.doctor import doctor
from trt_perception.ros.doctor.doctor import trial_run

MODELS = Path(__file__).parents[3] / 'models'
TINY = {
    'model.decoder': 'dense',
    'model.class_names': list(CLASS_NAMES),
    'model.resize': 'letterbox',
    'model.color_order': 'rgb',
    'model.scale': 1 / 255,
}


def write_model_without_manifest(folder):
    return write_tiny_model(folder / 'tiny.onnx', manifest=False)


def write_model_with_batch_of_two(folder):
    rng = np.random.default_rng(1)
    name = 'end_to_end'
    outputs = batched(name, [OUTPUTS[name](rng, *random_objects(rng, 6))] * 2)
    path = folder / 'two.onnx'
    path.write_bytes(network(outputs, image=(2, 3, NETWORK[1], NETWORK[0])))
    return path


def write_model_without_detections(folder):
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


def write_model_that_fails_to_run(folder):
    """Write a model that loads but cannot run, because a reshape does not fit. Return its path."""
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


def image_model(task):
    """Return a function that writes the model of a task, and its parameters."""
    with tempfile.TemporaryDirectory() as folder:
        parameters = write_image_model(task, Path(folder, 'model.onnx'))
    del parameters['engine_path']
    return lambda folder: write_image_model(task, folder / 'model.onnx')['engine_path'], parameters


CASES = {
    **{task: image_model(task) for task in IMAGE_TASKS},
    **{
        f'{task} with {name} {value}': (
            image_model(task)[0],
            {**image_model(task)[1], f'model.{name}': value},
        )
        for task, name, value in (
            ('classify', 'class_names', ['one']),
            ('classify', 'decoder', 'pixel_logits'),
            ('semantic', 'class_names', ['one', 'two']),
            ('semantic', 'resize', 'center_crop'),
            ('depth', 'resize', 'center_crop'),
            ('depth', 'task', 'classify'),
        )
    },
    'shipped depth': (lambda _: MODELS / 'depth_tiny.onnx', {}),
    'shipped classifier': (lambda _: MODELS / 'digits_classify.onnx', {}),
    'shipped segmentation': (lambda _: MODELS / 'digits_semantic.onnx', {}),
    'good': (faults.tiny, {}),
    'good by parameters': (write_model_without_manifest, TINY),
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
    'missing parameters': (write_model_without_manifest, {'model.class_names': list(CLASS_NAMES)}),
    'batch of two': (write_model_with_batch_of_two, {**TINY, 'model.class_names': list(NAMES)}),
    'no detections': (write_model_without_detections, {}),
    'trial run fails': (write_model_that_fails_to_run, {}),
    'a folder': (lambda folder: folder, {}),
    'another suffix': (
        lambda folder: write_model_without_manifest(folder).rename(folder / 'tiny.bin'),
        {},
    ),
    'an engine of another machine': (faults.engine, TINY),
    'a truncated engine': (faults._truncated_engine, TINY),
    **{
        fault.name: (fault.model, fault.parameters)
        for fault in faults.FAULTS
        if fault.phase == 'configure' and not fault.on_gpu and fault.model is not faults.tiny
    },
}


#: Imports each module in a new process. Cached, because installed packages do not change.
import_modules_once = functools.cache(import_modules)


@pytest.fixture(scope='module')
def modules():
    return import_modules_once()


@pytest.mark.parametrize('name', CASES)
def test_doctor_is_red_exactly_if_configure_fails(name, tmp_path, modules):
    make, parameters = CASES[name]
    path = make(tmp_path)
    values = {**parameters, 'engine_path': str(path)}
    configure_error = ''
    try:
        node_parameters = NodeParameters.from_values(values)
        with contextlib.closing(open_by_parameters(node_parameters.node)) as pipeline:
            warm_up(pipeline)
            for camera in ('', *node_parameters.node.cameras):
                node_parameters.camera(camera).thresholds(pipeline.spec.class_names)
    except Exception as error:
        configure_error = str(error)
    findings = []
    doctor_error = ''
    try:
        findings.extend(model_findings(str(path), modules, (), trial=lambda: trial_run(values)))
    except Exception as error:  # doctor turns an exception into a red finding
        doctor_error = str(error)
    red = [finding for finding in findings if finding.level == 'red']
    assert bool(red or doctor_error) == bool(configure_error), (configure_error, findings)
    if red and red[0].name in ('file', 'trial run'):
        # doctor's finding names the camera, and configure's text may include the fix.
        assert red[0].found.removeprefix("camera 'b': ")[:60] in configure_error


def run_doctor(*arguments):
    """Run doctor in this process, and return its findings. test_doctor.py starts the command.

    doctor still reads parameters and runs the trial in other processes. These processes get ten
    times as long as usual, because the machine may be busy.
    """
    output, errors = io.StringIO(), io.StringIO()
    run_module = doctor._run_module

    def run_patiently(module, arguments, timeout_s):
        return run_module(module, arguments, 10 * timeout_s)

    with (
        mock.patch.dict(os.environ, unmeasured(), clear=True),
        mock.patch.object(doctor, 'import_modules', import_modules_once),
        mock.patch.object(doctor, '_run_module', run_patiently),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        code = doctor.main([*map(str, arguments), '--seconds', '0', '--json'])
    assert 'Traceback' not in errors.getvalue()
    report = json.loads(output.getvalue())
    assert code == int(report['red'] > 0), report
    assert report['interrupted'] is False
    return report['findings']


def red_findings(findings):
    return [entry['found'] for entry in findings if entry['level'] == 'red']


def as_arguments(parameters):
    return [word for name, value in parameters.items() for word in ('-p', f'{name}:={value}')]


MODEL, BARE = {'engine_path': 'MODEL'}, {'engine_path': 'BARE'}
CAMERAS = {**MODEL, 'cameras': ['front', 'rear']}
NOTHING = {'class_filter': ['nothing']}
#: For each scene: parameters of the command line, parameters of a file with their section, and
#: the name of the node. The model BARE has no manifest. The command line names the model itself.
SCENES = {
    'model without a manifest needs parameters': (BARE, {}, '', ''),
    'parameters of the command line are used': ({**BARE, **TINY}, {}, '', ''),
    'section ** of a file is used': ({}, {**BARE, **TINY}, '/**', ''),
    'section with the name of the node is used': ({}, {**BARE, **TINY}, 'detector', ''),
    'section with the full name of the node is used': ({}, {**BARE, **TINY}, '/detector', ''),
    'section of a node in a namespace is used': (
        {},
        {**BARE, **TINY},
        '/a/detector',
        '/a/detector',
    ),
    'command line overrides a file': (NOTHING, {**BARE, **TINY}, '/**', ''),
    'file for another node is ignored with a warning': (MODEL, NOTHING, '/a/detector', ''),
    'file for this node is not ignored': (MODEL, NOTHING, '/a/detector', '/a/detector'),
    'parameter of a camera is used': ({**CAMERAS, 'camera.rear.max_rate_hz': 5.0}, {}, '', ''),
    'wrong class of a camera is red': (
        {**CAMERAS, 'camera.rear.class_filter': ['no']},
        {},
        '',
        '',
    ),
    'unknown camera is red': ({**CAMERAS, 'camera.raer.enabled': True}, {}, '', ''),
    'parameters without a model are red': ({'confidence_threshold': 0.5}, {}, '', ''),
}


@pytest.mark.parametrize('scene', SCENES)
def test_parameters_of_each_scene_have_the_recorded_findings(scene, tmp_path, golden_messages):
    given, of_file, section, node = SCENES[scene]
    models = {'MODEL': faults.tiny, 'BARE': write_model_without_manifest}

    def with_model(parameters):
        path = parameters.get('engine_path')
        return parameters | ({'engine_path': str(models[path](tmp_path))} if path else {})

    given = with_model(given)
    model = [given.pop('engine_path')] if 'engine_path' in given else []
    arguments = [*model, *as_arguments(given)]
    if of_file:
        file = tmp_path / 'my.yaml'
        lines = [f'    {name}: {json.dumps(value)}' for name, value in with_model(of_file).items()]
        file.write_text('\n'.join([f'{section}:', '  ros__parameters:', *lines]))
        arguments += ['--params-file', file]
    for finding in run_doctor(*arguments, *(['--node', node] if node else [])):
        if finding['area'] == 'parameters' or finding['level'] == 'red':
            golden_messages.add('{level} {area}, {name}: {found}'.format(**finding))
        elif finding['area'] == 'model':
            golden_messages.add('{level} {area}, {name}'.format(**finding))


@pytest.mark.parametrize(
    'fault', [f for f in faults.FAULTS if f.phase == 'start'], ids=lambda f: f.name
)
def test_parameters_that_prevent_a_start_are_red(fault, tmp_path, monkeypatch, golden_messages):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'broken.yaml').write_text('{')
    findings = run_doctor(faults.tiny(tmp_path), *fault.parameters)
    (refusal,) = red_findings(findings)
    # rcl refuses the broken file, and its message names places in rcl's sources.
    golden_messages.add('broken.yaml' if 'broken.yaml' in refusal else refusal)
    # The model is not checked, because its parameters are unknown.
    assert [e['level'] for e in findings if e['area'] == 'model'] == ['yellow']


def test_parameters_without_effect_on_the_model_are_yellow():
    path = str(MODELS / 'digits_semantic.onnx')
    values = {
        'engine_path': path,
        'confidence_threshold': 0.4,
        'map_size': 'network',
        'cameras': ['front', 'rear'],
        'camera.rear.class_filter': ['3'],
    }
    node_parameters = NodeParameters.from_values(values)
    with contextlib.closing(open_by_parameters(node_parameters.node)) as pipeline:
        spec = pipeline.spec
    of_node, of_rear = (
        node_parameters.camera(name).unused_parameter_warnings(spec.task, spec.decoder)
        for name in ('front', 'rear')
    )
    findings = run_doctor(*as_arguments(values))

    # The node logs the same sentences. The warning about one camera names the camera.
    assert [sentence.split()[0] for sentence in of_rear] == [
        'confidence_threshold',
        'class_filter',
    ]
    warnings = {e['found']: e['fix'] for e in findings if e['name'] == 'warning'}
    assert list(warnings) == [*of_node, f"camera 'rear': {of_rear[1]}"]
    assert set(warnings.values()) == {'leave it out, unless other models need it'}
    assert {e['level'] for e in findings if e['name'] == 'warning'} == {'yellow'}
    assert red_findings(findings) == []


def test_findings_are_printed_before_ctrl_c_ends_doctor(tmp_path):
    """The graph process hangs. All earlier findings are printed, and Ctrl-C ends doctor."""
    startup_hook = tmp_path / 'sitecustomize.py'
    startup_hook.write_text(
        'import sys, time\n'
        "if 'trt_perception.ros.doctor.ros_graph' in sys.orig_argv:\n    time.sleep(100)\n"
    )
    path = f'{tmp_path}{os.pathsep}{os.environ["PYTHONPATH"]}'
    command = [executable('doctor'), write_tiny_model(tmp_path / 'tiny.onnx')]
    program = Program(command, environment={**UNMEASURED, 'PYTHONPATH': path})
    program.wait_for_output(', dense, input 64x48')  # text of the trial run's finding
    program.send(signal.SIGINT)
    assert program.wait() == 130
    assert 'doctor: ' in program.output
