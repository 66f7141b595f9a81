"""The rules about silence, by a clock of the test's own."""

import inspect
import re

import pytest

from support.docs_pages import ROOT, codes, rows, section
from support.watched_life import CURE, Life, healthy
from trt_perception.monitoring import problem, watchdog
from trt_perception.monitoring.frame_statistics import FrameTimes
from trt_perception.monitoring.problem import Level, Problem, with_notes
from trt_perception.monitoring.watchdog import PERIOD_S, TopicState

PROMISE_S = 2.0


def test_a_fresh_activation_waits():
    assert Life().step() == Problem(Level.OK, '', 'active, waiting for images')


@pytest.mark.parametrize(
    ('state', 'kind', 'level'),
    [
        (
            TopicState(0),
            'no_publisher',
            Level.WARN,
        ),
        (TopicState(0, elsewhere='look there'), 'no_publisher', Level.WARN),
        (TopicState(1), 'not_arriving', Level.WARN),
        (TopicState(1, mismatch='set that'), 'qos_mismatch', Level.ERROR),
        (TopicState(0, mismatch='wrong type'), 'qos_mismatch', Level.ERROR),
    ],
)
def test_nothing_ever_came(state, kind, level, said):
    life = Life(topic_state=state)
    if kind == 'no_publisher':  # it may be starting, and is found by and by
        assert {life.step().kind for _ in range(19)} == {''}
        life.time_s += PERIOD_S
        assert life.step().kind == kind
    else:
        assert life.seconds_until(kind) <= PROMISE_S - PERIOD_S
    assert life.findings[-1].level == level
    said(life.findings[-1].message)
    assert life.run(60).kind == kind
    assert life.step(15).kind == ''


@pytest.mark.parametrize(
    ('state', 'kind'),
    [
        (TopicState(0), 'camera_gone'),
        (TopicState(1), 'stalled'),
        (TopicState(1, mismatch='set that'), 'qos_mismatch'),
    ],
)
@pytest.mark.parametrize('rate_hz', [2, 30, 1000])
def test_images_came_and_come_no_more(state, kind, rate_hz, said):
    life = healthy(rate_hz)
    life.state = state
    # The last image may have come just after a question.
    assert life.seconds_until(kind) + PERIOD_S <= PROMISE_S
    assert life.findings[-1].level == Level.ERROR
    said(life.findings[-1].message)
    assert life.step(max(1, round(rate_hz * PERIOD_S))).kind == ''


def test_a_camera_that_comes_late_is_given_time(said):
    life = Life()
    for gone, silent in (
        ('no_publisher', 'not_arriving'),
        ('camera_gone', 'stalled'),  # once images have come
    ):
        life.state = TopicState(0)
        assert life.run(12).kind == gone
        life.state = TopicState(1)
        assert life.step().kind == (gone if gone == 'camera_gone' else '')
        said(life.findings[-1].message)
        assert life.seconds_until(silent) + PERIOD_S <= PROMISE_S
        assert life.step(15).kind == ''


def test_the_graph_is_asked_only_while_nothing_arrives():
    life = healthy()
    life.topic_state = None  # to call it would raise
    life.run(5, 15)


def test_a_slow_camera_is_left_its_time():
    life = Life()
    for _ in range(4):
        life.step(1)
        quiet = [life.step().kind for _ in range(9)]  # one image in 5 s
    assert set(quiet) == {''}
    assert life.seconds_until('stalled') <= 3 * 5 + PERIOD_S
    # After a while the camera is judged by what it does now.
    life.run(3, 15)
    assert life.seconds_until('stalled') + PERIOD_S <= PROMISE_S


def test_a_camera_that_stalls_again_and_again():
    life = healthy()
    for pause_s in (2, 20, 200, 20):
        assert life.seconds_until('stalled') + PERIOD_S <= PROMISE_S
        life.run(pause_s)
        life.run(3, 15)


def test_a_pipeline_that_hangs(said):
    life = healthy()
    life.in_flight = 1
    assert life.seconds_until('no_output', 15, published=0, replaced=15) + PERIOD_S <= PROMISE_S
    assert life.findings[-1].level == Level.ERROR
    said(life.findings[-1].message)
    # Even when the camera has gone meanwhile, this is the worse.
    life.state = TopicState(0)
    assert life.run(5).kind == 'no_output'
    life.state = TopicState(1)
    life.in_flight = 0
    assert life.run(3, 15).kind == ''


def test_a_hang_on_the_very_first_frame():
    life = Life()
    life.in_flight = 1
    assert life.seconds_until('no_output', 15, published=0, replaced=14) <= PROMISE_S


@pytest.mark.parametrize('known_by', ['warm-up', 'frames'])
def test_a_slow_model_is_left_its_time(known_by):
    life = Life(frame_s=1.5 if known_by == 'warm-up' else 0.02)
    if known_by == 'frames':
        life.times = [FrameTimes(0.0, 0.0, 0.0, 0.0, total=1.5)]
    life.in_flight = 1
    kinds = [life.step(1, published=0).kind for _ in range(11)]
    assert 'no_output' not in kinds
    assert life.step(1, published=0).kind == 'no_output'


@pytest.mark.parametrize('known_by', ['warm-up', 'frames'])
def test_a_camera_is_left_the_time_that_the_others_take(known_by):
    # 20 cameras in turn, 0.1 s each; this one sends 30 Hz, so that what comes out is young.
    life = Life(frame_s=0.1, turns=20)
    if known_by == 'frames':
        life.times = [FrameTimes(0.02, 0.0, compute=0.1, publish=0.0, total=0.13)]
    life.in_flight = 1
    for _ in range(5):
        kinds = [life.step(15, published=0, replaced=15).kind for _ in range(3)]
        assert 'no_output' not in kinds
        life.step(15, published=1, replaced=14)
    # Four times what it usually takes, as with one camera.
    assert 7.5 < life.seconds_until('no_output', 15, published=0, replaced=15) <= 9.5


def test_frames_always_in_flight_are_no_hang():
    life = healthy()
    life.in_flight = 3
    assert life.run(20, 15).kind == ''


def test_every_image_is_bad(said):
    life = healthy()
    life.refusal = 'step is too small'
    assert life.seconds_until('all_dropped', 15, bad_step=15) + PERIOD_S <= PROMISE_S
    finding = life.findings[-1]
    assert finding.level == Level.ERROR
    said(finding.message)
    assert life.run(2.5, 15).kind == ''


def test_every_image_is_bad_from_the_start(said):
    life = Life()
    assert life.seconds_until('all_dropped', 15, bad_step=9, odd_size=6) <= PROMISE_S
    said(life.findings[-1].message)


def test_some_images_are_bad(said):
    life = healthy()
    life.refusal = 'step is too small'
    finding = life.step(15, bad_step=1)
    assert (finding.kind, finding.level) == ('unreadable', Level.WARN)
    said(finding.message)
    assert life.run(2.5, 15).kind == ''


def test_some_detections_are_not_published(said):
    life = healthy()
    life.refusal = 'cannot publish data'
    finding = life.step(15, not_published=2)
    assert (finding.kind, finding.level) == ('not_published', Level.WARN)
    said(finding.message)
    # An image that nobody can read is the worse news.
    assert life.step(15, bad_step=1).kind == 'unreadable'


def test_one_bad_image_among_those_that_nobody_wanted(said):
    life = healthy(2)
    life.step(1, unknown_encoding=1)
    for _ in range(20):
        assert life.step(1, disabled=1).kind in ('', 'unreadable')
    life = healthy(2)
    life.refusal = 'the encoding'
    for number in range(1, 4):  # one of twenty is wanted, and bad
        finding = life.step(20, unknown_encoding=1, rate_limit=19)
        for _ in range(9):
            finding = life.step(20, rate_limit=20)
        assert (finding.kind == 'all_dropped') == (number == 3), number
    said(finding.message)


def test_what_was_bad_before_a_camera_was_switched_off_is_forgotten():
    life = healthy(2)
    life.run(5, 1, unknown_encoding=1)
    assert life.findings[-1].kind == 'all_dropped'
    life.enabled = False
    life.run(10, 1, disabled=1)
    life.enabled = True
    # Its first image is on its way, and good.
    assert life.step(1, published=0).kind != 'all_dropped'
    assert life.step(1, published=2).kind == ''


@pytest.mark.parametrize('silent_s', [2.5, 30])
def test_one_bad_image_after_a_silence_is_not_every_image(silent_s):
    for life in (Life(topic_state=TopicState(0)), healthy(topic_state=TopicState(0))):
        life.run(silent_s)
        assert life.step(1, unknown_encoding=1).kind == 'unreadable'
        assert life.seconds_until('all_dropped', 1, unknown_encoding=1) <= PROMISE_S


def test_a_subscription_that_was_made_anew_has_its_time():
    life = Life(topic_state=TopicState(1))
    life.run(0.5)
    life.state = TopicState(1, since_s=life.time_s)
    assert life.run(0.5).kind == ''
    assert life.seconds_until('not_arriving') <= PROMISE_S


def test_one_bad_image_and_then_a_stall():
    life = healthy()
    life.step(15, bad_step=1)
    assert life.seconds_until('stalled') + PERIOD_S <= PROMISE_S


@pytest.mark.parametrize(('lost', 'warned'), [(1, False), (2, True), (15, True)])
def test_images_lost_on_the_way(lost, warned, said):
    life = healthy()
    kinds = {life.step(15, lost=lost).kind for _ in range(4)}
    assert ('lost_in_transport' in kinds) == warned
    if warned:
        assert life.findings[-1].level == Level.WARN
        said(life.findings[-1].message)
        assert CURE in life.findings[-1].message
        assert life.run(2.5, 15).kind == ''


def test_small_images_are_lost_for_their_number(said):
    life = healthy()
    life.message_bytes = 3000
    message = life.step(15, lost=15).message
    assert CURE not in message
    said(message)


def test_a_camera_is_not_blamed_alone_where_the_transport_has_lost_images(said):
    for lost, size, blamed in ((15, 6_000_000, True), (0, 6_000_000, False), (15, 3000, False)):
        life = healthy()
        life.message_bytes = size
        life.step(15, lost=lost)
        life.seconds_until('stalled')
        message = life.findings[-1].message
        said(message)
        assert ('the transport, which has lost 15 before' in message) == blamed
        assert (CURE in message) == blamed


def test_two_lost_images_are_no_news():
    life = healthy(2)
    assert {life.step(1, lost=lost).kind for lost in (1, 1, 0, 0, 0)} == {''}


def test_losses_are_unknown_with_several_publishers():
    life = healthy()
    life.not_delivered = None
    assert life.run(3, 15).kind == ''


@pytest.mark.parametrize(('replaced', 'warned'), [(1, False), (2, True), (14, True)])
def test_an_engine_slower_than_the_camera(replaced, warned, said):
    life = healthy()
    kinds = [life.step(15, replaced=replaced).kind for _ in range(4)]
    assert ('engine_slower' in kinds) == warned
    if warned:
        assert life.findings[-1].level == Level.WARN
        said(life.findings[-1].message)
        assert life.run(2.5, 15).kind == ''


@pytest.mark.parametrize('rate_hz', [10, 30, 200])
@pytest.mark.parametrize('waited_s', [0.5, 3, 60])
@pytest.mark.parametrize('share', [0.1, 0.5, 1.0])
def test_rates_of_a_camera_that_begins_are_right_from_the_first_word(
    rate_hz, waited_s, share, said
):
    life = Life(topic_state=TopicState(0))
    life.run(waited_s)
    life.state = TopicState(1)
    images = round(rate_hz * PERIOD_S)
    # Its first image comes somewhere between two looks.
    life.step(max(1, round(share * images)), published=1)
    findings = [life.step(images, published=2, replaced=images - 2) for _ in range(20)]
    told = [finding for finding in findings if finding.kind == 'engine_slower']
    assert len(told) >= 17
    for finding in told:
        said(finding.message)
    rated = [finding.message for finding in findings if ' Hz' in finding.message]
    assert len(rated) == len(told), 'no other rate is said'


def test_no_rate_is_said_of_what_comes_unevenly():
    life = healthy()
    findings = []
    for seconds in (0.5, 1.0, 2.0, 0.5, 1.5, 3.0, 0.5, 2.0) * 2:
        findings.append(life.step(10, published=1, replaced=9))
        findings += [life.step() for _ in range(round(seconds / PERIOD_S) - 1)]
    told = [finding.message for finding in findings if finding.kind == 'engine_slower']
    assert told
    assert not any(' Hz' in message for message in told)
    assert all('images come faster than the model takes them' in message for message in told)


def test_nothing_else_has_a_rate_before_it_is_known(said):
    life = Life()
    life.step()
    findings = [life.step(count) for count in (4, 15, 15, 15)]
    assert [finding.message for finding in findings] == [
        'active',
        'active',
        'active, 30.0 Hz',
        'active, 30.0 Hz',
    ]
    said(healthy().step().message)


def test_losses_of_a_camera_that_is_too_fast_anyway_only_count_for_its_rate(said):
    life = healthy()
    finding = life.run(2, 15, lost=5, replaced=5)
    assert finding.kind == 'engine_slower'
    said(finding.message)


def test_the_page_has_every_kind():
    source = inspect.getsource(watchdog) + inspect.getsource(problem)
    kinds = re.findall(r"Level\.(\w+),\s+'(\w+)'", source)
    assert len(kinds) == 13
    table = section((ROOT / 'docs' / 'faults.md').read_text('utf-8'), 'Silence')
    told = [(row[1], codes(row[0])[0]) for row in rows(table)]
    assert sorted(told) == sorted(kinds)
    listed = re.findall(r'^    (\w+)  ', watchdog.__doc__, re.MULTILINE)
    assert listed == [kind for _, kind in told]


# What concerns the whole node.

WELL = Problem(Level.OK, '', 'active')
BAD = Problem(Level.WARN, 'unreadable', 'it is damaged')
WORSE = Problem(Level.ERROR, 'stalled', 'no image')


@pytest.mark.parametrize(
    ('found', 'same_name', 'notes', 'expected'),
    [
        (WELL, '', [], WELL),
        (WELL, '', ['a note', 'another'], Problem(Level.WARN, 'note', 'a note; another')),
        (BAD, '', ['a note'], BAD),
        (WELL, 'two nodes', [], Problem(Level.WARN, 'same_name', 'two nodes')),
        (WELL, 'two nodes', ['a note'], Problem(Level.WARN, 'same_name', 'two nodes; a note')),
        (
            BAD,
            'two nodes',
            ['a note'],
            Problem(Level.WARN, 'same_name', 'two nodes; it is damaged'),
        ),
        (WORSE, 'two nodes', ['a note'], WORSE),
    ],
)
def test_notes_and_nodes_of_one_name_are_added(found, same_name, notes, expected):
    assert with_notes(found, same_name, notes) == expected
