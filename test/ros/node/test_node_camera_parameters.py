# SPDX-License-Identifier: Apache-2.0
"""Tests of camera parameters: declaration, description, changes and refusals."""

import pytest
import yaml
from ament_index_python.packages import get_package_share_directory
from rcl_interfaces.msg import ParameterType
from rclpy.node import Node
from rclpy.parameter import Parameter

from support import forked
from support.docs_pages import ROOT
from support.nodes.graph import Detector
from support.programs import DEADLINE_S, executable
from trt_perception.errors import ConfigError, ValuesError
from trt_perception.parameters.camera import CAMERA_PARAMETERS, NodeParameters, camera_rows
from trt_perception.ros.parameters import DeclaredParameters

pytest_plugins = ['support.nodes.graph_fixtures']

TWO = {'cameras': ['front', 'rear']}


# In this process: declared parameters, and the changes that are reported to the node.


class Holder:
    """A node that has only parameters, and records the reported changes."""

    def __init__(self, context, values):
        self.received_changes = []
        self.is_configured = False
        self.refuse = None
        self.node = Node(
            'holder',
            context=context,
            enable_rosout=False,
            start_parameter_services=False,
            parameter_overrides=[Parameter(name, value=value) for name, value in values.items()],
        )
        self.parameters = DeclaredParameters(
            self.node,
            is_configured=lambda: self.is_configured,
            check=self._check,
            apply=lambda *both: self.received_changes.append(both),
        )

    def _check(self, parameters):
        if self.refuse:
            self.refuse(parameters)

    def set(self, **values):
        return self.change(
            *(Parameter(name.replace('__', '.'), value=value) for name, value in values.items())
        )

    def change(self, *changes):
        try:
            read = self.parameters.read_changes(changes)
        except ConfigError as error:
            return str(error)
        return self.node.set_parameters_atomically(read).reason

    def ros_values(self):
        """Return ROS's values of the camera parameters."""
        names = self.node.list_parameters([], 0).names
        return {
            parameter.name: parameter.value
            for parameter in self.node.get_parameters(names)
            if parameter.name.startswith('camera.')
        }


@pytest.fixture
def make_holder(client):
    holders = []

    def make(values):
        holders.append(Holder(client.context, values))
        return holders[-1]

    yield make
    for holder in holders:
        holder.node.destroy_node()


def test_every_camera_parameter_has_a_value_of_its_type(make_holder):
    holder = make_holder({**TWO, 'camera.rear.confidence_threshold': 0.75, 'class_filter': ['a']})
    ros_values = holder.ros_values()
    assert len(ros_values) == 2 * len(CAMERA_PARAMETERS)
    assert ros_values['camera.front.confidence_threshold'] == 0.25
    assert ros_values['camera.rear.confidence_threshold'] == 0.75
    assert (
        ros_values['camera.front.class_filter'] == ros_values['camera.rear.class_filter'] == ['a']
    )
    values = holder.parameters.node_parameters.values()
    assert {name: values[name] for name in ros_values} == {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in ros_values.items()
    }


def test_node_with_one_camera_declares_no_camera_parameters(make_holder):
    holder = make_holder({})
    assert holder.ros_values() == {}
    assert holder.parameters.camera_parameters('') is holder.parameters.parameters


def test_camera_parameter_follows_the_node_until_it_is_set(make_holder):
    holder = make_holder({**TWO, 'camera.rear.max_rate_hz': 5.0})
    assert holder.set(max_rate_hz=30.0, confidence_threshold=0.5) == ''
    ros_values = holder.ros_values()
    assert (ros_values['camera.front.max_rate_hz'], ros_values['camera.rear.max_rate_hz']) == (
        30.0,
        5.0,
    )
    assert ros_values['camera.rear.confidence_threshold'] == 0.5
    assert holder.set(camera__front__max_rate_hz=30.0) == ''
    assert holder.set(max_rate_hz=10.0) == ''
    assert holder.ros_values()['camera.front.max_rate_hz'] == 30.0
    assert holder.parameters.camera_parameters('front').max_rate_hz == 30.0
    holder.parameters.reset_camera_values()
    ros_values = holder.ros_values()
    assert ros_values['camera.front.max_rate_hz'] == 10.0
    assert ros_values['camera.rear.max_rate_hz'] == 5.0  # the start value
    assert holder.parameters.camera_parameters('front').max_rate_hz == 10.0


def test_each_change_is_reported_to_the_node_once(make_holder):
    holder = make_holder(TWO)
    assert holder.received_changes == []
    holder.set(camera__front__enabled=False)
    [(before, now)] = holder.received_changes
    assert before == now == holder.parameters.parameters
    assert not holder.parameters.camera_parameters('front').enabled
    holder.set(confidence_threshold=0.5)
    assert holder.received_changes[1][0].confidence_threshold == 0.25
    assert holder.received_changes[1][1].confidence_threshold == 0.5
    holder.parameters.reset_camera_values()
    assert len(holder.received_changes) == 3
    holder.parameters.reset_camera_values()  # changes nothing, as all values are reset
    assert len(holder.received_changes) == 3


def test_changing_cameras_declares_and_removes_their_parameters(make_holder):
    holder = make_holder({**TWO, 'camera.rear.enabled': False})
    assert holder.set(cameras=['rear', 'top']) == ''
    ros_values = holder.ros_values()
    assert {name.split('.')[1] for name in ros_values} == {'rear', 'top'}
    assert (ros_values['camera.rear.enabled'], ros_values['camera.top.enabled']) == (False, True)
    assert holder.set(camera__front__enabled=True) != ''
    assert holder.set(camera__top__enabled=False) == ''
    assert holder.set(cameras=[]) == ''
    assert holder.ros_values() == {}
    assert holder.set(cameras=['top', 'rear']) == ''
    ros_values = holder.ros_values()
    assert (ros_values['camera.rear.enabled'], ros_values['camera.top.enabled']) == (False, True)


def test_fixed_camera_parameters_are_refused_while_configured(make_holder, golden_messages):
    holder = make_holder(TWO)
    holder.is_configured = True
    for name, value in (
        ('cameras', ['front']),
        ('camera__front__image_transport', 'compressed'),
        ('camera__rear__image_qos__depth', 2),
    ):
        reason = holder.set(**{name: value})
        golden_messages.add(reason)
    live = {
        'camera__front__enabled': False,
        'camera__front__max_rate_hz': 5,
        'camera__rear__confidence_threshold': 0.5,
        'camera__rear__class_filter': ['a'],
        'camera__rear__image_qos__depth': 1,  # an unchanged value is accepted
    }
    for name, value in live.items():
        assert holder.set(**{name: value}) == ''
    holder.is_configured = False
    assert holder.set(camera__front__image_transport='compressed', cameras=['front']) == ''
    assert holder.parameters.camera_parameters('front').image_transport == 'compressed'


def test_camera_value_that_does_not_fit_the_model_is_refused(make_holder, golden_messages):
    holder = make_holder(TWO)
    holder.refuse = lambda parameters: parameters.thresholds(('cat', 'dog'))
    reason = holder.set(camera__rear__class_filter=['cow'])
    golden_messages.add(reason)
    assert holder.ros_values()['camera.rear.class_filter'] == []
    assert holder.parameters.camera_parameters('rear').class_filter == ()


def test_empty_list_of_any_type_and_whole_numbers_are_accepted(make_holder):
    holder = make_holder({**TWO, 'camera.front.class_filter': ['a']})
    empty = Parameter('camera.front.class_filter', Parameter.Type.BOOL_ARRAY, [])
    assert holder.change(empty) == ''
    assert holder.ros_values()['camera.front.class_filter'] == []
    assert holder.set(camera__front__max_rate_hz=7) == ''
    assert isinstance(holder.ros_values()['camera.front.max_rate_hz'], float)


def test_refused_request_changes_nothing(make_holder, golden_messages):
    holder = make_holder(TWO)
    before = holder.ros_values()
    reason = holder.set(camera__front__enabled=False, max_rate_hz=-1.0)
    golden_messages.add(reason)
    assert holder.ros_values() == before
    assert holder.received_changes == []


def test_values_of_cameras_of_other_nodes_are_ignored(make_holder):
    values = {
        **TWO,
        'cameras_of_other_nodes': ['top', 'rear'],
        'camera.top.enabled': False,
        'camera.top.no_such_parameter': 1,  # the node of this camera reports it
        'camera.rear.enabled': False,
    }
    holder = make_holder(values)
    assert holder.parameters.node_parameters.camera_values == {'camera.rear.enabled': False}


@pytest.mark.parametrize(
    'values',
    [
        {'camera.left.enabled': False},
        {'camera.front.no_such_parameter': 1},
        {'cameras_of_other_nodes': 5},
        {'cameras_of_other_nodes': ['top', 'top'], 'camera.top.enabled': False},
    ],
    ids=str,
)
def test_mistakes_beside_cameras_of_other_nodes_are_refused(make_holder, golden_messages, values):
    with golden_messages.raises(ValuesError):
        make_holder({**TWO, 'cameras_of_other_nodes': ['top'], **values})


def test_sixty_four_cameras_follow_a_node_parameter(make_holder):
    names = [f'camera_{number}' for number in range(64)]
    holder = make_holder({'cameras': names})
    assert len(holder.ros_values()) == 64 * len(CAMERA_PARAMETERS)
    assert holder.set(max_rate_hz=12.0) == ''
    assert {holder.ros_values()[f'camera.{name}.max_rate_hz'] for name in names} == {12.0}


# Over services, with a detector in another process.


@pytest.fixture(scope='module')
def detector(client, model):
    values = {
        'engine_path': str(model),
        **TWO,
        'camera.rear.confidence_threshold': 0.75,
        'camera.rear.image_transport': 'compressed',
    }
    detector = Detector(client, values)
    yield detector
    detector.close()


def test_camera_parameters_are_read_and_described_over_services(detector, golden_messages):
    names = [*camera_rows(['front', 'rear'])]
    assert all(detector.get(name) is not None for name in names)
    assert detector.get('camera.rear.confidence_threshold') == 0.75
    assert detector.get('camera.front.image_transport') == 'raw'
    assert detector.get('camera.rear.image_transport') == 'compressed'
    rate, transport = detector.describe(
        ['camera.front.max_rate_hz', 'camera.front.image_transport']
    )
    [limits] = rate.floating_point_range
    assert (limits.from_value, limits.to_value) == (0.0, 1000.0)
    assert rate.type == ParameterType.PARAMETER_DOUBLE
    golden_messages.add(rate.description)
    golden_messages.add(rate.additional_constraints)
    golden_messages.add(transport.additional_constraints)


def test_camera_parameters_are_set_over_services(detector, golden_messages):
    assert detector.set({'camera.front.enabled': False}) == [(True, '')]
    assert detector.get('camera.front.enabled') is False
    [(successful, reason)] = detector.set({'camera.frnt.enabled': True})
    assert not successful
    golden_messages.add(reason)
    [(successful, reason)] = detector.set({'camera.front.class_filter': 7})
    assert not successful
    golden_messages.add(reason)
    [(successful, reason)] = detector.set({'camera.rear.enabled': None}, Parameter.Type.NOT_SET)
    assert not successful
    golden_messages.add(reason)
    assert detector.set({'camera.front.enabled': True}) == [(True, '')]
    for name, value in {'enabled': True, 'max_rate_hz': 0.0, 'confidence_threshold': 0.25}.items():
        [(successful, reason)] = detector.set({name: value})
        assert successful
        # The reason names the cameras that keep their own values.
        golden_messages.add(f'{name}: {reason}')


# At the start.


NAMES = """
    cameras: [front, rear]
    camera:
      frnt: {enabled: false}
      top: {max_rate_hz: 5.0}
      rear: {image_transport: smoke, decoder: dense}
"""
TWICE = """
    cameras: [front, front]
    camera:
      front: {enabled: false}
"""


@pytest.mark.parametrize('text', [NAMES, TWICE], ids=['names', 'twice'])
def test_every_mistake_of_a_file_is_reported_once(tmp_path, text, golden_messages):
    file = tmp_path / 'mine.yaml'
    file.write_text(f'/**:\n  ros__parameters:{text}')
    command = [executable('detector_node'), '--ros-args', '--params-file', str(file)]
    ended = forked.run(command, timeout=DEADLINE_S)
    assert ended.returncode == 2
    lines = ended.stderr.splitlines()
    golden_messages.add('\n'.join(line for line in lines if line.startswith('error: ')))


# The installed example.


def test_node_accepts_the_example_of_several_cameras(start_detector, model):
    path = f'{get_package_share_directory("trt_perception")}/config/cameras.yaml'
    values = yaml.safe_load((ROOT / 'config/cameras.yaml').read_text())['/**']['ros__parameters']
    detector = start_detector({'engine_path': str(model)}, arguments=('--params-file', path))
    assert list(detector.get('cameras')) == values['cameras'] == ['front', 'rear', 'gripper']
    assert detector.get('camera.gripper.enabled') is False
    assert detector.get('camera.front.max_rate_hz') == 30.0
    assert detector.get('camera.gripper.max_rate_hz') == 15.0
    assert detector.get('camera.rear.image_transport') == 'compressed'
    assert list(detector.get('camera.rear.class_filter')) == ['person']
    assert NodeParameters.from_values({'cameras': values['cameras']}).camera('front')
