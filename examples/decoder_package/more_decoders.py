# SPDX-License-Identifier: Apache-2.0
"""Decoders for trt_perception: final boxes of EfficientDet and PaddleDetection."""

from trt_perception.model.decoder import DecoderPreset
from trt_perception.model.decoders.final_boxes import FinalBoxRows
from trt_perception.model.output_tensor import OutputTensor


class EfficientDet(FinalBoxRows):  # rows of box, score, class number from 1
    family = 'efficientdet'
    documented_boxes = 'left, top, right, bottom in network pixels'
    first_label = 1
    tensors = (OutputTensor('output', ('B', 'K', 6)),)


class Paddle(FinalBoxRows):  # rows of class number, score, box; the boxes of all images
    family = 'paddle'
    documented_boxes = 'left, top, right, bottom in network pixels'
    tensors = (OutputTensor('output', ('K', 6)),)

    def candidates(self, arrays, image):
        return super().candidates([arrays[0][:, [2, 3, 4, 5, 1, 0]]], image)


PRESETS = DecoderPreset('efficientdet', EfficientDet()), DecoderPreset('paddle', Paddle())
