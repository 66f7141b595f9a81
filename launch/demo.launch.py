# SPDX-License-Identifier: Apache-2.0
"""Detect handwritten digits in the demo scenes, shown by one camera or several.

ros2 launch trt_perception demo.launch.py
ros2 launch trt_perception demo.launch.py cameras:=front,rear
"""

from pathlib import Path

from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import (
    DeclareLaunchArgument,
    IncludeLaunchDescription,
    LogInfo,
    OpaqueFunction,
    SetLaunchConfiguration,
)
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from trt_perception.errors import ConfigError
from trt_perception.parameters.launch_arguments import demo_cameras
from trt_perception.transport.advice import CAMERA_PROFILE, transport_environment

SHARE = Path(get_package_share_directory('trt_perception'))


def name_cameras(context):
    """Set the argument `cameras` to names if the user gave only a number."""
    try:
        names = demo_cameras(LaunchConfiguration('cameras').perform(context))
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return [SetLaunchConfiguration('cameras', ','.join(names))]


def start_cameras(context):
    """Return a node for each camera, with the transport profile for large images."""
    names = LaunchConfiguration('cameras').perform(context).split(',')
    return [
        Node(
            package='trt_perception',
            executable='replay_images',
            namespace=name,
            arguments=[
                str(SHARE / 'demo' / 'scenes'),
                '--loop',
                '--rate',
                LaunchConfiguration('rate'),
            ],
            additional_env=transport_environment(str(SHARE / CAMERA_PROFILE)),
            output='screen',
            emulate_tty=True,
        )
        for name in names
    ]


def generate_launch_description():
    """Return a launch description with cameras that show the demo scenes, and the detector."""
    return LaunchDescription(
        [
            DeclareLaunchArgument(
                'engine_path',
                default_value=str(SHARE / 'models' / 'digits.onnx'),
                description='Engine or ONNX model of the digits detector.',
            ),
            DeclareLaunchArgument(
                'rate', default_value='5', description='Images a second of each camera.'
            ),
            DeclareLaunchArgument(
                'cameras',
                default_value='',
                description='Cameras of the node: names separated by commas, or a number. '
                'Empty: one camera.',
            ),
            LogInfo(
                msg='The demo runs until Ctrl-C. Boxes: ros2 topic echo /detections. Images: the '
                'topic /debug_image in RViz or rqt. With cameras:=front,rear, the topics are '
                '/front/detections and so on.'
            ),
            OpaqueFunction(function=name_cameras),
            # This file comes first, because it checks the arguments.
            IncludeLaunchDescription(
                PythonLaunchDescriptionSource(str(SHARE / 'launch' / 'detect.launch.py'))
            ),
            OpaqueFunction(function=start_cameras),
        ]
    )
