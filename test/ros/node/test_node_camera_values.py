# SPDX-License-Identifier: Apache-2.0
"""Tests of values of one of several cameras over DDS: thresholds, rate, enabled, debug image."""

import re

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import Image
from vision_msgs.msg import LabelInfo

from support.models.tiny_model import CLASS_NAMES
from support.nodes.camera_of_many import (
    COLOR,
    NAMES,
    CameraOfMany,
    assert_unharmed,
    names_found,
    steady,
)
from support.nodes.graph import picture_of

pytest_plugins = ['support.nodes.many_cameras_fixtures']

OK = DiagnosticStatus.OK
LATCHED = QoSProfile(depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def test_thresholds_of_one_camera_do_not_affect_another(cameras, detector):
    front, rear, _ = cameras
    labels = {
        camera.name: detector.subscribe(LabelInfo, f'{camera.name}/label_info', LATCHED)
        for camera in (front, rear)
    }
    detector.set_or_fail(**{'camera.rear.confidence_threshold': 0.75})
    assert names_found(rear) == ['red']
    assert names_found(front) == ['red', 'red', 'green']
    detector.set_or_fail(**{'camera.rear.class_filter': ['green']})
    assert names_found(rear) == []
    detector.set_or_fail(**{'camera.rear.confidence_threshold': 0.1})
    assert names_found(rear) == ['green']
    detector.set_or_fail(
        confidence_threshold=0.9
    )  # changes only front, which has no value of its own
    assert names_found(rear) == ['green']
    assert names_found(front) == []
    for name, threshold in (('front', 0.9), ('rear', 0.1)):
        front.client.spin_until(
            lambda name=name, threshold=threshold: (
                labels[name] and labels[name][-1].threshold == pytest.approx(threshold)
            ),
            f'labels of {name}',
        )
    assert {label.threshold for label in labels['rear']} <= {
        np.float32(value) for value in (0.25, 0.75, 0.1)
    }
    assert [entry.class_name for entry in labels['rear'][-1].class_map] == list(CLASS_NAMES)
    detector.set_or_fail(confidence_threshold=0.25)
    detector.bring_to('unconfigured')  # cleanup resets the values of cameras
    detector.wait_for_log('INFO', 'camera.rear.confidence_threshold, camera.rear.class_filter')
    detector.bring_to('active')
    for camera in (front, rear):
        camera.connect()
    assert names_found(rear) == names_found(front) == ['red', 'red', 'green']


def wait_for_numbers(detector, *numbers, publish):
    """Wait until the node's status counts these cameras: sending, switched on, switched off.

    Args:
        publish: function that publishes images of the sending cameras, called for each status.
    """
    detector.wait_for_status(
        lambda status, _: (
            publish() or [*map(int, re.findall('[0-9]+', status.message))] == [*numbers]
        ),
        f'a status with the numbers {numbers}',
    )


def test_camera_can_be_switched_off_and_on(cameras, detector, golden_messages):
    front, rear, left = cameras
    detector.set_or_fail(**{'camera.rear.enabled': False})
    detector.wait_for_log('INFO', 'enabled', of='rear')
    publish = steady([front, left])
    picture = picture_of(COLOR)
    _, values = rear.wait_for_status(
        lambda _, values: int(values.get('dropped: disabled', 0)) > 5,
        'dropped images',
        publish=lambda: publish() or rear.publisher.publish(picture),
    )
    wait_for_numbers(detector, 2, 2, 1, publish=publish)
    status, _ = rear.wait_for_status(lambda *_: True, 'a status of the switched-off camera')
    assert status.level == OK
    golden_messages.add(status.message)
    rear.detections.clear()
    assert names_found(front)
    assert not rear.answers()
    assert rear.counts()['published'] == int(values['published'])
    detector.program.forget()
    detector.set_or_fail(**{'camera.rear.enabled': True})
    golden_messages.add(detector.wait_for_log('INFO', of='rear'))
    assert names_found(rear) == ['red', 'red', 'green']
    wait_for_numbers(detector, 3, 3, publish=steady(cameras))
    # The node's parameter does not change rear, because rear has its own value.
    detector.set_or_fail(enabled=False)
    assert names_found(rear) == ['red', 'red', 'green']
    front.wait_for_status(
        lambda _, values: int(values.get('dropped: disabled', 0)) > 2,
        'dropped images',
        publish=lambda: front.publisher.publish(picture),
    )
    detector.bring_to('inactive')
    detector.bring_to('active')
    rest = ', '.join(detector.topic(f'{name}/image') for name in NAMES if name != 'rear')
    on = detector.topic('rear/image')
    detector.program.wait_for_line(rf'detector\]: active: .* {on}, .*: {rest}$')
    detector.set_or_fail(**{'camera.rear.enabled': False})
    wait_for_numbers(detector, 3, publish=lambda: None)
    detector.set_or_fail(**{'camera.rear.enabled': True}, enabled=True)
    for camera in cameras:
        camera.connect()
    assert names_found(front) == ['red', 'red', 'green']


def test_rate_limit_of_one_camera_does_not_affect_the_others(cameras, detector):
    front, rear, left = cameras
    detector.set_or_fail(**{'camera.rear.max_rate_hz': 0.1})
    publish = steady([front, left])
    rear.wait_for_status(
        lambda _, values: int(values.get('dropped: rate_limit', 0)) > 10,
        'images above the rate',
        publish=lambda: publish() or rear.publisher.publish(picture_of(COLOR)),
    )
    assert_unharmed([front, left], publish)
    detector.set_or_fail(**{'camera.rear.max_rate_hz': 0.0})
    detector.program.wait_for_line(r'detector\.rear\]: max_rate_hz .* 0\.1 Hz$')
    detector.program.wait_for_output('detector.rear]: max_rate_hz ', 2)
    before = rear.counts()['dropped']['rate_limit']
    for _ in range(5):
        assert names_found(rear) == ['red', 'red', 'green']
    assert rear.counts()['dropped']['rate_limit'] == before


def test_each_camera_has_its_debug_image(cameras, detector):
    front, rear, _ = cameras
    images = detector.subscribe(Image, 'rear/debug_image')
    picture = picture_of(COLOR, (128, 96), frame_id='rear')

    def drawn():
        front.publisher.publish(picture_of(COLOR, (64, 48), frame_id='front'))
        rear.publisher.publish(picture)
        return images

    front.client.spin_until(drawn, 'a debug image')
    assert {(image.header.frame_id, image.width) for image in images} == {('rear', 128)}


def test_fixed_parameter_and_unknown_class_of_a_camera_are_refused(
    cameras, detector, golden_messages
):
    [(successful, reason)] = detector.set({'camera.rear.image_qos.depth': 3})
    assert not successful
    golden_messages.add(reason)
    [(successful, reason)] = detector.set({'camera.rear.class_filter': ['cat']})
    assert not successful
    golden_messages.add(reason)
    [(successful, _)] = detector.set({'camera.rear.class_filter': []}, Parameter.Type.STRING_ARRAY)
    assert successful


def test_cameras_can_be_replaced_while_unconfigured(cameras, detector, golden_messages):
    for camera in cameras:
        camera.destroy_publisher()
    [(successful, reason)] = detector.set({'cameras': ['front', 'back']})
    assert not successful
    golden_messages.add(reason)
    detector.bring_to('unconfigured')
    detector.set_or_fail(cameras=['front', 'back'], **{'image_qos.depth': 2})
    assert detector.get('camera.back.image_qos.depth') == 2
    detector.bring_to('active')
    others = [CameraOfMany(detector, name) for name in ('front', 'back')]
    for camera in others:
        camera.connect()
        assert names_found(camera) == ['red', 'red', 'green']
    _, values = detector.wait_for_status(lambda *_: True, 'a status')
    assert values['cameras'] == 'front, back'
    graph = detector.client.node
    removed = detector.topic('rear/detections')
    detector.client.spin_until(
        lambda: not graph.count_publishers(removed), 'the end of the removed camera'
    )
    for camera in others:
        camera.destroy_publisher()
    detector.bring_to('unconfigured')
    detector.set_or_fail(cameras=list(NAMES), **{'image_qos.depth': 1})
