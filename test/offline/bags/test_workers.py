# SPDX-License-Identifier: Apache-2.0
"""Tests of the processes that run parts: a part that dies, a model that cannot be opened."""

import contextlib
import multiprocessing
import os
import signal
import threading

import pytest

from support.detect_bags import START_NS, camera_rows, write_bag
from support.models.picture_model import picture_with, write_picture_model
from support.optional_packages import needs
from trt_perception.errors import ConfigError, WriteError
from trt_perception.offline.bags.part import BagCamera, Job, Part
from trt_perception.offline.bags.workers import Failed, Finished, Opened, run_parts
from trt_perception.parameters.camera import NodeParameters

pytestmark = [needs('onnx'), needs('rosbags'), needs('mcap')]
SECOND = 10**9


@pytest.fixture
def job(tmp_path):
    path = write_picture_model(tmp_path / 'picture.onnx')
    return Job(str(path), NodeParameters.from_values({'cameras': ['front']}))


@pytest.fixture
def parts(tmp_path):
    pictures = [picture_with([(20, 20, 10, 12, 0.8)])] * 20
    bag = write_bag(tmp_path / 'bag', camera_rows('/front/image', pictures))
    cameras = (BagCamera('front', '/front/image', is_compressed=False),)
    return [
        Part(
            str(bag),
            number,
            START_NS + number * SECOND,
            START_NS + (number + 1) * SECOND,
            cameras,
            (64, 48),
            tmp_path / f'{number}.raw',
        )
        for number in range(2)
    ]


def kill_children():
    for child in multiprocessing.active_children():
        os.kill(child.pid, signal.SIGKILL)


def test_part_that_always_dies_is_given_up_after_three_tries(job, parts):
    opened, failed = 0, []
    for event in run_parts(parts, job, 1, [0]):
        if isinstance(event, Opened):
            opened += 1
            kill_children()
        elif isinstance(event, Failed):
            failed.append(event.part)
    assert failed == parts
    assert opened == 6
    assert not any(part.target.exists() for part in parts)


def test_part_that_dies_once_is_run_again(job, parts):
    opened, finished = 0, []
    for event in run_parts(parts, job, 1, [0]):
        if isinstance(event, Opened):
            opened += 1
            if opened == 1:
                kill_children()
        elif isinstance(event, Finished):
            finished.append(event.part)
    assert finished == parts
    assert all(part.target.exists() for part in parts)


def test_bag_that_is_gone_is_named_once(job, parts, tmp_path, golden_messages):
    (tmp_path / 'bag').rename(tmp_path / 'moved')
    failed = [event for event in run_parts(parts, job, 1, [0]) if isinstance(event, Failed)]
    assert [event.part for event in failed] == parts
    for event in failed:
        golden_messages.add(event.sentence)


def test_ctrl_c_does_not_reach_workers_that_start(job, parts):
    """A terminal sends Ctrl-C to all processes. The command ends its workers."""
    is_open, events = threading.Event(), []

    def interrupt():
        while not is_open.wait(0.002):
            for child in multiprocessing.active_children():
                with contextlib.suppress(ProcessLookupError):  # the child has just ended
                    os.kill(child.pid, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        for event in run_parts(parts, job, 1, [0]):
            is_open.set()
            events.append(type(event))
    finally:
        is_open.set()
        thread.join()
    assert events.count(Opened) == 1
    assert events.count(Finished) == 2


def test_closing_ends_all_processes(job, parts):
    events = run_parts(parts, job, 2, [0])
    assert isinstance(next(events), Opened)
    events.close()
    assert not multiprocessing.active_children()


def test_model_that_cannot_be_opened_is_refused(job, parts):
    bad = Job(job.model, NodeParameters.from_values({'class_filter': ['unicorn']}))
    with pytest.raises(ConfigError):
        list(run_parts(parts, bad, 2, [0]))
    assert not multiprocessing.active_children()


def test_file_that_cannot_be_written_ends_the_run(job, parts, tmp_path):
    gone = [Part(**{**vars(part), 'target': tmp_path / 'gone' / '0.raw'}) for part in parts]
    with pytest.raises(WriteError):
        list(run_parts(gone, job, 1, [0]))
