# SPDX-License-Identifier: Apache-2.0
"""The real nvJPEG matches OpenCV except for chroma, and never writes outside the image."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from support.fuzz import jpeg_fuzz
from support.gpu.gpu_support import from_device, needs_nvjpeg
from trt_perception import gpu
from trt_perception.gpu.nvjpeg import NvJpeg
from trt_perception.images.compressed import check_image_file
from trt_perception.images.jpeg import as_plain_jpeg, decode_on_cpu, undecoded_frame

GUARD = 4096


pytestmark = needs_nvjpeg


@pytest.fixture(scope='module')
def nvjpeg():
    gpu.Device(0).use()
    with NvJpeg() as library:
        yield library


def frame_of(content):
    frame = as_plain_jpeg(check_image_file(np.frombuffer(content, np.uint8)))
    assert not isinstance(frame, str), frame
    return frame


def decode(decoder, frame, step=None):
    """Return the refusal and the pixels. Check that the bytes around the pixels are unchanged."""
    step = step or frame.step
    size = frame.height * step + 2 * GUARD
    with gpu.DeviceBuffer(size) as buffer, gpu.Stream() as stream:
        gpu.clear_async(buffer.pointer, size, stream)
        stream.synchronize()
        reason = decoder.decode(
            frame.jpeg, (frame.width, frame.height), buffer.pointer + GUARD, step, stream
        )
        stream.synchronize()
        found = from_device(buffer.pointer, np.uint8, (size,))
    assert not found[:GUARD].any()
    assert not found[-GUARD:].any()
    rows = found[GUARD:-GUARD].reshape(frame.height, step)
    assert not rows[:, frame.step :].any()
    return reason, rows[:, : frame.step].reshape(frame.height, frame.width, 3)


def by_opencv(frame):
    return decode_on_cpu(frame).plane().reshape(frame.height, frame.width, 3)


def test_decoded_pixels_match_opencv(nvjpeg):
    """Rounding may differ, and so may chroma that four columns share."""
    if nvjpeg.version < (12, 1):
        pytest.skip('this nvJPEG does not interpolate chroma')
    with nvjpeg.decoder() as decoder:
        for name, content in jpeg_fuzz.plain_jpegs().items():
            frame = frame_of(content)
            reason, found = decode(decoder, frame)
            assert reason == ''
            difference = np.abs(found.astype(int) - by_opencv(frame))
            print(name, difference.mean(), difference.max())
            assert difference.mean() < 0.1, name
            assert difference.max() <= (4 if '411' in name else 2), name


def test_padded_rows_get_the_same_pixels(nvjpeg):
    frame = frame_of(jpeg_fuzz.plain_jpegs()['35x23 420 0'])
    with nvjpeg.decoder() as decoder:
        _, expected = decode(decoder, frame)
        _, found = decode(decoder, frame, step=512)
    assert (found == expected).all()


def test_decoder_accepts_larger_and_smaller_files_in_turn(nvjpeg):
    files = [frame_of(content) for content in list(jpeg_fuzz.plain_jpegs().values())[::7]]
    expected = []
    for frame in files:
        with nvjpeg.decoder() as decoder:
            expected.append(decode(decoder, frame)[1])
    with nvjpeg.decoder() as decoder:
        for index in np.random.default_rng(3).permutation(len(files)):
            reason, found = decode(decoder, files[index])
            assert reason == ''
            assert (found == expected[index]).all()


def test_decoders_in_several_threads_give_the_right_pixels(nvjpeg):
    frames = [
        frame_of(jpeg_fuzz.encoded_jpeg(jpeg_fuzz.scene_bgr(640, 480, seed))) for seed in range(4)
    ]
    with nvjpeg.decoder() as decoder:
        expected = [decode(decoder, frame)[1] for frame in frames]
    wrong = []

    def work(frame, pixels):
        gpu.Device(0).use()
        with nvjpeg.decoder() as thread_decoder:
            for _ in range(50):
                reason, found = decode(thread_decoder, frame)
                if reason or (found != pixels).any():
                    wrong.append(reason)

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(frames, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_file_with_a_different_size_in_its_headers_is_refused(nvjpeg):
    frame = frame_of(jpeg_fuzz.plain_jpegs()['35x23 420 0'])
    wrong_size = undecoded_frame(frame.jpeg, 34, 23)
    with nvjpeg.decoder() as decoder:
        reason, found = decode(decoder, wrong_size)
        assert reason == 'nvJPEG reads a different size in the headers'
        assert not found.any()
        assert decode(decoder, frame)[0] == ''


def test_invalid_jpeg_is_refused_with_the_nvjpeg_status(nvjpeg):
    with nvjpeg.decoder() as decoder:
        for content in (b'', b'\xff\xd8', bytes(100), b'\xff\xd8\xff\xd9'):
            assert decode(decoder, undecoded_frame((content,), 8, 8))[0].startswith(
                'NVJPEG_STATUS_'
            )
