# SPDX-License-Identifier: Apache-2.0
"""Output of detect_images: annotated images and videos, and COCO JSON of detections."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.errors import ConfigError
from trt_perception.files.atomic_files import make_folder, write_atomically
from trt_perception.images.detections import Detections
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.task import Task, TaskResult
from trt_perception.offline.evaluation.coco.results import coco_rows
from trt_perception.offline.evaluation.coco.run_lengths import decode_counts, with_run_lengths
from trt_perception.offline.tools.parts.detection_sources import DETECTIONS_FILE, RESULTS_FILE

_Image = npt.NDArray[np.uint8]
_JPEG_QUALITY: Final = [cv2.IMWRITE_JPEG_QUALITY, 92]


class CocoResults:
    """Collects the detections of many images, and converts them to COCO's formats.

    The id of a category is the class index plus 1, because some readers treat 0 as background.

    Args:
        info: content of the key ``info``: model and settings.
    """

    def __init__(
        self, class_names: Sequence[str], info: dict[str, Any], task: Task = DETECT
    ) -> None:
        self._class_names = class_names
        self._task = task
        self._info = info
        # Images and their rows. Ctrl-C leaves no incomplete image, because `add` appends once.
        self._images: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []

    def __len__(self) -> int:
        return len(self._images)

    def add(self, file_name: str, size_wh: tuple[int, int], found: TaskResult) -> None:
        """Add the detections of one image or frame.

        Args:
            size_wh: width and height of the image in pixels.
            found: detections in pixels of the image.
        """
        assert isinstance(found, Detections)
        image_id = len(self._images) + 1
        width, height = size_wh
        image = {'id': image_id, 'file_name': file_name, 'width': width, 'height': height}
        rows = []
        ids = range(1, len(self._class_names) + 1)
        for row in coco_rows(image_id, with_run_lengths(found), ids):
            width, height = row.get('oriented_bbox', row['bbox'])[2:4]
            area = round(width * height, 4)
            if found.masks is not None:
                area = decode_counts(row['segmentation']['counts'])[1::2].sum().item()
            if 'keypoints' in row:
                row['num_keypoints'] = len(row['keypoint_scores'])
            rows.append({**row, 'area': area, 'iscrowd': 0})
        self._images.append((image, rows))

    def dataset(self) -> dict[str, Any]:
        """Return the detections as a COCO data set. Each annotation also has a score."""
        return {
            'info': self._info,
            'images': [image for image, _ in self._images],
            'categories': [
                {'id': id_, 'name': name, **self._task.coco_category_fields()}
                for id_, name in enumerate(self._class_names, 1)
            ],
            'annotations': [{'id': id_, **row} for id_, row in enumerate(self._rows(), 1)],
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return the detections in COCO's results format, with the ids of ``dataset``."""
        left_out = ['area', 'iscrowd', 'num_keypoints']
        if not self._task.has_masks:
            left_out.append('segmentation')  # polygons are not allowed in this format
        return [
            {key: value for key, value in row.items() if key not in left_out}
            for row in self._rows()
        ]

    def files(self) -> dict[str, Any]:
        """Return the content of the JSON files by file name."""
        return {DETECTIONS_FILE: self.dataset(), RESULTS_FILE: self.rows()}

    def summary(self) -> dict[str, Any]:
        """Return counts of images and detections, with the most frequent class first."""
        counts = Counter(self._class_names[row['category_id'] - 1] for row in self._rows())
        return {
            'images': len(self._images),
            'images_with_detections': sum(bool(rows) for _, rows in self._images),
            'detections': counts.total(),
            'classes': dict(counts.most_common()),
        }

    def headline(self) -> str:
        """Return the first line of the printed summary."""
        counts, confidence = self.summary(), self._info['confidence_threshold']
        return (
            f'{counts["detections"]} detections in {counts["images_with_detections"]} of '
            f'{counts["images"]} images, score > {confidence:g}'
        )

    def _rows(self) -> Iterator[dict[str, Any]]:
        for _, rows in self._images:
            yield from rows


def write_image(
    path: Path,
    bgr: _Image,
    found: TaskResult,
    class_names: Sequence[str],
    task: Task = DETECT,
) -> None:
    """Draw a result into an image and write the image atomically.

    Args:
        path: target. The suffix selects the format. A missing folder is created.
        bgr: uint8 (height, width, 3), BGR. This function draws into the array.
        found: the result, in pixels of the image.
        task: task of the model; its ``draw`` draws the result.

    Raises:
        ConfigError: the folder cannot be created.
        WriteError: the image cannot be written.
    """
    task.draw(bgr, found, class_names)
    suffix = path.suffix.lower()
    options = [] if suffix == '.png' else _JPEG_QUALITY
    content = cv2.imencode(suffix, bgr, options)[1].tobytes()
    make_folder(path.parent)
    write_atomically({path: content}, is_durable=False)


class VideoOutput(contextlib.AbstractContextManager['VideoOutput']):
    """Writes an annotated MP4 video. The file appears only when the video is complete.

    Args:
        path: target, ends in .mp4. A missing folder is created.
        fps: frames per second.
        task: task of the model; its ``draw`` draws the result.
    """

    def __init__(
        self,
        path: Path,
        fps: float,
        class_names: Sequence[str],
        task: Task = DETECT,
    ) -> None:
        self._path = path
        self._fps = fps
        self._class_names = class_names
        self._task = task
        self._temporary_path = _temporary_path(path)
        self._writer: Any = None
        self._size = (0, 0)
        self._written = 0

    def add(self, bgr: _Image, found: TaskResult) -> None:
        """Draw a result into a frame and write the frame.

        Args:
            bgr: uint8 (height, width, 3), BGR. This method draws into the array.
            found: the result, in pixels of the frame.

        Raises:
            ConfigError: this OpenCV cannot write the video, or the size differs from the first
                frame.
        """
        size = bgr.shape[1], bgr.shape[0]
        if self._writer is None:
            self._open(size)
        if size != self._size:  # OpenCV would skip this frame silently
            raise ConfigError(
                str(self._path),
                f'{size[0]}x{size[1]}',
                expected=f'the size of the first frame, {self._size[0]}x{self._size[1]} pixels',
            )
        self._task.draw(bgr, found, self._class_names)
        self._writer.write(bgr)
        self._written += 1

    def __exit__(self, kind: Any, *_: object) -> None:
        if self._writer is None:
            return
        self._writer.release()
        try:
            if kind is None:
                self._check_written_frames()
                self._temporary_path.replace(self._path)
        except OSError as error:
            raise ConfigError(str(self._path), f'cannot be written: {error.strerror}') from error
        finally:
            self._temporary_path.unlink(missing_ok=True)

    def _check_written_frames(self) -> None:
        """Count the frames of the written file, because OpenCV does not report a full disk."""
        found = _count_frames(self._temporary_path, self._written)
        if found < self._written:
            free = shutil.disk_usage(self._path.parent).free / 1e6
            raise ConfigError(
                f'{self._path}: could not be written completely',
                f'{found} readable frames; {free:.0f} MB are free on the disk',
                expected=f'{self._written} frames',
                fix='free disk space, raise the quota or file size limit, or skip annotated '
                'videos with --no-pictures',
            )

    def _open(self, size_wh: tuple[int, int]) -> None:
        make_folder(self._path.parent)
        code = cv2.VideoWriter.fourcc(*'mp4v')
        writer = cv2.VideoWriter(str(self._temporary_path), code, self._fps, size_wh)
        if not writer.isOpened():
            self._temporary_path.unlink(missing_ok=True)
            raise ConfigError(
                str(self._path),
                f'cannot be written: the folder is not writable, or this OpenCV '
                f'({cv2.__version__}) cannot write MP4',
                fix='skip annotated videos with --no-pictures',
            )
        self._writer, self._size = writer, size_wh


def _count_frames(path: Path, max_count: int) -> int:
    """Return how many frames of a video can be decoded, at most ``max_count``."""
    capture = cv2.VideoCapture(str(path))
    try:
        count = 0
        while count < max_count and capture.grab():
            count += 1
        return count
    finally:
        capture.release()


def _temporary_path(path: Path) -> Path:
    """Return a hidden path next to the target, with the target's suffix, which sets the format."""
    return path.with_name(f'.{os.getpid()}.{path.name}')
