"""The launch files, by the real `ros2 launch`; and the environment that they give the node.

PyPI has no launch. Where ROS 2 is installed by apt, all of this runs.
"""

import importlib.util
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from ament_index_python.packages import get_package_share_directory
from graph import HANDSHAKE
from graph import picture_of
from programs import Program
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from tiny_model import expected_detections
from vision_msgs.msg import Detection2DArray

from trt_perception.transport import transport_environment

pytest_plugins = ['graph_fixtures']

SHARE = Path(get_package_share_directory('trt_perception'))
NEEDED = ('launch', 'launch_ros', 'ros2launch')
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
needs_launch = pytest.mark.skipif(
    bool(MISSING) or shutil.which('ros2') is None,
    reason=f'{", ".join(MISSING) or "ros2"} is not installed (not on PyPI; apt has it: ros-base)',
)
PROFILES = ('FASTRTPS_DEFAULT_PROFILES_FILE', 'FASTDDS_DEFAULT_PROFILES_FILE')
ALLOCATOR = ('MALLOC_MMAP_THRESHOLD_', 'MALLOC_TRIM_THRESHOLD_', 'MALLOC_TOP_PAD_')
COLOR = (200, 120, 60)


# What the node's environment becomes: nothing of launch is needed.


def test_everything_is_set_in_an_empty_environment():
    added = transport_environment('/large.xml', {})
    assert set(added) == {*PROFILES, *ALLOCATOR}
    assert [added[name] for name in PROFILES] == ['/large.xml'] * 2
    assert all(int(added[name]) >= 64 * 1024 * 1024 for name in ALLOCATOR)


@pytest.mark.parametrize('name', [*PROFILES, *ALLOCATOR])
@pytest.mark.parametrize('value', ['/mine.xml', ''])
def test_a_value_of_the_user_is_left_alone(name, value):
    added = transport_environment('/large.xml', {name: value, 'OTHER': 'x'})
    assert set(added) == {*PROFILES, *ALLOCATOR} - {name}


def test_no_profile():
    assert set(transport_environment('', {})) == set(ALLOCATOR)


def test_the_process_environment_is_the_default(monkeypatch):
    for name in (*PROFILES, *ALLOCATOR):
        monkeypatch.setenv(name, 'mine')
    assert transport_environment('/large.xml') == {}


# The files themselves.


def arguments_of(name):
    """Return the default of each argument that a launch file declares."""
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
def test_arguments_of_detect():
    assert arguments_of('detect.launch.py') == {
        'engine_path': '',
        'image_topic': 'image',
        'params_file': str(SHARE / 'config' / 'detect.yaml'),
        'namespace': '',
        'autostart': 'true',
        'log_level': 'info',
        'transport_profile': str(SHARE / 'config' / 'fastdds_large_images.xml'),
    }


@needs_launch
def test_defaults_name_files_that_are_installed():
    for name in ('detect.launch.py', 'demo.launch.py'):
        for default in arguments_of(name).values():
            assert not default.startswith('/') or Path(default).is_file()


# Real launches.


def launch(name, *arguments, environment=None):
    command = ['ros2', 'launch', 'trt_perception', name, *arguments]
    # Without a terminal, launch passes SIGINT on; fixtures have set the profiles of the tests.
    return Program(command, {**dict.fromkeys(PROFILES), **(environment or {})})


@pytest.fixture
def start_launch(start_detector):
    """Launch detect.launch.py in a namespace of its own."""

    def start(*arguments, environment=None):
        return start_detector(
            start=lambda namespace: launch(
                'detect.launch.py',
                f'namespace:={namespace}',
                *arguments,
                environment=environment,
            )
        )

    return start


def process_ids(program):
    return [
        int(number) for number in re.findall(r'process started with pid \[(\d+)\]', program.output)
    ]


def assert_clean_end(program, processes=1):
    program.send(signal.SIGINT)
    program.wait()
    assert program.count('process has finished cleanly') == processes
    assert 'process has died' not in program.output
    assert 'Traceback' not in program.output
    for number in process_ids(program):
        assert not Path(f'/proc/{number}').exists()


def environment_of(program):
    """Return the environment of the launched node."""
    [number] = process_ids(program)
    content = Path(f'/proc/{number}/environ').read_bytes().decode()
    return dict(entry.split('=', 1) for entry in content.split('\0') if '=' in entry)


@needs_launch
def test_detect_brings_the_node_to_active_and_ends_cleanly(start_launch, model):
    detector = start_launch(f'engine_path:={model}')
    detector.client.spin_until(lambda: detector.state() == 'active', 'state active')
    detector.connect()
    answer = detector.ask(picture_of(COLOR))
    assert len(answer.detections) == len(expected_detections(COLOR, (128, 96)))
    environment = environment_of(detector.program)
    profile = str(SHARE / 'config' / 'fastdds_large_images.xml')
    assert [environment[name] for name in PROFILES] == [profile] * 2
    assert set(ALLOCATOR) <= set(environment)
    assert_clean_end(detector.program)


@needs_launch
def test_detect_with_all_its_arguments(start_launch, model, tmp_path):
    parameters = tmp_path / 'mine.yaml'
    parameters.write_text(
        '/**:\n  ros__parameters:\n    engine_path: /of/the/file.onnx\n    autostart: true\n'
        '    confidence_threshold: 0.6\n'
    )
    mine = tmp_path / 'mine.xml'
    mine.write_text((SHARE / 'config' / 'fastdds_large_images.xml').read_text())
    detector = start_launch(
        f'engine_path:={model}',
        f'params_file:={parameters}',
        'image_topic:=front/image_raw',
        'autostart:=false',
        'log_level:=debug',
        'transport_profile:=none',
        environment={PROFILES[0]: str(mine), 'MALLOC_TOP_PAD_': '12345'},
    )
    # The arguments win over the file, the file over the defaults.
    assert detector.state() == 'unconfigured'
    assert detector.get('engine_path') == str(model)
    assert detector.get('confidence_threshold') == 0.6
    assert '[DEBUG]' in detector.program.output
    environment = environment_of(detector.program)
    assert environment[PROFILES[0]] == str(mine)
    assert PROFILES[1] not in environment
    assert environment['MALLOC_TOP_PAD_'] == '12345'
    assert environment['MALLOC_TRIM_THRESHOLD_'] != ''
    detector.bring_to('active')
    camera = detector.client.node.create_publisher(
        Image, detector.topic('front/image_raw'), QoSProfile(depth=10)
    )
    detector.connect(picture_of((0, 0, 0), frame_id=HANDSHAKE), camera)
    detector.client.node.destroy_publisher(camera)
    assert_clean_end(detector.program)


@needs_launch
def test_a_node_that_died_comes_back(start_launch, model):
    detector = start_launch(f'engine_path:={model}')
    detector.program.wait_for_output('active: waiting for images')
    os.kill(process_ids(detector.program)[0], signal.SIGKILL)
    detector.program.wait_for_output('active: waiting for images', 2)
    assert detector.program.count('process has died') == 1
    detector.program.send(signal.SIGINT)
    detector.program.wait()
    assert detector.program.count('process has finished cleanly') == 1


@needs_launch
def test_wrong_parameters_end_in_words(tmp_path):
    parameters = tmp_path / 'wrong.yaml'
    parameters.write_text('/**:\n  ros__parameters:\n    confidence: 0.6\n')
    program = launch('detect.launch.py', f'params_file:={parameters}')
    try:
        # Tried again three times, because a respawn does not look at the exit code.
        program.wait()
    finally:
        program.close()
    assert program.count("'confidence' is not known; did you mean 'confidence_threshold'?") == 4
    assert program.count('exit code 2') == 4


@needs_launch
@pytest.mark.parametrize(
    ('argument', 'words'),
    [
        ('autostart:=perhaps', "autostart must be true or false (got 'perhaps')"),
        ('params_file:=/missing.yaml', "params_file must name a file (got '/missing.yaml')"),
        ('transport_profile:=/missing.xml', 'transport_profile must name a file'),
    ],
)
def test_wrong_argument(argument, words):
    program = launch('detect.launch.py', argument)
    try:
        assert program.wait() == 1
    finally:
        program.close()
    assert words in program.output
    assert 'node up' not in program.output


@needs_launch
def test_demo(client):
    heard, subscription = client.subscribe(Detection2DArray, '/detections')
    program = launch('demo.launch.py', 'rate:=10')
    try:
        client.spin_until(lambda: sum(len(m.detections) for m in heard) > 5, 'detected digits')
        names = {d.results[0].hypothesis.class_id for m in heard for d in m.detections}
        assert names <= set('0123456789')
        assert_clean_end(program, processes=2)
    finally:
        program.close()
        client.node.destroy_subscription(subscription)
