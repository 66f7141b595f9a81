# SPDX-License-Identifier: Apache-2.0
"""Check in a soak that each damaged image is counted, and that the decoders print nothing."""

import random
import time

import cv2
import numpy as np
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage

from support.fuzz import camera_jpegs
from support.nodes.graph import HANDSHAKE, Detector
from support.soak.soaks import Figure, balanced


def damaged_pngs():
    """Return PNGs with a flipped bit, or without their end."""
    noise = np.random.default_rng(3).integers(0, 256, (40, 50, 3), np.uint8)
    whole = cv2.imencode('.png', noise)[1].tobytes()
    for at in range(60, len(whole) - 12, len(whole) // 40):
        yield whole[:at]
        yield whole[:at] + bytes((whole[at] ^ 16,)) + whole[at + 1 :]


def message(content, frame_id='camera'):
    image = CompressedImage(format='jpeg', data=content)
    image.header.frame_id = frame_id
    return image


def damaged(client, model, *, seconds=60.0, seed=0, intake='auto'):
    """Publish truncated files, files with harmless defects and whole files at about 200 Hz."""
    rng = random.Random(seed)
    jpegs = camera_jpegs.WHOLE_JPEGS.values()
    truncated = [
        *(file for whole in jpegs for file in camera_jpegs.cut_files(whole)),
        *damaged_pngs(),
    ]
    truncated.append(camera_jpegs.with_scan_of_one_component(camera_jpegs.BASELINE_JPEG, 120))
    usable = [*jpegs, *camera_jpegs.JPEGS_WITH_HARMLESS_DEFECTS.values()]
    usable.append(camera_jpegs.with_comments(camera_jpegs.BASELINE_JPEG, 100_000))
    parameters = {
        'engine_path': str(model),
        'autostart': True,
        'image_transport': 'compressed',
        'image_intake': intake,
    }
    detector = Detector(client, parameters, camera_qos=None)
    camera = client.node.create_publisher(
        CompressedImage, detector.topic('image/compressed'), QoSProfile(depth=10)
    )
    sent_usable, unbalanced = 0, 0
    try:
        detector.connect(message(usable[0], HANDSHAKE), camera)
        # When this image has been answered, no handshake image is in flight.
        detector.ask(message(usable[0]), camera)
        before = detector.settled_counts()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            is_usable = rng.random() < 0.2
            sent_usable += is_usable
            camera.publish(message(rng.choice(usable if is_usable else truncated)))
            client.spin_for(0.005)
            unbalanced += sum(not balanced(values) for values in detector.take_statuses())
        counts = detector.settled_counts()
        alive = detector.program.alive
        lines = detector.program.output.splitlines()
    finally:
        detector.close()
        client.node.destroy_publisher(camera)
    published = counts['published'] - before['published']
    refused = counts['dropped'].get('not_decodable', 0)
    print(f'{published} published, {refused} refused')
    return [
        Figure('published images beyond the usable ones', 0, max(0, published - sent_usable)),
        Figure('damaged images that were not refused', 0, 0 if refused else 1),
        Figure(
            f'lines that are not of the log, for {refused} damaged images',
            0,
            sum(not line.startswith(('[', '    ')) for line in lines),
        ),
        Figure('statuses whose counts do not add up', 0, unbalanced),
        Figure('nodes lost', 0, 0 if alive else 1),
    ]
