"""Ports of Fast DDS in shared memory that nobody makes any more."""

import os
import struct
import time

import pytest

from trt_perception.transport.shared_memory import repair_command, unfinished_ports


@pytest.fixture
def write(tmp_path):
    def write(name, content, age_s=60.0):
        path = tmp_path / name
        path.write_bytes(content)
        then = time.time() - age_s
        os.utime(path, (then, then))
        return path

    return write


def word(value):
    return struct.pack('=I', value) + bytes(60)


@pytest.mark.parametrize('name', ['fastrtps_port7005', 'fastdds_port11167'])
@pytest.mark.parametrize('content', [b'', word(0), word(1)], ids=['empty', 'bare', 'begun'])
def test_a_port_that_was_never_made_whole_is_found(tmp_path, write, name, content):
    port = write(name, content)
    assert unfinished_ports(tmp_path) == [port]


@pytest.mark.parametrize(
    ('name', 'content', 'age_s'),
    [
        ('fastrtps_port7005', word(2), 60.0),
        ('fastrtps_port7005', b'', 0.0),  # it is being made
        ('fastrtps_port7005', b'\0', 60.0),  # all refuse it at once
        ('fastrtps_port7005_el', b'', 60.0),  # a lock, which is always empty
        ('fastrtps_2bf491fc5bd27ded', b'', 60.0),
        ('other_port7005', b'', 60.0),
    ],
)
def test_what_nobody_waits_for_is_not(tmp_path, write, name, content, age_s):
    write(name, content, age_s)
    assert unfinished_ports(tmp_path) == []


def test_of_another_users_the_size_is_known(tmp_path, write, monkeypatch):
    empty, _ = write('fastrtps_port1', b''), write('fastrtps_port2', word(0))

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, 'open', refuse)  # as root everything can be read
    assert unfinished_ports(tmp_path) == [empty]


def test_a_folder_that_is_not_there_has_none(tmp_path):
    assert unfinished_ports(tmp_path / 'nothing') == []


def test_what_is_mended_is_found_no_more(tmp_path, write, golden_messages):
    ports = [write('fastrtps_port1', b''), write('fastrtps_port2', word(1))]
    command = repair_command(unfinished_ports(tmp_path))
    assert all(str(port) in command for port in ports)
    golden_messages.add(command)


def test_a_pipe_of_that_name_is_not_waited_for(tmp_path):
    port = tmp_path / 'fastrtps_port7005'
    os.mkfifo(port)
    os.utime(port, (0, 0))
    assert unfinished_ports(tmp_path) == []
