# SPDX-License-Identifier: Apache-2.0
"""Images of results are made in strips of rows: with the same pixels, and in bounded memory."""

import subprocess
import sys
from dataclasses import replace

import cv2
import numpy as np
import pytest
from scipy import ndimage

from trt_perception.images.detections import Detections, MaskGeometry, Masks
from trt_perception.images.drawing import draw_class_map, draw_depth, draw_detections
from trt_perception.images.frame import Frame
from trt_perception.images.frame_pixels import frame_to_bgr
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results import image_limits
from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.images.results.image_limits import MAX_RESULT_PIXELS, row_strips

SIZE = (517, 333)
STRETCHED = Letterbox.fit(SIZE, (320, 240), 'stretch')
PADDED = Letterbox.fit(SIZE, (160, 160), 'letterbox')  # the padding ends inside a cell
RNG = np.random.default_rng(0)
LOGITS = (3 * RNG.standard_normal((9, 40, 40))).astype('f4')
CELLS = RNG.uniform(-0.5, 9, (40, 40)).astype('f4')
CELLS[3, 4:9] = np.inf
CELLS[9, 9] = np.nan


@pytest.fixture(params=[1, 5000, 2**30], ids='strips of {} pixels'.format)
def strips(monkeypatch, request):
    """Strips of a single row, of some rows, and of the whole image."""
    monkeypatch.setattr(image_limits, '_STRIP_PIXELS', request.param)


def opencv_resized(cells, letterbox, size_wh, interpolation):
    """Return the part of cells with the image, resized by OpenCV as a whole."""
    whole = cells
    if letterbox is PADDED:
        whole = cv2.resize(cells, letterbox.network_wh, interpolation=interpolation)
        top, height = letterbox.pad_top, letterbox.resized_wh[1]
        whole = whole[top : top + height]
    return cv2.resize(whole, size_wh, interpolation=interpolation)


@pytest.mark.parametrize('is_large', [False, True])
@pytest.mark.parametrize('size_wh', [SIZE, (50, 70)])
@pytest.mark.parametrize('letterbox', [STRETCHED, PADDED], ids=['stretched', 'padded'])
def test_classes_equal_those_of_all_resized_logits(
    monkeypatch, strips, letterbox, size_wh, is_large
):
    if is_large:  # the best classes of a large map are not kept
        monkeypatch.setattr(image_limits, 'LARGE_RESULT_PIXELS', 100)
    resized = np.stack(
        [opencv_resized(logits, letterbox, size_wh, cv2.INTER_LINEAR) for logits in LOGITS]
    )
    found = ClassMap(LOGITS, letterbox)
    for _ in range(2):
        np.testing.assert_array_equal(found.class_ids(size_wh), resized.argmax(0))
        best = resized.max(0)
        total = np.zeros_like(best)
        for logits in resized:
            total += np.exp(logits - best)
        expected = np.rint(255 / total).astype(np.uint8)
        np.testing.assert_array_equal(found.confidence(size_wh), expected)
    assert bool(found._best) != is_large


@pytest.mark.parametrize(
    ('upsampling', 'interpolation'),
    [
        ('nearest', cv2.INTER_NEAREST),
        ('bilinear', cv2.INTER_LINEAR),
        ('bicubic', cv2.INTER_CUBIC),
    ],
)
@pytest.mark.parametrize('meaning', ['relative', 'metric', 'inverse'])
def test_depth_equals_that_of_the_whole_resized_map(strips, upsampling, interpolation, meaning):
    for letterbox in (STRETCHED, PADDED):
        expected = opencv_resized(CELLS, letterbox, SIZE, interpolation)
        expected = np.where(np.isfinite(expected), expected, np.nan)
        if meaning == 'metric':
            expected = np.where(expected <= 0, np.nan, expected)
        if meaning == 'inverse':
            expected = 1 / np.clip(expected, np.float32(1e-4), np.float32(1e4))
        is_metric, is_inverse = meaning != 'relative', meaning == 'inverse'
        found = DepthMap(CELLS.copy(), letterbox, upsampling, is_metric, is_inverse)
        depth = found.depth()
        np.testing.assert_array_equal(depth, expected)
        assert depth.flags.c_contiguous
        depth[:] = 0
        np.testing.assert_array_equal(found.grid, CELLS)


def test_depth_with_aligned_corners_equals_interpolation_by_numpy(strips):
    found = DepthMap(CELLS[10:30], STRETCHED, 'bilinear_aligned', is_metric=False).depth()
    rows = np.linspace(0, 19, SIZE[1])
    columns = np.linspace(0, 39, SIZE[0])
    lines = np.stack([np.interp(rows, range(20), line) for line in CELLS[10:30].T], 1)
    expected = np.stack([np.interp(columns, range(40), line) for line in lines])
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_map_in_the_size_of_the_output_does_not_share_its_memory(strips):
    letterbox = Letterbox.fit((40, 40), (40, 40), 'stretch')
    ids = RNG.integers(0, 9, (40, 40), np.uint8)
    for found, make in (
        (DepthMap(CELLS, letterbox, 'bilinear', is_metric=False), DepthMap.depth),
        (ClassMap(LOGITS, letterbox), ClassMap.class_ids),
        (ClassMap(ids, letterbox), ClassMap.class_ids),
    ):
        before = found.grid.copy()
        first = make(found)
        first_values = first.copy()
        first[:] = 3
        np.testing.assert_array_equal(found.grid, before)
        np.testing.assert_array_equal(make(found), first_values)


@pytest.mark.parametrize('are_logits', [False, True])
def test_masks_equal_those_of_whole_boxes(strips, are_logits):
    """SciPy's linear interpolation of each mask's logits is the reference."""
    xyxy = np.array([[0, 0, *SIZE], [30.2, 40.7, 300.4, 200.1], [5, 5, 5.5, 9]], 'f4')
    prototypes = RNG.standard_normal((3, 24, 32)).astype('f4')
    coefficients = np.array([[0], [2], [1]], 'f4') if are_logits else np.eye(3, dtype='f4')
    scale = 32 / SIZE[0], 24 / SIZE[1]
    masks = Masks(xyxy, coefficients, prototypes, MaskGeometry(SIZE, scale, (0, 0)), are_logits)
    numbers, expected = (np.full(SIZE[::-1], 7, np.uint16) for _ in range(2))
    masks.number(numbers)
    expected[:] = 0
    places = np.meshgrid(
        (np.arange(SIZE[1]) + 0.5) * scale[1] - 0.5,
        (np.arange(SIZE[0]) + 0.5) * scale[0] - 0.5,
        indexing='ij',
    )
    near = np.zeros(SIZE[::-1], bool)
    for index in (2, 1, 0):
        which = int(coefficients[index, 0]) if are_logits else index
        logits = ndimage.map_coordinates(prototypes[which], places, order=1, mode='nearest')
        round_first = np.floor if are_logits else np.ceil
        left, top = round_first(xyxy[index, :2]).astype(int)
        right, bottom = np.ceil(xyxy[index, 2:]).astype(int)
        inside = np.zeros(SIZE[::-1], bool)
        inside[top:bottom, left:right] = (logits > 0)[top:bottom, left:right]
        near |= np.abs(logits) < 1e-5
        expected[inside] = index + 1
        one_left, one_top, part = masks.one(index)
        assert (one_left, one_top) == (left, top)
        whole = np.zeros(SIZE[::-1], bool)
        whole[top : top + part.shape[0], left : left + part.shape[1]] = part
        np.testing.assert_array_equal(masks.whole()[index], whole)
        np.testing.assert_array_equal(whole[~near], inside[~near])
    assert near.mean() < 0.01
    np.testing.assert_array_equal(numbers[~near], expected[~near])


class Numbers:
    """Numbered masks from an array."""

    def __init__(self, numbers):
        self.numbers = numbers

    def number(self, out):
        out[:] = self.numbers


def drawings():
    """Return a function that draws each kind of result into an image."""
    size = SIZE[::-1]
    ids = np.repeat(RNG.integers(0, 4, (size[0], 11), np.uint8), 47, 1)
    depth = RNG.uniform(1, 9, size).astype('f4')
    depth[:200, 30:90] = np.nan
    found = replace(Detections.empty(), numbered=Numbers(ids.astype(np.uint16)))
    found = replace(
        found,
        xyxy=np.full((3, 4), 9, 'f4') + np.array([0, 0, 9, 9], 'f4'),
        scores=np.ones(3, 'f4'),
        class_ids=np.arange(3, dtype='i4'),
    )
    names = ['background', 'a', 'b', 'c']
    return {
        'class map': lambda bgr: draw_class_map(bgr, ids, names),
        'depth': lambda bgr: draw_depth(bgr, depth),
        'unknown depth': lambda bgr: draw_depth(bgr, np.full(size, np.nan, 'f4')),
        'masks': lambda bgr: draw_detections(bgr, found, names),
    }


@pytest.mark.parametrize('name', drawings())
def test_drawing_does_not_depend_on_the_strips(monkeypatch, name):
    draw = drawings()[name]
    before = RNG.integers(0, 256, (*SIZE[::-1], 3), np.uint8)
    drawn = []
    for pixels in (2**30, 5000, 1):
        monkeypatch.setattr(image_limits, '_STRIP_PIXELS', pixels)
        drawn.append(before.copy())
        draw(drawn[-1])
    assert (drawn[0][-9:] != before[-9:]).any()
    np.testing.assert_array_equal(drawn[1], drawn[0])
    np.testing.assert_array_equal(drawn[2], drawn[0])


@pytest.mark.parametrize(
    ('size_wh', 'count'), [((1, 1), 1), ((512, 512), 1), ((512, 513), 2), ((2**19, 3), 3)]
)
def test_strips_cover_each_row_once(size_wh, count):
    strips = list(row_strips(size_wh))
    rows = [row for strip in strips for row in range(strip.start, strip.stop)]
    assert rows == list(range(size_wh[1]))
    assert len(strips) == count


def test_16_bit_pixels_are_rounded_to_8_bits():
    values = np.arange(2**16, dtype='<u2')
    frame = Frame.view(values.tobytes(), width=256, height=256, step=512, encoding='mono16')
    expected = np.floor(values.astype(np.float64) / 257 + 0.5)
    np.testing.assert_array_equal(frame_to_bgr(frame)[..., 1].ravel(), expected)


# Bytes per pixel that a process may need to make an image of MAX_RESULT_PIXELS, its result
# included. The comments have the measured bytes: with strips, and without.
BYTES_PER_PIXEL = {
    'class_ids': 11,  # 9.5, 13.4
    'confidence': 15.5,  # 13.5, 17.5
    'depth bicubic': 6.5,  # 4.4, 9.4
    'depth bilinear_aligned': 6.5,  # 4.3, 16.1
    'inverse depth': 6.5,  # 4.5, 9.5
    'masks': 5,  # 2.3, 14.2
    'separate masks': 5,  # 2.3, 14.2
    'drawn class map': 7,  # 4.4, 13.1
    'drawn depth': 10,  # 7.5, 16.1
    'drawn masks': 8,  # 5.3, 17.2
    'mono16': 7,  # 5.1, 8.1
    'saved depth': 9,  # 6.8, 37.5
    'saved shares': 3,  # 1.1, 9.1
}
PROGRAM = """
import os, sys
from pathlib import Path
import cv2
import numpy as np
from trt_perception.images.detections import Detections, MaskGeometry, Masks
from trt_perception.images.drawing import draw_class_map, draw_depth, draw_detections
from trt_perception.images.frame import Frame
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.images.frame_pixels import frame_to_bgr
from trt_perception.offline.tools.parts import image_task_output

width, height = size = 8192, 4096
letterbox = Letterbox.fit(size, (32, 16), 'stretch')
rng = np.random.default_rng(0)
logits = rng.standard_normal((5, 16, 32)).astype('f4')
box = np.array([[0, 0, width, height]], 'f4')


def depth(upsampling, is_inverse=False):
    cells = rng.uniform(1, 2, (16, 32)).astype('f4')
    return DepthMap(cells, letterbox, upsampling, True, is_inverse)


def masks(are_logits):
    geometry = MaskGeometry(size, (32 / width, 16 / height), (0, 0))
    one = np.zeros((1, 1), 'f4') if are_logits else np.ones((1, 1), 'f4')
    return Masks(box, one, logits[:1], geometry, are_logits)


def number(masks):
    masks.number(np.empty((height, width), np.uint16))


def bgr():
    return np.full((height, width, 3), 50, np.uint8)


def draw_masks():
    found = Detections(box, np.ones(1, 'f4'), np.zeros(1, 'i4'), masks=masks(False))
    draw_detections(bgr(), found, ['a'])


def save_shares():
    results = image_task_output.ImageTaskResults(['a', 'b'], Path(), {})
    results._shares(np.ones((height, width), np.uint8))


MAKERS = {
    'class_ids': lambda: ClassMap(logits, letterbox).class_ids(),
    'confidence': lambda: ClassMap(logits, letterbox).confidence(),
    'depth bicubic': lambda: depth('bicubic').depth(),
    'depth bilinear_aligned': lambda: depth('bilinear_aligned').depth(),
    'inverse depth': lambda: depth('bilinear', True).depth(),
    'masks': lambda: number(masks(False)),
    'separate masks': lambda: number(masks(True)),
    'drawn class map': lambda: draw_class_map(
        bgr(), np.ones((height, width), np.uint8), ['a', 'b']
    ),
    'drawn depth': lambda: draw_depth(bgr(), np.ones((height, width), 'f4')),
    'drawn masks': draw_masks,
    'saved depth': lambda: image_task_output._depth_pixels(depth('bilinear')),
    'saved shares': save_shares,
    'mono16': lambda: frame_to_bgr(
        Frame.view(
            bytes(2 * width * height),
            width=width,
            height=height,
            step=2 * width,
            encoding='mono16',
        )
    ),
}


def memory(name):
    with open('/proc/self/status') as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name))


cv2.setNumThreads(1)  # a fork has no threads of OpenCV
for name, make in MAKERS.items():
    sys.stdout.flush()
    if not os.fork():
        before = memory('VmRSS:')
        make()
        print(f'{name}: {(memory("VmHWM:") - before) * 1024 / (width * height):.2f}')
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""


def test_memory_of_the_largest_images_is_bounded():
    assert MAX_RESULT_PIXELS == 8192 * 4096
    process = subprocess.run(
        [sys.executable, '-c', PROGRAM], capture_output=True, text=True, check=True
    )
    needed = dict(line.split(': ') for line in process.stdout.splitlines())
    assert needed.keys() == BYTES_PER_PIXEL.keys(), process.stderr
    too_much = {
        name: f'{value}, expected at most {BYTES_PER_PIXEL[name]}'
        for name, value in needed.items()
        if float(value) > BYTES_PER_PIXEL[name]
    }
    assert not too_much, needed
