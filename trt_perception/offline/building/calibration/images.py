# SPDX-License-Identifier: Apache-2.0
"""Select images for calibration, record the selection, and read each image once.

Guarantees: the same files, limit and seed give the same selection on every machine. A file that
cannot be decoded completely raises an error with its name; no file is skipped silently.
Limitation: only the user knows whether the images resemble the camera's images.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.errors import ConfigError, ImageError
from trt_perception.files.natural_order import natural_key
from trt_perception.files.regular_files import read_user_file
from trt_perception.images.bag_selection import ALL_IMAGES, BagSelection
from trt_perception.images.frame import frame_from_bgr
from trt_perception.images.image_files import (
    MAX_IMAGE_FILE_BYTES,
    read_image_bytes,
    read_image_file,
)
from trt_perception.images.image_source import find_images
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.offline.building.report import StepProgress
from trt_perception.stages.host_preprocess import HostPreprocessor

#: Fewer images are refused, because the ranges would fit only these few scenes.
MIN_IMAGES: Final = 8
#: Fewer images give a warning. docs/calibration.md shows the effect of more images.
USUAL_MIN_IMAGES: Final = 100

_LIST_SUFFIXES: Final = ('.txt', '.lst', '.list')
_THUMBNAIL_SIZE: Final = (32, 32)
# Minimum standard deviation in grey levels (0 to 255), between images and within one image. Two
# photos of one scene differ by less, because of noise and JPEG compression.
_MIN_DIFFERENCE: Final = 2.0
_MIN_CONTRAST: Final = 2.0


@dataclass(frozen=True)
class ImageSet:
    """A selection of images.

    Attributes:
        paths: the selected files, in the order of use.
        found: number of images in ``source`` before the selection.
        sha256: hash of the contents of the selected files in order, without their names.
    """

    source: str
    paths: tuple[Path, ...]
    found: int
    limit: int
    seed: int
    sha256: str

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for report and manifest, with the number of files instead of paths."""
        content = asdict(self)
        content['used'] = len(content.pop('paths'))
        return content


def select_images(
    source: str | Path,
    limit: int = 300,
    seed: int = 0,
    selection: BagSelection = ALL_IMAGES,
) -> ImageSet:
    """Find the images of a source, and select at most ``limit`` of them at random.

    Args:
        source: one of these: a folder, including subfolders that are not hidden; a glob pattern,
            in which ``**`` stands for any subfolders; a text file with one path on each line,
            relative to the file, and comments after ``#``; one image; or a bag.
        seed: seed of the random selection. Files are in natural order (img2 before img10) before
            and after the selection.
        selection: which images of a bag are used.

    Raises:
        ConfigError: no image is found, or a listed file is missing, too large, or not readable.
    """
    found = find_image_files(source, selection)
    chosen = found
    if len(found) > limit:
        chosen = sorted(random.Random(seed).sample(found, limit), key=natural_key)
    digest = hashlib.sha256()
    for path in chosen:
        digest.update(hashlib.sha256(read_image_bytes(path)).digest())
    return ImageSet(str(source), tuple(chosen), len(found), limit, seed, digest.hexdigest())


def find_image_files(source: str | Path, selection: BagSelection = ALL_IMAGES) -> list[Path]:
    """Return all image files of a source in natural order. ``select_images`` explains sources."""
    path = Path(os.path.expanduser(source))
    is_list = os.path.isfile(path) and path.suffix.lower() in _LIST_SUFFIXES
    if is_list:
        return sorted(_read_list(path), key=natural_key)
    return find_images(path, subfolders=True, selection=selection)


def _read_list(path: Path) -> list[Path]:
    try:
        lines = read_user_file(path, MAX_IMAGE_FILE_BYTES).decode('utf-8').splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), f'a list of images must be UTF-8 text: {error}') from error
    found: list[Path] = []
    for number, line in enumerate(lines, 1):
        name = line.strip()
        if not name or name.startswith('#'):
            continue
        file = path.parent / os.path.expanduser(name)
        if not os.path.isfile(file):
            raise ConfigError(f'{path}, line {number}', f'no such file: {file}')
        found.append(file)
    if not found:
        raise ConfigError(str(path), 'the list names no image', fix='write one path on each line')
    return list(dict.fromkeys(found))


def read_image(path: Path) -> npt.NDArray[np.uint8]:
    """Decode one file to uint8 (height, width, 3) in BGR order, rotated as its EXIF data say.

    Raises:
        ConfigError: the file is not an image, is truncated, or is too large.
    """
    try:
        return read_image_file(path)
    except ImageError as error:
        raise ConfigError(
            error.subject, error.found, expected=error.expected, fix='remove or replace the file'
        ) from error


class CalibrationImages:
    """Iterates over selected images as network inputs, and checks the images.

    Args:
        progress: called with the activity, and the finished and total number of images.

    Attributes:
        preprocessing: the preprocessing at run time, but with float32 output.
        progress: called with the activity, and the finished and total number of images.
        warnings: one sentence each; complete after the last image.

    Raises:
        ConfigError: there are fewer than 8 images.
    """

    def __init__(
        self,
        images: ImageSet,
        preprocessing: Preprocessing,
        progress: StepProgress = lambda *_: None,
    ) -> None:
        count = len(images.paths)
        if count < MIN_IMAGES:
            raise ConfigError(
                images.source,
                f'{count} of {images.found} images, --calibration-count {images.limit}',
                expected=(
                    f'at least {MIN_IMAGES} images for calibration, preferably '
                    f'{USUAL_MIN_IMAGES} or more'
                ),
                fix='give more images, because ranges would fit only these images',
            )
        self.warnings = (
            [f'few images ({count}): {USUAL_MIN_IMAGES} to 500 are usual']
            if count < USUAL_MIN_IMAGES
            else []
        )
        self.selection = images
        self.preprocessing = replace(preprocessing, dtype='float32')
        self.progress = progress

    def __iter__(self) -> Iterator[tuple[Path, npt.NDArray[np.float32]]]:
        """Yield each file with its tensor (1, 3, H, W), which the next step overwrites.

        Raises:
            ConfigError: an image cannot be decoded. After the last image: all images are alike or
                have no content.
        """
        preprocess = HostPreprocessor(self.preprocessing)
        count = len(self.selection.paths)
        thumbnails, digests, small = [], set(), 0
        for done, path in enumerate(self.selection.paths):
            self.progress('calibrating', done, count)
            bgr = read_image(path)
            height, width = bgr.shape[:2]
            input_width, input_height = self.preprocessing.input_size
            small += width < input_width / 2 and height < input_height / 2
            digests.add(hashlib.sha256(bgr.tobytes()).digest())
            thumbnails.append(cv2.resize(bgr, _THUMBNAIL_SIZE, interpolation=cv2.INTER_AREA))
            yield path, preprocess(frame_from_bgr(bgr))[0]
        self.progress('calibrating', count, count)
        self._check_variety(np.stack(thumbnails).astype(np.float32), len(digests), small)

    def _check_variety(self, stack: npt.NDArray[np.float32], different: int, small: int) -> None:
        """Refuse images that are alike or have no content, and warn of doubtful images."""
        count = len(stack)
        spread = float(stack.std(axis=0).mean())
        flat = int((stack.std(axis=(1, 2)).mean(axis=-1) < _MIN_CONTRAST).sum())
        problems = {
            'the same image': different == 1,
            f'alike: their pixels differ by {spread:.1f} of 255 grey levels': spread
            < _MIN_DIFFERENCE,
            'of one colour each': flat == count,
        }
        for problem, found in problems.items():
            if found:
                raise ConfigError(
                    self.selection.source,
                    f'all {count} images are {problem}',
                    fix='use images of different scenes',
                )
        input_size = 'x'.join(map(str, self.preprocessing.input_size))
        doubtful = {
            'copies of others': count - different,
            'of one colour': flat,
            f'less than half as large as the network input ({input_size}): thumbnails have other '
            'ranges than camera images': small,
        }
        self.warnings += [f'{n} of {count} images are {what}' for what, n in doubtful.items() if n]
