"""Every name of CUDA that the code uses exists in every cuda-bindings that is supported."""

from __future__ import annotations

import ast
import json
from enum import EnumMeta
from pathlib import Path

import cuda_recorder
import fake_cuda
import pytest

import trt_perception

TABLE = json.loads((Path(__file__).parents[1] / 'data' / 'cuda_api.json').read_text())
EVERYWHERE = set(TABLE['names']['1' * len(TABLE['releases'])])
SOURCE = Path(trt_perception.__file__).parent / 'gpu.py'
CALLS = {'_call': 'runtime', '_driver_call': 'driver', '_nvrtc_call': 'nvrtc'}
MODULES = ('driver', 'nvrtc', 'runtime')
# What stands behind a variable's name in the source.
OBJECTS = {'attribute': ['runtime', 'cudaDeviceAttr']}


def chain(node):
    """Return the parts of a.b.c, empty for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [*([node.id] if isinstance(node, ast.Name) else []), *reversed(parts)]


def used_names():
    """Return each name that the source takes from the bindings, with its module."""
    found = set()
    for node in ast.walk(ast.parse(SOURCE.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, 'id', '') in CALLS:
            name = node.args[0]
            if isinstance(name, ast.Constant):
                found.add(f'{CALLS[node.func.id]}.{name.value}')
        parts = chain(node)
        parts = OBJECTS.get(parts[0], parts[:1]) + parts[1:] if parts else []
        if len(parts) > 1 and parts[0] in MODULES:
            found.add('.'.join(parts))
    return found


def sticky_names():
    """Return the statuses that the source spells out, with their enumeration."""
    for node in ast.walk(ast.parse(SOURCE.read_text())):
        if isinstance(node, ast.AnnAssign) and getattr(node.target, 'id', '') == '_STICKY':
            names = ast.literal_eval(node.value)
            break
    return {
        ('driver.CUresult.' if name.startswith('CUDA') else 'runtime.cudaError_t.') + name
        for name in names
    }


def test_the_table_holds_what_is_supported():
    assert TABLE['releases'][0] == '12.9'
    assert {'13.0', '13.5'} <= set(TABLE['releases'])


def test_the_source_uses_names_of_every_kind():
    assert {
        'runtime.cudaMalloc',
        'runtime.cudaHostAllocMapped',
        'runtime.cudaDeviceAttr.cudaDevAttrIntegrated',
        'driver.cuLaunchKernel',
        'driver.CUresult.CUDA_SUCCESS',
        'nvrtc.nvrtcGetCUBIN',
    } <= used_names()
    assert len(sticky_names()) >= 20


@pytest.mark.parametrize('name', sorted(used_names() | sticky_names()))
def test_name_exists_in_every_supported_release(name):
    assert name in EVERYWHERE


def test_the_stand_in_has_no_names_of_its_own():
    names = set()
    for module_name, module in zip(MODULES, fake_cuda.bindings(), strict=True):
        for name, value in vars(module).items():
            names.add(f'{module_name}.{name}')
            if isinstance(value, EnumMeta):
                names |= {f'{module_name}.{name}.{member}' for member in value.__members__}
    assert names <= EVERYWHERE
    assert used_names() <= names
    functions = {name.split('.')[1] for name in EVERYWHERE}
    assert set(cuda_recorder.RELEASED_BY) | set(cuda_recorder.RELEASES) <= functions
