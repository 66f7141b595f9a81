# SPDX-License-Identifier: Apache-2.0
"""Tests of several cameras on several stand-in pipelines over DDS, with and without faults."""

import signal

import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus

from support.nodes import scripted_node
from support.nodes.camera_of_many import CameraOfMany
from support.nodes.graph import HANDSHAKE, command_image
from support.programs import script

pytest_plugins = ['support.nodes.graph_fixtures']

NAMES = ('front', 'rear', 'left')
HELLO = command_image(0, frame_id=HANDSHAKE)


@pytest.fixture
def detector(start_detector):
    """Return a node with three cameras and two pipelines."""
    settings = {'cameras': list(NAMES), 'device_ids': [2, 5]}
    return start_detector(settings, command=script('nodes/scripted_node.py'), camera_qos=None)


@pytest.fixture
def cameras(detector):
    """Return the cameras of the activated node."""
    cameras = [CameraOfMany(detector, name) for name in NAMES]
    detector.bring_to('active')
    for camera in cameras:
        camera.connect(HELLO)
        camera.ask(command_image(0))
        camera.counts()
    detector.program.forget()
    yield cameras
    for camera in cameras:
        camera.destroy_publisher()


def frames_of_gpu(detector, gpu):
    _, values = detector.wait_for_status(lambda *_: True, f'GPU {gpu}', of=f'GPU {gpu}')
    return int(values['frames'])


def test_each_camera_has_a_status_before_the_first_activation(detector):
    detector.transition('configure')
    for name in ('detector', *NAMES):
        detector.wait_for_status(lambda _, values: values['state'] == 'inactive', name, of=name)
    detector.transition('cleanup')
    detector.set_or_fail(cameras=['top'])
    detector.transition('configure')
    seen = []
    subscription = detector.client.node.create_subscription(
        DiagnosticArray,
        '/diagnostics',
        lambda message: seen.append([status.name for status in message.status]),
        10,
    )
    new = [f'{detector.name}: {each}' for each in ('detector', 'top')]
    detector.client.spin_until(lambda: new in seen, 'statuses of the node and the new camera only')
    detector.client.node.destroy_subscription(subscription)


def test_cameras_are_distributed_to_the_gpus(cameras, detector):
    front, rear, left = cameras
    expected_frames = {2: front.counts()['published'] + left.counts()['published']}
    expected_frames[5] = rear.counts()['published']
    assert {gpu: frames_of_gpu(detector, gpu) for gpu in expected_frames} == expected_frames
    for _ in range(5):
        rear.ask(command_image(0))
    assert (frames_of_gpu(detector, 2), frames_of_gpu(detector, 5)) == (
        expected_frames[2],
        expected_frames[5] + 5,
    )
    _, values = detector.wait_for_status(lambda *_: True, 'a status')
    assert int(values['batches']) == sum(expected_frames.values()) + 5  # every batch had one frame
    detector.transition('deactivate')
    # An inactive node still reports the counts of its last activation.
    _, settled = detector.wait_for_status(
        lambda _, values: values['state'] == 'inactive', 'a status of the inactive node'
    )
    assert settled['batches'] == values['batches']
    assert (frames_of_gpu(detector, 2), frames_of_gpu(detector, 5)) == (
        expected_frames[2],
        expected_frames[5] + 5,
    )
    detector.transition('cleanup')
    detector.program.wait_for_output('pipeline closed', 2)


def test_slow_gpu_delays_only_its_own_cameras(cameras, detector):
    front, rear, _ = cameras
    rear.detections.clear()
    rear.publisher.publish(command_image(scripted_node.NEVER))
    for stamp in range(1, 31):
        assert front.ask(command_image(0, stamp)).header.stamp.sec == stamp
    assert not rear.answers()
    rear.wait_for_status(
        lambda status, values: (
            status.level == DiagnosticStatus.ERROR and 'benchmark_engine' in status.message
        ),
        'a report of the hanging pipeline',
        publish=lambda: front.publisher.publish(command_image(0)),
    )
    detector.program.send(signal.SIGKILL)


def test_fault_of_one_pipeline_ends_all_with_balanced_counts(cameras, detector):
    front, rear, left = cameras
    for camera in (front, left):
        camera.publisher.publish(command_image(scripted_node.SLOW))
    rear.publisher.publish(command_image(scripted_node.RAISE_IN_COLLECT))
    status, _ = detector.wait_for_status(
        lambda _, values: values['state'] == 'unconfigured', 'the end of the activation'
    )
    assert status.level == DiagnosticStatus.ERROR
    assert 'collect broke' in status.message
    of_each = [camera.counts() for camera in cameras]
    assert [counts['in flight'] for counts in of_each] == [0, 0, 0]
    assert of_each[1]['failed'] == 1
    together = detector.settled_counts()
    for key in ('received', 'published', 'failed'):
        assert together[key] == sum(counts[key] for counts in of_each)
    status, _ = rear.wait_for_status(lambda *_: True, 'a status of the camera')
    assert 'collect broke' in status.message
    detector.program.wait_for_output('pipeline closed', 2)
    detector.transition('configure', 'activate')
    for camera in cameras:
        camera.connect(HELLO)
        camera.ask(command_image(0))
        assert camera.counts()['failed'] == 0
