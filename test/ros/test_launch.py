# SPDX-License-Identifier: Apache-2.0
"""Test the launch files with the real `ros2 launch`."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

from support.models.tiny_model import expected_detections
from support.nodes.graph import HANDSHAKE, Detector, picture_of
from support.nodes.launching import (
    ALLOCATOR,
    SHARE,
    assert_clean_end,
    environment_of,
    launch,
    needs_launch,
    process_ids,
)
from support.programs import DEADLINE_S, Program
from trt_perception.transport.advice import PROFILE_VARIABLES

pytest_plugins = ['support.nodes.graph_fixtures', 'support.nodes.launch_fixtures']

COLOR = (200, 120, 60)


# Tests of the arguments of the launch files.


def default_arguments(name):
    """Return the defaults of a launch file's arguments, by name."""
    from launch import LaunchContext
    from launch.launch_description_sources import get_launch_description_from_python_launch_file

    description = get_launch_description_from_python_launch_file(str(SHARE / 'launch' / name))
    context = LaunchContext()
    defaults = {}
    for argument in description.get_launch_arguments():
        assert argument.description not in ('', 'no description given'), argument.name
        defaults[argument.name] = ''.join(
            part.perform(context) for part in argument.default_value or ()
        )
    return defaults


@needs_launch
def test_detect_declares_all_launch_arguments():
    from trt_perception.parameters.launch_arguments import launch_arguments

    assert default_arguments('detect.launch.py') == {
        name: default for name, (default, _) in launch_arguments(SHARE).items()
    }


@needs_launch
def test_default_files_are_installed():
    for name in ('detect.launch.py', 'demo.launch.py'):
        for default in default_arguments(name).values():
            assert not default.startswith('/') or Path(default).is_file()


# Tests that start nodes. test_launch_nodes.py tests the commands of all nodes.


@needs_launch
def test_node_gets_arguments_over_the_parameter_file(start_launch, model, tmp_path):
    parameters = tmp_path / 'mine.yaml'
    parameters.write_text(
        '/**:\n  ros__parameters:\n    engine_path: /of/the/file.onnx\n    autostart: true\n'
        '    confidence_threshold: 0.3\n'
    )
    detector = start_launch(
        f'engine_path:={model}',
        f'params_file:={parameters}',
        'image_topic:=front/image_raw',
        'autostart:=false',
        'log_level:=debug',
    )
    # Arguments override the file, and the file overrides defaults.
    assert detector.state() == 'unconfigured'
    assert detector.get('engine_path') == str(model)
    assert detector.get('confidence_threshold') == 0.3
    assert detector.get('iou_threshold') == 0.45
    assert '[DEBUG]' in detector.program.output
    [number] = process_ids(detector.program)
    environment = environment_of(number)
    profile = str(SHARE / 'config' / 'fastdds_node.xml')
    assert [environment[name] for name in PROFILE_VARIABLES] == [profile] * 2
    assert set(ALLOCATOR) <= set(environment)
    detector.bring_to('active')
    camera = detector.client.node.create_publisher(
        Image, detector.topic('front/image_raw'), QoSProfile(depth=10)
    )
    detector.connect(picture_of((0, 0, 0), frame_id=HANDSHAKE), camera)
    answer = detector.ask(picture_of(COLOR), camera)
    assert len(answer.detections) == len(expected_detections(COLOR, (128, 96)))
    detector.client.node.destroy_publisher(camera)
    command = Path(f'/proc/{number}/cmdline').read_text().split('\0')
    files = [command[i + 1] for i, part in enumerate(command) if part == '--params-file']
    assert files[0] == str(parameters)
    assert Path(files[1]).is_file()
    assert_clean_end(detector.program)
    assert [Path(file).exists() for file in files] == [True, False]


@needs_launch
def test_node_with_wrong_parameters_is_not_restarted(tmp_path):
    parameters = tmp_path / 'wrong.yaml'
    parameters.write_text('/**:\n  ros__parameters:\n    confidence: 0.6\n')
    program = launch('detect.launch.py', f'params_file:={parameters}')
    try:
        program.wait()
    finally:
        program.close()
    assert len(process_ids(program)) == 1
    assert program.count('exit code 2') == 1


@needs_launch
def test_killed_node_is_restarted(start_launch, model):
    detector = start_launch(f'engine_path:={model}')
    detector.program.wait_for_output('active: waiting for images')
    os.kill(process_ids(detector.program)[0], signal.SIGKILL)
    detector.program.wait_for_output('active: waiting for images', 2)
    assert detector.program.count('process has died') == 1
    detector.program.send(signal.SIGINT)
    detector.program.wait()
    assert detector.program.count('process has finished cleanly') == 1


@needs_launch
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_node_that_a_signal_ended_is_not_restarted(start_launch, model, number):
    detector = start_launch(f'engine_path:={model}')
    detector.program.wait_for_output('active: waiting for images')
    os.kill(process_ids(detector.program)[0], number)
    # `ros2 launch` also ends, because none of its processes remains.
    assert detector.program.wait() == 0
    assert detector.program.count('process has finished cleanly') == 1
    assert len(process_ids(detector.program)) == 1
    assert 'Traceback' not in detector.program.output


TWO = """
from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import GroupAction
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import PushRosNamespace

DETECT = get_package_share_directory('trt_perception') + '/launch/detect.launch.py'


def detector(name):
    include = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(DETECT),
        launch_arguments={'engine_path': LaunchConfiguration('engine_path')}.items(),
    )
    return GroupAction([PushRosNamespace(name), include])


def generate_launch_description():
    return LaunchDescription([detector('front'), detector('rear')])
"""


@needs_launch
def test_two_detectors_end_cleanly(model, tmp_path):
    path = tmp_path / 'two.launch.py'
    path.write_text(TWO)
    program = Program(['ros2', 'launch', str(path), f'engine_path:={model}'])
    try:
        program.wait_for_output('active: waiting for images', 2)
        # Like Ctrl-C, which signals the process group. Without a terminal, launch signals again.
        for number in (*process_ids(program), program.pid):
            os.kill(number, signal.SIGINT)
        program.wait()
    finally:
        program.close()
    assert program.count('process has finished cleanly') == 2
    assert 'process has died' not in program.output


def run_typed(client, command):
    """Run a command in a shell as a user types it, but without the ROS daemon.

    The daemon would outlive the test.
    """
    verb, _, rest = command.partition(' /')

    def ran():
        ended = subprocess.run(
            f'{verb} --no-daemon --spin-time 2 /{rest}',
            shell=True,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        return None if 'Node not found' in ended.stdout + ended.stderr else ended

    return client.spin_until(ran, 'the node that the tool looks for')


@needs_launch
def test_suggested_commands_work_with_ros2_param(client):
    detector = Detector(client)
    try:
        assert detector.state() == 'unconfigured'
        set_filter = f'ros2 param set {detector.name} class_filter'
        refused = run_typed(client, f'{set_filter} "[3,7]"')
        command = refused.stderr.partition('; for text: ')[2].strip()
        assert command.startswith(set_filter), refused
        assert 'successful' in run_typed(client, command).stdout
        assert list(detector.get('class_filter')) == ['3', '7']
        deleted = run_typed(client, f'ros2 param delete {detector.name} class_filter')
        assert 'cannot be deleted, the node needs a value' in deleted.stderr
        assert list(detector.get('class_filter')) == ['3', '7']
        command = deleted.stderr.partition('for its default: ')[2].strip()
        assert 'successful' in run_typed(client, command).stdout
        assert list(detector.get('class_filter')) == []
    finally:
        detector.close()


@needs_launch
def test_show_args_lists_parameters():
    shown = launch('detect.launch.py', '--show-args')
    try:
        assert shown.wait() == 0
    finally:
        shown.close()
    words = ' '.join(shown.output.split())
    assert "'confidence_threshold': Only detections with a score above this" in words
    assert "'image_qos.reliability': auto: start reliable" in words
    assert "'class_filter': " in words


@needs_launch
def test_demo_of_two_cameras_detects_digits(client):
    subscriptions = [client.subscribe(Detection2DArray, f'/camera_{n}/detections') for n in (1, 2)]
    program = launch('demo.launch.py', 'rate:=10', 'cameras:=2')
    try:
        client.spin_until(
            lambda: all(
                sum(len(m.detections) for m in messages) > 5 for messages, _ in subscriptions
            ),
            'detections of both cameras',
        )
        found = [
            d for messages, _ in subscriptions for message in messages for d in message.detections
        ]
        assert {d.results[0].hypothesis.class_id for d in found} <= set('0123456789')
        assert_clean_end(program, processes=3)
    finally:
        program.close()
        for _, subscription in subscriptions:
            client.node.destroy_subscription(subscription)
