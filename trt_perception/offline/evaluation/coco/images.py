# SPDX-License-Identifier: Apache-2.0
"""Finds the files of annotated images, and reads images in their annotated orientation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ConfigError, ImageError
from trt_perception.files.plain_text import join_first_items
from trt_perception.images.image_files import read_image_file
from trt_perception.offline.evaluation.coco.annotations import Annotations, CocoImage

_MAX_LISTED: Final = 3
_MAX_PATH_PARTS: Final = 8
_Image = npt.NDArray[np.uint8]


def match_images(
    annotations: Annotations, images: Sequence[Path], *, allow_missing: bool = False
) -> list[tuple[CocoImage, Path]]:
    """Find the file of each annotated image.

    A file belongs to an image if its path ends with the ``file_name`` of the image. If there is no
    such file, folders are ignored, because annotations often name folders that were not copied.

    Args:
        annotations: the annotated images. The result has their order.
        images: image files. Files that the annotations do not list are skipped.
        allow_missing: whether to skip annotated images that have no file.

    Raises:
        ConfigError: images have no file; the message gives their number and examples. Or an image
            has several files; the message names two of them.
    """
    files_by_end: dict[int, dict[tuple[str, ...], list[Path]]] = {1: _files_by_path_end(images, 1)}
    pairs, missing = [], []
    for image in annotations.images:
        parts = tuple(p for p in PurePosixPath(image.file_name).parts if p not in ('/', '.'))
        # Compare several path parts, because thousands of folders may have a 000001.jpg.
        count = max(1, min(len(parts), _MAX_PATH_PARTS))
        if count not in files_by_end:
            files_by_end[count] = _files_by_path_end(images, count)
        candidates = files_by_end[count].get(parts[-count:], [])
        found = [path for path in candidates if path.parts[-len(parts) :] == parts]
        found = found or files_by_end[1].get(parts[-1:], [])
        if len(found) > 1:
            raise ConfigError(
                str(annotations.path),
                f'image {image.file_name!r} fits both {found[0]} and {found[1]}',
                fix='give the folder to which this file_name is relative',
            )
        if found:
            pairs.append((image, found[0]))
        else:
            missing.append(image.file_name)
    if missing and (not pairs or not allow_missing):
        raise _missing_files_error(annotations, images, missing)
    return pairs


def _files_by_path_end(images: Sequence[Path], count: int) -> dict[tuple[str, ...], list[Path]]:
    """Return the files grouped by the last ``count`` parts of their paths."""
    found: dict[tuple[str, ...], list[Path]] = {}
    for path in images:
        found.setdefault(path.parts[-count:], []).append(path)
    return found


def read_image(path: Path, size_wh: tuple[int, int] | None = None) -> _Image:
    """Decode an image file in its annotated orientation.

    Cameras store the orientation next to the pixels. Some annotation tools follow this tag and
    others do not, so the annotated size decides. An image of unknown size is turned upright.

    Args:
        size_wh: annotated width and height in pixels; None if unknown.

    Returns:
        uint8 (height, width, 3), BGR.

    Raises:
        ImageError: the file is not an image, is truncated, or has another size.
    """
    sizes = []
    for upright in (True, False):
        bgr = read_image_file(path, upright=upright)
        if size_wh in (None, (bgr.shape[1], bgr.shape[0])):
            return bgr
        sizes.append(f'{bgr.shape[1]}x{bgr.shape[0]}')
    assert size_wh is not None
    raise ImageError(
        'bad_size',
        str(path),
        sizes[0],
        expected=f'{size_wh[0]}x{size_wh[1]} pixels, as annotated',
        fix='use the image at its annotated size',
    )


def _missing_files_error(
    annotations: Annotations, images: Sequence[Path], missing: Sequence[str]
) -> ConfigError:
    total = len(annotations.images)
    if len(missing) < total:
        return ConfigError(
            str(annotations.path),
            f'{len(missing)} of {total} annotated images have no file: '
            f'{join_first_items(missing, _MAX_LISTED)}',
            fix='add the files, or give evaluate_engine --allow-missing',
        )
    there = join_first_items([path.name for path in images], _MAX_LISTED)
    return ConfigError(
        str(annotations.path),
        f'none of the {total} annotated images has a file. The annotations name '
        f'{join_first_items(missing, _MAX_LISTED)}; the given files ({len(images)}) are {there}',
        fix='give the folder of the annotated images',
    )
