# SPDX-License-Identifier: Apache-2.0
"""Tests with about 2,000 invalid frames: each is counted by its reason, and the node survives."""

import array
import threading
import time
from collections import Counter

import pytest
from rclpy.qos import QoSProfile
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage

from support.camera_callbacks import FaultCallback, camera_of
from support.fuzz.frame_corpus import Case, compressed_corpus, frame_cases
from support.fuzz.raw_messages import in_other_byte_order
from support.models.open_model import open_by_parameters
from support.models.tiny_model import expected_detections, write_tiny_model
from support.nodes.graph import found_in, frame_counts, image_message, picture_of
from support.oracles.reference_images import ENCODINGS
from support.properties import given, settings, st
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.values import ParameterValues
from trt_perception.ros.camera.messages import frame_from_compressed, frame_from_image
from trt_perception.scheduling.worker_pool import WorkerPool

pytest_plugins = ['support.nodes.graph_fixtures']

COLOR = (200, 120, 80)
RAW, COMPRESSED = 1800, 350


def message_of(case):
    return image_message(
        case.data, case.width, case.height, case.encoding, step=case.step,
        big_endian=case.big_endian,
    )  # fmt: skip


def compressed_message(case):
    message = CompressedImage(format='jpeg')
    message.data = array.array('B', case.data)
    return message


class InProcessDetector:
    """A worker pool in this process that handles one message at a time."""

    def __init__(self, pipeline, read):
        self.published = []
        self.refusals = []
        self.faults = []
        self._ended = threading.Event()
        camera = camera_of('', read, self._publish, self._refuse, Thresholds())
        self._pool = WorkerPool([pipeline], [camera], fault_handler=FaultCallback(self._fail))
        self._pool.start()

    def _publish(self, *result):
        self.published.append(result)
        self._ended.set()

    def _refuse(self, error):
        self.refusals.append(error)
        self._ended.set()

    def _fail(self, error):
        self.faults.append(error)
        self._ended.set()

    def handle(self, message):
        """Submit a message. Return the reason of its refusal, empty if it was published."""
        before = len(self.refusals)
        self._ended.clear()
        self._pool.submit(0, message)
        assert self._ended.wait(60), 'the message was neither published nor refused'
        assert not self.faults, self.faults
        return self.refusals[-1].reason if len(self.refusals) > before else ''

    def stop(self):
        self._pool.stop()
        return self._pool.statistics()[0]


@pytest.fixture(scope='module')
def pipeline(tmp_path_factory):
    model = write_tiny_model(tmp_path_factory.mktemp('model') / 'tiny.onnx')
    pipeline = open_by_parameters(ParameterValues(engine_path=str(model), cpu_threads=1))
    yield pipeline
    pipeline.close()


def assert_good_frame_is_published(in_process_detector, good, number):
    """Check that a valid frame gives the expected detections."""
    assert in_process_detector.handle(good) == ''
    _, frame, detections = in_process_detector.published[-1]
    expected = expected_detections(COLOR, (frame.width, frame.height))
    assert len(detections) == len(expected), number
    assert detections.scores == pytest.approx([score for _, score, _ in expected], abs=0.02)


def test_frames_of_the_corpus_are_refused_with_their_reasons(pipeline):
    in_process_detector = InProcessDetector(pipeline, frame_from_image)
    good = picture_of(COLOR)
    reasons_seen = Counter()
    cases = frame_cases(RAW)
    for number, case in enumerate(cases):
        reason = in_process_detector.handle(message_of(case))
        assert (reason in case.faults) if case.faults else (reason == ''), (case.name, reason)
        reasons_seen[reason] += 1
        if reason and number % 10 == 0:
            assert_good_frame_is_published(in_process_detector, good, number)
    assert_good_frame_is_published(in_process_detector, good, RAW)
    counts = in_process_detector.stop()
    reasons_seen.pop('')
    assert dict(counts.dropped) == reasons_seen
    assert counts.received == counts.published + reasons_seen.total()
    assert counts.failed == counts.in_flight == 0
    reasons = {'unknown_encoding', 'bad_size', 'odd_size', 'bad_step', 'bad_length'}
    assert set(reasons_seen) == reasons
    assert min(reasons_seen.values()) > 20
    print(f'{RAW} frames: {RAW - reasons_seen.total()} read, refused: {dict(reasons_seen)}')


def test_compressed_frames_are_refused_with_their_reasons(pipeline):
    in_process_detector = InProcessDetector(pipeline, frame_from_compressed)
    reasons_seen = Counter()
    for case in compressed_corpus(COMPRESSED):
        reason = in_process_detector.handle(compressed_message(case))
        assert reason in case.reasons or (not reason and not case.must), (case.name, reason)
        reasons_seen[reason] += 1
    counts = in_process_detector.stop()
    reasons_seen.pop('')
    assert dict(counts.dropped) == reasons_seen
    assert reasons_seen['too_large'] > 20
    assert reasons_seen['not_decodable'] > 100
    assert counts.received == counts.published + reasons_seen.total() == COMPRESSED
    assert counts.failed == counts.in_flight == 0
    print(f'{COMPRESSED} frames: {counts.published} read, refused: {dict(reasons_seen)}')


@pytest.fixture(scope='module')
def in_process_detector(pipeline):
    in_process_detector = InProcessDetector(pipeline, frame_from_image)
    yield in_process_detector
    in_process_detector.stop()


sizes = st.one_of(st.integers(0, 40), st.integers(0, 2**32 - 1))


@settings(deadline=None, max_examples=400, derandomize=True, database=None)
@given(
    st.binary(max_size=4000),
    sizes,
    sizes,
    st.one_of(st.integers(0, 200), st.integers(0, 2**32 - 1)),
    st.one_of(st.sampled_from(sorted(ENCODINGS)), st.text(max_size=20)),
    st.booleans(),
)
def test_any_message_content_is_read_or_refused_with_a_reason(
    in_process_detector, data, width, height, step, encoding, big
):
    case = Case('', data, width, height, step, encoding.replace('\0', ''), big)
    reason = in_process_detector.handle(message_of(case))
    assert (reason in case.faults) if case.faults else (reason == '')


# Over DDS, with a node in another process.


def small_cases(cases, count):
    return [case for case in cases if len(case.data) < 60_000][:count]


def send_bad_and_good(node, camera, messages, good):
    """Publish each invalid message, and a valid message after each.

    Returns:
        The number of valid messages with detections, and the reasons of the refusals.
    """
    before = node.settled_counts()
    begun, answered, sent = time.monotonic(), 0, 0
    for message in messages:
        camera.publish(message)
        sent += 1
        # The good image would replace a waiting bad one, so publish it after the refusal.
        node.wait_for_status(
            lambda _, values: sum(dropped_between(before, frame_counts(values)).values()) >= sent,  # noqa: B023
            'the count of the bad frame',
        )
        answered += bool(found_in(node.ask(good, camera)))
    after = node.settled_counts()
    dropped = dropped_between(before, after)
    print(f'{sent} bad frames over DDS: {dict(dropped)}')
    assert dropped.total() == sent
    assert after['received'] - before['received'] >= 2 * sent
    assert after['failed'] == 0
    # The log gets few lines: for each of two kinds of messages, one line per 5 s or per 30 s.
    seconds = time.monotonic() - begun
    lines = [
        line
        for line in node.program.output.splitlines()
        if any(reason in line for reason in dropped)
    ]
    assert 1 <= len(lines) <= 4 + seconds / 5 + seconds / 30, lines
    return answered, set(dropped)


def dropped_between(before, after):
    """Return the numbers of images that were dropped between two counts, without `replaced`."""
    counts = Counter(after['dropped']) - Counter(before['dropped'])
    del counts['replaced']
    return counts


def test_invalid_raw_frames_over_dds_are_counted(client, model, start_detector):
    node = start_detector({'engine_path': str(model), 'autostart': True})
    node.connect()
    cases = [case for case in small_cases(frame_cases(400, seed=3), 300) if case.faults][:60]
    answered, dropped = send_bad_and_good(
        node, node.camera, map(message_of, cases), picture_of(COLOR)
    )
    assert answered == len(cases)
    assert dropped == {'unknown_encoding', 'bad_size', 'odd_size', 'bad_step', 'bad_length'}


def test_both_byte_orders_are_read_after_invalid_messages(client, model, start_detector):
    detector = start_detector({'engine_path': str(model), 'autostart': True})
    detector.connect()
    picture = picture_of(COLOR)
    expected = found_in(detector.ask(picture))
    before = detector.settled_counts()
    assert expected
    whole = serialize_message(picture)
    rubbish = [b'\0\1\0\0', b'rubbish' * 1000, whole[:-5], b'\0\3' + whole[2:]]
    for number, content in enumerate(rubbish, 1):
        detector.camera.publish(content)
        detector.wait_for_status(
            lambda _, values: values.get('dropped: bad_message') == str(number),  # noqa: B023
            'the count of the invalid message',
        )
        # The next image is answered in both byte orders.
        for good in (picture, in_other_byte_order(picture)):
            assert found_in(detector.ask(good)) == expected
    after = detector.settled_counts()
    assert after['dropped']['bad_message'] == len(rubbish)
    assert after['received'] - before['received'] == 3 * len(rubbish)
    detector.wait_for_log('WARN', '(bad_message)')


def test_invalid_compressed_frames_over_dds_are_counted(client, model, start_detector):
    node = start_detector(
        {'engine_path': str(model), 'autostart': True, 'image_transport': 'compressed'}
    )
    camera = client.node.create_publisher(
        CompressedImage, node.topic('image/compressed'), QoSProfile(depth=10)
    )
    whole = [case for case in compressed_corpus(60) if not case.reasons]
    good = compressed_message(whole[0])
    try:
        node.connect(good, camera)
        cases = [case for case in compressed_corpus(120, seed=4) if case.must][:25]
        rubbish = [b'\0\1\0\0', b'rubbish' * 1000, serialize_message(good)[:-5]]
        bad = [*map(compressed_message, cases), *rubbish]
        _, dropped = send_bad_and_good(node, camera, bad, good)
    finally:
        client.node.destroy_publisher(camera)
    assert dropped == {'not_decodable', 'too_large', 'bad_message'}
