# SPDX-License-Identifier: Apache-2.0
"""Test the files of examples/ that have no test file of their own."""

import itertools
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from ament_index_python.packages import get_package_share_directory
from geometry_msgs.msg import Twist
from sensor_msgs.msg import Image, PointCloud2
from vision_msgs.msg import (
    Detection2D,
    Detection2DArray,
    Detection3D,
    Detection3DArray,
    ObjectHypothesisWithPose,
)

from support.docs_pages import ROOT
from support.programs import Program
from support.ties import tie
from trt_perception.parameters.bond import BondParameters
from trt_perception.parameters.launch_arguments import NODE_NAME, launch_arguments

pytest_plugins = ['support.nodes.graph_fixtures']

EXAMPLES = ROOT / 'examples'
NAMESPACE = '/examples_test'
#: Parameters that LifecycleManager declares in Nav2 1.3.13 (Jazzy) and 1.4.2 (Kilted).
NAV2_MANAGER = {
    'node_names': list,
    'autostart': bool,
    'bond_timeout': float,
    'bond_respawn_max_duration': float,
    'attempt_respawn_reconnection': bool,
}


@pytest.fixture
def example(client):
    """Start a program of an example in the namespace of this test, and end it with the test."""
    programs = []

    def start(name, *arguments):
        command = [sys.executable, EXAMPLES / name / f'{name}.py', *arguments]
        programs.append(Program([*command, '--ros-args', '-r', f'__ns:={NAMESPACE}']))
        return programs[-1]

    yield start
    for program in programs:
        program.close()


def found(id_, name, x, height):
    detection = Detection2D(id=id_)
    detection.bbox.center.position.x = float(x)
    detection.bbox.size_y = float(height)
    hypothesis = ObjectHypothesisWithPose()
    hypothesis.hypothesis.class_id, hypothesis.hypothesis.score = name, 0.9
    detection.results.append(hypothesis)
    return detection


@pytest.mark.parametrize(
    'words', [('subscriber',), ('count_line', '32'), ('join_topics', 'detections')]
)
def test_printing_program_ends_without_an_error_when_its_reader_ends(client, words):
    name, *arguments = words
    command = [sys.executable, EXAMPLES / name / f'{name}.py', *arguments]
    publisher = client.node.create_publisher(Detection2DArray, f'{NAMESPACE}/detections', 10)
    columns = itertools.cycle([0, 64])  # each message crosses the line of count_line
    with subprocess.Popen(
        [*command, '--ros-args', '-r', f'__ns:={NAMESPACE}'],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        tie(process.pid)
        process.stdout.close()

        def has_ended():
            detection = found('1', 'person', next(columns), 10)
            publisher.publish(Detection2DArray(detections=[detection]))
            return process.poll() is not None

        client.spin_until(has_ended, 'the end of the program')
        assert (process.returncode, process.stderr.read()) == (0, '')


class Scene:
    """Sends detections to the follower, and receives its commands."""

    def __init__(self, client):
        self.client = client
        self.commands, _ = client.subscribe(Twist, f'{NAMESPACE}/cmd_vel')
        self._publisher = client.node.create_publisher(
            Detection2DArray, f'{NAMESPACE}/detections', 10
        )

    def wait_for_command(self, accepts, *detections):
        """Send the same detections again and again until a command is accepted."""

        def accepted():
            self._publisher.publish(Detection2DArray(detections=list(detections)))
            return any(accepts(command) for command in self.commands)

        self.commands.clear()
        self.client.spin_until(accepted, 'a command')


def test_follower_drives_after_one_track_and_stops_without_it(client, example):
    example('follower', '--image-size', '640x480')
    scene = Scene(client)
    near, far = found('1', 'person', 480, 192), found('2', 'person', 80, 96)
    # 480 of 640 pixels is 0.25 to the right of the middle; 192 of 480 pixels is 0.2 below 0.6.
    scene.wait_for_command(
        lambda command: (
            command.angular.z == pytest.approx(-0.5) and command.linear.x == pytest.approx(0.2)
        ),
        far,
        near,
    )
    # The other person comes nearer, but the robot follows the first one, who is now too near.
    scene.wait_for_command(
        lambda command: command.angular.z == pytest.approx(0.5) and command.linear.x == 0,
        found('2', 'person', 80, 400),
        found('1', 'person', 160, 300),
    )
    # Objects of other classes, and people without a confirmed track, are not followed.
    still = Twist()
    scene.wait_for_command(still.__eq__, found('3', 'dog', 80, 400), found('', 'person', 80, 400))
    scene.wait_for_command(lambda command: command.angular.z == pytest.approx(0.75), far)
    scene.commands.clear()
    client.spin_until(lambda: still in scene.commands, 'a stop without detections')


def test_join_topics_calls_the_function_with_all_messages_of_an_image(client, example):
    program = example('join_topics', 'image', 'detections')
    images = client.node.create_publisher(Image, f'{NAMESPACE}/image', 10)
    detections = client.node.create_publisher(Detection2DArray, f'{NAMESPACE}/detections', 10)
    numbers = itertools.count(1)

    def printed():
        """Each third image has no detections, and each has its detections later."""
        number = next(numbers)
        image, answer = Image(), Detection2DArray()
        image.header.stamp.sec = number
        answer.header.stamp.sec = number - 1
        images.publish(image)
        if number % 3:
            detections.publish(answer)
        return program.output.count('\n') >= 20

    client.spin_until(printed, 'lines of 20 images')
    lines = program.output.splitlines()
    stamps = [int(line.partition('.')[0]) for line in lines]
    assert all(line.endswith(' detections, image') for line in lines)
    assert all((stamp + 1) % 3 for stamp in stamps)
    assert stamps == sorted(set(stamps))


def turned_box(middle, size, angle):
    """Return a box that is turned about the optical axis by an angle in radians."""
    box = Detection3D().bbox
    for axis, place, side in zip('xyz', middle, size, strict=True):
        setattr(box.center.position, axis, float(place))
        setattr(box.size, axis, float(side))
    box.center.orientation.z, box.center.orientation.w = np.sin(angle / 2), np.cos(angle / 2)
    return box


@pytest.fixture
def clouds(client, example):
    """Return a function that returns the points of boxes as object_points publishes them."""
    example('object_points', '--resolution', '0.05')
    received, _ = client.subscribe(PointCloud2, f'{NAMESPACE}/objects/points')
    publisher = client.node.create_publisher(Detection3DArray, f'{NAMESPACE}/detections_3d', 1)
    numbers = itertools.count(1)

    def points(*boxes):
        message = Detection3DArray(detections=[Detection3D(bbox=box) for box in boxes])
        message.header.frame_id, message.header.stamp.sec = 'camera', next(numbers)

        def has_come():
            publisher.publish(message)
            return any(cloud.header == message.header for cloud in received)

        client.spin_until(has_come, 'a point cloud')
        cloud = next(cloud for cloud in received if cloud.header == message.header)
        assert [field.name for field in cloud.fields] == ['x', 'y', 'z']
        assert (cloud.point_step, cloud.row_step) == (12, 12 * cloud.width)
        return np.frombuffer(cloud.data, np.float32).reshape(cloud.height * cloud.width, 3)

    return points


@pytest.mark.parametrize('angle', [0, 0.6])
def test_points_of_a_box_leave_no_free_cell_in_a_costmap(clouds, angle):
    """The camera looks in any direction, level or not. The cells of the costmap have 0.05 m."""
    size, middle = np.array([0.8, 0.5, 0.4]), np.array([0.5, 0.3, 3.0])
    points = clouds(turned_box(middle, size, angle))
    box = np.eye(3)
    box[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    random = np.random.default_rng(5)
    # Rotations from the camera to the map: for a level camera, y of the camera points down.
    cameras = [np.linalg.qr(random.normal(size=(3, 3)))[0] for _ in range(20)]
    for yaw in np.linspace(0, np.pi / 2, 9):
        right, ahead = (np.cos(yaw), np.sin(yaw), 0), (-np.sin(yaw), np.cos(yaw), 0)
        cameras.append(np.stack([right, (0, 0, -1), ahead], 1))
    for camera in cameras:
        # Places in the box whose cell is in the box, too.
        inside = random.uniform(-0.5, 0.5, (5000, 3)) * (size - 2 * 0.05 * np.sqrt(3))
        places = inside @ box.T + middle
        wanted, marked = (
            {tuple(cell) for cell in np.floor(xyz @ camera.T / 0.05)[:, :2].astype(int)}
            for xyz in (places, points)
        )
        assert wanted <= marked
        assert len(wanted) > 20


def test_points_stay_in_their_boxes_and_reach_the_corners(clouds):
    points = clouds(
        turned_box((1, 2, 3), (0.2, 0.1, 0.0), 0), turned_box((-1, 0, 5), (2, 1, 0.5), np.pi / 2)
    )
    near, far = points[points[:, 2] < 4], points[points[:, 2] > 4]
    np.testing.assert_allclose(near.min(0), (0.9, 1.95, 3), atol=1e-6)
    np.testing.assert_allclose(near.max(0), (1.1, 2.05, 3), atol=1e-6)
    np.testing.assert_allclose(far.min(0), (-1.5, -1, 4.75), atol=1e-6)
    np.testing.assert_allclose(far.max(0), (-0.5, 1, 5.25), atol=1e-6)


def test_message_without_objects_has_no_points_and_far_objects_are_left_out(clouds):
    assert clouds().shape == (0, 3)
    huge, near = turned_box((0, 0, 50), (9, 9, 9), 0), turned_box((0, 0, 2), (0.1, 0.1, 0.1), 0)
    points = clouds(huge, near)
    assert 0 < len(points) < 1000
    assert points[:, 2].max() < 3


def test_page_of_the_examples_lists_every_folder():
    page = (EXAMPLES / 'README.md').read_text('utf-8')
    folders = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
    assert [name for name in folders if f'({name}/README.md)' not in page] == []
    assert [name for name in folders if not (EXAMPLES / name / 'README.md').is_file()] == []


@pytest.mark.parametrize('file', ['four_cameras/cameras.yaml', 'triton_robots/robot.yaml'])
def test_node_accepts_the_parameter_file(start_detector, file):
    """The model does not matter: the node checks names and values when it starts."""
    path = EXAMPLES / file
    detector = start_detector({}, arguments=('--params-file', path))
    values = yaml.safe_load(path.read_text())['/**']['ros__parameters']
    for name, value in flat(values):
        found_value = detector.get(name)
        assert (list(found_value) if isinstance(value, list) else found_value) == value, name


def flat(values, prefix=''):
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f'{prefix}{name}.')
        else:
            yield f'{prefix}{name}', value


def test_launch_file_of_rgbd_passes_declared_arguments():
    launch = ElementTree.parse(EXAMPLES / 'rgbd' / 'rgbd.launch.xml').getroot()
    declared = {argument.get('name') for argument in launch.findall('arg')}
    share = get_package_share_directory('trt_perception')
    passed = set()
    for include in launch.iter('include'):
        file = include.get('file').replace('$(find-pkg-share trt_perception)', share)
        text = Path(file).read_text()
        for argument in include.findall('arg'):
            name = argument.get('name')
            assert argument.get('value') == f'$(var {name})'
            assert name in text or name in launch_arguments(ROOT)
            passed.add(name)
    [rviz] = launch.findall('node')
    assert rviz.get('if') == '$(var rviz)'
    assert passed == declared - {'rviz'}


def test_nav2s_manager_and_the_detector_have_values_that_fit():
    folder = EXAMPLES / 'nav2_manager'
    launch = ElementTree.parse(folder / 'nav2_manager.launch.xml').getroot()
    [include], [manager] = launch.iter('include'), launch.iter('node')
    values = {argument.get('name'): argument.get('value') for argument in include.iter('arg')}
    declared = [argument.get('name') for argument in launch.findall('arg')]
    assert values.keys() <= launch_arguments(ROOT).keys()
    assert values == {
        **{name: f'$(var {name})' for name in declared},
        'autostart': 'false',  # the manager makes the transitions
        'bond.enabled': 'true',
    }
    [file] = manager.iter('param')
    assert file.get('from') == '$(dirname)/lifecycle_manager.yaml'
    content = yaml.safe_load((folder / 'lifecycle_manager.yaml').read_text())
    parameters = content[manager.get('name')]['ros__parameters']
    # ROS 2 refuses a whole number for a parameter that was declared with a fraction.
    assert {name: type(value) for name, value in parameters.items()} == NAV2_MANAGER
    assert parameters['node_names'] == [NODE_NAME]
    assert 4 * BondParameters().bond_heartbeat_period_s <= parameters['bond_timeout']
