# SPDX-License-Identifier: Apache-2.0
"""Check in a soak that each frame keeps its header, and that no frame is torn.

Each frame is filled with its number.
"""

import contextlib
import json
import signal

import numpy as np
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image

from support.nodes.graph import Detector
from support.nodes.numbered_camera import VALUES
from support.programs import Program, script
from support.soak.soak_frames_node import LARGE
from support.soak.soaks import Figure
from trt_perception.wire.cdr import read_image

#: The camera of each event: reliability, rate in Hz (0: as fast as possible), alternating sizes,
#: and share of the frames. `growth` sends at 10 Hz, because images of 25 MB need time to arrive.
PARTS = {
    'overload': ('reliable', 0, ('800x600', '640x480'), 0.5),
    'growth, by a camera that starts again': (
        'reliable',
        10,
        ('640x480', '1920x1080', '3840x2160'),
        0.1,
    ),
    'another subscription, for a camera that offers less': ('best_effort', 0, ('640x480',), 0.4),
}


def frames(client, *, count=10_000, rounds=10, large_images=5, intake='auto'):
    """Process images of cameras that are too fast, restart, or change their image size or QoS.

    Each round is an activation, which allocates the memory for images again. A subscriber always
    receives the debug image. A round has at least ``large_images`` images of the largest size.
    """
    parameters = {'image_intake': intake, 'debug_image.max_rate_hz': 10.0}
    command = script('soak/soak_frames_node.py')
    detector = Detector(client, parameters, command=command, camera_qos=None)
    debug_images = DebugImageChecker(client, detector.topic('debug_image'))
    program = detector.program
    adapted = 0
    try:
        detector.transition('configure')
        for number in range(1, rounds + 1):
            detector.transition('activate')
            published = 0
            for reliability, rate_hz, sizes, share in PARTS.values():
                wanted = published + share * count / rounds
                large = program.count(LARGE) + large_images * (len(sizes) > 2)
                with camera(detector.topic('image'), reliability, rate_hz, sizes):
                    detector.wait_for_status(
                        lambda _, values, wanted=wanted, large=large: (
                            int(values['published']) >= wanted and program.count(LARGE) >= large
                        ),
                        f'{wanted:.0f} frames of round {number}',
                    )
                _, values = detector.wait_for_status(lambda *_: True, 'a status')
                published = int(values['published'])
                detector.detections.clear()
            adapted += values['image reliability'] == 'best_effort'
            detector.transition('deactivate')
        alive = program.alive and 'Traceback' not in program.output
        program.send(signal.SIGTERM)
        code = program.wait()
        node = json.loads(program.output.splitlines()[-1])
    finally:
        debug_images.close()
        detector.close()
    print(f'{node}, {debug_images.count} debug images')
    expected = sorted({size for _, _, sizes, _ in PARTS.values() for size in sizes})
    seen = sorted(f'{width}x{height}' for width, height in node['sizes'])
    return [
        Figure('frames that should have been processed', 0, max(0, count - node['frames'])),
        Figure(f'of {node["frames"]} frames, those with a wrong pixel', 0, node['wrong']),
        Figure(
            f'of {debug_images.count} debug images, those with a wrong pixel',
            0,
            debug_images.wrong,
        ),
        Figure('no debug image arrived', 0, 0 if debug_images.count else 1),
        Figure('sizes never seen', 0, len(set(expected) - set(seen))),
        Figure('subscriptions that were not made again', 0, rounds - adapted),
        Figure('nodes lost, or with a traceback', 0, 0 if alive and not code else 1),
    ]


@contextlib.contextmanager
def camera(topic, reliability, rate_hz, sizes):
    """Publish images until the block ends."""
    arguments = (topic, reliability, 1, rate_hz, 0, *sizes)
    program = Program([*script('nodes/numbered_camera.py'), *arguments])
    try:
        yield
    finally:
        program.close()


class DebugImageChecker:
    """Subscribes to the debug image, which has no detections drawn, and checks its pixels."""

    def __init__(self, client, topic):
        self.count = self.wrong = 0
        self._node = client.node
        self._subscription = client.node.create_subscription(
            Image, topic, self._look, QoSProfile(depth=1), raw=True
        )

    def _look(self, content):
        image = read_image(np.frombuffer(content, np.uint8))
        seen = {*image.data[::4099].tolist(), *image.data[-2:].tolist()}
        self.count += 1
        self.wrong += seen != {image.header.stamp.sec % VALUES}

    def close(self):
        self._node.destroy_subscription(self._subscription)
