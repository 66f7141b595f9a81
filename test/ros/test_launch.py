"""The launch files, by the real `ros2 launch`; and the environment that they give the node.

PyPI has no launch. Where ROS 2 is installed by apt, all of this runs.
"""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from ament_index_python.packages import get_package_share_directory
from graph import HANDSHAKE
from graph import Detector
from graph import picture_of
from programs import DEADLINE_S
from programs import Program
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from tiny_model import expected_detections
from vision_msgs.msg import Detection2DArray

from trt_perception.monitoring.transport import transport_environment

pytest_plugins = ['graph_fixtures']

SHARE = Path(get_package_share_directory('trt_perception'))
NEEDED = ('launch', 'launch_ros', 'ros2launch', 'ros2param', 'ros2lifecycle')
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
    from trt_perception.launch_arguments import launch_arguments

    assert arguments_of('detect.launch.py') == {
        name: default for name, (default, _) in launch_arguments(SHARE).items()
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


def environment_of(number):
    """Return the environment of a process."""
    content = Path(f'/proc/{number}/environ').read_bytes().decode()
    return dict(entry.split('=', 1) for entry in content.split('\0') if '=' in entry)


@needs_launch
def test_detect_brings_the_node_to_active_and_ends_cleanly(start_launch, model):
    detector = start_launch(f'engine_path:={model}')
    detector.client.spin_until(lambda: detector.state() == 'active', 'state active')
    detector.connect()
    answer = detector.ask(picture_of(COLOR))
    assert len(answer.detections) == len(expected_detections(COLOR, (128, 96)))
    environment = environment_of(*process_ids(detector.program))
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
    environment = environment_of(*process_ids(detector.program))
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
def test_parameters_are_arguments_and_win_over_every_section_of_the_file(
    client, start_detector, model, tmp_path
):
    def start(namespace):
        sections = ('/**', f'{namespace}/detector')
        parameters = tmp_path / 'mine.yaml'
        parameters.write_text(
            ''.join(
                f'{section}:\n  ros__parameters:\n    confidence_threshold: 0.6\n'
                '    engine_path: /of/the/file.onnx\n    max_detections: 17\n'
                for section in sections
            )
        )
        return launch(
            'detect.launch.py',
            *(f'namespace:={namespace}', f'engine_path:={model}', f'params_file:={parameters}'),
            *('autostart:=false', 'confidence_threshold:=0.9', 'image_transport:=compressed'),
            *('image_qos.reliability:=best_effort', 'debug_image.max_rate_hz:=0'),
            *('model.pad_value:=7', 'use_cuda_graph:=False', 'use_sim_time:=true'),
        )

    detector = start_detector(start=start)
    expected = {
        'engine_path': str(model),
        'autostart': False,
        'confidence_threshold': 0.9,
        'image_transport': 'compressed',
        'image_qos.reliability': 'best_effort',
        'debug_image.max_rate_hz': 0.0,
        'model.pad_value': 7,
        'use_cuda_graph': False,
        'use_sim_time': True,
        'max_detections': 17,  # of the file
        'iou_threshold': 0.45,  # of nobody
    }
    assert {name: detector.get(name) for name in expected} == expected
    detector.bring_to('active')
    detector.program.wait_for_output(
        f'waiting for images on {detector.namespace}/image/compressed'
    )
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
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_node_that_a_signal_ended_stays_away(start_launch, model, number):
    detector = start_launch(f'engine_path:={model}')
    detector.program.wait_for_output('active: waiting for images')
    os.kill(process_ids(detector.program)[0], number)
    # Nothing is left to do for launch: it ends by itself.
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
        # As Ctrl-C to the whole group, which launch passes on besides where no terminal is there.
        for number in (*process_ids(program), program.pid):
            os.kill(number, signal.SIGINT)
        program.wait()
    finally:
        program.close()
    assert program.count('process has finished cleanly') == 2
    assert 'process has died' not in program.output


@needs_launch
def test_wrong_parameters_end_in_words(tmp_path):
    parameters = tmp_path / 'wrong.yaml'
    parameters.write_text('/**:\n  ros__parameters:\n    confidence: 0.6\n')
    program = launch('detect.launch.py', f'params_file:={parameters}')
    try:
        program.wait()
    finally:
        program.close()
    # Once: a second try would end the same.
    assert program.count("'confidence': not known; did you mean 'confidence_threshold'?") == 1
    assert program.count('exit code 2') == 1


@needs_launch
@pytest.mark.parametrize(
    ('argument', 'words'),
    [
        ('autostart:=perhaps', "autostart: expected true or false (got 'perhaps')"),
        ('params_file:=/missing.yaml', "params_file must name a file (got '/missing.yaml')"),
        ('transport_profile:=/missing.xml', 'transport_profile must name a file'),
        ('log_level:=verbose', 'log_level must be one of debug, info, warn, error, fatal'),
        (
            'confidence_threshold:=2',
            "'confidence_threshold': expected a number from 0 to 1 (got 2.0)",
        ),
        ('engine_pth:=a.onnx', "there is no argument 'engine_pth': did you mean engine_path?"),
        ('class_filter:=[person]', "'class_filter' is a list"),
    ],
)
@pytest.mark.parametrize('name', ['detect.launch.py', 'demo.launch.py'])
def test_wrong_argument(name, argument, words):
    program = launch(name, argument)
    try:
        assert program.wait() == 1
    finally:
        program.close()
    assert words in program.output
    assert 'included' not in program.output
    assert not process_ids(program)


@needs_launch
def test_an_argument_that_is_near_none_is_a_warning(start_launch, model):
    detector = start_launch(f'engine_path:={model}', 'rviz:=true', 'autostart:=false')
    assert detector.state() == 'unconfigured'
    assert "there is no argument 'rviz': it changes nothing" in detector.program.output
    assert_clean_end(detector.program)


@needs_launch
def test_what_is_given_leaves_no_file_behind(start_launch, model):
    detector = start_launch(f'engine_path:={model}', 'autostart:=false')
    assert detector.state() == 'unconfigured'
    [number] = process_ids(detector.program)
    command = Path(f'/proc/{number}/cmdline').read_text().split('\0')
    files = [command[i + 1] for i, part in enumerate(command) if part == '--params-file']
    assert len(files) == 2
    assert Path(files[1]).is_file()
    assert_clean_end(detector.program)
    assert not Path(files[1]).exists()
    assert Path(files[0]).is_file()


def typed(command):
    """Run what a user types into a shell, without the daemon, which would outlive the test."""
    verb, _, rest = command.partition(' /')
    return subprocess.run(
        f'{verb} --no-daemon --spin-time 2 /{rest}',
        shell=True,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


@needs_launch
def test_parameters_by_the_real_tool(client):
    detector = Detector(client)
    try:
        assert detector.state() == 'unconfigured'
        set_filter = f'ros2 param set {detector.name} class_filter'
        refused = typed(f'{set_filter} "[3,7]"')
        command = refused.stderr.partition('; for text: ')[2].strip()
        assert command.startswith(set_filter), refused
        assert 'successful' in typed(command).stdout
        assert list(detector.get('class_filter')) == ['3', '7']
        deleted = typed(f'ros2 param delete {detector.name} class_filter')
        assert 'cannot be deleted, the node needs a value' in deleted.stderr
        assert list(detector.get('class_filter')) == ['3', '7']
        command = deleted.stderr.partition('for its default: ')[2].strip()
        assert 'successful' in typed(command).stdout
        assert list(detector.get('class_filter')) == []
    finally:
        detector.close()


# Included by somebody else's launch file.

FOREIGN = """
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument
from launch.actions import ExecuteProcess
from launch.actions import GroupAction
from launch.actions import IncludeLaunchDescription
from launch.actions import TimerAction
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration

def generate_launch_description():
    include = IncludeLaunchDescription(
        PythonLaunchDescriptionSource({file!r}),
        launch_arguments={{
            'namespace': {namespace!r},
            'engine_path': {model!r},
            'confidence_threshold': LaunchConfiguration('confidence'),
            'image_qos.depth': LaunchConfiguration('undeclared', default='2'),
            'max_detection': '7',
        }}.items(),
    )
    return LaunchDescription([
        DeclareLaunchArgument('engine_paths', default_value='9'),
        DeclareLaunchArgument('confidence', default_value='0.5'),
        DeclareLaunchArgument('rviz', default_value='true'),
        *{more},
        {include},
    ])
"""


@pytest.fixture
def start_foreign(start_detector, model, tmp_path):
    """Launch another file that includes detect.launch.py in a namespace of its own."""

    def start(*arguments, include='include', more='()'):
        def start_file(namespace):
            file = tmp_path / 'robot.launch.py'
            detect = str(SHARE / 'launch' / 'detect.launch.py')
            file.write_text(
                FOREIGN.format(
                    file=detect, namespace=namespace, model=str(model), include=include, more=more
                )
            )
            return Program(['ros2', 'launch', str(file), *arguments])

        return start_detector(start=start_file)

    return start


@needs_launch
@pytest.mark.parametrize(
    ('include', 'warnings'),
    [
        ('include', 1),
        ('TimerAction(period=0.1, actions=[include])', 1),
        # There launch tells nobody what was launched.
        ("ExecuteProcess(cmd=['true'], on_exit=[include])", 0),
    ],
    ids=['now', 'by a timer', 'after a process'],
)
def test_a_launch_file_with_arguments_of_its_own_includes_it(start_foreign, include, warnings):
    # Near one of ours: declared and not declared by the other file; far; used but not declared.
    detector = start_foreign(
        *('engine_paths:=7', 'confidence:=0.3', 'imag_topic:=x', 'rviz:=false', 'undeclared:=5'),
        include=include,
    )
    detector.client.spin_until(lambda: detector.state() == 'active', 'state active')
    assert detector.get('confidence_threshold') == 0.3
    assert detector.get('image_qos.depth') == 5
    assert 'engine_paths' not in detector.program.output
    assert 'rviz' not in detector.program.output
    assert detector.program.count("'imag_topic': did you mean image_topic?") == warnings
    # Not typed, but given by the other file itself.
    assert detector.program.count("'max_detection': did you mean max_detections?") == warnings
    assert detector.program.count('did you mean') == 2 * warnings
    assert_clean_end(detector.program, processes=1 + ('ExecuteProcess' in include))


CLASH = "(DeclareLaunchArgument('device_id', default_value='/dev/video0'),)"


@needs_launch
def test_an_argument_of_the_other_file_that_clashes_is_said(model, tmp_path):
    file = tmp_path / 'robot.launch.py'
    detect = str(SHARE / 'launch' / 'detect.launch.py')
    file.write_text(
        FOREIGN.format(
            file=detect, namespace='/clash', model=str(model), include='include', more=CLASH
        )
    )
    program = Program(['ros2', 'launch', str(file)])
    try:
        assert program.wait() == 1
    finally:
        program.close()
    assert "device_id: expected a whole number (got '/dev/video0')" in program.output
    assert 'GroupAction([…], forwarding=False)' in program.output


@needs_launch
def test_a_group_that_forwards_nothing_ends_the_clash(start_foreign):
    group = (
        'GroupAction([include], forwarding=False, launch_configurations='
        "{'confidence': LaunchConfiguration('confidence')})"
    )
    detector = start_foreign('confidence:=0.3', include=group, more=CLASH)
    detector.client.spin_until(lambda: detector.state() == 'active', 'state active')
    assert (detector.get('confidence_threshold'), detector.get('device_id')) == (0.3, 0)
    assert_clean_end(detector.program)


@needs_launch
def test_the_example_of_the_page_includes_it(start_detector, model, tmp_path):
    page = Path(__file__).resolve().parents[2] / 'docs' / 'operation.md'
    [example] = re.findall(
        r'^```xml\n(.*?)^```', page.read_text(encoding='utf-8'), re.DOTALL | re.MULTILINE
    )

    def start(namespace):
        file = tmp_path / 'robot.launch.xml'
        file.write_text(
            example.replace('/path/to/yolo.onnx', str(model)).replace('"front"', f'"{namespace}"')
        )
        return Program(['ros2', 'launch', str(file)])

    detector = start_detector(start=start)
    detector.client.spin_until(lambda: detector.state() == 'active', 'state active')
    assert detector.get('image_transport') == 'compressed'
    assert_clean_end(detector.program)


@needs_launch
def test_show_args_lists_them():
    shown = launch('detect.launch.py', '--show-args')
    try:
        assert shown.wait() == 0
    finally:
        shown.close()
    words = ' '.join(shown.output.split())
    assert "'confidence_threshold': A detection's score must be above this. (0 to 1)" in words
    assert "'image_qos.reliability': auto starts reliable" in words
    assert "'class_filter'" not in words


@needs_launch
def test_demo(client):
    heard, subscription = client.subscribe(Detection2DArray, '/detections')
    program = launch('demo.launch.py', 'rate:=10')
    try:
        client.spin_until(lambda: sum(len(m.detections) for m in heard) > 5, 'detected digits')
        names = {d.results[0].hypothesis.class_id for m in heard for d in m.detections}
        assert names <= set('0123456789')
        # Camera and detector have the same transport.
        profile = str(SHARE / 'config' / 'fastdds_large_images.xml')
        for number in process_ids(program):
            assert [environment_of(number)[name] for name in PROFILES] == [profile] * 2
        assert_clean_end(program, processes=2)
    finally:
        program.close()
        client.node.destroy_subscription(subscription)
