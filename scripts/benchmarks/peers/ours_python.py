# SPDX-License-Identifier: Apache-2.0
"""trt_perception, as a Python program calls it: ``tp.load``, and a call for each frame."""

from contextlib import contextmanager

from side import CONFIDENCE, IOU, MAX_BOXES, serve

import trt_perception as tp


class OursPython:
    def __init__(self, model):
        self.model = model

    def detect(self, frame):
        found = self.model(frame)
        return found.xyxy, found.scores, found.class_ids


@contextmanager
def opened(options, _):
    settings = {'confidence_threshold': CONFIDENCE, 'iou_threshold': IOU}
    with tp.load(options.model, **settings, max_detections=MAX_BOXES) as model:
        yield OursPython(model)


if __name__ == '__main__':
    serve(opened)
