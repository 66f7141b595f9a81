# SPDX-License-Identifier: Apache-2.0
"""Plans the work on a bag: its cameras, its parts, its output, and the hash of all inputs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import trt_perception
from trt_perception.bags.file_bag import FileBag
from trt_perception.bags.metadata import NO_START
from trt_perception.bags.open_bag import open_bag, storage_suffix
from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import escape_line
from trt_perception.offline.bags.cameras import FoundCameras
from trt_perception.offline.bags.part import BagCamera, Part
from trt_perception.parameters.camera import NodeParameters
from trt_perception.parameters.values import ParameterValues

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
        options: how the new bag is written.
        cameras: its cameras.
        image_wh: width and height of the first image.
        start_ns: first log time.
        end_ns: end of the log times, not included.
        share: share of the bag's time that is processed.
        counts: number of messages by topic, in the whole bag; empty if unknown.
        remarks: sentences for the user about the cameras.
        has_trackers: whether results depend on earlier results.
        inputs: a hash of each input by its name: of the bag, the model, the parameters and so on.
        size: number of bytes in the files of the bag.
    """

    bag: str
    output: Path
    options: OutputOptions
    cameras: tuple[BagCamera, ...]
    image_wh: tuple[int, int]
    start_ns: int
    end_ns: int
    share: float = 1.0
    counts: Mapping[str, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    has_trackers: bool = False
    inputs: Mapping[str, str] = field(default_factory=dict)
    size: int = 0

    @property
    def label(self) -> str:
        """The path of the bag as one printable line."""
        return escape_line(self.bag)

    @property
    def part_count(self) -> int:
        """Number of parts."""
        return max(1, math.ceil((self.end_ns - self.start_ns) / self.options.part_ns))

    @property
    def image_count(self) -> int | None:
        """Number of images, an estimate for a part of a bag; None if the bag does not state it."""
        topics = [camera.topic for camera in self.cameras]
        if not all(topic in self.counts for topic in topics):
            return None
        return round(sum(self.counts[topic] for topic in topics) * self.share)

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


def plan_bag(
    path: str,
    output: Path,
    options: OutputOptions,
    choose_cameras: Callable[[FileBag], FoundCameras],
    start_s: float | None,
    end_s: float | None,
) -> BagPlan:
    """Open a bag, and return the plan for it, still without the parameters.

    Args:
        choose_cameras: returns the cameras of the open bag.
        start_s: first log time in seconds from the start of the bag, or since the epoch; None for
            the start.
        end_s: the same for the end, which is not included.

    Raises:
        ConfigError: the bag cannot be used. The error names the bag.
    """
    with contextlib.closing(open_bag(path)) as bag:
        found = choose_cameras(bag)
        if bag.end_ns < bag.start_ns or not bag.topics:
            raise ConfigError(path, 'has no messages that can be read')
        start_ns, end_ns = time_span(path, (bag.start_ns, bag.end_ns), start_s, end_s)
        share = (end_ns - start_ns) / max(1, bag.end_ns + 1 - bag.start_ns)
        plan = BagPlan(
            path,
            output,
            options,
            found.cameras,
            found.image_wh,
            start_ns,
            end_ns,
            min(share, 1.0),
            dict(bag.message_counts),
            found.remarks,
        )
    check_times(plan)
    return plan


def time_span(
    path: str, bag_ns: tuple[int, int], start_s: float | None, end_s: float | None
) -> tuple[int, int]:
    """Return the log times to process: the first one, and the end, which is not included.

    Args:
        path: path of the bag, for error messages.
        bag_ns: first and last log time of the bag.
        start_s: as in `plan_bag`.
        end_s: as in `plan_bag`.

    Raises:
        ConfigError: the span has no part of the bag.
    """
    first_ns, last_ns = bag_ns
    start = first_ns if start_s is None else _log_time(start_s, *bag_ns)
    end = last_ns + 1
    if end_s is not None:
        end = min(end, _log_time(end_s, *bag_ns))
    start = max(start, first_ns)
    if start >= end:
        length = (last_ns - first_ns) / 1e9
        until = 'on' if end_s is None else f'to {end_s:.3f}'
        raise ConfigError(
            f'{path}: --start and --end',
            f'no message from {start_s or 0:.3f} {until}',
            expected=f'seconds from 0 to {length:.3f}, or since the epoch, from '
            f'{first_ns / 1e9:.3f} to {last_ns / 1e9:.3f}',
        )
    return start, end


def _log_time(given_s: float, bag_start_ns: int, bag_end_ns: int) -> int:
    """Return a log time. A number that is longer than the bag is a time since the epoch."""
    given_ns = round(given_s * 1e9)
    if given_ns > bag_end_ns - bag_start_ns and given_ns >= bag_start_ns:
        return given_ns
    return bag_start_ns + given_ns


def check_times(plan: BagPlan) -> None:
    """Check the times of a plan.

    Raises:
        ConfigError: the bag would have too many parts, or times that rosbag2 cannot store.
    """
    if plan.part_count > MAX_PARTS:
        days = (plan.end_ns - plan.start_ns) / 86400e9
        raise ConfigError(
            plan.bag,
            f'its log times span {days:.1f} days, which are {plan.part_count} parts',
            expected=f'at most {MAX_PARTS} parts',
            fix='choose a part of the bag with --start and --end, or longer parts with --part-s',
        )
    if plan.end_ns > NO_START:
        raise ConfigError(
            plan.bag,
            f'a log time of {(plan.end_ns - 1) / 1e9:.3f} s, which rosbag2 cannot store',
            expected=f'log times before {NO_START / 1e9:.0f} s',
            fix='choose a part of the bag with --end',
        )


def with_parameters(
    plan: BagPlan, parameters: NodeParameters, settings: Mapping[str, Any]
) -> BagPlan:
    """Return the plan for the cameras that the parameters leave switched on.

    Args:
        settings: what else decides the results, for the hashes.

    Raises:
        ConfigError: all cameras are switched off.
    """
    cameras, remarks = [], list(plan.remarks)
    for camera in plan.cameras:
        if parameters.camera(camera.name).enabled:
            cameras.append(camera)
        else:
            remarks.append(f'camera {camera.name} is left out: enabled is false')
    if not cameras:
        raise ConfigError(plan.bag, 'all cameras are switched off (parameter enabled)')
    remarks += [f'camera {camera.name or "without a name"}: {camera.topic}' for camera in cameras]
    own = {camera.name: parameters.camera(camera.name) for camera in cameras}
    changed = replace(
        plan,
        cameras=tuple(cameras),
        remarks=tuple(remarks),
        has_trackers=any(values.tracker_type != 'none' for values in own.values()),
    )
    facts = {name: _facts(values) for name, values in ({'': parameters.camera('')} | own).items()}
    return with_inputs(changed, {**settings, 'parameters': facts})


def _facts(values: ParameterValues) -> dict[str, Any]:
    """Return the parameters that belong to the hash. Devices and threads change no results."""
    ignored = ('cameras', 'device_ids', 'cpu_threads', 'engine_path')
    return {name: value for name, value in asdict(values).items() if name not in ignored}


def with_inputs(plan: BagPlan, settings: Mapping[str, Any]) -> BagPlan:
    """Return the plan with the hashes of all inputs, and the size of the bag."""
    identity = _bag_identity(Path(plan.bag))
    inputs = {
        'package': package_digest(),
        'bag': identity,
        'cameras': [asdict(camera) for camera in plan.cameras],
        'image_wh': plan.image_wh,
        'span': (plan.start_ns, plan.end_ns),
        'options': asdict(plan.options),
        **settings,
    }
    hashes = {name: _hash_of(value) for name, value in inputs.items()}
    return replace(plan, inputs=hashes, size=sum(size for _, size, _ in identity))


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
    log = Path(f'{path}{_WRITE_AHEAD_LOG}')
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
