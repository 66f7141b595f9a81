# SPDX-License-Identifier: Apache-2.0
"""Masks come from coefficients and prototypes. They are cut at their boxes, in image pixels."""

import cv2
import numpy as np
import pytest
from scipy import ndimage

from support.oracles.dense_decoding import results_without_errors
from trt_perception.errors import OutputError
from trt_perception.images.detections import MaskGeometry, Masks
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tasks.segment import Segment
from trt_perception.model.tensors import TensorSpec
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.evaluation.coco.run_lengths import mask_run_lengths
from trt_perception.stages.decode import decode

NETWORK = (64, 48)


def decode_masks(source, boxes, coefficients, prototypes, confidence=0.25, mode='letterbox'):
    """Return the detections of boxes (left, top, right, bottom) in network pixels."""
    rows = [
        [*box, 0.9 - 0.1 * index, 0, *coefficients_of_box]
        for index, (box, coefficients_of_box) in enumerate(zip(boxes, coefficients, strict=True))
    ]
    output = np.array([rows], np.float32)
    spec = ModelSpec(
        TensorSpec('images', (1, 3, 48, 64), 'float32'),
        (
            TensorSpec('output1', (1, *prototypes.shape), 'float32'),
            TensorSpec('output0', output.shape, 'float32'),
        ),
        Preprocessing(NETWORK),
        PRESETS['end_to_end'].decoder,
        ('ship',),
        has_manifest=True,
        task=Segment(mask_coefficients=len(prototypes)),
    )
    letterbox = Preprocessing(NETWORK, mode).letterbox(source)
    outputs = [prototypes[None].astype(np.float32), output]
    thresholds = Thresholds(confidence_threshold=confidence)
    (found,) = results_without_errors(
        decode(outputs, spec, [letterbox], [thresholds], DecodingLimits(9))
    )
    outputs[0][:] = np.nan  # clear the outputs for the next frame
    return found


def smooth(seed=3, count=4):
    """Return prototypes (count, 12, 16) whose weighted sums have both signs."""
    rng = np.random.default_rng(seed)
    rough = rng.normal(size=(count, 3, 4)).astype(np.float32)
    return np.stack(
        [cv2.resize(prototype, (16, 12), interpolation=cv2.INTER_CUBIC) for prototype in rough]
    )


@pytest.mark.parametrize(
    ('source', 'rows'),
    [((64, 48), slice(0, 12)), ((128, 64), slice(2, 10)), ((640, 480), slice(0, 12))],
)
def test_logits_are_interpolated_with_half_pixel_centres(source, rows):
    """The result equals OpenCV's if the padding is whole prototype pixels."""
    prototypes, coefficients = smooth(), np.array([1, -0.5, 2, 0.25], np.float32)
    found = decode_masks(source, [[0, 0, 64, 48]], [coefficients], prototypes)
    logits = np.tensordot(coefficients, prototypes, axes=1)[rows]
    expected = cv2.resize(logits, source, interpolation=cv2.INTER_LINEAR) > 0
    assert 0.1 < expected.mean() < 0.9
    (mask,) = found.masks.whole()
    assert (mask != expected).mean() < 1e-4  # logits within rounding of 0 may differ


def test_mask_is_cut_off_at_its_box():
    ones = np.ones((1, 12, 16), np.float32)
    found = decode_masks((64, 48), [[10.2, 5, 20, 30.7]], [[1]], ones)
    left, top, part = found.masks.one(0)
    assert (left, top, part.shape) == (11, 5, (26, 9)), 'pixels from 10.2 on, and before 20'
    assert part.all()
    (mask,) = found.masks.whole()
    assert mask.sum() == part.size
    assert mask[5:31, 11:20].all()


@pytest.mark.parametrize('source', [(64, 48), (61, 47), (7, 90), (90, 7), (1, 1), (333, 77)])
@pytest.mark.parametrize('mode', ['letterbox', 'letterbox_top_left', 'stretch', 'center_crop'])
def test_masks_fit_images_of_any_size(source, mode):
    found = decode_masks(
        source, [[0, 0, 64, 48], [3, 3, 60, 44]], np.eye(2, 4), smooth(), mode=mode
    )
    masks = found.masks.whole()
    assert masks.shape == (len(found), source[1], source[0])
    whole = [-6400, -4800, 6400, 4800]  # also the part of the image that a crop removes
    ones = decode_masks(source, [whole], [[1]], np.ones((1, 12, 16), np.float32), mode=mode)
    assert ones.masks.whole().all()


def test_mask_of_a_cropped_image_is_at_the_place_of_its_pixels():
    prototypes, coefficients = smooth(), np.array([1, -0.5, 2, 0.25], np.float32)
    source = (128, 64)  # the resized image has 96 x 48 pixels, of which 16 are cut on each side
    found = decode_masks(source, [[0, 0, 64, 48]], [coefficients], prototypes, mode='center_crop')
    logits = np.tensordot(coefficients, prototypes, axes=1)
    x = ((np.arange(22, 106) + 0.5) * 96 / 128 - 16) * 16 / 64 - 0.5
    y = (np.arange(64) + 0.5) * 12 / 64 - 0.5
    grid = np.meshgrid(y, x, indexing='ij')
    expected = ndimage.map_coordinates(logits, grid, order=1, mode='nearest') > 0
    (mask,) = found.masks.whole()
    assert 0.1 < expected.mean() < 0.9
    assert (mask[:, 22:106] != expected).mean() < 1e-3
    assert not mask[:, :21].any()


@pytest.mark.parametrize('source', [(64, 48), (100, 30)])
def test_prototypes_may_be_finer_than_the_input(source):
    fine = np.stack(
        [cv2.resize(prototype, (128, 96), interpolation=cv2.INTER_CUBIC) for prototype in smooth()]
    )
    found = decode_masks(source, [[0, 0, 64, 48]], [[1, -0.5, 2, 0.25]], fine, mode='stretch')
    logits = np.tensordot(np.array([1, -0.5, 2, 0.25], np.float32), fine, axes=1)
    expected = cv2.resize(logits, source, interpolation=cv2.INTER_LINEAR) > 0
    (mask,) = found.masks.whole()
    assert (mask != expected).mean() < 1e-3


def test_prototypes_without_a_pixel_are_refused(golden_messages):
    nothing = np.zeros((1, 0, 16), np.float32)
    with golden_messages.raises(OutputError):
        decode_masks((64, 48), [[0, 0, 64, 48]], [[1]], nothing)
    assert (
        len(decode_masks((64, 48), [[0, 0, 64, 48]], [[1]], np.zeros((1, 0, 0)), confidence=0.95))
        == 0
    )


def test_better_detection_covers_the_worse_one():
    ones = np.ones((1, 12, 16), np.float32)
    found = decode_masks((64, 48), [[0, 0, 20, 20], [10, 10, 30, 30]], [[1], [1]], ones)
    numbers = np.full((48, 64), 7, np.uint16)
    found.masks.number(numbers)
    assert numbers[15, 15] == 1
    assert numbers[25, 25] == 2
    assert numbers[40, 40] == 0
    found.take(np.array([1])).masks.number(numbers)
    assert numbers[15, 15] == 1


@pytest.mark.filterwarnings('error', 'ignore::ResourceWarning')
@pytest.mark.parametrize('bad', [np.nan, -np.inf])
def test_invalid_logit_is_in_no_mask(bad):
    prototypes = np.full((1, 12, 16), bad, np.float32)
    found = decode_masks((64, 48), [[0, 0, 64, 48]], [[1]], prototypes)
    assert len(found) == 1
    assert not found.masks.whole().any()
    assert len(decode_masks((64, 48), [[0, 0, 64, 48]], [[np.inf]], np.ones((1, 12, 16)))) == 0


def test_empty_output_gives_an_empty_result():
    found = decode_masks((64, 48), [[0, 0, 9, 9]], [[1]], smooth(count=1), confidence=0.95)
    assert len(found.masks) == 0
    assert found.masks.whole().shape == (0, 48, 64)
    numbers = np.ones((48, 64), np.uint16)
    found.masks.number(numbers)
    assert not numbers.any()


def masks_from_pixels(pixels):
    """Return Masks with one mask, in which each prototype pixel is one of the given pixels."""
    height, width = pixels.shape
    box = np.array([[0, 0, width, height]], np.float32)
    prototypes = np.where(pixels, 1, -1).astype(np.float32)[None]
    coefficients = np.ones((1, 1), np.float32)
    return Masks(
        box, coefficients, prototypes, MaskGeometry((width, height), (1.0, 1.0), (0.0, 0.0))
    )


@pytest.mark.parametrize('seed', range(8))
def test_run_lengths_equal_coco(seed):
    mask = pytest.importorskip('pycocotools.mask')
    rng = np.random.default_rng(seed)
    pixels = rng.random((37, 53)) < (0, 1, 0.5, 0.1, 0.9, 0.01, 0.99, 0.3)[seed]
    found = mask_run_lengths(masks_from_pixels(pixels), 0)
    expected = mask.encode(np.asfortranarray(pixels.astype(np.uint8)))
    assert found == {'size': [37, 53], 'counts': expected['counts'].decode()}
