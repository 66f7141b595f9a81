# SPDX-License-Identifier: Apache-2.0
"""Ultralytics' own predictor with PyTorch, in FP16 on a GPU.

The predictor uses the size of the checkpoint's training. By default it pads a 1080p frame to
640 x 384 only. --square selects the 640 x 640 of all other sides, which costs more and gives
comparable boxes.
"""

import contextlib
import os
import sys

os.environ |= {'YOLO_OFFLINE': 'true', 'YOLO_AUTOINSTALL': 'false'}

import torch

with contextlib.redirect_stdout(sys.stderr):  # it prints a line at its first import
    import ultralytics

from side import CONFIDENCE, IOU, MAX_BOXES, plain, serve


class UltralyticsPredictor:
    def __init__(self, options):
        is_cuda = options.device == 'cuda'
        self.model = ultralytics.YOLO(options.model)
        self.settings = {
            'device': 0 if is_cuda else 'cpu',
            'quantize': 16 if is_cuda else 32,
            'conf': CONFIDENCE,
            'iou': IOU,
            'max_det': MAX_BOXES,
            'rect': not options.square,
            'verbose': False,
        }
        self.facts = {'ultralytics': ultralytics.__version__, 'torch': torch.__version__}

    def detect(self, frame):
        (result,) = self.model.predict(frame, **self.settings)
        rows = result.boxes.data.cpu().numpy()
        return rows[:, :4], rows[:, 4], rows[:, 5].astype(int)


if __name__ == '__main__':
    serve(lambda options, _: plain(UltralyticsPredictor(options)))
