"""doctor's checks of shell and machine, each driven to every colour it has."""

import os
import subprocess
import types

import pytest

from trt_perception.checks.machine import check_machine
from trt_perception.checks.shell import check_shell, export_profile, read_profile

pytestmark = pytest.mark.ros

PROFILE = (
    '<dds xmlns="http://www.eprosima.com"><segment_size>{size}</segment_size>'
    '<maxMessageSize>99999999</maxMessageSize></dds>'
)
OLD, NEW = 'FASTRTPS_DEFAULT_PROFILES_FILE', 'FASTDDS_DEFAULT_PROFILES_FILE'


def by_name(findings):
    return {finding.name: finding for finding in findings}


# The shell.

GOOD = {'ROS_DISTRO': 'jazzy', OLD: 'FOLDER/good.xml'}
SHELLS = [
    ('distribution', 'green', {'ROS_DISTRO': 'kilted'}, 'kilted'),
    ('distribution', 'yellow', {'ROS_DISTRO': 'humble'}, 'humble'),
    ('distribution', 'red', {'ROS_DISTRO': None}, 'no ROS 2'),
    ('middleware', 'green', {}, 'rmw_fastrtps_cpp'),
    ('middleware', 'green', {'RMW_IMPLEMENTATION': 'rmw_fastrtps_cpp'}, 'rmw_fastrtps_cpp'),
    ('middleware', 'yellow', {'RMW_IMPLEMENTATION': 'rmw_cyclonedds_cpp'}, 'cyclonedds'),
    (
        'middleware',
        'red',
        {'RMW_IMPLEMENTATION': 'rmw_zenoh_cpp', 'AMENT_PREFIX_PATH': 'FOLDER:FOLDER/ros'},
        'rmw_zenoh_cpp',
    ),
    (
        'middleware',
        'yellow',
        {'RMW_IMPLEMENTATION': 'rmw_there_cpp', 'AMENT_PREFIX_PATH': 'FOLDER:FOLDER/ros'},
        'rmw_there_cpp',
    ),
    ('domain', 'green', {'ROS_DOMAIN_ID': '101'}, '101'),
    ('domain', 'yellow', {'ROS_DOMAIN_ID': '102'}, '102'),
    ('domain', 'red', {'ROS_DOMAIN_ID': '233'}, '233'),
    ('domain', 'green', {'ROS_DOMAIN_ID': '053'}, "43 (as ROS reads '053')"),
    ('domain', 'green', {'ROS_DOMAIN_ID': '0x2B'}, "43 (as ROS reads '0x2B')"),
    ('domain', 'green', {'ROS_DOMAIN_ID': '0'}, '0'),
    ('domain', 'red', {'ROS_DOMAIN_ID': '08'}, '08'),
    ('domain', 'red', {'ROS_DOMAIN_ID': 'mine'}, 'mine'),
    ('discovery', 'green', {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'}, 'this machine only'),
    ('discovery', 'green', {}, 'network'),
    ('discovery', 'yellow', {'ROS_DISCOVERY_SERVER': '10.0.0.1:11811'}, '10.0.0.1'),
    (
        'discovery',
        'yellow',
        {'ROS_LOCALHOST_ONLY': '1', 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET'},
        'overrides',
    ),
    ('discovery', 'red', {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'OFF'}, 'never'),
    ('discovery', 'red', {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'subnet'}, 'subnet'),
    ('transport profile', 'green', {}, '64 MiB'),
    ('transport profile', 'green', {'ROS_DISTRO': 'kilted', NEW: 'FOLDER/good.xml'}, '64 MiB'),
    ('transport profile', 'yellow', {OLD: None}, '512 KiB'),
    ('transport profile', 'yellow', {OLD: 'FOLDER/small.xml'}, 'no larger'),
    ('transport profile', 'yellow', {OLD: 'FOLDER/other.xml'}, 'no larger'),
    ('transport profile', 'yellow', {OLD: None, NEW: 'FOLDER/good.xml'}, 'does not read'),
    ('transport profile', 'yellow', {'ROS_DISTRO': 'kilted'}, 'does not read'),
    ('transport profile', 'red', {OLD: 'FOLDER/missing.xml'}, 'missing.xml'),
    ('transport profile', 'red', {OLD: 'FOLDER/broken.xml'}, 'no XML'),
    ('transport profile', 'red', {OLD: 'FOLDER/bomb.xml'}, 'entities'),
    ('transport profile', 'red', {OLD: 'FOLDER/text.xml'}, 'text.xml'),
    ('transport variables', 'yellow', {NEW: 'FOLDER/small.xml'}, 'different'),
    ('transports', 'yellow', {'FASTDDS_BUILTIN_TRANSPORTS': 'UDPv4'}, 'UDPv4'),
    ('profile here', 'yellow', {'HERE': '1'}, 'DEFAULT_FASTRTPS_PROFILES.xml'),
    ('security', 'red', {'ROS_SECURITY_ENABLE': 'true'}, 'keystore'),
    (
        'security',
        'yellow',
        {'ROS_SECURITY_ENABLE': 'true', 'ROS_SECURITY_KEYSTORE': 'FOLDER'},
        'unprotected',
    ),
    (
        'security',
        'green',
        {
            'ROS_SECURITY_ENABLE': 'true',
            'ROS_SECURITY_KEYSTORE': 'FOLDER',
            'ROS_SECURITY_STRATEGY': 'Enforce',
        },
        'enforced',
    ),
]


@pytest.fixture
def shell(tmp_path):
    """Check a shell that is good but for some changes."""
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
        return by_name(check_shell(environment, folder=tmp_path))

    return check


@pytest.mark.parametrize(
    ('name', 'level', 'changes', 'word'),
    SHELLS,
    ids=[f'{i}-{name}-{level}' for i, (name, level, _, _) in enumerate(SHELLS)],
)
def test_shell(shell, name, level, changes, word):
    finding = shell(changes)[name]
    assert finding.level == level, finding
    assert word in finding.found


def test_a_good_shell_is_green(shell):
    assert {finding.level for finding in shell({}).values()} == {'green'}


def test_builtin_transports_with_shared_memory_are_fine(shell):
    assert 'transports' not in shell({'FASTDDS_BUILTIN_TRANSPORTS': 'LARGE_DATA?max_msg_size=1MB'})


def test_builtin_transports_are_not_read_for_one_machine_alone(shell):
    environment = {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'}
    assert 'transports' not in shell({**environment, 'FASTDDS_BUILTIN_TRANSPORTS': 'UDPv4'})
    environment = {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET'}
    assert 'transports' in shell({**environment, 'FASTDDS_BUILTIN_TRANSPORTS': 'UDPv4'})


def test_other_middlewares_are_not_asked_for_fast_dds(shell):
    assert 'transport profile' not in shell({'RMW_IMPLEMENTATION': 'rmw_cyclonedds_cpp'})


def test_the_shipped_profile_is_understood():
    from ament_index_python.packages import get_package_share_directory

    path = f'{get_package_share_directory("trt_perception")}/config/fastdds_large_images.xml'
    assert read_profile({'ROS_DISTRO': 'jazzy', OLD: path}).segment_bytes == 64 * 2**20


def test_the_fix_for_the_transport_can_be_typed(tmp_path):
    from ament_index_python.packages import get_package_prefix

    folder = tmp_path / 'my robot'
    folder.symlink_to(get_package_prefix('trt_perception'))
    for prefixes in (f'{tmp_path}:{folder}:', str(folder)):
        environment = {'ROS_DISTRO': 'jazzy', 'AMENT_PREFIX_PATH': prefixes}
        command = f'{export_profile(environment)} && printf %s "${OLD}"'
        said = subprocess.run(['bash', '-c', command], capture_output=True, text=True, check=True)
        assert read_profile({'ROS_DISTRO': 'jazzy', OLD: said.stdout}).segment_bytes == 64 * 2**20
    long = '/tmp/' + 300 * 'x'  # which Path.exists() raises for
    odd = {'AMENT_PREFIX_PATH': f'{long}:{folder}', 'RMW_IMPLEMENTATION': 'rmw_a_cpp'}
    assert str(folder) in export_profile(odd)
    assert by_name(check_shell(odd))['middleware'].level == 'red'
    unknown = export_profile({'ROS_DISTRO': 'kilted', 'AMENT_PREFIX_PATH': str(tmp_path)})
    assert unknown.startswith(f'export {NEW}=$(ros2 pkg prefix trt_perception)/share/')


# The machine.


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Check a machine whose facts are given."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    (tmp_path / 'net/core').mkdir(parents=True)
    (tmp_path / 'shm').mkdir()
    facts = {'/shm': 2**30, '/cache': 2**34}

    def statvfs(path):
        free = next(size for part, size in facts.items() if part in str(path))
        return types.SimpleNamespace(f_bavail=free, f_blocks=free, f_frsize=1)

    def check(rmem='8388608', **more):
        facts.update({f'/{name}': size for name, size in more.items()})
        if rmem is not None:
            (tmp_path / 'net/core/rmem_max').write_text(rmem)
        with monkeypatch.context() as patch:
            patch.setattr(os, 'statvfs', statvfs)
            return by_name(check_machine(2**26, system=tmp_path, shared_memory=tmp_path / 'shm'))

    return check


def test_a_good_machine(machine, tmp_path):
    findings = machine()
    assert {finding.level for finding in findings.values()} == {'green'}
    assert set(findings) == {'net.core.rmem_max', str(tmp_path / 'shm'), 'caches'}


@pytest.mark.parametrize('rmem', ['212992', 'much', None])
def test_socket_buffer(machine, rmem):
    finding = machine(rmem)['net.core.rmem_max']
    assert finding.level == 'yellow'
    assert 'sysctl -w net.core.rmem_max=' in finding.fix


@pytest.mark.parametrize(
    ('free', 'level'), [(2**26 - 1, 'red'), (2**26, 'yellow'), (2**28 - 1, 'yellow')]
)
def test_shared_memory(machine, tmp_path, free, level):
    finding = machine(shm=free)[str(tmp_path / 'shm')]
    assert finding.level == level
    assert '--shm-size' in finding.fix


def test_a_port_that_a_killed_process_left_half_made_is_red(machine, tmp_path):
    (tmp_path / 'shm').mkdir(exist_ok=True)
    port = tmp_path / 'shm/fastrtps_port7005'
    port.touch()
    name = 'shared memory of a killed process'
    assert name not in machine()  # somebody may make it right now
    os.utime(port, (0, 0))
    finding = machine()[name]
    assert finding.level == 'red'
    assert 'fastrtps_port7005' in finding.found
    assert f'rm {port}' in finding.fix


def test_no_shared_memory(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    gone = tmp_path / 'gone'
    assert by_name(check_machine(1, shared_memory=gone))[str(gone)].level == 'red'
    monkeypatch.setattr(os, 'access', lambda *_: False)
    finding = by_name(check_machine(1, shared_memory=tmp_path))[str(tmp_path)]
    assert (finding.level, finding.found) == ('red', 'this user cannot write it')


def test_caches(machine, tmp_path, monkeypatch):
    assert '255 MiB' in machine(cache=255 * 2**20)['caches'].found
    (tmp_path / 'file').touch()
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
    finding = machine()['caches']
    assert finding.level == 'yellow'
    assert 'XDG_CACHE_HOME' in finding.fix
