# SPDX-License-Identifier: Apache-2.0
"""The address of a model on a Triton server: triton://HOST:PORT/MODEL[/VERSION]."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import short_repr

_SCHEME: Final = 'triton:'
_SERVER: Final = re.compile(r'(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})')
# A path may have been through pathlib, which writes // as /.
_ADDRESS: Final = re.compile(
    rf'triton:/{{1,2}}(?P<server>{_SERVER.pattern})'
    r'/(?P<model>[A-Za-z0-9._-]{1,255})(/(?P<version>[0-9]{1,18}))?'
)
#: The form of the texts that `is_server` accepts.
SERVER_FORM: Final = "HOST:PORT, with the port of the server's gRPC service (usually 8001)"


@dataclass(frozen=True)
class TritonAddress:
    """A model on a Triton server.

    Attributes:
        server: host and port of the server's gRPC service, such as ``localhost:8001``.
        version: version of the model; '' lets the server choose.
    """

    server: str
    model: str
    version: str = ''

    def __str__(self) -> str:
        """Return the address as a user writes it."""
        version = f'/{self.version}' if self.version else ''
        return f'triton://{self.server}/{self.model}{version}'


def is_triton_address(path: str | Path) -> bool:
    """Return whether a text is the address of a model on a server, not the path of a file."""
    return str(path).startswith(_SCHEME)


def is_server(text: str) -> bool:
    """Return whether a text has the form HOST:PORT."""
    found = _SERVER.fullmatch(text)
    return found is not None and 0 < int(found['port']) < 2**16


def parse_triton_address(text: str | Path) -> TritonAddress:
    """Return the parts of an address.

    Raises:
        ConfigError: the address is malformed.
    """
    found = _ADDRESS.fullmatch(str(text))
    if found is None or not is_server(found['server']):
        raise ConfigError(
            'address of a Triton model',
            short_repr(str(text)),
            expected='triton://HOST:PORT/MODEL or triton://HOST:PORT/MODEL/VERSION, with the port '
            "of the server's gRPC service (usually 8001)",
        )
    return TritonAddress(found['server'], found['model'], found['version'] or '')


def triton_server(path: str) -> str:
    """Return the server in the address of a model; '' if the path is no valid address."""
    try:
        return parse_triton_address(path).server
    except ConfigError:
        return ''
