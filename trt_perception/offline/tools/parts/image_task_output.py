# SPDX-License-Identifier: Apache-2.0
"""Output of detect_images for tasks that describe the whole image: classes and maps as PNG."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.files.atomic_files import make_folder, write_atomically
from trt_perception.files.plain_text import counted
from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.class_scores import ClassScores
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.images.results.image_limits import row_strips
from trt_perception.model.tasks.task import TaskResult
from trt_perception.offline.tools.parts.detection_sources import MAPS_FOLDER, RESULTS_FILE

# Number of classes in the results of a classifier.
_BEST_CLASSES: Final = 5
_MAX_UINT16: Final = 65535


class ImageTaskResults:
    """Collects the results of many images, and writes the map of each image at once.

    Args:
        class_names: names of the model's classes; empty if the task has no classes.
        map_files: maps the name of an image to the file of its map. Frames of videos are missing.
    """

    def __init__(
        self, class_names: Sequence[str], folder: Path, map_files: Mapping[str, Path]
    ) -> None:
        self._class_names = class_names
        self._folder = folder
        self._map_files = map_files
        self._rows: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, file_name: str, size_wh: tuple[int, int], found: TaskResult) -> None:
        """Add the result of one image or frame, and write its map.

        Args:
            size_wh: width and height of the image in pixels.

        Raises:
            ConfigError: the folder cannot be created.
            WriteError: the map cannot be written.
        """
        row: dict[str, Any] = {'file_name': file_name, 'width': size_wh[0], 'height': size_wh[1]}
        if isinstance(found, ClassScores):
            row['classes'] = self._best_classes(found)
        elif isinstance(found, ClassMap):
            ids = found.class_ids()
            row |= {'map': self._write_map(file_name, ids), 'shares': self._shares(ids)}
        else:
            assert isinstance(found, DepthMap)
            pixels, values = _depth_pixels(found)
            row |= {'map': self._write_map(file_name, pixels), **values}
        self._rows.append(row)

    def files(self) -> dict[str, Any]:
        """Return the content of the JSON files by file name."""
        return {RESULTS_FILE: self._rows}

    def summary(self) -> dict[str, Any]:
        """Return the number of images and the classes, with the most frequent class first.

        For a classifier, the value of a class is the number of images with this best class. For
        class maps, it is the mean share of pixels.
        """
        classes = sorted(self._amounts().items(), key=lambda item: -item[1])
        if self._rows and 'shares' in self._rows[0]:
            classes = [(name, round(amount / len(self._rows), 6)) for name, amount in classes]
        return {'images': len(self._rows), 'classes': dict(classes)}

    def headline(self) -> str:
        """Return the first line of the printed summary, above the classes."""
        count = counted(len(self._rows), 'image')
        if not self._rows:
            return count
        if 'classes' in self._rows[0]:
            return f'{count}, by best class:'
        if 'shares' in self._rows[0]:
            return f'{count}, mean share of each class:'
        known = [row for row in self._rows if row['low'] is not None]
        if not known:
            return f'{count}, depth unknown'
        low, high = min(row['low'] for row in known), max(row['high'] for row in known)
        unit = known[0]['unit'] or ''
        return f'{count}, depth from {low:.3g} to {high:.3g} {unit}'.rstrip()

    def _amounts(self) -> dict[str, float]:
        """Return for each class: the images where it is best, or the sum of its pixel shares."""
        amounts: defaultdict[str, float] = defaultdict(int)
        for row in self._rows:
            best = {found['name']: 1 for found in row.get('classes', ())[:1]}
            for name, amount in row.get('shares', best).items():
                amounts[name] += amount
        return amounts

    def _best_classes(self, found: ClassScores) -> list[dict[str, Any]]:
        ids, scores = found.best(_BEST_CLASSES)
        return [
            {'name': self._class_names[class_id], 'score': round(float(score), 6)}
            for class_id, score in zip(ids, scores, strict=True)
        ]

    def _shares(self, ids: npt.NDArray[np.uint8]) -> dict[str, float]:
        """Return the share of the pixels of each class in the image."""
        counts = np.zeros(len(self._class_names), np.int64)
        height, width = ids.shape
        for rows in row_strips((width, height)):
            counts += np.bincount(ids[rows].ravel(), minlength=len(self._class_names))
        return {
            self._class_names[class_id]: round(float(counts[class_id] / ids.size), 6)
            for class_id in np.flatnonzero(counts)
        }

    def _write_map(
        self, file_name: str, pixels: npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
    ) -> str:
        """Write a map as PNG. Return its path in the output folder."""
        path = self._map_files.get(file_name, self._folder / MAPS_FOLDER / f'{file_name}.png')
        make_folder(path.parent)
        write_atomically({path: cv2.imencode('.png', pixels)[1].tobytes()}, is_durable=False)
        return path.relative_to(self._folder).as_posix()


def _depth_pixels(found: DepthMap) -> tuple[npt.NDArray[np.uint16], dict[str, Any]]:
    """Return depth as 16-bit pixels, and the values that explain them.

    Returns:
        uint16 (height, width): millimetres, at most 65535; for relative depth, 1 for ``low`` to
        65535 for ``high``. 0 if the depth is unknown. The values are the unit, and the lowest and
        highest depth in this unit; None if all are unknown.
    """
    depth = found.depth()
    if found.is_metric:
        depth[~(depth > 0)] = np.nan
    height, width = depth.shape
    strips = list(row_strips((width, height)))
    limits = []
    for rows in strips:
        known = depth[rows][np.isfinite(depth[rows])]
        if known.size:
            limits += [float(known.min()), float(known.max())]
    low, high = (min(limits), max(limits)) if limits else (None, None)
    pixels = np.zeros(depth.shape, np.uint16)
    for rows in strips:
        is_known = np.isfinite(depth[rows])
        levels = depth[rows][is_known].astype(np.float64)
        if found.is_metric:
            levels *= 1000
        else:
            range_ = ((high or 0) - (low or 0)) or 1
            levels = 1 + (levels - (low or 0)) * ((_MAX_UINT16 - 1) / range_)
        pixels[rows][is_known] = np.rint(levels.clip(0, _MAX_UINT16))
    return pixels, {'unit': 'm' if found.is_metric else None, 'low': low, 'high': high}
