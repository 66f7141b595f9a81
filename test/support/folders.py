# SPDX-License-Identifier: Apache-2.0
"""Read the files of a folder, to compare them before and after a call."""


def contents_by_path(folder):
    """Map the path of each file below a folder, relative to the folder, to the file's bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob('*'))
        if path.is_file()
    }
