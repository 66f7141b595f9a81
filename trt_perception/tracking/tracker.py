# SPDX-License-Identifier: Apache-2.0
"""ByteTrack: find the objects of one image of a camera again in the next images."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trt_perception.images.detections import Detections
from trt_perception.images.results.short_repr import ShortRepr
from trt_perception.tracking import motion
from trt_perception.tracking.assignment import Indices, best_pairs, load_solver, overlaps
from trt_perception.tracking.settings import TrackerSettings, settings_from

#: The id of a detection without a confirmed track, as in supervision and trackers.
NO_ID = -1
# More lost tracks would need more memory and time for each image: 70 ms for 6000 tracks.
_MAX_LOST_TRACKS: Final = 1000


@dataclass(frozen=True, repr=False)
class TrackedDetections(ShortRepr):
    """The detections of one image that a Tracker kept, best score first, with their ids.

    Attributes:
        detections: the kept detections, of length n, with ``ids``. A kept box, mask and keypoint
            is as detected, not as predicted.
        kept: int64 (n,), ascending: the index of each detection among those given to ``update``.
    """

    detections: Detections
    kept: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.detections)

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """The ``ids`` of the detections: int64 (n,), from 1; -1 without a confirmed track."""
        assert self.detections.ids is not None
        return self.detections.ids


@dataclass
class _Tracks:
    """The live tracks, one row of each array for each track.

    Attributes:
        boxes, velocities, variances: see ``motion.predict``.
        class_ids: the class of each track. With ``class_agnostic``, that of its first detection.
        ids: ``NO_ID`` until the track is confirmed.
        hits: number of detections.
        was_sure: whether a score was above ``confidence_threshold``.
        seen_s: stamp of the last detection.
    """

    boxes: motion.Floats
    velocities: motion.Floats
    variances: motion.Floats
    class_ids: npt.NDArray[np.int32]
    ids: npt.NDArray[np.int64]
    hits: npt.NDArray[np.int64]
    was_sure: npt.NDArray[np.bool_]
    seen_s: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, which: npt.NDArray[Any]) -> _Tracks:
        return _Tracks(*(getattr(self, field.name)[which] for field in fields(self)))

    def extended(self, other: _Tracks) -> _Tracks:
        return _Tracks(
            *(
                np.concatenate([getattr(self, field.name), getattr(other, field.name)])
                for field in fields(self)
            )
        )


def _new_tracks(boxes: npt.NDArray[Any], class_ids: npt.NDArray[np.int32]) -> _Tracks:
    """Return tracks of objects that were not seen before. Their detections are not counted yet."""
    count = len(boxes)
    return _Tracks(
        boxes=boxes.astype(np.float64),
        velocities=np.zeros((count, 2)),
        variances=motion.first_variances(count),
        class_ids=class_ids,
        ids=np.full(count, NO_ID),
        hits=np.zeros(count, np.int64),
        was_sure=np.zeros(count, np.bool_),
        seen_s=np.full(count, -math.inf),
    )


def _no_tracks() -> _Tracks:
    return _new_tracks(np.empty((0, 4)), np.empty(0, np.int32))


class Tracker:
    """Gives the detections of one camera ids that stay with their objects (ByteTrack).

    Call ``update`` with the detections of each image in turn, also if there are none. The model
    must detect with a ``confidence_threshold`` as low as the tracker's ``low_threshold``: low
    scores continue tracks, for instance of objects that are partly covered.

    A track is confirmed after ``min_hits`` detections in consecutive images, if one of them had a
    score above ``confidence_threshold``. It then gets the next number from 1 as its id. The
    numbers of a Tracker are never used twice. Oriented boxes are tracked by their upright boxes.

    One Tracker serves one camera and one thread. docs/tracks.md helps with the settings.

    Args:
        settings: ``confidence_threshold`` and the other attributes of TrackerSettings.

    Raises:
        ConfigError: a setting is unknown or invalid, or SciPy is not installed.

    Attributes:
        settings: the TrackerSettings. Other settings may be assigned. Tracks go on, and the next
            ``update`` uses the new values.

    >>> tracker = tp.Tracker(confidence_threshold=0.5)
    >>> with tp.load('digits.onnx', confidence_threshold=0.1) as model:
    ...     image = cv2.imread('image.jpg')
    ...     first = tracker.update(model(image), stamp_s=0.0)
    ...     second = tracker.update(model(image), stamp_s=0.1)
    >>> set(first.ids.tolist()), sorted(second.ids.tolist())[:3]
    ({-1}, [1, 2, 3])
    >>> len(second.detections) == len(second.ids)
    True
    """

    def __init__(self, **settings: float) -> None:
        self.settings: TrackerSettings = settings_from(settings)
        self._solver = load_solver()
        self._tracks = _no_tracks()
        self._stamp_s = -math.inf
        self._size_wh: tuple[int, int] | None = None
        self._last_id = 0

    @property
    def live_tracks(self) -> int:
        """Number of confirmed tracks that have not ended."""
        return int(np.count_nonzero(self._tracks.ids != NO_ID))

    @property
    def last_id(self) -> int:
        """The largest id so far, which is also the number of ids; 0 before the first one."""
        return self._last_id

    @property
    def stamp_s(self) -> float:
        """Stamp of the last image in seconds; -inf before the first one, and after ``reset``."""
        return self._stamp_s

    def reset(self) -> None:
        """End all tracks. The ids of later tracks continue the numbers."""
        self._tracks = _no_tracks()
        self._stamp_s = -math.inf

    def update(
        self, detections: Detections, stamp_s: float, size_wh: tuple[int, int] | None = None
    ) -> TrackedDetections:
        """Assign the detections of the next image to tracks.

        All tracks end if the stamp is earlier than the last one, or later by more than
        ``max_lost_s``, or if the size of the image changes.

        Args:
            detections: in pixels of the image.
            stamp_s: time of the exposure in seconds. Any clock of constant speed will do.
            size_wh: width and height of the image in pixels; None if the size never changes.

        Returns:
            The detections that have a score above ``confidence_threshold`` or a confirmed track.

        Raises:
            ValueError: the stamp is not finite.
        """
        if not math.isfinite(stamp_s):
            raise ValueError(f'expected a finite stamp (got {stamp_s})')
        self._start_image(stamp_s, size_wh)
        track_of = self._assign(detections)
        self._correct(detections, track_of)
        track_of = self._start_tracks(detections, track_of)
        self._count(detections, track_of)
        return self._result(detections, track_of)

    def _start_image(self, stamp_s: float, size_wh: tuple[int, int] | None) -> None:
        """End the tracks that were lost for too long, and predict the others."""
        if stamp_s < self._stamp_s or size_wh != self._size_wh:
            self.reset()
        self._tracks = self._tracks.take(stamp_s - self._tracks.seen_s <= self.settings.max_lost_s)
        if len(self._tracks):
            tracks = self._tracks
            motion.predict(
                tracks.boxes, tracks.velocities, tracks.variances, stamp_s - self._stamp_s
            )
        self._stamp_s, self._size_wh = stamp_s, size_wh

    def _assign(self, detections: Detections) -> Indices:
        """Return the index of each detection's track, or -1: int64 (n,)."""
        settings, tracks = self.settings, self._tracks
        track_of = np.full(len(detections), -1)
        if not len(tracks) or not len(detections):
            return track_of
        overlap = overlaps(tracks.boxes, detections.xyxy)
        if not settings.class_agnostic:
            overlap[tracks.class_ids[:, None] != detections.class_ids] = 0
        is_high = detections.scores > settings.high_threshold
        is_low = (detections.scores > settings.low_threshold) & ~is_high
        is_free = np.ones(len(tracks), np.bool_)
        for scores, smallest in (
            (is_high, settings.match_iou),
            (is_low, settings.low_match_iou),
        ):
            which = np.flatnonzero(is_free)
            candidates = np.flatnonzero(scores)
            if len(which) and len(candidates):
                rows, columns = best_pairs(self._solver, overlap, which, candidates, smallest)
                track_of[columns] = rows
                is_free[rows] = False
        return track_of

    def _correct(self, detections: Detections, track_of: Indices) -> None:
        assigned = np.flatnonzero(track_of >= 0)
        if len(assigned):
            tracks = self._tracks
            motion.correct(
                tracks.boxes,
                tracks.velocities,
                tracks.variances,
                track_of[assigned],
                detections.xyxy[assigned],
            )

    def _start_tracks(self, detections: Detections, track_of: Indices) -> Indices:
        """Start tracks for new objects, and return each detection's track."""
        least = max(self.settings.new_track_threshold, self.settings.high_threshold)
        new = np.flatnonzero((track_of < 0) & (detections.scores > least))
        if len(new):
            track_of[new] = len(self._tracks) + np.arange(len(new))
            self._tracks = self._tracks.extended(
                _new_tracks(detections.xyxy[new], detections.class_ids[new])
            )
        return track_of

    def _count(self, detections: Detections, track_of: Indices) -> None:
        """Count the detections of tracks, and give ids to tracks that are now confirmed."""
        tracks, settings = self._tracks, self.settings
        assigned = np.flatnonzero(track_of >= 0)
        which = track_of[assigned]
        tracks.hits[which] += 1
        tracks.was_sure[which] |= detections.scores[assigned] > settings.confidence_threshold
        tracks.seen_s[which] = self._stamp_s
        confirmed = which[
            (tracks.ids[which] == NO_ID)
            & (tracks.hits[which] >= settings.min_hits)
            & tracks.was_sure[which]
        ]
        tracks.ids[confirmed] = self._last_id + 1 + np.arange(len(confirmed))
        self._last_id += len(confirmed)

    def _result(self, detections: Detections, track_of: Indices) -> TrackedDetections:
        """Return the detections to publish, and end tracks that are not needed."""
        tracks, settings = self._tracks, self.settings
        ids = np.full(len(detections), NO_ID)
        assigned = np.flatnonzero(track_of >= 0)
        ids[assigned] = tracks.ids[track_of[assigned]]
        keep = detections.scores > settings.confidence_threshold
        if settings.publish_low:
            keep |= ids != NO_ID
        self._end_tracks(track_of[assigned])
        kept = np.flatnonzero(keep)
        # Images that the GPU draws need no new numbers if all detections are kept.
        taken = detections if len(kept) == len(detections) else detections.take(kept)
        return TrackedDetections(taken.with_ids(ids[kept]), kept)

    def _end_tracks(self, detected: Indices) -> None:
        """End unconfirmed tracks without a detection, and those of too many lost tracks.

        Args:
            detected: indices of the tracks with a detection in this image.
        """
        tracks = self._tracks
        goes_on = np.zeros(len(tracks), np.bool_)
        goes_on[detected] = True
        lost = np.flatnonzero(~goes_on & (tracks.ids != NO_ID))
        # Of equal stamps, the later track stays.
        by_stamp = np.argsort(tracks.seen_s[lost], kind='stable')
        goes_on[lost[by_stamp[-_MAX_LOST_TRACKS:]]] = True
        self._tracks = tracks.take(goes_on)
