# SPDX-License-Identifier: Apache-2.0
"""Texts about the work on bags: before it starts, after Ctrl-C, and at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from trt_perception.files.plain_text import counted, escape_line, format_table, size_text
from trt_perception.offline.bags.ledger import merge_refusals
from trt_perception.offline.bags.work import BagRun, Work

_MOST_CLASSES: Final = 10
#: Title of the column with the folder of the new bag.
_RESULT: Final = 'result'


def result_text(work: Work) -> str:
    """Return a row for each bag, a total, the detections, the rate, and the failures."""
    lines = [format_table(result_rows(work), [_RESULT]), *_classes_tables(work), *rate_lines(work)]
    return '\n'.join([*lines, *failure_lines(work)])


def result_rows(work: Work) -> list[list[str]]:
    """Return titles, a row for each bag with its path in front, and a total."""
    has_detections = any(map(_finds_objects, work.runs))
    rows = [['bag', 'images', 'detections', 'unread', 'lost ranges', _RESULT]]
    for run in sorted(work.runs, key=lambda run: not run.ledger.is_complete):
        written = f'{len(run.ledger.reports)} of {counted(run.plan.part_count, "part")}'
        result = str(run.plan.output) if run.ledger.is_complete else f'incomplete: {written}'
        if run.was_complete:
            result += ', from an earlier run'
        rows.append([run.plan.bag, *_counts([run]), result])
    rows += [[bag, '', '', '', '', 'failed'] for bag in work.failures]
    rows.append([_completeness(work), *_counts(work.runs), ''])
    if not has_detections:
        rows = [[*row[:2], *row[3:]] for row in rows]
    return rows


def _counts(runs: Sequence[BagRun]) -> list[str]:
    """Return the numbers of images, detections, images without a result, and lost ranges."""
    totals = [run.ledger.total for run in runs]
    return [
        str(sum(total.images for total in totals)),
        str(sum(sum(run.ledger.detections.values()) for run in runs)),
        str(sum(sum(total.unread.values()) for total in totals)),
        str(sum(len(total.losses) for total in totals)),
    ]


def _finds_objects(run: BagRun) -> bool:
    facts = run.ledger.facts
    return facts is not None and facts.finds_objects


def _classes_tables(work: Work) -> Iterator[str]:
    """Yield a table of the detections of each class if the classes are few."""
    classes = sum((run.ledger.detections for run in work.runs), Counter[str]())
    if 1 < len(classes) <= _MOST_CLASSES:
        # A table, because a name of a class may be a number.
        rows = [(name, str(count)) for name, count in classes.most_common()]
        yield format_table([('class', 'detections'), *rows])


def rate_lines(work: Work) -> Iterator[str]:
    """Yield the rate of this command, or that it processed nothing."""
    if work.images and work.seconds:
        rate = work.images / work.seconds
        yield f'{counted(work.images, "image")} in {work.seconds:.1f} s: {rate:.1f} images/s'
    elif all(run.was_complete for run in work.runs):
        yield 'no image was processed: the results are from an earlier run'


def failure_lines(work: Work) -> Iterator[str]:
    """Yield why bags could not be used, then why bags are incomplete."""
    yield from work.failures.values()
    for run in work.runs:
        if run.failure:
            yield f'{run.failure}; {_same_command(work)} tries the missing parts again'


def interruption_text(work: Work) -> str:
    """Return what is done, and how to go on."""
    written = sum(len(run.ledger.reports) for run in work.runs)
    done = f'{_completeness(work)}, {written} of {_all_parts(work)} written'
    return f'{done}; {_same_command(work)} goes on with the missing parts'


def _completeness(work: Work) -> str:
    complete = sum(run.ledger.is_complete for run in work.runs)
    return f'{complete} of {counted(len(work.runs) + len(work.failures), "bag")} complete'


def _all_parts(work: Work) -> str:
    return counted(sum(run.plan.part_count for run in work.runs), 'part')


def _same_command(work: Work) -> str:
    """Name the command that keeps the results of this one."""
    return 'the same command' + (' without --overwrite' if work.overwrites else '')


def dry_run_text(work: Work) -> str:
    """Return what the command would do, and what exists: one row for each of several bags.

    For a single bag, the text also has its cameras and topics.
    """
    if len(work.runs) + len(work.failures) > 1:
        refused = map(str, merge_refusals(work.refusals))
        return '\n'.join([_dry_run_table(work), *work.failures.values(), *refused])
    lines = [line for run in work.runs for line in _planned(run, overwrites=work.overwrites)]
    images = _planned_images(work.image_count)
    return '\n'.join([*lines, f'{_completeness(work)}: {images} in {_all_parts(work)}'])


def _dry_run_table(work: Work) -> str:
    """Return a row for each bag, and a total."""
    rows = [['bag', 'images', 'parts written', 'length', 'size', _RESULT]]
    for run in work.runs:
        plan = run.plan
        count = 'unknown'
        if plan.image_count is not None:
            count = f'{"about " * (plan.share < 1)}{plan.image_count}'
        result = str(plan.output)
        if run.refusal is not None:
            result = 'refused'
        elif work.overwrites and plan.output.exists():
            result += ', replaced'
        rows.append([plan.bag, count, *_extent([run]), result])
    rows += [[bag, '', '', '', '', 'failed'] for bag in work.failures]
    known = sum(run.plan.image_count or 0 for run in work.runs)
    count = f'{"at least " * (work.image_count is None)}{known}'
    rows.append([_completeness(work), count, *_extent(work.runs), ''])
    return format_table(rows, [_RESULT])


def _extent(runs: Sequence[BagRun]) -> list[str]:
    """Return the numbers of written and all parts, the length and the size of bags."""
    written = sum(len(run.ledger.reports) for run in runs)
    parts = sum(run.plan.part_count for run in runs)
    length_s = sum(run.plan.end_ns - run.plan.start_ns for run in runs) / 1e9
    return [f'{written}/{parts}', f'{length_s:.1f} s', size_text(sum(r.plan.size for r in runs))]


def _planned_images(count: int | None) -> str:
    return 'an unknown number of images' if count is None else counted(count, 'image')


def _planned(run: BagRun, *, overwrites: bool) -> Iterator[str]:
    plan = run.plan
    estimated = plan.image_count is not None and plan.share < 1
    images = f'{"about " * estimated}{_planned_images(plan.image_count)}'
    length_s = (plan.end_ns - plan.start_ns) / 1e9
    yield (
        f'{plan.label}: {images} of {counted(len(plan.cameras), "camera")} in {length_s:.1f} s, '
        f'{counted(plan.part_count, "part")} of up to {plan.options.part_ns / 1e9:g} s'
    )
    rows = [('  camera', 'topic', 'images', 'camera_info')]
    for camera in plan.cameras:
        count = str(plan.counts.get(camera.topic, 'unknown'))
        name, info = camera.name or repr(''), camera.info_topic or 'none'
        rows.append((f'  {name}', camera.topic, count, info))
    yield format_table(rows, ['topic', 'camera_info'])
    yield f'  output {escape_line(plan.output)}: {_state(run, overwrites=overwrites)}'


def _state(run: BagRun, *, overwrites: bool) -> str:
    """Return what the output folder has."""
    if overwrites and run.plan.output.exists():
        return 'will be replaced'
    if run.refusal is not None:
        return run.refusal.found
    if run.ledger.is_complete:
        return 'complete'
    state = f'{len(run.ledger.reports)} of {counted(run.plan.part_count, "part")} written'
    detected = sum(part.target.exists() for part in run.plan.parts())
    return f'{state}, {counted(detected, "part")} detected' if detected else state
