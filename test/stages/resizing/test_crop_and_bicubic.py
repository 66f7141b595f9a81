# SPDX-License-Identifier: Apache-2.0
"""Centre crops and bicubic resizing, on the host and in the kernel.

With rounding, Pillow and OpenCV give the expected pixels of the whole resized image, which is then
cut. Without rounding, the definition of the filter gives them. The sizes of resized images and the
offsets of crops follow torchvision's Resize and CenterCrop, written here a second time.
"""

from dataclasses import replace

import cv2
import numpy as np
import pytest
from PIL import Image

from support.gpu.host_kernels import HostLetterbox, needs_compiler
from support.oracles.reference_images import ENCODINGS, frame_of, random_frame
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.stages.host_preprocess import HostPreprocessor, resize

SIZES = [(517, 333), (1920, 1080), (333, 517)]
INPUT = (95, 99)
#: The excess is 35 columns or 31 rows on the shorter side, where the two roundings differ.
SHORTER_SIDE = 130
FILTERS = [(name, antialias) for name in ('bilinear', 'bicubic') for antialias in (False, True)]
PIL_FILTERS = {'bilinear': Image.Resampling.BILINEAR, 'bicubic': Image.Resampling.BICUBIC}
OPENCV_FILTERS = {'bilinear': cv2.INTER_LINEAR, 'bicubic': cv2.INTER_CUBIC}


def preprocessing_of(resize='center_crop', **values):
    values = {'shorter_side': SHORTER_SIDE, 'pad_value': 0, 'scale': 1.0, **values}
    return Preprocessing(INPUT, resize, **values)


def picture(size, low=0, high=255):
    """Return RGB noise with structures of two sizes, uint8 (height, width, 3)."""
    rng = np.random.default_rng(7)
    width, height = size
    coarse = rng.integers(0, 256, (height // 9 + 1, width // 9 + 1, 3), np.uint8)
    noise = rng.integers(-40, 41, (height, width, 3))
    return (cv2.resize(coarse, size) + noise).clip(low, high).astype(np.uint8)


def frame_from(rgb):
    height, width = rgb.shape[:2]
    return frame_of(rgb.tobytes(), 'rgb8', width, height, 3 * width)


def cubic(distance, a):
    """Keys' cubic convolution kernel."""
    x = np.abs(distance)
    inner = (a + 2) * x**3 - (a + 3) * x**2 + 1
    outer = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return np.where(x < 1, inner, np.where(x < 2, outer, 0))


def defined(levels, size_wh, name, antialias):
    """Resize by the definition of the filter, in float64 without rounding."""
    for axis, target in ((1, size_wh[0]), (0, size_wh[1])):
        source = levels.shape[axis]
        scale = source / target
        middle = (np.arange(target)[:, None] + 0.5) * scale - 0.5
        # Without antialiasing, the border repeats. With it, pixels outside have no weight.
        reach = 0 if antialias else 3
        place = np.arange(-reach, source + reach)
        away = (place - middle) / (max(scale, 1) if antialias else 1)
        if name == 'bilinear':
            weights = np.maximum(0, 1 - np.abs(away))
        else:
            weights = cubic(away, -0.5 if antialias else -0.75)
        weights /= weights.sum(axis=1, keepdims=True)
        extended = levels.take(place.clip(0, source - 1), axis)
        levels = np.moveaxis(np.tensordot(weights, extended, (1, axis)), 0, axis)
    return levels


def resized_to(rgb, size_wh, preprocessing):
    """Return the whole resized image, from Pillow, OpenCV or the definition."""
    name, antialias = preprocessing.filter, preprocessing.antialias
    if not preprocessing.round_pixels:
        return defined(rgb.astype(np.float64), size_wh, name, antialias)
    if antialias:
        # One axis after the other: Pillow 13 chooses the order of the axes.
        narrow = Image.fromarray(rgb).resize((size_wh[0], rgb.shape[0]), PIL_FILTERS[name])
        return np.asarray(narrow.resize(size_wh, PIL_FILTERS[name]))
    return cv2.resize(rgb, size_wh, interpolation=OPENCV_FILTERS[name])


def expected_levels(rgb, preprocessing):
    """Return the network's input, (height, width, 3)."""
    (width, height), (columns, rows) = rgb.shape[1::-1], preprocessing.input_size
    if preprocessing.resize == 'stretch':
        return resized_to(rgb, (columns, rows), preprocessing)
    shorter = preprocessing.shorter_side
    size = (
        (shorter, int(shorter * height / width))
        if width <= height
        else (int(shorter * width / height), shorter)
    )
    whole = resized_to(rgb, size, preprocessing)
    result = np.zeros((rows, columns, 3), whole.dtype)
    places = []
    for cut, side in ((rows, size[1]), (columns, size[0])):
        if cut > side:
            places.append((slice((cut - side) // 2, (cut - side) // 2 + side), slice(None)))
        else:
            half = (side - cut) / 2.0
            start = round(half) if preprocessing.crop_rounding == 'half_even' else int(half)
            places.append((slice(None), slice(start, start + cut)))
    result[places[0][0], places[1][0]] = whole[places[0][1], places[1][1]]
    return result


def levels_of(tensor):
    return tensor[0].transpose(1, 2, 0).astype(np.float64)


def host_levels(rgb, preprocessing):
    return levels_of(HostPreprocessor(preprocessing)(frame_from(rgb))[0])


def largest_difference(first, second):
    return np.abs(first.astype(np.float64) - second).max()


@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize(('name', 'antialias'), FILTERS)
@pytest.mark.parametrize('round_pixels', [True, False])
@pytest.mark.parametrize('mode', ['center_crop', 'stretch'])
def test_host_gives_the_expected_pixels_and_a_wrong_setting_does_not(
    size, name, antialias, round_pixels, mode
):
    right = preprocessing_of(
        mode, filter=name, antialias=antialias, round_pixels=round_pixels, crop_rounding='down'
    )
    rgb = picture(size)
    expected = expected_levels(rgb, right)
    # torch computes positions in float32, Pillow's floats are float32.
    allowed = 0 if round_pixels else 0.02
    assert largest_difference(host_levels(rgb, right), expected) <= allowed
    wrong = [{'filter': 'bicubic' if name == 'bilinear' else 'bilinear'}]
    if size != (1920, 1080):
        wrong += [{'antialias': not antialias}]
    if mode == 'center_crop':
        wrong += [{'crop_rounding': 'half_even'}, {'shorter_side': SHORTER_SIDE + 1}]
    for values in wrong:
        assert largest_difference(host_levels(rgb, replace(right, **values)), expected) > 5, values


@pytest.mark.parametrize('size', [(60, 95), (99, 60), (101, 100), (53, 37), (1, 7), (7, 1)])
@pytest.mark.parametrize('shorter_side', [1, 90, 91, None])
def test_small_image_is_padded_or_enlarged(size, shorter_side):
    for name, antialias in FILTERS:
        values = {'filter': name, 'antialias': antialias}
        right = preprocessing_of(**values, shorter_side=shorter_side)
        rgb = picture(size)
        shown = replace(right, shorter_side=shorter_side or min(INPUT))
        expected = expected_levels(rgb, shown)
        np.testing.assert_array_equal(host_levels(rgb, right), expected)


def test_crop_of_a_narrow_image_needs_little_memory():
    import tracemalloc

    # Bright and dark pixels would be clipped, which Pillow does after each axis.
    rgb = picture((32767, 2), 64, 191)
    for name, antialias in FILTERS:
        preprocess = HostPreprocessor(preprocessing_of(filter=name, antialias=antialias))
        tracemalloc.start()
        found, _ = preprocess(frame_from(rgb))
        assert tracemalloc.get_traced_memory()[1] < 2**25  # the resized image has 830 MB
        tracemalloc.stop()
        # The centre of the image, enlarged by 65.
        part = np.ascontiguousarray(rgb[:, 16363:16404])
        size = (part.shape[1] * 65, 130)
        whole = resized_to(part, size, preprocessing_of(filter=name, antialias=antialias))
        left = round((32767 * 65 - INPUT[0]) / 2) - 16363 * 65
        top = round((130 - INPUT[1]) / 2)
        wanted = whole[top : top + INPUT[1], left : left + INPUT[0]]
        assert largest_difference(levels_of(found), wanted) <= 1


def test_window_is_a_part_of_the_resized_image():
    rgb = picture((61, 47))
    for name, antialias in FILTERS:
        for round_pixels in (True, False):
            settings = {
                'antialias': antialias,
                'round_pixels': round_pixels,
                'resize_filter': name,
            }
            whole = resize(rgb, (40, 50), **settings)
            part = resize(rgb, (40, 50), **settings, window_xyxy=(3, 5, 33, 48))
            np.testing.assert_array_equal(part, whole[5:48, 3:33])


@needs_compiler
@pytest.mark.parametrize(('name', 'antialias'), FILTERS)
@pytest.mark.parametrize('round_pixels', [True, False])
@pytest.mark.parametrize('mode', ['center_crop', 'letterbox'])
def test_kernel_gives_the_input_of_the_host(name, antialias, round_pixels, mode):
    preprocessing = preprocessing_of(
        mode, filter=name, antialias=antialias, round_pixels=round_pixels, crop_rounding='down'
    )
    kernel, host = HostLetterbox(preprocessing), HostPreprocessor(preprocessing)
    # Weights have 22 bits instead of float64. Without IPP, OpenCV's bicubic weights have 11 bits.
    allowed = 0.02 if not round_pixels else (name, antialias) == ('bicubic', False)
    frames = [frame_from(picture(size)) for size in (*SIZES, (53, 37), (40, 33), (5, 90), (1, 1))]
    rng = np.random.default_rng(3)
    for encoding in sorted({*ENCODINGS.values()}):
        size = (54, 38) if antialias else (202, 130)
        frames.append(random_frame(rng, encoding, *size))
    for frame in frames:
        expected, _ = host(frame)
        difference = np.abs(kernel(frame) - expected)
        assert difference.max() <= allowed, (frame.format, frame.width)
        has_ipp = cv2.ipp.getIppVersion() != 'disabled'
        assert (difference > 0.02).mean() < (0.003 if has_ipp else 0.06)


@needs_compiler
@pytest.mark.parametrize(('name', 'antialias'), FILTERS)
def test_kernel_crops_narrow_images(name, antialias):
    preprocessing = preprocessing_of(filter=name, antialias=antialias)
    kernel, host = HostLetterbox(preprocessing), HostPreprocessor(preprocessing)
    for size in ((32767, 1), (1, 32767), (32766, 5), (3, 30001)):
        frame = frame_from(picture(size, 64, 191))
        assert np.abs(kernel(frame) - host(frame)[0]).max() <= 1, size
