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
SOURCES = sorted((Path(trt_perception.__file__).parent / 'gpu').glob('*.py'))
CALLS = {'call': 'runtime', 'driver_call': 'driver', 'nvrtc_call': 'nvrtc'}
MODULES = ('driver', 'nvrtc', 'runtime')


def chain(node):
    """Return the parts of a().b.c, empty for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    module = getattr(node.func, 'id', '') if isinstance(node, ast.Call) else ''
    return [module, *reversed(parts)] if module in MODULES else []


def nodes():
    """Return every node of the sources' syntax trees."""
    for source in SOURCES:
        yield from ast.walk(ast.parse(source.read_text()))


def used_names():
    """Return each name that the sources take from the bindings, with its module."""
    found = set()
    for node in nodes():
        if isinstance(node, ast.Call) and getattr(node.func, 'id', '') in CALLS:
            name = node.args[0]
            if isinstance(name, ast.Constant):
                found.add(f'{CALLS[node.func.id]}.{name.value}')
        parts = chain(node)
        if len(parts) > 1:
            found.add('.'.join(parts))
    return found


def sticky_names():
    """Return the statuses that the sources spell out, with their enumeration."""
    for node in nodes():
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
