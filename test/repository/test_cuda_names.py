# SPDX-License-Identifier: Apache-2.0
"""Check that all supported cuda-bindings releases have every CUDA name that the code uses."""

from __future__ import annotations

import ast
import json
import re
from enum import EnumMeta
from pathlib import Path

from support.gpu import cuda_recorder, fake_cuda
from support.library_words import attributes, beginnings, pairs, texts
from support.source_trees import package_trees as package

TABLE = json.loads((Path(__file__).parents[1] / 'data' / 'cuda_api.json').read_text())
EVERYWHERE = set(TABLE['names']['1' * len(TABLE['releases'])])
MODULES = ('driver', 'nvrtc', 'runtime')
WORDS = {word for name in EVERYWHERE for word in name.split('.')[1:]}
# CUDA names match this pattern. Names of other libraries do not.
NAME = r'(cuda|cu|nvrtc)[A-Z]\w*|CU[a-z]\w+|(CU|CUDA|NVRTC)_\w+'
STATUSES = r'cudaError[A-Z]\w+|CUDA_ERROR_\w+'


def names_in(trees):
    """Return the attributes and string constants that look like CUDA names."""
    found = attributes(trees) | texts(trees)
    return {word for word in found if re.fullmatch(NAME, word)}


def status_names():
    """Return the CUDA statuses in string constants, with the enumeration in front."""
    return {
        ('driver.CUresult.' if name.startswith('CUDA') else 'runtime.cudaError_t.') + name
        for name in texts(package())
        if re.fullmatch(STATUSES, name)
    }


def test_no_cuda_name_is_computed_at_run_time():
    name_beginnings = {text for text in beginnings(package()) if re.fullmatch(NAME, f'{text}A')}
    assert name_beginnings == set()


def test_unknown_cuda_name_is_found_in_every_kind_of_use():
    source = """
def load():
    from cuda.bindings import driver, runtime as other
    other.cudaDirect()
    return driver, other
call('cudaByText')
d.CUnone.CU_NONE
x('cudaByVariable', d.cuArgument, getattr(d, 'CUDA_ASKED'))
"""
    found = names_in({'package.use': ast.parse(source)})
    assert found == {
        *('cudaDirect', 'cudaByText', 'CUnone', 'CU_NONE', 'cudaByVariable', 'cuArgument'),
        'CUDA_ASKED',
    }
    assert not found & WORDS


def test_every_cuda_name_exists_in_every_supported_release():
    assert {'12.9', '13.0', '13.5'} <= set(TABLE['releases'])
    found = names_in(package())
    assert len(found) > 60
    assert len(status_names()) >= 20
    assert found - {'CUDA_VISIBLE_DEVICES'} <= WORDS
    assert status_names() <= EVERYWHERE
    kinds = {name.split('.')[1] for name in EVERYWHERE}
    members = {pair for pair in pairs(package()) if pair.split('.')[0] in kinds}
    assert len(members) > 5
    assert members <= {name.partition('.')[2] for name in EVERYWHERE}


def test_stand_in_for_cuda_has_only_real_names():
    stand_in_names = set()
    for module_name, module in zip(MODULES, fake_cuda.bindings(), strict=True):
        for name, value in vars(module).items():
            stand_in_names.add(f'{module_name}.{name}')
            if isinstance(value, EnumMeta):
                stand_in_names |= {
                    f'{module_name}.{name}.{member}' for member in value.__members__
                }
    assert stand_in_names <= EVERYWHERE
    status_words = {name.rpartition('.')[2] for name in status_names()}
    used = names_in(package()) - status_words - {'CUDA_VISIBLE_DEVICES'}
    assert len(used) > 50
    assert used <= {name.rpartition('.')[2] for name in stand_in_names}
    functions = {name.split('.')[1] for name in EVERYWHERE}
    assert set(cuda_recorder.RELEASED_BY) | set(cuda_recorder.CREATED_BY) <= functions
