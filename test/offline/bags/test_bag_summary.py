# SPDX-License-Identifier: Apache-2.0
"""The memory of a summary does not grow with the bag, and its counts stay exact."""

from trt_perception.boxes_3d.surface import ImageBox
from trt_perception.offline.bags import bag_summary
from trt_perception.offline.bags.bag_summary import BIN_COUNT, BagSummary
from trt_perception.wire.cdr import HeaderFields, StampFields
from trt_perception.wire.detections import FoundObject, FoundObjects

SECOND = 10**9


def found(*ids):
    header = HeaderFields(StampFields(0, 0), 'camera')
    box = ImageBox(1, 1, 1, 1)
    return FoundObjects(header, tuple(FoundObject((('car', 0.5),), box, id_) for id_ in ids))


def test_tracks_that_ended_leave_the_memory(monkeypatch):
    monkeypatch.setattr(bag_summary, '_MAX_OPEN_TRACKS', 10)
    summary = BagSummary(['front'], 0, 2000 * SECOND)
    for number in range(1000):
        ids = '1', str(number + 2)  # the first track lasts, each other one has two images
        summary.add_objects('front', 2 * number * SECOND, found(*ids))
        summary.add_objects('front', (2 * number + 1) * SECOND, found(*ids))
        assert len(summary._open) <= 10
    summary.finish()
    assert sum(summary.lengths) == summary.classes['front']['car'].tracks == 1001
    assert (summary.longest[0].id, summary.longest[0].images) == ('1', 2000)
    assert summary.longest[0].length_s == 1999
    assert len(summary.longest) == 10
    assert all(len(own) <= BIN_COUNT for own in summary.moments().values())


def test_fewer_objects_after_a_pause_are_no_sudden_loss():
    summary = BagSummary(['front'], 0, 10 * SECOND)
    summary.add_objects('front', 0, found('', '', ''))
    summary.add_objects('front', 2 * SECOND, found(''))
    assert not summary.moments()['loss of objects']
    summary.add_objects('front', 3 * SECOND, found())
    (loss,) = summary.moments()['loss of objects']
    assert (loss.log_ns, loss.value, loss.objects) == (3 * SECOND, 1, 0)


def test_times_outside_the_plan_count_in_the_first_or_last_part():
    summary = BagSummary(['front'], 100, 200)
    summary.add_image('front', 0)
    summary.add_image('front', 10**18)
    assert summary.images['front'].tolist() == [1, *[0] * (BIN_COUNT - 2), 1]
