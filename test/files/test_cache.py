# SPDX-License-Identifier: Apache-2.0
"""Tests of the cache: an entry is read back unchanged, or ignored."""

from __future__ import annotations

import logging
import os
import stat

import pytest

from trt_perception.files.cache import (
    cache_folder,
    private_cache_folder,
    read_cached,
    write_cached,
)

CONTENT = bytes(range(256)) * 5


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))


@pytest.fixture
def entry():
    write_cached('kernels', 'key', CONTENT)
    return cache_folder('kernels') / 'key'


@pytest.mark.parametrize('content', [b'', b'x', CONTENT])
def test_written_entry_is_read_back(content, tmp_path):
    write_cached('kernels', 'key', content)
    assert read_cached('kernels', 'key') == content
    assert (tmp_path / 'trt_perception' / 'kernels' / 'key').is_file()
    assert read_cached('kernels', 'other') is None
    assert read_cached('runtime', 'key') is None


DAMAGES = {
    'short': lambda content: content[:10],
    'end missing': lambda content: content[:-1],
    'longer': lambda content: content + b'\0',
    'zeros at the end': lambda content: content[:-512] + bytes(512),
    'first bit': lambda content: bytes([content[0] ^ 1]) + content[1:],
    'last bit': lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    'written by an older release': lambda content: CONTENT,
}


@pytest.mark.parametrize('damage', DAMAGES.values(), ids=DAMAGES)
def test_damaged_entry_is_ignored_until_it_is_written_again(
    entry, damage, caplog, golden_messages
):
    entry.write_bytes(damage(entry.read_bytes()))
    assert read_cached('kernels', 'key') is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    golden_messages.add(record.message)
    write_cached('kernels', 'key', CONTENT)
    assert read_cached('kernels', 'key') == CONTENT


def test_only_the_user_may_read_and_write_entries(entry):
    assert stat.S_IMODE(entry.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


@pytest.mark.parametrize('mode', [0o602, 0o666, 0o777])
def test_world_writable_entry_is_ignored(entry, mode):
    entry.chmod(mode)
    assert read_cached('kernels', 'key') is None


@pytest.mark.skipif(os.geteuid() != 0, reason='needs root to change the owner of a file')
def test_entry_of_another_user_is_ignored(entry):
    os.chown(entry, 12345, -1)
    assert read_cached('kernels', 'key') is None


@pytest.mark.parametrize('what', ['fifo', 'folder', 'device', 'ring', 'empty'])
def test_entry_that_is_not_a_file_is_ignored(entry, what):
    entry.unlink()
    if what == 'fifo':
        os.mkfifo(entry)  # a plain read would block for ever
    elif what == 'folder':
        entry.mkdir()
    elif what == 'empty':
        entry.touch()
    else:
        entry.symlink_to({'device': '/dev/zero', 'ring': 'key'}[what])
    assert read_cached('kernels', 'key') is None


def test_failed_write_leaves_no_files(entry, caplog):
    (entry.parent / 'folder').mkdir()
    write_cached('kernels', 'folder', CONTENT)
    assert 'cannot be written' in caplog.text
    assert {path.name for path in entry.parent.iterdir()} == {'key', 'folder'}


def test_recently_used_entries_are_kept():
    for index in range(32):
        write_cached('kernels', f'{index}', CONTENT)
        path = cache_folder('kernels') / f'{index}'
        os.utime(path, (index + 1, index + 1))
    assert read_cached('kernels', '0') == CONTENT  # after this read, the entry is not the oldest
    write_cached('kernels', 'new', CONTENT)
    assert read_cached('kernels', '0') == CONTENT
    assert read_cached('kernels', '1') is None
    assert len(list(cache_folder('kernels').iterdir())) == 32


def test_folder_that_cannot_be_written_gives_a_warning(tmp_path, monkeypatch, caplog):
    (tmp_path / 'file').write_text('')
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
    write_cached('kernels', 'key', CONTENT)
    assert 'cannot be written' in caplog.text
    assert read_cached('kernels', 'key') is None


def test_private_folder_belongs_to_the_user_and_keeps_its_files():
    folder = private_cache_folder('engines', 'key')
    assert folder == cache_folder('engines') / 'key'
    (folder / 'file').write_bytes(CONTENT)
    assert private_cache_folder('engines', 'key') == folder
    assert (folder / 'file').read_bytes() == CONTENT
    assert {stat.S_IMODE(each.stat().st_mode) for each in (folder, folder.parent)} == {0o700}


@pytest.mark.parametrize('mode', [0o720, 0o702, 0o777])
@pytest.mark.parametrize('level', ['folder', 'parent'])
def test_private_folder_that_others_can_write_is_refused(mode, level, caplog):
    folder = private_cache_folder('engines', 'key')
    (folder if level == 'folder' else folder.parent).chmod(mode)
    assert private_cache_folder('engines', 'key') is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.skipif(os.geteuid() != 0, reason='needs root to change the owner of a folder')
def test_private_folder_of_another_user_is_refused():
    os.chown(private_cache_folder('engines', 'key'), 12345, -1)
    assert private_cache_folder('engines', 'key') is None


def test_private_folder_that_is_a_file_is_refused(entry, caplog):
    assert private_cache_folder('kernels', 'key') is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_recently_used_private_folders_are_kept():
    for index in range(8):
        folder = private_cache_folder('engines', f'{index}')
        (folder / 'file').write_bytes(CONTENT)
        os.utime(folder, (index + 1, index + 1))
    private_cache_folder('engines', '0')  # after this use, the folder is not the oldest
    private_cache_folder('engines', 'new')
    assert {path.name for path in cache_folder('engines').iterdir()} == {
        *('0', '2', '3', '4', '5', '6', '7', 'new')
    }
