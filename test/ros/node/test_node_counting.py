# SPDX-License-Identifier: Apache-2.0
"""Tests that the counts of images add up: received = published + dropped + failed + in flight."""

import json
import signal

import pytest
from rclpy.duration import Duration
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image

from support.nodes import scripted_node
from support.nodes.graph import HANDSHAKE, Detector, command_image, frame_counts
from support.programs import script

pytest_plugins = ['support.nodes.graph_fixtures']


@pytest.fixture(scope='module', params=['auto', 'rclpy'])
def _scripted_detector(client, request, tmp_path_factory):
    """Return a node for all tests. They run again on a node that uses the intake of rclpy.

    With the name of a task as parameter, the node publishes results of this task.
    """
    parameters = {'image_intake': request.param}
    if request.param in scripted_node.SPECS:
        # The Detector reads in the manifest which topic has the results.
        manifest = tmp_path_factory.mktemp('model') / f'{request.param}.json'
        manifest.write_text(json.dumps({'task': request.param, 'decoder': {'is_metric': True}}))
        parameters = {'engine_path': str(manifest.with_suffix(''))}
    detector = Detector(client, parameters, command=script('nodes/scripted_node.py'))
    yield detector
    detector.close()


each_task = pytest.mark.parametrize(
    '_scripted_detector',
    ['auto', 'rclpy', *scripted_node.SPECS],
    indirect=True,
    scope='module',
)


def accounted_images(counts):
    return (
        counts['published']
        + sum(counts['dropped'].values())
        + counts['failed']
        + counts['in flight']
    )


def has_maps(detector):
    """Return whether results are maps. A map is skipped while an earlier one is published."""
    return isinstance(detector.detections[0], Image)


def wait_for_newest(detector, is_newest):
    """Wait for the result of the newest image, unless it may be skipped."""
    if not has_maps(detector):
        detector.client.spin_until(
            lambda: is_newest(detector.detections[-1].header), 'the newest image'
        )


@each_task
def test_images_beyond_the_pipelines_speed_are_counted_as_replaced(scripted_detector):
    seen = []
    published = 0

    def seen_often():
        nonlocal published
        for _ in range(10):
            published += 1
            scripted_detector.camera.publish(command_image(scripted_node.SLOW, published))
        counts = map(frame_counts, scripted_detector.take_statuses())
        seen.extend(entry for entry in counts if entry['dropped'].get('replaced', 0))
        return len(seen) >= 5

    scripted_detector.client.spin_until(seen_often, 'five statuses with images that were replaced')
    for counts in seen:
        assert counts['received'] == accounted_images(counts), counts
        # At most `depth` images are in the pipeline. One result may wait to be published, because
        # its slot starts the next batch first. One image waits in the mailbox.
        assert 0 <= counts['in flight'] <= scripted_node.ScriptedPipeline.depth + 2
    received = [counts['received'] for counts in seen]
    assert received == sorted(received)
    # A newer image replaces a waiting one, so the last image is published. Order is kept.
    wait_for_newest(scripted_detector, lambda header: header.stamp.sec == published)
    stamps = [message.header.stamp.sec for message in scripted_detector.detections]
    assert stamps == sorted(set(stamps))
    last = scripted_detector.settled_counts()
    assert last['failed'] == 0
    assert last['received'] == last['published'] + last['dropped']['replaced']


@each_task
def test_every_image_is_counted_if_some_are_invalid(scripted_detector):
    before = scripted_detector.settled_counts()
    for stamp in range(1, 31):
        image = command_image(0, stamp)
        if stamp % 3 == 0:
            image.encoding = 'no_such_encoding'
        if stamp % 5 == 0:
            image.step += 1
        scripted_detector.camera.publish(image)
    scripted_detector.ask(command_image(0, 31, frame_id='last'))
    wait_for_newest(scripted_detector, lambda header: header.frame_id == 'last')
    results = len(scripted_detector.detections)
    after = scripted_detector.settled_counts()
    assert after['received'] == accounted_images(after)
    assert set(after['dropped']) <= {'unknown_encoding', 'bad_length', 'replaced'}
    missing = after['published'] - before['published'] - results
    assert missing >= 0 if has_maps(scripted_detector) else missing == 0


@each_task
def test_no_image_is_in_flight_after_deactivate(scripted_detector):
    for _ in range(30):
        scripted_detector.camera.publish(command_image(scripted_node.SLOW))
    # The node has received some images. Others are still in transport.
    scripted_detector.program.wait_for_output(f'enqueue {scripted_node.SLOW}\n')
    scripted_detector.transition('deactivate')
    _, values = scripted_detector.wait_for_status(
        lambda _, values: values['state'] == 'inactive', 'a status of the inactive node'
    )
    counts = frame_counts(values)
    assert counts['in flight'] == 0
    assert counts['failed'] == 0
    assert counts['published'] >= 2
    assert counts['received'] == accounted_images(counts)
    # An inactive node does not count images.
    scripted_detector.camera.publish(command_image(0))
    _, values = scripted_detector.wait_for_status(lambda *_: True, 'a status of the inactive node')
    assert frame_counts(values) == counts


@each_task
def test_no_image_is_in_flight_after_a_fault(scripted_detector):
    before = scripted_detector.settled_counts()
    command = scripted_node.HELD_FOR_ANOTHER_THEN_RAISE
    scripted_detector.enqueue(command, scripted_node.SLOW, scripted_node.SLOW)
    # This image waits, because the pipeline is full.
    scripted_detector.camera.publish(command_image(scripted_node.SLOW))
    _, values = scripted_detector.wait_for_status(
        lambda _, values: values['state'] == 'unconfigured', 'a status of the unconfigured node'
    )
    counts = frame_counts(values)
    assert counts['in flight'] == 0
    assert counts['failed'] == 3
    assert counts['published'] == before['published']
    assert counts['received'] == before['received'] + 4
    assert counts['received'] == accounted_images(counts)


def test_each_activation_starts_counts_at_zero(scripted_detector):
    for stamp in range(5):
        scripted_detector.ask(command_image(0, stamp))
    assert scripted_detector.settled_counts()['received'] >= 6
    scripted_detector.transition('deactivate', 'activate')
    _, values = scripted_detector.wait_for_status(
        lambda _, values: values['state'] == 'active', 'a status of the active node'
    )
    assert frame_counts(values)['received'] == 0


def test_frames_in_flight_are_published_before_deactivate_ends(scripted_detector):
    for stamp in range(1, 4):
        scripted_detector.enqueue(scripted_node.SLOW, stamp=stamp)
    scripted_detector.transition('deactivate')
    scripted_detector.client.spin_until(
        lambda: [m.header.stamp.sec for m in scripted_detector.detections] == [1, 2, 3],
        'detections of all three frames that were in flight',
    )


# Images that do not reach the node.


def test_images_that_a_stopped_node_misses_are_counted(scripted_detector):
    """The counts `received` and `not delivered` together cover all images that were sent."""
    _, before = scripted_detector.wait_for_status(lambda *_: True, 'a status')
    scripted_detector.program.stop()
    for stamp in range(1, 21):
        scripted_detector.camera.publish(command_image(0, stamp))
    scripted_detector.program.send(signal.SIGCONT)
    scripted_detector.client.spin_until(
        lambda: (
            scripted_detector.detections
            and scripted_detector.detections[-1].header.stamp.sec == 20
        ),
        'the newest image',
    )
    _, after = scripted_detector.wait_for_status(
        lambda _, values: values['in flight'] == '0', 'nothing in flight'
    )
    arrived = int(after['received']) - int(before['received'])
    missed = int(after['not delivered']) - int(before['not delivered'])
    assert arrived + missed == 20
    assert frame_counts(after)['received'] == accounted_images(frame_counts(after))


def test_losses_are_unknown_while_a_topic_has_several_publishers(scripted_detector):
    for _ in range(2):
        second = scripted_detector.create_camera(QoSProfile(depth=1))
        scripted_detector.wait_for_status(
            lambda _, values: not values['not delivered'].isdigit(),
            'losses unknown',
        )
        scripted_detector.client.node.destroy_publisher(second)
        scripted_detector.wait_for_status(
            lambda _, values: values['not delivered'].isdigit(), 'losses known again'
        )
    scripted_detector.connect(command_image(0, frame_id=HANDSHAKE))
    test_images_that_a_stopped_node_misses_are_counted(scripted_detector)


def test_overwritten_images_are_counted_as_not_delivered(client, make_taker):
    # In this process, the executor takes images only while the client spins.
    taker = make_taker(image_intake='rclpy')
    taker.open()
    camera = taker.publisher()
    camera.publish(command_image(0, 1))
    taker.wait(1)
    assert taker.input.not_delivered == 0
    # The executor takes none of these images. The middleware keeps only the newest one.
    for stamp in range(2, 12):
        camera.publish(command_image(0, stamp))
    assert camera.wait_for_all_acked(Duration(seconds=60))
    client.spin_until(lambda: taker.images[-1].header.stamp.sec == 11, 'the newest image')
    assert len(taker.images) == 2
    assert taker.input.not_delivered == 9
    client.node.destroy_publisher(camera)
