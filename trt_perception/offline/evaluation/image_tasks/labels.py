# SPDX-License-Identifier: Apache-2.0
"""Finds and reads the labels of images: names of folders, or PNG files with a value per pixel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy.typing as npt

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import join_first_items
from trt_perception.images.image_files import read_label_file
from trt_perception.model.tasks.classify import Classify
from trt_perception.model.tasks.depth import Depth
from trt_perception.model.tasks.semantic import Semantic
from trt_perception.model.tasks.task import Task

#: The labels of tasks with a value for each pixel.
_PIXEL_LABELS: Final = {
    Semantic.name: 'class ids (8 or 16 bits)',
    Depth.name: 'millimetres (16 bits)',
}


@dataclass(frozen=True)
class LabelledImage:
    """An image and its label.

    Attributes:
        label: name of the folder with the images of a class, or file with a label for each pixel.
            None without labels.
    """

    path: Path
    label: str | Path | None = None

    def read_label(self, size_wh: tuple[int, int]) -> str | npt.NDArray[Any] | None:
        """Return the name of the folder, or pixel labels: uint8 or uint16 (height, width).

        Args:
            size_wh: width and height of the image in pixels.

        Raises:
            ImageError: the file cannot be read.
            ConfigError: the label has another size than the image.
        """
        if not isinstance(self.label, Path):
            return self.label
        values = read_label_file(self.label)
        if values.shape != size_wh[::-1]:
            raise ConfigError(
                str(self.label),
                f'{values.shape[1]}x{values.shape[0]} pixels',
                expected=f'{size_wh[0]}x{size_wh[1]}, as {self.path}',
            )
        return values


def find_labels(
    images: Sequence[Path],
    source: str,
    annotations: Path | None,
    task: Task,
    class_names: Sequence[str],
    class_map: Mapping[str, str | None] = MappingProxyType({}),
    *,
    allow_missing: bool = False,
    needs_class_folders: bool = False,
) -> list[LabelledImage]:
    """Find the labels of images for a task that describes the whole image.

    Args:
        annotations: folder of the label files. None for classifiers, whose labels are the names of
            the images' folders. None for other tasks means that there are no labels.
        class_map: see ``folder_labels``.
        allow_missing: whether to leave out images without a label.
        needs_class_folders: see ``required`` of ``folder_labels``.

    Returns:
        The images with labels, or all images without labels.

    Raises:
        ConfigError: the labels do not fit the task or the images.
    """
    if isinstance(task, Classify):
        if annotations is not None:
            raise ConfigError(
                '--annotations',
                f'has no effect on models with task {task.name}',
                fix='leave it out: the labels are the names of the folders of the images',
            )
        return folder_labels(images, class_names, class_map, required=needs_class_folders)
    if annotations is None:
        return [LabelledImage(path) for path in images]
    if not annotations.is_dir():
        expected = f'a folder with a PNG for each image, with {_PIXEL_LABELS[task.name]}'
        raise ConfigError(f'--annotations {annotations}', 'not a folder', expected=expected)
    root = Path(source).expanduser()
    return label_files(images, root, annotations, allow_missing=allow_missing)


def folder_labels(
    images: Sequence[Path],
    class_names: Sequence[str],
    class_map: Mapping[str, str | None],
    *,
    required: bool = False,
) -> list[LabelledImage]:
    """Label each image with the name of its folder, if folders are named after classes.

    Args:
        class_map: maps a class name to the name of its folder, if the names differ, or to None if
            the class has no images.
        required: whether several folders must have the names of classes.

    Returns:
        images with labels; without labels if no folder has the name of a class.

    Raises:
        ConfigError: only some folders are named after classes, or required names are missing.
    """
    known = {class_map.get(name, name) for name in class_names}
    folders = {path.parent.name for path in images}
    unknown = sorted(folders - known)
    if unknown and (len(unknown) < len(folders) or (required and len(folders) > 1)):
        raise ConfigError(
            '--images',
            f'folders without a class of the model: {join_first_items(unknown)}',
            expected=f'names of classes: {join_first_items(class_names)}',
            fix='rename or remove these folders, or map class names to folders with --class-map',
        )
    return [LabelledImage(path, None if unknown else path.parent.name) for path in images]


def label_files(
    images: Sequence[Path], root: Path, folder: Path, *, allow_missing: bool
) -> list[LabelledImage]:
    """Find the label of each image: a PNG with the image's name, in the same subfolder.

    Args:
        root: the folder of the images. Images elsewhere have their labels directly in ``folder``.
        allow_missing: whether to leave out images without a label.

    Raises:
        ConfigError: images have no label.
    """
    found, missing = [], []
    for path in images:
        place = path.relative_to(root) if path.is_relative_to(root) else Path(path.name)
        label = folder / place.with_suffix('.png')
        if label.is_file():
            found.append(LabelledImage(path, label))
        else:
            missing.append(str(label))
    if missing and (not found or not allow_missing):
        raise ConfigError(
            f'--annotations {folder}',
            f'{len(missing)} of {len(images)} images have no label: {join_first_items(missing)}',
            fix='add the files' + (', or give --allow-missing' if found else ''),
        )
    return found
