"""Images that never arrived: gaps and reported losses, none counted twice."""

import pytest

from support.properties import given, settings, st
from trt_perception.monitoring.delivery import DeliveryCounter


def counted(*events):
    """Return not_delivered after events: a sequence number, or a method with its arguments."""
    counter = DeliveryCounter()
    for event in events:
        if isinstance(event, int):
            counter.add_received(event)
        else:
            event(counter)
    return counter.not_delivered


def lost(count):
    return lambda counter: counter.add_lost(count)


def publishers(count, changed=True):
    return lambda counter: counter.set_publishers(count, changed=changed)


TABLE = {
    'nothing': ([], 0),
    'one image, wherever the numbers begin': ([77], 0),
    'none missing': ([1, 2, 3], 0),
    'one missing': ([1, 3], 1),
    'several gaps': ([1, 3, 4, 10], 6),
    'a publisher that began again': ([5, 6, 1, 2], 0),
    'a gap after it began again': ([5, 6, 1, 4], 2),
    'the same number again': ([5, 5, 6], 0),
    'a gap after the same number again': ([5, 5, 8], 2),
    'a loss before its gap shows': ([1, lost(2)], 2),
    'a loss that becomes a gap counts once': ([1, lost(2), 4], 2),
    'a gap that is reported later counts once': ([1, 4, lost(2)], 2),
    'a gap larger than the losses': ([1, lost(1), 6], 4),
    'losses larger than the gaps': ([1, 3, lost(1), lost(4)], 5),
    'only losses': ([lost(3)], 3),
    'a loss that the middleware cannot count': ([1, lost(2**31 - 1)], 1),
    'losses among which are some that it cannot count': ([lost(2 * (2**31 - 1) + 5)], 7),
    'another publisher numbers from the start': ([7, 8, publishers(1), 100, 101], 0),
    'the same publisher goes on': ([7, publishers(1, changed=False), 9], 1),
    'nobody publishes': ([1, publishers(0), 5, 7], 1),
    'several publishers mix their numbers': ([1, publishers(2), 9, 4], None),
    'one of them is left': ([1, 4, publishers(2), 9, 2, publishers(1), 20, 21], 2),
    'and its gaps count': ([1, publishers(2), 9, publishers(1), 20, 22], 1),
    'a camera that crashed and came back': (
        [500, 503, publishers(2), 1, 2, 4, publishers(1), 5, 7],
        3,
    ),
    'and crashed again': (
        [500, publishers(2), 1, publishers(1), 2, publishers(2), 1, publishers(1), 3],
        0,
    ),
    'losses that are reported count meanwhile': (
        [1, 3, publishers(2), 9, lost(2), publishers(1), 20, 22],
        4,
    ),
    'all of them go': ([1, publishers(3), 9, publishers(0)], 0),
}


@pytest.mark.parametrize(('events', 'expected'), TABLE.values(), ids=TABLE.keys())
def test_table(events, expected):
    assert counted(*events) == expected


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.sampled_from(['arrives', 'overwritten', 'lost']), max_size=60), st.integers(0, 99)
)
def test_each_image_between_the_first_and_the_last_is_counted_once(fates, first):
    # One publisher; what the middleware loses it reports, sooner or later than the gap shows.
    counter = DeliveryCounter()
    counter.add_received(first)
    missing = 0
    for number, fate in enumerate(fates, first + 1):
        if fate == 'arrives':
            counter.add_received(number)
            missing = sum(fate != 'arrives' for fate in fates[: number - first])
        if fate == 'lost':
            counter.add_lost(1)
        # Never more than are missing, and all of them once a later image has arrived.
        total = sum(fate != 'arrives' for fate in fates[: number - first])
        assert missing <= counter.not_delivered <= total
    counter.add_received(first + len(fates) + 1)
    assert counter.not_delivered == sum(fate != 'arrives' for fate in fates)
