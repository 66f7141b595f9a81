"""Which names of a library's Python interface a package uses, by where its objects come from.

The package's values are followed from the import of the library through assignments, attributes,
parameters, returns, containers and constant strings, as often as anything new turns up. No name
of a variable matters. What cannot be followed is reported rather than passed over.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path

NONE = frozenset()
_DEEPEST = 4
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
# What Python's own functions return of what they are given: their elements, one of them, nothing.
KEEP = {'list', 'tuple', 'sorted', 'reversed', 'iter', 'set', 'frozenset', 'filter'}
TAKE = {'next', 'min', 'max', 'dataclasses.replace', 'copy.copy'}
CONSUME = {'bool', 'bytes', 'callable', 'dir', 'float', 'hash', 'id', 'int', 'isinstance'}
# What a function looks up by two of its parameters.
FORWARDED = 'a function that was looked up'
CONSUME |= {FORWARDED, 'issubclass', 'len', 'print'}
CONSUME |= {'range', 'repr', 'str', 'type', 'vars', 'any', 'all', 'sum', 'super', 'map'}


@dataclass(frozen=True)
class Api:
    """The library's module (path ''), something in it, or what that returns."""

    path: str


@dataclass(frozen=True)
class External:
    """Something of another library, or a builtin."""

    path: str


@dataclass(frozen=True)
class Text:
    """A constant string; with ``whole`` False only how it begins."""

    value: str
    whole: bool = True


@dataclass(frozen=True)
class Row:
    """A tuple, element by element."""

    items: tuple[frozenset, ...]


@dataclass(frozen=True)
class Many:
    """Any other container: its keys, where it has such, and its elements."""

    items: frozenset
    keys: frozenset = NONE


@dataclass(frozen=True)
class Module:
    """A module of the package."""

    name: str


@dataclass(eq=False)
class Scope:
    """A module, function or comprehension, and the names that it binds."""

    parent: Scope | None
    names: set[str] = field(default_factory=set)
    where: str = ''
    function: Function | None = None


@dataclass(eq=False)
class Function:
    """A function of the package."""

    node: ast.AST
    scope: Scope
    owner: Class | None
    is_property: bool


@dataclass(eq=False)
class Class:
    """A class of the package."""

    node: ast.ClassDef
    scope: Scope
    bases: set = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    fields: list[str] = field(default_factory=list)
    methods: dict[str, Function] = field(default_factory=dict)


@dataclass(frozen=True)
class Object:
    """An object of one of the package's classes."""

    kind: Class


@dataclass(frozen=True)
class Bound:
    """A method of an object."""

    function: Function
    owner: Object


def leaves(values):
    """Return all that is in containers, however deep."""
    found = set()
    for value in values:
        if isinstance(value, Row):
            found |= leaves(frozenset().union(*value.items))
        elif isinstance(value, Many):
            found |= leaves(value.items | value.keys)
        else:
            found.add(value)
    return found


def _depth(values):
    inner = [value for value in values if isinstance(value, Row | Many)]
    sides = [
        side for v in inner for side in (v.items if isinstance(v, Row) else (v.items, v.keys))
    ]
    return 1 + max(map(_depth, sides), default=0) if inner else 0


def merged(values):
    """Return the values with one container of each shape, none deeper than needed."""
    if not any(isinstance(value, Row | Many) for value in values):
        return frozenset(values)
    if _depth(values) > _DEEPEST:
        return frozenset(leaves(values)) | {Many(frozenset(leaves(values)))}
    rows, items, keys, rest = {}, set(), set(), set()
    for value in values:
        if isinstance(value, Row):
            before = rows.get(len(value.items), [NONE] * len(value.items))
            rows[len(value.items)] = [a | b for a, b in zip(before, value.items, strict=True)]
        elif isinstance(value, Many):
            items |= value.items
            keys |= value.keys
        else:
            rest.add(value)
    rest |= {Row(tuple(map(merged, row))) for row in rows.values()}
    if any(isinstance(value, Many) for value in values):
        rest.add(Many(merged(items), merged(keys)))
    return frozenset(rest)


def elements(values, index=None):
    """Return what iterating gives, or the element with a constant index."""
    found = set()
    for value in values:
        if isinstance(value, Row):
            exact = index is not None and -len(value.items) <= index < len(value.items)
            found |= value.items[index] if exact else frozenset().union(*value.items)
        elif isinstance(value, Many):
            found |= value.items if index is not None or not value.keys else value.keys
        elif isinstance(value, Api):
            found.add(value)
    return frozenset(found)


def stored_names(node):
    """Return the names that a function or module binds, without those of scopes within it."""
    found = set()
    pending = [*ast.iter_child_nodes(node)]
    while pending:
        child = pending.pop()
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(child.name)
            pending += child.decorator_list
            continue
        if isinstance(child, (ast.Lambda, *COMPREHENSIONS)):
            # The names of := belong to the function around a comprehension.
            found |= {n.target.id for n in ast.walk(child) if isinstance(n, ast.NamedExpr)}
            continue
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            found.add(child.id)
        elif isinstance(child, ast.arg):
            found.add(child.arg)
        elif isinstance(child, ast.alias):
            found.add(child.asname or child.name.split('.')[0])
        elif isinstance(child, ast.ExceptHandler) and child.name:
            found.add(child.name)
        pending += ast.iter_child_nodes(child)
    return found


def parse_package(folder):
    """Return the syntax trees of a package's modules by their dotted names."""
    trees = {}
    for path in sorted(Path(folder).rglob('*.py')):
        parts = path.relative_to(Path(folder).parent).with_suffix('').parts
        trees['.'.join(parts[:-1] if parts[-1] == '__init__' else parts)] = ast.parse(
            path.read_text()
        )
    return trees


def _mentions(tree):
    """Return the modules that a module's imports may mean, and its constants."""
    imports, constants = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imports |= {node.module, *(f'{node.module}.{alias.name}' for alias in node.names)}
        elif isinstance(node, ast.Constant):
            constants.add(node.value)
    return imports, constants


def modules_around(trees, roots):
    """Return the modules that import or name the library, and those that import one of these.

    What flows out of them is reported by ``Names.lost``.
    """
    mentions = {name: _mentions(tree) for name, tree in trees.items()}
    nearest = {
        name
        for name, (imports, constants) in mentions.items()
        if imports & set(roots) or ('importlib' in imports and constants & set(roots))
    }
    around = {name for name, (imports, _) in mentions.items() if imports & nearest}
    return {name: trees[name] for name in sorted(nearest | around)}
