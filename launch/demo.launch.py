"""Detect handwritten digits in the demo scenes.

ros2 launch trt_perception demo.launch.py
"""

from pathlib import Path

from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument
from launch.actions import IncludeLaunchDescription
from launch.actions import LogInfo
from launch.actions import OpaqueFunction
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from trt_perception.monitoring.transport_advice import transport_environment

SHARE = Path(get_package_share_directory('trt_perception'))


def start_camera(context):
    """Make the camera, with the detector's transport."""
    return [
        Node(
            package='trt_perception',
            executable='replay_images',
            arguments=[
                str(SHARE / 'demo' / 'scenes'),
                '--loop',
                '--rate',
                LaunchConfiguration('rate'),
            ],
            additional_env=transport_environment(
                LaunchConfiguration('transport_profile').perform(context)
            ),
            output='screen',
            emulate_tty=True,
        )
    ]


def generate_launch_description():
    """Start a camera made of the demo scenes and the detector with the digits model."""
    return LaunchDescription(
        [
            DeclareLaunchArgument(
                'engine_path',
                default_value=str(SHARE / 'models' / 'digits.onnx'),
                description='Engine or ONNX model of the digits detector.',
            ),
            DeclareLaunchArgument('rate', default_value='5', description='Scenes a second.'),
            LogInfo(
                msg='until Ctrl-C; see the boxes with: ros2 topic echo /detections, and the '
                'images on the topic /debug_image, in RViz or rqt'
            ),
            # First: it checks the arguments, and the camera needs its transport_profile.
            IncludeLaunchDescription(
                PythonLaunchDescriptionSource(str(SHARE / 'launch' / 'detect.launch.py'))
            ),
            OpaqueFunction(function=start_camera),
        ]
    )
