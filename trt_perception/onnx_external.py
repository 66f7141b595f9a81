"""Finds the files that an ONNX model keeps weights in, without the onnx package.

ONNX Runtime opens such files itself, wherever the model says, and no manifest has their hash.
Guarantee: a reference that a protobuf reader would see is seen here. The message numbers are those
of onnx.proto: https://github.com/onnx/onnx/blob/v1.19.0/onnx/onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trt_perception.errors import EngineError

__all__ = ['external_weights']

_VARINT: Final = 0
_BYTES: Final = 2
_FIXED: Final = {1: 8, 5: 4}
_MOST_DEEP: Final = 64
# For each message the fields that lead to tensors, with the message that they hold.
_LEADS: Final[dict[str, dict[int, str]]] = {
    'Model': {7: 'Graph', 20: 'Training', 25: 'Function'},
    'Training': {1: 'Graph', 2: 'Graph'},
    'Graph': {1: 'Node', 5: 'Tensor', 15: 'Sparse'},
    'Function': {7: 'Node', 11: 'Attribute'},
    'Node': {5: 'Attribute'},
    'Attribute': {
        5: 'Tensor',
        6: 'Graph',
        10: 'Tensor',
        11: 'Graph',
        22: 'Sparse',
        23: 'Sparse',
    },
    'Sparse': {1: 'Tensor', 2: 'Tensor'},
    'Tensor': {13: 'Entry'},
}
_DATA_LOCATION: Final = 14
_EXTERNAL: Final = 1


def external_weights(content: bytes) -> tuple[str, ...]:
    """Return the places outside the file where a model keeps weights, each once.

    Args:
        content: of an ONNX file.

    Raises:
        EngineError: it is cut off, or no ONNX model at all.
    """
    try:
        return tuple(dict.fromkeys(_walk(memoryview(content), 'Model', 0)))
    except (IndexError, ValueError) as error:
        raise EngineError(f'is no ONNX model, or is cut off ({error})') from error


def _walk(message: memoryview, kind: str, depth: int) -> Iterator[str]:
    if depth > _MOST_DEEP:
        raise ValueError(f'more than {_MOST_DEEP} messages within each other')
    external, place = False, ''
    for number, value in _fields(message):
        if isinstance(value, int):
            # An enumeration has 32 bits, whatever is written.
            location = (kind, number) == ('Tensor', _DATA_LOCATION)
            external |= location and value & 0xFFFFFFFF == _EXTERNAL
        else:
            inner = _LEADS[kind].get(number)
            if inner == 'Entry':
                key, text = _entry(value)
                place = text if key == 'location' else place
            elif inner is not None:
                yield from _walk(value, inner, depth + 1)
    if external:
        yield place


def _entry(message: memoryview) -> tuple[str, str]:
    """Return the key and value of a StringStringEntryProto."""
    texts = {1: '', 2: ''}
    for number, value in _fields(message):
        if isinstance(value, memoryview):
            texts[number] = bytes(value).decode('utf-8', 'replace')
    return texts[1], texts[2]


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield number and value: an int, or the bytes of what has a length."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == _BYTES:
            size, at = _varint(message, at)
        elif wire in _FIXED:
            size = _FIXED[wire]
        else:
            raise ValueError(f'wire type {wire}, which ONNX does not use')
        if size > len(message) - at:
            raise ValueError(f'a field of {size} bytes where {len(message) - at} are left')
        if wire == _BYTES:
            yield number, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError('a number of more than ten bytes')
