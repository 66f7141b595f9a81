"""The words that modules take from a library: attributes, names that stand in texts."""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import pathlib
import types

import numpy as np


def parse_package(folder):
    """Return the syntax trees of a package's modules by their dotted names."""
    trees = {}
    for path in sorted(pathlib.Path(folder).rglob('*.py')):
        parts = path.relative_to(pathlib.Path(folder).parent).with_suffix('').parts
        name = '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)
        trees[name] = ast.parse(path.read_text())
    return trees


def nodes_of(trees, *kinds):
    """Return the nodes of these kinds in all modules."""
    return [n for tree in trees.values() for kind in kinds for n in by_kind(tree).get(kind, ())]


def by_kind(tree):
    """Return the nodes of a tree by their kinds; it is gone through once."""
    if not hasattr(tree, 'by_kind'):
        tree.by_kind = {}
        for node in ast.walk(tree):
            tree.by_kind.setdefault(type(node), []).append(node)
    return tree.by_kind


def attributes(trees):
    """Return the name of each attribute that is read, set or asked for."""
    asked = {
        node.args[1].value
        for node in nodes_of(trees, ast.Call)
        if getattr(node.func, 'id', '') in ('getattr', 'hasattr', 'setattr')
        and isinstance(node.args[1], ast.Constant)
    }
    return asked | {node.attr for node in nodes_of(trees, ast.Attribute)}


def looked_up(trees):
    """Return the functions that ask for attributes whose names are no constants."""
    return {
        function.name
        for function in nodes_of(trees, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and getattr(node.func, 'id', '') in ('getattr', 'hasattr', 'setattr')
        and not isinstance(node.args[1], ast.Constant)
    }


def pairs(trees):
    """Return each A.B of attributes of attributes: an enumeration and its member."""
    found = nodes_of(trees, ast.Attribute)
    return {f'{n.value.attr}.{n.attr}' for n in found if isinstance(n.value, ast.Attribute)}


def texts(trees):
    """Return all constant texts."""
    return {n.value for n in nodes_of(trees, ast.Constant) if isinstance(n.value, str)}


def beginnings(trees):
    """Return what stands before a value that is put into a text, back to the last space."""
    return {
        before.value.rpartition(' ')[2]
        for text in nodes_of(trees, ast.JoinedStr)
        for before, value in zip(text.values, text.values[1:], strict=False)
        if isinstance(before, ast.Constant) and isinstance(value, ast.FormattedValue)
    }


def own_words(trees):
    """Return what the modules call something of their own."""
    found = set()
    for node in nodes_of(trees, ast.FunctionDef, ast.ClassDef, ast.Attribute, ast.AnnAssign):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign):
            found.add(getattr(node.target, 'id', ''))
        elif isinstance(node.ctx, ast.Store) and getattr(node.value, 'id', '') == 'self':
            found.add(node.attr)
    return found


def imported_words(trees):
    """Return the attributes of Python's own types, NumPy's arrays, and of what is imported."""
    known = [*vars(builtins).values(), types.FunctionType, types.ModuleType, np.ndarray, np.dtype]
    for node in nodes_of(trees, ast.Import, ast.ImportFrom):
        with contextlib.suppress(ImportError, AttributeError):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    module = importlib.import_module(alias.name)
                    known += [module, *vars(module).values()]
            else:
                module = importlib.import_module(node.module)
                known += [getattr(module, alias.name) for alias in node.names]
    return {word for each in known for word in dir(each)}
