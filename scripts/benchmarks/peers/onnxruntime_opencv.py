# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime with the CUDA provider; letterbox and NMS with OpenCV on the CPU.

ROS packages like yolo_ros and deep_ros work this way. ONNX Runtime's defaults are kept: it tries
all convolution algorithms of cuDNN, and uses TF32.
"""

import onnxruntime
from opencv_steps import boxes_of, clipped, letterbox
from side import plain, serve

PROVIDERS = {'cuda': 'CUDAExecutionProvider', 'cpu': 'CPUExecutionProvider'}


class OnnxRuntimeOpenCv:
    def __init__(self, options):
        provider = PROVIDERS[options.device]
        if options.device == 'cuda':
            onnxruntime.preload_dlls()
        self.session = onnxruntime.InferenceSession(options.model, providers=[provider])
        if self.session.get_providers()[0] != provider:
            raise SystemExit(f'ONNX Runtime does not use {provider}: see its messages above')
        [image] = self.session.get_inputs()
        self.input, self.size = image.name, image.shape[2]
        self.facts = {'onnxruntime': onnxruntime.__version__, 'provider': provider}

    def detect(self, frame):
        tensor, scale, offset = letterbox(frame, self.size)
        (output,) = self.session.run(None, {self.input: tensor})
        xyxy, scores, class_ids = boxes_of(output, scale, offset)
        return clipped(xyxy, frame), scores, class_ids


if __name__ == '__main__':
    serve(lambda options, _: plain(OnnxRuntimeOpenCv(options)))
