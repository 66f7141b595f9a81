# SPDX-License-Identifier: Apache-2.0
"""Parses a message of a Triton server in memory that a constant limits.

The limits of gRPC count bytes. But an empty message inside a message has 2 bytes, and needs 95
bytes of memory (protobuf 6.33): an answer of 128 MiB needed 6 GB. So the fields are counted before
the message is parsed.
"""

from __future__ import annotations

from typing import Any, Final

#: Largest number of fields in a message and its inner messages. A number in a packed list counts
#: as one field. Texts and tensors count as one field, whatever their size.
MAX_FIELDS: Final = 20_000

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES: Final = 10


def parse_bounded(message_type: Any, content: bytes) -> Any:
    """Return the message of this type that the bytes contain.

    Raises:
        ValueError: the bytes are no such message, or the message has more than MAX_FIELDS fields.
    """
    from google.protobuf.message import DecodeError

    _count_fields(memoryview(content), message_type.DESCRIPTOR, MAX_FIELDS)
    try:
        return message_type.FromString(content)
    except DecodeError as error:
        raise ValueError('malformed') from error


def _count_fields(content: memoryview, descriptor: Any, allowed: int) -> int:
    """Return how many further fields are allowed after these. Raises ValueError."""
    from google.protobuf.descriptor import FieldDescriptor

    texts = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
    position = 0
    while position < len(content):
        tag, position = _read_varint(content, position)
        number, wire_type = tag >> 3, tag & 7
        allowed -= 1
        if wire_type == _VARINT:
            _, position = _read_varint(content, position)
        elif wire_type == _LENGTH:
            size, start = _read_varint(content, position)
            position = start + size
            field = descriptor.fields_by_number.get(number)
            if field is not None and field.message_type is not None:
                inner = content[start:position]
                allowed = _count_fields(inner, field.message_type, allowed)
            elif field is not None and field.type not in texts:
                allowed -= size  # numbers in a packed list have at least one byte each
        elif wire_type in (_FIXED64, _FIXED32):
            position += 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError('malformed')
        if position > len(content):
            raise ValueError('malformed')
        if allowed < 0:
            raise ValueError(f'more than {MAX_FIELDS} fields')
    return allowed


def _read_varint(content: memoryview, position: int) -> tuple[int, int]:
    """Return a number of variable length, and the position after it. Raises ValueError."""
    value = 0
    for index, byte in enumerate(content[position : position + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise ValueError('malformed')
