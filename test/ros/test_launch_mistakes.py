"""Mistyped arguments of the launch files, and other people's launch files that include them."""

import re
from pathlib import Path

import pytest

from support.nodes.launching import SHARE, assert_clean_end, launch, needs_launch, process_ids
from support.programs import Program

pytest_plugins = ['support.nodes.graph_fixtures', 'support.nodes.launch_fixtures']


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
        ('cameras:=front,front', "'cameras': expected different names (got 'front' twice)"),
        ('image_topic:=/{camera}/image', 'no cameras; say which cameras there are'),
        ('camera.front.enabled:=true', 'config/cameras.yaml'),
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
def test_one_topic_for_two_cameras():
    program = launch('detect.launch.py', 'cameras:=front,rear', 'image_topic:=/image_raw')
    try:
        assert program.wait() == 1
    finally:
        program.close()
    assert 'a topic for each of front, rear, as in /{camera}/image_raw' in program.output
    assert not process_ids(program)


@needs_launch
def test_an_argument_that_is_near_none_is_a_warning(start_launch, model):
    detector = start_launch(f'engine_path:={model}', 'rviz:=true', 'autostart:=false')
    assert detector.state() == 'unconfigured'
    assert "there is no argument 'rviz': it changes nothing" in detector.program.output
    assert_clean_end(detector.program)


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


ROBOT = """
<launch>
  <group>
    <push_ros_namespace namespace="{outer}"/>
    <set_remap from="left/detections" to="boxes/left"/>
    <include file="{file}">
      <arg name="namespace" value="inner"/>
      <arg name="params_file" value="{parameters}"/>
      <arg name="engine_path" value="{model}"/>
      <arg name="image_topic" value="{{camera}}/raw"/>
      <arg name="autostart" value="false"/>
    </include>
  </group>
</launch>
"""


@needs_launch
def test_cameras_of_a_file_in_a_namespace_that_another_file_pushed(model, tmp_path):
    parameters = tmp_path / 'mine.yaml'
    parameters.write_text(
        '/outer/inner/detector:\n  ros__parameters:\n    cameras: [left, right]\n'
        '/inner/detector:\n  ros__parameters:\n    cameras: [wrong]\n'
    )
    file = tmp_path / 'robot.launch.xml'
    detect = SHARE / 'launch' / 'detect.launch.py'
    file.write_text(ROBOT.format(outer='outer', file=detect, parameters=parameters, model=model))
    program = Program(['ros2', 'launch', str(file)])
    try:
        program.wait_for_output('unconfigured, as autostart is false')
        [number] = process_ids(program)
        words = set(Path(f'/proc/{number}/cmdline').read_text().split('\0'))
        assert {'left/image:=left/raw', 'right/image:=right/raw'} < words
        assert 'left/detections:=boxes/left' in words
        assert '__ns:=/outer/inner' in words
        assert_clean_end(program)
    finally:
        program.close()


CLASH = "(DeclareLaunchArgument('device_ids', default_value='/dev/video0'),)"


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
    assert "device_ids: expected numbers with commas between them (got '/dev/video0')" in (
        program.output
    )
    assert 'GroupAction([…], forwarding=False)' in program.output


@needs_launch
def test_a_group_that_forwards_nothing_ends_the_clash(start_foreign):
    group = (
        'GroupAction([include], forwarding=False, launch_configurations='
        "{'confidence': LaunchConfiguration('confidence')})"
    )
    detector = start_foreign('confidence:=0.3', include=group, more=CLASH)
    detector.client.spin_until(lambda: detector.state() == 'active', 'state active')
    assert detector.get('confidence_threshold') == 0.3
    assert list(detector.get('device_ids')) == [0]
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
