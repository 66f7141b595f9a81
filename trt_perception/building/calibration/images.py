"""Choose the images that a model is calibrated with, say which they were, and read them once.

Guarantees: the same files, limit and seed give the same choice on every machine; a file that
cannot be decoded whole is an error that names it, never left out silently.
Non-guarantee: that the images look like what the robot sees; nobody but the user knows that.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.building.report import StepProgress
from trt_perception.errors import ConfigError, ImageError
from trt_perception.files.regular_files import read_user_file
from trt_perception.images.frame import frame_from_bgr
from trt_perception.images.image_files import MAX_BYTES, read_image_file
from trt_perception.images.image_source import find_images
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.stages.host_preprocess import HostPreprocessor

__all__ = ['CalibrationImages', 'ImageSet', 'find_image_files', 'read_image', 'select_images']

#: With fewer, a range is what a few scenes happened to show: refused.
MIN_IMAGES: Final = 8
#: Below this a warning; docs/calibration.md shows what more images change.
USUAL_MIN_IMAGES: Final = 100

_LIST_SUFFIXES: Final = ('.txt', '.lst', '.list')
_THUMBNAIL_SIZE: Final = (32, 32)
# In grey levels, of 255: noise and JPEG change less than this between two takes of one scene.
_MIN_DIFFERENCE: Final = 2.0
_MIN_CONTRAST: Final = 2.0


@dataclass(frozen=True)
class ImageSet:
    """Which images were chosen, in the order they are used.

    Attributes:
        source: what the user named.
        paths: the chosen files.
        found: how many images there were to choose from.
        limit: how many were wanted at most.
        seed: of the choice.
        sha256: over the contents of the chosen files, in order; not over their names.
    """

    source: str
    paths: tuple[Path, ...]
    found: int
    limit: int
    seed: int
    sha256: str

    def as_dict(self) -> dict[str, Any]:
        """Return what the report and the manifest say; no single paths."""
        content = asdict(self)
        content['used'] = len(content.pop('paths'))
        return content


def select_images(source: str | Path, limit: int = 300, seed: int = 0) -> ImageSet:
    """Find images and choose at most ``limit`` of them.

    Args:
        source: a folder, read with all its subfolders (hidden ones left out); a glob pattern, in
            which ``**`` stands for any subfolders; a text file with one path a line, relative to
            the file, ``#`` before a comment; or one image.
        limit: how many to use at most.
        seed: where there are more, which are drawn. Files are sorted naturally (img2 before
            img10) before and after drawing.

    Raises:
        ConfigError: nothing is found, or a listed file is missing, too large, or not readable.
    """
    found = find_image_files(source)
    chosen = found
    if len(found) > limit:
        chosen = sorted(random.Random(seed).sample(found, limit), key=_natural_key)
    digest = hashlib.sha256()
    for path in chosen:
        digest.update(hashlib.sha256(read_user_file(path, MAX_BYTES)).digest())
    return ImageSet(str(source), tuple(chosen), len(found), limit, seed, digest.hexdigest())


def find_image_files(source: str | Path) -> list[Path]:
    """Return all image files that a source stands for, sorted naturally; see select_images."""
    path = Path(os.path.expanduser(source))
    is_list = os.path.isfile(path) and path.suffix.lower() in _LIST_SUFFIXES
    return sorted(
        _read_list(path) if is_list else find_images(path, subfolders=True), key=_natural_key
    )


def _read_list(path: Path) -> list[Path]:
    try:
        lines = read_user_file(path, MAX_BYTES).decode('utf-8').splitlines()
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
        raise ConfigError(str(path), 'the list names no image', fix='write one path a line')
    return list(dict.fromkeys(found))


def _natural_key(path: Path) -> tuple[list[tuple[int, int, str]], str]:
    """Sort numbers in names by value; the last part decides between ``1`` and ``01``."""
    parts = re.findall(r'[0-9]+|[^0-9]+', str(path))
    return [(0, int(p), '') if p.isdecimal() else (1, 0, p) for p in parts], str(path)


def read_image(path: Path) -> npt.NDArray[np.uint8]:
    """Decode one file: uint8 (height, width, 3), BGR; turned as its EXIF data say.

    Raises:
        ConfigError: it is not an image, it ends before the image does, or it is too large.
    """
    try:
        return read_image_file(path)
    except ImageError as error:
        raise ConfigError(
            error.subject, error.found, expected=error.expected, fix='remove or replace it'
        ) from error


class CalibrationImages:
    """The chosen images as the network takes them, each decoded once and looked at as it passes.

    Args:
        images: the choice.
        preprocessing: as at run time.
        progress: called with how many are done, and of how many.

    Attributes:
        selection: the choice.
        preprocessing: as at run time, to float32.
        progress: as above.
        warnings: one sentence each, complete after the last image.

    Raises:
        ConfigError: fewer than 8 images.
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
                f'{count} of {images.found}, --calibration-count {images.limit}',
                expected=(
                    f'at least {MIN_IMAGES} images to calibrate with, better '
                    f'{USUAL_MIN_IMAGES} or more'
                ),
                fix='give more: ranges taken from fewer fit those images only',
            )
        self.warnings = (
            [f'{count} images are few: {USUAL_MIN_IMAGES} to 500 are usual']
            if count < USUAL_MIN_IMAGES
            else []
        )
        self.selection = images
        self.preprocessing = replace(preprocessing, dtype='float32')
        self.progress = progress

    def __iter__(self) -> Iterator[tuple[Path, npt.NDArray[np.float32]]]:
        """Yield each file and its tensor (1, 3, H, W), valid until the next is taken.

        Raises:
            ConfigError: an image cannot be decoded; after the last one, all are alike or without
                content.
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
        """Refuse images that show nothing, and warn of doubtful ones."""
        count = len(stack)
        spread = float(stack.std(axis=0).mean())
        flat = int((stack.std(axis=(1, 2)).mean(axis=-1) < _MIN_CONTRAST).sum())
        faults = {
            'the same image': different == 1,
            f'alike: their pixels differ by {spread:.1f} of 255 grey levels': spread
            < _MIN_DIFFERENCE,
            'of one colour each': flat == count,
        }
        for fault, found in faults.items():
            if found:
                raise ConfigError(
                    self.selection.source,
                    f'all {count} images are {fault}',
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
