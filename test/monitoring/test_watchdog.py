# SPDX-License-Identifier: Apache-2.0
"""Tests of the watchdog's rules about silent cameras and pipelines, with a simulated clock."""

import inspect
import re

import pytest

from support.docs_pages import ROOT, codes, rows, section
from support.simulated_activation import SimulatedActivation, healthy
from trt_perception.monitoring import silence, status_summary, watchdog
from trt_perception.monitoring.frame_statistics import FrameTimes
from trt_perception.monitoring.pipeline_statistics import PipelineStatistics
from trt_perception.monitoring.silence import TopicState
from trt_perception.monitoring.status_summary import Level, StatusSummary, with_notes
from trt_perception.monitoring.watchdog import PERIOD_S

PROMISE_S = 2.0
NO_PUBLISHER, PUBLISHER = TopicState(0), TopicState(1, publisher='/driver')
HERE = TopicState(1, publisher='/driver on this machine', on_this_machine=True)
ELSEWHERE = TopicState(1, publisher='/driver on another machine', on_this_machine=False)
JPEG = {'message_bytes': 330_000}
# Images of 60 Hz are taken after 7 ms on average, because a newer one replaces an older one.
INTERPRETER = {'intake_s': 0.007, 'worker_share': 0.75, 'model_share': 0.2}
MISMATCH = TopicState(1, mismatch='set another QoS')
NO_OUTPUT = {'published': 0, 'replaced': 15}
OPENING = {
    'in_flight': 1,
    'pipeline': PipelineStatistics(opening_reason='the model is opened again'),
}
#: By name of the scene: an activation, and the steps for `play`.
SCENES = {
    # No image has arrived yet.
    'no publisher': (SimulatedActivation, [NO_PUBLISHER, (70, 0), (1, 15)]),
    'images are on another topic': (
        SimulatedActivation,
        [TopicState(0, elsewhere='images are on /other'), (11, 0)],
    ),
    'nothing arrives': (SimulatedActivation, [PUBLISHER, (60, 0), (1, 15)]),
    'nothing arrives from this machine': (SimulatedActivation, [HERE, (4, 0)]),
    'nothing arrives from another machine': (SimulatedActivation, [ELSEWHERE, (4, 0)]),
    'nothing arrives, and earlier images were small': (
        SimulatedActivation,
        [HERE, {'message_bytes': 3000}, (4, 0)],
    ),
    'other QoS': (SimulatedActivation, [MISMATCH, (3, 0), (1, 15)]),
    'other type': (SimulatedActivation, [TopicState(0, mismatch='wrong type'), (3, 0)]),
    'camera starts late': (
        SimulatedActivation,
        [NO_PUBLISHER, (12, 0), PUBLISHER, (4, 0), (1, 15)],
    ),
    'camera starts within 10 s, and has 3 s for its first image': (
        SimulatedActivation,
        [NO_PUBLISHER, (9.5, 0), PUBLISHER, (4, 0)],
    ),
    'subscription is created again': (
        SimulatedActivation,
        [(0.5, 0), TopicState(1, since_s=100.5), (4, 0)],
    ),
    # Images stop arriving.
    'camera ends': (healthy, [NO_PUBLISHER, (12, 0), PUBLISHER, (3, 0), (1, 15)]),
    'QoS changes': (healthy, [MISMATCH, (3, 0), (1, 15)]),
    'slow camera stalls': (
        SimulatedActivation,
        [*[(0.5, 1), (4.5, 0)] * 4, (12, 0), (3, 15), (2, 0)],
    ),
    'camera stalls again and again': (
        healthy,
        [step for pause_s in (2, 20, 200, 20) for step in ((pause_s, 0), (3, 15))],
    ),
    'stall after losses': (healthy, [(0.5, 15, {'lost': 15}), (2, 0)]),
    'stall after losses of small images': (
        healthy,
        [{'message_bytes': 3000}, (0.5, 15, {'lost': 15}), (2, 0)],
    ),
    'stall after a bad image': (healthy, [(0.5, 15, {'bad_step': 1}), (2, 0)]),
    # The pipeline has no output.
    'pipeline hangs': (
        healthy,
        [
            {'in_flight': 1},
            (3, 15, NO_OUTPUT),
            NO_PUBLISHER,
            (3, 0),
            PUBLISHER,
            {'in_flight': 0},
            (3, 15),
        ],
    ),
    'pipeline hangs on the first frame': (
        SimulatedActivation,
        [{'in_flight': 1}, (2, 15, {'published': 0, 'replaced': 14})],
    ),
    'slow model, known from the warm-up': (
        lambda: SimulatedActivation(frame_time_s=1.5),
        [{'in_flight': 1}, (7, 1, {'published': 0})],
    ),
    'slow model, known from frames': (
        SimulatedActivation,
        [
            {'in_flight': 1, 'times': [FrameTimes(0.0, 0.0, 0.0, 0.0, total=1.5)]},
            (7, 1, {'published': 0}),
        ],
    ),
    'model is opened again for the first image, and hangs then': (
        SimulatedActivation,
        [
            OPENING,
            (20, 15, NO_OUTPUT),
            {'pipeline': PipelineStatistics()},
            (3, 15),
            (2, 15, NO_OUTPUT),
        ],
    ),
    'opening the model again never ends': (
        SimulatedActivation,
        [
            OPENING,
            (610, 1, {'published': 0, 'replaced': 1}),
        ],
    ),
    'camera ends while the model is opened again': (
        SimulatedActivation,
        [
            OPENING,
            (5, 15, NO_OUTPUT),
            NO_PUBLISHER,
            (2, 0),
        ],
    ),
    # 20 cameras take turns of 0.1 s, so 2 s are usual, and four times as much is a hang.
    **{
        f'turns of 19 other cameras are no hang, known from {source}': (
            lambda: SimulatedActivation(frame_time_s=0.1, batches_per_turn=20),
            [
                {'in_flight': 1, 'times': times},
                *[(1.5, 15, NO_OUTPUT), (0.5, 15, {'published': 1, 'replaced': 14})] * 5,
                (9.5, 15, NO_OUTPUT),
            ],
        )
        for source, times in (
            ('the warm-up', ()),
            ('frames', [FrameTimes(0.02, 0.0, compute=0.1, publish=0.0, total=0.13)]),
        )
    },
    **{
        f'late answers of a server are no hang, but missing answers are: {cameras} in turn': (
            lambda cameras=cameras: healthy(answer_limit_s=2.0, batches_per_turn=cameras),
            [
                {'in_flight': 1},
                (2 * cameras, 15, {'published': 0}),
                (0.5, 15, {'published': 0, 'timeout': 1}),
                (2 * cameras + 1, 15, {'published': 0}),
            ],
        )
        for cameras in (1, 3)
    },
    'frames always in flight': (healthy, [{'in_flight': 3}, (20, 15)]),
    # Images are dropped.
    'every image is bad': (
        healthy,
        [{'refusal': 'step is too small'}, (3, 15, {'bad_step': 15}), (2.5, 15)],
    ),
    'every image is bad from the start': (
        SimulatedActivation,
        [(2, 15, {'bad_step': 9, 'odd_size': 6})],
    ),
    'one image is bad': (
        healthy,
        [{'refusal': 'step is too small'}, (0.5, 15, {'bad_step': 1}), (2.5, 15)],
    ),
    'not published': (
        healthy,
        [
            {'refusal': 'cannot publish data'},
            (0.5, 15, {'not_published': 2}),
            (0.5, 15, {'bad_step': 1}),
        ],
    ),
    'outputs are invalid': (
        healthy,
        [{'refusal': 'a score'}, (0.5, 15, {'bad_output': 1}), (11, 15, {'bad_output': 15})],
    ),
    'outputs and images are invalid': (
        SimulatedActivation,
        [(11, 15, {'bad_output': 14, 'bad_step': 1})],
    ),
    'one bad image among dropped images': (
        lambda: healthy(2),
        [(0.5, 1, {'unknown_encoding': 1}), (10, 1, {'disabled': 1})],
    ),
    'bad images among dropped images': (
        lambda: healthy(2),
        [(0.5, 20, {'unknown_encoding': 1, 'rate_limit': 19}), (4.5, 20, {'rate_limit': 20})] * 3,
    ),
    'bad image before the camera is disabled': (
        lambda: healthy(2),
        [
            (5, 1, {'unknown_encoding': 1}),
            {'enabled': False},
            (10, 1, {'disabled': 1}),
            {'enabled': True},
            (0.5, 1, {'published': 0}),
            (0.5, 1, {'published': 2}),
        ],
    ),
    'bad images after a silence': (
        healthy,
        [NO_PUBLISHER, (2.5, 0), (0.5, 1, {'bad_step': 1}), (2, 1, {'bad_step': 1})],
    ),
    'bad images after a long silence': (
        healthy,
        [NO_PUBLISHER, (30, 0), (0.5, 1, {'bad_step': 1}), (2, 1, {'bad_step': 1})],
    ),
    'first images are bad': (
        SimulatedActivation,
        [NO_PUBLISHER, (2.5, 0), (3, 1, {'unknown_encoding': 1})],
    ),
    # Images are lost.
    **{
        f'{lost} of {15 + lost} images are lost': (healthy, [(2, 15, {'lost': lost}), (2.5, 15)])
        for lost in (1, 2, 15)
    },
    'small images are lost': (healthy, [{'message_bytes': 3000}, (0.5, 15, {'lost': 15})]),
    'two images are lost': (lambda: healthy(2), [(1, 1, {'lost': 1}), (1.5, 1)]),
    'unknown losses': (healthy, [{'not_delivered': None}, (3, 15)]),
    **{
        f'losses are unknown for {seconds} s, then known again{start}': (
            make_activation,
            [
                {'not_delivered': None},
                (seconds, 15),
                {'not_delivered': 500},
                (4, 15),
                (2, 15, {'lost': 15}),
            ],
        )
        for make_activation, start in ((healthy, ''), (SimulatedActivation, ', from the start'))
        for seconds in (0.5, 3)
    },
    'losses become known while images are replaced': (
        healthy,
        [
            {'not_delivered': None, 'transport_s': 0.004},
            (3, 15, {'replaced': 5}),
            {'not_delivered': 500},
            (1, 15, {'replaced': 5}),
        ],
    ),
    # The camera is faster than the model.
    **{
        f'{replaced} of 15 images are replaced': (
            healthy,
            [(2, 15, {'replaced': replaced}), (2.5, 15)],
        )
        for replaced in (1, 2, 14)
    },
    'images above max_rate_hz are dropped, and others are replaced': (
        healthy,
        [(4, 15, {'rate_limit': 8, 'replaced': 3})],
    ),
    **{
        f'{replaced} of {15 - limited} images below max_rate_hz are replaced': (
            healthy,
            [(4, 15, {'rate_limit': limited, 'replaced': replaced})],
        )
        for limited, replaced in ((5, 1), (10, 1), (12, 1), (14, 1))
    },
    # Of 14 images below max_rate_hz, one is replaced: as if 1.9 of the 27 images were replaced.
    **{
        f'one of 14 images below max_rate_hz is replaced, and {lost} of {27 + lost} are lost': (
            lambda: healthy(60),
            [(4, 27, {'rate_limit': 13, 'replaced': 1, 'lost': lost})],
        )
        for lost in (1, 2)
    },
    'worker is too slow': (
        healthy,
        [{'worker_share': 0.8, 'model_share': 0.6}, (4, 15, {'replaced': 10})],
    ),
    'worker is too slow, and the GPU decodes JPEG': (
        healthy,
        [
            {'pipeline': PipelineStatistics(decodes_jpeg=True), 'worker_share': 0.8},
            (4, 15, {'replaced': 10}),
        ],
    ),
    'model is too slow': (
        healthy,
        [{'worker_share': 0.1, 'model_share': 0.9}, (4, 15, {'replaced': 10})],
    ),
    'images wait in the transport': (
        healthy,
        [HERE, {'transport_s': 0.04, 'intake_s': 0.001}, (2, 15, {'lost': 15})],
    ),
    'images from another machine are lost': (
        healthy,
        [ELSEWHERE, {'transport_s': 0.04, 'intake_s': 0.001}, (2, 15, {'lost': 15})],
    ),
    'images wait for the intake': (
        healthy,
        [{'transport_s': 0.005, 'intake_s': 0.04}, (2, 15, {'lost': 15})],
    ),
    'images wait for the intake because of the worker': (
        healthy,
        [{'intake_s': 0.04, 'worker_share': 0.8}, (2, 15, {'lost': 15})],
    ),
    # One node with more JPEG cameras than its interpreter can serve; the GPU is idle.
    'interpreter is too slow, and images are lost': (
        lambda: healthy(60),
        [JPEG, INTERPRETER, (4, 22, {'lost': 8})],
    ),
    'interpreter is too slow: more lost than replaced': (
        lambda: healthy(60),
        [
            *[JPEG, INTERPRETER],
            (4, 27, {'lost': 3, 'replaced': 2}),
        ],
    ),
    'interpreter is too slow: as many replaced as lost': (
        lambda: healthy(60),
        [
            *[JPEG, INTERPRETER],
            (4, 28, {'lost': 2, 'replaced': 2}),
        ],
    ),
    'stage that is too slow is known from the last second': (
        healthy,
        [
            {'worker_share': 0.9},
            (60, 15),  # no missing images
            {'worker_share': 0.2, 'model_share': 0.8},
            (4, 15, {'replaced': 5}),
            {'worker_share': 0.8, 'model_share': 0.2},
            (4, 15, {'replaced': 5}),
        ],
    ),
    'rate of irregular images is unknown': (
        healthy,
        [
            step
            for pause_s in (0.0, 0.5, 1.5, 0.0, 1.0, 2.5, 0.0, 1.5) * 2
            for step in ((0.5, 10, {'published': 1, 'replaced': 9}), (pause_s, 0))
        ],
    ),
    'camera is too fast, and images are lost': (healthy, [(2, 15, {'lost': 5, 'replaced': 5})]),
    # Nothing is wrong.
    'camera starts': (SimulatedActivation, [(0.5, 0), (0.5, 4), (1.5, 15)]),
}


def play(activation, steps):
    """Simulate steps of an activation, and return a line for each change of the problem's text.

    A step is a new topic state, a dict of new attributes, or a tuple of seconds, images per period
    and optional counts. A change of numbers alone gives no line.
    """
    lines, last, start_s = [], None, activation.time_s
    for step in steps:
        if isinstance(step, TopicState):
            activation.state = step
            continue
        if isinstance(step, dict):
            vars(activation).update(step)
            continue
        seconds, images, changes = (*step, {})[:3]
        for _ in range(round(seconds / PERIOD_S)):
            found = activation.step(images, **changes)
            words = found and (found.kind, re.sub(r'[\d.]+', '', found.message))
            if found and words != last:
                time = f'{activation.time_s - start_s:5.1f} s'
                kind = ' '.join([found.kind, *[f'({found.late_stage})'] * bool(found.late_stage)])
                lines.append(f'{time}  {found.level.name} {kind}: {found.message}')
            last = words
    return lines


@pytest.mark.parametrize('scene', SCENES)
def test_each_scene_reports_the_recorded_problems(scene, golden_messages):
    make_activation, steps = SCENES[scene]
    golden_messages.add('\n'.join(play(make_activation(), steps)))


@pytest.mark.parametrize(
    ('state', 'kind'),
    [(NO_PUBLISHER, 'camera_gone'), (PUBLISHER, 'stalled'), (MISMATCH, 'qos_mismatch')],
)
@pytest.mark.parametrize('rate_hz', [2, 30, 1000])
def test_missing_images_are_reported_within_the_promised_time(state, kind, rate_hz):
    activation = healthy(rate_hz)
    activation.state = state
    # The last image may have arrived just after an update, so add a period.
    assert activation.seconds_until(kind) + PERIOD_S <= PROMISE_S
    assert activation.health_states[-1].level == Level.ERROR
    assert activation.step(max(1, round(rate_hz * PERIOD_S))).kind == ''


def test_ros_graph_is_not_queried_while_images_arrive():
    activation = healthy()
    activation.topic_state = None  # calling None would raise a TypeError
    activation.run(5, 15)


@pytest.mark.parametrize('rate_hz', [10, 30, 200])
@pytest.mark.parametrize('waited_s', [0.5, 3, 60])
@pytest.mark.parametrize('share', [0.1, 0.5, 1.0])
def test_first_reported_rates_of_a_new_camera_are_correct(
    rate_hz, waited_s, share, golden_messages
):
    activation = SimulatedActivation(topic_state=TopicState(0))
    activation.run(waited_s)
    activation.state = TopicState(1)
    images = round(rate_hz * PERIOD_S)
    # The camera's first image arrives at any time between two updates.
    activation.step(max(1, round(share * images)), published=1)
    findings = [activation.step(images, published=2, replaced=images - 2) for _ in range(20)]
    reported = [finding for finding in findings if finding.kind == 'engine_slower']
    assert len(reported) >= 17
    for finding in reported:
        golden_messages.add(finding.message)
    rated = [finding.message for finding in findings if ' Hz' in finding.message]
    assert len(rated) == len(reported), 'not exactly the engine_slower findings have a rate'


def test_page_lists_every_kind_of_problem():
    source = ''.join(map(inspect.getsource, (watchdog, silence, status_summary)))
    kinds = re.findall(r"Level\.(\w+),\s+'(\w+)'", source)
    assert len(kinds) == 18
    table = section((ROOT / 'docs' / 'errors.md').read_text('utf-8'), 'Diagnostics')
    documented = [(row[1], codes(row[0])[0]) for row in rows(table)]
    assert sorted(documented) == sorted(kinds)
    listed = re.findall(r'^- (\w+): ', watchdog.__doc__, re.MULTILINE)
    assert listed == [kind for _, kind in documented]


# Problems of the whole node, instead of one camera.

NO_PROBLEM = StatusSummary(Level.OK, '', 'active')
WARNING = StatusSummary(Level.WARN, 'unreadable', 'it is damaged')
ERROR = StatusSummary(Level.ERROR, 'stalled', 'no image')


@pytest.mark.parametrize(
    ('found', 'same_name', 'notes', 'expected'),
    [
        (NO_PROBLEM, '', [], NO_PROBLEM),
        (
            NO_PROBLEM,
            '',
            ['a note', 'another'],
            StatusSummary(Level.WARN, 'note', 'a note; another'),
        ),
        (WARNING, '', ['a note'], WARNING),
        (NO_PROBLEM, 'two nodes', [], StatusSummary(Level.WARN, 'same_name', 'two nodes')),
        (
            NO_PROBLEM,
            'two nodes',
            ['a note'],
            StatusSummary(Level.WARN, 'same_name', 'two nodes; a note'),
        ),
        (
            WARNING,
            'two nodes',
            ['a note'],
            StatusSummary(Level.WARN, 'same_name', 'two nodes; it is damaged'),
        ),
        (ERROR, 'two nodes', ['a note'], ERROR),
    ],
)
def test_notes_and_equal_node_names_are_added_to_problems(found, same_name, notes, expected):
    assert with_notes(found, same_name, notes) == expected


def test_images_lost_while_a_camera_is_off_are_no_problem_of_the_camera():
    activation = healthy()
    activation.enabled = False
    activation.run(5, 15, lost=5, disabled=15)
    activation.enabled = True
    activation.run(3, 15)
    assert {state.kind for state in activation.health_states} == {''}
    assert activation.seconds_until('lost_in_transport', 15, lost=5) <= PROMISE_S
