"""Following a library's objects through a package; ``api_flow`` says by which rules."""

from __future__ import annotations

import ast
import re
from collections import defaultdict

from api_flow import COMPREHENSIONS
from api_flow import NONE
from api_flow import Api
from api_flow import Class
from api_flow import External
from api_flow import Function
from api_flow import Many
from api_flow import Module
from api_flow import Object
from api_flow import Row
from api_flow import Scope
from api_flow import Text
from api_flow import elements
from api_flow import merged
from api_flow import modules_around
from api_flow import stored_names
from api_uses import Uses


class Names(Uses):
    """What a package takes from a library.

    Args:
        trees: the package's modules, from parse_package.
        roots: the library's modules and how their names begin in the table.
        strings: regular expression of the constant strings that are followed, too.
        results: class of what a method returns or an attribute holds, empty for Python's own;
            None where what calls return is of no interest.
        lookup: qualified name of the package's function that looks a dotted name up.

    Attributes:
        used: each name, with the functions that use it.
        beginnings: of names that end with what is only known when the program runs.
        unknown: attributes of objects whose class ``results`` does not say.
        dynamic: functions that look up names which are no constants.
        lost: calls through which an object cannot be followed.
        outside: functions that are not in these modules and are given objects, or what holds them.
        trees: the modules that were followed.
    """

    def __init__(self, trees, roots, strings, results=None, lookup=''):
        self.trees, self.roots, self.results, self.lookup = trees, roots, results, lookup
        self._strings = re.compile(strings)
        self.used = defaultdict(set)
        self.beginnings, self.unknown = set(), set()
        self.dynamic, self.lost, self.outside = set(), set(), set()
        self._values = defaultdict(frozenset)
        self._readers = defaultdict(set)
        self._made, self._forward = {}, {}
        self._modules = {
            name: Scope(None, stored_names(tree), name) for name, tree in trees.items()
        }
        self._units = {}
        self._pending = {(tree, self._modules[name]): None for name, tree in trees.items()}
        self._settle()
        for found in (self.used, self.beginnings, self.unknown, self.dynamic, self.lost):
            found.clear()  # of what was not known yet
        self._pending = dict(self._units)
        self._settle()

    def _settle(self):
        while self._pending:
            self._unit = next(iter(self._pending))
            del self._pending[self._unit]
            self._units[self._unit] = None
            node, scope = self._unit
            if isinstance(node, ast.Lambda):
                self._bind((scope.function, 'return'), self._eval(node.body, scope))
            else:
                self._run(node.body, scope)

    # --- definitions -----------------------------------------------------------------------------

    def _function(self, node, scope, owner=None):
        if node not in self._made:
            inner = Scope(scope, stored_names(node), f'{scope.where}.{getattr(node, "name", "")}')
            marks = [ast.unparse(mark) for mark in getattr(node, 'decorator_list', ())]
            is_property = any(mark.endswith('property') for mark in marks)
            self._made[node] = inner.function = Function(node, inner, owner, is_property)
            self._pending[node, inner] = None
            arguments = node.args
            known = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            for argument in known:
                if argument.annotation is not None:
                    self._annotated((inner, argument.arg), argument.annotation, scope)
            if owner is not None and known and 'staticmethod' not in marks:
                self._bind((inner, known[0].arg), frozenset({Object(owner)}))
        arguments = node.args
        places = [*arguments.posonlyargs, *arguments.args]
        given = [
            *zip(places[len(places) - len(arguments.defaults) :], arguments.defaults, strict=True)
        ]
        given += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        for argument, default in given:
            if default is not None:
                self._bind((self._made[node].scope, argument.arg), self._eval(default, scope))
        return self._made[node]

    def _class(self, node, scope):
        if node not in self._made:
            made = self._made[node] = Class(node, scope)
            for child in ast.walk(node):
                if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
                    made.attributes.add(child.attr)
        made = self._made[node]
        made.bases |= set().union(*(self._eval(base, scope) for base in node.bases))
        for child in node.body:
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                made.methods[child.name] = self._function(
                    child, Scope(scope, where=f'{scope.where}.{node.name}'), made
                )
                for mark in child.decorator_list:
                    self._call_values(
                        self._eval(mark, scope), [frozenset({made.methods[child.name]})], {}
                    )
            elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
                if child.target.id not in made.attributes | set(made.fields):
                    made.fields.append(child.target.id)
                self._annotated((made, child.target.id), child.annotation, scope)
                if child.value is not None:
                    self._bind((made, child.target.id), self._eval(child.value, scope))
            elif isinstance(child, ast.Assign):
                for target in child.targets:
                    if isinstance(target, ast.Name):
                        made.attributes.add(target.id)
                        self._bind((made, target.id), self._eval(child.value, scope))
        return made

    def _annotated(self, key, annotation, scope):
        """Bind what an annotation names: classes of the package, and of the library."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode='eval').body
        if isinstance(annotation, ast.BinOp):
            self._annotated(key, annotation.left, scope)
            self._annotated(key, annotation.right, scope)
        elif isinstance(annotation, ast.Name | ast.Attribute):
            found = self._eval(annotation, scope)
            kinds = {Object(value) for value in found if isinstance(value, Class)}
            self._bind(key, frozenset(kinds | {v for v in found if isinstance(v, Api)}))

    # --- statements ------------------------------------------------------------------------------

    def _run(self, body, scope):
        for node in body:
            getattr(self, f'_run_{type(node).__name__.lower()}', self._run_other)(node, scope)

    def _run_other(self, node, scope):
        for _, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.expr):
                    self._eval(child, scope)
                elif isinstance(child, ast.stmt):
                    self._run([child], scope)
                elif isinstance(child, ast.ExceptHandler | ast.match_case):
                    self._run_other(child, scope)

    def _run_functiondef(self, node, scope):
        made = frozenset({self._function(node, scope)})
        for mark in node.decorator_list:
            made |= self._call_values(self._eval(mark, scope), [made], {})
        self._bind((scope, node.name), made)

    _run_asyncfunctiondef = _run_functiondef

    def _run_classdef(self, node, scope):
        self._bind((scope, node.name), frozenset({self._class(node, scope)}))

    def _run_import(self, node, scope):
        for alias in node.names:
            path = alias.name if alias.asname else alias.name.split('.')[0]
            self._bind((scope, alias.asname or path), self._imported(path))

    def _run_importfrom(self, node, scope):
        for alias in node.names:
            found = self._imported(f'{node.module}.{alias.name}')
            if node.module in self._modules:
                found = self._read((self._modules[node.module], alias.name)) | {
                    value for value in found if isinstance(value, Module)
                }
            elif node.module in self.roots:
                found = self._attribute(self._imported(node.module), alias.name)
            self._bind((scope, alias.asname or alias.name), found)

    def _imported(self, path):
        if path in self.roots:
            return frozenset({Api(self.roots[path])})
        return frozenset({Module(path) if path in self._modules else External(path)})

    def _run_assign(self, node, scope):
        values = self._eval(node.value, scope)
        for target in node.targets:
            self._assign(target, values, scope)

    def _run_augassign(self, node, scope):
        self._assign(node.target, self._eval(node.value, scope), scope)

    def _run_annassign(self, node, scope):
        if isinstance(node.target, ast.Name):
            self._annotated((scope, node.target.id), node.annotation, scope)
        if node.value is not None:
            self._assign(node.target, self._eval(node.value, scope), scope)

    def _run_for(self, node, scope):
        self._assign(node.target, elements(self._eval(node.iter, scope)), scope)
        self._run([*node.body, *node.orelse], scope)

    def _run_with(self, node, scope):
        for item in node.items:
            values = self._eval(item.context_expr, scope)
            if item.optional_vars is not None:
                entered = self._call_values(self._attribute(values, '__enter__'), [], {})
                self._assign(item.optional_vars, values | entered | elements(values), scope)
        self._run(node.body, scope)

    def _run_return(self, node, scope):
        if node.value is not None:
            self._bind((scope.function, 'return'), self._eval(node.value, scope))

    def _assign(self, target, values, scope):
        if isinstance(target, ast.Name):
            while scope.parent is not None and target.id not in scope.names:
                scope = scope.parent
            self._bind((scope, target.id), values)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, frozenset({Many(values)}), scope)
        elif isinstance(target, ast.Tuple | ast.List):
            starred = any(isinstance(each, ast.Starred) for each in target.elts)
            for index, each in enumerate(target.elts):
                self._assign(each, elements(values, None if starred else index), scope)
        elif isinstance(target, ast.Subscript):
            keys = self._eval(target.slice, scope)
            self._eval(target.value, scope)
            self._assign(target.value, frozenset({Many(values, keys)}), scope)
        elif isinstance(target, ast.Attribute):
            owners = self._eval(target.value, scope)
            self._attribute(owners, target.attr)
            for owner in owners:
                if isinstance(owner, Object) and not self._from_api(owner.kind, target.attr):
                    self._bind((owner.kind, target.attr), values)

    # --- expressions -----------------------------------------------------------------------------

    def _eval(self, node, scope):
        return getattr(self, f'_eval_{type(node).__name__.lower()}', self._eval_other)(node, scope)

    def _eval_other(self, node, scope):
        """Evaluate the parts; choices and sums can be any of them, all else is of no interest."""
        if isinstance(node, COMPREHENSIONS):
            return self._comprehension(node, scope)
        parts = [
            self._eval(child, scope)
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.expr)
        ]
        passes = ast.BoolOp | ast.IfExp | ast.BinOp | ast.Starred | ast.Await
        return frozenset().union(*parts) if isinstance(node, passes) else NONE

    def _eval_name(self, node, scope):
        return self._name(scope, node.id)

    def _eval_constant(self, node, scope):
        return self._text(node.value)

    def _eval_joinedstr(self, node, scope):
        for part in node.values:
            self._eval_other(part, scope)
        return (
            self._text(getattr(node.values[0], 'value', ''), whole=False) if node.values else NONE
        )

    def _text(self, value, *, whole=True):
        follow = isinstance(value, str) and self._strings.fullmatch(value)
        return frozenset({Text(value, whole)}) if follow else NONE

    def _eval_namedexpr(self, node, scope):
        values = self._eval(node.value, scope)
        self._assign(node.target, values, scope)
        return values

    def _eval_tuple(self, node, scope):
        values = [self._eval(each, scope) for each in node.elts]
        if any(isinstance(each, ast.Starred) for each in node.elts):
            return self._eval_list(node, scope)
        return merged({Row(tuple(values))})

    def _eval_list(self, node, scope):
        found = set()
        for each in node.elts:
            values = self._eval(each, scope)
            found |= elements(values) if isinstance(each, ast.Starred) else values
        return merged({Many(merged(found))})

    _eval_set = _eval_list

    def _eval_dict(self, node, scope):
        keys, items = set(), set()
        for key, value in zip(node.keys, node.values, strict=True):
            values = self._eval(value, scope)
            if key is None:
                keys |= elements(values)
                items |= elements(values, 0)
            else:
                keys |= self._eval(key, scope)
                items |= values
        return merged({Many(merged(items), merged(keys))})

    def _eval_lambda(self, node, scope):
        return frozenset({self._function(node, scope)})

    def _eval_yield(self, node, scope):
        if node.value is not None:
            self._bind((scope.function, 'return'), merged({Many(self._eval(node.value, scope))}))
        return NONE

    def _eval_yieldfrom(self, node, scope):
        self._bind((scope.function, 'return'), self._eval(node.value, scope))
        return NONE

    def _eval_subscript(self, node, scope):
        values = self._eval(node.value, scope)
        self._eval(node.slice, scope)
        if isinstance(node.slice, ast.Slice):
            return frozenset(
                {Many(elements(values, 0))} | {v for v in values if isinstance(v, Api)}
            )
        try:
            index = ast.literal_eval(node.slice)
        except ValueError:
            index = None
        if isinstance(index, int):
            return elements(values, index)
        return frozenset().union(*(elements({value}, 2**40) for value in values))

    def _comprehension(self, node, scope):
        if node not in self._made:
            names = set().union(
                *(
                    {n.id for n in ast.walk(part.target) if isinstance(n, ast.Name)}
                    for part in node.generators
                )
            )
            self._made[node] = Scope(scope, names, scope.where, scope.function)
        inner = self._made[node]
        for part in node.generators:
            self._assign(part.target, elements(self._eval(part.iter, inner)), inner)
            for test in part.ifs:
                self._eval(test, inner)
        if isinstance(node, ast.DictComp):
            keys, items = self._eval(node.key, inner), self._eval(node.value, inner)
            return merged({Many(items, keys)})
        return merged({Many(self._eval(node.elt, inner))})


def follow(trees, roots, strings, **options):
    """Return the names of the modules around a library, and of those that objects flow into."""
    some = modules_around(trees, roots)
    while True:
        names = Names(some, roots, strings, **options)
        homes = {path.rpartition('.')[0] for path in names.outside} & set(trees) - set(some)
        if not homes:
            return names
        some |= {home: trees[home] for home in homes}
