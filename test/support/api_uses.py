"""Attributes and calls of what a package takes from a library; ``api_names`` finds them."""

from __future__ import annotations

import ast

from api_flow import CONSUME
from api_flow import FORWARDED
from api_flow import KEEP
from api_flow import NONE
from api_flow import TAKE
from api_flow import Api
from api_flow import Bound
from api_flow import Class
from api_flow import External
from api_flow import Function
from api_flow import Many
from api_flow import Module
from api_flow import Object
from api_flow import Row
from api_flow import Text
from api_flow import elements
from api_flow import leaves
from api_flow import merged

_LOOK_UP = {'getattr', 'hasattr', 'setattr'}


class Uses:
    """What is known of each variable, and what attributes and calls of it give."""

    def _bind(self, key, values):
        before = self._values[key]
        after = merged(before | values)
        if after != before:
            self._values[key] = after
            self._pending.update(dict.fromkeys(self._readers[key]))

    def _read(self, key):
        self._readers[key].add(self._unit)
        return self._values[key]

    def _use(self, path):
        """Note a name; return what it stands for."""
        if '__' in path:
            return NONE
        self.used[path].add(self._unit[1].where)
        return NONE if (self.results or {}).get(path) == '' else frozenset({Api(path)})

    def _name(self, scope, name):
        while scope is not None:
            if name in scope.names:
                return self._read((scope, name))
            scope = scope.parent
        return frozenset({External(name)})

    # --- attributes ------------------------------------------------------------------------------

    def _eval_attribute(self, node, scope):
        return self._attribute(self._eval(node.value, scope), node.attr)

    def _attribute(self, owners, name):
        found = set()
        for owner in owners:
            if isinstance(owner, Api):
                found |= self._of_api(owner.path, name)
            elif isinstance(owner, External):
                found |= self._imported(f'{owner.path}.{name}')
            elif isinstance(owner, Module):
                path = f'{owner.name}.{name}'
                found |= self._imported(path) if path in self._modules else NONE
                found |= self._read((self._modules[owner.name], name))
            elif isinstance(owner, Object):
                found |= self._of_object(owner, owner.kind, name)
            elif isinstance(owner, Class):
                found |= self._read((owner, name)) | {
                    made.methods[name] for made in self._line(owner) if name in made.methods
                }
        return frozenset(found)

    def _of_api(self, path, name):
        kind = path
        if (self.results is not None and path.split('.')[-1][:1].islower()) or path in (
            self.results or ()
        ):
            kind = self.results.get(path)
            if kind is None:
                self.unknown.add(f'{path}.{name}')
                return NONE
        return self._use(f'{kind}.{name}' if kind else name)

    def _line(self, kind):
        """Return a class and those of the package that it is derived from."""
        line = [kind]
        for each in line:
            line += [base for base in each.bases if isinstance(base, Class) and base not in line]
        return line

    def _from_api(self, kind, name):
        """Return the library's classes that an attribute of a derived class comes from."""
        line = self._line(kind)
        if any(name in each.attributes or name in each.methods for each in line):
            return []
        return [base.path for each in line for base in each.bases if isinstance(base, Api)]

    def _of_object(self, owner, kind, name):
        found = set()
        for each in self._line(kind):
            found |= self._read((each, name))
            method = each.methods.get(name)
            if method is not None and method.is_property:
                found |= self._read((method, 'return'))
            elif method is not None:
                found.add(Bound(method, owner))
        for path in self._from_api(kind, name):
            found |= self._of_api(path, name)
        return found

    # --- calls -----------------------------------------------------------------------------------

    def _eval_call(self, node, scope):
        arguments = []
        for each in node.args:
            values = self._eval(each, scope)
            if isinstance(each, ast.Starred):
                rows = [value for value in values if isinstance(value, Row)]
                if rows and len(values) == 1:
                    arguments += rows[0].items
                else:
                    arguments += [elements(values, 0)] * 12  # however many they are
            else:
                arguments.append(values)
        keywords = {each.arg: self._eval(each.value, scope) for each in node.keywords}
        if isinstance(node.func, ast.Attribute):
            owners = self._eval(node.func.value, scope)
            if any(isinstance(value, Row | Many) for value in owners):
                return self._container_call(node.func, owners, arguments, scope)
        callees = self._eval(node.func, scope)
        if External('getattr') in callees and self._is_forwarded(node, scope):
            return frozenset({External(FORWARDED)})
        if any(self._looks_up(callee) for callee in callees):
            arguments = [
                values | {Text(each.value)} if isinstance(each, ast.Constant) else values
                for each, values in zip(node.args, arguments, strict=False)
            ]
        return self._call_values(callees, arguments, keywords, ast.unparse(node.func), scope)

    def _is_forwarded(self, node, scope):
        """Leave getattr(module, name) of two parameters to each call of the function."""
        places = [a.arg for a in scope.function.node.args.args] if scope.function else []
        names = [getattr(each, 'id', '') for each in node.args[:2]]
        if len(node.args) != 2 or not set(names) <= set(places):
            return False
        self._forward[scope.function] = [places.index(name) for name in names]
        return True

    def _looks_up(self, callee):
        if isinstance(callee, External):
            return callee.path in _LOOK_UP
        function = callee.function if isinstance(callee, Bound) else callee
        return isinstance(function, Function) and self._is_lookup(function)

    def _is_lookup(self, function):
        return bool(self.lookup) and function.scope.where.endswith(self.lookup)

    def _container_call(self, called, owners, arguments, scope):
        keys, items = elements(owners), elements(owners, 0)
        given = frozenset().union(*arguments)
        if called.attr in ('append', 'add', 'appendleft', 'insert'):
            self._assign(called.value, frozenset({Many(given)}), scope)
        elif called.attr in ('extend', 'update'):
            self._assign(called.value, given, scope)
        elif called.attr in ('items',):
            return merged({Many(frozenset({Row((keys, items))}))})
        elif called.attr == 'keys':
            return merged({Many(keys)})
        elif called.attr == 'values':
            return merged({Many(items)})
        else:  # get, pop and their like
            return items | given
        return NONE

    def _call_values(self, callees, arguments, keywords, text='', scope=None):
        found = set()
        for callee in callees:
            if isinstance(callee, Bound):
                self._bind_arguments(callee.function, [{callee.owner}, *arguments], keywords)
                found |= self._result(callee.function, arguments)
            elif isinstance(callee, Function):
                self._bind_arguments(callee, arguments, keywords)
                found |= self._result(callee, arguments)
            elif isinstance(callee, Class):
                found |= self._construct(callee, arguments, keywords)
            elif isinstance(callee, Api):
                found |= {callee} if self.results is not None else NONE
            elif isinstance(callee, External):
                if self._holds_api(arguments, keywords, deep=True):
                    self.outside.add(callee.path)
                found |= self._external(callee.path, arguments, keywords, scope)
        if not callees and self._holds_api(arguments, keywords):
            self.lost.add(f'{scope.where if scope else ""}: {text}')
        return frozenset(found)

    def _result(self, function, arguments):
        if self._is_lookup(function):
            texts = {v for values in arguments for v in leaves(values) if isinstance(v, Text)}
            self.beginnings |= {text.value for text in texts if not text.whole}
            names = [self._use(text.value) for text in texts if text.whole]
            return frozenset().union(*names)
        return self._read((function, 'return'))

    def _bind_arguments(self, function, arguments, keywords):
        given = function.node.args
        if function in self._forward and len(arguments) > max(self._forward[function]):
            owner, name = (arguments[index] for index in self._forward[function])
            for text in leaves(name):
                if isinstance(text, Text):
                    self._attribute(owner, text.value)
        places = [argument.arg for argument in [*given.posonlyargs, *given.args]]
        named = {*places, *(argument.arg for argument in given.kwonlyargs)}
        for name, values in zip(places, arguments, strict=False):
            self._bind((function.scope, name), frozenset(values))
        if given.vararg is not None:
            rest = frozenset().union(*arguments[len(places) :])
            self._bind((function.scope, given.vararg.arg), frozenset({Many(rest)}))
        for name, values in keywords.items():
            if name in named:
                self._bind((function.scope, name), values)
            elif name is not None and given.kwarg is not None:
                self._bind((function.scope, given.kwarg.arg), frozenset({Many(values)}))

    def _construct(self, kind, arguments, keywords):
        line = self._line(kind)
        made = next(
            (each.methods['__init__'] for each in line if '__init__' in each.methods), None
        )
        if made is not None:
            self._bind_arguments(made, [{Object(kind)}, *arguments], keywords)
        else:
            fields = [name for each in reversed(line) for name in each.fields]
            for name, values in [*zip(fields, arguments, strict=False), *keywords.items()]:
                if name is not None:
                    self._bind((kind, name), frozenset(values))
        return {Object(kind)}

    def _external(self, path, arguments, keywords, scope):
        """Return what a function of another library, or a builtin, gives."""
        first = arguments[0] if arguments else NONE
        texts = {v for values in arguments for v in leaves(values) if isinstance(v, Text)}
        if path in ('importlib.import_module', '__import__'):
            return {Api(self.roots[text.value]) for text in texts if text.value in self.roots}
        if path in _LOOK_UP:
            return self._looked_up(first, arguments, scope)
        if path == 'map':
            return {Many(self._call_values(first, [elements(v) for v in arguments[1:]], {}))}
        if path == 'zip':
            return {Many(frozenset({Row(tuple(map(elements, arguments)))}))}
        if path == 'enumerate':
            return {Many(frozenset({Row((NONE, elements(first)))}))}
        if path in KEEP:
            return {Many(frozenset().union(*map(elements, arguments)))}
        if path in TAKE:
            given = frozenset().union(*arguments)
            return given | elements(given)
        if path not in CONSUME and self._holds_api(arguments, keywords):
            self.lost.add(f'{scope.where if scope else ""}: {path}')
        return NONE

    def _looked_up(self, owners, arguments, scope):
        texts = [v.value for v in arguments[1] if isinstance(v, Text) and isinstance(v.value, str)]
        apis = [owner for owner in owners if isinstance(owner, Api)]
        if apis and not texts:
            self.dynamic.add(scope.where)
        default = arguments[2] if len(arguments) > 2 else NONE
        return default.union(*(self._attribute(owners, text) for text in texts))

    def _holds_api(self, arguments, keywords, *, deep=False):
        given = leaves(frozenset().union(*arguments, *keywords.values()))
        return any(
            isinstance(value, Api)
            or (deep and isinstance(value, Object) and self._holds(value.kind))
            for value in given
        )

    def _holds(self, kind):
        values = [
            self._values[owner, name]
            for owner in self._line(kind)
            for name in [*owner.attributes, *owner.fields]
        ]
        return any(isinstance(value, Api) for each in values for value in leaves(each))
