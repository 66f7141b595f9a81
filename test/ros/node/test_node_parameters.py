# SPDX-License-Identifier: Apache-2.0
"""Tests of a running node's parameters over services: live changes and refusals."""

import math
import shlex

import pytest
import yaml
from rcl_interfaces.msg import ParameterType
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile
from vision_msgs.msg import LabelInfo

from support.models.tiny_model import CLASS_NAMES, expected_detections
from support.nodes.graph import found_in, picture_of
from trt_perception.parameters.values import PARAMETERS

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro

COLOR = (200, 120, 60)
LATCHED = QoSProfile(depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL)


@pytest.fixture
def detector(active_detector):
    yield active_detector
    active_detector.set_or_fail(confidence_threshold=0.25, iou_threshold=0.45)
    assert active_detector.set({'class_filter': []}, Parameter.Type.STRING_ARRAY)[0][0]


def names_found(detector):
    return [name for name, _, _ in found_in(detector.ask(picture_of(COLOR)))]


def test_confidence_threshold_changes_while_active(detector):
    # Scores are 0.784, 0.706, 0.471, 0.235.
    for threshold, count in ((0.25, 3), (0.75, 1), (0.9, 0), (0.2, 4), (0.0, 4), (1.0, 0)):
        detector.set_or_fail(confidence_threshold=threshold)
        assert len(names_found(detector)) == count


def test_iou_threshold_changes_while_active(detector):
    # The two red boxes overlap by 1/3.
    for threshold, count in ((0.45, 2), (0.3, 1), (0.34, 2), (0.0, 1), (1.0, 2)):
        detector.set_or_fail(iou_threshold=threshold)
        assert names_found(detector).count('red') == count


def test_class_filter_changes_while_active(detector):
    detector.set_or_fail(confidence_threshold=0.1)
    for names in (['green'], ['blue', 'red'], ['red', 'red']):
        detector.set_or_fail(class_filter=names)
        expected = expected_detections(COLOR, (128, 96), 0.1, names)
        assert names_found(detector) == [name for name, _, _ in expected]


@pytest.mark.parametrize(
    'kind',
    [
        Parameter.Type.STRING_ARRAY,
        Parameter.Type.BOOL_ARRAY,  # `ros2 param set` sends this type for []
        Parameter.Type.BYTE_ARRAY,
        Parameter.Type.INTEGER_ARRAY,
    ],
)
def test_empty_list_of_any_type_clears_the_class_filter(detector, kind):
    detector.set_or_fail(class_filter=['green'])
    assert names_found(detector) == ['green']
    assert detector.set({'class_filter': []}, kind) == [(True, '')]
    assert names_found(detector) == ['red', 'red', 'green']
    assert list(detector.get('class_filter')) == []


def test_nan_that_arrives_as_a_number_is_accepted_for_a_choice(detector):
    assert detector.set({'depth.sky': math.nan}, Parameter.Type.DOUBLE) == [(True, '')]
    assert detector.get('depth.sky') == 'nan'
    detector.set_or_fail(**{'depth.sky': 'far'})


def test_fraction_as_text_is_accepted_for_a_double(detector):
    """`ros2 param set` sends 1/3 as text. The parameter stays a double."""
    assert detector.set({'confidence_threshold': '1/3'}, None) == [(True, '')]
    value = detector.get('confidence_threshold')
    assert isinstance(value, float)
    assert value == 1 / 3
    [(successful, _)] = detector.set({'confidence_threshold': '1/0'}, None)
    assert not successful


def test_yes_and_no_as_text_are_accepted(detector):
    assert detector.set({'enabled': 'no'}, None) == [(True, '')]
    assert detector.get('enabled') is False
    assert detector.set({'enabled': 'yes'}, None) == [(True, '')]
    assert detector.get('enabled') is True


def test_integer_is_accepted_for_a_double(detector):
    assert detector.set({'confidence_threshold': 1}, Parameter.Type.INTEGER) == [(True, '')]
    value = detector.get('confidence_threshold')
    assert isinstance(value, float)
    assert value == 1.0
    assert names_found(detector) == []


def test_label_info_follows_the_threshold_and_is_latched(detector):
    detector.set_or_fail(confidence_threshold=0.5)
    labels = detector.subscribe(LabelInfo, 'label_info', LATCHED)
    detector.client.spin_until(lambda: labels, 'the latched label_info')
    assert [message.threshold for message in labels] == [0.5]
    classes = [(entry.class_id, entry.class_name) for entry in labels[0].class_map]
    assert classes == list(enumerate(CLASS_NAMES))
    detector.set_or_fail(confidence_threshold=0.75)
    detector.client.spin_until(lambda: len(labels) > 1, 'label_info with the new threshold')
    assert labels[-1].threshold == 0.75
    assert labels[-1].class_map == labels[0].class_map
    # A refused change is not announced.
    assert not detector.set({'confidence_threshold': 2.0})[0][0]
    detector.set_or_fail(confidence_threshold=0.125)
    detector.client.spin_until(lambda: labels[-1].threshold == 0.125, 'label_info')
    assert [message.threshold for message in labels] == [0.5, 0.75, 0.125]


def test_label_info_is_published_in_configure(start_detector, model):
    detector = start_detector({'engine_path': str(model), 'confidence_threshold': 0.375})
    detector.transition('configure')
    labels = detector.subscribe(LabelInfo, 'label_info', LATCHED)
    detector.client.spin_until(lambda: labels, 'the latched label_info')
    assert [message.threshold for message in labels] == [0.375]


NOT_SET = Parameter.Type.NOT_SET  # `ros2 param delete` sends this type.
# Each entry: name, value and parameter type.
REFUSED = [
    ('confidence_threshold', 1.5, None),
    ('confidence_threshold', -0.1, None),
    ('confidence_threshold', math.nan, None),
    ('confidence_threshold', 2, None),
    ('confidence_threshold', 'high', None),
    ('confidence_threshold', True, None),
    ('confidence_threshold', None, NOT_SET),
    ('class_filter', None, NOT_SET),
    ('model.decoder', None, NOT_SET),
    ('iou_threshold', 1.01, None),
    ('class_filter', ['green', 'pink'], None),
    ('class_filter', 'green', None),
    ('class_filter', [1], None),
    ('max_detections', 0, None),
    ('max_detections', 10, None),
    ('max_detections', 3.5, None),
    ('engine_path', '/other.onnx', None),
    ('image_transport', 'smoke', None),
    ('image_qos.depth', 5, None),
    ('model.input_size', [640], None),
    ('confidence_treshold', 0.5, None),
    ('use_sim_time', 5, None),
]


@pytest.mark.parametrize(
    ('name', 'value', 'kind'), REFUSED, ids=[f'{name}={value}' for name, value, _ in REFUSED]
)
def test_invalid_or_fixed_values_are_refused(detector, name, value, kind, golden_messages):
    known = name in {parameter.name for parameter in PARAMETERS}
    before = detector.get(name) if known else None
    [(successful, reason)] = detector.set({name: value}, kind)
    assert not successful
    golden_messages.add(reason)
    if known:
        assert detector.get(name) == before
    assert names_found(detector) == ['red', 'red', 'green']


@pytest.mark.parametrize(
    ('name', 'value', 'yaml_text'),
    [
        ('class_filter', [3, 7], '["3", "7"]'),
        ('class_filter', 3, '["3"]'),
        ('class_filter', [True, False], '["true", "false"]'),
        ('class_filter', [0.5], '["0.5"]'),
        ('class_filter', 'green', '["green"]'),
        ('class_filter', '[3, "a b"]', '["3", "a b"]'),
        ('class_filter', "it's", '["it\'s"]'),
        ('engine_path', 5, '"5"'),
        ('engine_path', True, '"true"'),
    ],
)
def test_refusal_of_unquoted_text_shows_the_quoted_command(detector, name, value, yaml_text):
    [(successful, reason)] = detector.set({name: value})
    assert not successful
    assert 'array(' not in reason
    assert ('on, off, yes, no' in reason) == (value is True or value == [True, False])
    # Parse the suggested command as a shell does, and its value as `ros2 param set` does.
    words = shlex.split(reason.partition('; for text: ')[2])
    assert words == ['ros2', 'param', 'set', detector.name, name, yaml_text]
    text = yaml.safe_load(yaml_text)
    assert all(isinstance(word, str) for word in (text if name == 'class_filter' else [text]))


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('model.decoder', 5),  # the text '5' is also no valid choice
        ('model.class_names', ['a', 'a']),
        ('confidence_threshold', 'high'),
        ('model.input_size', ['640']),
        ('class_filter', list(range(1000))),
        ('engine_path', ['a']),
        ('class_filter', [b'1', b'2']),
    ],
)
def test_quotes_are_not_suggested_if_they_do_not_help(detector, name, value):
    [(successful, reason)] = detector.set({name: value})
    assert not successful
    assert 'for text' not in reason


def test_atomic_request_sets_all_parameters_or_none(detector, golden_messages):
    successful, reason = detector.set_at_once(
        {'confidence_threshold': 0.75, 'iou_threshold': 7, 'class_filter': ['pink']}
    )
    assert not successful
    golden_messages.add(reason)
    assert names_found(detector) == ['red', 'red', 'green']
    values = {'confidence_threshold': 0.2, 'iou_threshold': 0, 'class_filter': ['red', 'blue']}
    assert detector.set_at_once(values) == (True, '')
    assert names_found(detector) == ['red', 'blue']


def test_unchanged_value_of_a_fixed_parameter_is_accepted(detector):
    assert detector.set({'max_detections': 300, 'image_transport': 'raw'}) == [(True, '')] * 2


def test_fixed_parameters_change_after_cleanup(start_detector, model, golden_messages):
    detector = start_detector({'engine_path': str(model), 'autostart': True})
    detector.connect()
    for transition in ('deactivate', 'cleanup'):
        [(successful, reason)] = detector.set({'max_detections': 1})
        assert not successful
        golden_messages.add(reason)
        detector.transition(transition)
    detector.set_or_fail(max_detections=1, class_filter=['pink'])
    # Without a model, any class filter is accepted. configure checks the filter.
    assert not detector.change_state('configure')
    detector.program.wait_for_output('red, green, blue')
    detector.set_or_fail(class_filter=['red'])
    detector.transition('configure', 'activate')
    detector.connect()
    assert names_found(detector) == ['red']


def test_diagnostics_period_changes_after_cleanup(start_detector, model):
    detector = start_detector({'engine_path': str(model), 'diagnostics_period_s': 60.0})
    detector.transition('configure', 'cleanup')
    detector.set_or_fail(diagnostics_period_s=0.1)
    detector.transition('configure')
    for _ in range(3):
        detector.wait_for_status(lambda *_: True, 'diagnostics ten times a second')


def test_descriptors_match_the_parameter_table(detector, golden_messages):
    descriptors = detector.describe([parameter.name for parameter in PARAMETERS])
    kinds = {
        'bool': ParameterType.PARAMETER_BOOL,
        'integer': ParameterType.PARAMETER_INTEGER,
        'double': ParameterType.PARAMETER_DOUBLE,
        'string': ParameterType.PARAMETER_STRING,
        'integer[]': ParameterType.PARAMETER_INTEGER_ARRAY,
        'double[]': ParameterType.PARAMETER_DOUBLE_ARRAY,
        'string[]': ParameterType.PARAMETER_STRING_ARRAY,
    }
    for parameter, descriptor in zip(PARAMETERS, descriptors, strict=True):
        assert descriptor.name == parameter.name
        assert descriptor.type == kinds[parameter.kind]
        golden_messages.add(descriptor.description)
        assert parameter.unit in descriptor.description
        assert not descriptor.read_only
        ranges = [
            (entry.from_value, entry.to_value)
            for entry in (*descriptor.integer_range, *descriptor.floating_point_range)
        ]
        assert ranges == ([parameter.limits] if parameter.limits else [])
        for choice in parameter.choices:
            assert repr(choice) in descriptor.additional_constraints


def test_description_shows_the_limits_of_parameters(detector, golden_messages):
    # Literal limits as `ros2 param describe` shows them, independent of the parameter table.
    threshold, depth = detector.describe(['confidence_threshold', 'pipeline_depth'])
    [limits] = threshold.floating_point_range
    assert (limits.from_value, limits.to_value) == (0.0, 1.0)
    golden_messages.add(threshold.additional_constraints)
    [limits] = depth.integer_range
    assert (limits.from_value, limits.to_value) == (1, 8)
    golden_messages.add(depth.additional_constraints)
