"""The detector when something goes wrong or ends: counted, said once, and at rest afterwards."""

import threading

import pytest

from support.scheduling.fake_pipeline import (
    DEADLINE_S,
    FakePipeline,
    Recorder,
    detector_threads,
    wait_until,
)
from trt_perception.errors import ImageError

pytestmark = [
    pytest.mark.timeout(120),
    # A worker that ends with an exception is a failure, not a warning.
    pytest.mark.filterwarnings('error::pytest.PytestUnhandledThreadExceptionWarning'),
]


@pytest.mark.parametrize('depth', [1, 3])
@pytest.mark.parametrize('where', ['read', 'collect', 'publish'])
def test_an_unreadable_image_is_dropped_by_its_reason_and_its_slot_stays_free(depth, where):
    pipeline = FakePipeline(depth)
    run = Recorder(pipeline)
    bad = {2: 'bad_step', 3: 'bad_length', 5: 'bad_step', 6: 'bad_step', 7: 'odd_size'}
    errors = pipeline.errors if where == 'collect' else run.errors
    for number, reason in bad.items():
        errors[where, number] = ImageError(reason, 'image', f'number {number}')
    with run:
        for number in range(12):
            run.submit(number)
            run.settled()
        dropped = {'bad_step': 3, 'bad_length': 1, 'odd_size': 1}
        assert run.settled() == (12, 7, dropped, 0)
    assert run.published == [0, 1, 4, 8, 9, 10, 11]
    assert [str(error) for error in run.refused] == [f'image: number {number}' for number in bad]
    assert [error.reason for error in run.refused] == list(bad.values())
    assert not run.faults


def test_an_unreadable_image_between_frames_in_flight_disturbs_none():
    pipeline = FakePipeline(3, automatic=False)
    run = Recorder(pipeline)
    run.errors['read', 1] = ImageError('bad_step', 'one', 'bad')
    with run:
        for number in range(4):
            run.submit(number)
            wait_until(lambda n=number: n in pipeline.flying() or (n == 1 and run.counts()[2]))
        assert run.counts() == (4, 0, {'bad_step': 1}, 0, 3)
        for number in (0, 2, 3):
            pipeline.finish(number)
        run.settled()
    assert run.published == [0, 2, 3]


def test_an_image_that_shows_only_at_its_end_that_it_is_unreadable_disturbs_none():
    pipeline = FakePipeline(3, automatic=False)
    run = Recorder(pipeline)
    pipeline.errors['collect', 1] = ImageError('not_decodable', 'one', 'bad')
    with run:
        for number in range(3):
            run.submit(number)
            wait_until(lambda n=number: n in pipeline.flying())
        run.submit(3)
        pipeline.finish(1)
        assert run.counts() == (4, 0, {}, 0, 4)
        pipeline.finish(0)
        wait_until(lambda: run.refused)
        wait_until(lambda: 3 in pipeline.flying())
        assert run.counts() == (4, 1, {'not_decodable': 1}, 0, 2)
        for number in (2, 3):
            pipeline.finish(number)
        assert run.settled() == (4, 3, {'not_decodable': 1}, 0)
    assert run.published == [0, 2, 3]
    assert not run.faults


class BoomError(Exception):
    pass


ERRORS = [BoomError('boom'), SystemExit(3), ImageError('bad_step', 'step', 'is bad')]
# An ImageError is no fault in read, collect and publish; with one slot nobody asks whether it is
# done.
FAULTS = [
    *(('read', depth, error) for depth in (1, 3) for error in ERRORS[:2]),
    *(('enqueue', depth, error) for depth in (1, 3) for error in ERRORS),
    *(('done', 3, error) for error in ERRORS),
    *(('collect', depth, error) for depth in (1, 3) for error in ERRORS[:2]),
    *(('publish', depth, error) for depth in (1, 3) for error in ERRORS[:2]),
]


@pytest.mark.parametrize(('where', 'depth', 'error'), FAULTS)
def test_a_fault_ends_the_worker_once_and_everything_is_counted(where, depth, error):
    pipeline = FakePipeline(depth, automatic=False)
    run = Recorder(pipeline)
    (run.errors if where in ('read', 'publish') else pipeline.errors)[where, 1] = error
    with run:
        run.submit(0)
        wait_until(lambda: 0 in pipeline.flying())
        pipeline.finish(0)
        run.settled()
        run.submit(1)
        pipeline.finish(1)
        wait_until(lambda: run.faults)
        assert run.counts() == (2, 1, {}, 1, 0)
        # It takes nothing any more, and says so.
        run.submit(2)
        run.submit(3)
        assert run.counts() == (4, 1, {'inactive': 2}, 1, 0)
        run.detector.stop()
        run.detector.stop()
    assert run.faults == [error]
    assert run.published == [0]
    assert not run.refused
    assert not detector_threads()


def test_a_fault_with_everything_in_flight():
    pipeline = FakePipeline(3, automatic=False)
    pipeline.errors['collect', 0] = BoomError()
    with Recorder(pipeline) as run:
        for number in range(3):
            run.submit(number)
            wait_until(lambda number=number: number in pipeline.flying())
        run.submit(3)  # waits
        assert run.counts() == (4, 0, {}, 0, 4)
        pipeline.finish(0)
        wait_until(lambda: run.faults)
        assert run.counts() == (4, 0, {'inactive': 1}, 3, 0)
    assert len(run.faults) == 1
    # Its slots are lost with the pipeline, so it does not start again as if nothing had been.
    with pytest.raises(AssertionError, match='still holds frames'):
        run.detector.start()


def test_an_exception_of_the_refused_callback_is_a_fault_too():
    run = Recorder(FakePipeline())
    run.errors['read', 0] = ImageError('bad_step', 'zero', 'bad')

    class Full(list):
        def append(self, item):
            raise BoomError

    run.cameras[0].refused = Full().append
    with run:
        run.submit(0)
        wait_until(lambda: run.faults)
        assert run.counts() == (1, 0, {'bad_step': 1}, 0, 0)


def test_submit_while_stopped_is_inactive():
    run = Recorder(FakePipeline())
    run.submit(0)
    assert run.counts() == (1, 0, {'inactive': 1}, 0, 0)
    run.detector.stop()  # without a start
    with run:
        run.submit(1)
        run.settled()
    run.submit(2)
    assert run.counts() == (3, 1, {'inactive': 2}, 0, 0)
    assert run.published == [1]


def test_stop_finishes_what_is_in_flight_and_drops_what_waits():
    pipeline = FakePipeline(3, automatic=False)
    with Recorder(pipeline) as run:
        for number in range(3):
            run.submit(number)
            wait_until(lambda number=number: number in pipeline.flying())
        run.submit(3)
        stopper = threading.Thread(target=run.detector.stop)
        stopper.start()
        wait_until(lambda: not run.detector._ledger.running)
        run.submit(4)  # too late
        assert stopper.is_alive()
        for number in range(3):
            pipeline.finish(number)
        stopper.join(DEADLINE_S)
        assert not stopper.is_alive()
        assert run.counts() == (5, 3, {'inactive': 2}, 0, 0)
    assert run.published == [0, 1, 2]
    assert not run.faults


def test_a_hundred_starts_and_stops():
    pipeline = FakePipeline(2)
    run = Recorder(pipeline)
    for number in range(100):
        with run:
            assert len(detector_threads()) == 1
            run.submit(number)
            if number % 3 == 0:  # sometimes wait, sometimes stop at once
                run.settled()
        assert run.counts()[4] == 0
    assert not detector_threads()
    received, published, dropped, failed, in_flight = run.counts()
    assert (received, failed, in_flight) == (100, 0, 0)
    assert set(dropped) <= {'inactive'}
    assert published >= 34
    assert run.published == sorted(run.published)
