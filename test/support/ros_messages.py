# SPDX-License-Identifier: Apache-2.0
"""Messages of any ROS type with random values, and their comparison with decoded messages."""

import importlib

import numpy as np
from rclpy.serialization import serialize_message


def message_class(type_name):
    """Return the class of a type such as ``sensor_msgs/msg/Image``."""
    package, _, name = type_name.replace('/msg/', '/').partition('/')
    return getattr(importlib.import_module(f'{package}.msg'), name)


def random_message(type_name, random):
    """Return a message whose fields all have random values. Sequences have 1 to 3 entries."""
    message = message_class(type_name)()
    for field, kind in message.get_fields_and_field_types().items():
        setattr(message, field, _random_value(kind, random, getattr(message, field)))
    return message


def _random_value(kind, random, default):
    if kind.startswith('sequence<'):
        element = kind.removeprefix('sequence<').removesuffix('>').partition(',')[0]
        return [_random_value(element, random, None) for _ in range(random.integers(1, 4))]
    if kind.endswith(']'):
        element = kind.partition('[')[0]
        return [_random_value(element, random, None) for _ in range(len(default))]
    if kind.startswith('string'):
        return ''.join(random.choice(list('abc äß'), random.integers(1, 20)))
    if kind == 'boolean':
        return bool(random.integers(2))
    if '/' in kind:
        return random_message(kind, random)
    if kind in ('float', 'double'):
        return float(np.float32(random.uniform(-1e3, 1e3)))
    if kind == 'octet':
        return bytes([random.integers(256)])
    limits = np.iinfo(kind)
    return int(random.integers(limits.min, limits.max, dtype=limits.dtype, endpoint=True))


def serialised(message):
    """Return the CDR of a message with its 4-byte header, as the middleware sends it."""
    return bytes(serialize_message(message))


def plain_values(message):
    """Return the fields of a ROS message as nested dictionaries and lists of plain values."""
    fields = message.get_fields_and_field_types()
    return {field: _plain(getattr(message, field)) for field in fields}


def decoded_values(message, like):
    """Return the same of a message that another library has decoded, for the fields of `like`."""
    return {field: _decoded(getattr(message, field), value) for field, value in like.items()}


def _plain(value):
    if hasattr(value, 'get_fields_and_field_types'):
        return plain_values(value)
    if isinstance(value, str | bytes | bool | int | float):
        return int(value[0]) if isinstance(value, bytes) and len(value) == 1 else value
    return [_plain(entry) for entry in value]


def _decoded(value, like):
    if isinstance(like, dict):
        return decoded_values(value, like)
    if isinstance(like, list):
        entries = value.tolist() if isinstance(value, np.ndarray) else list(value)
        assert len(entries) == len(like)
        return [_decoded(entry, of) for entry, of in zip(entries, like, strict=True)]
    return int(value[0]) if isinstance(value, bytes) else value
