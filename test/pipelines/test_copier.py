"""Copying by several threads: every byte, once, and whatever goes wrong is heard of."""

import threading

import numpy as np
import pytest

from trt_perception.pipelines.copier import Copier

MIB = 2**20


@pytest.mark.parametrize('size', [0, 1, MIB - 1, MIB, 2 * MIB, 3 * MIB + 7, 9 * MIB + 1])
def test_every_byte_is_copied_and_none_beyond(size):
    source = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    target = np.full(size + 64, 7, np.uint8)
    copier = Copier()
    try:
        for _ in range(3):
            copier.copy(target, source)
            assert (target[:size] == source).all()
            assert (target[size:] == 7).all()
            source = source[::-1].copy()
    finally:
        copier.close()


def test_an_error_in_a_thread_is_raised():
    source = np.zeros(4 * MIB, np.uint8)
    target = np.zeros(4 * MIB, np.uint8)
    target.flags.writeable = False
    short = np.zeros(3 * MIB, np.uint8)
    copier = Copier()
    try:
        with pytest.raises(ValueError, match='read-only'):
            copier.copy(target, source)
        with pytest.raises(ValueError, match='broadcast'):
            copier.copy(short, source)  # too short where only the last thread copies
        whole = np.ones(4 * MIB, np.uint8)
        copier.copy(short.repeat(2), whole[: 3 * MIB])  # and it works on
    finally:
        copier.close()


def test_no_thread_is_left():
    before = threading.active_count()
    copier = Copier()
    assert threading.active_count() > before
    copier.close()
    copier.close()
    assert threading.active_count() == before


def test_a_thread_that_cannot_start_leaves_none(monkeypatch):
    before = threading.active_count()
    start, left = threading.Thread.start, [1]

    def one_only(thread):
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, 'start', one_only)
    with pytest.raises(RuntimeError, match='new thread'):
        Copier()
    assert not left
    assert threading.active_count() == before
