# SPDX-License-Identifier: Apache-2.0
"""Open a recording: a folder of rosbag2, or one of its files.

The files of a folder count, not its metadata.yaml: the recorder writes metadata.yaml at its end,
so a killed recorder leaves none. From metadata.yaml come only the numbers of messages in SQLite
files, and the names of files that are missing.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeGuard

from trt_perception.bags.bag import BagLoss
from trt_perception.bags.damage import DamageError
from trt_perception.bags.decompress import decompress_file
from trt_perception.bags.file_bag import FileBag
from trt_perception.bags.mcap_file import McapFile
from trt_perception.bags.metadata import METADATA_NAME
from trt_perception.bags.parts import BagFile
from trt_perception.bags.sqlite_file import SqliteFile
from trt_perception.errors import ConfigError
from trt_perception.files.natural_order import natural_key
from trt_perception.files.plain_text import join_first_items, name_mistake
from trt_perception.files.regular_files import read_regular
from trt_perception.files.yaml_text import MAX_YAML_BYTES, read_yaml

_READERS: Final[Mapping[str, Callable[[Path, str], BagFile]]] = {
    '.mcap': McapFile,
    '.db3': SqliteFile,
}
_COMPRESSED: Final = '.zstd'
_ROS_1: Final = '.bag'
# A day of recording in files of 10 s has 8640.
_MAX_FILES: Final = 20_000
_EXPECTED: Final = 'a folder of rosbag2, or a file .mcap or .db3 (also with .zstd)'


def storage_suffix(path: Path) -> str:
    """Return ``.mcap`` or ``.db3`` for the name of a file of a bag, else an empty text."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if suffixes[-1:] == [_COMPRESSED]:
        suffixes.pop()
    last = suffixes[-1] if suffixes else ''
    return last if last in _READERS else ''


def is_bag(path: Path) -> bool:
    """Return whether a path looks like a bag: by its suffix, or by the files of a folder.

    Also true for bags of ROS 1, which `open_bag` refuses with an explanation.
    """
    if os.path.isdir(path):
        return bool(_bag_files(path))
    return os.path.isfile(path) and bool(storage_suffix(path) or path.suffix.lower() == _ROS_1)


def open_bag(path: str | Path) -> FileBag:
    """Open a bag for reading.

    Files that are compressed as a whole are first decompressed to the temporary folder (TMPDIR).

    Args:
        path: a folder of rosbag2 with files .mcap or .db3, or one such file.

    Raises:
        ConfigError: it does not exist, is no bag, nothing of it can be read, a package is not
            installed, or the disk has no space for decompressed files.
    """
    given = Path(os.path.expanduser(path))
    is_folder = os.path.isdir(given)
    files = _bag_files(given) if is_folder else [given]
    if is_folder:
        _check_storage(given, files)
    else:
        _check_file(given)
    metadata = _read_metadata(given / METADATA_NAME) if is_folder else _Metadata()
    opening = _Opening()
    try:
        for file in files:
            opening.open(file)
        losses = [*opening.losses, *(loss for file in opening.files for loss in file.losses)]
        if losses and not any(file.topics or file.refused for file in opening.files):
            reasons = [f'{loss.file}: {loss.reason}' for loss in losses]
            raise ConfigError(
                str(path),
                f'nothing of this bag can be read: {join_first_items(reasons, 3, "; ")}',
                fix='check that it is a bag of ROS 2, and copy it again',
            )
        losses = opening.all_losses(metadata.files)
        return FileBag(str(path), opening.files, losses, metadata.counts, opening.close)
    except BaseException:
        opening.close()
        raise


@dataclass
class _Opening:
    """The files of a bag, while they are opened in order."""

    files: list[BagFile] = field(default_factory=list)
    losses: list[BagLoss] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    folder: tempfile.TemporaryDirectory[str] | None = None

    def open(self, path: Path) -> None:
        """Open a file, or record why it cannot be read.

        Raises:
            ConfigError: a package is not installed, or the disk has no space.
        """
        self.names.append(path.name)
        reason = ''
        try:
            source = path
            if path.suffix.lower() == _COMPRESSED:
                source, reason = self._decompress(path)
            file: BagFile = _READERS[storage_suffix(path)](source, path.name)
            if reason:
                file.losses.append(BagLoss(path.name, file.end_ns, None, reason))
            self.files.append(file)
        except DamageError as error:
            self.losses.append(BagLoss(path.name, self._end_ns, None, reason or str(error)))

    def _decompress(self, path: Path) -> tuple[Path, str]:
        if self.folder is None:
            try:
                self.folder = tempfile.TemporaryDirectory(prefix='trt_perception_bag_')
            except OSError as error:
                raise ConfigError('the temporary folder', f'cannot be made: {error}') from error
        # Names of files may differ in upper case only, as .zstd and .ZSTD.
        target = Path(self.folder.name) / f'{len(self.names)}{storage_suffix(path)}'
        try:
            return target, decompress_file(path, target)
        except OSError as error:
            raise DamageError(f'cannot be decompressed: {error.strerror}') from error

    @property
    def _end_ns(self) -> int | None:
        ends = [file.end_ns for file in self.files if file.end_ns is not None]
        return max(ends, default=None)

    def all_losses(self, listed: Sequence[str]) -> list[BagLoss]:
        """Return the losses of files that cannot be read, or are listed and missing.

        Their times are those of the files before and after.
        """
        present = {name.removesuffix(_COMPRESSED) for name in self.names}
        reasons = {loss.file: loss.reason for loss in self.losses}
        for name in listed:
            if name.removesuffix(_COMPRESSED) not in present:
                reasons[name] = f'{METADATA_NAME} lists this file, but it is missing'
        losses = []
        for name, reason in reasons.items():
            place = natural_key(Path(name))
            before = [f.end_ns for f in self.files if natural_key(Path(f.name)) < place]
            after = [f.start_ns for f in self.files if natural_key(Path(f.name)) > place]
            start = max((ns for ns in before if ns is not None), default=None)
            end = min((ns for ns in after if ns is not None), default=None)
            losses.append(BagLoss(name, start, end, reason))
        return losses

    def close(self) -> None:
        """Delete the temporary files."""
        if self.folder is not None:
            self.folder.cleanup()
            self.folder = None


def _bag_files(folder: Path) -> list[Path]:
    """Return the files of a bag in natural order. A file replaces its own compressed copy."""
    try:
        found = [path for path in folder.iterdir() if storage_suffix(path) and path.is_file()]
    except OSError as error:
        raise ConfigError(str(folder), f'cannot be read: {error.strerror}') from error
    plain = {path.name for path in found}
    kept = [path for path in found if path.suffix.lower() != _COMPRESSED or path.stem not in plain]
    return sorted(kept, key=natural_key)


def _bag_inside(folder: Path) -> Path | None:
    """Return the first folder with files of a bag in a folder, or None."""
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir(), key=natural_key):
            if path.is_dir() and any(map(storage_suffix, path.iterdir())):
                return path
    return None


def _check_storage(folder: Path, files: Sequence[Path]) -> None:
    kinds = sorted({storage_suffix(file) for file in files})
    if not files:
        fix = ''
        if inner := _bag_inside(folder):
            fix = (
                f'give a bag in this folder, such as {inner}; detect_bag takes several: {folder}/*'
            )
        raise ConfigError(str(folder), 'no file .mcap or .db3', expected=_EXPECTED, fix=fix)
    if len(kinds) > 1:
        raise ConfigError(
            str(folder),
            'files .mcap and .db3, which may hold the same messages',
            expected='files of one storage',
            fix='give one of the files, or move the others to another folder',
        )
    if len(files) > _MAX_FILES:
        raise ConfigError(str(folder), f'{len(files)} files', expected=f'at most {_MAX_FILES}')


def _check_file(path: Path) -> None:
    if not os.path.lexists(path):
        raise ConfigError(str(path), 'does not exist', fix=f'give {_EXPECTED}')
    if path.suffix.lower() == _ROS_1:
        target = path.with_suffix('')
        raise ConfigError(
            str(path),
            'a bag of ROS 1',
            expected='a bag of ROS 2',
            fix='convert it: python3 -m pip install rosbags; '
            f'rosbags-convert --src {path} --dst {target} --dst-storage mcap',
        )
    if not storage_suffix(path):
        fix = f'give the folder {path.parent}' if path.name == METADATA_NAME else ''
        raise ConfigError(str(path), 'another file', expected=_EXPECTED, fix=fix)


@dataclass(frozen=True)
class _Metadata:
    """What is used of metadata.yaml.

    Attributes:
        files: names of the bag's files.
        counts: number of messages by topic.
    """

    files: Sequence[str] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


def _read_metadata(path: Path) -> _Metadata:
    """Read metadata.yaml. What it lacks, or states wrongly, is missing in the result."""
    try:
        content, _ = read_yaml(read_regular(path, MAX_YAML_BYTES).decode(), str(path))
    except (OSError, ConfigError, UnicodeDecodeError):
        return _Metadata()
    info = _mapping(_mapping(content).get('rosbag2_bagfile_information'))
    files = [Path(name).name for name in _list(info.get('relative_file_paths')) if _is_name(name)]
    counts = {}
    for entry in map(_mapping, _list(info.get('topics_with_message_count'))):
        name = _mapping(entry.get('topic_metadata')).get('name')
        count = entry.get('message_count')
        if _is_name(name) and isinstance(count, int) and count >= 0:
            counts[name] = count
    return _Metadata(files, counts)


def _is_name(value: object) -> TypeGuard[str]:
    return name_mistake(value) is None


def _mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else []
