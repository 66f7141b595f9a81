# SPDX-License-Identifier: Apache-2.0
"""Checks of the shell that starts ROS programs: distribution, middleware, domain, transport."""

from __future__ import annotations

import os
import re
import shlex
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trt_perception.checks.finding import Finding
from trt_perception.files.regular_files import read_regular
from trt_perception.transport.advice import CAMERA_PROFILE, PROFILE_VARIABLES

TESTED_DISTRIBUTIONS: Final = ('jazzy', 'kilted')
#: Bytes of shared memory that Fast DDS allocates without a profile. Larger images do not fit.
DEFAULT_SEGMENT_BYTES: Final = 512 * 1024
_FAST_DDS: Final = 'rmw_fastrtps_cpp'
_OLD_VARIABLE, _NEW_VARIABLE = PROFILE_VARIABLES
# Older distributions read only the old variable name. Kilted and newer read only the new name.
_READERS_OF_OLD_VARIABLE: Final = ('humble', 'iron', 'jazzy')
_SHIPPED_PROFILE: Final = f'share/trt_perception/{CAMERA_PROFILE}'
_PROFILE_MAX_BYTES: Final = 1024 * 1024
_AREA: Final = 'ROS 2 in this shell'


@dataclass(frozen=True)
class FastDdsProfile:
    """Settings of this shell's Fast DDS profile.

    Attributes:
        path: path of the profile; empty without a profile.
        segment_bytes: bytes of shared memory that each process allocates.
    """

    path: str = ''
    segment_bytes: int = DEFAULT_SEGMENT_BYTES


def read_profile(environment: Mapping[str, str]) -> FastDdsProfile:
    """Return the profile that programs of this shell use.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not XML, or larger than 1 MiB.
    """
    path = environment.get(_profile_variable(environment), '')
    if not path:
        return FastDdsProfile()
    content = read_regular(Path(path), _PROFILE_MAX_BYTES)
    if b'<!ENTITY' in content:
        raise ValueError(f'{path}: expected an XML file without entities')
    try:
        root = ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise ValueError(f'{path}: not XML: {error}') from error
    texts = [
        (element.text or '').strip()
        for element in root.iter()
        if element.tag.rpartition('}')[2] == 'segment_size'
    ]
    if not all(re.fullmatch(r'\d{1,18}', text) for text in texts):
        raise ValueError(
            f'{path}: segment_size must be a number of bytes (got {", ".join(texts)})'
        )
    return FastDdsProfile(path, max(map(int, texts), default=DEFAULT_SEGMENT_BYTES))


def shell_findings(
    environment: Mapping[str, str], *, folder: Path | None = None, has_ros: bool = True
) -> Iterator[Finding]:
    """Check the environment variables that ROS 2 and its middleware read.

    Args:
        folder: folder in which programs start; None for the working folder.
        has_ros: whether ROS 2 is sourced or installed; False skips all checks.
    """
    if not has_ros:
        found = (
            'not in this shell. The node and replay_images need it; Python programs and all '
            'other commands do not'
        )
        fix = 'for the node, source the setup.bash of ROS 2 and of the workspace'
        yield Finding(_AREA, 'ROS 2', 'yellow', found, fix)
        return
    yield _distribution_finding(environment)
    yield from _middleware_findings(environment)
    yield from _domain_findings(environment)
    if environment.get('RMW_IMPLEMENTATION', _FAST_DDS) == _FAST_DDS:
        yield from _transport_findings(environment, folder or Path.cwd())
    yield from _security_findings(environment)


def export_profile_command(environment: Mapping[str, str]) -> str:
    """Return the command that selects the shipped profile in a shell."""
    files = (prefix / _SHIPPED_PROFILE for prefix in _install_prefixes(environment))
    there = [shlex.quote(os.path.abspath(file)) for file in files if os.path.exists(file)]
    file = there[0] if there else f'$(ros2 pkg prefix trt_perception)/{_SHIPPED_PROFILE}'
    return f'export {_profile_variable(environment)}={file}'


def _install_prefixes(environment: Mapping[str, str]) -> list[Path]:
    # Unlike Path, os.path reports a folder without read permission as missing.
    return [Path(p) for p in environment.get('AMENT_PREFIX_PATH', '').split(':') if p]


def _profile_variable(environment: Mapping[str, str]) -> str:
    return (
        _OLD_VARIABLE
        if environment.get('ROS_DISTRO', 'jazzy') in _READERS_OF_OLD_VARIABLE
        else _NEW_VARIABLE
    )


def _distribution_finding(environment: Mapping[str, str]) -> Finding:
    name = environment.get('ROS_DISTRO', '')
    if not name:
        fix = 'source /opt/ros/jazzy/setup.bash, then install/setup.bash of the workspace'
        return Finding(_AREA, 'distribution', 'red', 'no ROS 2 is sourced', fix)
    if name not in TESTED_DISTRIBUTIONS:
        fix = f'use {" or ".join(TESTED_DISTRIBUTIONS)} if possible'
        return Finding(_AREA, 'distribution', 'yellow', f'{name}, which was not tested', fix)
    return Finding(_AREA, 'distribution', 'green', name)


def _middleware_findings(environment: Mapping[str, str]) -> Iterable[Finding]:
    name = environment.get('RMW_IMPLEMENTATION', '')
    prefixes = _install_prefixes(environment)
    index = 'share/ament_index/resource_index/packages'
    if not name:
        yield Finding(_AREA, 'middleware', 'green', f'{_FAST_DDS}, the default')
    elif prefixes and not any(os.path.exists(prefix / index / name) for prefix in prefixes):
        fix = (
            f'sudo apt install ros-$ROS_DISTRO-{name.replace("_", "-")}, or unset '
            'RMW_IMPLEMENTATION'
        )
        yield Finding(_AREA, 'middleware', 'red', f'{name} is selected but not installed', fix)
    elif name == _FAST_DDS:
        yield Finding(_AREA, 'middleware', 'green', name)
    else:
        fix = (
            'set large buffers in its own configuration, or unset RMW_IMPLEMENTATION; all nodes '
            'must use the same middleware'
        )
        found = f'{name}: the profile for large images works only with Fast DDS'
        yield Finding(_AREA, 'middleware', 'yellow', found, fix)


def _domain_findings(environment: Mapping[str, str]) -> Iterator[Finding]:
    text = environment.get('ROS_DOMAIN_ID', '')
    number = _parse_like_strtoul(text) if text else 0
    if not 0 <= number <= 232:
        fix = 'export ROS_DOMAIN_ID=0; camera and detector need the same number'
        yield Finding(_AREA, 'domain', 'red', f'ROS_DOMAIN_ID is {text!r}, not 0 to 232', fix)
    elif 101 < number < 215:
        fix = 'choose a number from 0 to 101'
        found = f'{number}: Linux may give the ports of this domain to other programs'
        yield Finding(_AREA, 'domain', 'yellow', found, fix)
    else:
        meant = '' if text in ('', str(number)) else f' (as ROS reads {text!r})'
        yield Finding(_AREA, 'domain', 'green', f'{number}{meant}')
    reach = environment.get('ROS_AUTOMATIC_DISCOVERY_RANGE', '')
    ranges = ('', 'SUBNET', 'LOCALHOST', 'OFF', 'SYSTEM_DEFAULT')
    if reach not in ranges:
        fix = f'set ROS_AUTOMATIC_DISCOVERY_RANGE to one of {", ".join(ranges[1:])}, or unset it'
        yield Finding(_AREA, 'discovery', 'red', f'the range {reach!r} does not exist', fix)
    elif reach == 'OFF':
        fix = 'unset ROS_AUTOMATIC_DISCOVERY_RANGE'
        yield Finding(_AREA, 'discovery', 'red', 'OFF: ROS programs cannot find each other', fix)
    elif environment.get('ROS_LOCALHOST_ONLY', '') == '1' and reach:
        fix = 'unset ROS_LOCALHOST_ONLY, the older variable'
        found = f'ROS_LOCALHOST_ONLY=1 overrides the range {reach}'
        yield Finding(_AREA, 'discovery', 'yellow', found, fix)
    elif environment.get('ROS_DISCOVERY_SERVER'):
        fix = 'if cameras are missing below: unset it, or configure this shell as a super client'
        found = f'the discovery server {environment["ROS_DISCOVERY_SERVER"]} may hide topics'
        yield Finding(_AREA, 'discovery', 'yellow', found, fix)
    else:
        local = reach == 'LOCALHOST' or environment.get('ROS_LOCALHOST_ONLY') == '1'
        found = 'this machine only' if local else 'this machine and its network'
        yield Finding(_AREA, 'discovery', 'green', found)


def _parse_like_strtoul(text: str) -> int:
    """Return a number as strtoul reads it: octal after 0, hexadecimal after 0x; -1 if invalid."""
    if not re.fullmatch(r'0[xX][0-9a-fA-F]{1,6}|0[0-7]{0,6}|[1-9]\d{0,5}', text):
        return -1
    return int(text, 16 if text[1:2] in ('x', 'X') else 8 if text[0] == '0' else 10)


def _transport_findings(environment: Mapping[str, str], folder: Path) -> Iterator[Finding]:
    name = 'transport profile'
    used = _profile_variable(environment)
    other = _NEW_VARIABLE if used == _OLD_VARIABLE else _OLD_VARIABLE
    fix = (
        export_profile_command(environment) + ' for camera and detector (detect.launch.py does so)'
    )
    try:
        profile = read_profile(environment)
    except (OSError, ValueError) as error:
        yield Finding(_AREA, name, 'red', f'{used} cannot be used: {error}', fix)
        return
    if not profile.path and environment.get(other):
        found = f'only {other} is set, which this distribution does not read'
        yield Finding(_AREA, name, 'yellow', found, fix)
    elif not profile.path:
        found = (
            f'none: images above {DEFAULT_SEGMENT_BYTES // 1024} KiB arrive slowly or not at all'
        )
        yield Finding(_AREA, name, 'yellow', found, fix)
    elif profile.segment_bytes <= DEFAULT_SEGMENT_BYTES:
        found = f'{profile.path}: its shared memory is not above the default'
        yield Finding(_AREA, name, 'yellow', found, fix)
    else:
        mebibytes = profile.segment_bytes / 2**20
        yield Finding(_AREA, name, 'green', f'{profile.path}, {mebibytes:.0f} MiB shared memory')
    if profile.path and environment.get(other, profile.path) != profile.path:
        found = f'{_OLD_VARIABLE} and {_NEW_VARIABLE} name different files'
        again = f'unset {other}, or set both to one file'
        yield Finding(_AREA, 'transport variables', 'yellow', found, again)
    builtin = environment.get('FASTDDS_BUILTIN_TRANSPORTS', '')
    # With LOCALHOST, rmw_fastrtps sets its own transports, including shared memory.
    local = environment.get('ROS_AUTOMATIC_DISCOVERY_RANGE', '') == 'LOCALHOST'
    without = builtin and builtin.partition('?')[0] not in ('DEFAULT', 'LARGE_DATA', 'SHM')
    if without and not local:
        found = f'FASTDDS_BUILTIN_TRANSPORTS={builtin} turns shared memory off'
        yield Finding(
            _AREA, 'transports', 'yellow', found, 'unset it, or use DEFAULT or LARGE_DATA'
        )
    for file in ('DEFAULT_FASTRTPS_PROFILES.xml', 'DEFAULT_FASTDDS_PROFILES.xml'):
        if (folder / file).exists():
            found = f'programs that start in this folder also read {file}'
            yield Finding(_AREA, 'profile here', 'yellow', found, f'move {folder / file} away')


def _security_findings(environment: Mapping[str, str]) -> Iterator[Finding]:
    if environment.get('ROS_SECURITY_ENABLE', '').lower() != 'true':
        return
    keystore = environment.get('ROS_SECURITY_KEYSTORE', '')
    if not (keystore and Path(keystore).is_dir()):
        fix = 'export ROS_SECURITY_KEYSTORE=… (docs/security.md), or unset ROS_SECURITY_ENABLE'
        found = f'enabled, but the keystore {keystore!r} is not a folder'
        yield Finding(_AREA, 'security', 'red', found, fix)
    elif environment.get('ROS_SECURITY_STRATEGY') != 'Enforce':
        found = 'enabled, but nodes without an enclave still run unprotected'
        yield Finding(_AREA, 'security', 'yellow', found, 'export ROS_SECURITY_STRATEGY=Enforce')
    else:
        yield Finding(_AREA, 'security', 'green', f'enforced, keystore {keystore}')
