# SPDX-License-Identifier: Apache-2.0
"""Tests of starts with wrong parameters, which end with error lines, and with unusual values."""

import itertools
import os
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from ament_index_python.packages import get_package_share_directory

from support import forked
from support.optional_packages import needs
from support.oracles.family_outputs import NAMES, OUTPUTS, network, random_objects
from support.programs import DEADLINE_S, executable
from trt_perception.parameters.launch_arguments import parameter_file_text, parameter_values
from trt_perception.process.tool_command import LAUNCH_VARIABLE
from trt_perception.ros.doctor.parameters import read_parameters

pytest_plugins = ['support.nodes.graph_fixtures']


def start(*arguments, program='detector_node', before=()):
    """Start a program that must end by itself. Return its exit code and its output."""
    command = [executable(program), *before, '--ros-args', *arguments]
    ended = forked.run(command, timeout=DEADLINE_S)
    return ended.returncode, ended.stderr + ended.stdout


def errors(output):
    return [line for line in output.splitlines() if line.startswith('error: ')]


def parameter_file(folder, text):
    path = folder / 'parameters.yaml'
    path.write_text(text)
    return '--params-file', str(path)


# Each start reports the mistakes of all its parameters.
WRONG = {
    'limits': [
        'autostart:=1',
        'class_filter:=[1, 2]',
        'completely_different:=1',
        'confidence_threshold:=1.5',
        'confidence_treshold:=0.5',
        'debug_image.max_rate_hz:=1.0e-10',
        'engine_path:=5',
        'image_qos.reliability:=perhaps',
        'max_detections:=0',
        'model.class_names:=[a, b, a]',
        'model.mean:=[0.5]',
        'model.std:=[1.0, 0.0, 1.0]',
        'qos_overrides./image.subscription.depth:=7',
        'use_sim_timex:=5',
    ],
    'types': ['class_filter:=red', 'confidence_threshold:=high', 'max_detections:=2.5'],
    'not a number': ['confidence_threshold:=.nan'],
    'a bool': ['confidence_threshold:=true'],
}


@pytest.mark.parametrize('overrides', WRONG.values(), ids=WRONG)
def test_wrong_parameters_are_reported_in_one_line_each(overrides, golden_messages):
    code, output = start(*itertools.chain(*(('-p', override) for override in overrides)))
    assert code == 2, output
    assert len(errors(output)) == len(overrides)
    golden_messages.add('\n'.join(errors(output)))
    assert 'Traceback' not in output
    assert '[INFO]' not in output


@pytest.mark.parametrize('override', ['use_sim_time:=5', 'start_type_description_service:=x'])
def test_wrong_parameter_of_rclpy_is_reported(override):
    code, output = start('-p', override)
    assert code == 2, output
    [error] = errors(output)
    name, _, value = override.partition(':=')
    for word in (f"'{name}'", value, 'BOOL'):
        assert word in error
    assert 'Traceback' not in output


def test_every_mistake_of_a_file_is_reported_at_once(tmp_path, golden_messages):
    text = """
/**:
  ros__parameters:
    confidence_threshold: 7
    cpu_threads: "two"
    iou_threshold: 0.5
    nms_treshold: 0.4
    model: {color_order: rbg}
"""
    code, output = start(*parameter_file(tmp_path, text))
    assert code == 2, output
    assert len(errors(output)) == 4
    golden_messages.add('\n'.join(errors(output)))
    assert 'Traceback' not in output


@pytest.mark.parametrize(
    'text',
    [
        'confidence_threshold: 0.5\n',
        '/**:\n  ros__parameters:\n    model.mean: [1, 2.0, x]\n',
        '\0',
    ],
    ids=['no head', 'mixed list', 'binary'],
)
def test_invalid_parameter_file_is_reported(tmp_path, text):
    code, output = start(*parameter_file(tmp_path, text))
    assert code == 2, output
    assert errors(output)
    assert 'parameters.yaml' in output
    assert 'Traceback' not in output
    assert '[INFO]' not in output


def test_missing_parameter_file_is_reported(tmp_path):
    code, output = start('--params-file', str(tmp_path / 'missing.yaml'))
    assert code == 2, output
    [error] = errors(output)
    assert 'missing.yaml' in error
    assert '.c:' not in error  # rcl's message has places in its source
    assert 'Traceback' not in output


@pytest.mark.parametrize('argument', ['engine_path:=model.onnx', 'engine_path:=model'])
def test_parameter_before_ros_args_is_refused(argument, golden_messages):
    code, output = start(before=(argument,))
    assert code == 2, output
    golden_messages.add('\n'.join(line for line in output.splitlines() if '[rcl]' not in line))
    assert '[INFO]' not in output


def test_option_in_the_form_of_a_remapping_is_refused(tmp_path, golden_messages):
    code, output = start(before=(str(tmp_path), 'rate:=30'), program='replay_images')
    assert code == 2, output
    golden_messages.add('\n'.join(line for line in output.splitlines() if '[rcl]' not in line))


def test_invalid_ros_argument_is_refused():
    code, output = start('-p', 'no assignment')
    assert code == 2, output
    assert errors(output)
    assert 'Traceback' not in output


@pytest.mark.parametrize('program', ['detector_node', 'replay_images'])
def test_named_pipe_as_parameter_file_is_refused(program, tmp_path, golden_messages):
    """ROS reads the file several times. The second read of a pipe would wait despite signals."""
    os.mkfifo(tmp_path / 'pipe')
    arguments = ('--params-file', str(tmp_path / 'pipe'))
    source = () if program == 'detector_node' else (str(tmp_path),)
    code, output = start(*arguments, program=program, before=source)
    assert code == 2, output
    [error] = errors(output)
    golden_messages.add(error)
    report = read_parameters('/detector', [*arguments])
    assert report['mistakes'] == [error.removeprefix('error: ')]


def test_shell_process_substitution_as_parameter_file_is_refused():
    command = f'{executable("detector_node")} --ros-args --params-file <(echo "/**:")'
    ended = subprocess.run(
        ['bash', '-c', command], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert ended.returncode == 2
    [error] = errors(ended.stderr)
    assert '/dev/fd/' in error


def test_node_name_too_long_for_its_services_is_refused():
    code, output = start('-r', f'__node:={"a" * 230}')
    assert code == 2, output
    assert 'length should not exceed' in errors(output)[0]
    assert 'Traceback' not in output


@pytest.mark.parametrize(
    ('name', 'length'), [('detector:__node:=', 256), ('__ns:=/', 245), ('image:=/', 240)]
)
def test_name_too_long_for_ros_is_refused_in_one_line(name, length):
    """With ``/compressed``, the image topic must not exceed 247 characters, ROS's limit."""
    code, output = start('-r', f'{name}{"a" * length}')
    assert code == 2, output
    # Kilted warns about a variable of Fast DDS.
    assert len([line for line in output.splitlines() if '[WARN]' not in line]) == 1, output
    assert len(errors(output)) == 1


@pytest.mark.parametrize('remap', ['detections:=image', 'image:=/parameter_events'])
def test_two_topics_with_one_name_are_refused(remap, golden_messages):
    code, output = start('-r', remap)
    assert code == 2, output
    [error] = errors(output)
    golden_messages.add(error)
    assert 'Traceback' not in output


def test_words_without_an_option_after_ros_args_are_refused(golden_messages):
    code, output = start('front/image:=/x', 'engine_path:=m.onnx', 'what', '-p', 'autostart:=true')
    assert code == 2
    assert len(errors(output)) == 3
    golden_messages.add('\n'.join(errors(output)))


UNUSUAL = """
/**:
  ros__parameters:
    class_filter: []
    model: {input_size: [], mean: [], std: [1, 1, 1]}
    confidence_threshold: 1
    diagnostics_period_s: 2.0
    use_sim_time: false
"""


def test_empty_lists_and_whole_numbers_are_accepted(start_detector, tmp_path):
    detector = start_detector(arguments=parameter_file(tmp_path, UNUSUAL))
    assert detector.get('confidence_threshold') == 1.0
    assert list(detector.get('class_filter')) == []
    assert list(detector.get('model.std')) == [1.0, 1.0, 1.0]
    # The command line overrides files.
    assert detector.get('diagnostics_period_s') == 0.1


def test_installed_parameter_file_is_accepted(start_detector):
    path = Path(get_package_share_directory('trt_perception')) / 'config' / 'detect.yaml'
    detector = start_detector(arguments=('--params-file', str(path)))
    parameters = yaml.safe_load(path.read_text())['/**']['ros__parameters']
    assert detector.get('max_detections') == parameters['max_detections']
    assert detector.get('image_qos.reliability') == parameters['image_qos']['reliability']
    assert detector.state() == 'unconfigured'


def test_parameters_and_remappings_of_other_nodes_are_reported(
    start_detector, tmp_path, golden_messages
):
    other = tmp_path / 'other.yaml'
    other.write_text('detector:\n  ros__parameters:\n    confidence_threshold: 0.9\n')
    mine = parameter_file(tmp_path, '/**:\n  ros__parameters:\n    max_detections: 7\n')
    remaps = ('image:=/a', 'frnt/masks:=/c', 'rear/image:=/b')
    detector = start_detector(
        arguments=(
            *('--params-file', str(other), *mine),
            *('-p', 'cameras:=[front, rear]', '-p', 'detector:iou_threshold:=0.9'),
            *itertools.chain(*(('-r', remap) for remap in remaps)),
        )
    )
    # The file names /detector, but this node is in a namespace.
    assert (detector.get('confidence_threshold'), detector.get('max_detections')) == (0.25, 7)
    assert detector.get('iou_threshold') == 0.45
    for given in (str(other), 'detector:iou_threshold:=0.9 ', '-r image:=/a ', '-r frnt/masks'):
        golden_messages.add(detector.wait_for_log('WARN', given))
        assert detector.program.count(given) == 1
    assert 'rear/image:=/b ' not in detector.program.output


def test_quoted_text_is_accepted():
    text = ('-p', 'class_filter:=["1", "2"]', '-p', 'engine_path:="5"')
    code, output = start(*text, '-p', 'cpu_threads:=-1')
    assert code == 2
    [error] = errors(output)  # only cpu_threads is invalid
    assert 'cpu_threads' in error


@pytest.mark.parametrize('place', ['command line', 'parameter file'])
@pytest.mark.parametrize(
    ('name', 'value', 'meant'),
    [
        ('confidence_treshold', '0.5', 'confidence_threshold'),
        ('model.class_name', '["a, b", "it\'s", yes please]', 'model.class_names'),
        ('use_cuda_graf', 'true', 'use_cuda_graph'),
        ('engine_pth', '"5"', 'engine_path'),
        ('camera.frnt.enabled', 'false', 'camera.front.enabled'),
        ('cameras.front.enabled', 'false', 'camera.front.enabled'),
    ],
)
def test_line_for_a_mistyped_name_sets_the_parameter(name, value, meant, place, tmp_path):
    def start_with(line):
        cameras = ['-p', 'cameras:=[front]', '-p', 'cpu_threads:=-1']  # a mistake, so it ends
        if place == 'command line':
            return start(*shlex.split(line), *cameras)
        text = f'/**:\n  ros__parameters:\n    {line}\n'
        return start(*parameter_file(tmp_path, text), *cameras)

    given = f'{name}:={value}'
    wrong = f'-p {shlex.quote(given)}' if place == 'command line' else f'{name}: {value}'
    [mistake] = [line for line in errors(start_with(wrong)[1]) if name in line]

    line = mistake.partition('did you mean ')[2]
    corrected = start_with(line)

    assert line.removeprefix('-p ').lstrip("'").startswith(meant)
    [only] = errors(corrected[1])
    assert 'cpu_threads' in only


@needs('onnx')
def test_launched_node_prints_launch_arguments_that_complete_its_model(
    start_detector, tmp_path, monkeypatch
):
    monkeypatch.setenv(LAUNCH_VARIABLE, '1')
    objects = random_objects(np.random.default_rng(0))
    arrays = OUTPUTS['dense'](np.random.default_rng(0), *objects)
    outputs = {name: array[None].astype(np.float32) for name, array in arrays.items()}
    bare = tmp_path / 'bare.onnx'  # has neither metadata nor a manifest
    bare.write_bytes(network(outputs))

    def start_with(arguments):
        """Start a node with the parameter file that detect.launch.py writes."""
        values = dict(word.split(':=', 1) for word in shlex.split(arguments))
        values |= {'engine_path': str(bare), 'autostart': 'true'}
        text = parameter_file_text(parameter_values(values))
        return start_detector(arguments=parameter_file(tmp_path, text))

    def pasted(detector, start, end):
        line = detector.program.wait_for_line(f'.*{re.escape(start)}(.*?){re.escape(end)}')
        return line[1]

    missing = pasted(start_with(''), ' add ', ' (docs/recognition.md)')
    missing = missing.replace('NAME, NAME', ', '.join(NAMES))
    assumed = pasted(start_with(missing), ' and add ', ' with the right values')
    complete = start_with(f'{missing} {assumed}')

    complete.client.spin_until(lambda: complete.state() == 'active', 'the activation')
    assert 'assumed preprocessing' not in complete.program.output
    assert list(complete.get('model.class_names')) == list(NAMES)
