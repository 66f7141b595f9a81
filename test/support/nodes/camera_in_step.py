"""Run replay_images so that it sends each image after the answer to the previous image.

python camera_in_step.py ARGUMENT... takes the arguments of replay_images.
"""

import itertools
import sys
import time

from sensor_msgs.msg import Image
from vision_msgs.msg import Classification, Detection2DArray

from trt_perception.ros import replay_images

#: Seconds without an answer until an image is sent again. Answers are lost until the detector has
#: discovered this node.
AGAIN_S = 5.0
#: The topics with answers. A model publishes one of these topics.
TOPICS = {
    'detections': Detection2DArray,
    'classification': Classification,
    'segmentation/mask': Image,
}


class CameraInStep(replay_images.ReplayImages):
    """Sends at the detector's speed, so that no image replaces another."""

    def __init__(self, options):
        super().__init__(options)
        self._stamp = None  # the stamp of the image that was sent last
        self._sent_s = 0.0
        self._answers = []
        for name, kind in TOPICS.items():
            self.create_subscription(kind, name, self._on_answer, 10)

    def _on_answer(self, message):
        self._answers.append(message.header.stamp)

    def _all_images(self):
        for self._latest in super()._all_images():
            yield self._latest

    def _encoded(self, bgr, header):
        self._sent_s = time.monotonic()
        self._stamp = header.stamp
        return super()._encoded(bgr, header)

    def _on_timer(self):
        if not any(map(self.count_publishers, TOPICS)):
            return
        if self._stamp is not None and self._stamp not in self._answers:
            if time.monotonic() < self._sent_s + AGAIN_S:
                return
            self._images = itertools.chain([self._latest], self._images)
        super()._on_timer()


if __name__ == '__main__':
    replay_images.ReplayImages = CameraInStep
    sys.exit(replay_images.main(sys.argv[1:]))
