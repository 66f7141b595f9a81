# SPDX-License-Identifier: Apache-2.0
"""Run a detector_node whose pipeline accepts JPEGs, as on a GPU, but decodes them on the CPU."""

import sys

from trt_perception.errors import ImageError
from trt_perception.images.jpeg import decode_on_cpu
from trt_perception.model.files.model_file import read_model_file
from trt_perception.pipelines.host.onnx_runtime_pipeline import OnnxRuntimePipeline
from trt_perception.ros.detector_node import DetectorNode
from trt_perception.ros.runtime.process import run_node


class JpegPipeline(OnnxRuntimePipeline):
    """Decodes JPEGs in `collect`, the last step in which a pipeline may report a damaged file."""

    def __init__(self, path, options):
        super().__init__(read_model_file(path), options)
        self.decodes_jpeg = options.jpeg_on_gpu
        self.batch = 1
        self._kept = None

    def enqueue(self, slot, frames, thresholds):
        self._kept = frames, thresholds

    def collect(self, slot):
        ((frame,), thresholds), self._kept = self._kept, None
        try:
            frame = frame.read()
            if not frame.is_decoded:
                print('jpeg taken', flush=True)
            frame = decode_on_cpu(frame)
        except ImageError as error:
            return [error]
        super().enqueue(slot, [frame], thresholds)
        return super().collect(slot)


if __name__ == '__main__':
    sys.exit(
        run_node(lambda: DetectorNode(open_pipeline=JpegPipeline), DetectorNode.close, sys.argv)
    )
