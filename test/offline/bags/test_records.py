# SPDX-License-Identifier: Apache-2.0
"""Tests of files of raw results: they come back unchanged, and damage is noticed."""

import errno
import json
import os
import random
import struct
import tracemalloc

import numpy as np
import pytest

from trt_perception.bags.bag import BagLoss
from trt_perception.errors import ConfigError, WriteError
from trt_perception.images.detections import Detections
from trt_perception.offline.bags.records import (
    FrameRecord,
    PartReader,
    PartReport,
    PartWriter,
    StoredMasks,
)
from trt_perception.wire.cdr import HeaderFields, StampFields

zstandard = pytest.importorskip('zstandard')
HEADER = HeaderFields(StampFields(1_700_000_000, 5), 'caméra')


def record(count, **fields):
    random_values = np.random.default_rng(count)
    found = Detections(
        random_values.random((count, 4), np.float32),
        random_values.random(count, np.float32),
        random_values.integers(0, 9, count).astype(np.int32),
        left_out=count,
        **fields,
    )
    return FrameRecord('front', 10**18 + count, HEADER, (640, 480), found)


def records():
    numbers = np.random.default_rng(0).integers(0, 3, (48, 64)).astype(np.uint16)
    return [
        record(0),
        record(3, keypoints=np.ones((3, 5, 3), np.float32)),
        record(2, oriented=np.ones((2, 5), np.float32), numbered=StoredMasks(numbers)),
        FrameRecord('', 7, HEADER, (1, 1), messages=(('depth', b'abc'), ('labels', b''))),
    ]


REPORT = PartReport(
    4, {'bad_step': 2}, {'bad_step': 'a sentence'}, 1, [BagLoss('a.mcap', 5, None, 'cut')]
)


@pytest.fixture
def file(tmp_path):
    with PartWriter(tmp_path / '0.raw') as writer:
        for each in records():
            writer.add(each)
        writer.finish(REPORT)
    return tmp_path / '0.raw'


def test_records_come_back_unchanged(file):
    with PartReader(file) as reader:
        found = list(reader)
        assert reader.report == REPORT
    for one, other in zip(found, records(), strict=True):
        assert (one.camera, one.log_ns, one.header) == (other.camera, other.log_ns, other.header)
        assert (one.size_wh, one.messages) == (other.size_wh, other.messages)
        assert (one.found is None) == (other.found is None)
        if one.found is None or other.found is None:
            continue
        assert one.found.left_out == other.found.left_out
        for name in ('xyxy', 'scores', 'class_ids', 'keypoints', 'oriented'):
            assert np.array_equal(getattr(one.found, name), getattr(other.found, name))
        if other.found.numbered is not None:
            numbers = np.empty((48, 64), np.uint16)
            one.found.numbered.number(numbers)
            assert np.array_equal(numbers, other.found.numbered.numbers)


def test_unfinished_file_does_not_appear(tmp_path):
    with PartWriter(tmp_path / '0.raw') as writer:
        writer.add(record(3))
    assert not list(tmp_path.iterdir())


def test_damaged_file_is_refused(file):
    """A damaged file never gives other results. Some bits of its headers have no meaning."""
    content = file.read_bytes()
    whole = contents(file)
    chooser = random.Random(1)
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        if chooser.random() < 0.3:
            del damaged[chooser.randrange(len(damaged)) :]
        else:
            damaged[chooser.randrange(len(damaged))] ^= 1 << chooser.randrange(8)
        file.write_bytes(damaged)
        try:
            assert contents(file) == whole
        except ConfigError:
            refused += 1
    assert refused > 250


def entry(head, content=b'', size=None):
    """Return an entry of a file, with any head."""
    text = json.dumps(head).encode()
    whole = struct.pack('<I', len(text)) + text + content
    packed = zstandard.ZstdCompressor().compress(whole)
    return struct.pack('<II', len(packed), len(whole) if size is None else size) + packed


HEAD = {
    'camera': 'front',
    'log_ns': 1,
    'stamp': [1, 2],
    'frame_id': 'x',
    'size': [4, 4],
    'found': False,
    'left_out': 0,
    'arrays': [],
    'messages': [],
}
END = entry({'report': PartReport().as_dict()})


@pytest.mark.parametrize(
    'change',
    [
        {'log_ns': 'now'},
        {'log_ns': -1},
        {'log_ns': 2**64},
        {'log_ns': True},
        {'stamp': ['x', 0]},
        {'stamp': [2**31, 0]},
        {'stamp': [0, -1]},
        {'stamp': [0]},
        {'size': ['4', 4]},
        {'found': True},
        {'found': True, 'arrays': [['other', '<f4', [0]]]},
        {'arrays': [['scores', 'O', [1]]]},
    ],
)
def test_entry_with_impossible_values_is_refused(file, change):
    start = file.read_bytes()[: len(b'detect_bag part 1\n')]
    file.write_bytes(start + entry(HEAD) + END)
    assert len(contents(file)[0]) == 1
    file.write_bytes(start + entry({**HEAD, **change}) + END)
    with pytest.raises(ConfigError):
        contents(file)


def test_entry_that_decompresses_to_more_than_it_states_is_refused_without_memory(file):
    start = file.read_bytes()[: len(b'detect_bag part 1\n')]
    file.write_bytes(start + entry(HEAD, bytes(2**27), size=100) + END)
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError):
            contents(file)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def contents(file):
    """Return the values of all records as text, and the report."""
    with PartReader(file) as reader:
        rows = []
        for each in reader:
            found = each.found
            arrays = [] if found is None else [found.xyxy, found.scores, found.keypoints]
            if found is not None and found.numbered is not None:
                arrays.append(found.numbered.numbers)
            texts = [None if array is None else array.tobytes() for array in arrays]
            rows.append((each.camera, each.log_ns, each.header, each.messages, texts))
        return rows, reader.report


def test_reports_add_up():
    total = PartReport()
    for _ in range(2):
        total.add(REPORT)
    assert (total.images, total.unread, total.skipped) == (8, {'bad_step': 4}, 2)
    assert total.losses == REPORT.losses  # one loss that two parts report
    assert not total.is_complete


def test_fix_depends_on_why_a_file_cannot_be_written(tmp_path, monkeypatch, golden_messages):
    with golden_messages.raises(WriteError):
        PartWriter(tmp_path / 'gone' / '000000.raw')
    for number in (errno.ENOSPC, errno.EROFS):

        def fail(_descriptor, number=number):
            raise OSError(number, os.strerror(number))

        with PartWriter(tmp_path / '000000.raw') as writer:
            monkeypatch.setattr(os, 'fsync', fail)
            with golden_messages.raises(WriteError):
                writer.finish(PartReport())
    assert not list(tmp_path.iterdir())
