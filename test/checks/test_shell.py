# SPDX-License-Identifier: Apache-2.0
"""Tests of doctor's checks of shell and machine. The cases cover every level."""

import os
import subprocess
import types

import pytest

from support import golden
from support.findings import text_of
from trt_perception.checks.machine import machine_findings
from trt_perception.checks.shell import export_profile_command, read_profile, shell_findings

pytestmark = pytest.mark.ros

PROFILE = (
    '<dds xmlns="http://www.eprosima.com"><segment_size>{size}</segment_size>'
    '<maxMessageSize>99999999</maxMessageSize></dds>'
)
OLD, NEW = 'FASTRTPS_DEFAULT_PROFILES_FILE', 'FASTDDS_DEFAULT_PROFILES_FILE'


SECURE = {'ROS_SECURITY_ENABLE': 'true', 'ROS_SECURITY_KEYSTORE': 'FOLDER'}
PREFIXES = {'AMENT_PREFIX_PATH': 'FOLDER:FOLDER/ros'}
GOOD = {'ROS_DISTRO': 'jazzy', OLD: 'FOLDER/good.xml'}
#: Changes to the environment of a good shell. A good shell gives no problem.
SHELLS = [
    {'ROS_DISTRO': 'kilted'},
    {'ROS_DISTRO': 'kilted', OLD: None, NEW: 'FOLDER/good.xml'},
    {'ROS_DISTRO': 'humble'},
    {'ROS_DISTRO': None},
    {'RMW_IMPLEMENTATION': 'rmw_fastrtps_cpp'},
    {'RMW_IMPLEMENTATION': 'rmw_cyclonedds_cpp'},
    {'RMW_IMPLEMENTATION': 'rmw_zenoh_cpp', **PREFIXES},
    {'RMW_IMPLEMENTATION': 'rmw_there_cpp', **PREFIXES},
    *({'ROS_DOMAIN_ID': value} for value in ('101', '102', '233', '053', '0x2B', '0', '08')),
    {'ROS_DOMAIN_ID': 'mine'},
    {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'},
    {'ROS_LOCALHOST_ONLY': '1'},
    {'ROS_DISCOVERY_SERVER': '10.0.0.1:11811'},
    {'ROS_LOCALHOST_ONLY': '1', 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET'},
    {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'OFF'},
    {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'subnet'},
    {OLD: None},
    {OLD: None, NEW: 'FOLDER/good.xml'},
    {NEW: 'FOLDER/small.xml'},
    *({OLD: f'FOLDER/{name}.xml'} for name in ('small', 'other', 'missing', 'broken')),
    *({OLD: f'FOLDER/{name}.xml'} for name in ('bomb', 'text')),
    {'FASTDDS_BUILTIN_TRANSPORTS': 'UDPv4'},
    {'FASTDDS_BUILTIN_TRANSPORTS': 'UDPv4', 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET'},
    {'FASTDDS_BUILTIN_TRANSPORTS': 'UDPv4', 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'},
    {'FASTDDS_BUILTIN_TRANSPORTS': 'LARGE_DATA?max_msg_size=1MB'},
    {'ROS_SECURITY_ENABLE': 'true'},
    SECURE,
    {**SECURE, 'ROS_SECURITY_STRATEGY': 'Enforce'},
    {'HERE': '1'},
]


def by_name(findings):
    return {finding.name: finding for finding in findings}


@pytest.fixture
def check_changed_shell(tmp_path):
    """Return a function that checks a good shell with changed environment variables."""
    (tmp_path / 'good.xml').write_text(PROFILE.format(size=2**26))
    (tmp_path / 'small.xml').write_text(PROFILE.format(size=2**19))
    (tmp_path / 'text.xml').write_text(PROFILE.format(size='large'))
    (tmp_path / 'other.xml').write_text('<profiles/>')
    (tmp_path / 'broken.xml').write_text('<dds>')
    (tmp_path / 'bomb.xml').write_text('<!DOCTYPE d [<!ENTITY a "b">]><dds>&a;</dds>')
    index = tmp_path / 'ros/share/ament_index/resource_index/packages'
    index.mkdir(parents=True)
    (index / 'rmw_there_cpp').touch()

    def check(changes):
        if changes.get('HERE'):
            (tmp_path / 'DEFAULT_FASTRTPS_PROFILES.xml').touch()
        environment = {
            name: value.replace('FOLDER', str(tmp_path))
            for name, value in {**GOOD, **changes}.items()
            if value is not None
        }
        return list(shell_findings(environment, folder=tmp_path))

    return check


def test_each_wrong_variable_gives_the_recorded_findings(check_changed_shell, tmp_path):
    good = check_changed_shell({})
    assert {finding.level for finding in good} == {'green'}
    scenes = {
        ', '.join(f'{name}={value}' for name, value in changes.items()): check_changed_shell(
            changes
        )
        for changes in SHELLS
    }
    golden.check('checks/shell.txt', golden.without_folder(text_of(scenes, good), tmp_path))


def test_shipped_profile_is_read():
    from ament_index_python.packages import get_package_share_directory

    path = f'{get_package_share_directory("trt_perception")}/config/fastdds_large_images.xml'
    assert read_profile({'ROS_DISTRO': 'jazzy', OLD: path}).segment_bytes == 64 * 2**20


def test_fix_for_the_transport_profile_is_a_valid_command(tmp_path):
    from ament_index_python.packages import get_package_prefix

    folder = tmp_path / 'my robot'
    folder.symlink_to(get_package_prefix('trt_perception'))
    for prefixes in (f'{tmp_path}:{folder}:', str(folder)):
        environment = {'ROS_DISTRO': 'jazzy', 'AMENT_PREFIX_PATH': prefixes}
        command = f'{export_profile_command(environment)} && printf %s "${OLD}"'
        printed = subprocess.run(
            ['bash', '-c', command], capture_output=True, text=True, check=True
        )
        assert (
            read_profile({'ROS_DISTRO': 'jazzy', OLD: printed.stdout}).segment_bytes == 64 * 2**20
        )
    long = '/tmp/' + 300 * 'x'  # Path.exists() raises an error for this path
    odd = {'AMENT_PREFIX_PATH': f'{long}:{folder}', 'RMW_IMPLEMENTATION': 'rmw_a_cpp'}
    assert str(folder) in export_profile_command(odd)
    assert by_name(shell_findings(odd))['middleware'].level == 'red'
    unknown = export_profile_command({'ROS_DISTRO': 'kilted', 'AMENT_PREFIX_PATH': str(tmp_path)})
    assert unknown.startswith(f'export {NEW}=$(ros2 pkg prefix trt_perception)/share/')


# The machine.


@pytest.fixture
def check_host(tmp_path, monkeypatch):
    """Return a function that checks a machine with given facts."""
    (tmp_path / 'net/core').mkdir(parents=True)
    (tmp_path / 'shm').mkdir()
    (tmp_path / 'file').touch()
    sizes = {}

    def statvfs(path):
        os.stat(path)  # raises the error of a missing folder
        free = next(size for part, size in sizes.items() if part in str(path))
        return types.SimpleNamespace(f_bavail=free, f_blocks=free, f_frsize=1)

    def check(
        rmem='8388608',
        raw_cameras=1,
        shared_memory='shm',
        cache='cache',
        may_write=True,
        shm=2**30,
        cache_size=2**34,
        port='',
    ):
        sizes.update({'/shm': shm, '/cache': cache_size, '/file': cache_size})
        (tmp_path / 'net/core/rmem_max').unlink(missing_ok=True)
        if rmem is not None:
            (tmp_path / 'net/core/rmem_max').write_text(rmem)
        path = tmp_path / 'shm/fastrtps_port7005'
        path.unlink(missing_ok=True)
        if port:
            path.touch()
            # The time of a file that is made while the check runs, however long this takes.
            times = {'old': (0, 0), 'new': (2**31 - 1, 2**31 - 1)}[port]
            os.utime(path, times)
        folders = {'system': tmp_path, 'shared_memory': tmp_path / shared_memory}
        with monkeypatch.context() as patch:
            patch.setenv('XDG_CACHE_HOME', str(tmp_path / cache))
            patch.setattr(os, 'statvfs', statvfs)
            if not may_write:
                patch.setattr(os, 'access', lambda *_: False)
            return list(machine_findings(2**26, raw_cameras=raw_cameras, **folders))

    return check


MACHINES = {
    'small socket buffer': {'rmem': '212992'},
    'socket buffer without a number': {'rmem': 'much'},
    'unknown socket buffer': {'rmem': None},
    'no shared memory': {'shared_memory': 'gone'},
    'shared memory that cannot be written': {'may_write': False},
    'no room for a segment': {'shm': 2**26 - 1},
    'room for one segment': {'shm': 2**26},
    'room for less than four segments': {'shm': 2**28 - 1},
    'room for some of the participants': {'shm': 2**28, 'raw_cameras': 20},
    'full cache': {'cache_size': 255 * 2**20},
    'cache that cannot be created': {'cache': 'file'},
    'port that another process may be making': {'port': 'new'},
    'half-made port of a killed process': {'port': 'old'},
}


def test_each_machine_problem_gives_the_recorded_findings(check_host, tmp_path):
    good = check_host()
    assert {finding.level for finding in good} == {'green'}
    scenes = {name: check_host(**facts) for name, facts in MACHINES.items()}
    golden.check('checks/machine.txt', golden.without_folder(text_of(scenes, good), tmp_path))
