# SPDX-License-Identifier: Apache-2.0
"""Makes the report page of models that find objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from trt_perception.files.plain_text import escape_controls
from trt_perception.offline.evaluation.coco.annotations import AnnotatedObject
from trt_perception.offline.evaluation.coco.images import read_image
from trt_perception.offline.evaluation.compare import AccuracyReport, ModelAccuracy
from trt_perception.offline.evaluation.dataset import Dataset
from trt_perception.offline.evaluation.metrics.threshold_counts import (
    KINDS,
    SIZES,
    THRESHOLDS,
    ImageHistory,
    ThresholdCounts,
)
from trt_perception.offline.evaluation.report.outlines import (
    Outline,
    detection_outline,
    ground_truth_outline,
    svg_path,
)
from trt_perception.offline.evaluation.report.verdicts import (
    Verdict,
    figure_with_difference,
    verdict_text,
)
from trt_perception.offline.report_page.charts import line_chart
from trt_perception.offline.report_page.markup import (
    Markup,
    element,
    figure_text,
    join,
    name,
    table,
)
from trt_perception.offline.report_page.page import MAX_PAGE_BYTES, Page, json_text, picture_url

#: Called with the numbers of finished and of all images.
PageProgress = Callable[[int, int], None]

# Limits of the tables, so that a page of a thousand categories stays small.
_MAX_CLASSES: Final = 100
_MAX_MATRIX_CLASSES: Final = 25
_MAX_THIN_CURVES: Final = 100
#: The page lists this many of the most confident wrong detections, and of the largest missed
#: objects. Their images come first in the gallery.
LISTED_MISTAKES: Final = 10
# Detections that the gallery draws in one image, best first, as many as COCO counts.
_MAX_DRAWN: Final = 100
_FIGURE_TITLES: Final = {
    'mAP_small': 'small',
    'mAP_medium': 'medium',
    'mAP_large': 'large',
}
_KIND_TITLES: Final = {
    'right': 'right',
    'wrong class': 'wrong class: overlaps an object of another class by 0.5',
    'duplicate': 'duplicate: another detection took the object',
    'wrong place': 'wrong place: overlaps an object by 0.1, but not by 0.5',
    'background': 'background: overlaps no object by 0.1',
    'missed': 'missed: an object without a detection',
}


def accuracy_page(
    report: AccuracyReport,
    dataset: Dataset,
    verdicts: Mapping[str, Verdict],
    facts: Mapping[str, Any],
    max_images: int | None,
    progress: PageProgress,
) -> Page:
    """Return the page of a comparison.

    Args:
        verdicts: verdict on each model except the reference.
        facts: ``command`` and ``date``.
        max_images: number of pictures; None for as many as fit into a page of 3 MB.
        progress: called while the detections are matched at all thresholds.

    Raises:
        ImageError: an image cannot be read again, or has another size than annotated.
    """
    names = [model.name for model in report.models]
    title = 'Accuracy' if len(names) > 1 else f'Accuracy of {escape_controls(names[0])}'
    page = Page(title, _lead(report, facts), ('accuracy.js',))
    page.data['confidence_threshold'] = report.thresholds.confidence_threshold
    page.data['report'] = report.as_dict(classes=False)
    page.data['verdicts'] = {key: verdict.as_dict() for key, verdict in verdicts.items()}
    page.add('Models', *_comparison_table(report, verdicts), _models_table(report))
    if dataset.annotations is None:
        return page
    counts = _threshold_counts(report, dataset, progress)
    page.data |= {
        'thresholds': list(THRESHOLDS),
        'kinds': list(KINDS),
        'models': [
            _model_data(model, count) for model, count in zip(report.models, counts, strict=True)
        ],
    }
    page.controls = _controls(report)
    page.add('At a threshold', _counts_table(report))
    page.add('Curves', *_curves(report, counts))
    mistakes, gallery = _mistakes_sections()
    worst = _worst_images(report, dataset)
    figures, images = _gallery(report, dataset, page, worst, max_images)
    page.data['images'] = images
    page.add('Worst mistakes', *mistakes)
    threshold = f'{report.thresholds.confidence_threshold:g}'
    shown = f'{len(worst)} of {report.images} images have mistakes at the threshold {threshold}'
    if len(images) < len(worst):
        shown += f'; the worst {len(images)} are here (more: --report-images)'
    page.add('Pictures', *gallery, element('p', f'{shown}.'), figures)
    page.add('Confusion matrix', element('div', id='confusions', class_='scroll', tabindex='0'))
    page.add('By size and class', *_breakdown(report))
    return page


def _lead(report: AccuracyReport, facts: Mapping[str, Any]) -> list[object]:
    metrics = report.models[0].metrics
    objects = 'without annotations'
    if metrics is not None:
        objects = f'{metrics.objects} objects, annotations '
    truth = name(report.annotations) if report.annotations else ''
    return [
        join([f'{report.images} images, {objects}', truth, f'. {facts["date"]}']),
        element('code', facts['command']),
    ]


def _models_table(report: AccuracyReport) -> Markup:
    """Return the figures of each model, with the difference from the first model."""
    first = report.models[0]
    figures = list(first.metrics.figures) if first.metrics else []
    threshold = f'{report.thresholds.confidence_threshold:g}'
    heads = ['model', *(_FIGURE_TITLES.get(key, key) for key in figures)]
    if first.mistakes is not None:
        heads += [f'precision at {threshold}', f'recall at {threshold}']
    heads += ['latency p50, ms']
    rows = []
    for model in report.models:
        cells: list[object] = [name(model.name)]
        for key in figures:
            value = model.metrics.figures[key] if model.metrics else None
            before = first.metrics.figures[key] if first.metrics else None
            cells.append(figure_with_difference(value, None if model is first else before))
        if model.mistakes is not None:
            cells += map(figure_text, (model.mistakes.precision, model.mistakes.recall))
        cells.append(figure_text(model.latency.p50_ms, 2))
        rows.append(cells)
    caption = f'COCO metrics of {report.measure.kind}' if figures else 'Latency'
    return table(caption, heads, rows)


def _comparison_table(report: AccuracyReport, verdicts: Mapping[str, Verdict]) -> Iterator[Markup]:
    """Yield a table with the verdict on each further model, and its agreement with the first."""
    rows: list[list[object]] = []
    for key, agreement in report.agreements.items():
        cells = [name(key), verdict_text(verdicts[key])]
        if agreement is None:
            rows.append([*cells, 'other class names', '', '', ''])
            continue
        one = agreement.overall
        pairs = f'{one.matched} of {one.candidate} and {one.reference}'
        figures = one.f1, one.mean_iou, agreement.max_score_difference
        shown = [figure_text(value, 4) for value in figures]
        rows.append([*cells, *shown[:2], pairs, shown[2]])
    if rows:
        similarity = f'mean {report.measure.similarity}'
        heads = ['model', 'verdict', 'F1', similarity, 'pairs', 'largest score difference']
        yield table(join(['Compared with ', name(report.reference)]), heads, rows)


def _threshold_counts(
    report: AccuracyReport, dataset: Dataset, progress: PageProgress
) -> list[ThresholdCounts]:
    truths = [dataset.ground_truth(image) for image in dataset.images]
    total, done = len(report.models) * len(truths), 0
    results = []
    for model in report.models:
        assert model.classes is not None
        counts = ThresholdCounts(model.classes)
        for found, truth in zip(model.all_detections, truths, strict=True):
            history = ImageHistory.of_image(found, truth, model.classes, dataset.measure)
            counts.add(history, found, truth)
            done += 1
            progress(done, total)
        results.append(counts)
    return results


def _model_data(model: ModelAccuracy, counts: ThresholdCounts) -> dict[str, Any]:
    """Return the figures of a model at all thresholds, for the script."""
    assert model.metrics is not None
    classes = model.metrics.classes
    rank = {key: one.ap for key, one in classes.items() if one.ap is not None}
    listed = sorted(rank, key=lambda key: rank[key])[:_MAX_CLASSES]
    index_of = {key: index for index, key in enumerate(counts.class_names)}
    return {
        'name': escape_controls(model.name, None),
        'names': [escape_controls(key, None) for key in counts.class_names],
        'counts': {kind: counts.kinds[kind].tolist() for kind in KINDS},
        'classes': [
            {
                'index': (index := index_of[key]),
                'objects': counts.class_objects[index],
                'AP': classes[key].ap,
                'AP50': classes[key].ap50,
                'right': counts.class_right[index].tolist(),
                'detections': counts.class_detections[index].tolist(),
            }
            for key in listed
        ],
        'sizes': [
            {
                'name': size,
                'objects': counts.size_objects[index],
                'AP': model.metrics.figures.get(f'mAP_{size}'),
                'right': counts.size_right[index].tolist(),
            }
            for index, size in enumerate(SIZES)
        ],
        'confusions': _matrix_data(counts),
    }


def _matrix_data(counts: ThresholdCounts) -> dict[str, Any]:
    """Return the confusion matrix as its changes from each threshold to the next.

    The categories with most confusions have a row and a column each; others share one. The last
    row is "no object", the last column "missed".
    """
    count = len(counts.class_names)
    wrong = np.zeros(count, np.int64)
    for pair, values in counts.confusions.items():
        if pair[0] != pair[1]:
            for category in pair:
                if category >= 0:
                    wrong[category] += values.max()
    order = np.argsort(-wrong, kind='stable')[:_MAX_MATRIX_CLASSES]
    shown = sorted(order.tolist())
    names = [counts.class_names[index] for index in shown]
    if len(shown) < count:
        names.append(f'{count - len(shown)} others')
    place = {category: index for index, category in enumerate(shown)}
    matrix = np.zeros((len(THRESHOLDS), len(names) + 1, len(names) + 1), np.int64)
    for (row, column), values in counts.confusions.items():
        places = [
            len(names) if one < 0 else place.get(one, len(names) - 1) for one in (row, column)
        ]
        matrix[:, places[0], places[1]] += values
    changes = np.diff(matrix, axis=0, prepend=0)
    where = np.argwhere(changes)
    rows = np.concatenate([where, changes[tuple(where.T)][:, None]], axis=1).tolist()
    return {'names': [escape_controls(one, None) for one in names], 'changes': rows}


def _controls(report: AccuracyReport) -> Markup:
    """Return the controls that stay visible: model and threshold."""
    start = min(100, round(report.thresholds.confidence_threshold * 100))
    parts = []
    if len(report.models) > 1:
        options = [
            element('option', escape_controls(model.name, 80), value=index)
            for index, model in enumerate(report.models)
        ]
        parts.append(element('label', 'model ', element('select', *options, id='model')))
    slider = {'min': 0, 'max': 100, 'step': 1, 'value': start, 'data_node': start}
    parts += [
        element(
            'label',
            'score threshold ',
            element('input', id='threshold', type='range', autocomplete='off', **slider),
            ' ',
            element('output', THRESHOLDS[start], id='threshold-text', for_='threshold'),
        ),
        element('button', "Node's threshold", id='node-threshold', type='button'),
    ]
    return element('div', *parts, class_='controls')


def _counts_table(report: AccuracyReport) -> Markup:
    """Return the table of counts, whose cells the script fills."""
    heads = ['precision', 'recall', 'F1', *KINDS]
    rows = [
        [
            name(model.name),
            *(element('span', data_model=index, data_figure=head) for head in heads),
        ]
        for index, model in enumerate(report.models)
    ]
    described = [element('li', text) for kind, text in _KIND_TITLES.items() if kind != 'right']
    content = table('Detections and objects', ['model', *heads], rows)
    note = 'A detection counts if its score is above the threshold, and above 0.001. '
    note += f'Overlap is {report.measure.similarity}.'
    return join([content, element('p', note), element('ul', *described)])


def _curves(report: AccuracyReport, counts: Sequence[ThresholdCounts]) -> list[Markup]:
    curves: dict[str, list[tuple[float, float]]] = {}
    thin: list[list[tuple[float, float]]] = []
    for model in report.models:
        if model.metrics is not None and model.metrics.precisions50:
            all_ = list(model.metrics.precisions50.values())
            recalls = model.metrics.recalls.tolist()
            curves[model.name] = list(zip(recalls, np.mean(all_, axis=0).tolist(), strict=True))
            if len(report.models) == 1:
                thin = [
                    list(zip(recalls, one.tolist(), strict=True))
                    for one in all_[:_MAX_THIN_CURVES]
                ]
    similarity = report.measure.similarity
    title = f'Mean of categories at {similarity} 0.50'
    if thin:
        title += '; thin lines: each category'
    charts = [line_chart(title, curves, 'recall', 'precision', thin=thin)]
    shares = {'precision': precisions, 'recall': recalls_of, 'F1': f1_scores}
    for label, share in shares.items():
        lines = {}
        for model, count in zip(report.models, counts, strict=True):
            pairs = zip(THRESHOLDS, share(count), strict=True)
            lines[model.name] = [(x, y) for x, y in pairs if y is not None]
        title = f'{label} over the score threshold'.capitalize()
        charts.append(line_chart(title, lines, 'score threshold', label, marker=True))
    return [element('div', *charts, class_='charts')]


def precisions(counts: ThresholdCounts) -> list[float | None]:
    """Return precision at each threshold; None without detections."""
    right = counts.kinds['right']
    total = sum(counts.kinds[kind] for kind in KINDS if kind != 'missed')
    return _shares(right, np.asarray(total))


def recalls_of(counts: ThresholdCounts) -> list[float | None]:
    """Return recall at each threshold; None without objects."""
    right = counts.kinds['right']
    return _shares(right, right + counts.kinds['wrong class'] + counts.kinds['missed'])


def f1_scores(counts: ThresholdCounts) -> list[float | None]:
    """Return the harmonic mean of precision and recall; None if either is unknown."""
    pairs = zip(precisions(counts), recalls_of(counts), strict=True)
    return [
        None if one is None or other is None else 2 * one * other / ((one + other) or 1)
        for one, other in pairs
    ]


def _shares(part: Any, whole: Any) -> list[float | None]:
    return [int(one) / int(all_) if all_ else None for one, all_ in zip(part, whole, strict=True)]


def _mistakes_sections() -> tuple[list[Markup], list[Markup]]:
    """Return the tables of worst mistakes, and the controls of the gallery."""
    heads = ['score', 'part', 'mistake', 'detected as', 'object', 'picture']
    wrong = table('Most confident wrong detections', heads, [], id='worst-detections')
    missed_heads = ['size, pixels', 'part', 'object', 'best score there', 'picture']
    missed = table('Largest missed objects', missed_heads, [], id='worst-missed')
    boxes = [
        element(
            'label',
            element('input', type='checkbox', checked=True, value=kind, class_='kind'),
            ' ',
            element('span', class_=f'key {kind.replace(" ", "-")}'),
            f' {kind} ',
            element('span', data_total=kind),
            title=_KIND_TITLES[kind],
        )
        for kind in KINDS
    ]
    orders = {
        'mistakes': 'most mistakes',
        'score': 'most confident mistake',
        'area': 'largest missed object',
        'name': 'name',
    }
    options = [element('option', text, value=value) for value, text in orders.items()]
    order = element('label', 'order by ', element('select', *options, id='order'))
    legend = element('legend', 'Show in the pictures')
    return (
        [
            element('p', 'Among the pictures below.'),
            element('div', wrong, missed, class_='charts'),
        ],
        [element('fieldset', legend, *boxes, class_='kinds'), element('p', order)],
    )


def _gallery(
    report: AccuracyReport,
    dataset: Dataset,
    page: Page,
    worst: Sequence[int],
    max_images: int | None,
) -> tuple[Markup, list[dict[str, Any]]]:
    """Return the figures of the worst images, and their data for the script."""
    room = MAX_PAGE_BYTES - len(page.html().encode()) - 20_000
    figures: list[Markup] = []
    entries: list[dict[str, Any]] = []
    for index in worst:
        if max_images is not None and len(entries) >= max_images:
            break
        image = dataset.images[index]
        bgr = read_image(image.path, image.size_wh)
        truth = dataset.ground_truth(image)
        height, width = bgr.shape[:2]
        names = escape_controls(image.path.name, None)
        entry = {'name': names, 'size': [width, height]}
        entry['models'] = [_boxes_data(model, index, truth, dataset) for model in report.models]
        number = len(entries)
        picture = element('img', src=picture_url(bgr), alt='')
        layer = element('svg', viewBox=f'0 0 {width} {height}')
        button = element('button', picture, layer, type='button', class_='picture')
        caption = element('figcaption', name(names), ' ', element('span', class_='mistakes'))
        figure = element('figure', button, caption, id=f'picture-{number}', data_image=number)
        room -= len(figure.encode()) + len(json_text(entry)) + 1
        if max_images is None and room < 0:
            break
        figures.append(figure)
        entries.append(entry)
    return element('div', *figures, id='gallery'), entries


def _worst_images(report: AccuracyReport, dataset: Dataset) -> list[int]:
    """Return indices of the images with mistakes at the thresholds of the node.

    The images of the mistakes that the page lists come first, then those with most mistakes.
    """
    order: dict[int, None] = {}
    most: Counter[int] = Counter()
    for model in report.models:
        scores: list[tuple[float, int]] = []
        areas: list[tuple[float, int]] = []
        rows = zip(dataset.images, model.image_matches, model.detections, strict=True)
        for index, (image, matches, found) in enumerate(rows):
            truth = dataset.ground_truth(image)
            wrong = (*matches.false, *(detection for detection, _ in matches.wrong_class))
            scores += [(-float(found.scores[detection]), index) for detection in wrong]
            areas += [(-truth[missed].area, index) for missed in matches.missed]
            if len(matches):
                most[index] = max(most[index], len(matches))
        for mistakes in (scores, areas):
            order |= dict.fromkeys(index for _, index in sorted(mistakes)[:LISTED_MISTAKES])
    by_number = sorted(most, key=lambda index: (-most[index], dataset.images[index].path.name))
    return list(order | dict.fromkeys(by_number))


def _boxes_data(
    model: ModelAccuracy, index: int, truth: Sequence[AnnotatedObject], dataset: Dataset
) -> dict[str, Any]:
    """Return what the script draws for one model in one image.

    Returns:
        ``objects``: left, top, width, height, index of the category, and the SVG path (empty for a
        box). ``detections``: the same, then the score, the number of thresholds below the score,
        the kind where the class is not wrong (index in ``KINDS``), and the object that it takes
        (-1 for none). ``wrong_class``: as in ``ImageHistory``. Objects and detections are places
        in these lists.
    """
    assert model.classes is not None
    found = model.all_detections[index]
    found = found.take(np.arange(len(found)) < _MAX_DRAWN)
    history = ImageHistory.of_image(found, truth, model.classes, dataset.measure)
    categories = list(model.classes.categories)
    objects: list[list[Any]] = []
    detections: list[list[Any]] = []
    place = {which: number for number, which in enumerate(history.objects)}
    for which in history.objects:
        outline = ground_truth_outline(truth[which])
        category = categories.index(truth[which].category_id)
        objects.append([*_xywh(outline), category, svg_path(outline)])
    right, drawn = dict(history.right), {}
    for which, kind in enumerate(history.false_kinds):
        if not kind and which not in right:
            continue  # an ignored detection
        drawn[which] = len(detections)
        outline = detection_outline(found, which)
        category_id = model.classes.category_ids[found.class_ids[which]]
        assert category_id is not None
        taken = place[right[which]] if which in right else -1
        score = round(float(found.scores[which]), 4)
        shape = [*_xywh(outline), categories.index(category_id), svg_path(outline)]
        number = KINDS.index(kind or 'right')
        detections.append([*shape, score, int(history.shown[which]), number, taken])
    wrong = [[drawn[one], place[other], *ends] for one, other, *ends in history.wrong_class]
    return {'objects': objects, 'detections': detections, 'wrong_class': wrong}


def _xywh(outline: Outline) -> list[float]:
    """Return left, top, width and height, rounded to a tenth of a pixel."""
    left, top, right, bottom = outline.xyxy
    return [round(value, 1) for value in (left, top, right - left, bottom - top)]


def _breakdown(report: AccuracyReport) -> list[Markup]:
    """Return the tables of sizes and classes, whose rows the script makes."""
    sizes = ', '.join(
        f'{size} below {most**0.5:.0f}² pixels'
        for size, most in SIZES.items()
        if most < float('inf')
    )
    figures = ['objects', 'found', 'recall', 'AP']
    classes = ['objects', 'AP', 'AP50', 'precision', 'recall', 'F1', 'not found', 'wrong']
    metrics = report.models[0].metrics
    known = sum(one.ap is not None for one in metrics.classes.values()) if metrics else 0
    title = 'Classes, lowest AP first'
    if known > _MAX_CLASSES:
        title += f'; the {_MAX_CLASSES} lowest of {known}'
    return [
        table(f'Objects by area: {sizes}', ['size', *figures], [], id='sizes'),
        table(title, ['class', *classes], [], id='classes'),
    ]
