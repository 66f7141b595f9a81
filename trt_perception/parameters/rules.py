# SPDX-License-Identifier: Apache-2.0
"""Rules for values of parameters. Each function returns why a value is invalid, or None."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from trt_perception.files.plain_text import (
    MAX_PATH_LENGTH,
    Mistake,
    name_mistake,
    names_mistake,
    short_repr,
)
from trt_perception.model.files.triton_address import SERVER_FORM, is_server
from trt_perception.model.preprocessing import number_mistake

# The period of a timer must fit into 64 bits of nanoseconds.
_LOWEST_RATE_HZ: Final = 0.01
#: Largest number of cameras of a node.
MAX_CAMERAS: Final = 64
#: Largest rate of images, in images per second.
HIGHEST_RATE_HZ: Final = 1000.0
_HIGHEST_DEVICE: Final = 63
_MAX_SERVERS: Final = 64
# Name of the node's status on /diagnostics. The status of a camera has the camera's name.
_NODE_STATUS_NAME: Final = 'detector'
# A camera's name is the first part of the names of its topics.
_CAMERA_NAME: Final = re.compile(r'[A-Za-z][A-Za-z0-9_]{0,63}')


def rate_mistake(value: float) -> Mistake | None:
    """Check a rate in images per second. 0 means no limit."""
    expected = f'0 or a number from {_LOWEST_RATE_HZ:g} to {HIGHEST_RATE_HZ:g}'
    is_valid = value == 0 or value >= _LOWEST_RATE_HZ
    return None if is_valid else Mistake(found=repr(value), expected=expected)


def cameras_mistake(names: Sequence[str]) -> Mistake | None:
    """Check the names of the cameras."""
    if len(names) > MAX_CAMERAS:
        return Mistake(found=str(len(names)), expected=f'at most {MAX_CAMERAS} names')
    for name in names:
        if not _CAMERA_NAME.fullmatch(name):
            expected = 'names of 1 to 64 letters, digits and underscores that begin with a letter'
            return Mistake(found=short_repr(name), expected=expected)
        if name == _NODE_STATUS_NAME:
            expected = 'another name, because the status of the node has this name'
            return Mistake(found=short_repr(name), expected=expected)
    return names_mistake(names)


def devices_mistake(indices: Sequence[int]) -> Mistake | None:
    """Check indices of CUDA devices."""
    fits = len(set(indices)) == len(indices) and all(0 <= i <= _HIGHEST_DEVICE for i in indices)
    if indices and fits:
        return None
    expected = f'one or more different numbers from 0 to {_HIGHEST_DEVICE}'
    return Mistake(found=short_repr(list(indices)), expected=expected)


def libraries_mistake(paths: Sequence[str]) -> Mistake | None:
    """Check the paths of plugin libraries, but not the files."""
    return next(filter(None, (name_mistake(path, MAX_PATH_LENGTH) for path in paths)), None)


def servers_mistake(servers: Sequence[str]) -> Mistake | None:
    """Check the hosts and ports of Triton servers."""
    if len(servers) > _MAX_SERVERS:
        return Mistake(found=str(len(servers)), expected=f'at most {_MAX_SERVERS} servers')
    wrong = next((server for server in servers if not is_server(server)), None)
    return None if wrong is None else Mistake(found=short_repr(wrong), expected=SERVER_FORM)


def triple_mistake(key: str, values: Sequence[float]) -> Mistake | None:
    """Check a list of three numbers, one for each channel, or an empty list."""
    if len(values) not in (0, 3):
        return Mistake(found=str(len(values)), expected='no value or 3 values')
    return number_mistake(key, values)
