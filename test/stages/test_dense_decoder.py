# SPDX-License-Identifier: Apache-2.0
"""Dense decoding of outputs for known boxes, compared with a plain Python decoder."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from support.oracles.dense_decoding import decode_dense
from support.properties import given, settings, st
from trt_perception.errors import OutputError
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.decoders.anchors import Dense
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.thresholds import Thresholds

NETWORK = (640, 640)
UNCHANGED_LETTERBOX = Letterbox.fit(NETWORK, NETWORK, 'letterbox')
FULL_HD_LETTERBOX = Letterbox.fit(
    (1920, 1080), NETWORK, 'letterbox'
)  # scale 1/3, padding of 140 rows above
NAN, INF = math.nan, math.inf
DENSE = [name for name, preset in PRESETS.items() if isinstance(preset.decoder, Dense)]

# No network output may cause a warning. ResourceWarning may come from other tests, whose files the
# garbage collector closes at any time.
pytestmark = pytest.mark.filterwarnings('error', 'ignore::ResourceWarning')


def output(anchors, decoder='dense', dtype=np.float32):
    """Return an output tensor with anchors of (cx, cy, w, h, [objectness,] class scores...)."""
    columns = 5 + PRESETS[decoder].decoder.objectness
    table = np.array(anchors, dtype).reshape(-1, len(anchors[0]) if anchors else columns)
    return (table if PRESETS[decoder].decoder.transposed else table.T)[None]


def decode(anchors, letterbox=UNCHANGED_LETTERBOX, decoder='dense', dtype=np.float32, **options):
    names = {field.name for field in dataclasses.fields(Thresholds)} & options.keys()
    live = {name: options.pop(name) for name in names}
    options.setdefault('max_detections', 300)
    return decode_dense(
        output(anchors, decoder, dtype),
        PRESETS[decoder].decoder,
        letterbox,
        Thresholds(**live),
        **options,
    )


def rounded_rows(detections):
    """Return rows of box, rounded score and class."""
    return [
        ([round(float(side), 3) for side in box], round(float(score), 4), int(class_id))
        for box, score, class_id in zip(
            detections.xyxy, detections.scores, detections.class_ids, strict=True
        )
    ]


@pytest.mark.parametrize('decoder', DENSE)
@pytest.mark.parametrize('dtype', [np.float32, np.float16])
def test_output_without_anchors_gives_no_boxes(decoder, dtype):
    found = decode([], decoder=decoder, dtype=dtype)
    assert len(found) == 0
    assert found.xyxy.shape == (0, 4)
    assert (found.xyxy.dtype, found.scores.dtype) == (np.float32, np.float32)
    assert found.class_ids.dtype == np.int32


def test_boxes_below_the_threshold_are_dropped():
    assert len(decode([[100, 100, 20, 20, 0.1, 0.2]] * 8)) == 0


@pytest.mark.parametrize('decoder', DENSE)
def test_known_boxes_are_decoded(decoder):
    scores = [[0.9, 0.1, 0.0], [0.2, 0.3, 0.8]]
    boxes = [[320, 320, 100, 50], [60.5, 400.25, 33, 17.5]]
    middle = [[0.5]] if PRESETS[decoder].decoder.objectness else [[]]
    anchors = [box + middle[0] + score for box, score in zip(boxes, scores, strict=True)]
    found = decode(anchors, FULL_HD_LETTERBOX, decoder)
    factor = 0.5 if PRESETS[decoder].decoder.objectness else 1
    assert rounded_rows(found) == [
        ([810, 465, 1110, 615], 0.9 * factor, 0),
        ([132, 754.5, 231, 807], 0.8 * factor, 2),
    ]
    assert (found.xyxy.dtype, found.scores.dtype) == (np.float32, np.float32)
    assert found.class_ids.dtype == np.int32


def test_boxes_are_mapped_to_the_source_within_0_001_pixels():
    # Encode known source boxes as network outputs, for several geometries.
    rng = np.random.default_rng(30)
    for source, mode in itertools.product(
        [(1920, 1080), (640, 480), (53, 37), (37, 900)], ['letterbox', 'stretch']
    ):
        letterbox = Letterbox.fit(source, NETWORK, mode)
        width, height = source
        for _ in range(20):
            left, right = np.sort(rng.uniform(0, width, 2))
            top, bottom = np.sort(rng.uniform(0, height, 2))
            if right - left < 1 or bottom - top < 1:
                continue
            ratio_x, ratio_y = (n / s for n, s in zip(letterbox.resized_wh, source, strict=True))
            anchor = [
                (left + right) / 2 * ratio_x + letterbox.pad_left,
                (top + bottom) / 2 * ratio_y + letterbox.pad_top,
                (right - left) * ratio_x,
                (bottom - top) * ratio_y,
                0.75,
            ]
            (box,) = decode([anchor], letterbox).xyxy
            assert np.abs(box - [left, top, right, bottom]).max() < 1e-3


def test_half_precision_output_is_decoded_in_single_precision():
    # float16 can represent neither the product of the scores nor the side 949.9375 of the box.
    anchors = [[1000.5, 300, 101.125, 7, 0.3, 0.8]]
    letterbox = Letterbox.fit((2048, 640), (2048, 640), 'stretch')
    found = decode(anchors, letterbox, 'dense_objectness', np.float16, confidence_threshold=0.1)
    objectness, class_score = np.float16(0.3), np.float16(0.8)
    assert found.scores[0] == np.float32(objectness) * np.float32(class_score)
    assert found.scores[0] != objectness * class_score
    assert found.xyxy[0].tolist() == [949.9375, 296.5, 1051.0625, 303.5]


def test_first_class_wins_among_equal_scores():
    assert decode([[50, 50, 9, 9, 0.4, 0.9, 0.8]]).class_ids.tolist() == [1]
    assert decode([[50, 50, 9, 9, 0.4, 0.9, 0.9]]).class_ids.tolist() == [1]
    # Each anchor gives one detection. The second best class is not reported.
    assert len(decode([[50, 50, 9, 9, 0.95, 0.9, 0.9]])) == 1


@pytest.mark.parametrize('threshold', [0.0, 0.25, 0.3, 0.5, 0.999])
def test_score_equal_to_the_threshold_is_dropped(threshold):
    at = np.float32(threshold)
    above = np.nextafter(at, np.float32(2))
    found = decode([[50, 50, 9, 9, at], [80, 80, 9, 9, above]], confidence_threshold=threshold)
    assert found.scores.tolist() == [above]


def test_threshold_applies_to_score_times_objectness():
    anchors = [[50, 50, 9, 9, 0.5, 0.6], [80, 80, 9, 9, 0.9, 0.6], [99, 99, 9, 9, 0.0, 1.0]]
    found = decode(anchors, decoder='dense_objectness', confidence_threshold=0.4)
    assert rounded_rows(found) == [([75.5, 75.5, 84.5, 84.5], 0.54, 0)]


@pytest.mark.parametrize(
    'anchor',
    [
        [NAN, 50, 9, 9, 0.9],
        [50, NAN, 9, 9, 0.9],
        [50, 50, NAN, 9, 0.9],
        [50, 50, 9, NAN, 0.9],
        [INF, 50, 9, 9, 0.9],
        [50, -INF, 9, 9, 0.9],
        [50, 50, INF, 9, 0.9],
        [INF, 50, INF, 9, 0.9],
        [3e38, 50, 3e38, 9, 0.9],  # the corner exceeds float32
        [50, 50, 0, 9, 0.9],
        [50, 50, 9, 0, 0.9],
        [50, 50, -9, 9, 0.9],
        [50, 50, 9, -9, 0.9],
        [50, 50, -9, -9, 0.9],
        [1e6, 50, 1e-3, 9, 0.9],  # float32 cannot represent the side at this place
        [50, 50, 9, 9, NAN],
        [50, 50, 9, 9, INF],
        [50, 50, 9, 9, -INF],
        [50, 50, 9, 9, -0.9],
    ],
)
def test_invalid_box_or_score_is_removed_first(anchor):
    good = [300, 300, 20, 20, 0.5]
    expected = ([290, 290, 310, 310], 0.5, 0)
    assert rounded_rows(decode([anchor, [50, 50, 9, 9, 0.1]])) == []
    assert rounded_rows(decode([anchor, good, anchor])) == [expected]
    # Invalid anchors are removed before max_candidates applies.
    assert rounded_rows(decode([anchor, good], max_candidates=1, max_detections=1)) == [expected]


def test_invalid_objectness_drops_the_anchor():
    good = [300, 300, 20, 20, 0.9, 0.5]
    for objectness in (NAN, INF, -INF, -1.0, 3e38):
        bad = [50, 50, 9, 9, objectness, 0.0 if objectness == INF else 2.0]
        found = decode([bad, good], decoder='dense_objectness')
        assert 0.45 in [row[1] for row in rounded_rows(found)]
        assert np.isfinite(found.scores).all()


def test_invalid_class_score_drops_the_anchor():
    # NaN cannot be compared, so the anchor has no best class.
    anchors = [[50, 50, 9, 9, 0.9, NAN], [50, 50, 9, 9, NAN, 0.9], [50, 50, 9, 9, 0.1, 0.1]]
    assert rounded_rows(decode(anchors)) == []


@pytest.mark.parametrize('class_ids', [(), (1,)])
def test_scores_that_are_all_nan_are_an_error(class_ids):
    anchors = [[50, 50, 9, 9, NAN, NAN], [90, 90, 9, 9, 0.9, NAN]]

    with pytest.raises(OutputError):
        decode(anchors, class_ids=class_ids)


def test_class_filter_applies_to_the_best_class():
    anchors = [[50, 50, 9, 9, 0.9, 0.8], [90, 90, 9, 9, 0.3, 0.7]]
    assert decode(anchors).class_ids.tolist() == [0, 1]
    assert decode(anchors, class_ids=(0,)).class_ids.tolist() == [0]
    # The second best class of the first anchor does not take its place.
    assert rounded_rows(decode(anchors, class_ids=(1,))) == [([85.5, 85.5, 94.5, 94.5], 0.7, 1)]
    assert len(decode(anchors, class_ids=(5,))) == 0


def test_boxes_of_excluded_classes_neither_count_nor_suppress_other_boxes():
    anchors = [[50, 50, 9, 9, 0.9, 0.0], [50, 50, 9, 9, 0.0, 0.8]]
    found = decode(anchors, class_ids=(1,), max_candidates=1, class_agnostic=True)
    assert found.class_ids.tolist() == [1]


def test_max_candidates_applies_before_nms_and_max_detections_after():
    same = [[50, 50, 20, 20, 0.9 - i / 100] for i in range(4)]
    other = [[200, 200, 20, 20, 0.5]]
    assert len(decode(same + other)) == 2
    assert len(decode(same + other, max_candidates=4)) == 1  # the other box exceeds max_candidates
    assert len(decode(same + other, max_candidates=5)) == 2
    assert decode(same + other, max_detections=1).scores.tolist() == [np.float32(0.9)]


@pytest.mark.parametrize('limit', [1, 2, 4, 5, 1000])
def test_boxes_beyond_max_candidates_are_counted(limit):
    wanted = [[50 + 30 * i, 50, 20, 20, 0.9 - i / 100, 0] for i in range(4)]
    others = [
        *([50, 50, 20, 20, 0.2, 0.1], [50, 50, 20, 20, 0, 0.9]),  # score too low, other class
        *([50, 50, -1, 20, 0.9, 0], [NAN, 50, 20, 20, 0.9, 0], [50, 50, 20, 0, 0.9, 0]),
    ]
    found = decode(wanted + others, class_ids=(0,), max_candidates=limit, max_detections=2)
    assert found.left_out == max(0, 4 - limit)
    assert found.take(np.array([], int)).left_out == found.left_out


def test_default_is_1024_candidates_and_nms_per_class():
    anchors = [[10 * (i % 60) + 5, 10 * (i // 60) + 5, 8, 8, 0.5] for i in range(1100)]
    found = decode(anchors, max_detections=2000)
    assert (len(found), found.left_out) == (1024, 76)
    assert decode(anchors[:1024]).left_out == 0
    assert len(decode([[50, 50, 9, 9, 0.9, 0.0], [50, 50, 9, 9, 0.0, 0.8]])) == 2


def test_max_detections_also_counts_boxes_outside_the_image():
    # The box is in the padding above the image. After clipping it is empty.
    outside, inside = [320, 50, 20, 20, 0.9], [320, 320, 20, 20, 0.8]
    assert len(decode([outside, inside], FULL_HD_LETTERBOX)) == 1
    assert len(decode([outside, inside], FULL_HD_LETTERBOX, max_detections=1)) == 0


def test_boxes_are_clipped_after_suppression():
    # After clipping, both boxes would be equal. Before clipping, their IoU is 1/2.
    anchors = [[0, 320, 100, 100, 0.9], [-50, 320, 200, 100, 0.8]]
    found = decode(anchors)
    assert rounded_rows(found) == [([0, 270, 50, 370], 0.9, 0)]  # 1/2 is above the threshold 0.45
    found = decode(anchors, iou_threshold=0.6)
    assert rounded_rows(found) == [([0, 270, 50, 370], 0.9, 0), ([0, 270, 50, 370], 0.8, 0)]


def test_equal_scores_keep_the_anchor_order():
    anchors = [[50 + 40 * i, 50, 20, 20, 0.7] for i in (3, 1, 2, 0)]
    assert decode(anchors).xyxy[:, 0].tolist() == [160, 80, 120, 40]
    assert decode(anchors, max_candidates=2).xyxy[:, 0].tolist() == [160, 80]
    same = [[50, 50, 20, 20, 0.7, 0.0], [50, 50, 20, 20, 0.0, 0.7]]
    assert decode(same, class_agnostic=True).class_ids.tolist() == [0]


def test_decoding_does_not_change_the_output():
    tensor = output([[50, 50, 9, 9, 0.9], [NAN, 1, 1, 1, 0.8]])
    before = tensor.copy()
    tensor.flags.writeable = False
    decode_dense(
        tensor, PRESETS['dense'].decoder, UNCHANGED_LETTERBOX, Thresholds(), max_detections=9
    )
    assert np.array_equal(tensor, before, equal_nan=True)


def decode_in_plain_python(
    anchors, confidence, iou, class_ids, max_candidates, max_detections, agnostic
):
    """Decode anchors step by step. Small whole numbers are exact in each data type."""
    found = []
    for cx, cy, w, h, *scores in anchors:
        score = max(scores)
        class_id = scores.index(score)
        if score > confidence and (not class_ids or class_id in class_ids) and w > 0 and h > 0:
            found.append(([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], score, class_id))
    found = sorted(found, key=lambda row: -row[1])[:max_candidates]
    kept = []
    for row in found:
        rivals = [other for other in kept if agnostic or other[2] == row[2]]
        if not any(overlap(row[0], other[0]) > iou for other in rivals):
            kept.append(row)
    result = []
    for (left, top, right, bottom), score, class_id in kept[:max_detections]:
        box = [max(0, left), max(0, top), min(64, right), min(64, bottom)]
        if box[2] > box[0] and box[3] > box[1]:
            result.append((box, score, class_id))
    return result


def overlap(a, b):
    width = max(0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0, min(a[3], b[3]) - max(a[1], b[1]))
    both = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - width * height
    return width * height / both


coordinates = st.integers(-8, 72)
sides = st.integers(-1, 12).map(lambda size: 4 * size)
scores = st.integers(0, 8).map(lambda eighths: eighths / 8)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(coordinates, coordinates, sides, sides, scores, scores), max_size=20),
    scores,
    st.sampled_from([0.25, 0.5]),
    st.sampled_from([(), (0,), (1,)]),
    st.integers(1, 12),
    st.integers(1, 6),
    st.booleans(),
    st.sampled_from(['dense', 'dense_transposed']),
    st.sampled_from([np.float32, np.float16]),
)
def test_random_outputs_agree_with_plain_python(
    anchors, confidence, iou, class_ids, candidates, detections, agnostic, decoder, dtype
):
    anchors = [list(anchor) for anchor in anchors]
    tensor = output(anchors, decoder, dtype) if anchors else np.empty((1, 6, 0), dtype)
    if not anchors and PRESETS[decoder].decoder.transposed:
        tensor = tensor.transpose(0, 2, 1)
    found = decode_dense(
        tensor,
        PRESETS[decoder].decoder,
        Letterbox.fit((64, 64), (64, 64), 'letterbox'),
        Thresholds(confidence, iou, class_ids=class_ids),
        max_detections=detections,
        max_candidates=candidates,
        class_agnostic=agnostic,
    )
    expected = decode_in_plain_python(
        anchors, confidence, iou, class_ids, candidates, detections, agnostic
    )
    assert rounded_rows(found) == [([float(side) for side in box], s, c) for box, s, c in expected]
