"""Every image is accounted for: received = published + dropped + failed + in flight."""

import signal

import pytest
from rclpy.duration import Duration
from rclpy.qos import QoSProfile

from support.nodes import scripted_node
from support.nodes.graph import HANDSHAKE, Detector, counts_of, order
from support.programs import script

pytest_plugins = ['support.nodes.graph_fixtures']


@pytest.fixture(scope='module', params=['auto', 'rclpy'])
def _scripted(client, request):
    """One node for all tests, and another that takes its images through rclpy."""
    detector = Detector(
        client, {'image_intake': request.param}, command=script('nodes/scripted_node.py')
    )
    yield detector
    detector.close()


def balance(counts):
    return (
        counts['published']
        + sum(counts['dropped'].values())
        + counts['failed']
        + counts['in flight']
    )


def test_more_images_than_the_pipeline_can_do(scripted):
    seen = []
    published = 0

    def seen_often():
        nonlocal published
        for _ in range(10):
            published += 1
            scripted.camera.publish(order(scripted_node.SLOW, published))
        counts = map(counts_of, scripted.take_statuses())
        seen.extend(entry for entry in counts if entry['dropped'].get('replaced', 0))
        return len(seen) >= 5

    scripted.client.spin_until(seen_often, 'five statuses with images that were replaced')
    for counts in seen:
        assert counts['received'] == balance(counts), counts
        # At most three in the pipeline, one that waits and one between two steps.
        assert 0 <= counts['in flight'] <= scripted_node.ScriptedPipeline.depth + 1
    received = [counts['received'] for counts in seen]
    assert received == sorted(received)
    # Newest wins, so the newest of all is published; and never out of order.
    scripted.client.spin_until(
        lambda: scripted.detections[-1].header.stamp.sec == published, 'the newest image'
    )
    stamps = [message.header.stamp.sec for message in scripted.detections]
    assert stamps == sorted(set(stamps))
    last = scripted.settled_counts()
    assert last['failed'] == 0
    assert last['received'] == last['published'] + last['dropped']['replaced']


def test_bad_images_among_good_ones(scripted):
    before = scripted.settled_counts()
    for stamp in range(1, 31):
        image = order(0, stamp)
        if stamp % 3 == 0:
            image.encoding = 'no_such_encoding'
        if stamp % 5 == 0:
            image.step += 1
        scripted.camera.publish(image)
    scripted.ask(order(0, 31, frame_id='last'))
    scripted.client.spin_until(
        lambda: scripted.detections[-1].header.frame_id == 'last', 'the last image'
    )
    after = scripted.settled_counts()
    assert after['received'] == balance(after)
    assert set(after['dropped']) <= {'unknown_encoding', 'bad_length', 'replaced'}
    assert after['published'] - before['published'] == len(scripted.detections)


def test_everything_is_settled_after_deactivate(scripted):
    for _ in range(30):
        scripted.camera.publish(order(scripted_node.SLOW))
    # Some of them are here, some are on their way.
    scripted.program.wait_for_output(f'enqueue {scripted_node.SLOW}\n')
    scripted.to('deactivate')
    _, values = scripted.wait_for_status(
        lambda _, values: values['state'] == 'inactive', 'a status of the inactive node'
    )
    counts = counts_of(values)
    assert counts['in flight'] == 0
    assert counts['failed'] == 0
    assert counts['published'] >= 2
    assert counts['received'] == balance(counts)
    # Inactive: counted no more.
    scripted.camera.publish(order(0))
    _, values = scripted.wait_for_status(lambda *_: True, 'a status of the inactive node')
    assert counts_of(values) == counts


def test_everything_is_settled_after_a_fault(scripted):
    before = scripted.settled_counts()
    held = scripted_node.HELD_FOR_ANOTHER_THEN_RAISE
    scripted.enqueue(held, scripted_node.SLOW, scripted_node.SLOW)
    # The pipeline is full: this one waits.
    scripted.camera.publish(order(scripted_node.SLOW))
    _, values = scripted.wait_for_status(
        lambda _, values: values['state'] == 'unconfigured', 'a status of the unconfigured node'
    )
    counts = counts_of(values)
    assert counts['in flight'] == 0
    assert counts['failed'] == 3
    assert counts['published'] == before['published']
    assert counts['received'] == before['received'] + 4
    assert counts['received'] == balance(counts)


def test_counts_start_anew_with_each_activation(scripted):
    for stamp in range(5):
        scripted.ask(order(0, stamp))
    assert scripted.settled_counts()['received'] >= 6
    scripted.to('deactivate', 'activate')
    _, values = scripted.wait_for_status(
        lambda _, values: values['state'] == 'active', 'a status of the active node'
    )
    assert counts_of(values)['received'] == 0


def test_frames_in_flight_are_published_before_deactivate_ends(scripted):
    for stamp in range(1, 4):
        scripted.enqueue(scripted_node.SLOW, stamp=stamp)
    scripted.to('deactivate')
    scripted.client.spin_until(
        lambda: [m.header.stamp.sec for m in scripted.detections] == [1, 2, 3],
        'all three frames that were in flight',
    )


# Images that never reach the node.


def test_images_that_a_stopped_node_misses(scripted):
    """All images that were sent are received or not delivered, whatever overtook them."""
    _, before = scripted.wait_for_status(lambda *_: True, 'a status')
    scripted.program.stop()
    for stamp in range(1, 21):
        scripted.camera.publish(order(0, stamp))
    scripted.program.send(signal.SIGCONT)
    scripted.client.spin_until(
        lambda: scripted.detections and scripted.detections[-1].header.stamp.sec == 20,
        'the newest image',
    )
    _, after = scripted.wait_for_status(
        lambda _, values: values['in flight'] == '0', 'nothing in flight'
    )
    arrived = int(after['received']) - int(before['received'])
    missed = int(after['not delivered']) - int(before['not delivered'])
    assert arrived + missed == 20
    assert counts_of(after)['received'] == balance(counts_of(after))


def test_several_cameras_make_losses_unknown_until_one_is_left(scripted):
    for _ in range(2):
        second = scripted.create_camera(QoSProfile(depth=1))
        scripted.wait_for_status(
            lambda _, values: not values['not delivered'].isdigit(),
            'losses unknown',
        )
        scripted.client.node.destroy_publisher(second)
        scripted.wait_for_status(
            lambda _, values: values['not delivered'].isdigit(), 'losses known again'
        )
    scripted.connect(order(0, frame_id=HANDSHAKE))
    test_images_that_a_stopped_node_misses(scripted)


def test_overwritten_images_are_not_delivered(client, make_taker):
    # In this process, whose executor takes no image unless the client spins.
    taker = make_taker(image_intake='rclpy')
    taker.open()
    camera = taker.publisher()
    camera.publish(order(0, 1))
    taker.wait(1)
    assert taker.input.not_delivered == 0
    # Nobody takes these: the middleware keeps the newest one.
    for stamp in range(2, 12):
        camera.publish(order(0, stamp))
    assert camera.wait_for_all_acked(Duration(seconds=60))
    client.spin_until(lambda: taker.images[-1].header.stamp.sec == 11, 'the newest image')
    assert len(taker.images) == 2
    assert taker.input.not_delivered == 9
    client.node.destroy_publisher(camera)
