"""Publishes large messages without holding the GIL.

rclpy holds the GIL until the middleware has accepted a message. Fast DDS accepts a message when
its last byte is sent: after 20 ms for 36 MB on one machine, and after 1.9 s for a subscriber
behind 200 Mbit/s. Until then, the node answers no service and takes no image. The same function of
rcl, called by ctypes, releases the GIL.
"""

from __future__ import annotations

import ctypes
import struct
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.publisher import Publisher
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage, Image

from trt_perception.ros.wire.rcl import ErrorString, SerializedArray

__all__ = ['publish_unlocked', 'serialize_in_place', 'serialize_with_room']


@cache
def _libraries() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """Return rcl and rcutils, which rclpy has already loaded."""
    rcl, rcutils = ctypes.CDLL('librcl.so'), ctypes.CDLL('librcutils.so')
    rcl.rcl_publish_serialized_message.argtypes = (ctypes.c_void_p,) * 3
    rcutils.rcutils_get_error_string.restype = ErrorString
    return rcl, rcutils


def serialize_with_room(
    empty: Image | CompressedImage, size: int, memory: npt.NDArray[np.uint8] | None = None
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Serialise an image without data, and reserve room for the data behind it.

    The caller writes the data into the returned view, so no Python object of the data is needed.

    Args:
        empty: the message without data. The data are the last field of both message types.
        size: size of the data in bytes.
        memory: memory of an earlier message; reused if it has the right size.

    Returns:
        The serialised message, and a view of its data; both uint8, one-dimensional.
    """
    start = _start_of(empty, size)
    if memory is None or memory.size != len(start) + size:
        memory = np.empty(len(start) + size, np.uint8)
    memory[: len(start)] = np.frombuffer(start, np.uint8)
    return memory, memory[len(start) :]


def serialize_in_place(
    empty: Image, memory: npt.NDArray[np.uint8], room: int
) -> npt.NDArray[np.uint8]:
    """Serialise an image whose data are in memory already, without a copy of the data.

    Args:
        empty: the message without data.
        memory: uint8, one-dimensional: `room` bytes for the header, then the data.
        room: size of the room. If it is too small for the header, the data are copied.

    Returns:
        The serialised message, a part of `memory`.
    """
    start = np.frombuffer(_start_of(empty, memory.size - room), np.uint8)
    if len(start) > room:
        return np.concatenate([start, memory[room:]])
    message = memory[room - len(start) :]
    message[: len(start)] = start
    return message


def _start_of(empty: Image | CompressedImage, size: int) -> bytes:
    """Return the serialised fields in front of `size` bytes of data."""
    return serialize_message(empty)[:-4] + struct.pack('=I', size)


def publish_unlocked(publisher: Publisher, message: Any) -> None:
    """Publish a serialised message without the GIL, so that other threads can run.

    The publisher stays valid until the call ends, even if another thread destroys it meanwhile.

    Args:
        publisher: publisher of the message's type.
        message: a bytearray, memoryview or uint8 array, one-dimensional, contiguous and writable,
            in the format of `rclpy.serialization`.

    Raises:
        RCLError: the middleware refused the message. rclpy's `publish` raises the same error.
    """
    rcl, rcutils = _libraries()
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
