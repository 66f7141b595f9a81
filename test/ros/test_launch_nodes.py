"""What the launch files start for each set of arguments, and how they refuse mistakes.

`ros2 launch` runs in this process and describes nodes instead of starting them; test_launch.py
starts them.
"""

import importlib
import logging
import os
import re
import shlex
from pathlib import Path

import pytest

from support.nodes.launching import ALLOCATOR, SHARE, needs_launch
from trt_perception.transport.advice import PROFILE_VARIABLES

pytest_plugins = ['support.nodes.graph_fixtures']

DETECT, DEMO = 'detect.launch.py', 'demo.launch.py'
MODEL = 'engine_path:=model.onnx'
MISTAKES = [
    *('autostart:=perhaps', 'confidence_threshold:=2', 'log_level:=verbose'),
    *('params_file:=/missing.yaml', 'transport_profile:=/missing.xml'),
    *('cameras:=front,front', 'image_topic:=/{camera}/image', 'camera.front.enabled:=true'),
    *('engine_pth:=a.onnx', 'class_filter:=[person]'),
]
#: Another launch file that includes detect.launch.py, as INCLUDE, and declares MORE arguments.
OTHER = """
from launch import LaunchDescription
from launch.actions import *
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration

def generate_launch_description():
    include = IncludeLaunchDescription(
        PythonLaunchDescriptionSource('SHARE/launch/detect.launch.py'),
        launch_arguments={
            'namespace': '/front',
            'engine_path': 'model.onnx',
            'confidence_threshold': LaunchConfiguration('confidence'),
            'image_qos.depth': LaunchConfiguration('undeclared', default='2'),
            'max_detection': '7',
        }.items(),
    )
    return LaunchDescription([
        DeclareLaunchArgument('engine_paths', default_value='9'),
        DeclareLaunchArgument('confidence', default_value='0.5'),
        DeclareLaunchArgument('rviz', default_value='true'),
        *MORE,
        INCLUDE,
    ])
"""
CLASH = "[DeclareLaunchArgument('device_ids', default_value='/dev/video0')]"
FORWARDS_NOTHING = (
    'GroupAction([include], forwarding=False, launch_configurations='
    "{'confidence': LaunchConfiguration('confidence')})"
)
PUSHED = """
<launch>
  <group>
    <push_ros_namespace namespace="outer"/>
    <set_remap from="left/detections" to="boxes/left"/>
    <include file="SHARE/launch/detect.launch.py">
      <arg name="namespace" value="inner"/>
      <arg name="params_file" value="FOLDER/mine.yaml"/>
      <arg name="engine_path" value="model.onnx"/>
      <arg name="image_topic" value="{camera}/raw"/>
      <arg name="autostart" value="false"/>
    </include>
  </group>
</launch>
"""
MINE = """
/**:
  ros__parameters:
    cameras: [wrong]
/inner/detector:
  ros__parameters:
    cameras: [front]
/outer/inner/detector:
  ros__parameters:
    cameras: [left, right]
"""
[EXAMPLE] = re.findall(
    r'^```xml\n(.*?)^```',
    Path(__file__).parents[2].joinpath('docs', 'operation.md').read_text(encoding='utf-8'),
    re.DOTALL | re.MULTILINE,
)


def other(include='include', more='[]'):
    return OTHER.replace('INCLUDE', include).replace('MORE', more)


# Near one of ours: declared and not declared by the other file; far; used but not declared.
TYPED = ('engine_paths:=7', 'confidence:=0.3', 'imag_topic:=x', 'rviz:=false', 'undeclared:=5')
#: Name of a scene: one of our launch files or the text of another one, and what the user types.
SCENES = {
    **{f'{file} {mistake}': (file, mistake) for file in (DETECT, DEMO) for mistake in MISTAKES},
    'one topic for two cameras': (DETECT, 'cameras:=front,rear', 'image_topic:=/image_raw'),
    'detect': (DETECT, MODEL),
    'argument that is near none': (DETECT, MODEL, 'rviz:=true'),
    'cameras by arguments': (
        *(DETECT, MODEL, 'cameras:=front,rear', 'device_ids:=0,2'),
        'image_topic:=/{camera}/image_raw',
    ),
    'cameras by a file whose section names the node': (
        *(DETECT, 'namespace:=inner', 'params_file:=FOLDER/mine.yaml'),
        'image_topic:=cameras/{camera}',
    ),
    'parameters': (
        *(DETECT, MODEL, 'params_file:=FOLDER/mine.yaml', 'namespace:=/front'),
        *('autostart:=false', 'log_level:=debug', 'transport_profile:=none'),
        *('confidence_threshold:=0.9', 'image_transport:=compressed', 'use_sim_time:=true'),
        *('image_qos.reliability:=best_effort', 'debug_image.max_rate_hz:=0'),
        *('model.pad_value:=7', 'use_cuda_graph:=False'),
    ),
    'transport profile': (DETECT, MODEL, 'transport_profile:=FOLDER/mine.yaml'),
    'demo': (DEMO, 'rate:=10'),
    'demo of two cameras': (DEMO, 'cameras:=2', 'transport_profile:=none'),
    'demo of named cameras': (DEMO, 'cameras:=front,rear'),
    'included': (other(), *TYPED),
    'included by a timer': (other('TimerAction(period=0.01, actions=[include])'), *TYPED),
    # There launch tells nobody what was launched.
    'included after a process': (
        *(other("ExecuteProcess(cmd=['true'], on_exit=[include])"), *TYPED),
    ),
    'included, argument clashes': (other(more=CLASH), 'confidence:=0.3'),
    'included, group forwards nothing': (other(FORWARDS_NOTHING, CLASH), 'confidence:=0.3'),
    'included in a namespace that another file pushed': (PUSHED,),
    'included by the example of the page': (EXAMPLE,),
}


@pytest.fixture
def _launch_logs(caplog):
    """Record what launch logs. Its loggers propagate nothing, nor would all later ones."""
    logger_class = logging.getLoggerClass()
    importlib.import_module('launch.logging')
    loggers = [logging.getLogger(name) for name in ('launch', DETECT)]
    for logger in loggers:
        logger.addHandler(caplog.handler)
    yield
    for logger in loggers:
        logger.removeHandler(caplog.handler)
    logging.setLoggerClass(logger_class)


@pytest.fixture
def launched(tmp_path, monkeypatch, caplog, _launch_logs):
    """Launch a file; return the exit code, warnings and errors, and the nodes to start."""
    (tmp_path / 'mine.yaml').write_text(MINE)
    for name in (*PROFILE_VARIABLES, *ALLOCATOR):
        monkeypatch.delenv(name, raising=False)

    def launch(file, *arguments):
        from launch.actions import ExecuteProcess
        from launch_ros.actions import Node
        from ros2launch.api import launch_a_launch_file

        path = SHARE / 'launch' / file
        if '\n' in file:
            path = tmp_path / f'robot.launch.{"xml" if "<launch>" in file else "py"}'
            path.write_text(file.replace('SHARE', str(SHARE)).replace('FOLDER', str(tmp_path)))
        nodes, execute = [], ExecuteProcess.execute

        def record(action, context):
            if not isinstance(action, Node):
                return execute(action, context)
            action.prepare(context)
            nodes.append(action.process_description)
            return None

        monkeypatch.setattr(ExecuteProcess, 'execute', record)
        code = launch_a_launch_file(
            launch_file_path=str(path),
            launch_file_arguments=[word.replace('FOLDER', str(tmp_path)) for word in arguments],
            noninteractive=True,
        )
        logged = [
            f'{record.levelname} {record.getMessage()}'
            for record in caplog.records
            if record.levelno > logging.INFO
        ]
        return code, logged, nodes

    return launch


def described(node):
    """Return command, given parameters and changed environment of a node."""
    program, *words = node.final_cmd
    lines = [shlex.join([Path(program).name, *words])]
    for path in re.findall(r'\S+/detect_launch_\w+', lines[0]):
        lines[0] = lines[0].replace(path, 'GIVEN')
        lines.append(Path(path).read_text())
    changed = sorted(set(node.final_env.items()) - set(os.environ.items()))
    return '\n'.join([*lines, *(f'{name}={value}' for name, value in changed)])


@needs_launch
@pytest.mark.parametrize('scene', SCENES)
def test_nodes_of_launch_files(scene, launched, golden_messages):
    code, logged, nodes = launched(*SCENES[scene])
    assert (code != 0) == (not nodes)
    for text in (f'exit code {code}', *logged, *map(described, nodes)):
        golden_messages.add(text.replace(str(SHARE), 'SHARE'))


@needs_launch
def test_the_users_environment_wins(launched, monkeypatch):
    mine = {PROFILE_VARIABLES[0]: 'mine.xml', ALLOCATOR[0]: '12345'}
    for name, value in mine.items():
        monkeypatch.setenv(name, value)
    _, _, [node] = launched(DETECT, MODEL)
    assert {name: node.final_env[name] for name in mine} == mine
    assert node.final_env[PROFILE_VARIABLES[1]].startswith(str(SHARE))
