# SPDX-License-Identifier: Apache-2.0
"""Makes the report page of models that describe the whole image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from trt_perception.files.plain_text import escape_controls
from trt_perception.offline.evaluation.image_tasks.agreement import AGREEMENT_TITLES
from trt_perception.offline.evaluation.image_tasks.compare import ImageTaskReport
from trt_perception.offline.evaluation.report.verdicts import (
    Verdict,
    figure_with_difference,
    verdict_text,
)
from trt_perception.offline.evaluation.report.worst_results import (
    MAX_SHOWN_ERROR,
    ResultImage,
    ResultPicture,
    WorstResults,
)
from trt_perception.offline.report_page.markup import (
    Markup,
    element,
    figure_text,
    join,
    name,
    table,
)
from trt_perception.offline.report_page.page import MAX_PAGE_BYTES, Page

#: Number of images to keep for a page whose size alone is limited. More would not fit into 3 MB.
MAX_RESULT_IMAGES: Final = 200
_MAX_CLASSES: Final = 100
_MAX_CONFUSIONS: Final = 30
_PARTS: Final = ('image', 'label', 'result', 'difference')
_ERROR_TITLES: Final = {
    'classify': 'score of the wrong class',
    'semantic': 'share of wrong pixels',
    'depth': 'relative error',
}
_NOTES: Final = {
    'classify': 'Images with a wrong best class, highest score first.',
    'semantic': 'Images with wrong pixels, most first. In differences, wrong pixels are red, and '
    'black pixels are not measured.',
    'depth': 'Images by the mean relative error of depth, largest first. In differences, black is '
    f'0, and bright yellow is {MAX_SHOWN_ERROR:g} or more; grey pixels are not measured.',
}


def image_task_page(
    report: ImageTaskReport,
    results: WorstResults,
    verdicts: Mapping[str, Verdict],
    facts: Mapping[str, Any],
    max_images: int | None,
) -> Page:
    """Return the page of a comparison.

    Args:
        results: the results that ``compare_image_models`` reported.
        verdicts: verdict on each model except the reference.
        facts: ``command`` and ``date``.
        max_images: number of images; None for as many as fit into a page of 3 MB.
    """
    names = [model.name for model in report.models]
    title = 'Accuracy' if len(names) > 1 else f'Accuracy of {escape_controls(names[0])}'
    has_labels = bool(report.models[0].figures)
    count = f'{report.images} images {"with" if has_labels else "without"} labels'
    lead: list[object] = [
        f'{count}, task {report.task}. {facts["date"]}',
        element('code', facts['command']),
    ]
    page = Page(title, lead)
    page.data['report'] = report.as_dict()
    page.data['verdicts'] = {key: verdict.as_dict() for key, verdict in verdicts.items()}
    page.add('Models', *_tables(report, verdicts))
    if tables := [*_class_table(report), *_confusion_tables(results)]:
        page.add('Classes', *tables)
    figures = list(_figures(page, results.images, max_images, _ERROR_TITLES[report.task]))
    images = results.images[: len(figures)]
    page.data['images'] = [
        {'name': escape_controls(image.name, None), 'error': image.deviation} for image in images
    ]
    used = {picture.part for image in images for picture in image.pictures if picture.url}
    boxes = [
        element(
            'label',
            element('input', type='checkbox', checked=True, data_toggle=f'part-{part}'),
            f' {part}',
        )
        for part in _PARTS
        if part in used
    ]
    switch = element('fieldset', element('legend', 'Show'), *boxes, class_='kinds')
    note = element('p', f'{_NOTES[report.task]} {len(figures)} images are here.')
    # Several pictures of an image are side by side; single pictures are in a grid.
    style = 'rows' if len(used) > 1 else 'cards'
    page.add(
        'Worst images',
        switch if len(used) > 1 else '',
        note,
        element('div', *figures, class_=style),
    )
    return page


def _tables(report: ImageTaskReport, verdicts: Mapping[str, Verdict]) -> Iterator[Markup]:
    first = report.models[0]
    if verdicts:
        heads = ['model', 'verdict', 'mean agreement', 'lowest image']
        rows: list[list[object]] = []
        for model in report.models[1:]:
            one = model.agreement
            figures = (one.mean, one.lowest) if one else (None, None)
            shown = [figure_text(value, 4) for value in figures]
            rows.append([name(model.name), verdict_text(verdicts[model.name]), *shown])
        note = f'. Agreement: {AGREEMENT_TITLES[report.task]}'
        yield table(join(['Compared with ', name(first.name), note]), heads, rows)
    rows = []
    for model in report.models:
        cells: list[object] = [name(model.name)]
        for key, value in model.figures.items():
            before = None if model is first else first.figures[key]
            cells.append(figure_with_difference(value, before))
        rows.append([*cells, *(f'{ms:.2f}' for ms in model.latency.as_dict().values())])
    latency = [f'latency {key}, ms' for key in first.latency.as_dict()]
    yield table('Figures', ['model', *first.figures, *latency], rows)


def _class_table(report: ImageTaskReport) -> Iterator[Markup]:
    first = report.models[0]
    known = {key: value for key, value in first.class_figures.items() if value is not None}
    shown = sorted(known, key=lambda key: known[key])[:_MAX_CLASSES]
    if shown:
        rows = [
            [name(key), *(figure_text(model.class_figures.get(key)) for model in report.models)]
            for key in shown
        ]
        title = 'IoU of each class, lowest first'
        if len(shown) < len(known):
            title += f'; the {len(shown)} lowest of {len(known)}'
        yield table(title, ['class', *(name(model.name) for model in report.models)], rows)


def _confusion_tables(results: WorstResults) -> Iterator[Markup]:
    """Yield a table with the most frequent confusions of each classifier."""
    for model, counts in results.confusions.items():
        labels: Counter[str] = Counter()
        for (label, _), count in counts.items():
            labels[label] += count
        wrong = [(pair, count) for pair, count in counts.most_common() if pair[0] != pair[1]]
        rows = [
            [name(label), name(best), count, f'{count / labels[label]:.1%}']
            for (label, best), count in wrong[:_MAX_CONFUSIONS]
        ]
        title = join(['Most frequent confusions of ', name(model)])
        heads = ['label', 'best class', 'images', 'of the images with this label']
        yield table(title, heads, rows)


def _figures(
    page: Page, images: Sequence[ResultImage], max_images: int | None, error_title: str
) -> Iterator[Markup]:
    room = MAX_PAGE_BYTES - len(page.html().encode()) - 20_000
    for image in images[:max_images]:
        parts = element('div', *map(_picture, image.pictures), class_='parts')
        caption = element('figcaption', name(image.name), f': {error_title} {image.deviation:.3f}')
        figure = element('figure', caption, parts, class_='result')
        room -= len(figure.encode()) + len(image.name) + 50
        if max_images is None and room < 0:
            return
        yield figure


def _picture(picture: ResultPicture) -> Markup:
    title = join([name(picture.model), ': ', picture.text] if picture.model else [picture.text])
    if picture.url:
        content = element('img', src=picture.url, alt=picture.part)
    else:
        content = Markup()
        title = title if picture.model else join([picture.part, ': ', title])
    return element('div', content, element('div', title), class_=f'part part-{picture.part}')
