# SPDX-License-Identifier: Apache-2.0
"""Tests of per-camera parameters, without ROS."""

import itertools
import random

import pytest

from support.optional_packages import needs
from support.properties import given, settings, st
from trt_perception.errors import ConfigError
from trt_perception.model.pipeline_options import DecodingLimits, PipelineOptions
from trt_perception.parameters.camera import (
    CAMERA_PARAMETERS,
    NodeParameters,
    camera_rows,
    is_camera_parameter,
    unknown_parameter,
)
from trt_perception.parameters.values import ParameterValues

TWO_CAMERAS = {'cameras': ['front', 'rear']}


def refusal(values):
    with pytest.raises(ConfigError) as caught:
        NodeParameters.from_values(values)
    return str(caught.value)


def test_node_without_cameras_has_no_camera_parameters():
    node_parameters = NodeParameters.from_values({'max_detections': 7})
    assert node_parameters.camera('') is node_parameters.node
    assert node_parameters.node == ParameterValues(max_detections=7)
    assert not [name for name in node_parameters.rows() if is_camera_parameter(name)]
    with pytest.raises(KeyError):
        node_parameters.camera('front')


def test_camera_has_the_nodes_values_except_its_own():
    node_parameters = NodeParameters.from_values(
        {
            **TWO_CAMERAS,
            'confidence_threshold': 0.5,
            'camera.rear.confidence_threshold': 0.75,
            'camera.rear.image_qos.depth': 5,
            'camera.rear.class_filter': ['a', 'b'],
        }
    )
    assert node_parameters.camera('front') == node_parameters.node
    rear = node_parameters.camera('rear')
    assert (rear.confidence_threshold, rear.image_qos_depth) == (0.75, 5)
    assert rear.class_filter == ('a', 'b')
    assert rear.iou_threshold == node_parameters.node.iou_threshold
    values = node_parameters.values()
    assert values['camera.front.confidence_threshold'] == 0.5
    assert values['camera.rear.confidence_threshold'] == 0.75
    assert values['camera.front.enabled'] is True
    assert set(values) == set(node_parameters.rows())
    assert len(values) - len(NodeParameters().values()) == 2 * len(CAMERA_PARAMETERS)


def test_description_of_a_camera_parameter_has_the_name_of_its_camera(golden_messages):
    rows = camera_rows(['front', 'rear'])
    assert [name for name in rows if name.startswith('camera.front.')] == [
        f'camera.front.{row.name}' for row in CAMERA_PARAMETERS
    ]
    row = rows['camera.rear.max_rate_hz']
    assert (row.name, row.unit, row.live) == ('camera.rear.max_rate_hz', 'Hz', True)
    golden_messages.add(row.description)


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('camera.front.confidence_threshold', 2),
        ('camera.front.confidence_threshold', 'x'),
        ('camera.front.image_qos.depth', 0),
        ('camera.rear.image_transport', 'x'),
        ('camera.rear.max_rate_hz', 0.001),
        ('camera.rear.class_filter', ['a', '']),
        ('camera.front.enabled', 1),
        ('camera.frnt.enabled', True),
        ('camera.top.enabled', True),
        ('camera.front.enabeld', True),
        ('camera.front.iou_threshold', 0.5),
        ('camera.front', True),
        ('camera.', True),
        ('camera.rear.x', 1),
        ('camera.rear.conf', 0.5),
        ('camera.rear.iou', 0.5),
    ],
)
def test_invalid_camera_parameters_are_refused(name, value, golden_messages):
    golden_messages.add(refusal({**TWO_CAMERAS, name: value}))


@pytest.mark.parametrize(
    'name',
    [
        'front.enabled',
        'cameras.rear.enabled',
        'rear.image_qos.depth',
        'image_qos.dept',
        'confidence_treshold',
        'model.keypoints',
        'task',
        'classification_top_k',
    ],
)
def test_misspelt_camera_parameter_gets_a_suggestion(name, golden_messages):
    golden_messages.add(unknown_parameter(name, ['front', 'rear'], '-p {}:=VALUE'.format).fix)


@pytest.mark.parametrize(
    ('node', 'own', 'jpeg'),
    [
        ('raw', {}, False),
        ('auto', {}, True),
        ('raw', {'rear': 'compressed'}, True),
        ('raw', {'front': 'auto'}, True),
        ('compressed', {'front': 'raw'}, True),
        ('compressed', {'front': 'raw', 'rear': 'raw'}, False),
    ],
)
def test_pipelines_decode_jpegs_if_any_camera_needs_it(node, own, jpeg):
    own = {f'camera.{name}.image_transport': value for name, value in own.items()}
    values = {**TWO_CAMERAS, 'image_transport': node, 'max_detections': 7, **own}
    options = NodeParameters.from_values(values).pipeline_options()
    assert options == PipelineOptions(jpeg_on_gpu=jpeg, limits=DecodingLimits(7))


def test_pipelines_of_a_node_with_one_camera_use_the_nodes_parameters():
    node_parameters = NodeParameters.from_values({'image_transport': 'auto'})
    assert node_parameters.pipeline_options() == node_parameters.node.pipeline_options()


def test_camera_parameter_without_cameras_is_refused(golden_messages):
    golden_messages.add(refusal({'camera.front.enabled': True}))
    golden_messages.add(unknown_parameter('camera', ['front'], '-p {}:=VALUE'.format).fix)


def test_changed_node_value_applies_to_cameras_without_an_own_value(golden_messages):
    node_parameters = NodeParameters.from_values({**TWO_CAMERAS, 'camera.rear.enabled': False})
    node_parameters = node_parameters.with_changes(
        {'confidence_threshold': 0.5, 'camera.front.max_rate_hz': 5.0}, {}
    )
    assert node_parameters.camera('front').confidence_threshold == 0.5
    assert node_parameters.camera('rear').confidence_threshold == 0.5
    assert (
        node_parameters.camera('front').max_rate_hz,
        node_parameters.camera('rear').max_rate_hz,
    ) == (
        5,
        0,
    )
    assert (node_parameters.camera('front').enabled, node_parameters.camera('rear').enabled) == (
        True,
        False,
    )
    # rear now has its own value, although the value equals the node's.
    node_parameters = node_parameters.with_changes({'camera.rear.confidence_threshold': 0.5}, {})
    node_parameters = node_parameters.with_changes({'confidence_threshold': 0.6}, {})
    assert node_parameters.camera('front').confidence_threshold == 0.6
    assert node_parameters.camera('rear').confidence_threshold == 0.5
    with golden_messages.raises(ConfigError):
        NodeParameters.from_values({**TWO_CAMERAS, 'camera.rear.max_rate_hz': 1e9})


def test_camera_added_again_has_its_start_values(golden_messages):
    given = {'camera.front.enabled': False, 'camera.top.max_rate_hz': 3.0}
    node_parameters = NodeParameters.from_values({'cameras': ['front', 'top'], **given})
    node_parameters = node_parameters.with_changes({'camera.front.max_rate_hz': 9.0}, given)
    node_parameters = node_parameters.with_changes({'cameras': ('top', 'rear')}, given)
    assert set(node_parameters.camera_values) == {'camera.top.max_rate_hz'}
    # A camera that is added again has its initial values, without later changes.
    node_parameters = node_parameters.with_changes({'cameras': ('front',)}, given)
    assert node_parameters.camera_values == {'camera.front.enabled': False}
    with golden_messages.raises(ConfigError):
        node_parameters.with_changes({'camera.rear.enabled': True}, given)


def test_rule_is_checked_once_for_different_values(golden_messages):
    node_parameters = NodeParameters.from_values(
        {'cameras': ['a', 'b', 'c'], 'camera.b.class_filter': ['dog', 'pig']}
    )
    checked = []
    node_parameters.check(checked.append)
    assert checked == [node_parameters.node, node_parameters.camera('b')]
    with golden_messages.raises(ConfigError):
        node_parameters.check(lambda parameters: parameters.thresholds(('cat', 'dog')))
    wrong = node_parameters.with_changes({'class_filter': ('fox',)}, {})
    with golden_messages.raises(ConfigError):
        wrong.check(lambda parameters: parameters.thresholds(('cat', 'dog')))


NAMES = ('a', 'b', 'c')
VALUES = st.fixed_dictionaries(
    {},
    optional={
        'max_rate_hz': st.sampled_from([0.0, 5.0, 7.5]),
        'enabled': st.booleans(),
        **{f'camera.{name}.max_rate_hz': st.sampled_from([0.0, 5.0, 9.0]) for name in NAMES},
        **{f'camera.{name}.enabled': st.booleans() for name in NAMES},
    },
)


@settings(deadline=None, max_examples=200)
@given(st.lists(VALUES, max_size=6))
def test_random_changes_give_each_camera_the_expected_values(requests):
    node_parameters = NodeParameters.from_values({'cameras': list(NAMES)})
    node = {'max_rate_hz': 0.0, 'enabled': True}
    own = {}
    for request in requests:
        node_parameters = node_parameters.with_changes(request, {})
        for name, value in request.items():
            (own if is_camera_parameter(name) else node)[name] = value
        for camera, row in itertools.product(NAMES, node):
            expected = own.get(f'camera.{camera}.{row}', node[row])
            assert getattr(node_parameters.camera(camera), row) == expected
            assert node_parameters.values()[f'camera.{camera}.{row}'] == expected


def test_64_cameras_keep_their_own_values():
    names = [f'camera_{number}' for number in range(64)]
    values = {'cameras': names}
    rng = random.Random(5)
    for name in names:
        values[f'camera.{name}.class_filter'] = [f'class {rng.randrange(10**9)}']
    node_parameters = NodeParameters.from_values(values)
    for name in names:
        assert (
            list(node_parameters.camera(name).class_filter)
            == values[f'camera.{name}.class_filter']
        )


@needs('scipy')
def test_rules_between_parameters_name_the_camera():
    """The value of a camera may contradict a value of the node."""
    values = {**TWO_CAMERAS, 'tracker.type': 'bytetrack', 'camera.rear.tracker.low_threshold': 0.5}
    with pytest.raises(ConfigError) as caught:
        NodeParameters.from_values(values)
    assert 'rear' in caught.value.subject
    assert 'tracker.low_threshold' in caught.value.subject
    changed = NodeParameters.from_values({**values, 'camera.rear.tracker.high_threshold': 0.6})
    assert changed.camera('rear').tracker_settings(0.5).low_threshold == 0.5
    assert changed.camera('front').tracker_settings(0.5).low_threshold == 0.1
