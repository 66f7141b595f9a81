"""Other names for all variables of functions, to show that a check of sources needs none."""

from __future__ import annotations

import ast
import copy

from api_flow import stored_names

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SCOPES = (*_FUNCTIONS, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


class _Renamer(ast.NodeTransformer):
    def __init__(self, names, methods):
        self._names, self._methods = names, methods

    def _new(self, name):
        return f'renamed_{name}' if name in self._names else name

    def visit_Name(self, node):
        node.id = self._new(node.id)
        return node

    def visit_arg(self, node):
        node.arg = self._new(node.arg)
        return self.generic_visit(node)

    def visit_ExceptHandler(self, node):
        node.name = self._new(node.name)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node):
        if node not in self._methods:
            node.name = self._new(node.name)
        return self.generic_visit(node)

    def visit_ClassDef(self, node):
        node.name = self._new(node.name)
        return self.generic_visit(node)


def _imported(node):
    aliases = [child for child in ast.walk(node) if isinstance(child, ast.alias)]
    return {alias.asname or alias.name.split('.')[0] for alias in aliases}


def rename_locals(trees):
    """Return the modules with each variable and parameter of a function renamed.

    Parameters that some call names keep their names.
    """
    trees = copy.deepcopy(trees)
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    kept = {node.arg for node in nodes if isinstance(node, ast.keyword)}
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    methods = {child for node in classes for child in node.body}
    for tree in trees.values():
        pending = [*tree.body]
        while pending:
            node = pending.pop()
            if not isinstance(node, _FUNCTIONS):
                pending += ast.iter_child_nodes(node)
                continue
            inner = [child for child in ast.walk(node) if isinstance(child, _SCOPES)]
            names = set().union(*map(stored_names, inner))
            arguments = {child.arg for child in ast.walk(node) if isinstance(child, ast.arg)}
            targets = [child for child in ast.walk(node) if isinstance(child, ast.Name)]
            names |= {child.id for child in targets if isinstance(child.ctx, ast.Store)}
            renamer = _Renamer(names - _imported(node) - (arguments & kept), methods | {node})
            renamer.visit(node)
    return trees
