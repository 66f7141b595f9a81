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


def open_paths(process='self'):
    """Return the paths of the open files of a process, given by its id, or of this process."""
    paths = set()
    for name in os.listdir(f'/proc/{process}/fd'):
        # Threads may close files meanwhile.
        with contextlib.suppress(FileNotFoundError):
            paths.add(os.readlink(f'/proc/{process}/fd/{name}'))
    return paths
