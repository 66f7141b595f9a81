# SPDX-License-Identifier: Apache-2.0
r"""Start detections_3d: one node, or a node for each of several cameras.

ros2 launch trt_perception detections_3d.launch.py depth_topic:=/camera/depth_registered/image_raw
ros2 launch trt_perception detections_3d.launch.py cameras:=front,rear \
    depth_topic:='/{camera}/depth/image_rect_raw'
"""

from pathlib import Path

from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.logging import get_logger
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import closest_words, split_list
from trt_perception.parameters.boxes_3d import BOX_PARAMETERS
from trt_perception.parameters.launch_arguments import check_topic, checked_parameter_file
from trt_perception.parameters.rules import cameras_mistake
from trt_perception.transport.advice import transport_environment

SHARE = Path(get_package_share_directory('trt_perception'))
# Arguments of the topics, and the names that they remap.
TOPICS = {
    'depth_topic': 'depth',
    'camera_info_topic': 'camera_info',
    'detections_topic': 'detections',
    'masks_topic': 'masks',
    'keypoints_topic': 'keypoints',
}


def camera_names(text):
    """Return the names of the cameras; one empty name without cameras."""
    names = tuple(split_list(text))
    if mistake := cameras_mistake(names):
        raise ConfigError('cameras', mistake['found'], expected=mistake['expected'])
    return names or ('',)


def start_nodes(context):
    """Return the nodes for the values of the arguments."""

    def value(name):
        return LaunchConfiguration(name).perform(context)

    try:
        file = checked_parameter_file(value('params_file'), value('transport_profile'))
        cameras = camera_names(value('cameras'))
        for argument in TOPICS:
            if value(argument):
                check_topic(argument, value(argument), [name for name in cameras if name])
    except ConfigError as error:
        raise ValueError(str(error)) from error
    # The node itself checks names and values.
    names = {row.name for row in BOX_PARAMETERS} | {'use_sim_time'}
    known = {*names, *TOPICS, 'cameras', 'params_file', 'namespace', 'log_level'}
    for name in context.launch_configurations:
        if name not in known and (close := closest_words(name, known, cutoff=0.85)):
            text = f'{name} is not an argument; did you mean {close[0]}?'
            get_logger('detections_3d.launch.py').warning(text)
    given = {name: value(name) for name in names if context.launch_configurations.get(name)}
    parameters = {name: _typed(text) for name, text in given.items()}
    topics = {name: value(argument) for argument, name in TOPICS.items() if value(argument)}
    return [
        Node(
            package='trt_perception',
            executable='detections_3d',
            namespace='/'.join(filter(None, [value('namespace'), camera])),
            parameters=[str(file), parameters],
            remappings=[
                (name, topic.replace('{camera}', camera)) for name, topic in topics.items()
            ],
            ros_arguments=['--log-level', value('log_level')],
            additional_env=transport_environment(value('transport_profile')),
            output='screen',
            emulate_tty=True,
        )
        for camera in cameras
    ]


def _typed(text):
    """Return a bool or a number that a text spells, else the text."""
    if text.lower() in ('true', 'false'):
        return text.lower() == 'true'
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:  # noqa: PERF203 - two rounds
            continue
    return text


def generate_launch_description():
    """Return a launch description with the arguments and the nodes."""
    return LaunchDescription(
        [
            DeclareLaunchArgument(
                'cameras',
                default_value='',
                description='Names of cameras, separated by commas. Each camera gets a node in '
                'the namespace of its name, where detect.launch.py cameras:=… publishes its '
                'results. Empty: one node without such a namespace.',
            ),
            DeclareLaunchArgument(
                'depth_topic',
                default_value='',
                description='Depth images, aligned to the camera images. In this and the other '
                'topics, {camera} stands for the name of the camera. Default: depth.',
            ),
            DeclareLaunchArgument(
                'camera_info_topic',
                default_value='',
                description='Calibration of the camera images. Default: camera_info.',
            ),
            DeclareLaunchArgument(
                'detections_topic', default_value='', description='Default: detections.'
            ),
            DeclareLaunchArgument('masks_topic', default_value='', description='Default: masks.'),
            DeclareLaunchArgument(
                'keypoints_topic', default_value='', description='Default: keypoints.'
            ),
            DeclareLaunchArgument(
                'params_file',
                default_value=str(SHARE / 'config/detections_3d.yaml'),
                description='Parameter file. Each parameter is also an argument.',
            ),
            DeclareLaunchArgument(
                'namespace', default_value='', description='Namespace of the nodes.'
            ),
            DeclareLaunchArgument(
                'autostart',
                default_value='true',
                description='Configure and activate at once. false: wait for ros2 lifecycle set.',
            ),
            DeclareLaunchArgument(
                'log_level',
                default_value='info',
                description='One of debug, info, warn, error, fatal.',
            ),
            DeclareLaunchArgument(
                'transport_profile',
                default_value=str(SHARE / 'config/fastdds_node.xml'),
                description='Fast DDS profile of the nodes, unless the environment names one.',
            ),
            OpaqueFunction(function=start_nodes),
        ]
    )
