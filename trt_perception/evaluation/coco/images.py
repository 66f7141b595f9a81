"""Which image file belongs to which annotated image, and reading it as it was annotated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ConfigError, ImageError
from trt_perception.evaluation.coco.annotations import Annotations, CocoImage
from trt_perception.files.plain_text import join_first
from trt_perception.images.image_files import read_image_file

__all__ = ['match_images', 'read_image']

_MAX_LISTED: Final = 3
_MAX_PATH_PARTS: Final = 8
_Image = npt.NDArray[np.uint8]


def match_images(
    annotations: Annotations, images: Sequence[Path], *, allow_missing: bool = False
) -> list[tuple[CocoImage, Path]]:
    """Find the file of each annotated image.

    A file belongs to an image where its path ends as the image's ``file_name``; where none does,
    the bare name decides, because annotations often keep folders that did not move along.

    Args:
        annotations: in whose order the result is.
        images: files; those that nobody annotated are left out.
        allow_missing: leave annotated images without a file out too.

    Raises:
        ConfigError: an image has no file, or several; how many, and examples.
    """
    files_by_end: dict[int, dict[tuple[str, ...], list[Path]]] = {1: _files_by_path_end(images, 1)}
    pairs, missing = [], []
    for image in annotations.images:
        parts = tuple(p for p in PurePosixPath(image.file_name).parts if p not in ('/', '.'))
        # Thousands of folders may each have a 000001.jpg.
        count = max(1, min(len(parts), _MAX_PATH_PARTS))
        if count not in files_by_end:
            files_by_end[count] = _files_by_path_end(images, count)
        near = files_by_end[count].get(parts[-count:], [])
        found = [path for path in near if path.parts[-len(parts) :] == parts]
        found = found or files_by_end[1].get(parts[-1:], [])
        if len(found) > 1:
            raise ConfigError(
                str(annotations.path),
                f'image {image.file_name!r} may be any of {found[0]} and {found[1]}',
                fix='give the folder that its file_name starts from',
            )
        if found:
            pairs.append((image, found[0]))
        else:
            missing.append(image.file_name)
    if missing and (not pairs or not allow_missing):
        raise _missing_files_error(annotations, images, missing)
    return pairs


def _files_by_path_end(images: Sequence[Path], count: int) -> dict[tuple[str, ...], list[Path]]:
    """Return files by the last parts of their paths."""
    found: dict[tuple[str, ...], list[Path]] = {}
    for path in images:
        found.setdefault(path.parts[-count:], []).append(path)
    return found


def read_image(path: Path, size_wh: tuple[int, int] | None = None) -> _Image:
    """Decode an image file.

    Cameras write which way is up next to the pixels. Some annotation tools follow that and some do
    not, so the image is turned as its annotated size says, and upright where nothing says.

    Args:
        path: the file.
        size_wh: the annotated size in pixels, None where it is not known.

    Returns:
        uint8 (height, width, 3), BGR.

    Raises:
        ImageError: it is not an image, is cut off, or of another size.
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
        fix='use the annotated image in its annotated size',
    )


def _missing_files_error(
    annotations: Annotations, images: Sequence[Path], missing: Sequence[str]
) -> ConfigError:
    total = len(annotations.images)
    if len(missing) < total:
        return ConfigError(
            str(annotations.path),
            f'{len(missing)} of the {total} images in it have no file: '
            f'{join_first(missing, _MAX_LISTED)}',
            fix='add them, or give evaluate_engine --allow-missing',
        )
    there = join_first([path.name for path in images], _MAX_LISTED)
    return ConfigError(
        str(annotations.path),
        f'none of the {total} images in it has a file: it names '
        f'{join_first(missing, _MAX_LISTED)}, the {len(images)} files given are {there}',
        fix='give the folder of the annotated images',
    )
