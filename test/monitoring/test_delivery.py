# SPDX-License-Identifier: Apache-2.0
"""Tests of the count of images that did not arrive: gaps and reported losses."""

import pytest

from support.properties import given, settings, st
from trt_perception.monitoring.delivery import DeliveryCounter


def not_delivered_after(*events):
    """Return not_delivered after events: sequence numbers, or functions that use the counter."""
    counter = DeliveryCounter()
    for event in events:
        if isinstance(event, int):
            counter.add_received(event)
        else:
            event(counter)
    return counter.not_delivered


def lost(count):
    return lambda counter: counter.add_lost(count)


def publishers_become(count, changed=True):
    return lambda counter: counter.set_publishers(count, changed=changed)


TABLE = {
    'nothing': ([], 0),
    'one image with any sequence number': ([77], 0),
    'none missing': ([1, 2, 3], 0),
    'one missing': ([1, 3], 1),
    'several gaps': ([1, 3, 4, 10], 6),
    'a restarted publisher': ([5, 6, 1, 2], 0),
    'a gap after a restart': ([5, 6, 1, 4], 2),
    'the same number again': ([5, 5, 6], 0),
    'a gap after the same number again': ([5, 5, 8], 2),
    'a loss before its gap': ([1, lost(2)], 2),
    'a loss that becomes a gap counts once': ([1, lost(2), 4], 2),
    'a gap that is reported later counts once': ([1, 4, lost(2)], 2),
    'a gap larger than the losses': ([1, lost(1), 6], 4),
    'losses larger than the gaps': ([1, 3, lost(1), lost(4)], 5),
    'only losses': ([lost(3)], 3),
    'a loss that the middleware cannot count': ([1, lost(2**31 - 1)], 1),
    'losses that include uncounted ones': ([lost(2 * (2**31 - 1) + 5)], 7),
    'another publisher numbers from the start': ([7, 8, publishers_become(1), 100, 101], 0),
    'the same publisher goes on': ([7, publishers_become(1, changed=False), 9], 1),
    'no publisher': ([1, publishers_become(0), 5, 7], 1),
    'several publishers mix their numbers': ([1, publishers_become(2), 9, 4], None),
    'one of several publishers is left': (
        [1, 4, publishers_become(2), 9, 2, publishers_become(1), 20, 21],
        2,
    ),
    'gaps of the last publisher count': (
        [1, publishers_become(2), 9, publishers_become(1), 20, 22],
        1,
    ),
    'a crashed and restarted camera': (
        [500, 503, publishers_become(2), 1, 2, 4, publishers_become(1), 5, 7],
        3,
    ),
    'a camera that crashed twice': (
        [
            500,
            publishers_become(2),
            1,
            publishers_become(1),
            2,
            publishers_become(2),
            1,
            publishers_become(1),
            3,
        ],
        0,
    ),
    'reported losses count with several publishers': (
        [1, 3, publishers_become(2), 9, lost(2), publishers_become(1), 20, 22],
        4,
    ),
    'all publishers go': ([1, publishers_become(3), 9, publishers_become(0)], 0),
}


@pytest.mark.parametrize(('events', 'expected'), TABLE.values(), ids=TABLE.keys())
def test_events_give_the_expected_count_of_undelivered_images(events, expected):
    assert not_delivered_after(*events) == expected


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.sampled_from(['arrives', 'overwritten', 'lost']), max_size=60), st.integers(0, 99)
)
def test_each_image_between_the_first_and_the_last_is_counted_once(fates, first):
    # One publisher. The middleware may report a loss before or after its gap.
    counter = DeliveryCounter()
    counter.add_received(first)
    missing = 0
    for number, fate in enumerate(fates, first + 1):
        if fate == 'arrives':
            counter.add_received(number)
            missing = sum(fate != 'arrives' for fate in fates[: number - first])
        if fate == 'lost':
            counter.add_lost(1)
        # The count never exceeds the missing images, and is exact when a later image has arrived.
        total = sum(fate != 'arrives' for fate in fates[: number - first])
        assert missing <= counter.not_delivered <= total
    counter.add_received(first + len(fates) + 1)
    assert counter.not_delivered == sum(fate != 'arrives' for fate in fates)
