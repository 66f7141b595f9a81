"""replay_images that sends the next image once the last one is answered.

python camera_in_step.py ARGUMENT... takes the arguments of replay_images.
"""

import sys

from vision_msgs.msg import Detection2DArray

from trt_perception.ros import replay_images


class CameraInStep(replay_images.ReplayImages):
    """Sends at the speed of the detector, whatever that is: no image replaces another one."""

    def __init__(self, options):
        super().__init__(options)
        self._answers = set()
        self.create_subscription(Detection2DArray, 'detections', self._on_answer, 10)

    def _on_answer(self, message):
        self._answers.add((message.header.stamp.sec, message.header.stamp.nanosec))

    def _on_timer(self):
        if self.count_publishers('detections') and len(self._answers) == self._sent:
            super()._on_timer()


if __name__ == '__main__':
    replay_images.ReplayImages = CameraInStep
    sys.exit(replay_images.main(sys.argv[1:]))
