# SPDX-License-Identifier: Apache-2.0
"""Tests that structs of another rcl are refused, with a library that was compiled with them."""

import ctypes

import pytest

from support.rcl_stand_in import (
    CHANGED_LAYOUTS,
    compile_stand_in,
    load_instead_of_rcl,
    needs_compiler,
)
from trt_perception.ros.wire import rcl
from trt_perception.ros.wire.rcl import MessageTaker, Rcl, RclError, WaitSet

pytestmark = needs_compiler
CONTEXT, SUBSCRIPTION, GUARD, EVENT = 1, 2, 3, 4


def take_one_message():
    """Use the library as an intake does. Return the message, its info and the ready flags."""
    library = Rcl()
    wait_set = WaitSet(library, CONTEXT, [SUBSCRIPTION], [GUARD], [EVENT])
    wait_set.wait()
    ready = list(wait_set.subscription_ready_flags())
    memory = ctypes.create_string_buffer(64)
    taker = MessageTaker(library, lambda _: 0)
    status = taker.take(SUBSCRIPTION, ctypes.addressof(memory), len(memory))
    wait_set.close()
    info = taker.info
    numbers = info.source_timestamp, info.received_timestamp, info.publication_sequence_number
    return status, memory.raw[: taker.array.length], numbers, ready


def test_expected_layout_is_used(tmp_path, monkeypatch):
    load_instead_of_rcl(monkeypatch, compile_stand_in(tmp_path, {}))
    assert take_one_message() == (0, b'image', (100, 103, 7), [SUBSCRIPTION])


@pytest.mark.parametrize('change', CHANGED_LAYOUTS)
def test_other_layout_is_refused(tmp_path, monkeypatch, change):
    load_instead_of_rcl(monkeypatch, compile_stand_in(tmp_path, CHANGED_LAYOUTS[change]))
    with pytest.raises(RclError):
        take_one_message()


def test_longer_error_text_is_read(tmp_path, monkeypatch):
    load_instead_of_rcl(monkeypatch, compile_stand_in(tmp_path, {'ERROR_BYTES': 2048}))
    with pytest.raises(RclError) as caught:
        Rcl().check('rcl_wait', 1)
    assert caught.value.found == '1: eee'


@pytest.mark.parametrize('error', [AttributeError('pointer'), TypeError('takes 5 arguments')])
def test_other_handles_of_rclpy_are_refused(error):
    with pytest.raises(RclError), rcl.expected_handles():
        raise error
