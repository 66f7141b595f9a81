# SPDX-License-Identifier: Apache-2.0
"""Share parts of CudaPipeline tests that use the stand-ins of gpu_standin_fixtures."""

from __future__ import annotations

import numpy as np

from trt_perception.images.frame import Frame

PIPELINE_DEPTH = 3
# Inputs and outputs of the engine of a small dense detector.
SMALL = {
    'inputs': (('images', (1, 3, 48, 64), 'FLOAT'),),
    'outputs': (('output0', (1, 6, 5), 'FLOAT'),),
}


def grey_frame(width, height):
    return Frame.view(
        np.full(width * height, 114, np.uint8),
        width=width,
        height=height,
        step=width,
        encoding='mono8',
    )


def assert_nothing_is_left(recorder, tensorrt):
    assert recorder.kinds() == []
    assert recorder.mistakes == []
    assert list(tensorrt.living) == []
