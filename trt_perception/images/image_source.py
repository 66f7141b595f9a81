# SPDX-License-Identifier: Apache-2.0
"""Read images from a folder, a glob pattern, an image file, a video file or a bag."""

from __future__ import annotations

import functools
import glob
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.errors import ConfigError, ImageError
from trt_perception.files.natural_order import natural_key
from trt_perception.images.bag_images import (
    IMAGE_SUFFIXES,
    bag_losses,
    check_bag_images,
    decode_bag_images,
    find_bag_images,
    is_bag_source,
    is_image_name,
)
from trt_perception.images.bag_selection import ALL_IMAGES, BagSelection
from trt_perception.images.compressed import check_image_size
from trt_perception.images.image_files import read_image_file

VIDEO_SUFFIXES: Final = ('.mp4', '.avi', '.mkv', '.mov', '.webm', '.mpg', '.mpeg', '.m4v')

_EXPECTED_SOURCE: Final = (
    f'a folder, pattern or file of images ({", ".join(IMAGE_SUFFIXES)}), a video '
    f'({", ".join(VIDEO_SUFFIXES)}) or a bag of ROS 2 (a folder, .mcap or .db3)'
)


def find_images(
    source: str | Path, *, subfolders: bool = False, selection: BagSelection = ALL_IMAGES
) -> list[Path]:
    """Return the image files of a folder, a glob pattern or a file path, in natural order.

    For a bag, return the paths of its images, which ``read_image_file`` reads.

    Args:
        source: a folder, a glob pattern, or a file. ``**`` in a pattern matches all subfolders
            except links.
        subfolders: also return files in subfolders of a folder, except hidden ones.
        selection: which images of a bag are used.

    Raises:
        ConfigError: the source does not exist or has no images. The message says which.
    """
    path = Path(os.path.expanduser(source))
    if is_bag_source(path):
        return find_bag_images(path, selection)
    # Unlike os.path.isdir, Path.is_dir raises an exception for too long names.
    if os.path.isdir(path):
        found = _visible_paths_below(path) if subfolders else list(path.iterdir())
        what = 'this folder contains'
    elif os.path.isfile(path):
        found, what = [path], 'by its suffix, this file is'
    else:
        found = _paths_matching(path)
        if not found:
            missing = 'no file matches' if glob.has_magic(str(path)) else 'does not exist'
            raise ConfigError(str(source), missing, fix=f'give {_EXPECTED_SOURCE}')
        what = 'this pattern matches'
    images = [f for f in found if is_image_name(f) and not f.is_dir()]
    if not images:
        others = '' if path.is_file() else f' ({len(found)} other files)'
        raise ConfigError(str(source), f'{what} no image{others}', fix=f'give {_EXPECTED_SOURCE}')
    return sorted(images, key=natural_key)


def skipped_image_folders(source: str) -> list[str]:
    """Return the names of subfolders with images, which ``find_images`` skips by default.

    Args:
        source: the argument of ``find_images``. Patterns and files have no subfolders.

    Raises:
        OSError: a subfolder cannot be read.
    """
    root = os.path.expanduser(source)
    if not os.path.isdir(root):
        return []
    with os.scandir(root) as entries:
        folders = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith('.'))
    return [
        name
        for name in folders
        if any(f.lower().endswith(IMAGE_SUFFIXES) for f in os.listdir(os.path.join(root, name)))
    ]


def _visible_paths_below(folder: Path, pattern: str = '**/*') -> list[Path]:
    """Return all files and folders below a folder, except hidden ones."""
    below = ((path, path.relative_to(folder).parts) for path in folder.glob(pattern))
    return [path for path, parts in below if not any(part.startswith('.') for part in parts)]


def _paths_matching(pattern: Path) -> list[Path]:
    """Return the files and folders that match a pattern. Unlike glob, links are not followed."""
    parts = pattern.parts
    fixed = list(itertools.takewhile(lambda part: not glob.has_magic(part), parts))
    rest = list(parts[len(fixed) :])
    if rest and rest[-1] == '**':
        rest.append('*')
    return _visible_paths_below(Path(*fixed), '/'.join(rest)) if rest else []


@dataclass(frozen=True)
class ImageSource:
    """All images of one source.

    Attributes:
        on_unreadable: called with the error message for each image that cannot be decoded. The
            image is then skipped. If None, such an image raises an error.
        selection: which images of a bag are used.
    """

    source: str
    on_unreadable: Callable[[str], None] | None = None
    selection: BagSelection = ALL_IMAGES

    def __post_init__(self) -> None:
        if self._is_bag:
            check_bag_images(Path(os.path.expanduser(self.source)), self.selection)
        elif not self._is_video:
            find_images(self.source)

    @property
    def _is_bag(self) -> bool:
        return is_bag_source(self.source)

    @property
    def _is_video(self) -> bool:
        path = Path(os.path.expanduser(self.source))
        return os.path.isfile(path) and path.suffix.lower() in VIDEO_SUFFIXES

    def __iter__(self) -> Iterator[tuple[str, npt.NDArray[np.uint8]]]:
        """Yield a name and the image: uint8 (height, width, 3), BGR.

        Raises:
            ConfigError: a file or message cannot be decoded, or a part of a bag is damaged.
        """
        if self._is_video:
            yield from self._video_frames()
            return
        if self._is_bag:
            images = decode_bag_images(Path(os.path.expanduser(self.source)), self.selection)
        else:
            paths = find_images(self.source)
            images = ((path, functools.partial(read_image_file, path)) for path in paths)
        for path, read in images:
            try:
                bgr = read()
            except ImageError as error:
                if self.on_unreadable is None:
                    raise ConfigError(
                        error.subject, error.found, expected=error.expected, fix=error.fix
                    ) from error
                self.on_unreadable(str(error))
                continue
            yield path.name, bgr
        for loss in bag_losses(self.source):
            if self.on_unreadable is None:
                raise ConfigError(self.source, f'damaged bag: {loss}', fix='use another bag')
            self.on_unreadable(loss)

    def _video_frames(self) -> Iterator[tuple[str, npt.NDArray[np.uint8]]]:
        path = Path(os.path.expanduser(self.source))
        video = cv2.VideoCapture(str(path))
        try:
            size_wh = _declared_video_size(video, path)
            index = 0
            while True:
                more, bgr = video.read()
                if not more:
                    break
                height, width = bgr.shape[:2]
                if size_wh not in (
                    (width, height),
                    (height, width),
                ):  # a phone's video may declare the size before rotation
                    raise ConfigError(
                        str(path),
                        f'damaged video: frame {index} measures {width}x{height}, the file says '
                        f'{size_wh[0]}x{size_wh[1]}',
                    )
                yield f'{path.name}#{index:06d}', bgr.astype(np.uint8, copy=False)
                index += 1
        finally:
            video.release()
        if not index:
            raise ConfigError(str(path), 'cannot be decoded as a video')


def _declared_video_size(video: cv2.VideoCapture, path: Path) -> tuple[int, int]:
    """Return the width and height that a video declares, and check them. Decode no frame."""
    if not video.isOpened():
        raise ConfigError(str(path), 'cannot be decoded as a video')
    width = int(video.get(cv2.CAP_PROP_FRAME_WIDTH))
    height = int(video.get(cv2.CAP_PROP_FRAME_HEIGHT))
    try:
        check_image_size(width, height)
    except ImageError as error:
        raise ConfigError(str(path), str(error)) from error
    return width, height
