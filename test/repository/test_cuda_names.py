"""Every name of CUDA that the code uses exists in every cuda-bindings that is supported."""

from __future__ import annotations

import ast
import functools
import json
import re
from enum import EnumMeta
from pathlib import Path

import cuda_recorder
import fake_cuda
import pytest
from api_flow import parse_package
from api_names import follow
from rename_locals import rename_locals

import trt_perception

pytestmark = pytest.mark.unmeasured
TABLE = json.loads((Path(__file__).parents[1] / 'data' / 'cuda_api.json').read_text())
EVERYWHERE = set(TABLE['names']['1' * len(TABLE['releases'])])
MODULES = ('driver', 'nvrtc', 'runtime')
ROOTS = {f'cuda.bindings.{name}': name for name in MODULES}
FUNCTIONS = r'(cuda|cu|nvrtc)[A-Z]\w+'
STATUSES = r"'(cudaError[A-Z]\w+|CUDA_ERROR_\w+)'"
PACKAGE = Path(trt_perception.__file__).parent


@functools.cache
def names():
    return follow(parse_package(PACKAGE), ROOTS, FUNCTIONS)


def status_names():
    """Return the statuses that the sources spell out as text, with their enumeration."""
    texts = [path.read_text() for path in PACKAGE.rglob('*.py')]
    found = {text for source in texts for text in re.findall(STATUSES, source)}
    return {
        ('driver.CUresult.' if name.startswith('CUDA') else 'runtime.cudaError_t.') + name
        for name in found
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
    } <= set(names().used)
    assert len(status_names()) >= 20


def test_every_object_of_cuda_is_followed():
    assert not names().dynamic
    assert not names().lost


def test_names_of_variables_do_not_matter():
    renamed = rename_locals(names().trees)
    assert set(follow(renamed, ROOTS, FUNCTIONS).used) == set(names().used)
    nodes = [node for tree in renamed.values() for node in ast.walk(tree)]
    variables = {node.id for node in nodes if isinstance(node, ast.Name)}
    assert {'renamed_module', 'renamed_status', 'renamed_function'} <= variables


def test_a_name_that_no_release_has_is_found_wherever_it_is_used():
    found = follow(
        {
            'package.bindings': ast.parse(
                'def load():\n'
                '    from cuda.bindings import driver, runtime as other\n'
                '    other.cudaDirect()\n'
                '    return driver, other\n'
                'def call(what, *arguments):\n'
                '    status, *values = getattr(load()[1], what)(*arguments)\n'
                '    return values\n'
            ),
            'package.use': ast.parse(
                'import package.bindings as ours\n'
                'from package.bindings import call, load\n'
                "call('cudaByText')\n"
                "ours.call('cudaByModule')\n"
                'd, _ = load()\n'
                'd.CUnone.CU_NONE\n'
                'x = call\n'
                "x('cudaByVariable', d.cuArgument)\n"
            ),
        },
        ROOTS,
        FUNCTIONS,
    )
    assert set(found.used) == {
        *('runtime.cudaDirect', 'runtime.cudaByText', 'runtime.cudaByModule'),
        *('runtime.cudaByVariable', 'driver.CUnone', 'driver.CUnone.CU_NONE', 'driver.cuArgument'),
    }
    assert not set(found.used) & EVERYWHERE


def test_every_name_exists_in_every_supported_release():
    used = {*names().used, *status_names()}
    assert len(used) > 80
    assert used <= EVERYWHERE


def test_the_stand_in_has_no_names_of_its_own():
    known = set()
    for module_name, module in zip(MODULES, fake_cuda.bindings(), strict=True):
        for name, value in vars(module).items():
            known.add(f'{module_name}.{name}')
            if isinstance(value, EnumMeta):
                known |= {f'{module_name}.{name}.{member}' for member in value.__members__}
    assert known <= EVERYWHERE
    assert set(names().used) <= known
    functions = {name.split('.')[1] for name in EVERYWHERE}
    assert set(cuda_recorder.RELEASED_BY) | set(cuda_recorder.RELEASES) <= functions
