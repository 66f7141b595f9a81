"""What detect_images writes: annotated images and videos, COCO's JSON, a summary."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.errors import ConfigError
from trt_perception.evaluation.coco.results import coco_rows
from trt_perception.evaluation.coco.run_lengths import decode_counts, with_run_lengths
from trt_perception.files.atomic_files import make_folder, write_atomically
from trt_perception.images.detections import Detections
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.task import Task

__all__ = ['CocoResults', 'VideoOutput', 'write_image']

_Image = npt.NDArray[np.uint8]
_JPEG_QUALITY: Final = [cv2.IMWRITE_JPEG_QUALITY, 92]


class CocoResults:
    """Detections of many images in COCO's form, images and categories with them.

    A category's id is the class's index plus 1: to some readers 0 is the background.

    Args:
        class_names: of the model.
        info: what made them.
        task: of the model.
    """

    def __init__(
        self, class_names: Sequence[str], info: dict[str, Any], task: Task = DETECT
    ) -> None:
        self._class_names = class_names
        self._task = task
        self._info = info
        self._images: list[dict[str, Any]] = []
        self._rows: list[dict[str, Any]] = []
        self._counts: Counter[str] = Counter()
        self._images_with_detections = 0

    def __len__(self) -> int:
        return len(self._images)

    def add(self, file_name: str, size_wh: tuple[int, int], found: Detections) -> None:
        """Add the detections of one image or frame, in its pixels."""
        image_id = len(self._images) + 1
        self._images.append(
            {'id': image_id, 'file_name': file_name, 'width': size_wh[0], 'height': size_wh[1]}
        )
        ids = range(1, len(self._class_names) + 1)
        for row in coco_rows(image_id, with_run_lengths(found), ids):
            width, height = row.get('oriented_bbox', row['bbox'])[2:4]
            area = round(width * height, 4)
            if found.masks is not None:
                area = decode_counts(row['segmentation']['counts'])[1::2].sum().item()
            if 'keypoints' in row:
                row['num_keypoints'] = len(row['keypoint_scores'])
            self._rows.append({'id': len(self._rows) + 1, **row, 'area': area, 'iscrowd': 0})
        self._counts.update(self._class_names[class_id] for class_id in found.class_ids)
        self._images_with_detections += bool(len(found))

    def dataset(self) -> dict[str, Any]:
        """Return what COCO calls a dataset; each annotation also has a score."""
        return {
            'info': self._info,
            'images': self._images,
            'categories': [
                {'id': id_, 'name': name, **self._task.coco_category()}
                for id_, name in enumerate(self._class_names, 1)
            ],
            'annotations': self._rows,
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return the detections in COCO's results format; ids are those of ``dataset``."""
        left_out = ['id', 'area', 'iscrowd', 'num_keypoints']
        if not self._task.has_masks:
            left_out.append('segmentation')  # corners of oriented boxes are no run lengths
        return [
            {key: value for key, value in row.items() if key not in left_out} for row in self._rows
        ]

    def summary(self) -> dict[str, Any]:
        """Return counts; classes by how often they were found."""
        return {
            'images': len(self._images),
            'images_with_detections': self._images_with_detections,
            'detections': len(self._rows),
            'classes': dict(self._counts.most_common()),
        }


def write_image(
    path: Path,
    bgr: _Image,
    found: Detections,
    class_names: Sequence[str],
    task: Task = DETECT,
) -> None:
    """Draw detections and write the image whole or not at all.

    Args:
        path: its suffix says the format; its folder is made.
        bgr: uint8 (height, width, 3), BGR; it is drawn on.
        found: in its pixels.
        class_names: of the model.
        task: of the model; it draws.

    Raises:
        ConfigError: its folder cannot be made.
        WriteError: it cannot be written.
    """
    task.draw(bgr, found, class_names)
    suffix = path.suffix.lower()
    options = [] if suffix == '.png' else _JPEG_QUALITY
    content = cv2.imencode(suffix, bgr, options)[1].tobytes()
    make_folder(path.parent)
    write_atomically({path: content}, is_durable=False)


class VideoOutput(contextlib.AbstractContextManager['VideoOutput']):
    """An annotated video, MP4. A file is there only when it is whole.

    Args:
        path: ends in .mp4; its folder is made.
        fps: frames a second.
        class_names: of the model.
        task: of the model; it draws.
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

    def add(self, bgr: _Image, found: Detections) -> None:
        """Draw upon a frame, uint8 (height, width, 3), BGR, and write it.

        Raises:
            ConfigError: this OpenCV cannot write it, or it is of another size than the first.
        """
        size = bgr.shape[1], bgr.shape[0]
        if self._writer is None:
            self._open(size)
        if size != self._size:  # OpenCV leaves such a frame out without a word
            raise ConfigError(
                str(self._path),
                f'{size[0]}x{size[1]}',
                expected=f'all frames to measure {self._size[0]}x{self._size[1]} pixels',
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
                self._check_file()
                self._temporary_path.replace(self._path)
        except OSError as error:
            raise ConfigError(str(self._path), f'cannot be written: {error.strerror}') from error
        finally:
            self._temporary_path.unlink(missing_ok=True)

    def _check_file(self) -> None:
        """Read the file again: OpenCV says nothing of a disk that is full."""
        found = _count_frames(self._temporary_path, self._written)
        if found < self._written:
            free = shutil.disk_usage(self._path.parent).free / 1e6
            raise ConfigError(
                f'{self._path}: could not be written whole',
                f'{found}, reading it again; {free:.0f} MB are free there',
                expected=f'{self._written} frames',
                fix='free some space, lift a quota or limit on the size of files, or give '
                '--no-pictures to '
                'leave videos out',
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
                f'({cv2.__version__}) writes '
                'no MP4',
                fix='--no-pictures leaves videos out',
            )
        self._writer, self._size = writer, size_wh


def _count_frames(path: Path, max_count: int) -> int:
    """Return how many frames of a video can be decoded, ``max_count`` at most."""
    capture = cv2.VideoCapture(str(path))
    try:
        count = 0
        while count < max_count and capture.grab():
            count += 1
        return count
    finally:
        capture.release()


def _temporary_path(path: Path) -> Path:
    """Return a hidden name next to the target, with its suffix, which says the format."""
    return path.with_name(f'.{os.getpid()}.{path.name}')
