# SPDX-License-Identifier: Apache-2.0
"""Tests of NAME:=VALUE, which ROS reads as a remapping: parameters in this form are refused."""

import contextlib
import io

import pytest
import rclpy

from trt_perception.errors import ConfigError
from trt_perception.parameters.camera import (
    CAMERA_PARAMETERS,
    foreign_parameter,
    suggest_assignment,
    unknown_parameter,
)
from trt_perception.parameters.values import PARAMETERS
from trt_perception.process.option_parser import OptionParser
from trt_perception.ros import topics
from trt_perception.ros.doctor.parameters import read_parameters
from trt_perception.ros.runtime.command_line import check_ros_arguments, parse_own_arguments

# rclpy has no public list of these topics. Services of a node are below the node's name.
ROS_TOPICS = ('clock', 'tf', 'rosout', 'diagnostics', 'parameter_events')
TOPICS = (*topics._CAMERA_TOPICS, *ROS_TOPICS)


def error_output(*words):
    """Return the error output for these command-line words, empty if they are accepted."""
    parser = OptionParser(
        'program', None, '', 'program ...', suggest_assignment, other_name=foreign_parameter
    )
    parser.add_argument('--rate', type=float)
    parser.add_argument('--class-names')
    output = io.StringIO()
    with contextlib.redirect_stderr(output), contextlib.suppress(SystemExit):
        parse_own_arguments(parser, ['program', *words])
    return output.getvalue()


@pytest.mark.parametrize(
    'words',
    [
        [],
        ['--ros-args', '-p', 'engine_path:=x'],
        ['--ros-args', '-p', 'engine_path:=x', '--', '--rate', '5'],
        ['--ros-args', '-r', 'engine_path:=x'],
        ['/engine_path:=/x'],
        ['~/engine_path:=/x'],
        ['front/image:=/front/image_raw'],
        ['detector:image:=/front/image_raw'],
        ['__ns:=/front'],
        ['__node:=other'],
        *([f'{name}:=/other'] for name in TOPICS),
        *([f'{name}:=/other', '--ros-args'] for name in TOPICS),
    ],
    ids=' '.join,
)
def test_remappings_are_accepted(words):
    assert error_output(*words) == ''


@pytest.mark.parametrize('name', [row.name for row in PARAMETERS] + ['use_sim_time'])
def test_parameter_before_ros_args_is_refused(name, golden_messages):
    printed = error_output(f'{name}:=x', '--ros-args', '-p', 'autostart:=true')
    golden_messages.add(printed)


@pytest.mark.parametrize('row', CAMERA_PARAMETERS, ids=lambda row: row.name)
def test_camera_parameter_before_ros_args_is_refused(row, golden_messages):
    printed = error_output(f'camera.front.{row.name}:=x')
    golden_messages.add(printed)


@pytest.mark.parametrize(
    'words',
    [
        ['engin_path:=x'],
        ['-p', 'engine_path:=x'],
        ['engine_path=x'],
        ['--engine_path', 'x'],
        ['--engine_path:=x'],
        ['engine_path:=a b'],
        ['--ros-args', '-p', 'autostart:=true', '--', 'engine_path:=x'],
        ['rate:=30'],
        ['class_names:=a'],
        ['threshold:=0.3'],
        ['device:=cpu'],
    ],
    ids=' '.join,
)
def test_refusal_suggests_the_correct_form(words, golden_messages):
    printed = error_output(*words)
    golden_messages.add(printed)


def test_image_topic_as_a_parameter_is_explained(golden_messages):
    golden_messages.add(unknown_parameter('image_topic', (), '-p {}:=VALUE'.format).fix)


@pytest.mark.parametrize(
    'word',
    [
        *(
            'cat',
            'traffic light',
            'Größe',
            'yes',
            'N',
            'off',
            'True',
            '12',
            '-1',
            '1e5',
            '.5',
            '0x1F',
        ),
        *('null', '~', 'nan', 'inf', '1_000', '1:30', 'a: b', '#1', 'a #1', '- a', '*a', '{a}'),
        *("it's", 'a"b', 'a\\b', '/a/b.so'),
    ],
)
def test_ros_reads_a_suggested_name_as_typed(word):
    suggested = suggest_assignment('class-names', [word])
    report = read_parameters('/detector', ['-p', suggested])
    assert report['mistakes'] == []
    assert report['values'] == {'model.class_names': (word,)}


def refusal_of(file):
    """Return our error for a parameter file, or None; rcl refuses the same files."""
    arguments = ['--ros-args', '--params-file', str(file)]
    context = rclpy.Context()
    try:
        check_ros_arguments(arguments)
    except ConfigError as error:
        with pytest.raises(RuntimeError):
            rclpy.init(args=arguments, context=context)
        return error
    rclpy.init(args=arguments, context=context)
    context.shutdown()
    return None


@pytest.mark.parametrize(
    ('text', 'is_valid'),
    [
        ('/**: {ros__parameters: {cameras: [front, rear}}', False),
        ('/**:\n  ros__parameters:\n    a: 1\n     b: 2', False),
        ('/**:\n\tros__parameters: {}', False),
        ('/**: {ros__parameters: {a: "b}}', False),
        ('/**: {cameras: [front, rear]}', False),
        ('/**: {ros_parameters: {cameras: [front, rear]}}', False),
        ('[front, rear]', False),
        # PyYAML's own parser refuses this tab, but rcl and libyaml accept it.
        ('/**:\n  ros__parameters:\n    a:\t1', True),
        ('/**: {ros__parameters: {a: &name 1}}', True),
        ('/**: {ros__parameters: {cameras: [front, rear]}}', True),
        ('', True),
    ],
)
def test_rcl_also_refuses_unreadable_parameter_files(tmp_path, text, is_valid):
    file = tmp_path / 'my.yaml'
    file.write_text(text)
    assert bool(refusal_of(file)) != is_valid


@pytest.mark.parametrize(
    ('value', 'is_mixed'),
    [
        ('[yes, no, maybe]', True),
        ('[cat, 12]', True),
        ('["cat", 1.5, dog]', True),
        ('\n      - off\n      - car', True),
        ('[yes, no]', False),
        ('["yes", "no", maybe]', False),
        ('[1.0, 1e3]', False),
        ('[]', False),
        ('cat', False),
    ],
)
def test_list_of_texts_and_other_values_is_explained(tmp_path, value, is_mixed):
    file = tmp_path / 'my.yaml'
    file.write_text(f'/**:\n  ros__parameters:\n    model:\n      class_names: {value}\n')
    error = refusal_of(file)
    assert bool(error) == is_mixed
    assert not error or 'model.class_names' in error.subject
