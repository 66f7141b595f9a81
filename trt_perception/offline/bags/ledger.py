# SPDX-License-Identifier: Apache-2.0
"""The ledger of one output bag: what has been written, and for which inputs.

The file ``detect_bag.json`` in the output folder has a hash of each input and the report of each
part that was written. It has no times and no paths, so equal runs have equal ledgers.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from trt_perception.bags.metadata import METADATA_NAME
from trt_perception.bags.writer import STORAGES, data_file_name, is_written_name
from trt_perception.errors import ConfigError
from trt_perception.files.atomic_files import write_json
from trt_perception.files.json_section import parse_json
from trt_perception.files.plain_text import join_first_items
from trt_perception.files.regular_files import read_regular
from trt_perception.model.tasks.task import Topic
from trt_perception.offline.bags.part import ModelFacts
from trt_perception.offline.bags.plan import PARTS_FOLDER, BagPlan
from trt_perception.offline.bags.records import PartReport, checked_integer

LEDGER_FILE: Final = 'detect_bag.json'
#: Reports of MAX_PARTS parts, with many losses each.
_MAX_BYTES: Final = 64 * 2**20
# In the metadata of each bag that this package writes.
_OURS: Final = b'trt_perception.message_counts'
#: What a user calls the inputs of a plan.
_INPUT_NAMES: Final = {
    'package': 'version of trt_perception',
    'image_wh': 'size of the images',
    'span': '--start or --end',
    'options': '--storage, --compression, --copy or --part-s',
    'masks': '--masks',
    'parameters': 'parameters (-p, --params-file, --track, --classes, --confidence and so on)',
}
# Inputs that follow from the bag, unless the user gives them.
_OF_BAG: Final = {'cameras', 'image_wh', 'span'}
# Temporary files of the ledger.
_TEMPORARY: Final = f'.{LEDGER_FILE}.'
# Files of raw results, and their temporary files with the process that writes them.
_RAW_NAME: Final = re.compile(r'[0-9]{6}\.raw|\.[0-9]{6}\.raw\.[0-9]+')
_OVERWRITE: Final = 'replace the results with --overwrite, or choose another --output'


@dataclass
class Ledger:
    """The state of an output bag.

    Attributes:
        inputs: a hash of each input by its name, as in the plan.
        facts: what is known about the model; None before it was opened.
        reports: the report of each part that was written, in their order.
        files: number of files that were written. Parts without messages have none.
        detections: number of detections by name of the class.
        is_complete: whether all parts were written.
    """

    inputs: Mapping[str, str]
    facts: ModelFacts | None = None
    reports: list[PartReport] = field(default_factory=list)
    files: int = 0
    is_complete: bool = False
    detections: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> PartReport:
        """The report of all parts together."""
        total = PartReport()
        for report in self.reports:
            total.add(report)
        return total

    def save(self, folder: Path) -> None:
        """Write the ledger.

        Raises:
            WriteError: the file cannot be written.
        """
        content = {
            'inputs': self.inputs,
            'facts': None if self.facts is None else asdict(self.facts),
            'files': self.files,
            'is_complete': self.is_complete,
            'detections': self.detections,
            'parts': [report.as_dict() for report in self.reports],
        }
        write_json(folder / LEDGER_FILE, content, 1)


def read_ledger(plan: BagPlan) -> Ledger | None:
    """Return the ledger in the output folder of a plan; None if the folder is empty or missing.

    Raises:
        ConfigError: the folder has other files, or results of other inputs.
    """
    folder = plan.output
    path = folder / LEDGER_FILE
    if _is_unused(folder):
        return None
    if not path.is_file():
        raise ConfigError(
            str(folder),
            'exists, and detect_bag did not write it',
            fix='choose another --output',
        )
    try:
        ledger = _parse(parse_json(read_regular(path, _MAX_BYTES)), plan)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(str(path), f'cannot be read: {error}', fix=_OVERWRITE) from error
    if ledger.inputs != plan.inputs:
        different = {
            name: _INPUT_NAMES.get(name, name)
            for name, value in plan.inputs.items()
            if ledger.inputs.get(name) != value
        }
        if 'bag' in different:
            different = {name: words for name, words in different.items() if name not in _OF_BAG}
        words = ', '.join(different.values()) or 'unknown'
        found = f'has results of other inputs; different: {words}'
        raise ConfigError(str(folder), found, fix=_OVERWRITE)
    if ledger.is_complete:
        _check_files(plan, ledger)
    return ledger


def check_unchanged(plan: BagPlan, ledger: Ledger) -> None:
    """Check that no other process has changed an output folder since its ledger was read.

    Opening a model takes seconds, in which another detect_bag may write or replace the results.

    Raises:
        ConfigError: another process has changed the folder.
    """
    now = read_ledger(plan) or Ledger(plan.inputs)
    if len(now.reports) != len(ledger.reports):
        raise ConfigError(
            str(plan.output),
            'another detect_bag has changed the results since this one started',
            fix='wait until it has ended, and call the same command again',
        )


def _check_files(plan: BagPlan, ledger: Ledger) -> None:
    """Check that a complete bag has its files.

    Raises:
        ConfigError: a file is missing.
    """
    names = [
        data_file_name(plan.output, plan.options.storage, number) for number in range(ledger.files)
    ]
    for name in (METADATA_NAME, *names):
        if not (plan.output / name).is_file():
            raise ConfigError(str(plan.output / name), 'is missing', fix=_OVERWRITE)


def _is_unused(folder: Path) -> bool:
    """Return whether a folder is missing or empty, or has only files of a run without a ledger.

    Such a run was killed before it saved its ledger.
    """
    if not folder.exists():
        return True
    if not folder.is_dir():
        return False
    paths = list(folder.iterdir())
    names = {path.name for path in paths}
    if not names <= {PARTS_FOLDER, METADATA_NAME} or not all(map(_is_ours, paths)):
        return False
    with contextlib.suppress(FileNotFoundError):
        return _OURS in read_regular(folder / METADATA_NAME, _MAX_BYTES)
    return True


def _parse(content: Any, plan: BagPlan) -> Ledger:
    """Return a checked ledger.

    Raises:
        ValueError, KeyError or TypeError: the content is no ledger, or contradicts itself.
    """
    facts = content['facts']
    if facts is not None:
        facts = ModelFacts(
            tuple(facts['class_names']),
            tuple(Topic(**topic) for topic in facts['topics']),
            tuple(Topic(**topic) for topic in facts['label_topics']),
            facts['finds_objects'],
            facts['needs_calibration'],
            facts['runtime'],
            tuple(facts['evidence']),
        )
        texts = [*facts.class_names, *(t.name for t in (*facts.topics, *facts.label_topics))]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError('a name is no text')
    reports = [PartReport.from_dict(each) for each in content['parts']]
    inputs = dict(content['inputs'])
    files = checked_integer(content['files'], 0, len(reports))
    detections = Counter[str]()
    for name, count in dict(content['detections']).items():
        detections[name] = checked_integer(count)
    ledger = Ledger(inputs, facts, reports, files, content['is_complete'], detections)
    is_same_plan = ledger.inputs == plan.inputs
    if is_same_plan and ledger.is_complete is not (len(reports) == plan.part_count):
        raise ValueError('its number of parts contradicts is_complete')
    return ledger


def check_runtime(ledger: Ledger, facts: ModelFacts, folder: Path) -> None:
    """Check that the model runs as in the earlier run whose results are kept.

    Raises:
        ConfigError: provider, kind of GPU or a version is different.
    """
    if ledger.facts is None or ledger.facts == facts:
        return
    before, now = ledger.facts.runtime, facts.runtime
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    found = ', '.join(f'{name} {before.get(name, "none")}' for name in names) or 'another model'
    expected = ', '.join(f'{name} {now.get(name, "none")}' for name in names) or 'this model'
    raise ConfigError(
        str(folder), f'has results of {found}', expected=f'results of {expected}', fix=_OVERWRITE
    )


def check_folders(errors: Sequence[ConfigError]) -> None:
    """Raise one error for all output folders that cannot be used. Without errors, do nothing.

    Args:
        errors: errors of `read_ledger` or `check_runtime`, at most one for each folder.

    Raises:
        ConfigError: names the first folders of each finding, and counts the others.
    """
    refused = merge_refusals(errors)
    if len(refused) > 1:
        sentences = join_first_items([str(error) for error in refused], separator='\n')
        raise ConfigError('--output', f'{len(errors)} folders cannot be used:\n{sentences}')
    if refused:
        raise refused[0] from errors[0]


def merge_refusals(errors: Sequence[ConfigError]) -> list[ConfigError]:
    """Return one error for each finding, which names the first folders and counts the others."""
    folders = defaultdict[tuple[str, str, str], list[str]](list)
    for error in errors:
        folders[error.found, error.expected, error.fix].append(error.subject)
    return [
        ConfigError(join_first_items(names), found, expected=expected, fix=fix)
        for (found, expected, fix), names in folders.items()
    ]


def remove_results(folder: Path) -> None:
    """Remove what detect_bag wrote into a folder.

    Raises:
        ConfigError: detect_bag did not write the folder, or the folder has other files. Nothing
            was removed.
    """
    if not folder.exists():
        return
    if not (folder / LEDGER_FILE).is_file() and not _is_unused(folder):
        raise ConfigError(
            str(folder),
            'exists, and detect_bag did not write it, so --overwrite does not remove it',
            fix='choose another --output, or remove it yourself',
        )
    others = [path.name for path in folder.iterdir() if not _is_ours(path)]
    if others:
        raise ConfigError(
            str(folder),
            f'has files that detect_bag did not write: {join_first_items(others)}',
            fix='move them to another folder, or choose another --output',
        )
    remove_parts(folder)
    for path in folder.iterdir():
        if path.name != PARTS_FOLDER:
            path.unlink()


def _is_ours(path: Path) -> bool:
    """Return whether detect_bag writes files of this name into an output folder."""
    if path.name == PARTS_FOLDER:
        is_folder = path.is_dir() and not path.is_symlink()
        return is_folder and all(map(_is_raw, path.iterdir()))
    if path.is_dir():
        return False
    is_named = path.name in (METADATA_NAME, LEDGER_FILE) or path.name.startswith(_TEMPORARY)
    return is_named or any(
        is_written_name(path.name, path.parent, storage) for storage in STORAGES
    )


def _is_raw(path: Path) -> bool:
    """Return whether a file has raw results, or is a temporary file of them."""
    return _RAW_NAME.fullmatch(path.name) is not None and not path.is_dir()


def remove_leftovers(folder: Path, *, keeps_raw: bool) -> None:
    """Remove the temporary files of processes that were killed.

    Args:
        keeps_raw: whether the raw results belong to the ledger. Otherwise they are removed, too.
    """
    for path in folder.iterdir():
        if path.name.startswith(_TEMPORARY) and not path.is_dir():
            path.unlink()
    for path in (folder / PARTS_FOLDER).iterdir():
        if _is_raw(path) and (path.name.startswith('.') or not keeps_raw):
            path.unlink()


def remove_parts(folder: Path) -> None:
    """Remove the raw results in an output folder. Other files stay."""
    parts = folder / PARTS_FOLDER
    if parts.is_dir() and not parts.is_symlink():
        for path in filter(_is_raw, parts.iterdir()):
            path.unlink()
        with contextlib.suppress(OSError):  # it has other files
            parts.rmdir()
