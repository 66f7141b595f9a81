# SPDX-License-Identifier: Apache-2.0
"""Finds external weights in an ONNX file, and refuses parts that ONNX Runtime does not check.

An ONNX model may keep weights in other files. ONNX Runtime opens these files at any path that the
model names, and no manifest has their hash. Guarantee: ONNX Runtime finds no external weights that
this module misses, whatever reader of protocol buffers it uses. Readers agree on files in the
usual form: each number in its shortest form, no groups, only fields of ONNX, and messages only in
fields of messages. This module refuses all other files, because readers may interpret them
differently.
Field numbers are from onnx.proto: https://github.com/onnx/onnx/blob/v1.19.0/onnx/onnx.proto.

The module also refuses parts that no exporter of detectors writes and that ONNX Runtime neither
checks nor limits. These parts are sparse tensors, whose indices ONNX Runtime does not check,
functions that call themselves or expand a few nodes to millions, and deeply nested graphs.
Limitation: operators with unusual values can still crash or block the process.

Errors have no values of the file, because it may be no model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from trt_perception.errors import EngineError
from trt_perception.process.interruption import check_interruption

_VARINT_WIRE_TYPE: Final = 0
_BYTES_WIRE_TYPE: Final = 2
_SIZES_BY_FIXED_WIRE_TYPE: Final = {1: 8, 5: 4}
_MAX_MESSAGE_DEPTH: Final = 64
# The known fields of each message on the way from a model to its tensors. The mapping has the
# numbers of the fields to follow, and the names of their messages. The set has all other numbers.
_FIELDS_BY_MESSAGE: Final[dict[str, tuple[dict[int, str], frozenset[int]]]] = {
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
_IR_VERSION_FIELD: Final = 1
_FUNCTIONS_FIELD: Final = 25
_SPARSE_TENSOR_FIELDS: Final = frozenset((('Graph', 15), ('Attribute', 22), ('Attribute', 23)))
_MAX_GRAPH_DEPTH: Final = 8
_MAX_FUNCTION_CALLS: Final = 100_000
_DATA_TYPE_FIELD: Final = 2
_FLOAT16: Final = 10
_DATA_LOCATION_FIELD: Final = 14
_IS_EXTERNAL_BY_DATA_LOCATION: Final = {0: False, 1: True}
# A check for an interruption costs a tenth of the time to read a field.
_FIELDS_BETWEEN_CHECKS: Final = 4096


def find_external_weights(content: bytes, name: str = 'the model') -> tuple[str, ...]:
    """Return the paths of external weights in a model, without duplicates.

    Args:
        content: content of an ONNX file.

    Raises:
        EngineError: the file is truncated, not an ONNX model, or of a newer ONNX version, or the
            model has parts that ONNX Runtime neither checks nor limits.
        InterruptionError: the process received a signal to end.
    """
    try:
        locations = tuple(dict.fromkeys(_external_locations(memoryview(content), 'Model', 0)))
        _check_function_calls(memoryview(content))
        return locations
    except _UncheckedPartError as error:
        raise EngineError(name, str(error), fix='export the model without this part') from error
    except (IndexError, ValueError) as error:
        raise EngineError(
            name,
            f'not an ONNX model, a truncated file, or a model of a newer ONNX than 1.23 ({error})',
            fix='copy the file again, or export the model again with an older opset',
        ) from error


def ir_version(content: bytes) -> int:
    """Return the version of ONNX's file format that a model states; 0 if it states none.

    Args:
        content: content of an ONNX file that `find_external_weights` accepts.
    """
    fields = _read_fields(memoryview(content), 'Model')
    versions = [value for number, value in fields if number == _IR_VERSION_FIELD]
    return versions[-1] if versions and isinstance(versions[-1], int) else 0


def has_half_weights(content: bytes) -> bool:
    """Return whether a weight of the main graph is float16.

    Args:
        content: content of an ONNX file that `find_external_weights` accepts.
    """
    return any(
        (number, value) == (_DATA_TYPE_FIELD, _FLOAT16)
        for graph in _submessages(memoryview(content), 'Model', 'Graph')
        for weight in _submessages(graph, 'Graph', 'Tensor')
        for number, value in _read_fields(weight, 'Tensor')
    )


def _submessages(message: memoryview, kind: str, wanted: str) -> Iterator[memoryview]:
    for number, value in _read_fields(message, kind):
        if _FIELDS_BY_MESSAGE[kind][0].get(number) == wanted and isinstance(value, memoryview):
            yield value


class _UncheckedPartError(Exception):
    """Raised for a part of the model that ONNX Runtime neither checks nor limits."""


def _check_function_calls(model: memoryview) -> None:
    """Refuse functions that call themselves, and functions that expand to too many calls."""
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
            raise _UncheckedPartError(
                'a function that calls itself, or a long chain of nested calls'
            )
        if name not in sizes:
            inner = calls[name].items()
            sizes[name] = 1 + sum(
                count * size(other, (*callers, name)) for other, count in inner if other in calls
            )
        return sizes[name]

    if functions and sum(size(name, ()) for name in calls) > _MAX_FUNCTION_CALLS:
        raise _UncheckedPartError(f'functions that make more than {_MAX_FUNCTION_CALLS} calls')


def _called_operators(message: int | memoryview, kind: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield name and domain of each operator or function that a message calls."""
    assert isinstance(message, memoryview)
    if kind == 'Node':
        yield _read_operator_name(message, 4, 7)
    message_fields = _FIELDS_BY_MESSAGE[kind][0]
    for number, value in _read_fields(message, kind):
        if message_fields.get(number) in ('Node', 'Attribute', 'Graph'):
            yield from _called_operators(value, message_fields[number])


def _read_operator_name(message: int | memoryview, name: int, domain: int) -> tuple[bytes, bytes]:
    """Return the name of an operator or function, and its domain.

    Args:
        name: number of the field with the name: 1 in a FunctionProto, 4 in a NodeProto.
    """
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
    """Yield the location of each tensor with external data."""
    if depth > _MAX_MESSAGE_DEPTH:
        raise ValueError(f'more than {_MAX_MESSAGE_DEPTH} nested messages')
    nested += kind == 'Graph'
    if nested > _MAX_GRAPH_DEPTH:
        raise _UncheckedPartError(f'more than {_MAX_GRAPH_DEPTH} nested graphs')
    is_external, location = False, ''
    message_fields = _FIELDS_BY_MESSAGE[kind][0]
    for number, value in _read_fields(message, kind):
        if (kind, number) == ('Tensor', _DATA_LOCATION_FIELD):
            is_external |= _is_external(value)
        if number not in message_fields or isinstance(value, int):
            continue
        if (kind, number) in _SPARSE_TENSOR_FIELDS:
            raise _UncheckedPartError('a sparse tensor')
        if message_fields[number] == 'StringStringEntry':
            key, text = _read_string_entry(value)
            location = text if key == 'location' else location
        else:
            yield from _external_locations(value, message_fields[number], depth + 1, nested)
    if is_external:
        yield location


def _is_external(value: int | memoryview) -> bool:
    if not isinstance(value, int) or value not in _IS_EXTERNAL_BY_DATA_LOCATION:
        raise ValueError('a tensor with a data_location other than 0 and 1')
    return _IS_EXTERNAL_BY_DATA_LOCATION[value]


def _read_string_entry(message: memoryview) -> tuple[str, str]:
    """Return the key and value of a StringStringEntryProto."""
    texts = {1: '', 2: ''}
    for number, value in _read_fields(message, 'StringStringEntry'):
        if isinstance(value, memoryview):
            texts[number] = bytes(value).decode('utf-8', 'replace')
    return texts[1], texts[2]


def _read_fields(message: memoryview, kind: str) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number and value of each field. The value is an int, or the bytes of the field."""
    message_fields, other_fields = _FIELDS_BY_MESSAGE[kind]
    position = count = 0
    while position < len(message):
        if count % _FIELDS_BETWEEN_CHECKS == 0:
            check_interruption()
        count += 1
        tag, position = _read_varint(message, position)
        number, wire = tag >> 3, tag & 7
        if number not in message_fields and number not in other_fields:
            raise ValueError(f'a {kind}Proto with a field that ONNX 1.23 does not have')
        if number in message_fields and wire != _BYTES_WIRE_TYPE:
            raise ValueError(f'a {kind}Proto with a number in a field for messages')
        if wire == _VARINT_WIRE_TYPE:
            value, position = _read_varint(message, position)
            yield number, value
            continue
        if wire == _BYTES_WIRE_TYPE:
            size, position = _read_varint(message, position)
        elif wire in _SIZES_BY_FIXED_WIRE_TYPE:
            size = _SIZES_BY_FIXED_WIRE_TYPE[wire]
        else:
            raise ValueError('a wire type that ONNX does not use')
        if size > len(message) - position:
            raise ValueError('a field that is longer than its message')
        yield number, message[position : position + size]
        position += size


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
    """Return a varint and its end position. The varint must have its shortest form."""
    value = 0
    for shift in range(0, 70, 7):
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise ValueError('a number that is not in its shortest form')
            return value, position
    raise ValueError('a number of more than ten bytes')
