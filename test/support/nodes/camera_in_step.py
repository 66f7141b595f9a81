"""replay_images that sends the next image once the last one is answered.

python camera_in_step.py ARGUMENT... takes the arguments of replay_images.
"""

import itertools
import sys
import time

from vision_msgs.msg import Detection2DArray

from trt_perception.ros import replay_images

#: An answer is lost while the detector does not know this subscription yet.
AGAIN_S = 5.0


class CameraInStep(replay_images.ReplayImages):
    """Sends at the speed of the detector, whatever that is: no image replaces another one."""

    def __init__(self, options):
        super().__init__(options)
        self._message = None  # the last one
        self._sent_s = 0.0
        self._answers = []
        self.create_subscription(Detection2DArray, 'detections', self._on_answer, 10)

    def _on_answer(self, message):
        self._answers.append(message.header.stamp)

    def _all_images(self):
        for self._latest in super()._all_images():
            yield self._latest

    def _encoded(self, bgr):
        self._sent_s = time.monotonic()
        self._message, encoded = super()._encoded(bgr)
        return self._message, encoded

    def _on_timer(self):
        if not self.count_publishers('detections'):
            return
        if self._message is not None and self._message.header.stamp not in self._answers:
            if time.monotonic() < self._sent_s + AGAIN_S:
                return
            self._images = itertools.chain([self._latest], self._images)
        super()._on_timer()


if __name__ == '__main__':
    replay_images.ReplayImages = CameraInStep
    sys.exit(replay_images.main(sys.argv[1:]))
