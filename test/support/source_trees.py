# SPDX-License-Identifier: Apache-2.0
"""Parse the syntax trees of the package once for all tests of a process."""

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / 'trt_perception'


@functools.cache
def tree_of(path):
    """Return the syntax tree of a Python file."""
    return ast.parse(path.read_text(encoding='utf-8'))


@functools.cache
def package_trees():
    """Return the tree of each module by its path below the package, such as 'stages/nms.py'."""
    paths = sorted(PACKAGE.rglob('*.py'))
    return {path.relative_to(PACKAGE).as_posix(): tree_of(path) for path in paths}


@functools.cache
def nodes_by_kind(tree):
    """Return a dictionary of all nodes of a tree by node type."""
    nodes = {}
    for node in ast.walk(tree):
        nodes.setdefault(type(node), []).append(node)
    return nodes


def nodes_of(trees, *kinds):
    """Return the nodes of these types in all trees."""
    return [n for tree in trees for kind in kinds for n in nodes_by_kind(tree).get(kind, ())]
