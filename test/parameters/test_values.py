# SPDX-License-Identifier: Apache-2.0
"""Tests of the parameter table: types, ranges, choices and messages about invalid values."""

import array
import dataclasses
import math
import sys

import pytest

from support.optional_packages import needs
from support.properties import given, settings, st
from trt_perception.errors import ConfigError
from trt_perception.model.decoders.anchors import Dense
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.decoders.whole_image import (
    ClassIdsDecoder,
    DepthAnything3Decoder,
    DepthDecoder,
    DepthProDecoder,
    MoGeDecoder,
)
from trt_perception.model.pipeline_options import DecodingLimits, PipelineOptions
from trt_perception.model.recognition.recognise import ModelOverrides
from trt_perception.model.tasks.depth import Depth
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.table import TASKS
from trt_perception.model.thresholds import FrameParameters, Thresholds
from trt_perception.parameters.row import read_value
from trt_perception.parameters.values import PARAMETERS, ParameterValues

ROWS = {row.name: row for row in PARAMETERS}

# The parameters of the ROS interface, written a second time to reveal unintended changes.
NAMES = {
    'engine_path', 'cameras', 'device_ids', 'pipeline_depth', 'use_cuda_graph',
    'plugin_libraries',
    'nvtx', 'batch_max_delay_ms', 'onnx_provider', 'cpu_threads', 'enabled', 'max_rate_hz',
    'confidence_threshold', 'iou_threshold', 'max_detections', 'class_filter',
    'class_agnostic_nms', 'image_transport',
    'image_intake', 'image_participants', 'nodes_on_this_machine', 'cameras_of_other_nodes',
    'triton.timeout_ms', 'triton.shared_memory', 'triton.headers', 'triton.tls', 'triton.ca_file',
    'triton.certificate_file', 'triton.key_file', 'triton.servers',
    'image_qos.reliability', 'image_qos.depth', 'debug_image.max_rate_hz',
    'diagnostics_period_s', 'autostart', 'bond.enabled', 'bond.heartbeat_period_s',
    'model.input_size', 'model.resize',
    'model.shorter_side', 'model.filter', 'model.antialias', 'model.pad_value',
    'model.color_order', 'model.scale', 'model.mean', 'model.std', 'model.decoder',
    'model.class_names', 'model.task', 'model.focal_length', 'classification.top_k', 'map_size',
    'depth.sky', 'depth.sky_threshold', 'depth.sky_depth_m',
    'tracker.type', 'tracker.high_threshold', 'tracker.low_threshold',
    'tracker.new_track_threshold', 'tracker.match_iou', 'tracker.low_match_iou',
    'tracker.max_lost_s', 'tracker.min_hits', 'tracker.class_agnostic', 'tracker.publish_low',
}  # fmt: skip
DEFAULTS = {
    'engine_path': '',
    'cameras': (),
    'device_ids': (0,),
    'batch_max_delay_ms': 0.0,
    'enabled': True,
    'max_rate_hz': 0.0,
    'confidence_threshold': 0.25,
    'iou_threshold': 0.45,
    'max_detections': 300,
    'class_filter': (),
    'image_qos.reliability': 'auto',
    'image_qos.depth': 1,
    'diagnostics_period_s': 1.0,
    'autostart': False,
    'class_agnostic_nms': False,
    'image_participants': -1,
    'model.shorter_side': 0,
    'model.antialias': -1,
    'model.pad_value': -1,
    # Those of bytetrack.yaml in Ultralytics 8.4, except for the type.
    'tracker.type': 'none',
    'tracker.high_threshold': 0.25,
    'tracker.low_threshold': 0.1,
    'tracker.new_track_threshold': 0.25,
    'tracker.match_iou': 0.2,
    'tracker.max_lost_s': 1.0,
}
# The meaning of each of these parameters determines its range.
RANGES = {
    'confidence_threshold': (0, 1),
    'iou_threshold': (0, 1),
    'max_detections': (1, 1024),
    'pipeline_depth': (1, 8),
    'image_participants': (-1, 64),
    'nodes_on_this_machine': (1, 64),
    'model.shorter_side': (0, 32767),
    'model.antialias': (-1, 1),
    'model.pad_value': (-1, 255),
}
FRAME_PARAMETERS = {
    'confidence_threshold', 'iou_threshold', 'class_filter', 'model.focal_length', 'depth.sky',
    'depth.sky_threshold', 'depth.sky_depth_m',
}  # fmt: skip
START_ONLY = {
    'nodes_on_this_machine', 'cameras_of_other_nodes',
    'plugin_libraries', 'triton.shared_memory', 'triton.headers', 'triton.tls', 'triton.ca_file',
    'triton.certificate_file', 'triton.key_file', 'triton.servers',
}  # fmt: skip
TRACKER = {name for name in NAMES if name.startswith('tracker.')}
LIVE = {*FRAME_PARAMETERS, *TRACKER, 'enabled', 'max_rate_hz'}
PER_CAMERA = {
    'confidence_threshold', 'class_filter', 'image_transport', 'image_qos.reliability',
    'image_qos.depth', 'max_rate_hz', 'enabled', 'model.focal_length', *TRACKER,
}  # fmt: skip


def refusal(values):
    with pytest.raises(ConfigError) as caught:
        ParameterValues.from_values(values)
    return str(caught.value)


def test_missing_values_are_the_defaults():
    parameters = ParameterValues.from_values({})
    assert parameters == ParameterValues()
    for row in PARAMETERS:
        assert getattr(parameters, row.field) == row.default


def test_parameters_match_the_ros_interface():
    assert set(ROWS) == NAMES
    assert len(PARAMETERS) == len(NAMES)
    assert {name: ROWS[name].default for name in DEFAULTS} == DEFAULTS
    assert {row.name for row in PARAMETERS if row.live} == LIVE
    assert {row.name for row in PARAMETERS if row.start_only} == START_ONLY
    assert {row.name for row in PARAMETERS if row.per_camera} == PER_CAMERA
    assert {name: ROWS[name].limits for name in RANGES} == RANGES
    assert Thresholds() == ParameterValues().thresholds(('cat',))


def test_tasks_of_objects_read_every_frame_parameter():
    names = {field.name for field in dataclasses.fields(FrameParameters)}
    for task in TASKS.values():
        assert names & set(task.parameters) == (names if task.finds_objects else set())


def test_every_live_threshold_reaches_the_frame():
    changed = {
        'confidence_threshold': 0.5,
        'iou_threshold': 0.5,
        'class_filter': ['cat'],
        'model.focal_length': 500.0,
        'depth.sky': 'nan',
        'depth.sky_threshold': 0.5,
        'depth.sky_depth_m': 70.0,
    }
    assert set(changed) == FRAME_PARAMETERS
    fields = set()
    for name, value in changed.items():
        found = vars(ParameterValues.from_values({name: value}).thresholds(('cat',)))
        fields.add(*(key for key, was in vars(Thresholds()).items() if found[key] != was))
    # Subscribers decide `wanted_topics`, and the calibration `normalised_focal_lengths`.
    assert fields == set(vars(Thresholds())) - {'wanted_topics', 'normalised_focal_lengths'}


@pytest.mark.parametrize('row', PARAMETERS, ids=ROWS)
def test_every_parameter_has_a_description(row, golden_messages):
    assert row.description
    golden_messages.add(row.description)
    assert row.description == row.description.strip()
    assert row.field == row.name.replace('.', '_')
    assert row.kind.removesuffix('[]') in ('bool', 'integer', 'double', 'string')
    if row.kind in ('integer', 'double'):
        assert row.limits is not None


def test_table_has_every_field_of_the_config():
    fields = [field.name for field in dataclasses.fields(ParameterValues)]
    assert sorted(row.field for row in PARAMETERS) == sorted(fields)


def test_table_starts_with_engine_path_and_frame_parameters():
    of_frame = [field.name for field in dataclasses.fields(FrameParameters)]
    assert [row.field for row in PARAMETERS][: 1 + len(of_frame)] == ['engine_path', *of_frame]


# For each kind: pairs of an accepted value and its result, and refused values of other types.
ACCEPTED = {
    'string': [('', ''), ('raw', 'raw')],
    'integer': [(0, 0), (-3, -3), (2**62, 2**62)],
    'bool': [(True, True), (False, False), ('yes', True), ('No', False), ('true', True)],
    'double': [(0.5, 0.5), (3, 3.0), ('1/255', 1 / 255), ('-1.5/4', -0.375), ('0/7', 0.0)],
    'string[]': [([], ()), (['a'], ('a',)), (('a', 'b'), ('a', 'b'))],
    'integer[]': [([], ()), ([64, 48], (64, 48)), (array.array('q', [64, 48]), (64, 48))],
    'double[]': [
        ([], ()),
        ([1, 0.5, 2], (1.0, 0.5, 2.0)),
        (['123.7/255', 0.5, '1/2'], (123.7 / 255, 0.5, 0.5)),
        (array.array('d', [1, 2, 3]), (1.0, 2.0, 3.0)),
    ],
}
MISTYPED = {
    'string': [None, 1, 1.5, True, ['raw'], b'raw', {}],
    'integer': [None, '1', 1.5, 1.0, True, [1], {}],
    'bool': [None, 'on', 'yess', '', 0, 1, 1.0, [True], {}],
    'double': [None, '1', True, [1.0], {}],
    'string[]': [None, 'cat', b'cat', 1, ['cat', 1], [None], [['cat']], [True]],
    'integer[]': [None, 64, '64', [64.0, 48], ['64', '48'], [True, True], [None], [[64, 48]]],
    'double[]': [None, 0.5, '0.5', ['1', '2', '3'], [True, 1.0, 1.0], [None], [[1.0, 1.0, 1.0]]],
}


@pytest.mark.parametrize('row', PARAMETERS, ids=ROWS)
def test_values_of_another_type_are_refused(row, golden_messages):
    for value in MISTYPED[row.kind]:
        if row.is_yes_no and value is True:
            continue
        message = refusal({row.name: value})
        golden_messages.add(message)
        assert row.kind.removesuffix('[]') in message


@pytest.mark.parametrize('row', PARAMETERS, ids=ROWS)
def test_values_of_the_right_type_are_accepted(row):
    any_value = dataclasses.replace(row, limits=None, choices=(), rule=None)
    for value, expected in ACCEPTED[row.kind]:
        result = read_value(any_value, value)
        assert result == expected
        assert type(result) is type(expected)
        if isinstance(expected, tuple):
            assert [type(item) for item in result] == [type(item) for item in expected]


@pytest.mark.parametrize(
    'text',
    [
        *('1/0', '0/0', '1/2/3', '2*3', '1//2', '1/-2', '1e0/2', '(1)/2', 'x/2', '1/', '/2', '1'),
        *('1 / 2 ', '1/\n2', '1/0x2', '1_0/2', '١/2', '__import__("os")/1', f'1/{"9" * 200}'),
        '9' * 10**6 + '/1',
    ],
    ids=lambda text: text[:12],
)
def test_text_other_than_a_fraction_of_two_numbers_is_refused(text):
    assert refusal({'model.scale': text})
    assert refusal({'model.mean': [text, 1.0, 1.0]})


@pytest.mark.parametrize(
    ('value', 'expected'),
    [(True, 1), (False, 0), ('yes', 1), ('NO', 0), ('true', 1), ('false', 0), (1, 1), (-1, -1)],
)
def test_antialias_accepts_yes_and_no(value, expected):
    parameters = ParameterValues.from_values({'model.antialias': value})
    assert parameters.model_antialias == expected
    assert type(parameters.model_antialias) is int
    assert refusal({'model.antialias': 'perhaps'})


def test_unknown_name_is_refused_with_a_suggestion(golden_messages):
    golden_messages.add(refusal({'confidence_treshold': 0.5}))
    assert 'did you mean' not in refusal({'quux': 0.5})
    golden_messages.add(refusal({'model.keypoints': 'pose'}))


def test_whole_numbers_are_accepted_for_doubles():
    parameters = ParameterValues.from_values({'confidence_threshold': 1, 'model.mean': [0, 1, 2]})
    assert parameters.confidence_threshold == 1.0
    assert isinstance(parameters.confidence_threshold, float)
    assert parameters.model_mean == (0.0, 1.0, 2.0)
    assert all(isinstance(value, float) for value in parameters.model_mean)


RANGED = [row for row in PARAMETERS if row.limits]


@pytest.mark.parametrize('row', RANGED, ids=lambda row: row.name)
def test_values_outside_the_range_are_refused(row, golden_messages):
    whole = row.kind == 'integer'
    low, high = row.limits
    below = low - 1 if whole else math.nextafter(low, -math.inf)
    above = high + 1 if whole else math.nextafter(high, math.inf)
    for value in row.limits:
        parameters = ParameterValues.from_values({row.name: value})
        assert getattr(parameters, row.field) == value
    outside = [below, above]
    outside += [-(2**62), 2**62] if whole else [math.nan, math.inf, -math.inf, 10**400]
    for value in outside:
        golden_messages.add(refusal({row.name: value}))


CHOSEN = [row for row in PARAMETERS if row.choices]


@pytest.mark.parametrize('row', CHOSEN, ids=lambda row: row.name)
def test_values_outside_the_choices_are_refused(row, golden_messages):
    for value in row.choices:
        assert getattr(ParameterValues.from_values({row.name: value}), row.field) == value
    for value in ('other', row.choices[-1].upper(), row.choices[-1] + ' '):
        golden_messages.add(refusal({row.name: value}))


def test_nan_without_quotes_is_the_choice_nan():
    assert ParameterValues.from_values({'depth.sky': math.nan}).depth_sky == 'nan'
    assert refusal({'depth.sky': math.inf})
    assert refusal({'image_transport': math.nan})


def test_choices_of_the_decoder_are_the_presets():
    assert ROWS['model.decoder'].choices == ('', *PRESETS)


@pytest.mark.parametrize(
    'values',
    [
        {'model.input_size': [64]},
        {'model.input_size': [64, 48, 3]},
        {'model.input_size': [0, 48]},
        {'model.input_size': [64, -1]},
        {'model.input_size': [64, 32768]},
        {'model.input_size': [8192, 8193]},
        {'model.input_size': [32767, 32767]},
        {'model.mean': [0.5]},
        {'model.mean': [0.0, math.nan, 0.0]},
        {'model.mean': [0.0, 0.0, -math.inf]},
        {'model.mean': [10**400, 0.0, 0.0]},
        {'model.std': [1.0, 1.0]},
        {'model.std': [1.0, 0.0, 1.0]},
        {'model.std': [1, 1, -1]},
        {'model.std': [1e-300, 1, 1]},
        {'model.mean': [0, 0, 1e300]},
        {'model.scale': 1e-300},
        {'model.std': [1.0, math.nan, 1.0]},
        {'model.std': [1.0, math.inf, 1.0]},
        {'model.class_names': ['cat', '']},
        {'model.class_names': ['cat', 'dog', 'cat']},
        {'cameras': ['front', 'front']},
        {'cameras': ['front', '']},
        {'cameras': ['2nd']},
        {'cameras': ['_front']},
        {'cameras': ['front/left']},
        {'cameras': ['front.left']},
        {'cameras': ['vorn\n']},
        {'cameras': ['kühl']},
        {'cameras': ['x' * 65]},
        {'cameras': ['front', 'detector']},
        {'cameras': [f'c{number}' for number in range(65)]},
        {'device_ids': []},
        {'device_ids': [0, 1, 0]},
        {'device_ids': [64]},
        {'device_ids': [0, -1]},
        {'plugin_libraries': ['/opt/a.so', '']},
        {'plugin_libraries': ['/opt/a\n.so']},
        {'plugin_libraries': ['x' * 5000]},
        {'map_size': ''},
        {'map_size': 400},
        {'map_size': '400'},
        {'map_size': '0x200'},
        {'map_size': '32768x1'},
        {'map_size': '8192x4097'},
        {'map_size': '8192x8192'},
        {'map_size': '400x200\n'},
        {'map_size': '４00x200'},
        {'max_rate_hz': 0.001},
        {'max_rate_hz': 1e-320},
        {'confidence': 0.5},
        {'': 1},
    ],
)
def test_values_that_break_other_rules_are_refused(values, golden_messages):
    golden_messages.add(refusal(values))


def test_valid_arrays_are_accepted():
    for size in ([], [1, 1], [640, 480], [8192, 8192], [1, 32767]):
        parameters = ParameterValues.from_values({'model.input_size': size})
        assert parameters.model_input_size == tuple(size)
    names = ('a', 'A', 'x' * 64, 'front_left_2')
    assert ParameterValues.from_values({'cameras': list(names)}).cameras == names
    many = [f'c{number}' for number in range(64)]
    assert ParameterValues.from_values({'cameras': many}).cameras == tuple(many)
    parameters = ParameterValues.from_values(
        {'model.mean': [-1, 0, 1], 'model.std': [0.1, 1, 100]}
    )
    assert parameters.model_mean == (-1, 0, 1)
    assert parameters.model_std == (0.1, 1, 100)


def test_pipeline_options_take_their_values_from_the_config():
    assert ParameterValues().pipeline_options() == PipelineOptions()

    parameters = ParameterValues(
        device_ids=(3, 1),
        pipeline_depth=2,
        use_cuda_graph=False,
        onnx_provider='cuda',
        cpu_threads=5,
        plugin_libraries=('/opt/a.so',),
        nvtx=True,
        max_detections=7,
        class_agnostic_nms=True,
        image_transport='auto',
        model_decoder='dense',
    )

    assert parameters.pipeline_options() == PipelineOptions(
        depth=2,
        device_id=3,
        use_cuda_graph=False,
        jpeg_on_gpu=True,
        onnx_provider='cuda',
        cpu_threads=5,
        plugin_libraries=('/opt/a.so',),
        nvtx=True,
        limits=DecodingLimits(7, class_agnostic=True),
        overrides=ModelOverrides(decoder='dense'),
    )


def test_changed_values_are_read_like_the_first_values():
    values = ParameterValues.from_values({'iou_threshold': 0.6})
    changed = values.with_values({'model.std': [1, '1/2', 3]})
    assert (changed.iou_threshold, changed.model_std) == (0.6, (1.0, 0.5, 3.0))
    for change in (
        {'confidence_threshold': math.nan},
        {'iou_threshold': 1.5},
        {'max_detections': 0},
        {'image_transport': 'theora'},
        {'model.std': (0.0, 1.0, 1.0)},
    ):
        with pytest.raises(ConfigError):
            values.with_values(change)
    with pytest.raises(dataclasses.FrozenInstanceError):
        ParameterValues().iou_threshold = 0.5


@pytest.mark.parametrize(
    ('class_filter', 'ids'),
    [
        ((), ()),
        (('dog',), (1,)),
        (('dog', 'cat'), (0, 1)),
        (('cat', 'cat'), (0,)),
        (('fox', 'cat', 'dog'), (0, 1, 2)),
    ],
)
def test_thresholds_convert_the_class_filter_to_indices(class_filter, ids):
    parameters = ParameterValues.from_values(
        {'class_filter': list(class_filter), 'confidence_threshold': 0.3, 'iou_threshold': 0.6}
    )
    assert parameters.thresholds(('cat', 'dog', 'fox')) == Thresholds(0.3, 0.6, class_ids=ids)


def test_class_filter_with_unknown_classes_is_refused(golden_messages):
    parameters = ParameterValues.from_values({'class_filter': ['dog', 'unicorn', 'Cat']})
    with golden_messages.raises(ConfigError) as caught:
        parameters.thresholds(('cat', 'dog'))
    for count, end in (
        (20, 'c18, c19'),
        (21, 'c18, c19 and 1 more'),
        (1000, 'c18, c19 and 980 more'),
    ):
        with golden_messages.raises(ConfigError) as caught:
            parameters.thresholds(tuple(f'c{number}' for number in range(count)))
        assert caught.value.expected.endswith(end)


@pytest.mark.parametrize('name', TASKS)
def test_only_tasks_of_objects_check_the_class_filter(name):
    parameters, names = ParameterValues(class_filter=('unicorn',)), ('cat', 'dog')
    if (kind := TASKS[name]).finds_objects:
        with pytest.raises(ConfigError):
            parameters.thresholds(names, kind)
    else:
        task = kind()
        assert parameters.thresholds(names, task) == Thresholds()
        assert parameters.unused_parameter_warnings(task, ClassIdsDecoder())


@pytest.mark.parametrize(
    ('decoder', 'unused'),
    [
        (DepthDecoder(False, False, 'bicubic'), {'depth.sky', 'model.focal_length'}),
        (DepthProDecoder(), {'depth.sky', 'model.focal_length'}),
        (MoGeDecoder(), {'depth.sky'}),
        (DepthAnything3Decoder(), set()),
    ],
)
def test_parameters_that_the_decoder_of_a_depth_ignores_give_a_warning(decoder, unused):
    parameters = ParameterValues(depth_sky='nan', model_focal_length=500.0, map_size='network')
    warnings = parameters.unused_parameter_warnings(Depth(), decoder)
    assert {warning.split()[0] for warning in warnings} == unused
    # A parameter may return to its default without a warning.
    assert not ParameterValues().unused_parameter_warnings(Depth(), decoder, before=parameters)


@needs('scipy')
@pytest.mark.parametrize(
    ('confidence', 'low', 'lowest'), [(0.5, 0.1, 0.1), (0.05, 0.1, 0.05), (0.1, 0.1, 0.1)]
)
def test_decoder_uses_the_lowest_threshold_in_force(confidence, low, lowest):
    values = {'confidence_threshold': confidence, 'tracker.low_threshold': low}
    without = ParameterValues.from_values(values)
    assert without.thresholds(('a',)).confidence_threshold == confidence
    assert without.tracker_settings(0.5) is None
    config = ParameterValues.from_values({**values, 'tracker.type': 'bytetrack'})
    assert config.thresholds(('a',)).confidence_threshold == lowest


@needs('scipy')
def test_every_setting_of_a_tracker_is_a_parameter():
    values = {
        'tracker.type': 'bytetrack',
        'tracker.high_threshold': 0.31,
        'tracker.low_threshold': 0.32 - 0.2,
        'tracker.new_track_threshold': 0.33,
        'tracker.match_iou': 0.34,
        'tracker.low_match_iou': 0.35,
        'tracker.max_lost_s': 3.6,
        'tracker.min_hits': 37,
        'tracker.class_agnostic': True,
        'tracker.publish_low': False,
    }
    assert set(values) == TRACKER
    expected = {name.removeprefix('tracker.'): value for name, value in values.items()}
    del expected['type']
    settings_ = ParameterValues.from_values(values).tracker_settings(0.4)
    assert dataclasses.asdict(settings_) == {'confidence_threshold': 0.4, **expected}


@needs('scipy')
@pytest.mark.parametrize('name', TASKS)
def test_only_tasks_of_objects_have_tracks(name, golden_messages):
    config = ParameterValues(tracker_type='bytetrack')
    kind = TASKS[name]
    if kind.finds_objects:
        assert config.thresholds(('cat',), kind)
    else:
        with pytest.raises(ConfigError) as caught:
            config.thresholds(('cat',), kind())
        golden_messages.add(caught.value)
        assert caught.value.subject == "parameter 'tracker.type'"
        assert caught.value.fix
        # Its settings alone have no effect, as other parameters of objects.
        others = ParameterValues(tracker_match_iou=0.5)
        assert others.thresholds(('cat',), kind()) == Thresholds()
        assert others.unused_parameter_warnings(kind(), ClassIdsDecoder())


def test_settings_without_a_tracker_give_a_warning():
    config = ParameterValues(tracker_match_iou=0.5)
    [warning] = config.unused_parameter_warnings(DETECT, Dense())
    assert warning.split()[0] == 'tracker.match_iou'


@needs('scipy')
def test_low_threshold_above_the_high_threshold_is_refused(golden_messages):
    wrong = {'tracker.low_threshold': 0.5}
    assert ParameterValues.from_values(wrong), 'it has no effect without a tracker'
    with pytest.raises(ConfigError) as caught:
        ParameterValues.from_values({**wrong, 'tracker.type': 'bytetrack'})
    golden_messages.add(caught.value)


def test_tracker_without_scipy_is_refused_at_its_parameter(monkeypatch):
    monkeypatch.setitem(sys.modules, 'scipy.optimize', None)
    assert ParameterValues().tracker_type == 'none'
    with pytest.raises(ConfigError) as caught:
        ParameterValues(tracker_type='bytetrack')
    assert caught.value.subject == "parameter 'tracker.type'"
    assert 'python3-scipy' in caught.value.fix


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


@settings(deadline=None, max_examples=300)
@given(
    st.dictionaries(
        st.sampled_from(sorted(ROWS)), scalars | st.lists(scalars, max_size=4), max_size=3
    )
)
def test_any_values_give_a_valid_config_or_are_refused(values):
    try:
        parameters = ParameterValues.from_values(values)
    except ConfigError as error:
        named = [name for name in values if f"'{name}'" in str(error)]
    else:
        assert 0 <= parameters.confidence_threshold <= 1
        assert 1 <= parameters.max_detections <= 1024
        return
    assert named


@pytest.mark.parametrize('is_launched', [False, True])
def test_overrides_have_values_only_if_a_parameter_was_set(monkeypatch, is_launched):
    monkeypatch.setattr('trt_perception.parameters.model.is_launched', lambda: is_launched)
    assert not ParameterValues().model_overrides().has_values
    for values in ({'model.decoder': 'dense'}, {'model.pad_value': 0}, {'model.mean': [0, 0, 0]}):
        assert ParameterValues.from_values(values).model_overrides().has_values
