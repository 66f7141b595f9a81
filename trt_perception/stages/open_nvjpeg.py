# SPDX-License-Identifier: Apache-2.0
"""Open nvJPEG, and test it with a small file."""

from __future__ import annotations

import functools

import cv2
import numpy as np

from trt_perception.errors import CudaError
from trt_perception.gpu import DeviceBuffer, Stream
from trt_perception.gpu.nvjpeg import NvJpeg
from trt_perception.images.compressed import check_image_file
from trt_perception.images.frame import Frame
from trt_perception.images.jpeg import as_plain_jpeg


def open_nvjpeg() -> NvJpeg:
    """Return nvJPEG after decoding a small file on the current device.

    Raises:
        CudaError: nvJPEG is not installed, or does not work on this GPU. The message says why.
    """
    nvjpeg = NvJpeg()
    try:
        frame = _small_jpeg()
        size = frame.height * frame.step
        with nvjpeg.decoder() as decoder, DeviceBuffer(size) as pixels, Stream() as stream:
            reason = decoder.decode(
                frame.jpeg, (frame.width, frame.height), pixels.pointer, frame.step, stream
            )
            stream.synchronize()
        if reason:
            version = '.'.join(map(str, nvjpeg.version))
            raise CudaError(f'nvJPEG {version}', f'cannot decode a small test file: {reason}')
    except BaseException:
        nvjpeg.close()
        raise
    return nvjpeg


@functools.cache
def _small_jpeg() -> Frame:
    _, content = cv2.imencode('.jpg', np.full((48, 64, 3), 114, np.uint8))
    frame = as_plain_jpeg(check_image_file(content.reshape(-1)))
    assert not isinstance(frame, str), frame
    return frame
