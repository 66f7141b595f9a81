# SPDX-License-Identifier: Apache-2.0
"""Tests of shared memory: ports that Fast DDS will never finish, and room for participants."""

import os
import struct
import time

import pytest

from trt_perception.transport.shared_memory import (
    affordable_participants,
    repair_command,
    unfinished_ports,
)

MIB = 2**20


@pytest.fixture
def write(tmp_path):
    def write(name, content, age_s=60.0):
        path = tmp_path / name
        path.write_bytes(content)
        then = time.time() - age_s
        os.utime(path, (then, then))
        return path

    return write


def port_in_state(value):
    return struct.pack('=I', value) + bytes(60)


@pytest.mark.parametrize('name', ['fastrtps_port7005', 'fastdds_port11167'])
@pytest.mark.parametrize(
    'content', [b'', port_in_state(0), port_in_state(1)], ids=['empty', 'zeroed', 'started']
)
def test_unfinished_port_is_found(tmp_path, write, name, content):
    port = write(name, content)
    assert unfinished_ports(tmp_path) == [port]


@pytest.mark.parametrize(
    ('name', 'content', 'age_s'),
    [
        ('fastrtps_port7005', port_in_state(2), 60.0),
        ('fastrtps_port7005', b'', 0.0),  # a process may still be creating the port
        ('fastrtps_port7005', b'\0', 60.0),  # repaired: all processes refuse it at once
        ('fastrtps_port7005_el', b'', 60.0),  # a lock, which is always empty
        ('fastrtps_2bf491fc5bd27ded', b'', 60.0),
        ('other_port7005', b'', 60.0),
    ],
)
def test_file_that_blocks_no_process_is_ignored(tmp_path, write, name, content, age_s):
    write(name, content, age_s)
    assert unfinished_ports(tmp_path) == []


def test_only_empty_ports_of_other_users_are_found(tmp_path, write, monkeypatch):
    empty, _ = write('fastrtps_port1', b''), write('fastrtps_port2', port_in_state(0))

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, 'open', refuse)  # root can read files of all users
    assert unfinished_ports(tmp_path) == [empty]


def test_missing_folder_has_no_ports(tmp_path):
    assert unfinished_ports(tmp_path / 'nothing') == []


def test_repair_command_mentions_all_ports(tmp_path, write, golden_messages):
    ports = [write('fastrtps_port1', b''), write('fastrtps_port2', port_in_state(1))]
    command = repair_command(unfinished_ports(tmp_path))
    assert all(str(port) in command for port in ports)
    golden_messages.add(command)


def test_pipe_with_the_name_of_a_port_does_not_block(tmp_path):
    port = tmp_path / 'fastrtps_port7005'
    os.mkfifo(port)
    os.utime(port, (0, 0))
    assert unfinished_ports(tmp_path) == []


@pytest.mark.parametrize(
    ('cameras', 'free_bytes', 'bytes_each', 'expected'),
    [
        (16, 16 * 4 * 4 * MIB, 4 * MIB, 16),
        (16, 15 * 4 * 4 * MIB, 4 * MIB, 8),
        (5, 3 * 4 * 4 * MIB, 4 * MIB, 3),
        (16, 64 * MIB, 4 * MIB, 4),
        (16, 64 * MIB, 68 * MIB, 0),
    ],
)
def test_participants_use_at_most_a_quarter_of_the_free_memory(
    cameras, free_bytes, bytes_each, expected
):
    assert affordable_participants(cameras, free_bytes, bytes_each) == expected


@pytest.mark.parametrize('nodes', [1, 2, 3, 7])
@pytest.mark.parametrize('free_bytes', [0, 64 * MIB, 300 * MIB])
def test_nodes_together_use_at_most_a_quarter_of_the_free_memory(nodes, free_bytes):
    each = affordable_participants(64, free_bytes, 4 * MIB, nodes=nodes)
    # A further participant for each node would exceed the quarter.
    assert nodes * each * 4 * MIB <= free_bytes / 4 < nodes * (each + 1) * 4 * MIB
