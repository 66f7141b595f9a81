# SPDX-License-Identifier: Apache-2.0
"""Parameters of the tracker, which gives detections ids over time."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import short_repr
from trt_perception.parameters.row import parameter_field
from trt_perception.tracking.assignment import load_solver
from trt_perception.tracking.settings import TrackerSettings

_MAX_LOST_LIMITS_S: Final = (0.001, 3600.0)
_MAX_HITS: Final = 1000
#: The setting of the tracker that is also a parameter of the decoder.
_SHARED: Final = 'confidence_threshold'


def _tracker_field(name: str, description: str, **facts: Any) -> Any:
    """Return a row for a setting of the tracker, with its default."""
    default = getattr(TrackerSettings, name)
    return parameter_field(
        default, description, name=f'tracker.{name}', live=True, per_camera=True, **facts
    )


@dataclass(frozen=True, kw_only=True)
class TrackerParameters:
    """Parameters of the tracker of each camera. Each field is a row of the table."""

    tracker_type: str = parameter_field(
        'none',
        'bytetrack: the id of a detection is the number of its track, which stays the same from '
        'image to image (docs/tracks.md). none: ids are empty. Only for models that find objects.',
        name='tracker.type',
        choices=('none', 'bytetrack'),
        live=True,
        per_camera=True,
    )
    tracker_high_threshold: float = _tracker_field(
        'high_threshold',
        'Detections with a score above this are assigned to tracks first.',
        limits=(0.0, 1.0),
    )
    tracker_low_threshold: float = _tracker_field(
        'low_threshold',
        'Detections with a score above this may continue a track. The decoder uses this threshold '
        'if it is below confidence_threshold.',
        limits=(0.0, 1.0),
    )
    tracker_new_track_threshold: float = _tracker_field(
        'new_track_threshold',
        'A detection that continues no track starts one if its score is above this and above '
        'tracker.high_threshold.',
        limits=(0.0, 1.0),
    )
    tracker_match_iou: float = _tracker_field(
        'match_iou',
        'A detection with a score above tracker.high_threshold may continue a track if its box '
        "overlaps the track's predicted box by more than this (IoU).",
        limits=(0.0, 1.0),
    )
    tracker_low_match_iou: float = _tracker_field(
        'low_match_iou',
        'As tracker.match_iou, for a detection with a score up to tracker.high_threshold.',
        limits=(0.0, 1.0),
    )
    tracker_max_lost_s: float = _tracker_field(
        'max_lost_s',
        'A track ends after this time without a detection, by the stamps of the images.',
        unit='s',
        limits=_MAX_LOST_LIMITS_S,
    )
    tracker_min_hits: int = _tracker_field(
        'min_hits',
        'Number of detections in consecutive images that confirm a track. One of them needs a '
        'score above confidence_threshold.',
        limits=(1, _MAX_HITS),
    )
    tracker_class_agnostic: bool = _tracker_field(
        'class_agnostic', 'A track may continue with a detection of another class.'
    )
    tracker_publish_low: bool = _tracker_field(
        'publish_low',
        'Also publish detections with a score up to confidence_threshold if they belong to a '
        'confirmed track.',
    )

    def tracker_settings(self, confidence_threshold: float) -> TrackerSettings | None:
        """Return the settings of the tracker; None if the type is ``none``."""
        if self.tracker_type == 'none':
            return None
        names = (field.name for field in fields(TrackerSettings))
        own = {name: getattr(self, f'tracker_{name}') for name in names if name != _SHARED}
        return TrackerSettings(confidence_threshold=confidence_threshold, **own)

    def check_tracker(self) -> None:
        """Check the rules between several parameters of the tracker, and that SciPy is installed.

        Raises:
            ConfigError: a rule is broken, or the tracker cannot run here.
        """
        if self.tracker_type == 'none':
            return
        if self.tracker_low_threshold > self.tracker_high_threshold:
            raise ConfigError(
                "parameter 'tracker.low_threshold'",
                short_repr(self.tracker_low_threshold),
                expected=f'at most tracker.high_threshold ({self.tracker_high_threshold:g})',
            )
        try:
            load_solver()
        except ConfigError as error:
            found = f"'{self.tracker_type}', which {error.found}"
            raise ConfigError("parameter 'tracker.type'", found, fix=error.fix) from error
