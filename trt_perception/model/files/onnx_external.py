"""Looks at an ONNX file before ONNX Runtime does: other files it reads, what is unbounded.

ONNX Runtime opens such files itself, wherever the model says, and no manifest has their hash.
Guarantee: whatever reader of protocol buffers ONNX Runtime has, it finds no weights that are not
found here. Readers agree on files as every writer makes them: each number in its shortest form, no
groups, only fields that ONNX has, and messages where messages belong. Everything else, where
readers may differ, is refused. The numbers are those of onnx.proto:
https://github.com/onnx/onnx/blob/v1.19.0/onnx/onnx.proto.

Refused, too, is what no exporter of detectors writes and ONNX Runtime does not bound: sparse
tensors, whose indices it takes as they are; functions that call themselves, or that make millions
of nodes of a few; graphs nested deeply. Non-guarantee: operators with values that nobody writes
can still end the process or never end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from trt_perception.errors import EngineError
from trt_perception.process.interruption import check_interruption

__all__ = ['find_external_weights']

_VARINT: Final = 0
_BYTES: Final = 2
_FIXED: Final = {1: 8, 5: 4}
_MAX_MESSAGE_DEPTH: Final = 64
# For each message that leads to tensors: the fields that do, with the message that they hold, and
# the fields that do not.
_FIELDS: Final[dict[str, tuple[dict[int, str], frozenset[int]]]] = {
    'Model': (
        {7: 'Graph', 20: 'TrainingInfo', 25: 'Function'},
        frozenset((1, 2, 3, 4, 5, 6, 8, 14, 26)),
    ),
    'TrainingInfo': ({1: 'Graph', 2: 'Graph'}, frozenset((3, 4))),
    'Graph': ({1: 'Node', 5: 'Tensor', 15: 'SparseTensor'}, frozenset((2, *range(10, 15), 16))),
    'Function': ({7: 'Node', 11: 'Attribute'}, frozenset((1, 4, 5, 6, 8, 9, 10, 12, 13, 14))),
    'Node': ({5: 'Attribute'}, frozenset((1, 2, 3, 4, 6, 7, 8, 9, 10))),
    'Attribute': (
        {
            5: 'Tensor',
            6: 'Graph',
            10: 'Tensor',
            11: 'Graph',
            22: 'SparseTensor',
            23: 'SparseTensor',
        },
        frozenset((1, 2, 3, 4, 7, 8, 9, 13, 14, 15, 20, 21)),
    ),
    'SparseTensor': ({1: 'Tensor', 2: 'Tensor'}, frozenset((3,))),
    'Tensor': ({13: 'StringStringEntry'}, frozenset((*range(1, 13), 14, 16))),
    'StringStringEntry': ({}, frozenset((1, 2))),
}
_FUNCTIONS_FIELD: Final = 25
_SPARSE_TENSOR_FIELDS: Final = frozenset((('Graph', 15), ('Attribute', 22), ('Attribute', 23)))
_MAX_GRAPH_DEPTH: Final = 8
_MAX_CALLS: Final = 100_000
_DATA_LOCATION_FIELD: Final = 14
_IS_EXTERNAL: Final = {0: False, 1: True}
# Looking whether the process was asked to end costs as much as a tenth of a field.
_FIELDS_BETWEEN_CHECKS: Final = 4096


def find_external_weights(content: bytes, name: str = 'the model') -> tuple[str, ...]:
    """Return the places outside the file where a model keeps weights, each once.

    Args:
        content: of an ONNX file.
        name: of that file, for messages.

    Raises:
        EngineError: it is cut off, no ONNX model at all, of a newer ONNX than this reader, or
            has parts that ONNX Runtime does not bound.
        InterruptionError: the process was asked to end meanwhile.
    """
    try:
        places = tuple(dict.fromkeys(_external_locations(memoryview(content), 'Model', 0)))
        _check_functions(memoryview(content))
        return places
    except _UnboundedError as error:
        raise EngineError(name, str(error), fix='export it again without') from error
    except (IndexError, ValueError) as error:
        raise EngineError(
            name,
            f'is not an ONNX model, or is cut off, or is of a newer ONNX than 1.23 ({error})',
            fix='copy it again, or export it again with an older opset',
        ) from error


class _UnboundedError(Exception):
    """What ONNX Runtime does not bound."""


def _check_functions(model: memoryview) -> None:
    """Refuse functions that call themselves, and those that call others ever more often."""
    functions = [
        value for number, value in _read_fields(model, 'Model') if number == _FUNCTIONS_FIELD
    ]
    calls = {
        _read_operator_name(each, 1, 10): Counter(_called_operators(each, 'Function'))
        for each in functions
    }
    sizes: dict[tuple[bytes, bytes], int] = {}

    def size(name: tuple[bytes, bytes], callers: tuple[tuple[bytes, bytes], ...]) -> int:
        if name in callers or len(callers) > _MAX_MESSAGE_DEPTH:
            raise _UnboundedError('has a function that calls itself, or very many in a row')
        if name not in sizes:
            inner = calls[name].items()
            sizes[name] = 1 + sum(
                count * size(other, (*callers, name)) for other, count in inner if other in calls
            )
        return sizes[name]

    if functions and sum(size(name, ()) for name in calls) > _MAX_CALLS:
        raise _UnboundedError(f'has functions that make more than {_MAX_CALLS} calls')


def _called_operators(message: int | memoryview, kind: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield name and domain of each operator that is called."""
    assert isinstance(message, memoryview)
    if kind == 'Node':
        yield _read_operator_name(message, 4, 7)
    message_fields = _FIELDS[kind][0]
    for number, value in _read_fields(message, kind):
        if message_fields.get(number) in ('Node', 'Attribute', 'Graph'):
            yield from _called_operators(value, message_fields[number])


def _read_operator_name(message: int | memoryview, name: int, domain: int) -> tuple[bytes, bytes]:
    """Return the name and domain of a NodeProto or FunctionProto, by the numbers of its fields."""
    assert isinstance(message, memoryview)
    kind = 'Function' if name == 1 else 'Node'
    texts = {
        number: bytes(value)
        for number, value in _read_fields(message, kind)
        if number in (name, domain) and not isinstance(value, int)
    }
    return texts.get(name, b''), texts.get(domain, b'')


def _external_locations(
    message: memoryview, kind: str, depth: int, nested: int = 0
) -> Iterator[str]:
    """Yield the location of each tensor whose data lie elsewhere."""
    if depth > _MAX_MESSAGE_DEPTH:
        raise ValueError(f'more than {_MAX_MESSAGE_DEPTH} messages within each other')
    nested += kind == 'Graph'
    if nested > _MAX_GRAPH_DEPTH:
        raise _UnboundedError(f'has more than {_MAX_GRAPH_DEPTH} graphs within each other')
    external, place = False, ''
    message_fields = _FIELDS[kind][0]
    for number, value in _read_fields(message, kind):
        if (kind, number) == ('Tensor', _DATA_LOCATION_FIELD):
            external |= _is_external(value)
        if number not in message_fields or isinstance(value, int):
            continue
        if (kind, number) in _SPARSE_TENSOR_FIELDS:
            raise _UnboundedError('has a sparse tensor')
        if message_fields[number] == 'StringStringEntry':
            key, text = _read_entry(value)
            place = text if key == 'location' else place
        else:
            yield from _external_locations(value, message_fields[number], depth + 1, nested)
    if external:
        yield place


def _is_external(value: int | memoryview) -> bool:
    if not isinstance(value, int) or value not in _IS_EXTERNAL:
        raise ValueError('a tensor whose data_location is neither 0 nor 1')
    return _IS_EXTERNAL[value]


def _read_entry(message: memoryview) -> tuple[str, str]:
    """Return the key and value of a StringStringEntryProto."""
    texts = {1: '', 2: ''}
    for number, value in _read_fields(message, 'StringStringEntry'):
        if isinstance(value, memoryview):
            texts[number] = bytes(value).decode('utf-8', 'replace')
    return texts[1], texts[2]


def _read_fields(message: memoryview, kind: str) -> Iterator[tuple[int, int | memoryview]]:
    """Yield number and value of each field: an int, or the bytes of what has a length."""
    message_fields, other_fields = _FIELDS[kind]
    at = count = 0
    while at < len(message):
        if count % _FIELDS_BETWEEN_CHECKS == 0:
            check_interruption()
        count += 1
        tag, at = _read_varint(message, at)
        number, wire = tag >> 3, tag & 7
        if number not in message_fields and number not in other_fields:
            raise ValueError(f'field {number} of a {kind}Proto, which ONNX 1.23 does not have')
        if number in message_fields and wire != _BYTES:
            raise ValueError(f'field {number} of a {kind}Proto, which is no message')
        if wire == _VARINT:
            value, at = _read_varint(message, at)
            yield number, value
            continue
        if wire == _BYTES:
            size, at = _read_varint(message, at)
        elif wire in _FIXED:
            size = _FIXED[wire]
        else:
            raise ValueError(f'wire type {wire}, which ONNX does not use')
        if size > len(message) - at:
            raise ValueError(f'a field of {size} bytes where {len(message) - at} are left')
        yield number, message[at : at + size]
        at += size


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return a number and where it ends; it must be written as every writer does."""
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise ValueError('a number that is longer than it has to be')
            return value, at
    raise ValueError('a number of more than ten bytes')
