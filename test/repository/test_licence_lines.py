# SPDX-License-Identifier: Apache-2.0
"""Check that each source file names its licence in the form of SPDX."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r'^(?:#|//) SPDX-License-Identifier: Apache-2\.0$', re.M)
SUFFIXES = ('.py', '.sh', '.cu', '.cuh')


def source_files():
    """Return the tracked programs and modules of this package."""
    listed = subprocess.run(
        ['git', 'ls-files', '-z'], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = [name for name in listed.stdout.split('\0') if name]
    return [name for name in names if name.endswith(SUFFIXES) or is_script(ROOT / name)]


def is_script(path):
    if path.suffix or path.is_symlink() or not path.is_file():
        return False
    if path.parent == ROOT / 'scripts':  # scripts/env is sourced, so it has no line #!
        return True
    with path.open('rb') as file:
        return file.read(2) == b'#!'


def test_each_source_file_names_the_licence_at_its_start():
    if not (ROOT / '.git').exists():
        pytest.skip('needs the Git repository')
    files = source_files()
    assert 'trt_perception/api.py' in files
    assert {'scripts/check', 'scripts/env'} <= set(files)
    missing = [
        name
        for name in files
        # Below a line #!, above everything else.
        if not any(LINE.match(line) for line in (ROOT / name).read_text().splitlines()[:2])
    ]
    assert missing == []
