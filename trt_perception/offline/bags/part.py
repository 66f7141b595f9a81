# SPDX-License-Identifier: Apache-2.0
"""What processes tell each other about their work: the job, a part of a bag, and the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from trt_perception.bags.bag import BagLoss
from trt_perception.bags.file_bag import FileBag
from trt_perception.files.plain_text import escape_line
from trt_perception.model.tasks.task import Topic
from trt_perception.parameters.camera import NodeParameters

#: Damaged ranges in the report of a part. A damaged file without times may concern all parts, so
#: that a bag of 1000 such files and 10 000 parts would need gigabytes.
MAX_PART_LOSSES: Final = 20


@dataclass(frozen=True)
class BagCamera:
    """A camera of a bag.

    Attributes:
        name: name of the camera; empty if its topics have no name of a camera.
        topic: topic of its images.
        is_compressed: whether the images are CompressedImage messages.
        info_topic: topic of its calibration; empty if the bag has none.
    """

    name: str
    topic: str
    is_compressed: bool
    info_topic: str = ''


@dataclass(frozen=True)
class Job:
    """What all parts of a command share. Processes send it to each other.

    Attributes:
        model: path of the model.
        parameters: parameters of the node, and of each camera.
        with_masks: whether to store masks of objects.
        has_compressed: whether a camera has compressed images.
        processes: number of processes that share this machine.
    """

    model: str
    parameters: NodeParameters
    with_masks: bool = False
    has_compressed: bool = False
    processes: int = 1


@dataclass(frozen=True)
class Part:
    """One part of one bag.

    Attributes:
        bag: path of the bag.
        number: number of the part, from 0.
        start_ns: first log time.
        end_ns: end of the log times, not included.
        cameras: cameras of the bag.
        image_wh: width and height of the first image of the bag, for models that follow it.
        target: file for the raw results.
    """

    bag: str
    number: int
    start_ns: int
    end_ns: int
    cameras: tuple[BagCamera, ...]
    image_wh: tuple[int, int]
    target: Path

    def __str__(self) -> str:
        return f'{escape_line(self.bag)}: part {self.number}'

    def losses_of(self, bag: FileBag) -> list[BagLoss]:
        """Return the damaged ranges of a bag that may have had messages of this part.

        The last range stands for all others, if there are too many.
        """
        found = [
            loss
            for loss in bag.losses
            if (loss.start_ns is None or loss.start_ns < self.end_ns)
            and (loss.end_ns is None or loss.end_ns >= self.start_ns)
        ]
        if len(found) <= MAX_PART_LOSSES:
            return found
        rest = found[MAX_PART_LOSSES - 1 :]
        reason = f'{len(rest)} further damaged ranges, the first one: {rest[0].reason}'
        return [
            *found[: MAX_PART_LOSSES - 1],
            BagLoss(rest[0].file, rest[0].start_ns, rest[-1].end_ns, reason),
        ]


@dataclass(frozen=True)
class ModelFacts:
    """What is known about a model after it was opened.

    Attributes:
        class_names: names by class id.
        topics: the topics of results, in the order of publishing.
        label_topics: the topics of class names.
        finds_objects: whether the results are objects.
        needs_calibration: whether the model needs the focal length of a camera.
        runtime: what changes the bits of results: provider, kind of GPU, versions of packages.
        evidence: sentences about how the model was recognised.
    """

    class_names: tuple[str, ...]
    topics: tuple[Topic, ...]
    label_topics: tuple[Topic, ...]
    finds_objects: bool
    needs_calibration: bool = False
    runtime: Mapping[str, str] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()
