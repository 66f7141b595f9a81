# SPDX-License-Identifier: Apache-2.0
"""Test the messages on /diagnostics."""

import dataclasses

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.time import Time

from trt_perception.model.tasks.obb import Obb
from trt_perception.model.tasks.pose import KeypointSpec, Pose
from trt_perception.monitoring.frame_statistics import FrameStatistics, FrameTimes
from trt_perception.monitoring.pipeline_statistics import PipelineStatistics
from trt_perception.monitoring.status_summary import Level, StatusSummary
from trt_perception.ros.diagnostics import CameraDiagnostics, NodeDiagnostics, diagnostics_message

pytestmark = pytest.mark.each_distro

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR


NODE_FIELDS = {field.name for field in dataclasses.fields(NodeDiagnostics)} - {'summary'}
STAMP = Time(seconds=3)


def values_of(status):
    values = {pair.key: pair.value for pair in status.values}
    assert len(values) == len(status.values), 'a key is repeated'
    return values


def statuses_of(diagnostics):
    """Return (level, message, values) of each status, by its name without the node's name."""
    message = diagnostics_message('/front/detector', STAMP, diagnostics)
    assert (message.header.stamp.sec, message.header.stamp.nanosec) == (3, 0)
    statuses = {}
    for status in message.status:
        node, part = status.name.split(': ')
        assert node == '/front/detector'
        assert part not in statuses
        statuses[part] = status.level, status.message, values_of(status)
    return statuses


def status_of(**facts):
    """Return the only status of a node with one camera."""
    node_facts = {name: value for name, value in facts.items() if name in NODE_FIELDS}
    camera_facts = {name: value for name, value in facts.items() if name not in NODE_FIELDS}
    diagnostics = NodeDiagnostics(**node_facts, cameras=[CameraDiagnostics(**camera_facts)])
    message = diagnostics_message('/front/detector', STAMP, diagnostics)
    assert (message.header.stamp.sec, message.header.stamp.nanosec) == (3, 0)
    [status] = message.status
    assert status.name == '/front/detector: detector'
    return status, values_of(status)


@pytest.mark.parametrize(
    ('facts', 'level', 'words'),
    [
        ({'state': 'unconfigured'}, OK, 'unconfigured'),
        ({'state': 'inactive'}, OK, 'inactive'),
        ({'state': 'finalized'}, OK, 'finalized'),
        ({'state': 'active', 'summary': StatusSummary(Level.OK, '', '5.0 Hz')}, OK, '5.0 Hz'),
        ({'state': 'active', 'summary': StatusSummary(Level.WARN, 'x', 'slow')}, WARN, 'slow'),
        (
            {'state': 'active', 'summary': StatusSummary(Level.ERROR, 'x', 'gone')},
            ERROR,
            'gone',
        ),
        ({'state': 'unconfigured', 'error': 'no such file'}, ERROR, 'no such file'),
        (
            {
                'state': 'active',
                'summary': StatusSummary(Level.WARN, 'x', 'slow'),
                'error': 'what happened',
            },
            ERROR,
            'what happened',
        ),
    ],
)
def test_status_has_the_expected_level_and_message(facts, level, words):
    status, values = status_of(**facts)
    assert status.level == level
    assert words in status.message
    assert values['state'] == facts['state']


def test_status_contains_counts_and_times():
    counts = FrameStatistics(
        received=10,
        published=4,
        dropped={'replaced': 3, 'bad_step': 1},
        failed=1,
        in_flight=1,
        # Of 101 sorted frames, the 51st is the median, and the 100th the 99th percentile.
        times=[FrameTimes(ms * 1e-3, 0, 0, 0, 0) for ms in (*[0.5] * 51, *[1.25] * 50)],
    )
    status, values = status_of(
        state='active',
        engine='/models/yolo.engine',
        task=Pose(KeypointSpec(('nose', 'left eye'), 3)),
        statistics=counts,
        received_hz=4.0,
        published_hz=2.0,
        not_delivered=5,
        result_images_skipped=6,
        decoder_warnings=7,
        candidates_limited=8,
        # Of 101 sorted ages, the 51st is the median, and the 100th the 99th percentile.
        ages_ms=[12.34] * 51 + [56.78] * 50,
        reliability='best_effort',
    )
    assert status.hardware_id == '/models/yolo.engine'
    expected = {
        'state': 'active',
        'engine': '/models/yolo.engine',
        'task': 'pose',
        'keypoints': 'nose, left eye',
        'image reliability': 'best_effort',
        'received (Hz)': '4.00',
        'published (Hz)': '2.00',
        'received': '10',
        'published': '4',
        'failed': '1',
        'in flight': '1',
        'not delivered': '5',
        'dropped: bad_step': '1',
        'dropped: replaced': '3',
        'result_images_skipped': '6',
        'masks_skipped': '6',  # the old name
        'decoder_warnings': '7',
        'candidates_limited': '8',
        'wait p50 / p99 (ms)': '0.500 / 1.250',
        'age of output p50 / p99 (ms)': '12.3 / 56.8',
    }
    assert {name: values.get(name) for name in expected} == expected


@pytest.mark.parametrize('names', [('',), ('front', 'rear')])
def test_first_status_contains_the_values_of_the_runtime(names):
    cameras = [CameraDiagnostics(name=name) for name in names]
    pairs = ('provider', 'cuda'), ('nodes by provider', 'cuda 7, cpu 2')
    found = statuses_of(NodeDiagnostics('inactive', cameras=cameras, runtime_values=pairs))
    assert [set(pairs) <= values.items() for _, _, values in found.values()] == [
        name in ('', 'detector') for name in ('detector', *filter(None, names))
    ]


def test_losses_are_unknown_with_several_publishers(golden_messages):
    _, values = status_of(state='active', not_delivered=None)
    golden_messages.add(values['not delivered'])


def test_status_before_the_first_image_has_no_times():
    _, values = status_of(state='active')
    assert values['received'] == '0'
    assert not any('p50' in name for name in values)


# Several cameras.


def camera_facts(name, level=Level.OK, message='active', **facts):
    """Return the facts of a camera."""
    kind = '' if level == Level.OK else f'kind of {name}'
    return CameraDiagnostics(name, summary=StatusSummary(level, kind, message), **facts)


NO_PROBLEM = StatusSummary(Level.OK, '', 'active, images from 2 of 2 cameras')


def test_first_status_sums_up_the_statuses_of_cameras():
    counts = [
        FrameStatistics(received=10, published=4, dropped={'replaced': 5}, in_flight=1),
        FrameStatistics(received=7, published=3, dropped={'replaced': 1, 'bad_step': 2}, failed=1),
    ]
    cameras = [
        camera_facts(
            *('front', Level.OK, 'active, 5.0 Hz'),
            statistics=counts[0],
            received_hz=4.0,
            published_hz=2.0,
            not_delivered=5,
            result_images_skipped=3,
            decoder_warnings=2,
            candidates_limited=4,
            ages_ms=[10.0] * 10,
            reliability='best_effort',
        ),
        camera_facts(
            *('rear', Level.OK, 'active'),
            statistics=counts[1],
            published_hz=1.5,
            not_delivered=2,
            result_images_skipped=1,
            decoder_warnings=3,
            candidates_limited=5,
        ),
    ]
    diagnostics = NodeDiagnostics('active', '', '/m.engine', Obb(), cameras, NO_PROBLEM, batches=6)
    statuses = statuses_of(diagnostics)
    assert list(statuses) == ['detector', 'front', 'rear']
    level, message, values = statuses['detector']
    assert (level, message) == (OK, NO_PROBLEM.message)
    expected = {
        'state': 'active',
        'engine': '/m.engine',
        'task': 'obb',
        'cameras': 'front, rear',
        'received (Hz)': '4.00',
        'published (Hz)': '3.50',
        'received': '17',
        'published': '7',
        'failed': '1',
        'in flight': '1',
        'not delivered': '7',
        'dropped: bad_step': '2',
        'dropped: replaced': '6',
        'result_images_skipped': '4',
        'masks_skipped': '4',  # the old name
        'decoder_warnings': '5',
        'candidates_limited': '9',
        'batches': '6',
        'age of output p50 / p99 (ms)': '10.0 / 10.0',
    }
    assert values == expected
    level, message, values = statuses['front']
    assert (level, message) == (OK, 'active, 5.0 Hz')
    assert values['image reliability'] == 'best_effort'
    assert values['received'] == '10'
    assert values['age of output p50 / p99 (ms)'] == '10.0 / 10.0'
    assert 'engine' not in values
    _, _, values = statuses['rear']
    assert (values['received'], values['dropped: bad_step']) == ('7', '2')
    assert not any(key.startswith('age') for key in values)


def test_losses_of_the_node_are_unknown_if_losses_of_a_camera_are_unknown():
    cameras = [camera_facts('front', not_delivered=None), camera_facts('rear', not_delivered=3)]
    statuses = statuses_of(NodeDiagnostics('active', cameras=cameras, summary=NO_PROBLEM))
    lost = {part: values['not delivered'] for part, (_, _, values) in statuses.items()}
    assert lost == {'detector': lost['front'], 'front': lost['front'], 'rear': '3'}
    assert not lost['front'].isdigit()


@pytest.mark.parametrize(
    ('node_problem', 'cameras', 'level', 'expected_message'),
    [
        (NO_PROBLEM, {'front': (OK, 'active'), 'rear': (OK, 'active')}, OK, NO_PROBLEM.message),
        (
            NO_PROBLEM,
            {'front': (WARN, 'slow'), 'rear': (ERROR, 'gone'), 'left': (OK, 'active')},
            ERROR,
            'rear: gone; front: slow',
        ),
        (
            StatusSummary(Level.WARN, 'same_name', '2 nodes'),
            {'front': (OK, 'active'), 'rear': (ERROR, 'gone')},
            ERROR,
            '2 nodes; rear: gone',
        ),
        (
            StatusSummary(Level.WARN, 'note', 'replaced'),
            {'front': (OK, 'active'), 'rear': (OK, 'active')},
            WARN,
            'replaced',
        ),
        (
            NO_PROBLEM,
            {f'c{n}': (ERROR, 'gone') for n in range(7)},
            ERROR,
            'c0: gone; c1: gone; c2: gone; c3: gone; and c4, c5, c6',
        ),
    ],
)
def test_node_status_shows_cameras_with_problems(node_problem, cameras, level, expected_message):
    facts = [
        camera_facts(name, Level(int(level[0])), text) for name, (level, text) in cameras.items()
    ]
    statuses = statuses_of(NodeDiagnostics('active', cameras=facts, summary=node_problem))
    assert statuses['detector'][:2] == (level, expected_message)
    for name, expected in cameras.items():
        assert statuses[name][:2] == expected


def test_fault_is_in_the_status_of_every_camera():
    cameras = [camera_facts('front'), camera_facts('rear', Level.WARN, 'slow')]
    statuses = statuses_of(NodeDiagnostics('unconfigured', error='it broke', cameras=cameras))
    assert [status[:2] for status in statuses.values()] == [(ERROR, 'it broke')] * 3


def test_inactive_cameras_keep_their_counts():
    cameras = [
        CameraDiagnostics('front', FrameStatistics(received=3, published=3)),
        CameraDiagnostics('rear'),
    ]
    statuses = statuses_of(NodeDiagnostics('inactive', cameras=cameras))
    assert [status[:2] for status in statuses.values()] == [(OK, 'inactive')] * 3
    assert [status[2]['published'] for status in statuses.values()] == ['3', '3', '0']


@pytest.mark.parametrize('names', [('',), ('front', 'rear')])
def test_each_of_several_gpus_has_a_status(names):
    gpus = {
        0: PipelineStatistics(frames=12, batches=4, compute_s=[0.002] * 3),
        3: PipelineStatistics(),
    }
    cameras = [CameraDiagnostics(name) for name in names]
    statuses = statuses_of(NodeDiagnostics('active', cameras=cameras, gpus=gpus))
    assert {part for part in statuses if 'GPU' in part} == {'GPU 0', 'GPU 3'}
    assert statuses['GPU 0'][2] == {
        'state': 'active',
        'frames': '12',
        'batches': '4',
        'compute p50 / p99 (ms)': '2.000 / 2.000',
    }
    assert statuses['GPU 3'][2]['frames'] == '0'
    one_gpu = NodeDiagnostics('active', cameras=cameras, gpus={0: gpus[0]})
    assert not any('GPU' in part for part in statuses_of(one_gpu))
