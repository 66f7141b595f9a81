# SPDX-License-Identifier: Apache-2.0
"""Draws the images with most mistakes: missed objects, false detections and wrong classes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.errors import ConfigError
from trt_perception.files.atomic_files import make_folder, write_atomically, write_json
from trt_perception.images.detections import Detections
from trt_perception.images.drawing import draw_box
from trt_perception.images.text import drawable_name, put_text
from trt_perception.offline.evaluation.coco.annotations import AnnotatedObject
from trt_perception.offline.evaluation.coco.images import read_image
from trt_perception.offline.evaluation.coco.library import pycocotools_module
from trt_perception.offline.evaluation.coco.section import read_json
from trt_perception.offline.evaluation.dataset import DatasetImage
from trt_perception.offline.evaluation.metrics.mistakes import ImageMatches
from trt_perception.offline.evaluation.report.outlines import (
    Outline,
    detection_outline,
    ground_truth_outline,
)

_Image = npt.NDArray[np.uint8]

#: BGR. Colour-blind people can also distinguish these colours (Okabe and Ito, 2008).
LEGEND_COLORS: Final[Mapping[str, tuple[int, int, int]]] = {
    'right': (115, 158, 0),
    'wrong class': (233, 180, 86),
    'false': (60, 94, 230),
    'missed': (66, 228, 240),
}
_LONGEST_SIDE: Final = 1280
_SHORTEST_SIDE: Final = 480
_CELL_SIZE: Final = (480, 400)
#: Name of a file that lists the written files, so that the next run can remove them.
_LIST_FILE: Final = 'pictures.json'
_LIST_MAX_BYTES: Final = 4 * 1024**2
_OUTPUT_NAME: Final = re.compile(r'montage\.jpg|\d{2,}_[^/]*\.jpg')
_FONT: Final = cv2.FONT_HERSHEY_SIMPLEX


def _draw_outline(
    canvas: _Image,
    outline: Outline,
    scale: float,
    label: str,
    color: tuple[int, int, int],
    weight: int = 1,
) -> None:
    """Draw one object into a canvas.

    Args:
        canvas: uint8 (height, width, 3), BGR, contiguous.
        scale: canvas pixels per image pixel.
        label: text as in ``draw_box``.
        color: BGR.
        weight: line width in pixels.
    """
    if outline.mask is not None:
        size = canvas.shape[1], canvas.shape[0]
        inside = pycocotools_module('mask').decode(outline.mask)
        mask = cv2.resize(inside, size, interpolation=cv2.INTER_NEAREST)
        # Draw only contours, so that two masks of one object remain visible.
        borders, _ = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(canvas, borders, -1, color, weight)
    corners = None if outline.corners is None else outline.corners * np.float32(scale)
    box = [side * scale for side in outline.xyxy]
    draw_box(canvas, box, label, color, weight, corners)
    # OpenCV uses 32-bit coordinates. The limit is outside any image.
    places = np.rint(np.array(outline.points).reshape(-1, 2) * scale).clip(-(2**20), 2**20)
    for x, y in places.astype(int).tolist():
        cv2.circle(canvas, (x, y), 2 + 2 * weight, color, cv2.FILLED, cv2.LINE_AA)
        cv2.circle(canvas, (x, y), weight, (255, 255, 255), cv2.FILLED, cv2.LINE_AA)


def draw_mistakes(
    bgr: _Image,
    mistakes: ImageMatches,
    found: Detections,
    truth: Sequence[AnnotatedObject],
    class_names: Sequence[str],
    categories: Mapping[int, str],
) -> _Image:
    """Return a copy of the image with its correct and wrong detections, and a legend below.

    Args:
        bgr: uint8 (height, width, 3), BGR; not changed.
        found: detections in pixels of the image.
    """
    scale = _drawing_scale(bgr)
    canvas = _resized(bgr, scale)

    def detection(index: int, kind: str, more: str = '') -> None:
        class_id = int(found.class_ids[index])
        name = drawable_name(class_names[class_id], class_id)
        label = f'{name} {found.scores[index]:.2f}{more}'
        _draw_outline(
            canvas, detection_outline(found, index), scale, label, LEGEND_COLORS[kind], 2
        )

    for index, _ in mistakes.right:  # no label, because the mistakes must stand out
        _draw_outline(canvas, detection_outline(found, index), scale, '', LEGEND_COLORS['right'])

    def category(index: int) -> str:
        category_id = truth[index].category_id
        return drawable_name(categories[category_id], category_id)

    for missed in mistakes.missed:
        outline = ground_truth_outline(truth[missed])
        _draw_outline(canvas, outline, scale, category(missed), LEGEND_COLORS['missed'], 2)
    for index in mistakes.false:
        detection(index, 'false')
    for index, partner in mistakes.wrong_class:
        detection(index, 'wrong class', f', is {category(partner)}')
    counts = {
        'right': len(mistakes.right),
        'wrong class': len(mistakes.wrong_class),
        'false': len(mistakes.false),
        'missed': len(mistakes.missed),
    }
    return np.concatenate([canvas, _legend_strip(canvas.shape[1], counts)])


def write_worst_images(
    folder: Path,
    images: Sequence[tuple[DatasetImage, ImageMatches, Detections, Sequence[AnnotatedObject]]],
    class_names: Sequence[str],
    categories: Mapping[int, str],
    count: int,
) -> list[Path]:
    """Draw the images with most mistakes, and a montage of these images.

    Args:
        folder: target. A missing folder is created. Files of an earlier call, as listed in its
            ``pictures.json``, are removed.
        images: each image with its matches, detections and objects.
        count: maximum number of images. Images without mistakes are skipped.

    Returns:
        Written files: ``montage.jpg``, then the images, worst first; empty without mistakes.

    Raises:
        ConfigError: the folder cannot be created, or earlier files cannot be removed.
        WriteError: an image cannot be written.
        ImageError: an image cannot be read again, or has another size than annotated.
    """
    _remove_earlier(folder)
    worst = sorted((p for p in images if len(p[1])), key=lambda p: (-len(p[1]), p[0].path.name))
    worst = worst[:count]
    if not worst:
        return []
    targets = [
        folder / f'{number:02d}_{image.path.stem}.jpg'
        for number, (image, *_) in enumerate(worst, 1)
    ]
    montage = folder / 'montage.jpg'
    make_folder(folder)
    # Write the list before the images, so that it is complete even after a failure.
    names = [path.name for path in (montage, *targets)]
    write_json(folder / _LIST_FILE, {'files': names}, indent=2)
    cells = []
    for target, (image, mistakes, found, truth) in zip(targets, worst, strict=True):
        bgr = read_image(image.path, image.size_wh)
        drawn = draw_mistakes(bgr, mistakes, found, truth, class_names, categories)
        _write_jpeg(target, drawn)
        cells.append(_montage_cell(drawn, image.path.name))
    _write_jpeg(montage, _cell_grid(cells))
    return [montage, *targets]


def _remove_earlier(folder: Path) -> None:
    """Remove the images of an earlier run, so that images of two runs do not mix."""
    listed = folder / _LIST_FILE
    content = read_json(listed, _LIST_MAX_BYTES) if listed.exists() else {}
    names = content.get('files') if isinstance(content, dict) else None
    try:
        for name in names if isinstance(names, list) else ():
            if isinstance(name, str) and _OUTPUT_NAME.fullmatch(name):
                (folder / name).unlink(missing_ok=True)
        listed.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(str(folder), f'cannot be written: {error.strerror}') from error


def _legend_strip(width: int, counts: Mapping[str, int]) -> _Image:
    """Return a strip that explains the colours: uint8 (28, width, 3)."""
    size = 0.5 if width >= 480 else 0.4
    strip = np.full((28, width, 3), 32, np.uint8)
    x = 8
    for kind, color in LEGEND_COLORS.items():
        text = f'{counts[kind]} {kind}'
        cv2.rectangle(strip, (x, 8), (x + 12, 20), color, cv2.FILLED)
        cv2.putText(strip, text, (x + 18, 19), _FONT, size, (235, 235, 235), 1, cv2.LINE_AA)
        x += 18 + cv2.getTextSize(text, _FONT, size, 1)[0][0] + 16
    return strip


def _drawing_scale(bgr: _Image) -> float:
    """Return the factor that makes labels legible and limits the file size."""
    height, width = bgr.shape[:2]
    enlarged = max(1.0, _SHORTEST_SIDE / min(width, height))
    return min(enlarged, _LONGEST_SIDE / max(width, height))


def _resized(bgr: _Image, scale: float) -> _Image:
    if scale == 1:
        return bgr.copy()
    size = max(1, round(bgr.shape[1] * scale)), max(1, round(bgr.shape[0] * scale))
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    return cv2.resize(bgr, size, interpolation=method).astype(np.uint8, copy=False)


def _montage_cell(bgr: _Image, name: str) -> _Image:
    """Return the image in a dark cell of fixed size, with its name above."""
    width, height = _CELL_SIZE
    cell = np.full((height, width, 3), 16, np.uint8)
    small = _resized(bgr, min((width - 8) / bgr.shape[1], (height - 28) / bgr.shape[0]))
    left = (width - small.shape[1]) // 2
    cell[24 : 24 + small.shape[0], left : left + small.shape[1]] = small
    put_text(cell, name, (6, 17), 0.45, (235, 235, 235), 1)
    return cell


def _cell_grid(cells: Sequence[_Image]) -> _Image:
    columns = min(len(cells), max(1, math.ceil(math.sqrt(len(cells)))))
    rows = math.ceil(len(cells) / columns)
    empty = np.full_like(cells[0], 16)
    filled = [*cells, *[empty] * (rows * columns - len(cells))]
    lines = [
        np.concatenate(filled[row * columns : (row + 1) * columns], axis=1) for row in range(rows)
    ]
    return np.concatenate(lines)


def _write_jpeg(path: Path, bgr: _Image) -> None:
    content = cv2.imencode('.jpg', bgr, [cv2.IMWRITE_JPEG_QUALITY, 92])[1].tobytes()
    write_atomically({path: content})
