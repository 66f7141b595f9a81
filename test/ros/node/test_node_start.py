"""Starting with wrong parameters: one sentence each, exit code 2; and with unusual right ones."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml
from ament_index_python.packages import get_package_share_directory

from support import forked
from support.programs import DEADLINE_S, executable
from trt_perception.ros.doctor.parameters import read_parameters

pytest_plugins = ['support.nodes.graph_fixtures']


def start(*arguments, program='detector_node', before=()):
    """Start a node that should end by itself; return its exit code and what it printed."""
    command = [executable(program), *before, '--ros-args', *arguments]
    ended = forked.run(command, timeout=DEADLINE_S)
    return ended.returncode, ended.stderr + ended.stdout


def errors(output):
    return [line for line in output.splitlines() if line.startswith('error: ')]


def parameter_file(folder, text):
    path = folder / 'parameters.yaml'
    path.write_text(text)
    return '--params-file', str(path)


WRONG = [
    (
        'confidence_treshold:=0.5',
        ["'confidence_treshold'", "did you mean 'confidence_threshold'?"],
    ),
    ('confidence_threshold:=high', ["'confidence_threshold'", 'a double', "'high'"]),
    ('confidence_threshold:=.nan', ["'confidence_threshold'", 'from 0 to 1', 'nan']),
    ('max_detections:=2.5', ["'max_detections'", 'an integer', '2.5']),
    ('engine_path:=5', ["'engine_path'", 'a string', '5']),
    ('class_filter:=red', ["'class_filter'", 'a list of string', "'red'"]),
    ('class_filter:=[1, 2]', ["'class_filter'", 'a list of string', '1, 2']),
    ('autostart:=1', ["'autostart'", 'a bool', '1']),
    ('use_sim_timex:=5', ["'use_sim_timex'", 'not known']),
    (
        'qos_overrides./image.subscription.depth:=7',
        ["'qos_overrides./image.subscription.depth'", 'set image_qos.reliability'],
    ),
    ('use_sim_time:=5', ["'use_sim_time'", '5', 'BOOL']),
    ('start_type_description_service:=x', ["'start_type_description_service'", 'x', 'BOOL']),
]
# What ROS 2 takes and the package refuses, in the same way whichever ROS 2 that is.
REFUSED = [
    ('completely_different:=1', ["'completely_different'", 'not known', 'docs/parameters.md']),
    ('confidence_threshold:=true', ["'confidence_threshold'", 'a double', 'True']),
    ('confidence_threshold:=1.5', ["'confidence_threshold'", 'from 0 to 1', '1.5']),
    ('max_detections:=0', ["'max_detections'", 'from 1 to 1024', '0']),
    (
        'image_qos.reliability:=perhaps',
        ["'image_qos.reliability'", "'auto', 'reliable'", 'perhaps'],
    ),
    ('model.mean:=[0.5]', ["'model.mean'", '3 values', '1']),
    ('model.std:=[1.0, 0.0, 1.0]', ["'model.std'", 'from 1e-06']),
    ('model.class_names:=[a, b, a]', ["'model.class_names'", 'different names']),
    ('debug_image.max_rate_hz:=1.0e-10', ["'debug_image.max_rate_hz'", '0.01', '1e-10']),
]


@pytest.mark.parametrize(
    ('override', 'words'),
    [pytest.param(*row, id=row[0]) for row in [*WRONG, *REFUSED]],
)
def test_wrong_parameter(override, words):
    code, output = start('-p', override)
    assert code == 2, output
    [error] = errors(output)
    for word in words:
        assert word in error
    assert 'Traceback' not in output
    assert 'node up' not in output


def test_every_mistake_is_named_at_once(tmp_path):
    code, output = start(
        *parameter_file(
            tmp_path,
            """
/**:
  ros__parameters:
    confidence_threshold: 7
    cpu_threads: "two"
    iou_threshold: 0.5
    nms_treshold: 0.4
    model: {color_order: rbg}
""",
        )
    )
    assert code == 2, output
    sentences = errors(output)
    assert len(sentences) == 4
    for name in ('confidence_threshold', 'cpu_threads', 'nms_treshold', 'model.color_order'):
        assert sum(f"'{name}'" in sentence.split(' (got')[0] for sentence in sentences) == 1, name
    assert 'Traceback' not in output


@pytest.mark.parametrize(
    'text',
    [
        '/**:\n  ros__parameters:\n    class_filter: [red\n',
        '/**:\n\tros__parameters:\n',
        'confidence_threshold: 0.5\n',
        '/**:\n  ros__parameters:\n    model.mean: [1, 2.0, x]\n',
        '\0',
    ],
    ids=['bracket', 'tab', 'no head', 'mixed list', 'binary'],
)
def test_yaml_that_does_not_parse(tmp_path, text):
    code, output = start(*parameter_file(tmp_path, text))
    assert code == 2, output
    assert errors(output)
    assert 'parameters.yaml' in output
    assert 'Traceback' not in output
    assert 'node up' not in output


def test_missing_parameter_file(tmp_path):
    code, output = start('--params-file', str(tmp_path / 'missing.yaml'))
    assert code == 2, output
    assert 'missing.yaml' in '\n'.join(errors(output))
    assert 'Traceback' not in output


def test_parameters_before_ros_args():
    code, output = start(before=('engine_path:=model.onnx',))
    assert code == 2, output
    assert 'unrecognized arguments: engine_path:=model.onnx' in output
    assert 'usage: detector_node --ros-args [-p NAME:=VALUE]' in output
    assert 'did you mean the parameter, --ros-args -p engine_path:=model.onnx?' in output


def test_a_parameter_that_ros_takes_for_a_topic():
    code, output = start(before=('engine_path:=model',))
    assert code == 2, output
    assert 'unrecognized arguments: engine_path:=model' in output
    assert 'did you mean the parameter, --ros-args -p engine_path:=model?' in output
    assert 'node up' not in output


def test_an_option_that_ros_takes_for_a_topic(tmp_path):
    code, output = start(before=(str(tmp_path), 'rate:=30'), program='replay_images')
    assert code == 2, output
    assert 'unrecognized arguments: rate:=30' in output
    assert 'rate:=30 is no option; did you mean --rate 30?' in output


def test_wrong_ros_argument():
    code, output = start('-p', 'no assignment')
    assert code == 2, output
    assert errors(output)
    assert 'Traceback' not in output


@pytest.mark.parametrize('program', ['detector_node', 'replay_images'])
def test_a_pipe_is_no_parameter_file(program, tmp_path):
    """ROS reads it several times: the second time would be waited for, whatever signal comes."""
    os.mkfifo(tmp_path / 'pipe')
    arguments = ('--params-file', str(tmp_path / 'pipe'))
    source = () if program == 'detector_node' else (str(tmp_path),)
    code, output = start(*arguments, program=program, before=source)
    assert code == 2, output
    [error] = errors(output)
    assert error.startswith(f'error: --params-file {tmp_path}/pipe: expected a file (got a pipe')
    report = read_parameters('/detector', [*arguments])
    assert report['mistakes'] == [error.removeprefix('error: ')]


def test_a_pipe_of_the_shells_is_none():
    command = f'{executable("detector_node")} --ros-args --params-file <(echo "/**:")'
    ended = subprocess.run(
        ['bash', '-c', command], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert ended.returncode == 2
    [error] = errors(ended.stderr)
    assert 'expected a file (got a pipe' in error


def test_node_name_that_is_too_long_for_its_services_is_refused():
    code, output = start('-r', f'__node:={"a" * 230}')
    assert code == 2, output
    assert 'length should not exceed' in errors(output)[0]
    assert 'Traceback' not in output


@pytest.mark.parametrize(
    ('remap', 'both'),
    [
        ('detections:=image', 'image and detections'),
        ('image:=label_info', 'image and label_info'),
        ('debug_image:=/diagnostics', 'debug_image and /diagnostics'),
        ('image:=/parameter_events', '/parameter_events and image'),
    ],
)
def test_two_topics_of_one_name(remap, both):
    code, output = start('-r', remap)
    assert code == 2, output
    [error] = errors(output)
    assert f'stands for both {both}; give each a name of its own' in error
    assert 'Traceback' not in output


def test_what_stands_behind_ros_args_without_an_option():
    code, output = start('front/image:=/x', 'engine_path:=m.onnx', 'what', '-p', 'autostart:=true')
    assert code == 2
    assert errors(output) == [
        'error: front/image:=/x is no ROS argument; did you mean -r front/image:=/x?',
        'error: engine_path:=m.onnx is no ROS argument; did you mean -p engine_path:=m.onnx?',
        'error: what is no ROS argument',
    ]


UNUSUAL = """
/**:
  ros__parameters:
    class_filter: []
    model: {input_size: [], mean: [], std: [1, 1, 1]}
    confidence_threshold: 1
    diagnostics_period_s: 2.0
    use_sim_time: false
"""


def test_empty_lists_and_whole_numbers_are_fine(start_detector, tmp_path):
    detector = start_detector(arguments=parameter_file(tmp_path, UNUSUAL))
    assert detector.get('confidence_threshold') == 1.0
    assert list(detector.get('class_filter')) == []
    assert list(detector.get('model.std')) == [1.0, 1.0, 1.0]
    # The command line wins over files.
    assert detector.get('diagnostics_period_s') == 0.1


def test_installed_parameter_file_holds_the_defaults(start_detector):
    path = Path(get_package_share_directory('trt_perception')) / 'config' / 'detect.yaml'
    detector = start_detector(arguments=('--params-file', str(path)))
    parameters = yaml.safe_load(path.read_text())['/**']['ros__parameters']
    assert detector.get('max_detections') == parameters['max_detections']
    assert detector.get('image_qos.reliability') == parameters['image_qos']['reliability']
    assert detector.state() == 'unconfigured'


def test_a_file_for_other_nodes_is_said(start_detector, tmp_path):
    other = tmp_path / 'other.yaml'
    other.write_text('detector:\n  ros__parameters:\n    confidence_threshold: 0.9\n')
    mine = parameter_file(tmp_path, '/**:\n  ros__parameters:\n    max_detections: 7\n')
    detector = start_detector(arguments=('--params-file', str(other), *mine))
    # Its name is /detector in no namespace, and here it is in one.
    assert (detector.get('confidence_threshold'), detector.get('max_detections')) == (0.25, 7)
    assert detector.program.count('nothing in') == 1
    assert f'nothing in {other} is for this node, {detector.name}' in detector.program.output
    assert f'name one of its sections {detector.name} or /**' in detector.program.output


def test_a_remapping_of_no_topic_is_said(start_detector):
    cameras = ('-p', 'cameras:=[front, rear]')
    detector = start_detector(
        arguments=(*cameras, '-r', 'image:=/a', '-r', 'rear/image:=/b', '-r', 'frnt/masks:=/c')
    )
    assert detector.state() == 'unconfigured'
    for given, there in (('image:=/a', 'front/image'), ('frnt/masks:=/c', 'front/masks')):
        said = f'-r {given} is for no topic of this node, which has {there}, rear/'
        assert detector.program.count(said) == 1
    assert 'rear/image:=/b is' not in detector.program.output


def test_a_parameter_for_another_node_is_said(start_detector):
    detector = start_detector(arguments=('-p', 'detector:confidence_threshold:=0.9'))
    assert detector.get('confidence_threshold') == 0.25
    assert 'detector:confidence_threshold:=0.9 is for this node' in detector.program.output


@pytest.mark.parametrize(
    ('override', 'text'),
    [('class_filter:=[1, 2]', '["1", "2"]'), ('engine_path:=5', '"5"')],
)
def test_text_without_quotes(override, text):
    code, output = start('-p', override)
    assert code == 2
    [error] = errors(output)
    assert error.endswith(f'; for text: {text}')
    name = override.partition(':=')[0]
    code, output = start('-p', f'{name}:={text}', '-p', 'cpu_threads:=-1')
    [error] = errors(output)  # only the mistake that ends it
    assert 'cpu_threads' in error
