# SPDX-License-Identifier: Apache-2.0
"""Imports pycocotools when it is first needed."""

from __future__ import annotations

import importlib
from typing import Any

from trt_perception.errors import ConfigError


def pycocotools_module(name: str) -> Any:
    """Return a module of pycocotools by its name.

    Raises:
        ConfigError: pycocotools is not installed.
    """
    try:
        return importlib.import_module(f'.{name}', 'pycocotools')
    except ImportError as error:
        raise ConfigError(
            'mAP',
            f'needs pycocotools ({error})',
            fix='install it: python3 -m pip install pycocotools',
        ) from error


def check_pycocotools() -> None:
    """Check before a long run that pycocotools is installed.

    Raises:
        ConfigError: pycocotools is not installed.
    """
    pycocotools_module('cocoeval')
