"""Start the detector.

ros2 launch trt_perception detect.launch.py engine_path:=/path/to/model.onnx
"""

from pathlib import Path

from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument
from launch.actions import OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from trt_perception.transport import transport_environment

SHARE = Path(get_package_share_directory('trt_perception'))

ARGUMENTS = {
    'engine_path': ('', 'TensorRT engine or ONNX model; empty: what the parameter file says'),
    'image_topic': ('image', 'topic of the camera'),
    'params_file': (str(SHARE / 'config' / 'detect.yaml'), 'parameter file'),
    'namespace': ('', 'namespace of the node and its topics'),
    'autostart': ('true', 'configure and activate at once; false waits for `ros2 lifecycle set`'),
    'log_level': ('info', 'debug, info, warn, error or fatal'),
    'transport_profile': (
        str(SHARE / 'config' / 'fastdds_large_images.xml'),
        'Fast DDS profile for large images, unless the environment names one; none leaves the '
        'default',
    ),
}


def existing_file(name, value):
    """Return the path; launch itself would go on without a file that is not there."""
    path = Path(value).expanduser()
    if not path.is_file():
        raise ValueError(f"{name} must name a file (got '{value}')")
    return str(path)


def start_detector(context):
    """Make the node from the arguments' values."""
    values = {name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}
    if values['autostart'].lower() not in ('true', 'false'):
        raise ValueError(f"autostart must be true or false (got '{values['autostart']}')")
    profile = values['transport_profile']
    # ros2 launch takes no empty value.
    profile = '' if profile in ('', 'none') else existing_file('transport_profile', profile)
    overrides = {'autostart': values['autostart'].lower() == 'true'}
    if values['engine_path']:
        overrides['engine_path'] = values['engine_path']
    return [
        Node(
            package='trt_perception',
            executable='detector_node',
            namespace=values['namespace'],
            parameters=[existing_file('params_file', values['params_file']), overrides],
            remappings=[('image', values['image_topic'])],
            ros_arguments=['--log-level', values['log_level']],
            additional_env=transport_environment(profile),
            output='screen',
            emulate_tty=True,
            # A lost GPU context cannot be repaired inside a process.
            respawn=True,
            respawn_delay=2.0,
            respawn_max_retries=3,
        )
    ]


def generate_launch_description():
    """Declare the arguments and start the node."""
    arguments = [
        DeclareLaunchArgument(name, default_value=default, description=description)
        for name, (default, description) in ARGUMENTS.items()
    ]
    return LaunchDescription([*arguments, OpaqueFunction(function=start_detector)])
