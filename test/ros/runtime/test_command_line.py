"""What ROS would take for the new name of a topic: parameters and options are refused, no more."""

import contextlib
import io

import pytest

from trt_perception.parameters.camera import (
    CAMERA_PARAMETERS,
    suggest_parameter,
    unknown_parameter,
)
from trt_perception.parameters.config import PARAMETERS
from trt_perception.process.option_parser import OptionParser
from trt_perception.ros import topics
from trt_perception.ros.runtime.command_line import parse_own_arguments

# rclpy has no public list of them; a node's services stand below its name.
ROS_TOPICS = ('clock', 'tf', 'rosout', 'diagnostics', 'parameter_events')
TOPICS = (*topics._CAMERA_TOPICS, *ROS_TOPICS)


def answer_to(*words):
    """Return what is said of words, empty where they are taken."""
    parser = OptionParser('program', None, '', 'program ...', suggest_parameter)
    parser.add_argument('--rate', type=float)
    parser.add_argument('--class-names')
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        parse_own_arguments(parser, ['program', *words])
    return said.getvalue()


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
def test_what_ros_takes_rightly(words):
    assert answer_to(*words) == ''


@pytest.mark.parametrize('name', [row.name for row in PARAMETERS] + ['use_sim_time'])
def test_every_parameter_is_refused(name, golden_messages):
    printed = answer_to(f'{name}:=x', '--ros-args', '-p', 'autostart:=true')
    golden_messages.add(printed)


@pytest.mark.parametrize('row', CAMERA_PARAMETERS, ids=lambda row: row.name)
def test_every_parameter_of_a_camera_is_refused(row, golden_messages):
    printed = answer_to(f'camera.front.{row.name}:=x')
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
    ],
    ids=' '.join,
)
def test_what_was_meant(words, golden_messages):
    printed = answer_to(*words)
    golden_messages.add(printed)


def test_a_topic_is_no_parameter(golden_messages):
    golden_messages.add(unknown_parameter('image_topic', ()).fix)
