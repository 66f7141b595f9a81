# SPDX-License-Identifier: Apache-2.0
"""Test the tracker: association, confirmation, ids, and the ends of tracks."""

import sys

import numpy as np
import pytest

from support.optional_packages import needs
from support.properties import given, settings, st
from trt_perception.errors import ConfigError
from trt_perception.images.detections import Detections, MaskGeometry, Masks
from trt_perception.tracking.tracker import NO_ID, Tracker

pytestmark = needs('scipy')


def detections(*rows, **more):
    """Return detections of 40 x 80 boxes from (left, score) or (left, score, class)."""
    rows = [(*row, 0)[:3] for row in rows]
    left = np.array([row[0] for row in rows], np.float32)
    return Detections(
        np.stack([left, 0 * left + 100, left + 40, 0 * left + 180], axis=1).reshape(-1, 4),
        np.array([row[1] for row in rows], np.float32),
        np.array([row[2] for row in rows], np.int32),
        **more,
    )


def ids_of(tracker, images, start_s=0.0, step_s=1 / 30):
    """Return the ids of the result of each image, at even intervals."""
    return [
        tracker.update(image, start_s + index * step_s).ids.tolist()
        for index, image in enumerate(images)
    ]


def confirmed(**values):
    """Return a tracker with a confirmed track, number 1, at left = 100, stamp 1/30."""
    tracker = Tracker(**values)
    assert ids_of(tracker, [detections((100, 0.9))] * 2) == [[NO_ID], [1]]
    return tracker


def test_second_detection_confirms_a_track():
    assert ids_of(Tracker(), [detections((100, 0.9))] * 3) == [[NO_ID], [1], [1]]
    assert ids_of(Tracker(min_hits=1), [detections((100, 0.9))] * 2) == [[1], [1]]
    three = ids_of(Tracker(min_hits=3), [detections((100, 0.9))] * 3)
    assert three == [[NO_ID], [NO_ID], [1]]


def test_unconfirmed_track_ends_at_an_image_without_its_detection():
    one = detections((100, 0.9))
    assert ids_of(Tracker(), [one, Detections.empty(), one, one]) == [[NO_ID], [], [NO_ID], [1]]


def test_scores_up_to_the_confidence_threshold_alone_are_never_returned():
    tracker = Tracker(confidence_threshold=0.5)
    assert ids_of(tracker, [detections((100, 0.4))] * 5) == [[]] * 5
    # The first score above the threshold confirms the track, which has enough detections already.
    assert ids_of(tracker, [detections((100, 0.6)), detections((100, 0.4))], 1.0) == [[1], [1]]


def test_low_scores_continue_a_confirmed_track_and_start_none():
    tracker = confirmed()
    assert ids_of(tracker, [detections((100, 0.9), (300, 0.2))], 2 / 30) == [[1]]
    low = ids_of(tracker, [detections((300, 0.2), (100, 0.15))] * 3, 3 / 30)
    assert low == [[1]] * 3
    # Without the low scores, the track is not continued.
    assert ids_of(tracker, [detections((100, 0.09))], 6 / 30) == [[]]


def test_low_scores_are_not_returned_without_publish_low():
    tracker = confirmed(publish_low=False)
    images = [detections((100, 0.2)), detections((100, 0.9))]
    assert ids_of(tracker, images, 2 / 30) == [[], [1]]


def test_low_scores_need_a_larger_overlap():
    # Boxes that are 24 of 40 pixels apart have an IoU of 16 / 64 = 0.25.
    assert ids_of(confirmed(), [detections((124, 0.9))], 2 / 30) == [[1]]
    assert ids_of(confirmed(), [detections((124, 0.2))], 2 / 30) == [[]]
    assert ids_of(confirmed(low_match_iou=0.24), [detections((124, 0.2))], 2 / 30) == [[1]]
    assert ids_of(confirmed(match_iou=0.26), [detections((124, 0.9))], 2 / 30) == [[NO_ID]]


@pytest.mark.parametrize(('low_threshold', 'ends_with'), [(0.1, 1), (0.25, 2)])
def test_second_association_keeps_the_id_through_an_occlusion(low_threshold, ends_with):
    """The object turns while it is covered, so the prediction alone would miss it."""
    lefts = [100 + 4 * index for index in range(10)] + [136 - 6 * index for index in range(20)]
    images = [
        detections((left, 0.15 if 8 <= index < 26 else 0.9)) for index, left in enumerate(lefts)
    ]
    images += [images[-1]] * 2
    assert ids_of(Tracker(low_threshold=low_threshold), images)[-1] == [ends_with]


def test_track_continues_at_its_predicted_position_after_dropped_images():
    """Speed: 300 pixels/s. In 0.4 s, the box moves by 120 pixels, three times its width."""
    tracker = Tracker()
    for index in range(15):
        tracker.update(detections((100 + 10 * index, 0.9)), index / 30)
    assert tracker.update(detections((240 + 120, 0.9)), 14 / 30 + 0.4).ids.tolist() == [1]
    # Empty images between do not change the prediction.
    for step in range(1, 6):
        tracker.update(Detections.empty(), 14 / 30 + 0.4 + step / 30)
    assert tracker.update(detections((420, 0.9)), 14 / 30 + 0.6).ids.tolist() == [1]


@pytest.mark.parametrize(('lost_s', 'expected'), [(0.9, [1]), (1.1, [NO_ID])])
@pytest.mark.parametrize('images_between', [0, 5])
def test_track_ends_after_max_lost_s(lost_s, expected, images_between):
    tracker = confirmed()
    for index in range(images_between):
        tracker.update(Detections.empty(), 1 / 30 + lost_s * (index + 1) / 10)
    assert tracker.update(detections((100, 0.9)), 1 / 30 + lost_s).ids.tolist() == expected


def test_track_keeps_its_class():
    images = [detections((100, 0.9, 1))] * 3
    assert ids_of(confirmed(), images, 2 / 30) == [[NO_ID], [2], [2]]
    tracker = confirmed(class_agnostic=True)
    assert ids_of(tracker, images, 2 / 30) == [[1]] * 3
    found = tracker.update(images[0], 6 / 30)
    assert found.detections.class_ids.tolist() == [1], 'the class is as detected'


def test_two_classes_at_one_place_have_two_tracks():
    both = detections((100, 0.9, 0), (100, 0.8, 1))
    assert ids_of(Tracker(), [both, both, detections((100, 0.9, 1), (100, 0.8, 0))])[1:] == [
        [1, 2],
        [2, 1],
    ]


def test_crossing_objects_keep_their_ids():
    images = [detections((100 + 8 * i, 0.9), (340 - 8 * i, 0.8)) for i in range(31)]
    found = ids_of(Tracker(), images)
    assert found[1] == [1, 2]
    assert found[-1] == [1, 2]


def test_stamp_that_goes_back_ends_all_tracks_and_numbers_go_on():
    tracker = confirmed()
    assert ids_of(tracker, [detections((100, 0.9))] * 2, -5.0) == [[NO_ID], [2]]


def test_equal_stamps_continue_tracks():
    tracker = confirmed()
    assert ids_of(tracker, [detections((100, 0.9))] * 2, 1 / 30, step_s=0) == [[1], [1]]


def test_unconfirmed_track_ends_without_its_detection_also_at_equal_stamps():
    one = detections((100, 0.9))
    images = [one, Detections.empty(), one, one]
    assert ids_of(Tracker(), images, step_s=0) == [[NO_ID], [], [NO_ID], [1]]


@pytest.mark.parametrize('step_s', [0.0, 0.1])
def test_lost_tracks_are_limited_to_those_that_were_seen_last(step_s):
    tracker = Tracker(max_lost_s=3600, min_hits=1)
    # 15 images with 100 new objects each.
    for index in range(15):
        lefts = 100_000 * index + 50 * np.arange(100)
        tracker.update(detections(*((left, 0.9) for left in lefts)), 1 + index * step_s)
    assert (tracker.live_tracks, tracker.last_id) == (100 + 1000, 1500)
    objects = detections((0, 0.9), (400_000, 0.9), (300_000, 0.9), (1_400_000, 0.9))
    found = tracker.update(objects, 1 + 15 * step_s)
    assert found.ids.tolist() == [1501, 401, 1502, 1401]


def test_new_image_size_ends_all_tracks():
    tracker, one = Tracker(), detections((100, 0.9))
    sizes = [(640, 480), (640, 480), (1280, 720), (1280, 720)]
    found = [tracker.update(one, index / 30, size) for index, size in enumerate(sizes)]
    assert [tracked.ids.tolist() for tracked in found] == [[NO_ID], [1], [NO_ID], [2]]


def test_reset_ends_all_tracks_and_numbers_go_on():
    tracker = confirmed()
    tracker.reset()
    assert ids_of(tracker, [detections((100, 0.9))] * 2, 2 / 30) == [[NO_ID], [2]]


def test_new_settings_keep_tracks():
    tracker = confirmed()
    tracker.settings = Tracker(publish_low=False).settings
    images = [detections((100, 0.2)), detections((100, 0.9))]
    assert ids_of(tracker, images, 2 / 30) == [[], [1]]


def test_unconfirmed_tracks_use_no_numbers():
    tracker = Tracker()
    for index in range(5):
        tracker.update(detections((100 + 200 * (index % 2), 0.9)), index / 30)
    assert ids_of(tracker, [detections((700, 0.9))] * 2, 1.0) == [[NO_ID], [1]]


def test_result_has_masks_and_keypoints_of_the_kept_detections():
    keypoints = np.arange(9, dtype=np.float32).reshape(3, 1, 3)
    given = detections((100, 0.9), (300, 0.2), (500, 0.15), keypoints=keypoints)
    masks = Masks(
        given.xyxy,
        np.arange(3, dtype=np.float32)[:, None],
        np.zeros((1, 8, 8), np.float32),
        MaskGeometry((640, 480), (0.1, 0.1), (0, 0)),
    )
    given = Detections(given.xyxy, given.scores, given.class_ids, keypoints, masks=masks)
    tracker = Tracker()
    ids_of(tracker, [detections((100, 0.9), (500, 0.9))] * 2)
    found = tracker.update(given, 2 / 30)
    assert found.kept.tolist() == [0, 2]
    assert found.detections.keypoints[:, 0, 0].tolist() == [0, 6]
    assert found.detections.masks.coefficients[:, 0].tolist() == [0, 2]
    assert found.detections.xyxy.tolist() == given.xyxy[[0, 2]].tolist(), 'not the predictions'
    assert (found.ids.dtype, len(found)) == (np.int64, 2)


def test_oriented_boxes_are_tracked_by_their_upright_boxes():
    turned = [np.array([[120, 140, 80, 40, angle]], np.float32) for angle in (1.5, -1.5, 1.5)]
    images = [detections((100, 0.9), oriented=oriented) for oriented in turned]
    assert ids_of(Tracker(), images) == [[NO_ID], [1], [1]]


@pytest.mark.parametrize('stamp_s', [float('nan'), float('inf')])
def test_stamp_that_is_not_finite_is_refused(stamp_s):
    with pytest.raises(ValueError, match='stamp'):
        Tracker().update(detections(), stamp_s)


@pytest.mark.parametrize(
    'values',
    [
        {'high_treshold': 0.5},
        {'colour': 1},
        {'high_threshold': 1.5},
        {'match_iou': '0.2'},
        {'low_threshold': float('nan')},
        {'max_lost_s': 0},
        {'max_lost_s': float('inf')},
        {'min_hits': 0},
        {'min_hits': 1.5},
        {'class_agnostic': 1},
        {'low_threshold': 0.5},
    ],
    ids=str,
)
def test_invalid_settings_are_refused(values, golden_messages):
    with golden_messages.raises(ConfigError):
        Tracker(**values)


def test_numpy_scalars_are_settings():
    tracker = Tracker(match_iou=np.float32(0.5), min_hits=np.int64(3), publish_low=np.bool_(False))
    assert ids_of(tracker, [detections((100, 0.9))] * 3)[-1] == [1]


def test_missing_scipy_is_an_error_with_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, 'scipy', None)
    monkeypatch.delitem(sys.modules, 'scipy.optimize', raising=False)
    with pytest.raises(ConfigError) as raised:
        Tracker()
    assert raised.value.fix
    assert isinstance(raised.value.__cause__, ImportError)


@pytest.mark.parametrize('error', ['ValueError', 'AttributeError'])
def test_scipy_for_another_numpy_is_an_error_with_a_remedy(monkeypatch, tmp_path, error):
    (tmp_path / 'scipy').mkdir()
    (tmp_path / 'scipy' / '__init__.py').write_text(f"raise {error}('numpy.dtype size changed')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ('scipy', 'scipy.optimize'):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ConfigError) as raised:
        Tracker()
    assert raised.value.fix
    assert type(raised.value.__cause__).__name__ == error


# Properties of random scenes: (left, score, class) of up to six objects in up to twelve images.
OBJECTS = st.lists(
    st.tuples(
        st.integers(0, 400), st.sampled_from([0.05, 0.15, 0.3, 0.6, 0.9]), st.integers(0, 1)
    ),
    max_size=6,
)
SEQUENCES = st.lists(
    st.tuples(OBJECTS, st.sampled_from([0.0, 0.03, 0.1, 0.5, 1.5, -1.0])), max_size=12
)


def run(tracker, sequence):
    stamp_s, found = 10.0, []
    for rows, step_s in sequence:
        stamp_s += step_s
        found.append(tracker.update(detections(*rows), stamp_s))
    return found


@settings(max_examples=150, deadline=None)
@given(SEQUENCES)
def test_ids_are_unique_and_never_given_again(sequence):
    tracker, used, alive_at, stamp_s = Tracker(), set(), {}, 10.0
    for rows, step_s in sequence:
        stamp_s += step_s
        if step_s < 0:
            alive_at.clear()
        found = tracker.update(detections(*rows), stamp_s)
        ids = [number for number in found.ids.tolist() if number != NO_ID]
        assert len(ids) == len(set(ids))
        for number in ids:
            # An old number is one of a track that was seen within max_lost_s.
            if number in used:
                assert stamp_s - alive_at[number] <= 1.0 + 1e-9
            else:
                assert number == len(used) + 1
            used.add(number)
            alive_at[number] = stamp_s


@settings(max_examples=150, deadline=None)
@given(SEQUENCES)
def test_result_has_exactly_the_detections_with_a_score_or_an_id(sequence):
    for (rows, _), found in zip(sequence, run(Tracker(), sequence), strict=True):
        given_scores = np.array([row[1] for row in rows], np.float32)
        sure = np.flatnonzero(given_scores > 0.25)
        assert set(sure) <= set(found.kept.tolist())
        assert (found.ids[found.detections.scores <= 0.25] > 0).all()
        assert found.detections.scores.tolist() == given_scores[found.kept].tolist()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_order_of_detections_has_no_effect_but_on_numbers(seed):
    random = np.random.default_rng(seed)
    # Random positions with fractions have no ties.
    left, speed = random.uniform(0, 500, 6), random.normal(0, 60, 6)
    ours, other, renamed = Tracker(), Tracker(), {}
    for index in range(15):
        rows = np.stack([left, random.uniform(0.05, 0.95, 6)], 1)[random.random(6) < 0.8]
        order = random.permutation(len(rows))
        one = ours.update(detections(*rows.tolist()), index / 10)
        two = other.update(detections(*rows[order].tolist()), index / 10)
        first = dict(zip(one.kept.tolist(), one.ids.tolist(), strict=True))
        second = dict(zip(order[two.kept].tolist(), two.ids.tolist(), strict=True))
        assert first.keys() == second.keys()
        for place, number in first.items():
            assert renamed.setdefault(number, second[place]) == second[place]
        left = left + speed / 10 + random.normal(0, 2, 6)
    assert len(set(renamed.values())) == len(renamed)
