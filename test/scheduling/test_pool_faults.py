"""Tests of the pool with invalid images, failing pipelines, and stops at any time."""

import threading

import pytest

from support.scheduling.fake_pipeline import (
    CAMERA,
    DEADLINE_S,
    FakePipeline,
    Recorder,
    wait_until,
    worker_threads,
)
from trt_perception.errors import ImageError, OutputError

pytestmark = [
    pytest.mark.timeout(120),
    # An exception that escapes from a worker thread fails the test.
    pytest.mark.filterwarnings('error::pytest.PytestUnhandledThreadExceptionWarning'),
]


class BoomError(Exception):
    """An error that the pool does not expect."""


def make_stage_fail(recorder, pipeline, stage, number, error):
    """Raise `error` when the message with this number reaches a stage."""
    errors = recorder.errors if stage in ('read', 'publish') else pipeline.errors
    errors[stage, number] = error


def assert_counts(recorder, *, received, published=0, dropped=None, failed=0, in_flight=0):
    assert recorder.counts() == (received, published, dropped or {}, failed, in_flight)


# Invalid images


@pytest.mark.parametrize('depth', [1, 3])
@pytest.mark.parametrize('stage', ['read', 'collect', 'publish'])
def test_invalid_images_are_dropped_with_their_reasons(stage, depth):
    pipeline = FakePipeline(depth)
    recorder = Recorder(pipeline)
    errors = {
        2: ImageError('bad_step', 'image', 'number 2'),
        3: ImageError('bad_length', 'image', 'number 3'),
        5: ImageError('bad_step', 'image', 'number 5'),
        6: ImageError('odd_size', 'image', 'number 6'),
    }
    for number, error in errors.items():
        make_stage_fail(recorder, pipeline, stage, number, error)

    with recorder:
        for number in range(9):
            recorder.submit(number)
            recorder.settled()

    assert recorder.published == [0, 1, 4, 7, 8]
    assert recorder.refused == list(errors.values())
    assert not recorder.faults
    dropped = {'bad_step': 2, 'bad_length': 1, 'odd_size': 1}
    assert_counts(recorder, received=9, published=5, dropped=dropped)


def test_image_that_cannot_be_read_does_not_affect_frames_in_flight():
    pipeline = FakePipeline(depth=3, automatic=False)
    recorder = Recorder(pipeline)
    recorder.errors['read', 1] = ImageError('bad_step', 'image', 'number 1')

    with recorder:
        recorder.submit_into_slots(0)
        recorder.submit(1)
        wait_until(lambda: recorder.refused)
        recorder.submit_into_slots(2, 3)
        assert_counts(recorder, received=4, dropped={'bad_step': 1}, in_flight=3)
        pipeline.finish(0, 2, 3)
        recorder.settled()

    assert recorder.published == [0, 2, 3]


def test_image_error_from_collect_does_not_affect_other_frames():
    pipeline = FakePipeline(depth=3, automatic=False)
    recorder = Recorder(pipeline)
    pipeline.errors['collect', 1] = ImageError('not_decodable', 'image', 'number 1')

    with recorder:
        recorder.submit_into_slots(0, 1, 2)
        recorder.submit(3)  # waits for a slot
        pipeline.finish(1)
        assert_counts(recorder, received=4, in_flight=4)  # 1 is done, but 0 comes first
        pipeline.finish(0)
        wait_until(lambda: recorder.refused)
        wait_until(lambda: 3 in pipeline.flying())
        pipeline.finish(2, 3)
        recorder.settled()

    assert recorder.published == [0, 2, 3]
    assert_counts(recorder, received=4, published=3, dropped={'not_decodable': 1})
    assert not recorder.faults


def test_invalid_output_drops_only_its_own_image_of_a_batch():
    pipeline = FakePipeline(batch=3)
    recorder = Recorder(pipeline, cameras=3, batch_max_delay_s=DEADLINE_S)
    front, rear, left = 0, CAMERA, 2 * CAMERA
    pipeline.errors['collect', rear] = OutputError('model', 'a score of 1.3')

    with recorder:
        for number in (front, rear, left):
            recorder.submit(number)
        recorder.settled()

    assert pipeline.batches == [[front, rear, left]]
    assert recorder.published == [front, left]
    assert recorder.counts(camera=1) == (1, 0, {'bad_output': 1}, 0, 0)
    assert not recorder.faults


# Faults

# A pipeline with one slot has no stage `done`, because the worker does not poll it.
STAGES_AND_DEPTHS = [
    *((stage, 1) for stage in ('read', 'enqueue', 'collect', 'publish')),
    *((stage, 3) for stage in ('read', 'enqueue', 'done', 'collect', 'publish')),
]


@pytest.mark.parametrize('error', [BoomError('boom'), SystemExit(3)], ids=repr)
@pytest.mark.parametrize(('stage', 'depth'), STAGES_AND_DEPTHS)
def test_exception_in_any_stage_is_reported_once_and_ends_the_worker(stage, depth, error):
    pipeline = FakePipeline(depth)
    recorder = Recorder(pipeline)
    make_stage_fail(recorder, pipeline, stage, 1, error)

    with recorder:
        recorder.submit(0)
        recorder.settled()
        recorder.submit(1)
        wait_until(lambda: recorder.faults)

    assert recorder.faults == [error]
    assert recorder.published == [0]
    assert_counts(recorder, received=2, published=1, failed=1)
    assert not recorder.refused
    assert not worker_threads()


@pytest.mark.parametrize('stage', ['enqueue', 'done'])
def test_image_error_from_enqueue_or_done_is_a_fault(stage):
    error = ImageError('bad_step', 'image', 'number 0')
    pipeline = FakePipeline(depth=3)
    pipeline.errors[stage, 0] = error

    with Recorder(pipeline) as recorder:
        recorder.submit(0)
        wait_until(lambda: recorder.faults)

    assert recorder.faults == [error]
    assert_counts(recorder, received=1, failed=1)


def test_messages_after_a_fault_are_dropped_as_inactive():
    pipeline = FakePipeline()
    pipeline.errors['collect', 0] = BoomError()

    with Recorder(pipeline) as recorder:
        recorder.submit(0)
        wait_until(lambda: recorder.faults)
        recorder.submit(1)
        recorder.submit(2)

    assert_counts(recorder, received=3, dropped={'inactive': 2}, failed=1)


def test_fault_fails_all_frames_in_flight_and_drops_waiting_messages():
    pipeline = FakePipeline(depth=3, automatic=False)
    pipeline.errors['collect', 0] = BoomError()

    with Recorder(pipeline) as recorder:
        recorder.submit_into_slots(0, 1, 2)
        recorder.submit(3)  # waits for a slot
        pipeline.finish(0)
        wait_until(lambda: recorder.faults)

    assert_counts(recorder, received=4, dropped={'inactive': 1}, failed=3)


def test_pool_cannot_start_again_while_the_pipeline_holds_frames_of_a_fault(golden_messages):
    pipeline = FakePipeline()
    pipeline.errors['collect', 0] = BoomError()
    with Recorder(pipeline) as recorder:
        recorder.submit(0)
        wait_until(lambda: recorder.faults)

    with golden_messages.raises(AssertionError):
        recorder.pool.start()


def test_exception_in_the_image_error_handler_is_a_fault():
    recorder = Recorder(FakePipeline())
    recorder.errors['read', 0] = ImageError('bad_step', 'image', 'number 0')

    def raise_boom(message, error):
        raise BoomError

    recorder.cameras[0].on_image_error = raise_boom
    with recorder:
        recorder.submit(0)
        wait_until(lambda: recorder.faults)

    assert_counts(recorder, received=1, dropped={'bad_step': 1})


# Start and stop


def test_messages_before_start_and_after_stop_are_dropped_as_inactive():
    recorder = Recorder(FakePipeline())

    recorder.submit(0)
    with recorder:
        recorder.submit(1)
        recorder.settled()
    recorder.submit(2)

    assert recorder.published == [1]
    assert_counts(recorder, received=3, published=1, dropped={'inactive': 2})


def test_stop_does_nothing_on_a_stopped_pool():
    recorder = Recorder(FakePipeline())

    recorder.pool.stop()
    with recorder:
        recorder.pool.stop()
        recorder.pool.stop()

    assert not worker_threads()


def test_stop_publishes_frames_in_flight_and_drops_waiting_messages():
    pipeline = FakePipeline(depth=3, automatic=False)
    with Recorder(pipeline) as recorder:
        recorder.submit_into_slots(0, 1, 2)
        recorder.submit(3)  # waits for a slot

        stopping = threading.Thread(target=recorder.pool.stop)
        stopping.start()
        wait_until(lambda: recorder.counts(0)[2] == {'inactive': 1})
        recorder.submit(4)  # too late
        assert stopping.is_alive(), 'stop() waits for the frames in flight'
        pipeline.finish(0, 1, 2)
        stopping.join(DEADLINE_S)

        assert not stopping.is_alive()
        assert recorder.published == [0, 1, 2]
        assert_counts(recorder, received=5, published=3, dropped={'inactive': 2})
    assert not recorder.faults


def test_pool_can_be_restarted_100_times():
    recorder = Recorder(FakePipeline(depth=2))

    for number in range(100):
        with recorder:
            assert len(worker_threads()) == 1
            recorder.submit(number)
            if number % 3 == 0:  # otherwise stop at once
                recorder.settled()

    assert not worker_threads()
    received, published, dropped, failed, in_flight = recorder.counts()
    assert (received, failed, in_flight) == (100, 0, 0)
    assert published + dropped.get('inactive', 0) == 100
    assert published >= 34, 'the test waits for every third message'
    assert recorder.published == sorted(recorder.published)
