# SPDX-License-Identifier: Apache-2.0
"""Publishes large messages without holding the GIL.

rclpy holds the GIL until the middleware has accepted a message. Fast DDS accepts a message when
its last byte is sent: after 20 ms for 36 MB on one machine, and after 1.9 s for a subscriber
behind 200 Mbit/s. Until then, the node answers no service and takes no image. The same function of
rcl, called by ctypes, releases the GIL. If rcl has another interface than the expected one, rclpy
publishes.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from typing import Any, Final

from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.publisher import Publisher

from trt_perception.ros.wire.rcl import ErrorString, RclError, SerializedArray, load_rcl

_LOG: Final = logging.getLogger(__name__)


@cache
def _libraries() -> tuple[ctypes.CDLL, ctypes.CDLL] | None:
    """Return rcl and rcutils, which rclpy has already loaded; None if a layout differs."""
    try:
        load_rcl()
    except RclError as error:
        _LOG.warning('large messages are published by rclpy, so other threads wait: %s', error)
        return None
    rcl, rcutils = ctypes.CDLL('librcl.so'), ctypes.CDLL('librcutils.so')
    rcl.rcl_publish_serialized_message.argtypes = (ctypes.c_void_p,) * 3
    rcutils.rcutils_get_error_string.restype = ErrorString
    return rcl, rcutils


def publish_unlocked(publisher: Publisher, message: Any) -> None:
    """Publish a serialised message without the GIL, so that other threads can run.

    The publisher stays valid until the call ends, even if another thread destroys it meanwhile.

    Args:
        message: a bytearray, memoryview or uint8 array, one-dimensional, contiguous and writable,
            in the format of `rclpy.serialization`.

    Raises:
        RCLError: the middleware refused the message. rclpy's `publish` raises the same error.
    """
    libraries = _libraries()
    if libraries is None:
        publisher.publish(bytes(message))
        return
    rcl, rcutils = libraries
    size = len(message)
    # An address from NumPy would take 10 µs longer. Publishing uses no allocator.
    address = ctypes.addressof((ctypes.c_char * bool(size)).from_buffer(message))
    serialized = SerializedArray(address, size, size)
    handle = publisher.handle
    with handle:
        code = rcl.rcl_publish_serialized_message(handle.pointer, ctypes.byref(serialized), None)
    if code:
        reason = rcutils.rcutils_get_error_string().text.decode(errors='replace')
        rcutils.rcutils_reset_error()
        raise rclpy_implementation.RCLError(f'a message of {size} bytes: {reason} ({code})')
