# SPDX-License-Identifier: Apache-2.0
"""Tests of a node whose model is on a Triton server, over real DDS."""

import signal
import time

import cv2
import pytest
from diagnostic_msgs.msg import DiagnosticStatus

from support.models.digits import DIGITS
from support.models.tiny_model import expected_detections
from support.nodes.graph import assert_found, frame_counts, image_message, picture_of
from support.optional_packages import needs
from support.triton_server import TritonServer, config_with_manifest, write_model

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = needs('onnx', 'tritonclient')

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR
COLOUR, SIZE = (255, 128, 0), (128, 96)


@pytest.fixture(name='server')
def _server(tmp_path, model):
    """A server whose model can be replaced."""
    write_model(tmp_path / 'models', 'served', model, config=config_with_manifest(f'{model}.json'))
    server = TritonServer(tmp_path / 'models').start()
    yield server
    server.end()


def start(start_detector, server, **settings):
    address = f'triton://{server.address}/served'
    settings = {'engine_path': address, 'triton.timeout_ms': 2000.0, **settings}
    detector = start_detector(settings)
    detector.bring_to('active')
    assert_answers(detector)
    return detector


def picture():
    """Return an image of now, because the node warns of old ones."""
    return picture_of(COLOUR, SIZE, stamp=divmod(time.time_ns(), 10**9))


def assert_answers(detector):
    detector.connect(picture())
    assert_found(detector.ask(picture()), expected_detections(COLOUR, SIZE))


def publish_until(detector, accepts, what):
    """Publish an image for each status, until a status is accepted. Return all levels."""
    levels = set()

    def found(status, values):
        detector.camera.publish(picture())
        levels.add(status.level)
        return accepts(status, values)

    detector.wait_for_status(found, what)
    return levels


def assert_counts_add_up(detector):
    counts = detector.settled_counts()
    finished = counts['published'] + counts['failed'] + sum(counts['dropped'].values())
    assert counts['received'] == finished
    return counts


def test_node_goes_on_after_faults_of_the_server(start_detector, server):
    detector = start(start_detector, server)
    for fault, mend, reason in (
        (server.end, server.start, 'server_error'),
        (
            lambda: server.send_signal(signal.SIGSTOP),
            lambda: server.send_signal(signal.SIGCONT),
            'timeout',
        ),
    ):
        publish_until(detector, lambda status, _: status.level == OK, 'status OK')
        # After the answer to this image, no other image is in flight.
        detector.ask(picture())
        before = assert_counts_add_up(detector)

        def is_reported(status, values, before=before, reason=reason):
            dropped = frame_counts(values)['dropped'].get(reason, 0)
            return status.level == WARN and dropped > before['dropped'].get(reason, 0)

        fault()
        levels = publish_until(detector, is_reported, f'WARN and images dropped as {reason}')
        # An image that waits for the server is not an error of the node.
        assert levels <= {OK, WARN}
        counts = assert_counts_add_up(detector)
        assert counts['published'] == before['published']
        assert not counts['failed']

        mend()

        assert_answers(detector)
        assert_counts_add_up(detector)
    assert detector.state() == 'active'
    assert detector.program.count('detector]: configured') == 1


def test_model_with_other_tensors_needs_a_new_configure(start_detector, server, tmp_path):
    detector = start(start_detector, server, autostart=False)
    server.end()
    config = config_with_manifest(f'{DIGITS}.json')
    write_model(tmp_path / 'models', 'served', DIGITS, config=config)
    scene = cv2.imread(str(DIGITS.parents[1] / 'demo/scenes/scene_000.jpg'))
    height, width = scene.shape[:2]
    image = image_message(scene.tobytes(), width, height, 'bgr8', step=3 * width)

    server.start()

    publish_until(
        detector,
        lambda status, values: status.level == ERROR and values['state'] == 'unconfigured',
        'ERROR and state unconfigured',
    )
    detector.transition('configure', 'activate')
    detector.connect(image)
    names = {found.results[0].hypothesis.class_id for found in detector.ask(image).detections}
    assert names
    assert names <= set('0123456789')
    assert_counts_add_up(detector)
