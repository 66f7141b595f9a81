# SPDX-License-Identifier: Apache-2.0
"""Says whether a model loses less accuracy than a stated limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from trt_perception.offline.evaluation.compare import AccuracyReport, ModelAccuracy
from trt_perception.offline.evaluation.image_tasks.compare import (
    ImageModelAccuracy,
    ImageTaskReport,
)
from trt_perception.offline.report_page.markup import Markup, element, figure_text, join

_Model = TypeVar('_Model', ModelAccuracy, ImageModelAccuracy)


@dataclass(frozen=True)
class Verdict:
    """The loss of a model against the first model.

    Attributes:
        loss: lost accuracy, negative for a gain; None if both models have no common figure.
        of: the figure that decides, such as ``mAP50``.
        limit: largest accepted loss; None without a limit.
    """

    loss: float | None
    of: str
    limit: float | None

    @property
    def is_within(self) -> bool | None:
        """Whether the loss is within the limit; None if limit or loss is unknown."""
        return None if self.limit is None or self.loss is None else self.loss <= self.limit

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as a JSON object."""
        return {
            'loss': self.loss,
            'of': self.of,
            'max_accuracy_drop': self.limit,
            'within': self.is_within,
        }


def read_verdicts(
    report: AccuracyReport | ImageTaskReport, limit: float | None
) -> dict[str, Verdict]:
    """Return the verdict on each model except the first, by name."""
    return {model.name: Verdict(*_loss(report, model.name), limit) for model in report.models[1:]}


def verdicts_dict(verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
    """Return the key ``verdicts`` of a JSON report; empty without a limit."""
    if all(verdict.limit is None for verdict in verdicts.values()):
        return {}
    return {'verdicts': {name: verdict.as_dict() for name, verdict in verdicts.items()}}


def verdict_text(verdict: Verdict) -> str:
    """Return a verdict in words."""
    if verdict.loss is None:
        return 'unknown, because the models have no common figure'
    change = 'loses' if verdict.loss >= 0 else 'gains'
    text = f'{change} {abs(verdict.loss):.4f} {verdict.of}'
    if verdict.is_within is None:
        return f'{text}; no limit given'
    if verdict.is_within:
        return f'within the limit {verdict.limit:g}: {text}'
    return f'over the limit {verdict.limit:g}: {text}'


def figure_with_difference(value: float | None, before: float | None) -> Markup:
    """Return a cell with a figure, and its difference from the first model if both are known."""
    if value is None or before is None:
        return join([figure_text(value)])
    change = f'{value - before:+.4f}'
    text = 'same' if float(change) == 0 else change
    return join([figure_text(value), ' ', element('small', text)])


def _loss(report: AccuracyReport | ImageTaskReport, name: str) -> tuple[float | None, str]:
    """Return the loss as ``accuracy_drop`` of the report defines it, and what decides."""
    if isinstance(report, ImageTaskReport):
        first, model = (_model(report.models, one) for one in (report.models[0].name, name))
        figure = report.main_figure
        if first.figures.get(figure) is not None and model.figures.get(figure) is not None:
            return report.accuracy_drop(name), figure
        return report.accuracy_drop(name) if model.agreement else None, 'agreement'
    measured = [_model(report.models, one).metrics for one in (report.reference, name)]
    if measured[0] is not None and measured[1] is not None:
        # Means over other categories are not comparable.
        is_known = measured[0].classes.keys() == measured[1].classes.keys()
        is_known &= report.difference(name)['mAP50'] is not None
        return report.accuracy_drop(name) if is_known else None, 'mAP50'
    agreement = report.agreements.get(name)
    is_known = agreement is not None and agreement.overall.f1 is not None
    return report.accuracy_drop(name) if is_known else None, 'F1 of the agreement'


def _model(models: Sequence[_Model], name: str) -> _Model:
    return next(model for model in models if model.name == name)
