# SPDX-License-Identifier: Apache-2.0
"""Tests of the pool with invalid images, failing pipelines, and stops at any time."""

import threading

import pytest

from support.scheduling.fake_pipeline import CAMERA, FakePipeline, Recorder, worker_threads
from support.waiting import DEADLINE_S, wait_until
from trt_perception.errors import ImageError, OutputError

pytestmark = [
    # An exception that escapes from a worker thread fails the test.
    pytest.mark.filterwarnings('error::pytest.PytestUnhandledThreadExceptionWarning'),
]


class BoomError(Exception):
    """An error that the pool does not expect."""


BAD, LATE = ImageError('bad_step', 'image', 'bad'), ImageError('not_decodable', 'image', 'late')
BOOM = BoomError('boom')


def scene(steps, errors, *, cameras=1, pipelines=1, **options):
    """Return the arguments of `play`.

    Args:
        steps: verbs of `play` with frames: a1 is frame 1 of the first camera. Text after # is a
            heading, under which the counts are recorded.
        errors: maps the stage and the frame to the error that the stage raises.
    """
    return steps, errors, cameras, pipelines, options


def number_of(frame):
    return 'abcd'.index(frame[0]) * CAMERA + int(frame[1:])


def text_of(numbers):
    return ' '.join(f'{"abcd"[number // CAMERA]}{number % CAMERA}' for number in numbers)


#: In stage `done`, the worker polls. A pipeline with one slot is not polled.
STAGES_AND_DEPTHS = [
    *((stage, 1) for stage in ('read', 'enqueue', 'collect', 'publish')),
    *((stage, 3) for stage in ('read', 'enqueue', 'done', 'collect', 'publish')),
]
FULL_BATCHES = {'batch_max_delay_s': DEADLINE_S, 'automatic': True}
SCENES = {
    # Invalid images.
    **{
        f'invalid images are dropped, others are published: {stage}, {depth} slots': scene(
            '; '.join(f'submit a{index}; settle' for index in range(7)),
            {f'{stage} a2': BAD, f'{stage} a3': LATE, f'{stage} a5': BAD},
            depth=depth,
            automatic=True,
        )
        for stage in ('read', 'collect', 'publish')
        for depth in (1, 3)
    },
    'image that cannot be read does not affect frames in flight': scene(
        'fill a0; submit a1; refuse; fill a2 a3; # in flight; finish a0 a2 a3; settle',
        {'read a1': BAD},
        depth=3,
    ),
    'image error from collect does not affect other frames, and keeps its turn': scene(
        'fill a0 a1 a2; submit a3; finish a1; # 0 comes first; finish a0; refuse; fly a3; '
        'finish a2 a3; settle',
        {'collect a1': LATE},
        depth=3,
    ),
    **{
        f'invalid frame does not affect others of its batch: {stage}, {error.reason}': scene(
            'submit a0 b0 c0; settle', {f'{stage} b0': error}, cameras=3, batch=3, **FULL_BATCHES
        )
        for stage, error in (
            ('read', BAD),
            ('collect', LATE),
            ('collect', OutputError('model', 'a score of 1.3')),
        )
    },
    'batch of only invalid images is dropped, and the next is computed': scene(
        'submit a0 b0; settle; submit a1 b1; settle',
        {'read a0': BAD, 'read b0': LATE},
        cameras=2,
        batch=2,
        **FULL_BATCHES,
    ),
    # Faults.
    **{
        f'{type(error).__name__} is reported once and ends the worker: {stage}, {depth} slots': (
            scene(
                'submit a0; settle; submit a1; fail; end',
                {f'{stage} a1': error},
                depth=depth,
                automatic=True,
            )
        )
        for error in (BOOM, SystemExit(3))
        for stage, depth in STAGES_AND_DEPTHS
    },
    **{
        f'image error of this stage is a fault: {stage}': scene(
            'submit a0; fail', {f'{stage} a0': BAD}, depth=3, automatic=True
        )
        for stage in ('enqueue', 'done')
    },
    'messages after a fault are dropped as inactive': scene(
        'submit a0; fail; submit a1 a2', {'collect a0': BOOM}, automatic=True
    ),
    'fault fails all frames in flight and drops waiting messages': scene(
        'fill a0 a1 a2; submit a3; finish a0; fail', {'collect a0': BOOM}, depth=3
    ),
    # Several pipelines: the second serves cameras b and d.
    **{
        f'fault of one pipeline ends all, but frames in flight are published: {stage}': scene(
            'fill b0; submit a0; finish a0; fail; submit c0 d0; # b0 in flight; finish b0; end',
            {f'{stage} a0': BOOM},
            cameras=4,
            pipelines=2,
            depth=2,
        )
        for stage in ('read', 'enqueue', 'done', 'collect', 'publish')
    },
    'fault drops messages that wait for other pipelines': scene(
        'fill a0 b0; submit c0 d0; finish a0; fail; # b0 in flight',
        {'collect a0': BOOM},
        cameras=4,
        pipelines=2,
    ),
    'faults of all pipelines are reported once': scene(
        'fill a0 b0; finish a0 b0; end',
        {'collect a0': BOOM, 'collect b0': BOOM},
        cameras=2,
        pipelines=2,
    ),
    'hanging pipeline does not delay others': scene(
        'fill a0; fill b0; finish b0; publish b0; fill b1; finish b1; publish b1; # a0 in flight; '
        'finish a0; settle',
        {},
        cameras=2,
        pipelines=2,
    ),
}


def play(steps, errors, cameras, pipelines, options):
    """Run a pool through the steps, and return its results as lines."""
    depth = options.pop('depth', 1)
    fake = {name: options.pop(name) for name in ('batch', 'automatic') if name in options}
    run = Recorder(
        *(FakePipeline(depth, **{'automatic': False, **fake}) for _ in range(pipelines)),
        cameras=cameras,
        **options,
    )
    for place, error in errors.items():
        stage, frame = place.split()
        for raising in (run, *run.pipelines):
            raising.errors[stage, number_of(frame)] = error
    verbs = {
        'submit': run.submit,
        'fill': run.submit_into_slots,
        'finish': lambda number: [pipeline.finish(number) for pipeline in run.pipelines],
        # The others wait.
        'fly': lambda number: wait_until(
            lambda: any(number in pipeline.flying() for pipeline in run.pipelines)
        ),
        'publish': lambda number: wait_until(lambda: number in run.published),
        'settle': run.settled,
        'refuse': lambda: wait_until(lambda: run.refused),
        'fail': lambda: wait_until(lambda: run.faults),
        'end': lambda: wait_until(lambda: not worker_threads()),
    }
    lines = []
    with run:
        for step in steps.split('; '):
            verb, *frames = step.split()
            if verb == '#':
                lines += [step, *map(str, run.pool.statistics())]
            elif not frames:
                verbs[verb]()
            else:
                for frame in frames:
                    verbs[verb](number_of(frame))
    assert not worker_threads()
    run.counts()  # checks that the counts add up
    for pipeline in run.pipelines:
        lines.append(f'batches of a pipeline: {", ".join(map(text_of, pipeline.batches))}')
    lines.append(f'published: {text_of(run.published)}')
    lines += [f'refused: {error!r}' for error in run.refused]
    lines += [f'fault: {error!r}' for error in run.faults]
    return [*lines, *map(str, run.pool.statistics())]


@pytest.mark.parametrize('name', SCENES)
def test_each_scene_has_the_recorded_results_and_counts(name, golden_messages):
    golden_messages.add('\n'.join(play(*SCENES[name])))


def test_pool_cannot_start_again_while_the_pipeline_holds_frames_of_a_fault(golden_messages):
    pipeline = FakePipeline()
    pipeline.errors['collect', 0] = BOOM
    with Recorder(pipeline) as recorder:
        recorder.submit(0)
        wait_until(lambda: recorder.faults)

    with golden_messages.raises(AssertionError):
        recorder.pool.start()


def test_exception_in_the_image_error_handler_is_a_fault():
    recorder = Recorder(FakePipeline())
    recorder.errors['read', 0] = BAD

    def raise_boom(message, error):
        raise BOOM

    recorder.cameras[0].on_image_error = raise_boom
    with recorder:
        recorder.submit(0)
        wait_until(lambda: recorder.faults)

    assert recorder.counts() == (1, 0, {'bad_step': 1}, 0, 0)


# Start and stop


def test_messages_before_start_and_after_stop_are_dropped_as_inactive():
    recorder = Recorder(FakePipeline())

    recorder.submit(0)
    with recorder:
        recorder.submit(1)
        recorder.settled()
    recorder.submit(2)

    assert recorder.published == [1]
    assert recorder.counts() == (3, 1, {'inactive': 2}, 0, 0)


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
        assert recorder.counts() == (5, 3, {'inactive': 2}, 0, 0)
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
