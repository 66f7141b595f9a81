# SPDX-License-Identifier: Apache-2.0
"""Start the detector: one node, or several nodes that share the cameras.

ros2 launch trt_perception detect.launch.py engine_path:=/path/to/model.onnx
ros2 launch trt_perception detect.launch.py params_file:=/path/to/cameras.yaml nodes:=2
"""

import atexit
import signal
import tempfile
from pathlib import Path

from ament_index_python.packages import (
    PackageNotFoundError,
    get_package_prefix,
    get_package_share_directory,
)
from launch import LaunchDescription
from launch.actions import (
    DeclareLaunchArgument,
    EmitEvent,
    IncludeLaunchDescription,
    OpaqueFunction,
)
from launch.events import IncludeLaunchDescription as StartEvent
from launch.events import matches_action
from launch.events.process import ShutdownProcess
from launch.logging import get_logger
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from trt_perception.errors import ConfigError
from trt_perception.parameters.launch_arguments import (
    NODE_NAME,
    checked_parameter_file,
    image_remappings,
    launch_arguments,
    node_count,
    node_names,
    node_shares,
    parameter_file_text,
    parameter_values,
    unknown_arguments,
    wants_rviz,
)
from trt_perception.parameters.sections import (
    cameras_of_file,
    check_equal_lists,
    device_ids_of_file,
    sections_of_old_name,
)
from trt_perception.process.tool_command import LAUNCH_VARIABLE
from trt_perception.transport.advice import transport_environment

SHARE = Path(get_package_share_directory('trt_perception'))
ARGUMENTS = launch_arguments(SHARE)
# The topics in config/detect.rviz.
RVIZ_TOPICS = ('debug_image', 'markers')


def write_parameter_file(values):
    """Return the path of a new parameter file, which is deleted when launch ends."""
    with tempfile.NamedTemporaryFile('w', prefix='detect_launch_', delete=False) as file:
        file.write(parameter_file_text(values))
    atexit.register(Path(file.name).unlink, missing_ok=True)
    return file.name


def check_arguments(context):
    """Refuse mistyped arguments. Return whether `ros2 launch` started this file directly.

    A launch file that includes this file may have further arguments, even undeclared ones. In
    that case, a name that resembles an argument of this file only causes a warning.
    """
    event = context.get_locals_as_dict().get('event')
    if not isinstance(event, StartEvent):
        return False  # included by an event handler: the including file is unknown
    launched = event.launch_description
    folders = [
        Path(entity.launch_description_source.location).resolve().parent
        for entity in launched.entities
        if isinstance(entity, IncludeLaunchDescription)
    ]
    # True if `ros2 launch` started this file, or demo.launch.py in the same folder.
    alone = len(launched.entities) == 1 and folders == [Path(__file__).resolve().parent]
    declared = {argument.name for argument in launched.get_launch_arguments()}
    # Arguments of a file that includes this file are in the launch configurations.
    names = context.argv if alone else context.launch_configurations
    near, far = unknown_arguments(names, declared | set(ARGUMENTS), includes_others=not alone)
    if alone and near:
        raise ValueError('\n'.join(near))
    for sentence in (*near, *far) if alone else near:
        get_logger('detect.launch.py').warning(sentence)
    return alone


def full_name(context, namespace, name):
    """Return the full name of a node, including a namespace that another launch file pushed."""
    outer = '' if namespace.startswith('/') else context.launch_configurations.get('ros_namespace')
    parts = '/'.join([outer or '', namespace, name]).split('/')
    return '/' + '/'.join(filter(None, parts))


def nodes_to_start(context, values, given, file):
    """Return each node, as a NodeShare, and the remappings of its image topics.

    With several nodes, the parameter file must not have a section for the name of a single node,
    because ROS would ignore it, nor different lists of cameras or devices for the nodes, because
    the shares replace these lists. Both raise ValueError.
    """
    try:
        count = node_count(values['nodes'])
        nodes = [full_name(context, values['namespace'], name) for name in node_names(count)]
        single = full_name(context, values['namespace'], NODE_NAME)
        if unused := sections_of_old_name(file, single, nodes):
            raise ConfigError(
                f'params_file {file}',
                f'section {unused[0]}, but the nodes are called {nodes[0]} to {nodes[-1]}',
                fix='move its parameters into the section /**',
            )
        shared = [name for name in ('cameras', 'device_ids') if not given.get(name)]
        check_equal_lists(file, nodes, shared)
        cameras = given.get('cameras') or cameras_of_file(file, nodes[0])
        devices = given.get('device_ids') or device_ids_of_file(file, nodes[0])
        shares = node_shares(given, count, cameras, devices)
        topics = dict(image_remappings(values['image_topic'], cameras))
    except ConfigError as error:
        raise ValueError(str(error)) from error
    own = [[f'{camera}/image' for camera in share.cameras] or ['image'] for share in shares]
    return [
        (share, [(name, topics[name]) for name in names if name in topics])
        for share, names in zip(shares, own, strict=True)
    ]


def given_parameters(values, alone):
    """Return the parameters that the user gave as launch arguments, converted to their types.

    `alone` is the result of `check_arguments`.
    """
    try:
        return parameter_values(values)
    except ConfigError as error:
        cure = (
            ''
            if alone
            else '\ndetect.launch.py also sees all arguments of the launch file that includes it. '
            'If they have another purpose there, include detect.launch.py in '
            'GroupAction([…], forwarding=False)'
        )
        raise ValueError(f'{error}{cure}') from error


def check_rviz(text):
    """Return whether the argument `rviz` asks for RViz. RViz must then be installed."""
    try:
        wanted = wants_rviz(text)
        if wanted:
            get_package_prefix('rviz2')
    except ConfigError as error:
        raise ValueError(str(error)) from error
    except PackageNotFoundError as error:
        fix = 'sudo apt install ros-$ROS_DISTRO-rviz2, or leave rviz:=true out'
        raise ValueError(str(ConfigError('rviz', 'RViz is not installed', fix=fix))) from error
    return wanted


def rviz_node(context, values, given, camera):
    """Return RViz, which shows the topics of a camera. An empty name means a single camera."""
    namespace = values['namespace']
    return Node(
        package='rviz2',
        executable='rviz2',
        arguments=['-d', str(SHARE / 'config' / 'detect.rviz')],
        parameters=[{'use_sim_time': given.get('use_sim_time', False)}],
        remappings=[
            (f'/{topic}', full_name(context, namespace, f'{camera}/{topic}'))
            for topic in RVIZ_TOPICS
        ],
        additional_env=transport_environment(values['transport_profile']),
        output='screen',
    )


def stop_respawn(event, _):
    """Prevent a restart of a node that ended on request or has wrong parameters.

    Launch itself ignores the exit code.
    """
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    wrong_parameters = 2
    meant = (0, wrong_parameters, *(-number for number in signals), *(128 + n for n in signals))
    if event.returncode not in meant:
        return None
    return EmitEvent(event=ShutdownProcess(process_matcher=matches_action(event.action)))


def start_detectors(context):
    """Return the detector nodes for the values of the arguments, and RViz if it was asked for."""
    alone = check_arguments(context)
    values = {name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}
    given = given_parameters(values, alone)
    profile = values['transport_profile']
    try:
        params_file = checked_parameter_file(values['params_file'], profile)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    nodes = nodes_to_start(context, values, given, params_file)
    # A launch file that includes this file may have an argument `rviz` for its own RViz.
    viewers = []
    if alone and check_rviz(values['rviz']):
        [camera, *_] = nodes[0][0].cameras or ('',)
        viewers = [rviz_node(context, values, given, camera)]
    detectors = [
        Node(
            package='trt_perception',
            executable='detector_node',
            name=None if share.name == NODE_NAME else share.name,
            namespace=values['namespace'],
            parameters=[str(params_file), write_parameter_file(share.parameters)],
            remappings=topics,
            ros_arguments=['--log-level', values['log_level']],
            additional_env={**transport_environment(profile), LAUNCH_VARIABLE: '1'},
            output='screen',
            emulate_tty=True,
            # A lost GPU context cannot be repaired inside a process.
            respawn=True,
            respawn_delay=2.0,  # gives on_exit time to prevent the restart
            on_exit=stop_respawn,
            respawn_max_retries=3,
        )
        for share, topics in nodes
    ]
    return detectors + viewers


def generate_launch_description():
    """Return a launch description with the arguments and the nodes."""
    arguments = [
        DeclareLaunchArgument(name, default_value=default, description=description)
        for name, (default, description) in ARGUMENTS.items()
    ]
    return LaunchDescription([*arguments, OpaqueFunction(function=start_detectors)])
