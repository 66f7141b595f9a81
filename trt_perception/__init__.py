# SPDX-License-Identifier: Apache-2.0
"""Vision models for ROS 2 with TensorRT, or with ONNX Runtime on machines without a GPU.

Programs without ROS call ``load`` to open a model, and call the returned Model on images:
docs/python.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trt_perception.api import Model, load
    from trt_perception.errors import TrtPerceptionError
    from trt_perception.images.detections import Detections
    from trt_perception.images.results.class_map import ClassMap
    from trt_perception.images.results.class_scores import ClassScores
    from trt_perception.images.results.depth_map import DepthMap
    from trt_perception.tracking.tracker import Tracker

    __version__: str

__all__ = [
    'ClassMap',
    'ClassScores',
    'DepthMap',
    'Detections',
    'Model',
    'Tracker',
    'TrtPerceptionError',
    '__version__',
    'load',
]

_MODULES = {
    'ClassMap': 'images.results.class_map',
    'ClassScores': 'images.results.class_scores',
    'DepthMap': 'images.results.depth_map',
    'Detections': 'images.detections',
    'Tracker': 'tracking.tracker',
    'TrtPerceptionError': 'errors',
    'Model': 'api',
    'load': 'api',
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that importing the package stays fast.

    The version is that of the installed package, as ``setup.py`` states it.
    """
    if name == '__version__':
        from importlib.metadata import version

        return version(__name__)
    if name not in _MODULES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(f'{__name__}.{_MODULES[name]}'), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
