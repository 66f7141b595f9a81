# SPDX-License-Identifier: Apache-2.0
"""Tests of the tracks of a node, over DDS: ids, low scores, ends of tracks, parameters, counts."""

import pytest
from std_srvs.srv import Trigger

from support.docs_pages import ROOT
from support.models.picture_model import picture_with, write_picture_model
from support.nodes.camera_of_many import CameraOfMany
from support.nodes.graph import HANDSHAKE, Detector, image_message
from support.optional_packages import needs

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = [pytest.mark.each_distro, needs('onnx'), needs('scipy')]

TRACKING = {'tracker.type': 'bytetrack'}
NOBODY = ()
ONE = ((20, 20, 10, 12, 0.9),)


@pytest.fixture(scope='module')
def picture_model(tmp_path_factory):
    return str(write_picture_model(tmp_path_factory.mktemp('picture') / 'picture.onnx'))


def message_of(boxes, stamp_s, frame_id='camera', scale=1):
    picture = picture_with(boxes, scale)
    height, width = picture.shape[:2]
    stamp = int(stamp_s), round(stamp_s % 1 * 10**9)
    return image_message(
        picture, width, height, 'bgr8', step=3 * width, frame_id=frame_id, stamp=stamp
    )


HELLO = message_of(NOBODY, 0, HANDSHAKE)


@pytest.fixture(scope='module')
def shared_detector(client, picture_model):
    detector = Detector(client, {'engine_path': picture_model, 'autostart': True, **TRACKING})
    try:
        detector.connect(HELLO)
        yield detector
    finally:
        detector.close()


@pytest.fixture
def detector(shared_detector):
    """Return a detector without tracks that has its first values of the parameters."""
    yield shared_detector
    shared_detector.set_or_fail(
        **{
            'tracker.type': 'bytetrack',
            'confidence_threshold': 0.25,
            'tracker.high_threshold': 0.25,
            'tracker.publish_low': True,
        }
    )
    shared_detector.ask(message_of(NOBODY, 0))  # ends all tracks, because the stamp goes back


def found_of(camera, boxes, stamp_s, **options):
    """Publish an image with these boxes, and return (id, score) of each detection, sorted."""
    message = camera.ask(message_of(boxes, stamp_s, **options))
    rows = [(row.id, round(row.results[0].hypothesis.score, 2)) for row in message.detections]
    return sorted(rows)


def ids_of(camera, boxes, stamp_s, **options):
    return [id_ for id_, _ in found_of(camera, boxes, stamp_s, **options)]


def confirm(camera, boxes, stamp_s):
    """Publish boxes twice, and return their new ids."""
    assert ids_of(camera, boxes, stamp_s) == [''] * len(boxes)
    ids = ids_of(camera, boxes, stamp_s + 0.01)
    assert all(id_.isdecimal() and int(id_) >= 1 for id_ in ids)
    assert len(set(ids)) == len(boxes)
    return ids


def call_reset(detector, topic='reset_tracks'):
    """Call the service, and return its response."""
    service = detector.client.node.create_client(Trigger, detector.topic(topic))
    try:
        detector.client.spin_until(service.service_is_ready, 'the service')
        futures = []

        def first_answer():
            # The node does not answer a client that it has not discovered, so call again.
            futures.append(service.call_async(Trigger.Request()))
            detector.client.spin_for(0.2)
            return next((future for future in futures if future.done()), None)

        return detector.client.spin_until(first_answer, 'an answer of the service').result()
    finally:
        detector.client.node.destroy_client(service)


def test_crossing_objects_keep_their_ids(detector):
    """Two objects move through each other within a second: one above the other, partly covered."""
    ids_by_height = {}
    for step in range(28):
        boxes = [(6 + 2 * step, 20, 10, 20, 0.9), (60 - 2 * step, 26, 10, 16, 0.8)]
        message = detector.ask(message_of(boxes, 1 + step / 30))
        assert len(message.detections) == 2
        for row in message.detections:
            ids_by_height.setdefault(round(row.bbox.size_y), []).append(row.id)
    assert set(ids_by_height) == {16, 20}
    for ids in ids_by_height.values():
        assert ids[0] == ''
        assert len(set(ids[1:])) == 1
    assert ids_by_height[16][-1] != ids_by_height[20][-1]


def test_low_scores_continue_tracks_and_alone_are_never_published(detector):
    detector.set_or_fail(confidence_threshold=0.5)
    others = (50, 30, 8, 8, 0.3)
    [number] = confirm(detector, ONE, 1)
    low = (*ONE[0][:4], 0.2)
    for step in range(5):
        boxes = [low, others]
        assert found_of(detector, boxes, 1.1 + step / 30) == [(number, 0.2)]
    detector.set_or_fail(**{'tracker.publish_low': False})
    assert found_of(detector, [low, others], 1.3) == []
    assert ids_of(detector, ONE, 1.35) == [number]
    detector.set_or_fail(**{'tracker.publish_low': True})
    too_low = (*ONE[0][:4], 0.08)
    assert found_of(detector, [too_low], 1.4) == []


def test_detections_keep_their_own_class(detector):
    """A track does not change its class, so another class at the same place is another object."""
    [number] = confirm(detector, ONE, 1)
    assert ids_of(detector, [(*ONE[0], 1)], 1.1) == ['']
    [other] = ids_of(detector, [(*ONE[0], 1)], 1.13)
    assert other != number
    detector.set_or_fail(**{'tracker.class_agnostic': True})
    try:
        message = detector.ask(message_of(ONE, 1.16))
        assert message.detections[0].results[0].hypothesis.class_id == 'person'
        assert message.detections[0].id in (number, other)
    finally:
        detector.set_or_fail(**{'tracker.class_agnostic': False})


def test_reset_tracks_ends_all_tracks_and_numbers_go_on(detector):
    boxes = [*ONE, (50, 30, 8, 8, 0.8)]
    before = confirm(detector, boxes, 1)
    response = call_reset(detector)
    assert response.success
    assert '2' in response.message
    after = confirm(detector, boxes, 1.1)
    assert min(map(int, after)) > max(map(int, before))


@pytest.mark.parametrize(
    ('stamp_s', 'scale'), [(1.1, 2), (0.5, 1), (2.2, 1)], ids=['size', 'back', 'forward']
)
def test_new_size_and_jumps_of_the_stamp_end_all_tracks(detector, stamp_s, scale):
    [before] = confirm(detector, ONE, 1)
    assert ids_of(detector, ONE, stamp_s, scale=scale) == ['']
    [after] = ids_of(detector, ONE, stamp_s + 0.1, scale=scale)
    assert int(after) > int(before)


def test_image_without_objects_keeps_tracks_alive_for_max_lost_s(detector):
    [number] = confirm(detector, ONE, 1)
    assert ids_of(detector, NOBODY, 1.5) == []
    assert ids_of(detector, ONE, 1.9) == [number]


def test_diagnostics_count_tracks(detector):
    boxes = [*ONE, (50, 30, 8, 8, 0.8)]
    ids = confirm(detector, boxes, 1)
    _, values = detector.wait_for_status(lambda _, values: values.get('tracks') == '2', 'tracks')
    assert values['track_ids'] == max(ids, key=int)
    call_reset(detector)
    detector.wait_for_status(
        lambda _, values: (
            (values.get('tracks'), values.get('track_ids')) == ('0', max(ids, key=int))
        ),
        'no live track',
    )


def test_type_may_change_while_active(detector):
    [number] = confirm(detector, ONE, 1)
    detector.set_or_fail(**{'tracker.type': 'none', 'confidence_threshold': 0.5})
    boxes = [*ONE, (50, 30, 8, 8, 0.3)]
    for step in range(4):  # without low scores of earlier thresholds
        assert found_of(detector, boxes, 1.1 + step / 10) == [('', 0.9)]
    node, name = detector.client.node, detector.topic('reset_tracks')
    detector.client.spin_until(
        lambda: name not in dict(node.get_service_names_and_types()), 'the end of the service'
    )
    _, values = detector.wait_for_status(lambda *_: True, 'a status')
    assert 'tracks' not in values
    detector.set_or_fail(**{'tracker.type': 'bytetrack'})
    [after] = confirm(detector, ONE, 1.6)
    assert int(after) > int(number)


def test_numbers_go_on_after_cleanup(detector):
    [before] = confirm(detector, ONE, 1)
    detector.bring_to('unconfigured')
    detector.bring_to('active')
    detector.connect(HELLO)
    [after] = confirm(detector, ONE, 2)
    assert int(after) > int(before)


def test_combinations_without_sense_are_refused(detector):
    [(successful, reason)] = detector.set({'tracker.low_threshold': 0.5})
    assert not successful
    assert 'tracker.low_threshold' in reason
    assert detector.get('tracker.low_threshold') == 0.1


def test_camera_has_its_own_tracker(client, start_detector, picture_model):
    values = {'engine_path': picture_model, 'autostart': True, 'cameras': ['front', 'rear']}
    detector = start_detector({**values, 'camera.front.tracker.type': 'bytetrack'})
    front, rear = (CameraOfMany(detector, name) for name in values['cameras'])
    for camera in (front, rear):
        camera.connect(HELLO)
    assert confirm(front, ONE, 1) == ['1']
    assert [ids_of(rear, ONE, 1 + step / 10) for step in range(3)] == [['']] * 3
    detector.set_or_fail(**{'tracker.type': 'bytetrack'})
    # Each camera has its own numbers.
    assert confirm(rear, ONE, 2) == ['1']
    assert call_reset(detector, 'rear/reset_tracks').success
    assert ids_of(front, ONE, 1.1) == ['1']
    assert ids_of(rear, ONE, 2.1) == ['']
    detector.wait_for_status(
        lambda _, values: values.get('tracks') == '1', 'the track of the camera', of='front'
    )
    front.destroy_publisher()
    rear.destroy_publisher()


def test_task_without_boxes_refuses_a_tracker(start_detector):
    path = str(ROOT / 'models' / 'digits_semantic.onnx')
    detector = start_detector({'engine_path': path})
    detector.bring_to('inactive')
    [(successful, reason)] = detector.set(TRACKING)
    assert not successful
    assert 'tracker.type' in reason
    detector.bring_to('unconfigured')
    # The task is unknown before the model is loaded.
    detector.set_or_fail(**TRACKING)
    assert not detector.change_state('configure')
    detector.wait_for_log('ERROR', 'tracker.type')
    detector.set_or_fail(**{'tracker.type': 'none'})
    detector.bring_to('inactive')
