# SPDX-License-Identifier: Apache-2.0
"""Make images and compute their RGB values from the definitions of the encodings.

The tests of preprocessing compare with these values. The computation uses float64, and no code of
OpenCV or of the package except Frame.
"""

import zlib
from fractions import Fraction
from math import floor

import numpy as np

from trt_perception.images.frame import Frame

# Encodings that host and GPU read without cv_bridge, with their canonical names.
ENCODINGS = {
    'bgr8': 'bgr8',
    'rgb8': 'rgb8',
    'bgra8': 'bgra8',
    'rgba8': 'rgba8',
    'mono8': 'mono8',
    'mono16': 'mono16',
    '8UC1': 'mono8',
    '8UC3': 'bgr8',
    'yuv422': 'uyvy',
    'uyvy': 'uyvy',
    'yuv422_yuy2': 'yuyv',
    'yuyv': 'yuyv',
    'nv12': 'nv12',
    'nv21': 'nv21',
    'bayer_rggb8': 'bayer_rggb8',
    'bayer_bggr8': 'bayer_bggr8',
    'bayer_gbrg8': 'bayer_gbrg8',
    'bayer_grbg8': 'bayer_grbg8',
}
BYTES_PER_PIXEL = {'bgr8': 3, 'rgb8': 3, 'bgra8': 4, 'rgba8': 4, 'mono16': 2, 'uyvy': 2, 'yuyv': 2}
SIZES = [(1, 1), (2, 2), (3, 3), (4, 4), (53, 37), (54, 38), (640, 480), (6, 250), (700, 4)]
# In these encodings, chroma rows follow all luma rows. Two luma rows share one chroma row.
TWO_PLANES = ('nv12', 'nv21')
YUV = ('uyvy', 'yuyv', *TWO_PLANES)


def row_bytes(encoding, width):
    return width * BYTES_PER_PIXEL.get(ENCODINGS[encoding], 1)


def byte_rows(encoding, height):
    return height * 3 // 2 if ENCODINGS[encoding] in TWO_PLANES else height


def fits(encoding, width, height):
    """Return whether the encoding allows an image of this size."""
    name = ENCODINGS[encoding]
    if name.startswith('bayer'):
        return width >= 3 and height >= 3
    return not (name in YUV and width % 2) and not (name in TWO_PLANES and height % 2)


def noise(rng, encoding, width, height, padding=0):
    """Return random bytes of an image with random padding, and its step."""
    step = row_bytes(encoding, width) + padding
    return rng.integers(0, 256, byte_rows(encoding, height) * step, np.uint8), step


def frame_of(data, encoding, width, height, step, big_endian=False):
    return Frame.view(
        data, width=width, height=height, step=step, encoding=encoding, big_endian=big_endian
    )


def recorded_noise(size, recorded):
    """Return the frame of RGB noise that recordings were made from: test/data/exports/noise.py.

    Args:
        size: width and height, such as ``517x333``.
        recorded: the recording, with the checksum of the image.
    """
    width, height = map(int, size.split('x'))
    rng = np.random.default_rng(11)
    coarse = rng.integers(20, 236, (height // 8 + 1, width // 8 + 1, 3))
    fine = rng.integers(-40, 41, (height, width, 3))
    rgb = coarse.repeat(8, 0).repeat(8, 1)[:height, :width] + fine
    rgb = rgb.clip(0, 255).astype(np.uint8)
    assert zlib.crc32(rgb) == recorded[f'crc {size}']
    return frame_of(rgb.tobytes(), 'rgb8', width, height, 3 * width)


def rgb_levels(data, encoding, width, height, step, big_endian=False):
    """Return the RGB values of the bytes: float64 (height, width, 3), from 0 to 255.

    YUV values are not rounded. All other encodings have whole values by definition.
    """
    name = ENCODINGS[encoding]
    rows = np.asarray(data).reshape(-1, step)[:, : row_bytes(encoding, width)].astype(np.float64)
    if name in ('bgr8', 'rgb8', 'bgra8', 'rgba8'):
        pixels = rows.reshape(height, width, -1)
        channels = [0, 1, 2] if name.startswith('rgb') else [2, 1, 0]
        return pixels[..., channels]
    if name in ('mono8', 'mono16'):
        gray = rows
        if name == 'mono16':
            high, low = (0, 1) if big_endian else (1, 0)
            gray = np.floor((rows[:, high::2] * 256 + rows[:, low::2]) / 257 + 0.5)
        return np.stack([gray] * 3, axis=-1)
    if name in YUV:
        return _yuv_levels(*_yuv_planes(name, rows, height))
    return _demosaiced(name, rows)


def _yuv_planes(name, rows, height):
    """Return Y, Cb, Cr of every pixel. Pixels that share a chroma sample get its value."""
    if name in TWO_PLANES:
        chroma = np.repeat(rows[height:], 2, axis=0)
        first, second = (
            np.repeat(chroma[:, 0::2], 2, axis=1),
            np.repeat(chroma[:, 1::2], 2, axis=1),
        )
        return (rows[:height], first, second) if name == 'nv12' else (rows[:height], second, first)
    luma, chroma = (1, 0) if name == 'uyvy' else (0, 1)
    first, second = rows[:, chroma::4], rows[:, chroma + 2 :: 4]
    return rows[:, luma::2], np.repeat(first, 2, axis=1), np.repeat(second, 2, axis=1)


def _yuv_levels(y, cb, cr):
    """Convert limited-range YUV of ITU-R BT.601 to RGB.

    E'Y is 0.299 R + 0.587 G + 0.114 B. Luma has 219 steps, and chroma has 224 steps.

    Values of Y below 16 (foot-room) count as 16, as in OpenCV.
    """
    luma = (np.maximum(y, 16) - 16) * 255 / 219
    blue_difference, red_difference = (cb - 128) * 255 / 224, (cr - 128) * 255 / 224
    red = luma + 2 * (1 - 0.299) * red_difference
    blue = luma + 2 * (1 - 0.114) * blue_difference
    green = (luma - 0.299 * red - 0.114 * blue) / 0.587
    return np.clip(np.stack([red, green, blue], axis=-1), 0, 255)


def _demosaiced(name, rows):
    """Demosaic bilinearly: take the mean of each colour's nearest samples, rounded half up.

    The outermost pixels lack neighbours, so they repeat the adjacent inner pixel (OpenCV).
    """
    from scipy import ndimage  # here: the Python of compute-sanitizer may lack it

    height, width = rows.shape
    samples = np.zeros((3, height, width))
    for position, color in enumerate(name.removeprefix('bayer_').removesuffix('8')):
        place = np.s_[position // 2 :: 2, position % 2 :: 2]
        samples['rgb'.index(color)][place] = rows[place]
    dense = np.array([[0, 1, 0], [1, 4, 1], [0, 1, 0]]) / 4  # green: every second pixel
    sparse = np.array([[1, 2, 1], [2, 4, 2], [1, 2, 1]]) / 4  # red and blue: every fourth
    kernels = sparse, dense, sparse
    planes = [
        ndimage.convolve(*pair, mode='constant') for pair in zip(samples, kernels, strict=True)
    ]
    image = np.floor(np.stack(planes, axis=-1) + 0.5)
    return np.pad(image[1:-1, 1:-1], ((1, 1), (1, 1), (0, 0)), mode='edge')


def random_frame(rng, encoding, width, height, padding=0, big_endian=False):
    """Return a frame of random bytes."""
    data, step = noise(rng, encoding, width, height, padding)
    return frame_of(data, encoding, width, height, step, big_endian)


def noise_frame(rng, encoding, width, height, padding=0, big_endian=False):
    """Return a frame of random bytes and its RGB values."""
    frame = random_frame(rng, encoding, width, height, padding, big_endian)
    return frame, rgb_levels(frame.data, encoding, width, height, frame.step, big_endian)


def resized(levels, size_wh):
    """Return the image at another size: bilinear, half-pixel centres, edges repeated."""
    from scipy import ndimage  # here: the Python of compute-sanitizer may lack it

    (width, height), (source_height, source_width) = size_wh, levels.shape[:2]
    y = (np.arange(height) + 0.5) * source_height / height - 0.5
    x = (np.arange(width) + 0.5) * source_width / width - 0.5
    grid = np.meshgrid(y, x, indexing='ij')
    planes = [
        ndimage.map_coordinates(levels[..., channel], grid, order=1, mode='nearest')
        for channel in range(levels.shape[2])
    ]
    return np.stack(planes, axis=-1)


def placed(source_wh, network_wh, mode):
    """Return size, left and top of an image in the network input, in exact arithmetic."""
    if mode == 'stretch':
        return network_wh, 0, 0
    scale = min(Fraction(network_wh[axis], source_wh[axis]) for axis in (0, 1))
    width, height = (max(1, floor(side * scale + Fraction(1, 2))) for side in source_wh)
    return (width, height), (network_wh[0] - width) // 2, (network_wh[1] - height) // 2


def network_levels(levels, network_wh, mode='letterbox', pad_value=114):
    """Return the network's image before normalisation: float64 (height, width, 3), RGB."""
    (width, height), left, top = placed(levels.shape[1::-1], network_wh, mode)
    picture = np.full((network_wh[1], network_wh[0], 3), float(pad_value))
    picture[top : top + height, left : left + width] = resized(levels, (width, height))
    return picture


def tensor_from_levels(picture, color_order='rgb', scale=1 / 255, mean=(0, 0, 0), std=(1, 1, 1)):
    """Return float64 (1, 3, height, width): (x * scale - mean) / std per channel."""
    channels = picture if color_order == 'rgb' else picture[..., ::-1]
    return ((channels * scale - np.array(mean)) / np.array(std)).transpose(2, 0, 1)[None]


def levels_off(tensor, recorded, step, preprocessing):
    """Return the largest difference to recorded values, in levels of 0…255.

    Args:
        tensor: input tensor of one image, channels first.
        recorded: every ``step``-th value of the exporter's tensor.
    """
    gain, _ = preprocessing.gain_and_bias()
    channel = np.arange(tensor.size)[::step] // (tensor.size // 3)
    return (np.abs(tensor.reshape(-1)[::step] - recorded) / gain[channel]).max()
