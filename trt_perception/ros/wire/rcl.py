# SPDX-License-Identifier: Apache-2.0
"""The part of rcl's C interface that rclpy lacks: a wait set and a take that release the GIL.

The module calls the library that rclpy has loaded, by ctypes. The struct layouts are the layouts
of Jazzy and Kilted (rcl/wait.h, rcutils/types/uint8_array.h, rmw/types.h). Known bytes behind each
struct show whether rcl writes a larger struct. So a library with another layout raises RclError
and does not corrupt memory.

The handles of rclpy that provide the addresses are not part of rclpy's public interface either.
`expected_handles` turns a difference in them into the same error.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

from trt_perception.errors import TrtPerceptionError

_OK: Final = 0
_TIMEOUT: Final = 2
#: Status of a take without a message.
TAKE_FAILED: Final = 401
#: Status of a take whose `reallocate` returned no memory.
BAD_ALLOC: Final = 10
_GUARD_BYTES: Final = b'\xa5' * 64


class RclError(TrtPerceptionError):
    """A call of rcl failed, or the interface of rcl or rclpy differs from the expected one."""


@contextmanager
def expected_handles() -> Iterator[None]:
    """Raise RclError if rclpy's handles have another interface than in Jazzy and Kilted.

    Raises:
        RclError: an attribute is missing, or a call has other arguments.
    """
    try:
        yield
    except (AttributeError, TypeError) as error:
        raise RclError("rclpy's handles", str(error), expected='the interface of Jazzy') from error


class Allocator(ctypes.Structure):
    """rcutils_allocator_t."""

    _fields_ = [
        ('allocate', ctypes.c_void_p),
        ('deallocate', ctypes.c_void_p),
        ('reallocate', ctypes.c_void_p),
        ('zero_allocate', ctypes.c_void_p),
        ('state', ctypes.c_void_p),
    ]


class _ReturnedAllocator(ctypes.Structure):
    """An allocator with room behind it, because a function that returns it writes all of it."""

    _fields_ = [('allocator', Allocator), ('room', ctypes.c_uint8 * len(_GUARD_BYTES))]


class SerializedArray(ctypes.Structure):
    """rcutils_uint8_array_t, the memory of a serialised message."""

    _fields_ = [
        ('buffer', ctypes.c_void_p),
        ('length', ctypes.c_size_t),
        ('capacity', ctypes.c_size_t),
        ('allocator', Allocator),
    ]


class MessageInfo(ctypes.Structure):
    """rmw_message_info_t."""

    _fields_ = [
        ('source_timestamp', ctypes.c_int64),
        ('received_timestamp', ctypes.c_int64),
        ('publication_sequence_number', ctypes.c_uint64),
        ('reception_sequence_number', ctypes.c_uint64),
        ('implementation', ctypes.c_char_p),
        ('gid', ctypes.c_uint8 * 16),
        ('from_intra_process', ctypes.c_bool),
    ]


class _WaitSetStruct(ctypes.Structure):
    _fields_ = [
        (f'{kind}_{part}', ctypes.c_size_t if part == 'count' else ctypes.POINTER(ctypes.c_void_p))
        for kind in ('subscriptions', 'guards', 'timers', 'clients', 'services', 'events')
        for part in ('pointers', 'count')
    ] + [('implementation', ctypes.c_void_p)]


_Struct = TypeVar('_Struct', bound=ctypes.Structure)


class _CheckedStruct(Generic[_Struct]):
    """A struct for rcl, initially zero, with known bytes behind it.

    The known bytes change if rcl's struct is larger than the struct declared here.

    Attributes:
        struct: the ctypes structure.
        pointer: address of the struct.
    """

    def __init__(self, kind: type[_Struct]) -> None:
        self._size = ctypes.sizeof(kind)
        self._memory = ctypes.create_string_buffer(
            bytes(self._size) + _GUARD_BYTES, self._size + len(_GUARD_BYTES)
        )
        self.struct = kind.from_buffer(self._memory)
        self.pointer = ctypes.addressof(self._memory)

    @property
    def is_intact(self) -> bool:
        """Whether the bytes behind the struct are unchanged."""
        return self._memory.raw[self._size :] == _GUARD_BYTES


class ErrorString(ctypes.Structure):
    """rcutils_error_string_t, the message of the last error in this thread.

    The struct has 1024 bytes. The rest is room, as in _ReturnedAllocator.
    """

    _fields_ = [('text', ctypes.c_char * 1024), ('room', ctypes.c_char * 1024)]


_POINTER: Final = ctypes.c_void_p
_SIZE: Final = ctypes.c_size_t
#: Functions that may take long are called without the GIL.
_GIL_RELEASING_CALLS: Final[dict[str, tuple[Any, ...]]] = {
    'rcl_wait': (_POINTER, ctypes.c_int64),
    'rcl_take_serialized_message': (_POINTER, _POINTER, _POINTER, _POINTER),
}
#: Other functions are called with the GIL: releasing and taking it is slower than such a call.
_GIL_KEEPING_CALLS: Final[dict[str, tuple[Any, ...]]] = {
    'rcl_wait_set_init': (_POINTER, *(_SIZE,) * 6, _POINTER, Allocator),
    'rcl_wait_set_fini': (_POINTER,),
    'rcl_wait_set_clear': (_POINTER,),
    'rcl_wait_set_add_subscription': (_POINTER, _POINTER, _POINTER),
    'rcl_wait_set_add_guard_condition': (_POINTER, _POINTER, _POINTER),
    'rcl_wait_set_add_event': (_POINTER, _POINTER, _POINTER),
}
_REALLOCATE: Final = ctypes.CFUNCTYPE(_POINTER, _POINTER, _SIZE, _POINTER)
_DEALLOCATE: Final = ctypes.CFUNCTYPE(None, _POINTER, _POINTER)


class Rcl:
    """The rcl library of this process.

    Attributes:
        releases_gil: the functions that wait or copy, called without the GIL.
        keeps_gil: all other functions, called with the GIL.

    Raises:
        RclError: the library or one of its functions is missing, or a layout differs.
    """

    def __init__(self) -> None:
        try:
            self.releases_gil, self.keeps_gil = ctypes.CDLL('librcl.so'), ctypes.PyDLL('librcl.so')
            for library, signatures in (
                (self.releases_gil, _GIL_RELEASING_CALLS),
                (self.keeps_gil, _GIL_KEEPING_CALLS),
            ):
                for name, arguments in signatures.items():
                    function = getattr(library, name)
                    function.argtypes, function.restype = arguments, ctypes.c_int
            rcutils = ctypes.PyDLL('librcutils.so')
            self._default_allocator = rcutils.rcutils_get_default_allocator
            self._init_array = rcutils.rcutils_uint8_array_init
            self._free_array = rcutils.rcutils_uint8_array_fini
            self._error_string = rcutils.rcutils_get_error_string
            self._reset_error = rcutils.rcutils_reset_error
        except (OSError, AttributeError) as error:
            raise RclError(
                "rcl's C interface", str(error), expected='the interface of Jazzy'
            ) from error
        self._default_allocator.restype = _ReturnedAllocator
        self._error_string.restype = ErrorString
        self._init_array.argtypes = (_POINTER, _SIZE, _POINTER)
        self._free_array.argtypes = (_POINTER,)
        self._check_array()

    def _check_array(self) -> None:
        """Check the layouts of SerializedArray and Allocator with an array that rcutils fills.

        Raises:
            RclError: a layout differs.
        """
        size, allocator, array = 12345, self.allocator(), _CheckedStruct(SerializedArray)
        self.check(
            'rcutils_uint8_array_init',
            self._init_array(array.pointer, size, ctypes.byref(allocator)),
        )
        initial = array.struct
        same = bytes(initial.allocator) == bytes(allocator)
        found = (bool(initial.buffer), initial.length, initial.capacity, same, array.is_intact)
        if found != (True, 0, size, True, True):
            raise RclError('rcutils_uint8_array_t', f'{found}', expected='the layout of Jazzy')
        self.check('rcutils_uint8_array_fini', self._free_array(array.pointer))

    def check(self, function: str, status: int) -> None:
        """Raise RclError unless the status is 0. Clears the error text that rcl stores."""
        if status != _OK:
            text = self._error_string().text.decode(errors='replace')
            self._reset_error()
            raise RclError(function, f'{status}: {text}')

    def clear_error(self) -> None:
        """Clear the error text that rcl stores, after a status that is not an error here."""
        self._reset_error()

    def allocator(self) -> Allocator:
        """Return the default allocator of rcutils."""
        allocator: Allocator = self._default_allocator().allocator
        return allocator


class MessageTaker:
    """Takes serialised messages into memory of the caller.

    Args:
        rcl: the loaded rcl library.
        allocate_larger: called with the size of a message (bytes) that does not fit. Returns the
            address of at least as much memory, or 0.

    Attributes:
        array: address and length (bytes) of the last message.
        info: time stamps and `publication_sequence_number` of the last message; the number is 0 if
            unknown.
    """

    def __init__(self, rcl: Rcl, allocate_larger: Callable[[int], int]) -> None:
        self._rcl = rcl
        # Stored because ctypes frees a callback without a reference.
        self._reallocate = _REALLOCATE(lambda _, size, __: allocate_larger(size))
        self._deallocate = _DEALLOCATE(lambda *_: None)
        self.array = SerializedArray()
        self.array.allocator = rcl.allocator()
        self.array.allocator.reallocate = ctypes.cast(self._reallocate, _POINTER)
        self.array.allocator.deallocate = ctypes.cast(self._deallocate, _POINTER)
        self._info = _CheckedStruct(MessageInfo)
        self.info = self._info.struct
        self._arguments = ctypes.byref(self.array), self._info.pointer, None

    def take(self, subscription: int, address: int, capacity: int) -> int:
        """Take one message and set `array` and `info`. Return 0, TAKE_FAILED or BAD_ALLOC.

        Args:
            subscription: address of the rcl subscription.
            address: address of the memory for the message.
            capacity: size of this memory in bytes.

        Raises:
            RclError: rcl returned another status, or its message info is larger than expected.
        """
        array = self.array
        array.buffer, array.length, array.capacity = address, 0, capacity
        self.info.publication_sequence_number = 0
        status: int = self._rcl.releases_gil.rcl_take_serialized_message(
            subscription, *self._arguments
        )
        if status in (TAKE_FAILED, BAD_ALLOC):
            self._rcl.clear_error()
        elif status or not self._info.is_intact:
            self._rcl.check('rcl_take_serialized_message', status)
            raise RclError('rmw_message_info_t', 'a larger struct', expected='the layout of Jazzy')
        return status


class WaitSet:
    """Waits for subscriptions, guard conditions and events, without the GIL.

    Args:
        rcl: the loaded rcl library.
        context: address of the rcl context.
        subscriptions: addresses of subscriptions.
        guards: addresses of guard conditions.
        events: addresses of events.

    Raises:
        RclError: rcl cannot create the wait set, or its layout differs.
    """

    def __init__(
        self,
        rcl: Rcl,
        context: int,
        subscriptions: Sequence[int],
        guards: Sequence[int],
        events: Sequence[int],
    ) -> None:
        self._rcl = rcl
        self._set = _CheckedStruct(_WaitSetStruct)
        self._struct, self._pointer = self._set.struct, self._set.pointer
        counts = len(subscriptions), len(guards), 0, 0, 0, len(events)
        keeps_gil = rcl.keeps_gil
        status = keeps_gil.rcl_wait_set_init(self._pointer, *counts, context, rcl.allocator())
        rcl.check('rcl_wait_set_init', status)
        struct = self._struct
        found = (struct.subscriptions_count, struct.guards_count, struct.events_count)
        if found != (counts[0], counts[1], counts[5]) or not self._set.is_intact:
            self.close()
            raise RclError(
                "rcl's wait set", f'counts {found}', expected=f'the layout of Jazzy, {counts}'
            )
        self._clear = keeps_gil.rcl_wait_set_clear
        self._add_calls = [
            *((keeps_gil.rcl_wait_set_add_subscription, each) for each in subscriptions),
            *((keeps_gil.rcl_wait_set_add_guard_condition, each) for each in guards),
            *((keeps_gil.rcl_wait_set_add_event, each) for each in events),
        ]
        self._subscriptions = _ready_entries(struct.subscriptions_pointers, len(subscriptions))
        self._events = _ready_entries(struct.events_pointers, len(events))

    def wait(self, timeout_ns: int = -1) -> None:
        """Wait until an entity is ready or the timeout ends.

        Args:
            timeout_ns: timeout in nanoseconds; -1 waits without a limit.

        Raises:
            RclError: rcl failed, for example because the context was shut down.
        """
        rcl, pointer = self._rcl, self._pointer
        status = self._clear(pointer)
        for add, each in self._add_calls:
            status = status or add(pointer, each, None)
        if status:
            rcl.check('rcl_wait_set_add', status)
        status = rcl.releases_gil.rcl_wait(pointer, timeout_ns)
        if status == _TIMEOUT:
            rcl.clear_error()
        elif status:
            rcl.check('rcl_wait', status)

    def subscription_ready_flags(self) -> Sequence[int | None]:
        """Return a value for each subscription that is truthy if a message may be available."""
        return self._subscriptions[:]

    def event_ready_flags(self) -> Sequence[int | None]:
        """Return a value for each event that is truthy if the event has occurred."""
        return self._events[:]

    def close(self) -> None:
        """Free rcl's memory of the wait set. May be called again."""
        if self._pointer:
            pointer, self._pointer = self._pointer, 0
            self._rcl.check('rcl_wait_set_fini', self._rcl.keeps_gil.rcl_wait_set_fini(pointer))


def _ready_entries(pointers: Any, count: int) -> ctypes.Array[ctypes.c_void_p]:
    """Return a view of an array of rcl. After a wait, entries that are not ready are NULL."""
    if not count:
        return (_POINTER * 0)()
    return (_POINTER * count).from_address(ctypes.addressof(pointers.contents))


@functools.cache
def load_rcl() -> Rcl:
    """Return the checked library. The first success is cached.

    Raises:
        RclError: the library or one of its functions is missing, or a layout differs.
    """
    return Rcl()
