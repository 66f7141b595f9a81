# SPDX-License-Identifier: Apache-2.0
"""Summarises the results in a new bag for its report page, in memory that constants bound.

The results are read from the new bag, so a bag that was completed earlier has the same summary.
"""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trt_perception.bags.bag import BagLoss, BagMessage
from trt_perception.bags.open_bag import open_bag
from trt_perception.errors import ConfigError, ImageError
from trt_perception.model.tasks.task import DETECTIONS_TOPIC
from trt_perception.offline.bags.joining import camera_topic
from trt_perception.offline.bags.part import ModelFacts
from trt_perception.offline.bags.plan import BagPlan
from trt_perception.wire.cdr import CdrReader, StampFields
from trt_perception.wire.detections import FoundObjects, read_detections

#: Number of bins: equal ranges of the time, each with counts of its own.
BIN_COUNT: Final = 120
#: Upper limits of the lengths of tracks that are counted together, in seconds.
TRACK_LIMITS_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, math.inf)
_LONGEST_TRACKS: Final = 10
# A track ends when this many other tracks were seen after it. A tracker ends lost tracks earlier.
_MAX_OPEN_TRACKS: Final = 20_000
# Fewer objects after a longer pause are no sudden loss.
_MAX_PAUSE_NS: Final = 1_000_000_000
_Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Moment:
    """An image that deserves a look.

    Attributes:
        reason: ``many objects``, ``low scores`` or ``loss of objects``.
        value: number of objects, mean score, or number of objects fewer than in the image before.
        objects: number of objects.
    """

    reason: str
    value: float
    camera: str
    log_ns: int
    stamp: StampFields
    objects: int


@dataclass
class Track:
    """An object that the tracker followed.

    Attributes:
        class_name: its last class.
        first_ns: log time of its first image.
        last_ns: log time of its last image.
        images: number of images in which it was detected.
    """

    camera: str
    id: str
    class_name: str
    first_ns: int
    last_ns: int
    images: int = 0

    @property
    def length_s(self) -> float:
        """Time from its first to its last image, in seconds."""
        return (self.last_ns - self.first_ns) / 1e9


@dataclass
class ClassTotals:
    """The objects of one class and camera.

    Attributes:
        counts: int64 (BIN_COUNT,), number of objects.
        score_sum: sum of all scores.
        tracks: number of tracks.
        track_s: sum of their lengths in seconds.
    """

    counts: _Counts = field(default_factory=lambda: np.zeros(BIN_COUNT, np.int64))
    score_sum: float = 0.0
    tracks: int = 0
    track_s: float = 0.0


class BagSummary:
    """Counts over the results of one bag.

    Args:
        cameras: names of the cameras.
        start_ns: first log time.
        end_ns: end of the log times, not included.

    Attributes:
        images: int64 (BIN_COUNT,) by camera, number of images with a result.
        classes: totals by camera, then by class.
        lengths: number of tracks with a length up to each of ``TRACK_LIMITS_S``.
        longest: the longest tracks, longest first.
        losses: damaged ranges of the new bag.
    """

    def __init__(self, cameras: list[str], start_ns: int, end_ns: int) -> None:
        self.images = {camera: np.zeros(BIN_COUNT, np.int64) for camera in cameras}
        self.classes: dict[str, defaultdict[str, ClassTotals]] = {
            camera: defaultdict(ClassTotals) for camera in cameras
        }
        self.lengths = [0] * len(TRACK_LIMITS_S)
        self.longest: list[Track] = []
        self.losses: list[BagLoss] = []
        self._start_ns, self._length_ns = start_ns, end_ns - start_ns
        self._open: OrderedDict[tuple[str, str], Track] = OrderedDict()
        self._before: dict[str, tuple[int, int]] = {}
        # The best image by reason, camera and bin: neighbours are nearly equal.
        self._best: dict[tuple[str, str, int], Moment] = {}

    def add_image(self, camera: str, log_ns: int) -> int:
        """Count an image with a result. Return the index of its bin."""
        bin_index = (log_ns - self._start_ns) * BIN_COUNT // self._length_ns
        bin_index = min(max(bin_index, 0), BIN_COUNT - 1)
        self.images[camera][bin_index] += 1
        return bin_index

    def add_objects(self, camera: str, log_ns: int, found: FoundObjects) -> None:
        """Count an image and its objects. Images come in the order of their log times."""
        bin_index = self.add_image(camera, log_ns)
        scores = []
        for each in found.objects:
            if not each.hypotheses:
                continue
            class_name, score = each.hypotheses[0]
            scores.append(score)
            totals = self.classes[camera][class_name]
            totals.counts[bin_index] += 1
            totals.score_sum += score
            if each.id:
                key = camera, each.id
                track = self._open.setdefault(key, Track(*key, class_name, log_ns, log_ns))
                track.class_name, track.last_ns = class_name, log_ns
                track.images += 1
                self._open.move_to_end(key)
        while len(self._open) > _MAX_OPEN_TRACKS:
            self._end_track(self._open.popitem(last=False)[1])
        before_ns, before = self._before.get(camera, (log_ns, 0))
        self._before[camera] = log_ns, len(scores)

        def keep(reason: str, value: float, *, is_lowest: bool = False) -> None:
            best = self._best.get((reason, camera, bin_index))
            if best is None or (value < best.value if is_lowest else value > best.value):
                stamp = found.header.stamp
                moment = Moment(reason, value, camera, log_ns, stamp, len(scores))
                self._best[reason, camera, bin_index] = moment

        if scores:
            keep('many objects', len(scores))
            keep('low scores', sum(scores) / len(scores), is_lowest=True)
        if before > len(scores) and log_ns - before_ns <= _MAX_PAUSE_NS:
            keep('loss of objects', before - len(scores))

    def finish(self) -> None:
        """End all tracks."""
        while self._open:
            self._end_track(self._open.popitem(last=False)[1])

    def _end_track(self, track: Track) -> None:
        totals = self.classes[track.camera][track.class_name]
        totals.tracks += 1
        totals.track_s += track.length_s
        limit = next(i for i, limit in enumerate(TRACK_LIMITS_S) if track.length_s <= limit)
        self.lengths[limit] += 1
        self.longest.append(track)
        self.longest.sort(key=lambda each: (-each.length_s, each.first_ns, each.camera))
        del self.longest[_LONGEST_TRACKS:]

    def moments(self) -> dict[str, list[Moment]]:
        """Return the images that deserve a look by reason, the most striking first."""
        found: dict[str, list[Moment]] = {
            'many objects': [],
            'low scores': [],
            'loss of objects': [],
        }
        for moment in self._best.values():
            found[moment.reason].append(moment)
        for reason, moments in found.items():
            sign = 1 if reason == 'low scores' else -1
            moments.sort(key=lambda each: (sign * each.value, each.log_ns, each.camera))
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as a JSON object."""
        return {
            'images': {camera: counts.tolist() for camera, counts in self.images.items()},
            'objects': {
                camera: all_objects(classes).tolist() for camera, classes in self.classes.items()
            },
            'classes': {
                camera: {
                    name: {
                        'objects': int(each.counts.sum()),
                        'mean_score': each.score_sum / max(1, int(each.counts.sum())),
                        'tracks': each.tracks,
                        'track_s': each.track_s,
                    }
                    for name, each in classes.items()
                }
                for camera, classes in self.classes.items()
            },
            'track_lengths': self.lengths,
            'longest_tracks': [asdict(track) for track in self.longest],
        }


def summarise_bag(plan: BagPlan, facts: ModelFacts, progress: Callable[[], None]) -> BagSummary:
    """Read the results of a bag.

    Args:
        progress: called after each image.

    Raises:
        ConfigError: the new bag cannot be read.
    """
    summary = BagSummary([each.name for each in plan.cameras], plan.start_ns, plan.end_ns)
    topics = [DETECTIONS_TOPIC] if facts.finds_objects else facts.topics
    with contextlib.closing(open_bag(str(plan.output))) as bag:
        cameras: dict[str, str] = {}
        for camera in summary.images:
            # A model has one of several topics of depth.
            own = [camera_topic(camera, topic.name) for topic in topics]
            known = [topic for topic in own if bag.message_counts.get(topic)]
            cameras |= dict.fromkeys(known[:1], camera)
        for message in bag.messages(list(cameras)):
            camera = cameras[message.topic]
            if facts.finds_objects:
                summary.add_objects(camera, message.log_ns, _objects(plan, message))
            else:
                summary.add_image(camera, message.log_ns)
            progress()
        summary.losses = bag.losses
    summary.finish()
    return summary


def _objects(plan: BagPlan, message: BagMessage) -> FoundObjects:
    try:
        return read_detections(np.frombuffer(message.data, np.uint8))
    except ImageError as error:
        found = f'has a message that cannot be read: {error}'
        raise ConfigError(f'{plan.output}, {message.topic}', found) from error


def message_of(messages: Iterator[BagMessage], stamp: StampFields) -> BagMessage | None:
    """Return the first message with a stamp; None if there is none."""
    for message in messages:
        with contextlib.suppress(ImageError):
            if CdrReader(np.frombuffer(message.data, np.uint8)).read_header().stamp == stamp:
                return message
    return None


def all_objects(classes: Mapping[str, ClassTotals]) -> _Counts:
    """Return the number of objects of all classes: int64 (BIN_COUNT,)."""
    return sum((each.counts for each in classes.values()), np.zeros(BIN_COUNT, np.int64))
