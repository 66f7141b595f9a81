# SPDX-License-Identifier: Apache-2.0
"""Tests of commands in messages: a shell with the reader's PATH can run them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import trt_perception
from trt_perception.process.tool_command import (
    ROS2_VARIABLE,
    RUN_VARIABLE,
    ros2_command,
    tool_command,
)

#: Like ``ros2 run``: runs the executable of a package in AMENT_PREFIX_PATH.
ROS2 = 'for prefix in $(echo "$AMENT_PREFIX_PATH" | tr : " "); do\n'
ROS2 += '  executable="$prefix/lib/$2/$3"; shift 3; exec "$executable" "$@"\ndone\nexit 3'
TOOL = 'echo "tool runs with $1 and $2"'


def write_program(path, script):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\n{script}\n')
    path.chmod(0o755)


@pytest.fixture
def only_path_folder(tmp_path, monkeypatch):
    """Return the only folder on PATH. It contains the programs ``echo`` and ``tr``."""
    folder = tmp_path / 'reader'
    folder.mkdir()
    monkeypatch.delenv(RUN_VARIABLE)
    monkeypatch.delenv('AMENT_PREFIX_PATH', raising=False)
    for program in ('echo', 'tr'):
        (folder / program).symlink_to(f'/usr/bin/{program}')
    monkeypatch.setenv('PATH', str(folder))
    return folder


def output_of(command):
    ended = subprocess.run(['/bin/sh', '-c', command], capture_output=True, text=True)
    assert ended.returncode == 0, f'{command}: {ended.stderr}'
    return ended.stdout


def test_command_uses_the_script_that_started_the_process(only_path_folder, monkeypatch):
    script = only_path_folder / 'a folder' / 'run'
    write_program(script, 'shift 3; ' + TOOL)
    monkeypatch.setenv(RUN_VARIABLE, f"'{script}' --distro kilted")
    write_program(only_path_folder / 'tool', 'exit 3')
    assert output_of(tool_command('tool', '1 2', "it's")) == "tool runs with 1 2 and it's\n"


def test_command_uses_ros2_if_it_finds_the_package(only_path_folder, tmp_path, monkeypatch):
    write_program(only_path_folder / 'ros2', ROS2)
    write_program(tmp_path / 'lib/trt_perception/tool', TOOL)
    monkeypatch.setenv('AMENT_PREFIX_PATH', f'{tmp_path}{os.pathsep}/opt/other')
    assert output_of(tool_command('tool', '1 2', '$3')) == 'tool runs with 1 2 and $3\n'


def test_command_uses_a_console_script_if_ros2_does_not_find_the_package(
    only_path_folder, monkeypatch
):
    write_program(only_path_folder / 'ros2', 'exit 3')
    write_program(only_path_folder / 'tool', TOOL)
    monkeypatch.setenv('AMENT_PREFIX_PATH', '/opt/other')
    assert output_of(tool_command('tool', '1', '2')) == 'tool runs with 1 and 2\n'


@pytest.mark.parametrize('tool', ['benchmark_engine', 'build_engine', 'write_manifest'])
def test_command_runs_the_module_if_nothing_is_on_the_path(only_path_folder, tool, monkeypatch):
    package = Path(trt_perception.__file__).parents[1]
    monkeypatch.setenv('PYTHONPATH', f'{package}{os.pathsep}{os.environ.get("PYTHONPATH", "")}')
    command = tool_command(tool, '--help')
    assert command.startswith(sys.executable)
    assert tool in output_of(command)


def test_command_of_ros2_uses_the_script_of_a_checkout_without_ros2(only_path_folder, monkeypatch):
    script = only_path_folder / 'a folder' / 'run'
    write_program(script, 'shift 1; ' + TOOL)
    monkeypatch.setenv(ROS2_VARIABLE, f"'{script}'")
    assert output_of(ros2_command('param', 'a b', "it's")) == "tool runs with a b and it's\n"


def test_command_of_ros2_uses_ros2_outside_of_a_checkout(only_path_folder, monkeypatch):
    monkeypatch.delenv(ROS2_VARIABLE)
    write_program(only_path_folder / 'ros2', 'shift 1; ' + TOOL)
    assert output_of(ros2_command('param', '1', '$3')) == 'tool runs with 1 and $3\n'
