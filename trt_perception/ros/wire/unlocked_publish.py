"""Publishing a large message without holding the interpreter's lock.

rclpy holds the lock until the middleware has taken a message. With Fast DDS that is until the last
byte is sent: 20 ms for 36 MB on one machine, and 1.9 s to a subscriber behind 200 Mbit/s, in which
no service is answered and no image taken. The same call of rcl, made by ctypes, releases the lock.
"""

from __future__ import annotations

import ctypes
import struct
from functools import cache

import numpy as np
import numpy.typing as npt
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.publisher import Publisher
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage, Image

from trt_perception.ros.wire.rcl import Allocator, ErrorString, SerializedArray

__all__ = ['publish_unlocked', 'serialize_with_room']


@cache
def _libraries() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """Return rcl and rcutils, which rclpy has loaded into the process."""
    rcl, rcutils = ctypes.CDLL('librcl.so'), ctypes.CDLL('librcutils.so')
    rcl.rcl_publish_serialized_message.argtypes = (
        ctypes.c_void_p,
        ctypes.POINTER(SerializedArray),
        ctypes.c_void_p,
    )
    rcutils.rcutils_get_default_allocator.restype = Allocator
    rcutils.rcutils_get_error_string.restype = ErrorString
    return rcl, rcutils


@cache
def _allocator() -> Allocator:
    allocator: Allocator = _libraries()[1].rcutils_get_default_allocator()
    return allocator


def serialize_with_room(
    empty: Image | CompressedImage, size: int, memory: npt.NDArray[np.uint8] | None = None
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Serialise an image whose data are still to be written, without a Python object of them.

    Args:
        empty: has no data, which stand last in such messages.
        size: bytes of the data.
        memory: of an earlier message, which is used again if it fits.

    Returns:
        The serialised message, and a view of its data; both uint8, one-dimensional.
    """
    start = serialize_message(empty)[:-4] + struct.pack('=I', size)
    if memory is None or memory.size != len(start) + size:
        memory = np.empty(len(start) + size, np.uint8)
    memory[: len(start)] = np.frombuffer(start, np.uint8)
    return memory, memory[len(start) :]


def publish_unlocked(publisher: Publisher, message: npt.NDArray[np.uint8]) -> None:
    """Publish a serialised message; other threads run meanwhile.

    A publisher that another thread destroys meanwhile stays valid until this call returns.

    Args:
        publisher: of the message's type.
        message: uint8, one-dimensional, contiguous: as rclpy.serialization writes it.

    Raises:
        RCLError: the middleware does not take the message, as where rclpy publishes.
    """
    rcl, rcutils = _libraries()
    size = message.size
    address = message.__array_interface__['data'][0]
    serialized = SerializedArray(address, size, size, _allocator())
    with publisher.handle:
        code = rcl.rcl_publish_serialized_message(
            publisher.handle.pointer, ctypes.byref(serialized), None
        )
    if code:
        reason = rcutils.rcutils_get_error_string().text.decode(errors='replace')
        rcutils.rcutils_reset_error()
        raise rclpy_implementation.RCLError(f'a message of {size} bytes: {reason} ({code})')
