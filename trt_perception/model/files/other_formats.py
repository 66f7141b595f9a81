# SPDX-License-Identifier: Apache-2.0
"""Recognises files of other formats under the name of a model, by their first bytes."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from trt_perception.errors import EngineError

_EXPORT_FIX: Final = 'export the model to ONNX: docs/own_model.md'
_UNPACK_FIX: Final = 'unpack it, and name the model file inside'


class _Format(NamedTuple):
    """A file format that is no model for this package.

    Attributes:
        start: matches the first bytes of a file.
    """

    start: re.Pattern[bytes]
    found: str
    fix: str


def _format(start: bytes, found: str, fix: str) -> _Format:
    return _Format(re.compile(start, re.IGNORECASE | re.DOTALL), found, fix)


_FORMATS: Final = (
    _format(
        rb'version https://git-lfs',
        'a pointer file of Git LFS instead of the model',
        "run 'git lfs pull' in its repository, or download the file itself",
    ),
    _format(
        rb'(\xef\xbb\xbf)?\s*<(!doctype\s+html|html|head)',
        'a web page instead of the model',
        'download the file itself: the link of the button "download" or "raw", not of its page',
    ),
    _format(rb'(\xef\xbb\xbf)?\s*<\?xml', 'an XML file, such as an OpenVINO model', _EXPORT_FIX),
    _format(
        rb'PK\x03\x04',
        'a ZIP archive, such as a PyTorch file',
        f'{_EXPORT_FIX}; {_UNPACK_FIX} if it was only packed',
    ),
    _format(
        rb'\x1f\x8b|BZh|\xfd7zXZ\x00|\x28\xb5\x2f\xfd|7z\xbc\xaf', 'a compressed file', _UNPACK_FIX
    ),
    _format(rb'\x80[\x02-\x05]', 'a pickle, such as an old PyTorch file', _EXPORT_FIX),
    _format(rb'\x89HDF\r\n', 'an HDF5 file, such as a Keras model', _EXPORT_FIX),
    _format(rb'.{4}TFL3', 'a TensorFlow Lite model', _EXPORT_FIX),
    _format(rb'\x7fELF', 'a program or library', 'name the model file'),
)
_PLAN: Final = _format(
    rb'[fv]trt',
    'a TensorRT engine',
    'build_engine needs the ONNX model that it was built from. To load the engine, give it the '
    'suffix .engine',
)


def check_file_format(path: str, content: bytes, *, is_onnx: bool) -> None:
    """Refuse a file that starts like a file of another known format.

    Args:
        content: the file's bytes.
        is_onnx: whether the file has the suffix of ONNX files. Otherwise it should be an engine.

    Raises:
        EngineError: the file has another format. The error names the format and the way out.
    """
    formats = (*_FORMATS, _PLAN) if is_onnx else _FORMATS
    for each in formats:
        if each.start.match(content):
            expected = 'an ONNX file' if is_onnx else 'a TensorRT engine'
            raise EngineError(path, each.found, expected=expected, fix=each.fix)
