# SPDX-License-Identifier: Apache-2.0
"""Keeps pictures of the worst results of models that describe the whole image."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.images.drawing import draw_class_map, draw_depth
from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.class_scores import ClassScores
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.model.tasks.task import TaskResult
from trt_perception.offline.evaluation.image_tasks.labels import LabelledImage
from trt_perception.offline.evaluation.image_tasks.measures import (
    IGNORED_LABEL,
    align_inverse_depth,
)
from trt_perception.offline.report_page.page import picture_url

#: A relative error of depth from here on has the strongest colour.
MAX_SHOWN_ERROR: Final = 0.5
_LONGEST_SIDE: Final = 320
_BEST_CLASSES: Final = 3
# A wrong class is an error also if the model's scores are not probabilities.
_MIN_ERROR: Final = 1e-6
_WRONG_COLOR: Final = 60, 94, 230  # BGR
_Image = npt.NDArray[np.uint8]
#: The label of an image, as ``LabelledImage.read_label`` returns it.
Label = str | npt.NDArray[Any] | None
#: Error of each pixel, float64 (height, width), NaN where nothing is measured.
_Errors = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ResultPicture:
    """One picture of an image, or a text in its place.

    Attributes:
        part: ``image``, ``label``, ``result`` or ``difference``.
        model: name of the model; empty for image and label.
        url: the picture as a data URL; empty for a text.
    """

    part: str
    model: str
    text: str
    url: str = ''


@dataclass(frozen=True, order=True)
class ResultImage:
    """The pictures of one image. Images are ordered by their deviation.

    Attributes:
        deviation: the largest error of a model, 0 if the results equal the label (without labels:
            the results of the first model). The score of a wrong best class, the share of wrong
            pixels, or the mean relative error of depth.
        number: negative place among all images, so that the first of equal images is kept.
    """

    deviation: float
    number: int
    name: str
    pictures: tuple[ResultPicture, ...]


class WorstResults:
    """Keeps the images with the largest errors, and counts the confusions of classifiers.

    Args:
        count: maximum number of images.
        class_names: names of each model's classes, by the model's name.
        class_map: see ``folder_labels``.

    Attributes:
        confusions: number of images by (label, best class), by the name of each classifier.
    """

    def __init__(
        self,
        count: int,
        class_names: Mapping[str, Sequence[str]],
        class_map: Mapping[str, str | None],
    ) -> None:
        self.confusions: dict[str, Counter[tuple[str, str]]] = {}
        self._count = count
        self._names = class_names
        self._class_map = class_map
        self._kept: list[ResultImage] = []
        self._seen = 0

    @property
    def images(self) -> list[ResultImage]:
        """The kept images, largest error first."""
        return sorted(self._kept, reverse=True)

    def add(
        self, image: LabelledImage, bgr: _Image, label: Label, found: Mapping[str, TaskResult]
    ) -> None:
        """Add the results of one image by model, the reference first."""
        self._seen += 1
        truth, compared = label, dict(found)
        if label is None:
            first = next(iter(found))
            truth = self._as_label(first, compared.pop(first))
            names = self._names[first]
            compared = {name: one for name, one in compared.items() if self._names[name] == names}
        errors = {name: self._errors(name, one, truth) for name, one in compared.items()}
        if isinstance(truth, str):
            for name, one in compared.items():
                counts = self.confusions.setdefault(name, Counter())
                counts[truth, self._best_class(name, one)] += 1
        deviation = max(map(_mean, errors.values()), default=0.0)
        is_worse = len(self._kept) < self._count or deviation > self._kept[0].deviation
        if deviation > 0 and is_worse:
            pictures = tuple(self._pictures(bgr, label, truth, found, errors))
            kept = ResultImage(deviation, -self._seen, image.path.name, pictures)
            heapq.heappush(self._kept, kept)
            if len(self._kept) > self._count:
                heapq.heappop(self._kept)

    def _best_class(self, name: str, result: TaskResult) -> str:
        """Return the best class, by the name of the folder of its images."""
        assert isinstance(result, ClassScores)
        best = self._names[name][int(result.best(1)[0][0])]
        return self._class_map.get(best, best) or best

    def _as_label(self, name: str, result: TaskResult) -> Label:
        """Return the result of the first model as the others' label. Depth keeps its unit."""
        if isinstance(result, ClassScores):
            return self._best_class(name, result)
        return result.class_ids() if isinstance(result, ClassMap) else _depth(result)

    def _errors(self, name: str, result: TaskResult, truth: Label) -> _Errors:
        """Return the error of each pixel. For classifiers, there is one value."""
        if isinstance(result, ClassScores):
            is_wrong = self._best_class(name, result) != truth
            return np.array([[max(float(result.best(1)[1][0]), _MIN_ERROR) if is_wrong else 0.0]])
        assert isinstance(truth, np.ndarray)
        errors = np.full(truth.shape, np.nan)
        if isinstance(result, ClassMap):
            is_measured = truth != IGNORED_LABEL
            errors[is_measured] = (result.class_ids() != truth)[is_measured]
        else:
            depth, expected, is_known = _depth(result, truth), _metres(truth), truth != 0
            difference = np.abs(depth - expected)[is_known]
            errors[is_known] = difference / np.abs(expected[is_known])
        return errors

    def _pictures(
        self,
        bgr: _Image,
        label: Label,
        truth: Label,
        found: Mapping[str, TaskResult],
        errors: Mapping[str, _Errors],
    ) -> Iterator[ResultPicture]:
        yield ResultPicture('image', '', 'image', _url(bgr))
        if isinstance(label, str):
            yield ResultPicture('label', '', label)
        elif label is not None:
            yield ResultPicture('label', '', 'label', self._label_url(bgr, label, found))
        for name, result in found.items():
            if isinstance(result, ClassScores):
                best = zip(*result.best(_BEST_CLASSES), strict=True)
                lines = [f'{self._names[name][int(id_)]} {score:.2f}' for id_, score in best]
                yield ResultPicture('result', name, ', '.join(lines))
                continue
            yield ResultPicture(
                'result', name, 'result', self._result_url(bgr, truth, name, result)
            )
            if name in errors:
                text = f'difference {_mean(errors[name]):.3f}'
                url = _url(_error_picture(bgr, errors[name], result))
                yield ResultPicture('difference', name, text, url)

    def _label_url(
        self, bgr: _Image, label: npt.NDArray[Any], found: Mapping[str, TaskResult]
    ) -> str:
        drawn, label = _reduced(bgr), _reduced(label)
        name, result = next(iter(found.items()))
        if isinstance(result, ClassMap):
            is_ignored = label == IGNORED_LABEL
            draw_class_map(drawn, np.where(is_ignored, 0, label), self._names[name])
            drawn[is_ignored] = 0
        else:
            metres = np.where(label > 0, _metres(label), np.nan)
            draw_depth(drawn, metres.astype(np.float32), ' m')
        return _url(drawn)

    def _result_url(self, bgr: _Image, truth: Label, name: str, result: TaskResult) -> str:
        drawn = _reduced(bgr)
        if isinstance(result, ClassMap):
            draw_class_map(drawn, _reduced(result.class_ids()), self._names[name])
        else:
            assert isinstance(truth, np.ndarray)
            assert isinstance(result, DepthMap)
            unit = ' m' if result.is_metric or _is_label(truth) else ''
            draw_depth(drawn, _reduced(_depth(result, truth).astype(np.float32)), unit)
        return _url(drawn)


def _depth(result: TaskResult, truth: npt.NDArray[Any] | None = None) -> npt.NDArray[np.float64]:
    """Return depth as DepthMeasure compares it with a label. A depth that is not finite is 0."""
    assert isinstance(result, DepthMap)
    depth: npt.NDArray[np.float64] = result.depth().astype(np.float64)
    depth = np.nan_to_num(depth, posinf=0, neginf=0)
    if truth is None or result.is_metric or not _is_label(truth) or not truth.any():
        return depth
    return align_inverse_depth(depth[truth > 0], _metres(truth)[truth > 0], depth)


def _is_label(truth: npt.NDArray[Any]) -> bool:
    """Return whether depth is a label in millimetres, and not the result of another model."""
    return truth.dtype == np.uint16


def _metres(truth: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return a label of depth in metres. The result of another model stays unchanged."""
    metres: npt.NDArray[np.float64] = truth / 1000 if _is_label(truth) else truth
    return metres


def _mean(errors: _Errors) -> float:
    """Return the mean of the measured values; 0 if nothing is measured."""
    measured = errors[~np.isnan(errors)]
    return float(measured.mean()) if measured.size else 0.0


def _error_picture(bgr: _Image, errors: _Errors, result: TaskResult) -> _Image:
    """Return the error of depth as a colour, or wrong pixels in red over a grey image."""
    if isinstance(result, DepthMap):
        levels = np.nan_to_num(errors).clip(0, MAX_SHOWN_ERROR) * (255 / MAX_SHOWN_ERROR)
        drawn = cv2.applyColorMap(levels.astype(np.uint8), cv2.COLORMAP_INFERNO)
        drawn[np.isnan(errors)] = 128
    else:
        grey = cv2.cvtColor(bgr, cv2.COLOR_BGR2GRAY)
        drawn = cv2.cvtColor(grey // 2 + 64, cv2.COLOR_GRAY2BGR)
        drawn[np.nan_to_num(errors) > 0] = _WRONG_COLOR
        drawn[np.isnan(errors)] = 0
    return drawn.astype(np.uint8, copy=False)


def _reduced(pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy of an image or map whose longer side has at most 320 pixels.

    Maps are drawn after this step, because their legends would become too small.
    """
    height, width = pixels.shape[:2]
    scale = min(1.0, _LONGEST_SIDE / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    method = cv2.INTER_AREA if pixels.ndim == 3 else cv2.INTER_NEAREST
    return np.ascontiguousarray(cv2.resize(pixels, size, interpolation=method))


def _url(bgr: _Image) -> str:
    return picture_url(bgr, _LONGEST_SIDE)
