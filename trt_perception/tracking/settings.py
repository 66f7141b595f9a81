# SPDX-License-Identifier: Apache-2.0
"""The settings of a tracker."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import closest_words, short_repr


@dataclass(frozen=True, kw_only=True)
class TrackerSettings:
    """The settings of a Tracker. docs/coming_from.md has their names in others.

    A threshold of a score or an overlap is exceeded by larger values only. The defaults are those
    of ``bytetrack.yaml`` in Ultralytics 8.4. The paper (https://arxiv.org/abs/2110.06864) uses
    0.6 as ``high_threshold`` and 0.7 as ``new_track_threshold``.

    Attributes:
        confidence_threshold: a detection without a track is returned above this score. A track is
            confirmed only if one of its detections had a score above it.
        high_threshold: detections above this score are assigned first.
        low_threshold: detections above this score, up to ``high_threshold``, may continue tracks
            without a detection of a high score. Lower scores are ignored.
        new_track_threshold: a detection that continues no track starts a track above this score.
            Values below ``high_threshold`` have the effect of ``high_threshold``.
        match_iou: a detection of a high score may continue a track if it overlaps the track's
            predicted box (IoU) by more than this. Ultralytics and the paper write 1 minus this
            value, ``match_thresh: 0.8``.
        low_match_iou: the same for a detection of a low score. The paper and Ultralytics have this
            value as a constant.
        max_lost_s: a track ends after this time without a detection, in seconds. Ultralytics and
            the paper count 30 images.
        min_hits: number of detections that confirm a track. Ultralytics and the paper confirm
            tracks with the second detection, and tracks of the first image at once.
        class_agnostic: whether a track may continue with a detection of another class. In
            Ultralytics and the paper, it may.
        publish_low: whether detections up to ``confidence_threshold`` are returned if they belong
            to a confirmed track.

    Raises:
        ConfigError: a value has the wrong type or is out of range.
    """

    confidence_threshold: float = 0.25
    high_threshold: float = 0.25
    low_threshold: float = 0.1
    new_track_threshold: float = 0.25
    match_iou: float = 0.2
    low_match_iou: float = 0.5
    max_lost_s: float = 1.0
    min_hits: int = 2
    class_agnostic: bool = False
    publish_low: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            expected = _expected(field.name, value)
            if expected:
                raise ConfigError(f"setting '{field.name}'", short_repr(value), expected=expected)
        if self.low_threshold > self.high_threshold:
            raise ConfigError(
                "setting 'low_threshold'",
                short_repr(self.low_threshold),
                expected=f'at most high_threshold ({self.high_threshold})',
            )


def settings_from(values: dict[str, Any]) -> TrackerSettings:
    """Return the settings with these values by name.

    Raises:
        ConfigError: a setting is unknown, or its value is invalid.
    """
    known = [field.name for field in fields(TrackerSettings)]
    for name in values:
        if name not in known:
            close = closest_words(name, known)
            fix = f"did you mean '{close[0]}'" if close else f'settings: {", ".join(known)}'
            raise ConfigError(f"setting '{name}'", 'is unknown', fix=fix)
    return TrackerSettings(**values)


def _expected(name: str, value: Any) -> str:
    """Return what a setting must be, if its value is invalid; otherwise ''."""
    if name in ('class_agnostic', 'publish_low'):
        return '' if isinstance(value, (bool, np.bool_)) else 'True or False'
    if name == 'min_hits':
        is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        return '' if is_integer and value >= 1 else 'a whole number from 1'
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if name == 'max_lost_s':
        return '' if is_number and 0 < value < math.inf else 'a number of seconds above 0'
    return '' if is_number and 0 <= value <= 1 else 'a number from 0 to 1'
