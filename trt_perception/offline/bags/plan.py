# SPDX-License-Identifier: Apache-2.0
"""Plans the work on a bag: its cameras, its parts, its output, and the hash of all inputs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import trt_perception
from trt_perception.bags.metadata import NO_START
from trt_perception.bags.open_bag import storage_suffix
from trt_perception.errors import ConfigError
from trt_perception.offline.bags.cameras import FoundCameras
from trt_perception.offline.bags.part import BagCamera, Part
from trt_perception.parameters.camera import NodeParameters

#: Folder for raw results, inside the output folder.
PARTS_FOLDER: Final = '.parts'
#: A bag of a week, in parts of 60 s.
MAX_PARTS: Final = 10_080
# SQLite's changes that a killed recorder did not write into the file yet.
_WRITE_AHEAD_LOG: Final = '-wal'
_HASHED_BYTES: Final = 2**20
_CODE_SUFFIXES: Final = ('.py', '.cu', '.cuh', '.json')


@dataclass(frozen=True)
class OutputOptions:
    """How bags are written.

    Attributes:
        storage: ``mcap`` or ``sqlite3``.
        compression: ``zstd``, ``lz4`` or ``none``.
        copies_input: whether the output also has all messages of the input.
        part_ns: length of a part, and of each file, in ns.
    """

    storage: str = 'mcap'
    compression: str = 'zstd'
    copies_input: bool = False
    part_ns: int = 60_000_000_000


@dataclass(frozen=True)
class BagPlan:
    """The work on one bag.

    Attributes:
        bag: path of the bag.
        output: folder of the new bag.
        cameras: its cameras.
        image_wh: width and height of the first image.
        start_ns: first log time.
        end_ns: end of the log times, not included.
        options: how the new bag is written.
        inputs: a hash of each input by its name: of the bag, the model, the parameters and so on.
        counts: number of images by topic, in the whole bag; empty if unknown.
        share: share of the bag's time that is processed.
    """

    bag: str
    output: Path
    cameras: tuple[BagCamera, ...]
    image_wh: tuple[int, int]
    start_ns: int
    end_ns: int
    options: OutputOptions
    inputs: dict[str, str]
    counts: Mapping[str, int]
    share: float

    @property
    def part_count(self) -> int:
        """Number of parts."""
        return max(1, math.ceil((self.end_ns - self.start_ns) / self.options.part_ns))

    @property
    def image_count(self) -> int | None:
        """Number of images in the whole bag; None if the bag does not state it."""
        topics = [camera.topic for camera in self.cameras]
        if not all(topic in self.counts for topic in topics):
            return None
        return sum(self.counts[topic] for topic in topics)

    def parts(self) -> Iterator[Part]:
        """Yield the parts in their order."""
        for number in range(self.part_count):
            start = self.start_ns + number * self.options.part_ns
            yield Part(
                self.bag,
                number,
                start,
                min(start + self.options.part_ns, self.end_ns),
                self.cameras,
                self.image_wh,
                self.raw_file(number),
            )

    def raw_file(self, number: int) -> Path:
        """Return the file for the raw results of a part."""
        return self.output / PARTS_FOLDER / f'{number:06d}.raw'


def time_span(
    bag_start_ns: int, bag_end_ns: int, start_s: float | None, end_s: float | None
) -> tuple[int, int]:
    """Return the log times to process: the first one, and the end, which is not included.

    Args:
        start_s: seconds from the start of the bag, or since the epoch; None for the start.
        end_s: the same for the end.

    Raises:
        ConfigError: the span has no part of the bag.
    """
    start = bag_start_ns if start_s is None else _log_time(start_s, bag_start_ns, bag_end_ns)
    end = bag_end_ns + 1
    if end_s is not None:
        end = min(end, _log_time(end_s, bag_start_ns, bag_end_ns))
    start = max(start, bag_start_ns)
    if start >= end:
        length = (bag_end_ns - bag_start_ns) / 1e9
        until = 'on' if end_s is None else f'to {end_s:.3f}'
        raise ConfigError(
            '--start and --end',
            f'no message from {start_s or 0:.3f} {until}',
            expected=f'seconds from 0 to {length:.3f}, or since the epoch, from '
            f'{bag_start_ns / 1e9:.3f} to {bag_end_ns / 1e9:.3f}',
        )
    return start, end


def _log_time(given_s: float, bag_start_ns: int, bag_end_ns: int) -> int:
    """Return a log time. A number that is longer than the bag is a time since the epoch."""
    given_ns = round(given_s * 1e9)
    if given_ns > bag_end_ns - bag_start_ns and given_ns >= bag_start_ns:
        return given_ns
    return bag_start_ns + given_ns


def plan_bag(
    path: str,
    output: Path,
    found: FoundCameras,
    span: tuple[int, int],
    bag_span: tuple[int, int],
    counts: Mapping[str, int],
    options: OutputOptions,
    settings: Mapping[str, Any],
) -> BagPlan:
    """Return the plan of a bag.

    Args:
        span: first log time to process, and the end, in ns.
        bag_span: first and last log time of the bag, in ns.
        counts: number of messages by topic.
        settings: what else decides the results, for the hashes.

    Raises:
        ConfigError: the bag would have too many parts, or times that rosbag2 cannot store.
    """
    parts = math.ceil((span[1] - span[0]) / options.part_ns)
    if parts > MAX_PARTS:
        days = (span[1] - span[0]) / 86400e9
        raise ConfigError(
            path,
            f'its log times span {days:.1f} days, which are {parts} parts',
            expected=f'at most {MAX_PARTS} parts',
            fix='choose a part of the bag with --start and --end, or longer parts with --part-s',
        )
    if span[1] > NO_START:
        raise ConfigError(
            path,
            f'a log time of {(span[1] - 1) / 1e9:.3f} s, which rosbag2 cannot store',
            expected=f'log times before {NO_START / 1e9:.0f} s',
            fix='choose a part of the bag with --end',
        )
    inputs = {
        'package': package_digest(),
        'bag': _bag_identity(Path(path)),
        'cameras': [asdict(camera) for camera in found.cameras],
        'image_wh': found.image_wh,
        'span': span,
        'options': asdict(options),
        **settings,
    }
    share = (span[1] - span[0]) / max(1, bag_span[1] + 1 - bag_span[0])
    return BagPlan(
        path,
        output,
        found.cameras,
        found.image_wh,
        *span,
        options,
        {name: _hash_of(value) for name, value in inputs.items()},
        dict(counts),
        min(share, 1.0),
    )


def parameter_facts(parameters: NodeParameters, cameras: tuple[BagCamera, ...]) -> dict[str, Any]:
    """Return the parameters that belong to the hash of a bag: of the node, and of its cameras.

    Devices and threads do not change the results.
    """
    facts = {}
    for name in ('', *(camera.name for camera in cameras)):
        own = asdict(parameters.camera(name))
        for ignored in ('cameras', 'device_ids', 'cpu_threads', 'engine_path'):
            own.pop(ignored)
        facts[name] = own
    return facts


def _hash_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@cache
def package_digest() -> str:
    """Return a hash of the modules and kernels of this package, which stands for its version."""
    folder = Path(trt_perception.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob('*')):
        if path.suffix in _CODE_SUFFIXES and path.is_file():
            digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def _bag_identity(path: Path) -> list[tuple[str, int, str]]:
    """Return name, size, and a hash of the first and last MiB of each file of a bag."""
    log = path.with_name(path.name + _WRITE_AHEAD_LOG)
    files = [path, log] if path.is_file() else sorted(path.iterdir())
    identity = []
    for file in files:
        name = file.name.removesuffix(_WRITE_AHEAD_LOG)
        if storage_suffix(Path(name)) and file.is_file():
            size = file.stat().st_size
            digest = hashlib.sha256()
            with file.open('rb') as content:
                digest.update(content.read(_HASHED_BYTES))
                content.seek(max(0, size - _HASHED_BYTES))
                digest.update(content.read(_HASHED_BYTES))
            identity.append((file.name, size, digest.hexdigest()))
    return identity
