"""pycocotools, imported when something is measured with it."""

from __future__ import annotations

import importlib
from typing import Any

from trt_perception.errors import ConfigError

__all__ = ['check_pycocotools', 'pycocotools']


def pycocotools(name: str) -> Any:
    """Return a module of pycocotools.

    Raises:
        ConfigError: pycocotools is not installed.
    """
    try:
        return importlib.import_module(f'.{name}', 'pycocotools')
    except ImportError as error:
        raise ConfigError(
            'mAP', f'needs pycocotools ({error})', fix='python3 -m pip install pycocotools'
        ) from error


def check_pycocotools() -> None:
    """Find out before the work whether metrics can be computed.

    Raises:
        ConfigError: pycocotools is not installed.
    """
    pycocotools('cocoeval')
