# SPDX-License-Identifier: Apache-2.0
"""Collect the names that modules use from a library: attributes, and names in strings.

The argument ``trees`` maps paths of modules to syntax trees.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import types

import numpy as np

from support import source_trees


def nodes_of(trees, *kinds):
    return source_trees.nodes_of(trees.values(), *kinds)


def attributes(trees):
    """Return the names of all attributes that are read, set or looked up."""
    asked = {
        node.args[1].value
        for node in nodes_of(trees, ast.Call)
        if getattr(node.func, 'id', '') in ('getattr', 'hasattr', 'setattr')
        and isinstance(node.args[1], ast.Constant)
    }
    return asked | {node.attr for node in nodes_of(trees, ast.Attribute)}


def functions_with_computed_names(trees):
    """Return the functions that look up attributes by variable names."""
    return {
        function.name
        for function in nodes_of(trees, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and getattr(node.func, 'id', '') in ('getattr', 'hasattr', 'setattr')
        and not isinstance(node.args[1], ast.Constant)
    }


def pairs(trees):
    """Return each pair A.B of nested attributes, such as an enumeration and its member."""
    found = nodes_of(trees, ast.Attribute)
    return {f'{n.value.attr}.{n.attr}' for n in found if isinstance(n.value, ast.Attribute)}


def texts(trees):
    """Return all string constants."""
    return {n.value for n in nodes_of(trees, ast.Constant) if isinstance(n.value, str)}


def beginnings(trees):
    """Return the part of a word before each inserted value of an f-string."""
    return {
        before.value.rpartition(' ')[2]
        for text in nodes_of(trees, ast.JoinedStr)
        for before, value in zip(text.values, text.values[1:], strict=False)
        if isinstance(before, ast.Constant) and isinstance(value, ast.FormattedValue)
    }


def defined_names(trees):
    """Return the names that the modules define."""
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
    """Return the attributes of built-in types, of NumPy arrays, and of imported objects."""
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
