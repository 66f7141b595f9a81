# SPDX-License-Identifier: Apache-2.0
"""Test which nodes launch files start for sets of arguments, and which mistakes they refuse.

`ros2 launch` runs in this process, and nodes are recorded instead of started. test_launch.py
starts nodes.
"""

import importlib
import logging
import os
import re
import shlex
from pathlib import Path

import pytest

from support.docs_pages import ROOT
from support.nodes.launching import ALLOCATOR, SHARE, needs_launch
from trt_perception.transport.advice import PROFILE_VARIABLES

pytest_plugins = ['support.nodes.graph_fixtures']

DETECT, DEMO, BOXES = 'detect.launch.py', 'demo.launch.py', 'detections_3d.launch.py'
MODEL = 'engine_path:=model.onnx'
MISTAKES = [
    *('autostart:=perhaps', 'confidence_threshold:=2', 'log_level:=verbose'),
    *('params_file:=/missing.yaml', 'transport_profile:=/missing.xml'),
    *('cameras:=front,front', 'image_topic:=/{camera}/image', 'camera.front.enabled:=true'),
    *('engine_pth:=a.onnx', 'model.mean:=[a]'),
]
#: A user's launch file that includes detect.launch.py by INCLUDE, and declares arguments by MORE.
USER_LAUNCH_FILE = """
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
CLASHING_ARGUMENT = "[DeclareLaunchArgument('device_ids', default_value='/dev/video0')]"
GROUP_WITHOUT_FORWARDING = (
    'GroupAction([include], forwarding=False, launch_configurations='
    "{'confidence': LaunchConfiguration('confidence')})"
)
XML_LAUNCH_FILE = """
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
USER_PARAMETERS = """
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
PARAMETERS_OF_ALL_NODES = """
/**:
  ros__parameters:
    cameras: [front, rear]
    device_ids: [1, 3]
    camera:
      rear:
        enabled: false
"""
[DOCUMENTED_LAUNCH_FILE] = re.findall(
    r'^```xml\n(.*?)^```',
    Path(__file__).parents[2].joinpath('docs', 'operation.md').read_text(encoding='utf-8'),
    re.DOTALL | re.MULTILINE,
)


def user_launch_file(include='include', more='[]'):
    return USER_LAUNCH_FILE.replace('INCLUDE', include).replace('MORE', more)


# engine_paths, confidence and imag_topic resemble arguments of detect.launch.py. Both files have
# an argument rviz: only the user's file starts RViz.
# The user's file declares engine_paths, confidence and rviz. It uses the name `undeclared` without
# declaring it.
TYPED_ARGUMENTS = (
    'engine_paths:=7',
    'confidence:=0.3',
    'imag_topic:=x',
    'rviz:=true',
    'undeclared:=5',
)
#: By name of the scene: a launch file's name or text, and the arguments that the user types.
SCENES = {
    **{f'{file} {mistake}': (file, mistake) for file in (DETECT, DEMO) for mistake in MISTAKES},
    'one topic for two cameras': (DETECT, 'cameras:=front,rear', 'image_topic:=/image_raw'),
    'detect': (DETECT, MODEL),
    'argument near no name': (DETECT, MODEL, 'robot:=true'),
    'cameras by arguments': (
        *(DETECT, MODEL, 'cameras:=front,rear', 'device_ids:=0,2'),
        'image_topic:=/{camera}/image_raw',
    ),
    'cameras by a file whose section names the node': (
        *(DETECT, 'namespace:=inner', 'params_file:=FOLDER/mine.yaml'),
        'image_topic:=cameras/{camera}',
    ),
    'unreadable parameter file': (DETECT, MODEL, 'params_file:=FOLDER/broken.yaml', 'nodes:=2'),
    'parameters': (
        *(DETECT, MODEL, 'params_file:=FOLDER/mine.yaml', 'namespace:=/front'),
        *('autostart:=false', 'log_level:=debug', 'transport_profile:=none'),
        *('confidence_threshold:=0.9', 'image_transport:=compressed', 'use_sim_time:=true'),
        *('image_qos.reliability:=best_effort', 'debug_image.max_rate_hz:=0'),
        *('model.pad_value:=7', 'use_cuda_graph:=False'),
    ),
    'transport profile': (DETECT, MODEL, 'transport_profile:=FOLDER/mine.yaml'),
    'boxes of two cameras': (BOXES, 'cameras:=front,rear', 'depth_topic:=/{camera}/depth'),
    **{
        f'{BOXES} {mistake}': (BOXES, *mistake.split())
        for mistake in (
            'cameras:=front,front',
            'cameras:=front,rear depth_topic:=/depth',
            'depth_topic:=/{camera}/depth',
            'params_file:=/missing.yaml',
            'transport_profile:=/missing.xml',
        )
    },
    'demo': (DEMO, 'rate:=10'),
    'demo of two cameras': (DEMO, 'cameras:=2', 'transport_profile:=none'),
    'demo of named cameras': (DEMO, 'cameras:=front,rear'),
    'two nodes': (
        *(DETECT, MODEL, 'cameras:=front,rear,top', 'device_ids:=0,2', 'nodes:=2'),
        *('image_topic:=/{camera}/image_raw', 'namespace:=robot'),
    ),
    'two nodes of a parameter file': (DETECT, MODEL, 'params_file:=FOLDER/all.yaml', 'nodes:=2'),
    'two nodes, section of one node': (
        *(DETECT, MODEL, 'namespace:=inner', 'params_file:=FOLDER/mine.yaml', 'nodes:=2'),
    ),
    'two nodes, camera without a name': (DETECT, MODEL, 'nodes:=2'),
    'more nodes than cameras': (DETECT, MODEL, 'cameras:=front,rear', 'nodes:=3'),
    'nodes is no number': (DETECT, MODEL, 'nodes:=two'),
    'demo of two nodes': (DEMO, 'cameras:=2', 'nodes:=2', 'transport_profile:=none'),
    'included': (user_launch_file(), *TYPED_ARGUMENTS),
    'included by a timer': (
        user_launch_file('TimerAction(period=0.01, actions=[include])'),
        *TYPED_ARGUMENTS,
    ),
    # In this case, launch does not report which file was launched.
    'included after a process': (
        *(user_launch_file("ExecuteProcess(cmd=['true'], on_exit=[include])"), *TYPED_ARGUMENTS),
    ),
    'included, argument clashes': (user_launch_file(more=CLASHING_ARGUMENT), 'confidence:=0.3'),
    'included, group forwards nothing': (
        user_launch_file(GROUP_WITHOUT_FORWARDING, CLASHING_ARGUMENT),
        'confidence:=0.3',
    ),
    'included in a namespace that another file pushed': (XML_LAUNCH_FILE,),
    'included by the example of the page': (DOCUMENTED_LAUNCH_FILE,),
}


@pytest.fixture
def _launch_logs(caplog):
    """Record messages of launch. Afterwards restore the logger class, which launch replaces."""
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
def launch_file(tmp_path, monkeypatch, caplog, _launch_logs):
    """Return a function that launches a file, and returns exit code, log lines and nodes.

    The log lines are warnings and errors. The nodes are not started.
    """
    (tmp_path / 'mine.yaml').write_text(USER_PARAMETERS)
    (tmp_path / 'all.yaml').write_text(PARAMETERS_OF_ALL_NODES)
    (tmp_path / 'broken.yaml').write_text('/**:\n  ros__parameters: [\n')
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


def describe(node):
    """Return the command, parameter files of the launch and changed environment of a node."""
    program, *words = node.final_cmd
    lines = [shlex.join([Path(program).name, *words])]
    for path in re.findall(r'\S+/(?:detect_launch|launch_params)_\w+', lines[0]):
        lines[0] = lines[0].replace(path, 'GIVEN')
        lines.append(Path(path).read_text())
    changed = sorted(set(node.final_env.items()) - set(os.environ.items()))
    return '\n'.join([*lines, *(f'{name}={value}' for name, value in changed)])


@needs_launch
@pytest.mark.parametrize('scene', SCENES)
def test_launch_files_start_the_recorded_nodes(scene, launch_file, golden_messages):
    code, logged, nodes = launch_file(*SCENES[scene])
    assert (code != 0) == (not nodes)
    for text in (f'exit code {code}', *logged, *map(describe, nodes)):
        golden_messages.add(text.replace(str(SHARE), 'SHARE'))


@needs_launch
def test_environment_of_the_user_is_kept(launch_file, monkeypatch):
    mine = {PROFILE_VARIABLES[0]: 'mine.xml', ALLOCATOR[0]: '12345'}
    for name, value in mine.items():
        monkeypatch.setenv(name, value)
    _, _, [node] = launch_file(DETECT, MODEL)
    assert {name: node.final_env[name] for name in mine} == mine
    assert node.final_env[PROFILE_VARIABLES[1]].startswith(str(SHARE))


@pytest.fixture
def own_prefix(tmp_path, monkeypatch):
    """Return a prefix that has only this package."""
    prefix = tmp_path / 'prefix'
    add_package(prefix, 'trt_perception')
    (prefix / 'share').joinpath('trt_perception').symlink_to(SHARE)
    (prefix / 'lib').mkdir()
    (prefix / 'lib' / 'trt_perception').symlink_to(SHARE.parents[1] / 'lib' / 'trt_perception')
    monkeypatch.setenv('AMENT_PREFIX_PATH', str(prefix))
    return prefix


def add_package(prefix, name):
    """Add a package to the index of a prefix."""
    index = prefix / 'share' / 'ament_index' / 'resource_index' / 'packages'
    index.mkdir(parents=True, exist_ok=True)
    (index / name).touch()


@needs_launch
def test_rviz_is_refused_without_its_package(launch_file, own_prefix, golden_messages):
    code, logged, nodes = launch_file(DETECT, MODEL, 'rviz:=true')
    assert (code, nodes) == (1, [])
    golden_messages.add('\n'.join(logged))


@needs_launch
@pytest.mark.parametrize(
    ('arguments', 'prefix_of_topics'),
    [
        ((), '/'),
        (('cameras:=front,rear', 'namespace:=robot'), '/robot/front/'),
        (('cameras:=front,rear', 'nodes:=2'), '/front/'),
    ],
)
def test_rviz_shows_the_topics_of_the_first_camera(
    launch_file, own_prefix, arguments, prefix_of_topics
):
    program = own_prefix / 'lib' / 'rviz2' / 'rviz2'
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    add_package(own_prefix, 'rviz2')
    code, logged, nodes = launch_file(DETECT, MODEL, *arguments, 'rviz:=true')
    assert (code, logged) == (0, [])
    [*_, rviz] = [node.final_cmd for node in nodes]
    assert len(nodes) == (3 if 'nodes:=2' in arguments else 2)
    assert rviz[0] == str(program)
    assert Path(rviz[rviz.index('-d') + 1]).is_file()
    for topic in ('debug_image', 'markers'):
        assert f'/{topic}:={prefix_of_topics}{topic}' in rviz


@needs_launch
@pytest.mark.parametrize(
    ('example', 'programs'),
    [
        ('rgbd/rgbd.launch.xml', ['rviz2', 'detector_node', 'detections_3d']),
        ('nav2_manager/nav2_manager.launch.xml', ['lifecycle_manager', 'detector_node']),
        ('nav2/segmentation.launch.xml', ['detector_node']),
    ],
)
def test_nodes_of_the_examples_get_their_parameter_files(
    launch_file, tmp_path, monkeypatch, example, programs
):
    prefix = tmp_path / 'prefix'
    monkeypatch.setenv('AMENT_PREFIX_PATH', f'{prefix}:{os.environ["AMENT_PREFIX_PATH"]}')
    for package, name in (('rviz2', 'rviz2'), ('nav2_lifecycle_manager', 'lifecycle_manager')):
        add_package(prefix, package)
        program = prefix / 'lib' / package / name
        program.parent.mkdir(parents=True)
        program.touch(mode=0o755)
    rviz = ['rviz:=true'] if 'rviz2' in programs else []
    code, logged, nodes = launch_file(str(ROOT / 'examples' / example), MODEL, *rviz)
    assert (code, logged) == (0, [])
    commands = [node.final_cmd for node in nodes]
    assert [Path(command[0]).name for command in commands] == programs
    files = {
        Path(command[0]).name: [
            Path(command[i + 1]) for i, word in enumerate(command) if word == '--params-file'
        ]
        for command in commands
    }
    assert all(path.is_file() for paths in files.values() for path in paths)
    for name, file in (
        ('detector_node', 'detect.yaml'),
        ('detections_3d', 'detections_3d.yaml'),
        ('lifecycle_manager', 'lifecycle_manager.yaml'),
    ):
        if name in files:
            assert files[name][0].name == file
