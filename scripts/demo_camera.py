# SPDX-License-Identifier: Apache-2.0
"""Send images as replay_images does, but each image only after the answer to the previous one.

python demo_camera.py ARGUMENT... takes the arguments of replay_images. --rate limits the rate.
Each byte on the standard input is an answer. The demo writes it, because results are lost until
the detector has discovered a new subscriber.
"""

import os
import sys
import time

from trt_perception.ros import replay_images

# An image that was lost gets no answer.
_LIMIT_S = 20.0


class CameraInStep(replay_images.ReplayImages):
    """Sends at the detector's speed, so that no image replaces another."""

    def __init__(self, options):
        super().__init__(options)
        self._sent_s = None
        os.set_blocking(sys.stdin.fileno(), False)

    def _encoded(self, bgr, header):
        self._sent_s = time.monotonic()
        return super()._encoded(bgr, header)

    def _on_timer(self):
        is_answered = self._sent_s is None or _has_answer()
        if is_answered or time.monotonic() > self._sent_s + _LIMIT_S:
            super()._on_timer()


def _has_answer():
    """Take all answers. Return whether there was one."""
    try:
        os.read(sys.stdin.fileno(), 1000)
    except BlockingIOError:
        return False
    return True


if __name__ == '__main__':
    replay_images.ReplayImages = CameraInStep
    sys.exit(replay_images.main(sys.argv[1:]))
