# SPDX-License-Identifier: Apache-2.0
"""Padding of DETR models gives the inputs and boxes that were recorded with transformers.

test/data/exports/record.py wrote padding.npz and the export deformable_detr_mask. The pictures
have the sizes of cameras and do not fill the network's input of 96 x 64.
"""

import random
import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from support.gpu.emulated_kernels import emulated_kernels
from support.gpu.host_kernels import needs_compiler
from support.models.open_model import open_by_parameters
from support.oracles.task_outputs import TASKS, spec_of
from trt_perception.images.frame import Frame
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.input_layout import image_mask
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tensors import TensorSpec
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.evaluation.offline_detection import detect_batch
from trt_perception.parameters.values import ParameterValues
from trt_perception.stages.frame_header import batch_table

EXPORTS = Path(__file__).parents[1] / 'data' / 'exports'
FAMILIES = ['detr', 'deformable_detr', 'deformable_detr_mask']
LEVEL = 1 / 255 / 0.224
#: The processor rounds 517 x 333 down to 61 rows. The package rounds 61.8 to 62.
OTHER_GEOMETRY = (517, 333)


def recorded(name):
    with np.load(EXPORTS / name) as content:
        return dict(content)


def cameras():
    """Return for each recorded picture its size, its pixels in the input, and the pixel mask."""
    told = recorded('padding.npz')
    sizes = [tuple(size) for size in told['sizes'].tolist()]
    return list(zip(sizes, told['pixels'], told['mask'], strict=True))


def picture(width, height):
    """Return the frame that record.py gave to the processors."""
    colours = np.frombuffer(random.Random(7).randbytes(8 * 12 * 3), np.uint8).reshape(8, 12, 3)
    rows, columns = np.arange(height) * 8 // height, np.arange(width) * 12 // width
    pixels = np.ascontiguousarray(colours[rows][:, columns])
    return Frame.view(pixels, width=width, height=height, step=3 * width, encoding='rgb8')


def opened(family, tmp_path, **values):
    folder = tmp_path / family
    shutil.copytree(EXPORTS / family, folder)
    return open_by_parameters(ParameterValues(engine_path=str(folder / 'model.onnx'), **values))


@pytest.mark.parametrize('family', FAMILIES)
def test_padding_is_zero_in_the_tensor_as_in_the_processors(family, tmp_path):
    pipeline = opened(family, tmp_path)
    for size, pixels, mask in cameras():
        tensor, _ = pipeline.preprocess([picture(*size)])
        if size == OTHER_GEOMETRY:
            assert (tensor[0, :, 62:] == 0).all()
            continue
        assert 0.1 < mask.mean() < 0.9
        assert (tensor[0, :, ~mask] == 0).all()
        # When torch resizes bytes, its weights have fewer bits than the weights of Pillow.
        assert np.abs(tensor[0] - pixels).max() < 1.001 * LEVEL


def test_boxes_on_padded_images_equal_those_of_transformers(tmp_path):
    """Each box has a partner with IoU 0.99, the same class, and a score within 0.002."""
    told = recorded('deformable_detr_mask/expected.npz')
    pipeline = opened('deformable_detr_mask', tmp_path, max_detections=30)
    frames = [picture(*size) for size, _, _ in cameras()]

    found = detect_batch(pipeline, frames, Thresholds(confidence_threshold=0.0))

    for index, frame in enumerate(frames):
        if (frame.width, frame.height) == OTHER_GEOMETRY:
            continue
        wanted = told['xyxy'][index].clip(0, (frame.width, frame.height) * 2)
        left = list(range(len(found[index])))
        for box, score, label in zip(
            wanted, told['scores'][index], told['labels'][index], strict=True
        ):
            match = next(
                at
                for at in left
                if overlap(found[index].xyxy[at], box) >= 0.99
                and found[index].class_ids[at] == label
                and abs(found[index].scores[at] - score) < 0.002
            )
            left.remove(match)
        assert not left


def overlap(one, other):
    low, high = np.maximum(one[:2], other[:2]), np.minimum(one[2:], other[2:])
    common = np.prod((high - low).clip(0))
    return common / (np.prod(one[2:] - one[:2]) + np.prod(other[2:] - other[:2]) - common)


def test_pixel_mask_equals_that_of_the_processors():
    for size, _, mask in cameras():
        if size != OTHER_GEOMETRY:
            letterbox = Letterbox.fit(size, (96, 64), 'letterbox_top_left')
            np.testing.assert_array_equal(image_mask(letterbox, (64, 96)), mask)
            smaller = cv2.resize(mask.astype(np.uint8), (32, 16), interpolation=cv2.INTER_NEAREST)
            np.testing.assert_array_equal(image_mask(letterbox, (16, 32)), smaller)


@needs_compiler
@pytest.mark.parametrize(
    ('shape', 'dtype'),
    [((64, 96), 'int64'), ((16, 32), 'bool'), ((64, 96), 'int32'), ((64, 96), 'float32')],
)
@pytest.mark.parametrize('mode', ['letterbox_top_left', 'letterbox', 'center_crop'])
def test_kernel_writes_the_pixel_mask_of_each_frame(shape, dtype, mode):
    spec = spec_of(TASKS['detect'], (96, 64), 3, 100)
    mask = TensorSpec('pixel_mask', (4, *shape), dtype)
    spec = replace(spec, auxiliary_inputs=(mask,))
    kernels = emulated_kernels(spec)
    # Some images are padded on one axis and cropped on the other.
    preprocessing = Preprocessing((96, 64), mode, shorter_side=70)
    letterboxes = [preprocessing.letterbox(size) for size, _, _ in cameras()]
    headers = []
    for (size, _, _), letterbox in zip(cameras(), letterboxes, strict=True):
        header = np.zeros(kernels.header.size, np.uint8)
        content = kernels.header.content(picture(*size), letterbox, Thresholds())
        kernels.header.write(header, content, header.size)
        headers.append(header)
    table = batch_table([header.ctypes.data for header in headers])
    found = np.full(mask.shape, 1, dtype)
    found[:3] = 0

    kernels.mark_image(table.ctypes.data, found.ctypes.data, 4, None)

    for one, letterbox in zip(found, letterboxes, strict=False):
        np.testing.assert_array_equal(one, image_mask(letterbox, shape))
    assert found[3].all()  # a place without a frame keeps its values
