# SPDX-License-Identifier: Apache-2.0
"""The message type of drawings for Foxglove, from foxglove_msgs, an optional package."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from trt_perception.ros.runtime.optional_messages import is_usable

try:
    from foxglove_msgs import msg as foxglove_messages
    from foxglove_msgs.msg import ImageAnnotations
except Exception:  # an optional package: doctor says why it cannot be imported
    foxglove_messages = ImageAnnotations = None

__all__ = ['ImageAnnotations', 'annotations_have_metadata', 'can_publish_annotations']

_LOG: Final = logging.getLogger(__name__)
_TIME: Final = 'builtin_interfaces/Time'
_POINT: Final = 'foxglove_msgs/Point2'
_COLOR: Final = 'foxglove_msgs/Color'
_METADATA: Final = {'metadata': 'sequence<foxglove_msgs/KeyValuePair>'}
# The fields that `wire.annotations` writes, in this order, by message type.
_FIELDS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        'ImageAnnotations': {
            'timestamp': _TIME,
            'circles': 'sequence<foxglove_msgs/CircleAnnotation>',
            'points': 'sequence<foxglove_msgs/PointsAnnotation>',
            'texts': 'sequence<foxglove_msgs/TextAnnotation>',
            **_METADATA,
        },
        'CircleAnnotation': {
            'timestamp': _TIME,
            'position': _POINT,
            'diameter': 'double',
            'thickness': 'double',
            'fill_color': _COLOR,
            'outline_color': _COLOR,
            **_METADATA,
        },
        'PointsAnnotation': {
            'timestamp': _TIME,
            'type': 'uint8',
            'points': f'sequence<{_POINT}>',
            'outline_color': _COLOR,
            'outline_colors': f'sequence<{_COLOR}>',
            'fill_color': _COLOR,
            'thickness': 'double',
            **_METADATA,
        },
        'TextAnnotation': {
            'timestamp': _TIME,
            'position': _POINT,
            'text': 'string',
            'font_size': 'double',
            'text_color': _COLOR,
            'background_color': _COLOR,
            **_METADATA,
        },
        'Point2': {'x': 'double', 'y': 'double'},
        'Color': {'r': 'double', 'g': 'double', 'b': 'double', 'a': 'double'},
    }
)
# Fields of the newer releases, from 3.2.5 on.
_NEWER: Final = frozenset(
    (name, field)
    for name, fields in _FIELDS.items()
    for field in fields
    if field == 'metadata' or (name, field) == ('ImageAnnotations', 'timestamp')
)


def can_publish_annotations() -> bool:
    """Return whether foxglove_msgs is installed, and works with this Python and ROS 2."""
    return is_usable(ImageAnnotations) and annotations_have_metadata() is not None


def annotations_have_metadata() -> bool | None:
    """Return whether drawings have metadata; None for messages of an unknown release."""
    return _have_metadata(foxglove_messages)


@functools.cache
def _have_metadata(messages: Any) -> bool | None:
    found = {
        name: list(getattr(messages, name).get_fields_and_field_types().items())
        for name in _FIELDS
    }
    for has_metadata in (True, False):
        expected = {
            name: [
                (field, kind)
                for field, kind in fields.items()
                if has_metadata or (name, field) not in _NEWER
            ]
            for name, fields in _FIELDS.items()
        }
        if found == expected:
            return has_metadata
    _LOG.warning(
        'no annotations are published, because this foxglove_msgs has other fields than 3.2.4 '
        'and 3.4.3'
    )
    return None
