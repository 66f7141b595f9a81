"""What /diagnostics says, from the facts of one moment."""

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.time import Time

from trt_perception.monitoring.frame_statistics import FrameStatistics
from trt_perception.monitoring.frame_statistics import FrameTimes
from trt_perception.monitoring.problem import Level
from trt_perception.monitoring.problem import Problem
from trt_perception.ros.diagnostics import Health
from trt_perception.ros.diagnostics import diagnostics_message

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR


def status_of(**facts):
    message = diagnostics_message('/front/detector', Time(seconds=3), Health(**facts))
    assert (message.header.stamp.sec, message.header.stamp.nanosec) == (3, 0)
    [status] = message.status
    assert status.name == '/front/detector: detector'
    values = {pair.key: pair.value for pair in status.values}
    assert len(values) == len(status.values), 'each key once'
    return status, values


@pytest.mark.parametrize(
    ('facts', 'level', 'words'),
    [
        ({'state': 'unconfigured'}, OK, 'unconfigured'),
        ({'state': 'inactive'}, OK, 'inactive'),
        ({'state': 'finalized'}, OK, 'finalized'),
        ({'state': 'active', 'finding': Problem(Level.OK, '', '5.0 Hz')}, OK, '5.0 Hz'),
        ({'state': 'active', 'finding': Problem(Level.WARN, 'x', 'slow')}, WARN, 'slow'),
        ({'state': 'active', 'finding': Problem(Level.ERROR, 'x', 'gone')}, ERROR, 'gone'),
        ({'state': 'unconfigured', 'error': 'no such file'}, ERROR, 'no such file'),
        (
            {
                'state': 'active',
                'finding': Problem(Level.WARN, 'x', 'slow'),
                'error': 'what happened',
            },
            ERROR,
            'what happened',
        ),
    ],
)
def test_judgement(facts, level, words):
    status, values = status_of(**facts)
    assert status.level == level
    assert words in status.message
    assert values['state'] == facts['state']


def test_counts_and_times():
    counts = FrameStatistics(
        received=10,
        published=4,
        dropped={'replaced': 3, 'bad_step': 1},
        failed=1,
        in_flight=1,
        # 101 frames: the 51st by size is the median, the 100th the 99th percentile.
        times=[FrameTimes(ms * 1e-3, 0, 0, 0, 0) for ms in (*[0.5] * 51, *[1.25] * 50)],
    )
    status, values = status_of(
        state='active',
        engine='/models/yolo.engine',
        statistics=counts,
        received_hz=4.0,
        published_hz=2.0,
        not_delivered=5,
        age_ms=(12.34, 56.78),
        reliability='best_effort',
    )
    assert status.hardware_id == '/models/yolo.engine'
    expected = {
        'state': 'active',
        'engine': '/models/yolo.engine',
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
        'wait p50 / p99 (ms)': '0.500 / 1.250',
        'age of output p50 / p99 (ms)': '12.3 / 56.8',
    }
    assert {name: values.get(name) for name in expected} == expected


def test_losses_with_several_publishers_are_unknown():
    _, values = status_of(state='active', not_delivered=None)
    assert values['not delivered'] == 'unknown: several publishers'


def test_before_the_first_image():
    _, values = status_of(state='active')
    assert values['received'] == '0'
    assert not any('p50' in name for name in values)
