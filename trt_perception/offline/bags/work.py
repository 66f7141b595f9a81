# SPDX-License-Identifier: Apache-2.0
"""The work of one command on its bags: runs all parts, and joins each one when it is the next."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from trt_perception.bags.writer import locked_folder
from trt_perception.errors import ConfigError
from trt_perception.files.atomic_files import make_folder
from trt_perception.files.plain_text import counted, join_first_items
from trt_perception.images.results.image_limits import MAX_RESULT_PIXELS
from trt_perception.offline.bags.joining import BagJoin
from trt_perception.offline.bags.ledger import (
    Ledger,
    check_folders,
    check_runtime,
    remove_parts,
    remove_results,
)
from trt_perception.offline.bags.part import Job, ModelFacts, Part
from trt_perception.offline.bags.plan import BagPlan
from trt_perception.offline.bags.records import PartReport
from trt_perception.offline.bags.workers import Event, Failed, Finished, Opened, Progress
from trt_perception.process.file_limit import raise_file_limit

#: Files that a command opens besides: of workers, of a bag that is copied, of libraries.
_OTHER_FILES: Final = 64
#: Bags that a sentence about several bags names.
MOST_NAMED: Final = 3
#: Runs parts, and yields what happens: in processes of this machine, or with Ray.
PartsRunner: TypeAlias = Callable[[Sequence[Part]], Generator[Event, None, None]]


@dataclass
class BagRun:
    """The state of one bag.

    Attributes:
        refusal: why the results in the output folder cannot be continued; None if they can.
        join: writes the new bag; None before the model was opened, and after an error.
        failure: a sentence on why the bag could not be completed; empty if it was.
        was_complete: whether an earlier command had written the whole new bag.
    """

    plan: BagPlan
    ledger: Ledger
    refusal: ConfigError | None = None
    join: BagJoin | None = None
    failure: str = ''
    was_complete: bool = field(init=False)

    def __post_init__(self) -> None:
        self.was_complete = self.ledger.is_complete

    def missing_parts(self) -> list[Part]:
        """Return the parts whose raw results are missing."""
        if self.ledger.is_complete:
            return []
        # A tracker also needs the raw results of the parts that were written.
        done = 0 if self.plan.has_trackers else len(self.ledger.reports)
        parts = [part for part in self.plan.parts() if part.number >= done]
        return [part for part in parts if not part.target.exists()]


class Work:
    """The work on all bags.

    Args:
        say: called with sentences for the user.
        overwrites: whether to replace the results of an earlier run.

    Attributes:
        job: what all parts share.
        runs: the bags that can be processed.
        failures: a sentence for each other bag, by its path.
        images: number of images that this command has processed.
        seconds: time since the model was opened.
    """

    def __init__(
        self,
        job: Job,
        runs: list[BagRun],
        failures: dict[str, str],
        say: Callable[[str], None],
        *,
        overwrites: bool,
    ) -> None:
        self.job = job
        self.runs = runs
        self.failures = failures
        self.overwrites = overwrites
        self.images = 0
        self.seconds = 0.0
        self._say = say
        self._by_bag = {run.plan.bag: run for run in runs}
        self._facts: ModelFacts | None = None

    @property
    def refusals(self) -> list[ConfigError]:
        """Why the results in output folders cannot be continued."""
        return [run.refusal for run in self.runs if run.refusal is not None]

    @property
    def has_all_results(self) -> bool:
        """Whether each image of each bag has a result."""
        return not self.failures and all(
            not run.failure and run.ledger.total.is_complete for run in self.runs
        )

    @property
    def seen_images(self) -> int:
        """Number of images in the parts that are written, with those that could not be read."""
        return sum(run.ledger.total.seen_images for run in self.runs)

    @property
    def image_count(self) -> int | None:
        """Number of images in all bags, or an estimate; None if it is unknown."""
        counts = [run.plan.image_count for run in self.runs]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def remarks(self) -> list[str]:
        """Sentences about the cameras, each with the bags to which it applies."""
        bags = defaultdict[str, list[str]](list)
        for run in self.runs:
            for remark in run.plan.remarks:
                bags[remark].append(run.plan.label)
        return [f'{join_first_items(bags[each], MOST_NAMED)}: {each}' for each in bags]

    def process(self, run_parts: PartsRunner, progress: Callable[[int, int | None], None]) -> None:
        """Process all bags. Bags with an error are left incomplete, and the others go on.

        Args:
            progress: called with the numbers of finished images and of all images; None if it is
                unknown. First called when the model is open.

        Raises:
            TrtPerceptionError: the model cannot be used, or a file cannot be written.
        """
        _check_open_files(len(self.runs))
        for run in self.runs:
            self._make_output(run)
        done, total = self.seen_images, self.image_count
        missing = {run.plan.bag: run.missing_parts() for run in self.runs}
        parts = [part for own in missing.values() for part in own]
        opened_s = time.monotonic()
        try:
            # All raw results may exist already.
            for run in self.runs:
                if not missing[run.plan.bag] and run.ledger.facts is not None:
                    self._open_join(run, run.ledger.facts)
            with contextlib.closing(run_parts(parts)) as events:
                for event in events:
                    if isinstance(event, Opened):
                        if self._facts is None:
                            opened_s = time.monotonic()
                            self._use_facts(event.facts)
                        progress(done + self.images, total)
                    elif isinstance(event, Progress):
                        self.images += event.images
                        progress(done + self.images, total)
                    elif isinstance(event, Finished):
                        self._on_finished(event.part)
                    elif isinstance(event, Failed):
                        self._on_failed(self._by_bag[event.part.bag], event.sentence)
        finally:
            self.seconds = time.monotonic() - opened_s
            for run in self.runs:
                if run.join is not None:
                    run.join.close()

    def _make_output(self, run: BagRun) -> None:
        folder = run.plan.output
        make_folder(folder)
        if self.overwrites:
            with locked_folder(folder):
                remove_results(folder)
        elif run.ledger.is_complete:
            # The process may have been killed before it removed them.
            remove_parts(folder)

    def _use_facts(self, facts: ModelFacts) -> None:
        self._facts = facts
        for sentence in facts.evidence:
            self._say(sentence)
        errors = []
        for run in self.runs:
            try:
                check_runtime(run.ledger, facts, run.plan.output)
            except ConfigError as error:  # noqa: PERF203
                errors.append(error)
        check_folders(errors)
        if facts.needs_calibration:
            self._say_missing_calibrations()
        for run in self.runs:
            if run.join is None:
                self._open_join(run, facts)

    def _open_join(self, run: BagRun, facts: ModelFacts) -> None:
        if run.ledger.is_complete:
            return
        run.join = BagJoin(run.plan, self.job.parameters, run.ledger, facts)
        for remark in run.join.remarks:
            self._say(f'{run.plan.label}: {remark}')
        self._join(run)

    def _on_finished(self, part: Part) -> None:
        run = self._by_bag[part.bag]
        if run.join is None:
            return
        self._join(run)
        if not run.join.has_result(part):
            folder = part.target.parent
            found = f'its result is missing: its worker has another folder {folder}'
            self._on_failed(run, f'{part}: {found}')

    def _on_failed(self, run: BagRun, sentence: str) -> None:
        # All parts of a bag that cannot be opened have the same sentence.
        if sentence != run.failure:
            self._say(sentence)
        run.failure = run.failure or sentence

    def _join(self, run: BagRun) -> None:
        for report in run.join.join_ready() if run.join is not None else ():
            for problem in _problems(report):
                self._say(f'{run.plan.label}: {problem}')

    def _say_missing_calibrations(self) -> None:
        bags = defaultdict[str, list[str]](list)
        for run in self.runs:
            for camera in () if run.ledger.is_complete else run.plan.cameras:
                parameters = self.job.parameters.camera(camera.name)
                if not camera.info_topic and not parameters.model_focal_length:
                    bags[camera.topic].append(run.plan.label)
        for topic, names in bags.items():
            self._say(
                f'{join_first_items(names, MOST_NAMED)}: {topic} has no camera_info, so the '
                'model does not know the focal length: set model.focal_length'
            )


def _check_open_files(bags: int) -> None:
    """Check that each bag may have an open file: the lock of its output.

    Raises:
        ConfigError: the system does not allow so many.
    """
    limit = raise_file_limit()
    if bags + _OTHER_FILES > limit:
        raise ConfigError(
            f'{bags} bags',
            f'need {bags + _OTHER_FILES} open files, and the system allows {limit}',
            fix='give fewer bags to one command, or raise the limit: ulimit -n',
        )


def _problems(report: PartReport) -> list[str]:
    """Return a sentence for each problem of a part."""
    sentences = [
        f'{counted(report.unread[reason], "image")} without a result ({reason}): {example}'
        for reason, example in report.examples.items()
    ]
    if report.skipped:
        count = counted(report.skipped, 'mask or map', 'masks or maps')
        sentences.append(
            f'{count} missing: larger than {MAX_RESULT_PIXELS} pixels, or no GPU memory; set '
            'map_size for maps'
        )
    return [*sentences, *map(str, report.losses)]
