# SPDX-License-Identifier: Apache-2.0
"""Compile a stand-in for rcl and rcutils whose structs have the layout of another release."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

COMPILER = shutil.which('cc')
needs_compiler = pytest.mark.skipif(COMPILER is None, reason='needs a C compiler, cc')

#: Macros of rcl_stand_in.c that change one struct.
CHANGED_LAYOUTS = {
    'allocator has another member': {'ALLOCATOR_END': 'void *next;'},
    'allocator is twice as large': {'ALLOCATOR_END': 'void *next[5];'},
    # The two members that Lyrical added to rosidl's sequences.
    'array has two flags before the allocator': {'ARRAY_MIDDLE': 'bool is_buffer, owns_buffer;'},
    'array has two flags at its end': {'ARRAY_END': 'bool is_buffer, owns_buffer;'},
    'message info has another member': {'INFO_MIDDLE': 'uint64_t next;'},
    'message info has another member at its end': {'INFO_END': 'uint64_t next;'},
    'wait set has another kind of entity': {'WAIT_SET_MIDDLE': 'void **more; size_t more_count;'},
}


def compile_stand_in(folder, macros):
    """Return the path of the stand-in, compiled with these macros."""
    library = folder / 'librcl_stand_in.so'
    defined = [f'-D{name}={value}' for name, value in macros.items()]
    source = Path(__file__).with_suffix('.c')
    command = [COMPILER, '-shared', '-fPIC', '-O1', '-Wall', '-Werror', *defined]
    subprocess.run([*command, source, '-o', library], check=True)
    return str(library)


def load_instead_of_rcl(monkeypatch, library):
    """Make ctypes load this library under the names of rcl and rcutils."""
    for loader in ('CDLL', 'PyDLL'):
        load = getattr(ctypes, loader)
        monkeypatch.setattr(
            ctypes,
            loader,
            lambda name, *given, load=load, **options: load(
                library if name in ('librcl.so', 'librcutils.so') else name, *given, **options
            ),
        )
