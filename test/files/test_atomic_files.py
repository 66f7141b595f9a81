# SPDX-License-Identifier: Apache-2.0
"""Tests of writing several files together or not at all."""

import errno
import os
import re
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support.programs import small_disk
from trt_perception.errors import WriteError
from trt_perception.files.atomic_files import write_atomically


def list_names(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def without_free_space(error):
    return re.sub(r'[0-9.]+ [MG]iB free', 'N MiB free', str(error))


def test_writing_no_files_changes_nothing(tmp_path):
    write_atomically({})
    assert list_names(tmp_path) == {}


def test_new_files_appear_and_old_files_are_replaced(tmp_path):
    (tmp_path / 'b').write_bytes(b'old')
    write_atomically({tmp_path / 'a': b'1', tmp_path / 'b': b''})
    assert list_names(tmp_path) == {'a': b'1', 'b': b''}


def test_link_is_replaced_and_its_target_stays(tmp_path):
    target = tmp_path / 'target'
    target.write_bytes(b'theirs')
    (tmp_path / 'link').symlink_to(target)
    write_atomically({tmp_path / 'link': b'ours'})
    assert target.read_bytes() == b'theirs'
    assert (tmp_path / 'link').read_bytes() == b'ours'
    assert not (tmp_path / 'link').is_symlink()


def test_files_are_never_world_writable(tmp_path):
    before = os.umask(0)
    try:
        write_atomically({tmp_path / 'a': b'1'})
        assert os.umask(0) == 0  # the umask of the process is unchanged
    finally:
        os.umask(before)
    mode = stat.S_IMODE((tmp_path / 'a').stat().st_mode)
    assert mode & stat.S_IWOTH == 0
    assert mode & stat.S_IRUSR


@pytest.mark.parametrize('existing', [True, False])
def test_one_file_that_cannot_be_written_leaves_all_unchanged(tmp_path, existing, golden_messages):
    if existing:
        (tmp_path / 'a').write_bytes(b'old')
    before = list_names(tmp_path)
    with golden_messages.raises(WriteError):
        write_atomically({tmp_path / 'a': b'new', tmp_path / 'missing' / 'b': b'new'})
    (tmp_path / 'folder').mkdir()
    with pytest.raises(WriteError) as caught:
        write_atomically({tmp_path / 'a': b'new', tmp_path / 'folder': b'new'})
    golden_messages.add(without_free_space(caught.value))
    with golden_messages.raises(WriteError):
        write_atomically({tmp_path / 'a': b'new', Path('/dev/null/b'): b'new'})
    assert list_names(tmp_path) == before


@pytest.mark.parametrize('number', [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
def test_error_gives_a_fix_for_its_reason(tmp_path, monkeypatch, number, golden_messages):
    def refuse(**_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, 'mkstemp', refuse)
    with pytest.raises(WriteError) as caught:
        write_atomically({tmp_path / 'a': b'new'})
    golden_messages.add(without_free_space(caught.value))


@pytest.mark.parametrize('existing', [True, False])
@pytest.mark.parametrize('error', [OSError(5, 'Input/output error'), KeyboardInterrupt()])
@pytest.mark.parametrize('links', [True, False])
@pytest.mark.parametrize('stem', ['', 'x' * 100])
def test_failed_rename_undoes_earlier_renames(tmp_path, monkeypatch, existing, error, links, stem):
    first, second = tmp_path / f'{stem}a', tmp_path / f'{stem}b'
    if existing:
        first.write_bytes(b'old a')
        second.write_bytes(b'old b')
    before = list_names(tmp_path)
    replace = Path.replace

    def refuse(self, target):
        if target == second and self.read_bytes() == b'new b':
            raise error
        return replace(self, target)

    def no_links(*_, **__):
        raise PermissionError(1, 'Operation not permitted')

    monkeypatch.setattr(Path, 'replace', refuse)
    if not links:
        monkeypatch.setattr(os, 'link', no_links)
    with pytest.raises((WriteError, KeyboardInterrupt)):
        write_atomically({first: b'new a', second: b'new b'})
    assert list_names(tmp_path) == before


FULL = """
import sys
from pathlib import Path
from trt_perception.files.atomic_files import write_atomically
from trt_perception.errors import WriteError
folder = Path(sys.argv[1])
try:
    write_atomically({folder / 'a': b'new', folder / 'b': bytes(200_000)})
except WriteError as error:
    print(error)
    sys.exit(1)
"""


def test_full_disk_leaves_existing_files(tmp_path):
    (tmp_path / 'b').write_bytes(b'old')
    done = subprocess.run(
        [sys.executable, '-c', FULL, str(tmp_path)],
        **small_disk(100_000),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 1, done.stderr
    assert 'File too large (195.3 KiB ' in done.stdout
    assert list_names(tmp_path) == {'b': b'old'}
