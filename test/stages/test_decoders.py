# SPDX-License-Identifier: Apache-2.0
"""Each decoder family finds the known boxes in outputs made for them, also in a batch."""

from __future__ import annotations

import numpy as np
import pytest

from support.oracles.dense_decoding import results_without_errors
from support.oracles.family_outputs import (
    NAMES,
    NETWORK,
    OUTPUTS,
    SOURCES,
    assert_found,
    batched,
    random_objects,
    to_source,
)
from trt_perception.errors import EngineError, OutputError, UnnamedClassError
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.decoders.table import OBJECT_PRESETS
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tensors import TensorSpec
from trt_perception.model.thresholds import Thresholds
from trt_perception.stages.decode import bfloat16_to_float32, decode

# No network output may cause a warning. ResourceWarning may come from other tests, whose files the
# garbage collector closes at any time.
pytestmark = pytest.mark.filterwarnings('error', 'ignore::ResourceWarning')

NAN, INF = float('nan'), float('inf')
NEEDS_NMS = ('dense', 'yolox_raw', 'nanodet')


def spec_for(name, outputs, names=NAMES):
    tensors = tuple(
        TensorSpec(key, tuple(value.shape), str(value.dtype)) for key, value in outputs.items()
    )
    if name == 'torchvision':
        tensors = tensors[:3]
    return ModelSpec(
        TensorSpec('image', (1, 3, NETWORK[1], NETWORK[0]), 'float32'),
        tensors,
        Preprocessing(NETWORK),
        OBJECT_PRESETS[name].decoder,
        names,
        has_manifest=True,
    )


def decode_outputs(name, outputs, letterboxes, thresholds=None, names=NAMES, **limits):
    spec = spec_for(name, outputs, names)
    image_thresholds = [thresholds or Thresholds()] * len(letterboxes)
    return results_without_errors(
        decode(
            list(outputs.values()), spec, letterboxes, image_thresholds, DecodingLimits(**limits)
        )
    )


def test_each_decoder_has_test_outputs():
    assert OUTPUTS.keys() == OBJECT_PRESETS.keys()


@pytest.mark.parametrize('mode', ['letterbox', 'letterbox_top_left', 'stretch'])
@pytest.mark.parametrize('name', OBJECT_PRESETS)
def test_known_boxes_of_a_batch_are_decoded(name, mode):
    rng = np.random.default_rng(11)
    letterboxes = [Letterbox.fit(source, NETWORK, mode) for source in SOURCES]
    image_outputs = [random_objects(rng, count) for count in (6, 3)]
    outputs = batched(name, [OUTPUTS[name](rng, *values) for values in image_outputs])
    found = decode_outputs(name, outputs, letterboxes)
    assert len(found) == 2
    for detections, letterbox, (xyxy, scores, labels) in zip(
        found, letterboxes, image_outputs, strict=True
    ):
        assert_found(detections, to_source(xyxy, letterbox), scores, labels)


@pytest.mark.parametrize('name', OBJECT_PRESETS)
def test_boxes_below_the_threshold_are_dropped(name):
    rng = np.random.default_rng(12)
    outputs = batched(name, [OUTPUTS[name](rng, *random_objects(rng))])
    same = Letterbox.fit(NETWORK, NETWORK, 'stretch')
    (found,) = decode_outputs(name, outputs, [same], Thresholds(confidence_threshold=0.96))
    assert len(found) == 0
    assert (found.xyxy.shape, found.xyxy.dtype) == ((0, 4), np.float32)
    assert (found.scores.dtype, found.class_ids.dtype) == (np.float32, np.int32)


#: Outputs of one image without any row, in the order of the model's outputs.
NO_ROWS = {
    'dense': [(1, 9, 0)],
    'end_to_end': [(1, 0, 6)],
    'efficient_nms': [(1, 1), (1, 0, 4), (1, 0), (1, 0)],
    'onnx_nms_xyxy': [(1, 0, 4), (1, 5, 0), (0, 3)],
    'rtdetr_ultralytics': [(1, 0, 9)],
    'rtdetr_end_to_end': [(1, 0, 6)],
    'detr': [(1, 0, 6), (1, 0, 4)],
    'labels_boxes_scores': [(1, 0), (1, 0, 4), (1, 0)],
    'torchvision': [(0, 4), (0,), (0,)],
}


@pytest.mark.parametrize('name', NO_ROWS)
def test_outputs_without_rows_give_no_boxes(name):
    outputs_with_rows = OUTPUTS[name](
        np.random.default_rng(12), *random_objects(np.random.default_rng(12))
    )
    outputs = {
        key: np.zeros(shape, values.dtype if values.dtype.kind == 'i' else np.float32)
        for (key, values), shape in zip(outputs_with_rows.items(), NO_ROWS[name], strict=True)
    }
    (found,) = decode_outputs(name, outputs, [Letterbox.fit(NETWORK, NETWORK, 'stretch')])
    assert (found.xyxy.shape, found.class_ids.dtype) == ((0, 4), np.int32)


@pytest.mark.parametrize('name', OBJECT_PRESETS)
def test_half_precision_outputs_are_decoded(name):
    rng = np.random.default_rng(13)
    xyxy, scores, labels = random_objects(rng)
    image_outputs = OUTPUTS[name](rng, xyxy, scores, labels)
    outputs = batched(name, [image_outputs], np.float16)
    same = Letterbox.fit(NETWORK, NETWORK, 'stretch')
    (found,) = decode_outputs(name, outputs, [same])
    # float16 has 11 significant bits: half a pixel for a coordinate up to 640. The error of a raw
    # grid is larger, because its sides are logarithms.
    assert_found(found, xyxy, scores, labels, 0.5, 2e-3)


@pytest.mark.parametrize('name', OBJECT_PRESETS)
def test_limits_and_filters_apply_to_all_decoders(name):
    rng = np.random.default_rng(14)
    xyxy, scores, labels = random_objects(rng)
    outputs = batched(name, [OUTPUTS[name](rng, xyxy, scores, labels)])
    same = [Letterbox.fit(NETWORK, NETWORK, 'stretch')]
    (found,) = decode_outputs(name, outputs, same, max_detections=2)
    assert_found(found, xyxy[:2], scores[:2], labels[:2])
    (found,) = decode_outputs(name, outputs, same, max_candidates=3)
    assert_found(found, xyxy[:3], scores[:3], labels[:3])
    # Without NMS, max_detections alone limits the boxes.
    needs_nms = OBJECT_PRESETS[name].decoder.family in NEEDS_NMS
    assert found.left_out == (len(scores) - 3 if needs_nms else 0)
    (found,) = decode_outputs(
        name, outputs, same, Thresholds(confidence_threshold=float(scores[3]))
    )
    assert_found(found, xyxy[:3], scores[:3], labels[:3])
    keep = labels == labels[0]
    (found,) = decode_outputs(name, outputs, same, Thresholds(class_ids=(int(labels[0]),)))
    assert_found(found, xyxy[keep], scores[keep], labels[keep])


@pytest.mark.parametrize('name', OBJECT_PRESETS)
def test_only_families_that_need_nms_suppress_boxes(name):
    rng = np.random.default_rng(15)
    xyxy, scores, _ = random_objects(rng, 3)
    xyxy[1], xyxy[2] = xyxy[0] + 1, xyxy[0] + 2  # three nearly equal boxes
    labels = np.array([1, 1, 2])
    outputs = batched(name, [OUTPUTS[name](rng, xyxy, scores, labels)])
    same = [Letterbox.fit(NETWORK, NETWORK, 'stretch')]
    kept = [0, 2] if OBJECT_PRESETS[name].decoder.family in NEEDS_NMS else [0, 1, 2]
    (found,) = decode_outputs(name, outputs, same)
    assert_found(found, xyxy[kept], scores[kept], labels[kept])
    kept = [0] if OBJECT_PRESETS[name].decoder.family in NEEDS_NMS else [0, 1, 2]
    (found,) = decode_outputs(name, outputs, same, class_agnostic=True)
    assert_found(found, xyxy[kept], scores[kept], labels[kept])


@pytest.mark.parametrize('name', OBJECT_PRESETS)
def test_invalid_values_are_removed(name):
    rng = np.random.default_rng(16)
    good = random_objects(rng)
    outputs = batched(name, [OUTPUTS[name](rng, *good)])
    same = [Letterbox.fit(NETWORK, NETWORK, 'stretch')]
    for bad in (NAN, INF, -INF):
        for key, value in outputs.items():
            if value.dtype.kind != 'f':
                continue
            broken = {**outputs, key: np.full_like(value, bad)}
            spec = spec_for(name, broken)
            (found,) = decode(list(broken.values()), spec, same, [Thresholds()], DecodingLimits())
            if isinstance(found, OutputError):
                assert 'NaN' in found.found  # also if no label is finite
                continue
            # A few infinite values may remain: an infinite size is clipped to the image.
            assert np.isfinite(found.xyxy).all()
            assert np.isfinite(found.scores).all()
            assert ((found.scores > 0.25) & (found.scores <= 1)).all()
    (found,) = decode_outputs(name, outputs, same)
    assert_found(found, *good)


@pytest.mark.parametrize(
    'name',
    ['dense', 'end_to_end', 'rtdetr_end_to_end', 'efficient_nms', 'torchvision', 'tensorflow'],
)
def test_scores_above_1_are_refused(name, golden_messages):
    rng = np.random.default_rng(18)
    xyxy, scores, labels = random_objects(rng)
    same = [Letterbox.fit(NETWORK, NETWORK, 'stretch')]
    outputs = batched(name, [OUTPUTS[name](rng, xyxy, 8 * scores, labels)])
    with golden_messages.raises(OutputError):
        decode_outputs(name, outputs, same)
    # Rounding and quantisation may give scores up to 1.05.
    outputs = batched(name, [OUTPUTS[name](rng, xyxy, scores / scores.max() * 1.05, labels)])
    assert len(decode_outputs(name, outputs, same)[0]) > 0


WITH_LABELS = [
    'end_to_end',
    'rtdetr_end_to_end',
    'efficient_nms',
    'labels_boxes_scores',
    'torchvision',
    'tensorflow',
]


@pytest.mark.parametrize('name', WITH_LABELS)
def test_class_without_a_name_is_an_error(name, golden_messages):
    rng = np.random.default_rng(17)
    xyxy, scores, labels = random_objects(rng)
    same = [Letterbox.fit(NETWORK, NETWORK, 'stretch')]
    labels[3] = 7
    outputs = batched(name, [OUTPUTS[name](rng, xyxy, scores, labels)])
    with golden_messages.raises(UnnamedClassError):
        decode_outputs(name, outputs, same)
    # Labels of boxes below the threshold are not checked.
    assert (
        len(
            decode_outputs(
                name, outputs, same, Thresholds(confidence_threshold=float(scores[2] - 0.01))
            )[0]
        )
        == 3
    )
    labels[3] = -1
    outputs = batched(name, [OUTPUTS[name](rng, xyxy, scores, labels)])
    with golden_messages.raises(EngineError):
        decode_outputs(name, outputs, same)


PIXELS = [
    *('end_to_end', 'efficient_nms', 'onnx_nms_xyxy', 'onnx_nms_cxcywh', 'labels_boxes_scores'),
    'torchvision',
]
NORMALISED = ['rtdetr_ultralytics', 'rtdetr_end_to_end', 'rtdetr', 'detr', 'tensorflow']


def scaled(name, factor):
    """Return outputs of known boxes, with coordinates multiplied by a factor for (x, y)."""
    rng = np.random.default_rng(22)
    outputs = batched(name, [OUTPUTS[name](rng, *random_objects(rng))])
    for key, value in outputs.items():
        if value.ndim > 1 and 'boxes' in key:
            value *= np.array(factor[::-1] * 2 if name == 'tensorflow' else factor * 2, np.float32)
        elif key == 'output0':
            value[..., :4] *= np.array(factor * 2, np.float32)
    return outputs


@pytest.mark.parametrize('name', PIXELS)
def test_normalised_boxes_are_refused_if_pixels_are_expected(name, golden_messages):
    same = [Letterbox.fit(NETWORK, NETWORK, 'stretch')]
    with golden_messages.raises(EngineError):
        decode_outputs(name, scaled(name, (1 / NETWORK[0], 1 / NETWORK[1])), same)
    # One box in pixels is enough, because the other boxes may really be small.
    outputs = scaled(name, (1 / NETWORK[0], 1 / NETWORK[1]))
    for key, value in outputs.items():
        if value.ndim > 1 and ('boxes' in key or key == 'output0'):
            rows = value.reshape(-1, value.shape[-1])
            first = int(np.flatnonzero(np.abs(rows[:, :4]).max(axis=1))[0])
            if name.startswith('onnx_nms'):
                first = int(outputs['selected_indices'][0, 2])
            rows[first, :4] = 100, 100, 200, 200
    assert len(decode_outputs(name, outputs, same)[0]) > 0


@pytest.mark.parametrize('name', NORMALISED)
def test_pixel_boxes_are_refused_if_normalised_boxes_are_expected(name, golden_messages):
    same = [Letterbox.fit(NETWORK, NETWORK, 'stretch')]
    with golden_messages.raises(EngineError):
        decode_outputs(name, scaled(name, NETWORK), same)
    # Boxes may extend beyond the input.
    assert len(decode_outputs(name, scaled(name, (1.5, 1.5)), same)[0]) > 0


@pytest.mark.parametrize('name', [*PIXELS, *NORMALISED])
def test_unit_of_boxes_is_not_checked_without_boxes(name):
    rng = np.random.default_rng(23)
    outputs = batched(name, [OUTPUTS[name](rng, *random_objects(rng, 0))])
    (found,) = decode_outputs(name, outputs, [Letterbox.fit(NETWORK, NETWORK, 'stretch')])
    assert len(found) == 0


@pytest.mark.parametrize('name', ['efficient_nms', 'tensorflow'])
@pytest.mark.parametrize(('reported', 'count'), [(0, 0), (2, 2), (-5, 0), (10**6, 100)])
def test_box_count_is_limited_to_the_available_rows(name, reported, count):
    rng = np.random.default_rng(18)
    outputs = batched(name, [OUTPUTS[name](rng, *random_objects(rng))])
    key = next(iter(outputs)) if name == 'efficient_nms' else 'num_detections'
    outputs[key] = np.full_like(outputs[key], reported)
    boxes = next(key for key in outputs if 'boxes' in key)
    unit = 1 if name == 'tensorflow' else 480
    outputs[boxes][:, :, :2], outputs[boxes][:, :, 2:] = 0.1 * unit, 0.9 * unit
    (found,) = decode_outputs(name, outputs, [Letterbox.fit(NETWORK, NETWORK, 'stretch')])
    assert len(found) == count


def test_nan_box_count_gives_no_boxes():
    outputs = batched(
        'tensorflow',
        [
            OUTPUTS['tensorflow'](
                np.random.default_rng(18), *random_objects(np.random.default_rng(18))
            )
        ],
    )
    outputs['num_detections'][:] = NAN
    (found,) = decode_outputs('tensorflow', outputs, [Letterbox.fit(NETWORK, NETWORK, 'stretch')])
    assert len(found) == 0


def test_query_with_two_sigmoid_classes_gives_two_detections():
    logits = np.full((1, 2, 5), -9, np.float32)
    logits[0, 0, [1, 3]] = 2, 1
    boxes = np.full((1, 2, 4), 0.5, np.float32)
    same = [Letterbox.fit(NETWORK, NETWORK, 'stretch')]
    (found,) = decode_outputs('rtdetr', {'logits': logits, 'pred_boxes': boxes}, same)
    assert found.class_ids.tolist() == [1, 3]


def test_raw_grid_with_wrong_strides_is_refused(golden_messages):
    output = {'output': np.zeros((1, 100, 10), np.float32)}
    with golden_messages.raises(EngineError):
        decode_outputs('yolox_raw', output, [Letterbox.fit(NETWORK, NETWORK, 'stretch')])


def test_distances_from_a_cell_are_clipped_to_the_input():
    logits = np.zeros((1, 6380, 37), np.float32)
    logits[0, 0, 2] = 0.9  # the first cell: its sides have equal weights for 0 to 7 strides
    (found,) = decode_outputs(
        'nanodet_plus', {'output': logits}, [Letterbox.fit(NETWORK, NETWORK, 'stretch')]
    )
    assert_found(found, [[0, 0, 3.5 * 8, 3.5 * 8]], np.array([0.9]), np.array([2]))


def test_indices_without_a_box_are_ignored():
    rng = np.random.default_rng(19)
    boxes = random_objects(rng)
    outputs = batched('onnx_nms_xyxy', [OUTPUTS['onnx_nms_xyxy'](rng, *boxes)])
    wrong = [[-1, -1, -1], [0, -1, 3], [0, 5, 3], [0, 0, 50], [0, 0, -1], [1, 0, 0]]
    outputs['selected_indices'] = np.concatenate([outputs['selected_indices'], wrong])
    (found,) = decode_outputs(
        'onnx_nms_xyxy', outputs, [Letterbox.fit(NETWORK, NETWORK, 'stretch')]
    )
    assert_found(found, *boxes)


def test_bfloat16_is_converted_to_float32():
    values = np.array([0, 1, -2.5, 1 / 3, 640, 1e30, INF], np.float32)
    found = bfloat16_to_float32((values.view(np.uint32) >> 16).astype(np.uint16))
    assert found.dtype == np.float32
    assert found[:3].tolist() == [0, 1, -2.5]
    assert np.allclose(found[3:6], values[3:6], rtol=2**-7)
    assert found[6] == INF
