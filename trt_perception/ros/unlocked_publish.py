"""Publishing a large message without holding the interpreter's lock.

rclpy holds the lock until the middleware has taken a message. With Fast DDS that is until the last
byte is sent: 20 ms for 36 MB on one machine, and 1.9 s to a subscriber behind 200 Mbit/s, in which
no service is answered and no image taken. The same call of rcl, made by ctypes, releases the lock.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
import numpy.typing as npt
from rclpy.publisher import Publisher

__all__ = ['publish_unlocked']


class _Allocator(ctypes.Structure):
    """rcutils_allocator_t: allocate, deallocate, reallocate, zero_allocate and their state."""

    _fields_ = (('members', ctypes.c_void_p * 5),)


class _SerializedMessage(ctypes.Structure):
    """rcl_serialized_message_t, which is rcutils_uint8_array_t."""

    _fields_ = (
        ('buffer', ctypes.c_void_p),
        ('length', ctypes.c_size_t),
        ('capacity', ctypes.c_size_t),
        ('allocator', _Allocator),
    )


@cache
def _libraries() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """Return rcl and rcutils, which rclpy has loaded into the process."""
    rcl, rcutils = ctypes.CDLL('librcl.so'), ctypes.CDLL('librcutils.so')
    rcl.rcl_publish_serialized_message.argtypes = (
        ctypes.c_void_p,
        ctypes.POINTER(_SerializedMessage),
        ctypes.c_void_p,
    )
    rcutils.rcutils_get_default_allocator.restype = _Allocator
    return rcl, rcutils


def publish_unlocked(publisher: Publisher, message: npt.NDArray[np.uint8]) -> None:
    """Publish a serialised message; other threads run meanwhile.

    A publisher that another thread destroys meanwhile stays valid until this call returns.

    Args:
        publisher: of the message's type.
        message: uint8, one-dimensional, contiguous: as rclpy.serialization writes it.

    Raises:
        RuntimeError: the middleware does not take the message.
    """
    rcl, rcutils = _libraries()
    size = message.size
    serialized = _SerializedMessage(
        message.ctypes.data, size, size, rcutils.rcutils_get_default_allocator()
    )
    with publisher.handle:
        code = rcl.rcl_publish_serialized_message(
            publisher.handle.pointer, ctypes.byref(serialized), None
        )
    if code:
        rcutils.rcutils_reset_error()
        raise RuntimeError(
            f'the middleware did not take a message of {size} bytes: '
            f'rcl_publish_serialized_message returned {code}'
        )
