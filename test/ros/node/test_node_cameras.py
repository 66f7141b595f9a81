# SPDX-License-Identifier: Apache-2.0
"""Tests of cameras that come back, share a topic, or have wrong clocks, over DDS."""

import time

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.qos import QoSProfile
from rosgraph_msgs.msg import Clock

from support.nodes.graph import HANDSHAKE, frame_counts, picture_of

pytest_plugins = ['support.nodes.graph_fixtures']

AGE = 'age of output p50 / p99 (ms)'
PICTURE = picture_of((0, 0, 0), frame_id=HANDSHAKE)


def assert_answered_with_stamp(detector, stamp):
    """Publish an image with this stamp, and check that its detections have the same stamp."""
    message = detector.ask(picture_of((0, 0, 200), stamp=stamp))
    assert (message.header.stamp.sec, message.header.stamp.nanosec) == stamp
    return message


def assert_balanced(detector):
    counts = detector.settled_counts()
    dropped = sum(counts['dropped'].values())
    assert counts['received'] == counts['published'] + dropped + counts['failed']
    assert counts['failed'] == 0


def test_images_arrive_after_the_camera_is_created_again(active_detector):
    for _ in range(5):
        active_detector.destroy_camera()
        active_detector.camera = active_detector.create_camera(QoSProfile(depth=10))
        active_detector.connect(PICTURE)
        assert_answered_with_stamp(active_detector, (7, 7))
    assert active_detector.state() == 'active'
    assert_balanced(active_detector)


def test_images_of_several_publishers_of_one_topic_are_answered(active_detector):
    others = [active_detector.create_camera(QoSProfile(depth=10)) for _ in range(3)]
    for publisher in (active_detector.camera, *others):
        active_detector.connect(PICTURE, publisher)
    for stamp, publisher in enumerate((active_detector.camera, *others) * 3, 1):
        message = active_detector.ask(picture_of((0, 0, 200), stamp=(stamp, 0)), publisher)
        assert message.header.stamp.sec == stamp
    for publisher in others:
        active_detector.client.node.destroy_publisher(publisher)
    active_detector.connect(PICTURE)
    assert_balanced(active_detector)


@pytest.mark.parametrize(
    'stamps',
    [
        [(0, 0)] * 3,
        [(1000, 0), (10, 0), (2000, 5), (9, 999_999_999)],  # the time jumps back and forth
        [(2**31 - 1, 999_999_999), (0, 1)],
        [(-5, 0), (-(2**31), 0), (5, 0)],
        [(3, 4_000_000_000)],  # invalid: nanoseconds above one second
    ],
    ids=['zero', 'jumps', 'latest', 'negative', 'nonsense'],
)
def test_any_stamp_is_passed_on_unchanged(active_detector, stamps):
    for stamp in stamps:
        assert_answered_with_stamp(active_detector, stamp)
    assert active_detector.state() == 'active'
    active_detector.wait_for_status(
        lambda status, _: status.level != DiagnosticStatus.ERROR, 'diagnostics without an error'
    )


def test_image_without_a_stamp_has_no_age(start_detector, model):
    detector = start_detector({'engine_path': str(model), 'autostart': True})
    unstamped = picture_of((0, 0, 0), frame_id=HANDSHAKE, stamp=(0, 0))
    detector.connect(unstamped)
    _, values = detector.wait_for_status(
        lambda _, values: frame_counts(values)['published'] > 0, 'counts'
    )
    assert AGE not in values
    stamped = picture_of((0, 0, 0), frame_id=HANDSHAKE, stamp=divmod(time.time_ns(), 10**9))
    detector.connect(stamped)
    _, values = detector.wait_for_status(
        lambda _, values: AGE in values, 'the age of the stamped image'
    )
    assert 0 < float(values[AGE].split(' / ')[0]) < 60e3


def assert_warns_of_clock(detector, picture):
    """Publish an image until a warning is reported, and check that no age is reported."""
    _, values = detector.wait_for_status(
        lambda status, _: (
            detector.camera.publish(picture) or status.level == DiagnosticStatus.WARN
        ),
        'a warning',
    )
    assert AGE not in values


def test_simulated_time_without_a_clock_is_reported(start_detector, model):
    detector = start_detector({'engine_path': str(model), 'autostart': True, 'use_sim_time': True})
    picture = picture_of((0, 0, 0), stamp=divmod(time.time_ns(), 10**9))
    detector.connect(picture)
    # On a busy machine, another warning may come first.
    detector.wait_for_report(
        DiagnosticStatus.WARN, '/clock', publish=lambda: detector.camera.publish(picture)
    )
    assert_warns_of_clock(detector, picture)
    clock = detector.client.node.create_publisher(Clock, '/clock', 10)
    simulated, stamped = Clock(), picture_of((0, 0, 0), stamp=(70, 0))
    simulated.clock.sec = 70

    def publish():
        clock.publish(simulated)
        detector.camera.publish(stamped)

    _, values = detector.wait_for_status(
        lambda status, values: (
            publish() or (AGE in values and status.level == DiagnosticStatus.OK)
        ),
        'an age',
    )
    assert float(values[AGE].split(' / ')[0]) == 0
    # A camera that still uses the system clock.
    assert_warns_of_clock(detector, picture)
    detector.client.node.destroy_publisher(clock)


def test_old_stamps_without_simulated_time_are_reported(start_detector, model):
    detector = start_detector({'engine_path': str(model), 'autostart': True})
    picture = picture_of((0, 0, 0), stamp=(1_600_000_000, 0))
    detector.connect(picture)
    assert_warns_of_clock(detector, picture)
    # A camera that is switched off has no problems.
    detector.set_or_fail(enabled=False)
    detector.wait_for_status(lambda status, _: status.level == DiagnosticStatus.OK, 'no problem')


def test_node_works_while_simulated_time_stops_and_jumps(start_detector, model):
    detector = start_detector({'engine_path': str(model), 'autostart': True, 'use_sim_time': True})
    # Without a publisher of /clock, the node answers images and publishes diagnostics.
    detector.connect(PICTURE)
    assert_answered_with_stamp(detector, (1, 0))
    detector.wait_for_status(lambda *_: True, 'diagnostics without a clock')
    clock = detector.client.node.create_publisher(Clock, '/clock', 10)
    try:
        detector.client.spin_until(
            lambda: clock.get_subscription_count(), 'the subscription of the clock'
        )
        for second in (100, 200, 50, 10_000, 0):
            message = Clock()
            message.clock.sec = second
            clock.publish(message)
            for _ in range(15):
                detector.camera.publish(PICTURE)
                detector.client.spin_for(0.1)
            assert_answered_with_stamp(detector, (second + 1, 0))
            detector.wait_for_status(
                lambda status, _: (
                    detector.camera.publish(PICTURE) or status.level != DiagnosticStatus.ERROR
                ),
                'diagnostics after the jump',
            )
            # The watchdog uses the system clock, so it reports the stall.
            detector.wait_for_status(
                lambda status, _: status.level == DiagnosticStatus.ERROR, 'a report of the stall'
            )
        assert detector.state() == 'active'
        assert_balanced(detector)
    finally:
        detector.client.node.destroy_publisher(clock)
