# SPDX-License-Identifier: Apache-2.0
"""Finds the sources of detect_images and checks its output files before the work starts."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cv2

from trt_perception.errors import ConfigError
from trt_perception.files.regular_files import real_path
from trt_perception.images.bag_selection import ALL_IMAGES, BagSelection
from trt_perception.images.image_source import VIDEO_SUFFIXES, find_images

DETECTIONS_FILE: Final = 'detections.json'
RESULTS_FILE: Final = 'results.json'
SUMMARY_FILE: Final = 'summary.json'
#: Folder of class or depth maps, in the output folder.
MAPS_FOLDER: Final = 'maps'
# Images of other formats are written as PNG, because not every OpenCV can write these formats.
_KEPT_IMAGE_SUFFIXES: Final = ('.jpg', '.jpeg', '.png')
#: Images per second of a folder, and of a video that does not state its rate.
DEFAULT_FPS: Final = 30.0


@dataclass(frozen=True)
class VideoFile:
    """A video file.

    Attributes:
        fps: frames per second; 30 if the file does not contain a rate.
        frames: number of frames according to the file; 0 if unknown.
    """

    path: Path
    fps: float
    frames: int


@dataclass(frozen=True)
class DetectionPlan:
    """Sources and output files of one run.

    Attributes:
        images: name in the results and path of each image.
        videos: name in the results and description of each video.
        targets: maps a source's name to the path of its annotated image or video; empty with
            ``--no-pictures``.
    """

    folder: Path
    images: tuple[tuple[str, Path], ...]
    videos: tuple[tuple[str, VideoFile], ...]
    targets: dict[str, Path]

    @property
    def total_images(self) -> int:
        """Number of images and frames; 0 if the length of a video is unknown."""
        frames = [video.frames for _, video in self.videos]
        return len(self.images) + sum(frames) if all(frames) else 0


def make_plan(
    sources: Sequence[str],
    folder: Path,
    *,
    draw: bool,
    overwrite: bool,
    selection: BagSelection = ALL_IMAGES,
) -> DetectionPlan:
    """Find the sources, and check that no existing file is replaced by mistake.

    The name of a source is its path relative to the folder that all sources have in common. The
    annotated file has this path below ``folder``.

    Args:
        folder: output folder; may be missing.
        selection: which images of bags are used.

    Raises:
        ConfigError: a source has no images, or an output file exists.
    """
    found = (path for source in sources for path in _find_files(source, selection))
    files = list(dict.fromkeys(Path(os.path.abspath(path)) for path in found))
    common = os.path.commonpath([file.parent for file in files])
    named = [(Path(os.path.relpath(file, common)).as_posix(), file) for file in files]
    images = [(name, file) for name, file in named if not _is_video(file)]
    videos = [(name, _open_video(file)) for name, file in named if _is_video(file)]
    targets = {name: folder / (name + _added_suffix(file)) for name, file in named} if draw else {}
    _check_targets(folder, [*targets.values()], [file for _, file in named], overwrite)
    return DetectionPlan(folder, tuple(images), tuple(videos), targets)


def plan_map_files(plan: DetectionPlan, *, overwrite: bool) -> dict[str, Path]:
    """Return the file of each image's map: its name with the suffix ``.png``, below ``maps``.

    Raises:
        ConfigError: two maps would have one name, or a file exists.
    """
    files: dict[Path, str] = {}
    for name, _ in plan.images:
        path = (plan.folder / MAPS_FOLDER / name).with_suffix('.png')
        if path in files:
            raise ConfigError(
                '--source',
                f'{files[path]} and {name}, whose maps would have one name',
                fix='run the tool once for each of them',
            )
        files[path] = name
    _check_targets(plan.folder, [*files], [path for _, path in plan.images], overwrite)
    return {name: path for path, name in files.items()}


def _find_files(source: str, selection: BagSelection) -> Iterator[Path]:
    path = Path(os.path.expanduser(source))
    if os.path.isfile(path) and _is_video(path):
        yield path
    else:
        yield from find_images(source, selection=selection)


def _is_video(path: Path) -> bool:
    return path.suffix.lower() in VIDEO_SUFFIXES


def _added_suffix(path: Path) -> str:
    """Return the suffix to append to a file's name, so that names of output files stay unique."""
    if _is_video(path):
        return '' if path.suffix == '.mp4' else '.mp4'
    return '' if path.suffix.lower() in _KEPT_IMAGE_SUFFIXES else '.png'


def _open_video(path: Path) -> VideoFile:
    capture = cv2.VideoCapture(str(path))
    try:
        if not capture.isOpened():
            raise ConfigError(str(path), 'cannot be decoded as a video')
        fps, frames = capture.get(cv2.CAP_PROP_FPS), capture.get(cv2.CAP_PROP_FRAME_COUNT)
    finally:
        capture.release()
    is_usable = math.isfinite(fps) and 0 < fps <= 1000
    return VideoFile(path, fps if is_usable else DEFAULT_FPS, int(max(0, min(frames, 2**31))))


def _check_targets(
    folder: Path, targets: Sequence[Path], sources: Sequence[Path], overwrite: bool
) -> None:
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f'--output {folder}', 'a file', expected='a folder')
    source_paths = {real_path(source) for source in sources}
    output_files = [
        *targets,
        *(folder / name for name in (DETECTIONS_FILE, RESULTS_FILE, SUMMARY_FILE)),
    ]
    for target in output_files:
        if real_path(target) in source_paths:
            raise ConfigError(
                str(target),
                'is a source that the output would overwrite',
                fix='choose another --output',
            )
    existing = [target for target in output_files if os.path.lexists(target)]
    if existing and not overwrite:
        raise ConfigError(
            f'--output {folder}',
            f'{len(existing)} of the output files exist already, such as {existing[0]}',
            fix='choose another folder, or replace the files with --overwrite',
        )
