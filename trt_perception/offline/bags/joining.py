# SPDX-License-Identifier: Apache-2.0
"""Joins the raw results of a bag's parts: tracks objects, filters them, and writes the new bag.

Parts are joined in their order in one process, so the new bag does not depend on the processes
that ran the parts. Each part becomes a file of the new bag.
"""

from __future__ import annotations

import contextlib
import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from operator import attrgetter

from trt_perception.bags.bag import BagMessage, BagTopic
from trt_perception.bags.definitions import bag_topic
from trt_perception.bags.file_bag import FileBag
from trt_perception.bags.metadata import METADATA_NAME
from trt_perception.bags.open_bag import open_bag
from trt_perception.bags.qos import jazzy_qos
from trt_perception.bags.writer import BagWriter
from trt_perception.errors import ConfigError
from trt_perception.files.atomic_files import make_folder
from trt_perception.files.plain_text import join_first_items
from trt_perception.images.detections import Detections
from trt_perception.offline.bags.ledger import (
    Ledger,
    check_unchanged,
    remove_leftovers,
    remove_parts,
)
from trt_perception.offline.bags.part import ModelFacts, Part
from trt_perception.offline.bags.plan import PARTS_FOLDER, BagPlan
from trt_perception.offline.bags.records import FrameRecord, PartReader, PartReport
from trt_perception.offline.bags.result_messages import ObjectMessages
from trt_perception.parameters.camera import NodeParameters
from trt_perception.parameters.values import ParameterValues
from trt_perception.tracking.tracker import Tracker
from trt_perception.wire.cdr import HeaderFields
from trt_perception.wire.result_messages import label_info_message


def camera_topic(camera: str, name: str) -> str:
    """Return the topic of a camera's results, as a node without a namespace names it."""
    return f'/{camera}/{name}' if camera else f'/{name}'


class CameraResults:
    """Makes the messages of one camera from its raw results, in their order.

    Args:
        camera: name of the camera.
        parameters: parameters of the camera.
    """

    def __init__(self, camera: str, facts: ModelFacts, parameters: ParameterValues) -> None:
        self._camera = camera
        self._facts = facts
        self._threshold = parameters.confidence_threshold if facts.finds_objects else 0.0
        settings = parameters.tracker_settings(parameters.confidence_threshold)
        self._tracker = None if settings is None else Tracker(**asdict(settings))
        self._objects = ObjectMessages(facts.class_names, facts.topics)

    def track(self, record: FrameRecord) -> Detections | None:
        """Return the objects of the next image with their ids; None for other models."""
        if self._tracker is None or record.found is None:
            return record.found
        stamp = record.header.stamp
        stamp_s = stamp.sec + stamp.nanosec * 1e-9  # as the node calculates it
        return self._tracker.update(record.found, stamp_s, record.size_wh).detections

    def messages(self, record: FrameRecord, found: Detections | None) -> Iterator[BagMessage]:
        """Yield the messages of one image, in the order in which the node publishes them."""
        made = record.messages
        if found is not None:
            made = (*made, *self._objects(record.header, record.size_wh, found))
        for name, data in made:
            yield self._message(record, name, data)

    def labels(self, record: FrameRecord) -> Iterator[BagMessage]:
        """Yield the messages with class names, at the time of an image."""
        header = HeaderFields(record.header.stamp, '')
        data = bytes(label_info_message(header, self._facts.class_names, self._threshold))
        for topic in self._facts.label_topics:
            yield self._message(record, topic.name, data)

    def _message(self, record: FrameRecord, name: str, data: bytes) -> BagMessage:
        return BagMessage(camera_topic(self._camera, name), record.log_ns, record.log_ns, data)


class BagJoin:
    """Writes one new bag, part after part.

    Args:
        plan: the work on the bag.
        parameters: parameters of the node and its cameras.
        ledger: the state of the new bag; changed and saved now, and after each part.
        facts: what is known about the model.

    Raises:
        TrtPerceptionError: the new bag cannot be written, or the old one cannot be read.

    Attributes:
        remarks: a sentence for each topic of the old bag that is not copied as it is.
    """

    def __init__(
        self, plan: BagPlan, parameters: NodeParameters, ledger: Ledger, facts: ModelFacts
    ) -> None:
        check_unchanged(plan, ledger)
        self._plan = plan
        self._ledger = ledger
        self._cameras = {
            camera.name: CameraResults(camera.name, facts, parameters.camera(camera.name))
            for camera in plan.cameras
        }
        self._class_names = facts.class_names
        self._topic_names = {topic.name for topic in facts.topics}
        self._parts = list(plan.parts())
        # With a tracker, parts are joined again from the first one after an interruption.
        self._joined = 0 if plan.has_trackers else len(ledger.reports)
        self.remarks: list[str] = []
        self._copied: FileBag | None = None  # open while its parts are joined
        topics = _result_topics(plan, facts)
        if plan.options.copies_input:
            with contextlib.closing(open_bag(plan.bag)) as bag:
                _check_free_topics(plan, bag, topics)
                topics = [*self._copied_topics(bag), *topics]
        self._writer = BagWriter(
            plan.output,
            topics,
            storage=plan.options.storage,
            compression=plan.options.compression,
            # With parts in the ledger, the writer refuses a folder without their files.
            first_file=ledger.files
            if ledger.reports or (plan.output / METADATA_NAME).exists()
            else None,
        )
        try:
            make_folder(plan.output / PARTS_FOLDER)
            remove_leftovers(plan.output, keeps_raw=ledger.facts is not None)
            ledger.facts = facts
            ledger.save(plan.output)
        except BaseException:
            self.close()
            raise

    def _copied_topics(self, bag: FileBag) -> list[BagTopic]:
        """Return the topics to copy, without a QoS that cannot be read."""
        for name, reason in bag.refused.items():
            self.remarks.append(f'{name} is not copied: {reason}')
        topics = []
        for topic in bag.topics.values():
            try:
                jazzy_qos(topic)
            except ConfigError as error:  # noqa: PERF203
                self.remarks.append(f'{topic.name} is copied without its QoS: {error.statement}')
                topics.append(replace(topic, qos=''))
            else:
                topics.append(topic)
        return topics

    def join_ready(self) -> Iterator[PartReport]:
        """Join the next parts whose raw results exist. Yield the report of each written part."""
        while self._joined < len(self._parts) and self._parts[self._joined].target.exists():
            report = self._join(self._parts[self._joined])
            self._joined += 1
            if report is not None:
                yield report

    def has_result(self, part: Part) -> bool:
        """Return whether a part was joined, or waits in this folder for an earlier part."""
        return part.number < self._joined or part.target.exists()

    def _records(self, reader: PartReader, part: Part) -> Iterator[FrameRecord]:
        """Yield the raw results of a part.

        Raises:
            ConfigError: the file is damaged, or has results of another camera, time or topic.
        """
        for record in reader:
            if (
                record.camera not in self._cameras
                or not part.start_ns <= record.log_ns < part.end_ns
                or not {name for name, _ in record.messages} <= self._topic_names
            ):
                raise reader.error('it has results that do not belong to this part')
            yield record

    def _join(self, part: Part) -> PartReport | None:
        """Join a part. Return its report if it was written, None if it had been written before."""
        with PartReader(part.target) as reader:
            records = self._records(reader, part)
            if part.number < len(self._ledger.reports):
                for record in records:
                    self._cameras[record.camera].track(record)
                return None
            counts = Counter[int]()
            has_messages = self._write(self._results(records, counts), part)
        report = reader.report
        if self._copied is not None and self._copied.losses:
            own = part.losses_of(self._copied)
            report.losses += [loss for loss in own if loss not in report.losses]
            # A bag reports a loss once, and the next part must report it, too.
            self._close_copied()
        self._ledger.reports.append(report)
        self._ledger.files += has_messages
        for class_id in sorted(counts):
            self._ledger.detections[self._class_names[class_id]] += counts[class_id]
        self._ledger.is_complete = part.number + 1 == len(self._parts)
        self._ledger.save(self._plan.output)
        if self._ledger.is_complete:
            remove_parts(self._plan.output)
            self.close()  # other bags need the open files
        elif not self._plan.has_trackers:
            part.target.unlink()
        return report

    def _write(self, messages: Iterator[BagMessage], part: Part) -> bool:
        """Write a file of the new bag. Return False if it would have no messages."""
        if self._plan.options.copies_input:
            if self._copied is None:
                self._copied = open_bag(self._plan.bag)
            copied = self._copied.messages(list(self._copied.topics), part.start_ns, part.end_ns)
            messages = heapq.merge(copied, messages, key=attrgetter('log_ns'))
        first = next(messages, None)
        if first is None:
            return False
        self._writer.begin_file()
        self._writer.write(first)
        for message in messages:
            self._writer.write(message)
        self._writer.end_file()
        return True

    def _results(
        self, records: Iterator[FrameRecord], counts: Counter[int]
    ) -> Iterator[BagMessage]:
        """Yield the messages of a part, and count the detections by class id."""
        labelled = set[str]()
        for record in records:
            camera = self._cameras[record.camera]
            if record.camera not in labelled:
                labelled.add(record.camera)
                yield from camera.labels(record)
            found = camera.track(record)
            if found is not None:
                counts.update(found.class_ids.tolist())
            yield from camera.messages(record, found)

    def close(self) -> None:
        """Close the bags. Calling it twice does no harm."""
        self._writer.close()
        self._close_copied()

    def _close_copied(self) -> None:
        if self._copied is not None:
            self._copied.close()
            self._copied = None


def _check_free_topics(plan: BagPlan, bag: FileBag, results: Sequence[BagTopic]) -> None:
    """Check that a bag whose messages are copied has no topics of results.

    Raises:
        ConfigError: the bag has such a topic.
    """
    taken = [topic.name for topic in results if topic.name in bag.topics]
    if taken:
        raise ConfigError(
            plan.bag,
            f'has the topics {join_first_items(taken)} already',
            fix='leave out --copy, or give cameras other names: --camera NAME=TOPIC',
        )


def _result_topics(plan: BagPlan, facts: ModelFacts) -> list[BagTopic]:
    """Return the topics of results in a new bag."""
    return [
        bag_topic(
            camera_topic(camera.name, topic.name),
            topic.message,
            depth=topic.depth,
            is_latched=topic.is_latched,
        )
        for camera in plan.cameras
        for topic in (*facts.topics, *facts.label_topics)
    ]
