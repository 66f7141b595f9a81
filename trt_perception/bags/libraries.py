# SPDX-License-Identifier: Apache-2.0
"""Imports the optional packages for bags when they are first needed."""

from __future__ import annotations

import importlib
from typing import Any

from trt_perception.errors import ConfigError

# Package on PyPI by name of the module.
_PACKAGES = {'mcap': 'mcap', 'zstandard': 'zstandard', 'lz4': 'lz4'}


def bag_library(name: str) -> Any:
    """Return a module of mcap, zstandard or lz4 by its full name.

    Raises:
        ConfigError: the package is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = _PACKAGES[name.partition('.')[0]]
        raise ConfigError(
            'bag',
            f'needs {package} ({error})',
            fix=f'install it: python3 -m pip install {package}',
        ) from error
