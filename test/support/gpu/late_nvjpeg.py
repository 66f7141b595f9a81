# SPDX-License-Identifier: Apache-2.0
"""Replace nvJPEG on the GPU of late_gpu by OpenCV's decoder, and provide test files.

The stand-in writes pixels immediately or as late as possible, because GPUs differ in this.
"""

import ctypes

import cv2
import numpy as np

from support.fuzz import jpeg_fuzz
from support.gpu.fake_nvjpeg import FakeNvJpeg
from trt_perception.images.compressed import check_image_file
from trt_perception.images.jpeg import as_plain_jpeg


class DecodingNvJpeg(FakeNvJpeg):
    """An nvJPEG that decodes. ``gpu`` holds memory and streams; None while the pipeline opens."""

    def __init__(self):
        super().__init__()
        self.gpu = None
        self.late = False

    def nvjpegDecode(self, handle, state, content, size, kind, image, stream):  # noqa: N802
        status = super().nvjpegDecode(handle, state, content, size, kind, image, stream)
        if status or self.gpu is None:
            return status
        assert not self.gpu._queued.get(stream), 'nvJPEG may write before earlier work has ended'
        file = ctypes.string_at(content, size)
        bgr = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR)
        place, pitch = image.channel[0], image.pitch[0]

        def write():
            for row, pixels in enumerate(bgr):
                ctypes.memmove(place + row * pitch, pixels.tobytes(), pixels.nbytes)

        if self.late:
            self.gpu._queue_work(stream, write)
        else:
            write()
        return status


def undecoded_jpeg_frame(seed, width=37, height=23, sampling='420'):
    content = jpeg_fuzz.encoded_jpeg(jpeg_fuzz.scene_bgr(width, height, seed), sampling)
    frame = as_plain_jpeg(check_image_file(np.frombuffer(content, np.uint8)))
    assert not isinstance(frame, str)
    return frame
