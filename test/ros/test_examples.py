# SPDX-License-Identifier: Apache-2.0
"""Test the files of examples/ that have no test file of their own."""

import itertools
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from ament_index_python.packages import get_package_share_directory
from geometry_msgs.msg import Twist
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2D, Detection2DArray, ObjectHypothesisWithPose

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
    assert passed == declared


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
