# SPDX-License-Identifier: Apache-2.0
"""The report page of a new bag: objects over time, tracks, problems, and images to look at."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.bags.file_bag import FileBag
from trt_perception.bags.open_bag import open_bag
from trt_perception.errors import ImageError
from trt_perception.files.plain_text import counted, escape_controls
from trt_perception.images.bag_images import decode_bag_image
from trt_perception.images.detections import oriented_corners
from trt_perception.images.drawing import class_color, draw_box, object_label
from trt_perception.images.text import drawable_name
from trt_perception.model.tasks.task import DETECTIONS_TOPIC
from trt_perception.offline.bags.bag_summary import (
    BIN_COUNT,
    TRACK_LIMITS_S,
    BagSummary,
    ClassTotals,
    Moment,
    all_objects,
    message_of,
    summarise_bag,
)
from trt_perception.offline.bags.joining import camera_topic
from trt_perception.offline.bags.ledger import Ledger
from trt_perception.offline.bags.plan import BagPlan
from trt_perception.offline.report_page.charts import Bar, Points, bar_chart, line_chart
from trt_perception.offline.report_page.markup import Markup, element, figure_text, name, table
from trt_perception.offline.report_page.page import MAX_PAGE_BYTES, Page, picture_url
from trt_perception.wire.detections import FoundObjects, read_detections

_MAX_LINES: Final = 8
_MAX_ROWS: Final = 100
# Number of pictures for each reason, unless the user asks for a number of pictures.
_USUAL_PICTURES: Final = 20
_PICTURE_SIDE: Final = 480
# Labels of more objects would hide the picture.
_MAX_LABELS: Final = 12
_NO_CAMERA: Final = 'camera without a name'
_Image = npt.NDArray[np.uint8]


class _BagTimes:
    """Times of a bag for people.

    Args:
        bag_start_ns: log time of the first message of the bag.
    """

    def __init__(self, plan: BagPlan, bag_start_ns: int) -> None:
        self._bag_start_ns = bag_start_ns
        bin_ns = (plan.end_ns - plan.start_ns) / BIN_COUNT
        self.bin_s = bin_ns / 1e9
        self.range_s = self.seconds(plan.start_ns), self.seconds(plan.end_ns)
        self.middles_s = [
            self.seconds(plan.start_ns + bin_ns * (index + 0.5)) for index in range(BIN_COUNT)
        ]

    def seconds(self, log_ns: float) -> float:
        """Return the time since the start of the bag."""
        return (log_ns - self._bag_start_ns) / 1e9

    def text(self, log_ns: int | None) -> str:
        """Return the time since the start of the bag as text."""
        return '–' if log_ns is None else f'{self.seconds(log_ns):.3f}'


def bag_page(
    plan: BagPlan,
    ledger: Ledger,
    command: str,
    max_images: int | None,
    progress: Callable[[], None],
) -> Page:
    """Return the page of a new bag with at least one file.

    Args:
        ledger: the state of the new bag.
        command: the command line.
        max_images: number of pictures; None for at most 60, and as many as fit into 3 MB.
        progress: called after each image of the new bag was read.

    Raises:
        ConfigError: a bag cannot be read.
    """
    assert ledger.facts is not None
    summary = summarise_bag(plan, ledger.facts, progress)
    total = ledger.total
    with contextlib.closing(open_bag(plan.bag)) as bag:
        times = _BagTimes(plan, bag.start_ns)
        parts = f'{len(ledger.reports)} of {plan.part_count} parts'
        state = '' if ledger.is_complete else f' The new bag is incomplete: {parts}.'
        start, end = times.range_s
        lead = f'{counted(total.images, "image")} of {counted(len(plan.cameras), "camera")}, '
        lead += f'from {start:.3f} to {end:.3f} s after the start of the bag.{state}'
        bag_name = escape_controls(Path(plan.bag).resolve().name, 80)
        page = Page(f'Results of {bag_name}', [lead, element('code', command)])
        facts = {
            'command': command,
            'is_complete': ledger.is_complete,
            'bag_start_ns': bag.start_ns,
            'start_ns': plan.start_ns,
            'end_ns': plan.end_ns,
            'report': total.as_dict(),
            **summary.as_dict(),
        }
        page.data |= _with_text_times(facts)
        page.add('Images', *_images(summary, times), *_problems(ledger, summary, times))
        if not ledger.facts.finds_objects:
            return page
        page.add('Objects over time', *_objects(summary, times))
        page.add('Classes', _classes_table(summary))
        if summary.longest:
            page.add('Tracks', *_tracks(summary, times))
        elif plan.has_trackers:
            page.add('Tracks', element('p', 'The tracker found no track.'))
        _add_pictures(page, plan, bag, summary, times, max_images)
    return page


def _with_text_times(content: Any) -> Any:
    """Return JSON content with times in ns as texts: JavaScript would round such numbers."""
    if isinstance(content, dict):
        return {
            key: str(value)
            if key.endswith('_ns') and isinstance(value, int)
            else _with_text_times(value)
            for key, value in content.items()
        }
    if isinstance(content, list):
        return [_with_text_times(item) for item in content]
    return content


def _camera(camera: str) -> str:
    return camera or _NO_CAMERA


def _images(summary: BagSummary, times: _BagTimes) -> Iterator[Markup]:
    # Bins of less than 1 s together, otherwise the rate would jump by whole images.
    step = min(BIN_COUNT, max(1, math.ceil(1 / times.bin_s)))
    lines = {}
    for camera, counts in itertools.islice(summary.images.items(), _MAX_LINES):
        points = []
        for first in range(0, BIN_COUNT, step):
            some = counts[first : first + step]
            middle = times.middles_s[first] + (len(some) - 1) / 2 * times.bin_s
            points.append((middle, int(some.sum()) / len(some) / times.bin_s))
        lines[_camera(camera)] = points
    yield element('div', _time_chart('Images with a result', lines, 'images/s', times))
    rows = [
        (name(_camera(camera)), int(counts.sum())) for camera, counts in summary.images.items()
    ]
    yield table('', ['camera', 'images with a result'], rows)


def _time_chart(title: str, lines: Mapping[str, Points], y_label: str, times: _BagTimes) -> Markup:
    most = max((y for points in lines.values() for _, y in points), default=0.0)
    limits = 0, (most or 1.0) * 1.05
    return line_chart(title, lines, 'time in the bag, s', y_label, times.range_s, limits)


def _problems(ledger: Ledger, summary: BagSummary, times: _BagTimes) -> Iterator[Markup]:
    """Yield tables of images without a result, and of damaged ranges."""
    total = ledger.total
    if total.unread:
        rows = [
            (reason, count, escape_controls(total.examples.get(reason, ''), 400))
            for reason, count in total.unread.items()
        ]
        heads = ['reason', 'images', 'first of them in a part']
        yield table('Images without a result', heads, rows, class_='text')
    if total.skipped:
        yield element('p', f'{counted(total.skipped, "mask or map", "masks or maps")} missing.')
    losses = [('bag', loss) for loss in total.losses]
    losses += [('new bag', loss) for loss in summary.losses]
    if losses:
        shown = [
            (
                name(loss.file),
                where,
                times.text(loss.start_ns),
                times.text(loss.end_ns),
                escape_controls(loss.reason, 400),
            )
            for where, loss in losses[:_MAX_ROWS]
        ]
        title = f'Damaged ranges: the first {len(shown)} of {len(losses)}'
        heads = ['file', 'of', 'from, s', 'to, s', 'reason']
        yield table(title, heads, shown, class_='text')
    if not (total.unread or total.skipped or losses):
        yield element('p', 'Each image has a result, and nothing of the bag is damaged.')


def _objects(summary: BagSummary, times: _BagTimes) -> Iterator[Markup]:
    """Yield charts of objects per image: by class over all cameras, and by camera."""

    def points(objects: npt.NDArray[np.int64], images: npt.NDArray[np.int64]) -> Points:
        # Bins without images have no point.
        seen = np.flatnonzero(images)
        return [(times.middles_s[i], objects[i] / images[i]) for i in seen.tolist()]

    classes: dict[str, npt.NDArray[np.int64]] = {}
    for own in summary.classes.values():
        for key, each in own.items():
            classes[key] = classes.get(key, 0) + each.counts
    most = sorted(classes, key=lambda key: -int(classes[key].sum()))[:_MAX_LINES]
    images = np.sum(list(summary.images.values()), axis=0)
    title = 'By class' + (f': the {len(most)} most frequent' if len(most) < len(classes) else '')
    by_class = {key: points(classes[key], images) for key in most}
    charts = [_time_chart(title, by_class, 'objects per image', times)]
    by_camera = {
        _camera(camera): points(all_objects(own), summary.images[camera])
        for camera, own in itertools.islice(summary.classes.items(), _MAX_LINES)
    }
    title = 'By camera' + (
        f': the first {_MAX_LINES}' if len(summary.classes) > _MAX_LINES else ''
    )
    charts.append(_time_chart(title, by_camera, 'objects per image', times))
    yield element('div', *charts, class_='charts')
    yield element('p', f'Each point is the mean of {times.bin_s:.3g} s.')


def _classes_table(summary: BagSummary) -> Markup:
    found: list[tuple[str, str, int, ClassTotals]] = [
        (camera, key, int(each.counts.sum()), each)
        for camera, own in summary.classes.items()
        for key, each in own.items()
    ]
    found.sort(key=lambda row: -row[2])
    has_tracks = bool(summary.longest)
    rows = []
    for camera, key, count, each in found[:_MAX_ROWS]:
        cells = [name(key), name(_camera(camera)), count, f'{each.score_sum / count:.3f}']
        if has_tracks:
            mean_s = each.track_s / each.tracks if each.tracks else None
            cells += [each.tracks, figure_text(mean_s, 2)]
        rows.append(cells)
    heads = ['class', 'camera', 'objects in images', 'mean score']
    heads += ['tracks', 'mean length, s'] if has_tracks else []
    more = f'The {_MAX_ROWS} most frequent of {len(found)}' if len(found) > _MAX_ROWS else ''
    return table(more, heads, rows)


def _tracks(summary: BagSummary, times: _BagTimes) -> Iterator[Markup]:
    starts = (0.0, *TRACK_LIMITS_S)
    bars = [
        Bar(
            f'over {start:g} s' if math.isinf(end) else f'{start:g} to {end:g} s',
            [(0, count, 0)],
            str(count),
        )
        for start, end, count in zip(starts, TRACK_LIMITS_S, summary.lengths, strict=False)
    ]
    chart = bar_chart(f'{sum(summary.lengths)} tracks by length', bars, 'tracks')
    rows = [
        (
            name(f'#{track.id}'),
            name(_camera(track.camera)),
            name(track.class_name),
            times.text(track.first_ns),
            f'{track.length_s:.3f}',
            track.images,
        )
        for track in summary.longest
    ]
    heads = ['track', 'camera', 'class', 'first at, s', 'length, s', 'images']
    longest = table('Longest tracks', heads, rows)
    yield element('div', chart, longest, class_='charts')


# Pictures.


def _add_pictures(
    page: Page,
    plan: BagPlan,
    bag: FileBag,
    summary: BagSummary,
    times: _BagTimes,
    max_images: int | None,
) -> None:
    """Add pictures of the moments of each reason in turn, until the page is full."""
    moments = summary.moments()
    usual = [each[: max_images or _USUAL_PICTURES] for each in moments.values()]
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*usual))
    chosen = [moment for moment in in_turn if moment is not None][:max_images]
    room = MAX_PAGE_BYTES - len(page.html().encode()) - 20_000
    figures: dict[str, list[Markup]] = {}
    shown: list[dict[str, Any]] = []
    with contextlib.closing(open_bag(str(plan.output))) as results:
        for moment in chosen:
            figure = _figure(moment, plan, bag, results, times)
            room -= len(figure.encode()) + 400
            if max_images is None and room < 0:
                break
            figures.setdefault(moment.reason, []).append(figure)
            shown.append({**_with_text_times(asdict(moment)), 'stamp': list(moment.stamp)})
    page.data['moments'] = [one for reason in figures for one in shown if one['reason'] == reason]
    notes = {
        'many objects': 'Images with the most objects.',
        'low scores': 'Images whose objects have the lowest mean score.',
        'loss of objects': 'Images with fewer objects than the image up to 1 s before.',
    }
    for reason, own in figures.items():
        note = f'{notes[reason]} {len(own)} of {len(moments[reason])} are here, at most one per '
        note += f'camera and {times.bin_s:.3g} s.'
        content = element('div', *own, class_='cards')
        page.add(reason.capitalize(), element('p', note), content)


def _figure(
    moment: Moment, plan: BagPlan, bag: FileBag, results: FileBag, times: _BagTimes
) -> Markup:
    stamp = f'{moment.stamp.sec}.{moment.stamp.nanosec:09d}'
    what = counted(moment.objects, 'object')
    if moment.reason == 'low scores':
        what += f', mean score {moment.value:.3f}'
    elif moment.reason == 'loss of objects':
        what += f', {moment.objects + round(moment.value)} before'
    where = f'{_camera(moment.camera)}, {times.text(moment.log_ns)} s'
    caption = element(
        'figcaption', name(where), f': {what}', element('div', f'stamp {stamp}'), class_='part'
    )
    try:
        picture = _picture(moment, plan, bag, results)
    except ImageError as error:
        text = f'The image cannot be read again: {escape_controls(error, 400)}'
        return element('figure', element('p', text), caption)
    image = element('img', src=picture_url(picture, _PICTURE_SIDE), alt=where)
    return element('figure', element('div', image, class_='part'), caption, class_='result')


def _picture(moment: Moment, plan: BagPlan, bag: FileBag, results: FileBag) -> _Image:
    """Return an image with its objects: uint8 (height, width, 3), BGR.

    Raises:
        ImageError: the image cannot be read.
    """
    topic = next(each.topic for each in plan.cameras if each.name == moment.camera)
    span = moment.log_ns, moment.log_ns + 1
    message = message_of(bag.messages([topic], *span), moment.stamp)
    result_topic = camera_topic(moment.camera, DETECTIONS_TOPIC.name)
    result = message_of(results.messages([result_topic], *span), moment.stamp)
    if message is None or result is None:
        raise ImageError('bad_message', f'{plan.bag}, {topic}', 'the message is missing')
    bgr = decode_bag_image(bag.topics[topic].type, message, Path(plan.bag))
    found = read_detections(np.frombuffer(result.data, np.uint8))
    return _drawn(bgr, found)


def _drawn(bgr: _Image, found: FoundObjects) -> _Image:
    """Return a small picture of an image with its objects."""
    height, width = bgr.shape[:2]
    scale = _PICTURE_SIDE / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    small = cv2.resize(bgr, size, interpolation=method).astype(np.uint8, copy=False)
    colors: dict[str, tuple[int, int, int]] = {}
    for each in found.objects:
        class_name, score = each.hypotheses[0] if each.hypotheses else ('', 0.0)
        color = colors.setdefault(class_name, class_color(len(colors)))
        box = np.array([each.box], np.float32)
        box[:, :4] *= scale
        corners = oriented_corners(box)[0]
        label = ''
        if len(found.objects) <= _MAX_LABELS:
            track_id = int(each.id) if each.id.isdecimal() else 0
            label = object_label(drawable_name(class_name, 0), score, track_id)
        xyxy = *corners.min(axis=0).tolist(), *corners.max(axis=0).tolist()
        draw_box(small, xyxy, label, color, corners=corners if each.box.theta else None)
    return small
