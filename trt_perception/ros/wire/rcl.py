"""The part of rcl's C interface that rclpy lacks: a wait set and a take that hold no lock.

By ctypes, on the library that rclpy has loaded. The layouts are those of Jazzy and Kilted
(rcl/wait.h, rcutils/types/uint8_array.h, rmw/types.h). What rcl writes is held against them, with
a known pattern behind it: a library of another layout ends in an RclError, not in broken memory.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from trt_perception.errors import TrtPerceptionError

__all__ = [
    'BAD_ALLOC',
    'TAKE_FAILED',
    'Allocator',
    'ErrorString',
    'MessageInfo',
    'MessageTaker',
    'Rcl',
    'RclError',
    'SerializedArray',
    'WaitSet',
    'load_rcl',
]

_OK: Final = 0
_TIMEOUT: Final = 2
#: What a take returns where there is no message.
TAKE_FAILED: Final = 401
#: What a take returns where ``reallocate`` gave no memory.
BAD_ALLOC: Final = 10
_GUARD_BYTES: Final = b'\xa5' * 64


class RclError(TrtPerceptionError):
    """A call of rcl failed, or its interface is not the one expected."""


class Allocator(ctypes.Structure):
    """rcutils_allocator_t."""

    _fields_ = [
        ('allocate', ctypes.c_void_p),
        ('deallocate', ctypes.c_void_p),
        ('reallocate', ctypes.c_void_p),
        ('zero_allocate', ctypes.c_void_p),
        ('state', ctypes.c_void_p),
    ]


class SerializedArray(ctypes.Structure):
    """rcutils_uint8_array_t: where a serialised message is written."""

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
    """A struct that rcl fills, zero at first; a pattern behind it shows when rcl's is larger.

    Attributes:
        struct: the struct.
        pointer: its address.
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
        """Whether rcl has written nothing behind the struct."""
        return self._memory.raw[self._size :] == _GUARD_BYTES


class ErrorString(ctypes.Structure):
    """rcutils_error_string_t: what went wrong in the last call of this thread."""

    _fields_ = [('text', ctypes.c_char * 1024)]


_POINTER: Final = ctypes.c_void_p
_SIZE: Final = ctypes.c_size_t
#: What may take long is called without the interpreter's lock.
_RELEASES_GIL: Final[dict[str, tuple[Any, ...]]] = {
    'rcl_wait': (_POINTER, ctypes.c_int64),
    'rcl_take_serialized_message': (_POINTER, _POINTER, _POINTER, _POINTER),
}
#: The rest keeps it: to give it away and to get it back takes longer than such a call.
_KEEPS_GIL: Final[dict[str, tuple[Any, ...]]] = {
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
    """The loaded library.

    Attributes:
        releases_gil: its functions that wait or copy, by name; they release the GIL.
        keeps_gil: the others.

    Raises:
        RclError: it is not found, a function is missing, or layouts are not the ones expected.
    """

    def __init__(self) -> None:
        try:
            self.releases_gil, self.keeps_gil = ctypes.CDLL('librcl.so'), ctypes.PyDLL('librcl.so')
            for library, signatures in (
                (self.releases_gil, _RELEASES_GIL),
                (self.keeps_gil, _KEEPS_GIL),
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
            raise RclError("rcl's C interface", str(error), expected='that of Jazzy') from error
        self._default_allocator.restype = Allocator
        self._error_string.restype = ErrorString
        self._init_array.argtypes = (_POINTER, _SIZE, _POINTER)
        self._free_array.argtypes = (_POINTER,)
        self._check_array()

    def _check_array(self) -> None:
        """Hold an array that rcutils makes against the layout here: array and allocator.

        Raises:
            RclError: they differ.
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
        """Raise RclError unless the status is 0; the error that rcl keeps is cleared."""
        if status != _OK:
            text = self._error_string().text.decode(errors='replace')
            self._reset_error()
            raise RclError(function, f'{status}: {text}')

    def clear_error(self) -> None:
        """Clear the error that rcl keeps, where a failure is no fault."""
        self._reset_error()

    def allocator(self) -> Allocator:
        """Return rcutils' own allocator."""
        allocator: Allocator = self._default_allocator()
        return allocator


class MessageTaker:
    """What a take writes to: memory of ours, and where it is too small, larger memory of ours.

    Args:
        rcl: the library.
        allocate_larger: called with the bytes of a message; returns the address of at least as
            much memory, or 0.
    """

    def __init__(self, rcl: Rcl, allocate_larger: Callable[[int], int]) -> None:
        self._rcl = rcl
        # Kept here: ctypes would free them.
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
        """Take one message to ``address``; return 0, TAKE_FAILED or BAD_ALLOC.

        ``array`` then holds where it lies and its length, ``info`` its sequence number, which is
        0 where it is not known.

        Raises:
            RclError: anything else went wrong.
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
            raise RclError('rmw_message_info_t', 'a larger one', expected='the layout of Jazzy')
        return status


class WaitSet:
    """Waits for subscriptions, guard conditions and events, without the interpreter's lock.

    Args:
        rcl: the library.
        context: address of the context.
        subscriptions: addresses.
        guards: addresses.
        events: addresses.

    Raises:
        RclError: rcl refuses.
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
        """Wait until one of them is ready, or the time is over.

        Raises:
            RclError: rcl refuses, as after a shutdown.
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

    def ready_subscriptions(self) -> Sequence[int | None]:
        """Return for each subscription something that is true where a message may be there."""
        return self._subscriptions[:]

    def ready_events(self) -> Sequence[int | None]:
        """Return for each event something that is true where it is there."""
        return self._events[:]

    def close(self) -> None:
        """Free what rcl has for it; may be called again."""
        if self._pointer:
            pointer, self._pointer = self._pointer, 0
            self._rcl.check('rcl_wait_set_fini', self._rcl.keeps_gil.rcl_wait_set_fini(pointer))


def _ready_entries(pointers: Any, count: int) -> ctypes.Array[ctypes.c_void_p]:
    """Return an array of rcl's, where it lies; rcl sets to NULL what is not ready."""
    if not count:
        return (_POINTER * 0)()
    return (_POINTER * count).from_address(ctypes.addressof(pointers.contents))


@functools.cache
def load_rcl() -> Rcl:
    """Return the library."""
    return Rcl()
