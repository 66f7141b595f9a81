# SPDX-License-Identifier: Apache-2.0
"""Test `scripts/run lifecycle` and `scripts/run param` with a node of another process."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.programs import run_without_reader
from trt_perception.transport.advice import PROFILE_VARIABLES

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = [pytest.mark.ros, pytest.mark.each_distro]

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / 'scripts/lib/ros2_commands.py'
CHANGEABLE = ('class_filter', 'confidence_threshold', 'debug_image.max_rate_hz', 'model.decoder')


def run(*words):
    """Run a command. Return its exit code, output and errors."""
    ended = subprocess.run(
        [sys.executable, PROGRAM, *words],
        env={k: v for k, v in os.environ.items() if k not in PROFILE_VARIABLES},  # as scripts/run
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert 'Traceback' not in ended.stderr
    return ended.returncode, ended.stdout.rstrip('\n'), ended.stderr.rstrip('\n')


@pytest.fixture
def detector(start_detector, model):
    return start_detector({'engine_path': str(model)})


def test_lifecycle_changes_and_reads_the_state(detector):
    assert run('lifecycle', 'set', detector.name, 'configure') == (0, 'inactive', '')
    assert run('lifecycle', 'set', detector.name, 'activate') == (0, 'active', '')
    assert detector.state() == 'active'
    assert run('lifecycle', 'get', detector.name.removeprefix('/')) == (0, 'active', '')
    code, output, _ = run('lifecycle', 'list', detector.name)
    assert code == 0
    assert [line.partition(':')[0] for line in output.splitlines()] == ['deactivate', 'shutdown']


def test_impossible_transition_is_refused_with_the_possible_ones(detector):
    code, output, error = run('lifecycle', 'set', detector.name, 'activate')
    assert (code, output) == (1, '')
    assert 'unconfigured' in error
    assert error.endswith('configure, shutdown')
    assert detector.state() == 'unconfigured'


def test_failed_transition_has_an_exit_code(start_detector, tmp_path):
    detector = start_detector({'engine_path': str(tmp_path / 'missing.onnx')})
    code, output, error = run('lifecycle', 'set', detector.name, 'configure')
    assert (code, output) == (1, '')
    assert 'unconfigured' in error


def test_closed_output_is_no_error(detector):
    ended = run_without_reader([sys.executable, PROGRAM, 'param', 'list', detector.name])
    assert (ended.returncode, ended.stderr) == (0, '')


def test_parameters_are_set_and_read_as_yaml(detector):
    assert run('param', 'set', detector.name, 'class_filter', '["3", "7"]')[0] == 0
    assert list(detector.get('class_filter')) == ['3', '7']
    assert run('param', 'set', detector.name, 'confidence_threshold', '0.4') == (0, '0.4', '')
    assert detector.get('confidence_threshold') == 0.4
    code, output, _ = run('param', 'list', detector.name)
    assert code == 0
    values = yaml.safe_load(output)
    assert values['confidence_threshold'] == 0.4
    assert values['class_filter'] == ['3', '7']
    assert values['engine_path'] == detector.get('engine_path')


def test_every_listed_value_can_be_set_again(detector):
    for line in run('param', 'list', detector.name)[1].splitlines():
        name, _, value = line.partition(': ')
        if name in CHANGEABLE:
            assert run('param', 'set', detector.name, name, value)[:2] == (0, value)


def test_refused_parameter_shows_the_reason_of_the_node(detector):
    [(_, reason)] = detector.set({'confidence_threshold': 4.0})
    code, output, error = run('param', 'set', detector.name, 'confidence_threshold', '4.0')
    assert (code, output) == (1, '')
    assert error.endswith(reason)


def test_command_in_a_reason_can_be_typed(detector):
    _, _, error = run('param', 'set', detector.name, 'class_filter', '[3, 7]')
    command = shlex.split(error.partition('; for text: ')[2])
    assert command[0] == os.environ['TRT_PERCEPTION_ROS2']
    assert run(*command[1:])[0] == 0
    assert list(detector.get('class_filter')) == ['3', '7']


@pytest.mark.parametrize('value', ['2026-01-01', '{a: 1}', '[', ''])
def test_value_that_is_no_parameter_type_is_sent_as_text(detector, value):
    code, _, error = run('param', 'set', detector.name, 'model.decoder', value)
    assert code == (1 if value else 0)
    assert (repr(value) in error) == bool(value)


def test_unknown_parameter_is_refused_with_a_similar_name(detector):
    code, output, error = run('param', 'get', detector.name, 'confidence_treshold')
    assert (code, output) == (1, '')
    assert 'confidence_threshold' in error


@pytest.mark.parametrize('words', [('lifecycle', 'get'), ('param', 'list')])
def test_unknown_node_is_refused_with_the_nodes_that_run(detector, words):
    assert detector.state() == 'unconfigured'  # discovered
    code, output, error = run(*words, '/no_such_node')
    assert (code, output) == (1, '')
    assert detector.name in re.split('[ ,;]+', error.partition('there are: ')[2])
    assert 'no_such_node' not in error.partition('there are: ')[2]


@pytest.mark.parametrize(
    'words',
    [
        'lifecycle set /detector',
        'lifecycle get /detector configure',
        'lifecycle set /detector start',
        'param set /detector name',
        'param list /detector name',
        'param get /detector',
        'param drop /detector name',
    ],
)
def test_wrong_usage_has_another_exit_code(words):
    code, output, error = run(*words.split())
    assert (code, output) == (2, '')
    assert '--help' in error


@pytest.mark.parametrize('command', ['lifecycle', 'param'])
def test_help_shows_examples(command):
    code, output, _ = run(command, '--help')
    assert code == 0
    assert f'scripts/run {command} set /detector' in output
