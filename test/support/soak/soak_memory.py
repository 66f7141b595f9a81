# SPDX-License-Identifier: Apache-2.0
"""Check in a soak that the node frees the memory of huge messages and serves other cameras.

A plain subscriber gets the same messages, because the middleware itself keeps memory for the
largest message.
"""

import random
import time
from collections import Counter

from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage, Image

from support.fuzz.camera_jpegs import (
    BASELINE_JPEG,
    WHOLE_JPEGS,
    with_comments,
    with_scan_of_one_component,
)
from support.fuzz.raw_messages import cdr_and_length_offsets
from support.nodes.camera_of_many import CameraOfMany
from support.nodes.graph import HANDSHAKE, Detector, image_message, picture_of
from support.programs import Program, script
from support.soak.soak_many_cameras import own_mb
from support.soak.soaks import Figure

HUGE_BYTES = 100_000_000
SIDE = 10_000
#: Memory that the node may keep beyond the memory of a plain subscriber.
LIMIT_MB = 64.0
#: More images than the buffers of a camera remember.
USUAL_IMAGES = 12
CAMERAS = ('front', 'raw', 'jpeg')
USUAL = picture_of((114, 114, 114))
HELLO = CompressedImage(format='jpeg', data=BASELINE_JPEG)
HELLO.header.frame_id = HANDSHAKE


def jpeg_message(content=BASELINE_JPEG, name='jpeg'):
    return CompressedImage(format=name, data=content)


def with_junk(message):
    """Serialise a message with a NUL after three bytes of its long string. The rest is junk."""
    content = bytearray(cdr_and_length_offsets(message, '<')[0])
    content[content.index(b'x' * 100) + 3] = 0
    return bytes(content)


def huge_messages():
    """Yield a camera, a huge message, and the reason to drop the message; '' for a valid one."""
    text = 'x' * HUGE_BYTES
    pixels = bytes([114]) * HUGE_BYTES
    yield 'raw', image_message(pixels, SIDE, SIDE, 'mono8', step=SIDE), ''
    yield 'raw', pixels, 'bad_message'
    for message in (Image(encoding=text), picture_of((0, 0, 0), frame_id=text)):
        yield 'raw', with_junk(message), 'bad_message'
    yield 'jpeg', jpeg_message(with_comments(BASELINE_JPEG, HUGE_BYTES)), ''
    lacking = with_scan_of_one_component(WHOLE_JPEGS['subsampling 0'], 11_584)
    yield 'jpeg', jpeg_message(lacking), 'too_large'
    yield 'jpeg', with_junk(jpeg_message(name=text)), 'bad_message'


def memory(client, model, *, seconds=60.0, seed=0, intake='auto'):
    """Publish huge messages of two cameras in random order, and usual images of all cameras."""
    rng = random.Random(seed)
    parameters = {
        'engine_path': str(model),
        'autostart': True,
        'cameras': list(CAMERAS),
        'camera.jpeg.image_transport': 'compressed',
        'image_intake': intake,
    }
    # Its pipeline takes JPEGs undecoded, as on a GPU, so that the readers keep heads of JPEGs.
    command = script('nodes/jpeg_node.py')
    detector = Detector(client, parameters, command=command, camera_qos=None)
    topics = [detector.topic(name) for name in ('raw/image', 'jpeg/image/compressed')]
    plain = Program([*script('nodes/plain_subscriber.py'), *topics])
    front, raw, jpeg = cameras = [
        CameraOfMany(detector, name, publish=name != 'jpeg') for name in CAMERAS
    ]
    jpeg.publisher = client.node.create_publisher(CompressedImage, topics[1], QoSProfile(depth=10))
    growths_mb, wrong, count = [], 0, 0
    try:
        for camera in cameras:
            camera.connect(HELLO if camera is jpeg else None)
        publish_usual(cameras)
        before = [own_mb(program) for program in (detector.program, plain)]
        end = time.monotonic() + seconds
        while time.monotonic() < end or not growths_mb:
            publish_usual(cameras)
            for name, message, reason in rng.sample([*huge_messages()], 3):
                count += 1
                camera = {'raw': raw, 'jpeg': jpeg}[name]
                wrong += publish_huge(camera, message, front, plain) != {reason or 'published': 1}
            # No usual image before the measurement: it would replace what the readers keep.
            after = [own_mb(program) for program in (detector.program, plain)]
            node_mb, plain_mb = (b - a for a, b in zip(before, after, strict=True))
            growths_mb.append((node_mb - plain_mb, node_mb, plain_mb))
        dropped = front.counts()['dropped']
        alive = detector.program.alive and 'Traceback' not in detector.program.output
    finally:
        for camera in cameras:
            camera.destroy_publisher()
        plain.close()
        detector.close()
    print(
        'growth of node and plain subscriber, MB:',
        *(f'{n:.0f} {p:.0f},' for _, n, p in growths_mb),
    )
    return [
        Figure(f'of {count} huge messages, those with another outcome', 0, wrong),
        Figure('memory beyond that of a plain subscriber', LIMIT_MB, max(growths_mb)[0], 'MB'),
        Figure('images lost of another camera', 0, sum(dropped.values())),
        Figure('nodes lost, or with a traceback', 0, 0 if alive else 1),
    ]


def publish_usual(cameras):
    for _ in range(USUAL_IMAGES):
        for camera in cameras:
            camera.ask(jpeg_message() if camera.name == 'jpeg' else USUAL)


def publish_huge(camera, message, other, plain):
    """Publish a huge message, and an image of another camera. Return how the message ended."""
    before, received = ends_of(camera), plain.count('received')
    camera.publisher.publish(message)
    other.ask(USUAL)
    camera.wait_for_status(
        lambda _, values: int(values['received']) > sum(before.values()), 'the huge message'
    )
    plain.wait_for_output('received', received + 1)
    return ends_of(camera) - before


def ends_of(camera):
    """Return the numbers of published and of dropped images by reason."""
    counts = camera.counts()
    return Counter(counts['dropped'], published=counts['published'], failed=counts['failed'])
