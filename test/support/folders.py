# SPDX-License-Identifier: Apache-2.0
"""Read the files of a folder, or the paths of open files, to compare them after a call."""

import contextlib
import os


def contents_by_path(folder):
    """Map the path of each file below a folder, relative to the folder, to the file's bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob('*'))
        if path.is_file()
    }


def open_paths():
    """Return the paths of the open files of this process."""
    paths = set()
    for name in os.listdir('/proc/self/fd'):
        # Threads of libraries may close files meanwhile.
        with contextlib.suppress(FileNotFoundError):
            paths.add(os.readlink(f'/proc/self/fd/{name}'))
    return paths
