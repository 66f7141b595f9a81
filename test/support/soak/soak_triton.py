# SPDX-License-Identifier: Apache-2.0
"""Check in a soak that a node counts every image while its Triton server is killed repeatedly."""

import random
import signal
import tempfile
import time
from pathlib import Path

from support.models.tiny_model import expected_detections, write_tiny_model
from support.nodes.graph import (
    DEADLINE_S,
    HANDSHAKE,
    Detector,
    assert_found,
    frame_counts,
    picture_of,
)
from support.soak.soaks import Figure, balanced
from support.triton_server import TritonServer, config_with_manifest, write_model

COLOUR, SIZE = (255, 128, 0), (128, 96)


def settled_counts(detector):
    """Return the counts with nothing in flight, and the images that arrived or were lost."""
    _, values = detector.wait_for_status(
        lambda _, values: values['in flight'] == '0', 'a status with nothing in flight'
    )
    counts = frame_counts(values)
    return {**counts, 'arrived': counts['received'] + int(values['not delivered'])}


def triton(client, *, count=100, seed=0, intake='auto'):
    """Kill and restart the server at random times while images arrive, and stop it sometimes."""
    rng = random.Random(seed)
    sent = unbalanced = 0
    with tempfile.TemporaryDirectory() as folder:
        file = write_tiny_model(Path(folder, 'tiny.onnx'))
        models = Path(folder, 'models')
        write_model(models, 'tiny', file, config=config_with_manifest(f'{file}.json'))
        server = TritonServer(models).start()
        parameters = {
            'engine_path': f'triton://{server.address}/tiny',
            'triton.timeout_ms': 300.0,
            'image_intake': intake,
        }
        detector = Detector(client, parameters)

        def publish_until(condition):
            nonlocal sent, unbalanced
            end = time.monotonic() + DEADLINE_S
            while not condition():
                assert time.monotonic() < end, 'the server does not answer'
                detector.camera.publish(picture_of(COLOUR, SIZE))
                sent += 1
                client.spin_for(0.01)
                unbalanced += sum(not balanced(values) for values in detector.take_statuses())

        def publish_for(seconds):
            end = time.monotonic() + seconds
            publish_until(lambda: time.monotonic() >= end)

        try:
            detector.bring_to('active')
            detector.connect()
            before = settled_counts(detector)
            detector.detections.clear()
            for _ in range(count):
                publish_for(rng.uniform(0.0, 0.3))
                if rng.random() < 0.2:
                    server.send_signal(signal.SIGSTOP)
                    publish_for(1.0)
                    server.send_signal(signal.SIGCONT)
                    publish_for(rng.uniform(0.0, 0.3))
                server.end()
                publish_for(rng.uniform(0.0, 0.3))
                server.start(wait=False)
                answers = len(detector.detections)
                publish_until(lambda answers=answers: len(detector.detections) > answers)
            client.spin_for(2.0)
            counts = settled_counts(detector)
            configured = detector.program.count('detector]: configured')
            alive = detector.program.alive and 'Traceback' not in detector.program.output
        finally:
            detector.close()
            server.end()
    print(f'{count} kills: {sent} images sent, counts {before} to {counts}')
    answers = [found for found in detector.detections if found.header.frame_id != HANDSHAKE]
    for answer in answers:
        assert_found(answer, expected_detections(COLOUR, SIZE))
    published = counts['published'] - before['published']
    return [
        Figure(
            f'of {sent} images, {count} kills: neither received nor lost in transport',
            0,
            abs(sent + before['arrived'] - counts['arrived']),
        ),
        Figure('difference between published and arrived', 0, abs(published - len(answers))),
        Figure('statuses whose counts do not add up', 0, unbalanced),
        Figure('failed images', 0, counts['failed']),
        Figure('configurations after the first', 0, configured - 1),
        Figure('nodes lost, or with a traceback', 0, 0 if alive else 1),
    ]
