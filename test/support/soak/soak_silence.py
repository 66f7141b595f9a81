# SPDX-License-Identifier: Apache-2.0
"""Check in a soak that the node reports a missing camera, a stalled camera and missing output."""

import signal
import time

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.qos import QoSProfile, ReliabilityPolicy

from support.nodes.graph import HANDSHAKE, Detector, command_image, picture_of
from support.nodes.scripted_node import NEVER, SLOW
from support.programs import script
from support.soak.soaks import Figure

TROUBLE = (DiagnosticStatus.WARN, DiagnosticStatus.ERROR)


def silence(client, model, *, intake='auto'):
    """Cause each kind of silence, and wait until log and diagnostics report it."""
    figures = []

    def until(detector, kind, words, publish=lambda: None, limit_s=2.0):
        begun = time.monotonic()
        detector.wait_for_status(
            lambda status, _: publish() or (status.level in TROUBLE and words in status.message),
            words,
        )
        detector.program.wait_for_output(words)
        figures.append(Figure(f'reported: {kind}', limit_s, time.monotonic() - begun, 's'))

    silence_of_cameras(client, model, until, intake)
    silence_of_pipelines(client, until, intake)
    return figures


def silence_of_cameras(client, model, until, intake):
    best_effort = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
    parameters = {'image_qos.reliability': 'reliable', 'image_intake': intake}
    detector = Detector(client, {'engine_path': str(model), **parameters}, camera_qos=None)
    try:
        detector.transition('configure')
        detector.transition('activate')
        until(detector, 'no publisher', 'no publisher on', limit_s=11.0)
        detector.transition('deactivate', 'activate')
        kept_out = detector.create_camera(best_effort)
        until(detector, 'QoS mismatch', 'set image_qos.reliability')
        client.node.destroy_publisher(kept_out)
        detector.camera = detector.create_camera(QoSProfile(depth=10))
        detector.connect()
        until(detector, 'stalled camera', 'has stalled')
        detector.connect()
        bad = picture_of((1, 2, 3))
        bad.encoding = 'no_such_encoding'
        until(detector, 'every image dropped', 'every image', lambda: detector.camera.publish(bad))
        detector.connect()
        detector.destroy_camera()
        until(detector, 'camera gone', 'has been gone for')
    finally:
        detector.close()


def silence_of_pipelines(client, until, intake):
    command = script('nodes/scripted_node.py')
    detector = Detector(client, {'image_intake': intake}, command=command)
    quick = command_image(0, frame_id=HANDSHAKE)

    def send(picture, count):
        for _ in range(count):
            detector.camera.publish(picture)

    try:
        detector.transition('configure', 'activate')
        detector.connect(quick)
        until(
            detector,
            'engine slower',
            'are replaced by newer images',
            lambda: send(command_image(SLOW), 10),
        )
        detector.transition('deactivate', 'activate')
        detector.connect(quick)

        def burst():
            # Later images overwrite earlier ones while the node is stopped.
            detector.program.stop()
            send(quick, 20)
            detector.program.send(signal.SIGCONT)

        until(detector, 'lost in transport', 'sent images never reached the node', burst)
        detector.transition('deactivate', 'activate')
        detector.connect(quick)
        # Send the command repeatedly, because a later image may overwrite a single command.
        until(detector, 'no output', 'finished no frame', lambda: send(command_image(NEVER), 1))
        detector.program.send(signal.SIGKILL)
    finally:
        detector.close()
