# SPDX-License-Identifier: Apache-2.0
"""Check that no function of the package splits, searches, matches or slices the text of an error.

Errors have fields for all data that callers need. Their text is for people: code may format the
text into another text, and show it. The check follows the flow of data within each function.
"""

import ast

import pytest

from support.source_trees import nodes_of, package_trees

# Functions that may examine the text of an error, with the reason. The test fails if a listed
# function no longer does so.
REMAINING = {'images/decompress.py: _defect_of': 'errors of simplejpeg have only a text'}

#: Attributes of errors that contain sentences, in this package and in other libraries.
TEXTS = {
    *('args', 'expected', 'fix', 'found', 'message', 'msg', 'problem'),
    *('statement', 'strerror', 'subject'),
}
#: Methods that create another text from a text.
MAKERS = {
    *('casefold', 'decode', 'encode', 'expandtabs', 'format', 'join', 'lower', 'lstrip'),
    *('rstrip', 'strip', 'title', 'upper'),
}
#: Functions of Python and of the package that create another text from a text.
FORMATTERS = {'format', 'log_text', 'one_line', 'plain', 'repr', 'shown', 'str'}
#: Methods that put a text into a list or a set.
KEEPERS = {'add', 'append', 'extend', 'insert'}
#: Methods that examine the content of a text.
EXAMINERS = {
    *('count', 'endswith', 'find', 'index', 'partition', 'removeprefix', 'removesuffix'),
    *('replace', 'rfind', 'rindex', 'rpartition', 'rsplit', 'split', 'splitlines', 'startswith'),
    'translate',
}
#: Functions of the module re and methods of compiled patterns, which take the text as an argument.
PATTERNS = {'findall', 'finditer', 'fullmatch', 'match', 'search', 'split', 'sub', 'subn'}
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Flow:
    """Finds the names in a function that refer to errors or to texts of errors."""

    def __init__(self, function):
        self.nodes = list(nodes_within(function))
        self.errors = {node.name for node in self.nodes if isinstance(node, ast.ExceptHandler)}
        self.errors |= set(parameters_of_errors(function))
        self.texts = set()
        self.lists = set()  # names of lists that contain texts of errors
        known = -1
        while known != len(self.errors) + len(self.texts) + len(self.lists):
            known = len(self.errors) + len(self.texts) + len(self.lists)
            for node in self.nodes:
                self._assign(node)
                self._keep(node)

    def _assign(self, node):
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
            targets = [node.target]
        else:
            return
        pairs = [(target, node.value) for target in targets]
        for target, value in list(pairs):
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs += zip(target.elts, value.elts, strict=False)
        for target, value in pairs:
            if isinstance(target, ast.Name):
                self.errors |= {target.id} if self.is_error(value) else set()
                self.texts |= {target.id} if self.is_text(value) else set()

    def _keep(self, node):
        """Record lists that get an error text, and the variables of loops over such lists."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            arguments = [part for arg in node.args for part in getattr(arg, 'elts', [arg])]
            kept = node.func.attr in KEEPERS and any(map(self.is_text, arguments))
            if kept and isinstance(node.func.value, ast.Name):
                self.lists.add(node.func.value.id)
        elif isinstance(node, ast.For | ast.comprehension):
            source = node.iter
            if isinstance(source, ast.Name) and source.id in self.lists:
                self.texts |= {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}

    def is_error(self, node):
        if isinstance(node, ast.IfExp):
            return self.is_error(node.body) or self.is_error(node.orelse)
        return isinstance(node, ast.Name) and node.id in self.errors

    def is_text(self, node):
        """Return whether an expression is or contains the text of an error."""
        if isinstance(node, ast.Name):
            return node.id in self.texts
        if isinstance(node, ast.Attribute):
            # In this package, an attribute `error` always contains the text of an error.
            return node.attr == 'error' or (node.attr in TEXTS and self.is_error(node.value))
        if isinstance(node, ast.Call):
            return self._call_is_text(node)
        if isinstance(node, ast.FormattedValue | ast.NamedExpr | ast.Starred):
            return self._is_error_or_text(node.value)
        parts = {
            ast.JoinedStr: lambda: node.values,
            ast.BinOp: lambda: [node.left, node.right],
            ast.BoolOp: lambda: node.values,
            ast.IfExp: lambda: [node.body, node.orelse],
        }
        if type(node) not in parts:
            return False
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            right = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
            return any(map(self._is_error_or_text, [node.left, *right]))
        return any(map(self.is_text, parts[type(node)]()))

    def _call_is_text(self, node):
        if isinstance(node.func, ast.Name):
            return node.func.id in FORMATTERS and any(map(self._is_error_or_text, node.args))
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in MAKERS:
            return False
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        inner = [e for arg in arguments for e in getattr(arg, 'elts', [arg])]
        return self.is_text(node.func.value) or any(map(self._is_error_or_text, inner))

    def _is_error_or_text(self, node):
        return self.is_error(node) or self.is_text(node)

    def examinations(self):
        """Yield the nodes that examine the text of an error."""
        for node in self.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name = node.func.attr
                arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
                if (name in EXAMINERS and self.is_text(node.func.value)) or (
                    name in PATTERNS and any(map(self.is_text, arguments))
                ):
                    yield node
            elif isinstance(node, ast.Subscript):
                if self.is_text(node.value):
                    yield node
            elif isinstance(node, ast.Compare):
                nothing = all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops)
                if not nothing and any(map(self.is_text, [node.left, *node.comparators])):
                    yield node
            elif isinstance(node, ast.For | ast.comprehension):
                if self.is_text(node.iter):
                    yield node.iter
            elif isinstance(node, ast.Match) and self.is_text(node.subject):
                yield node.subject


def nodes_within(function):
    """Yield the nodes of a function, without the nodes of nested functions."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, FUNCTIONS):
            waiting += ast.iter_child_nodes(node)


def parameters_of_errors(function):
    """Yield the parameters whose annotation names an error."""
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    own = function.args
    for argument in (*own.posonlyargs, *own.args, *own.kwonlyargs):
        words = ast.unparse(argument.annotation) if argument.annotation else ''
        if words.endswith(('Error', 'Exception')):
            yield argument.arg


def examinations_in(tree):
    """Return (function name, expression) for each examination of an error text in a module."""
    functions = nodes_of([tree], *FUNCTIONS.__args__)
    return [
        (getattr(function, 'name', '<module>'), ast.unparse(node))
        for function in (tree, *functions)
        for node in Flow(function).examinations()
    ]


def function_with_handler(body):
    return ast.parse(f'def f():\n    try:\n        g()\n    except E as error:\n        {body}\n')


def test_no_function_examines_the_text_of_an_error():
    found = {
        f'{path}: {name}': expression
        for path, tree in package_trees().items()
        for name, expression in examinations_in(tree)
    }
    new = {place: expression for place, expression in found.items() if place not in REMAINING}
    assert not new, 'give the error a field for it'
    assert REMAINING.keys() == found.keys(), 'repaired: remove the line from REMAINING'


@pytest.mark.parametrize(
    'use',
    [
        "str(error).split('; ')",
        "str(error).partition(' Set them ')[0]",
        "f'{error}'.startswith('x')",
        "('x: %s' % error).find('x')",
        "'{}: {}'.format('x', error).removeprefix('x')",
        "re.search('x', str(error))",
        "re.sub('model.', '--', f'{name}: {error}')",
        'PATTERN.fullmatch(str(error))',
        'str(error)[:200]',
        'error.args[0]',
        "'memory' in str(error)",
        "'memory' not in error.found",
        "error.statement == 'x'",
        "error.strerror.lower().endswith('x')",
        "' '.join([name, str(error)]).split()",
        '[line for line in str(error).splitlines()]',
        '[letter for letter in str(error)]',
        "(str(error) or 'x')[0]",
    ],
)
def test_examination_of_an_error_text_is_found(use):
    assert examinations_in(function_with_handler(use))


@pytest.mark.parametrize(
    'body',
    [
        "text = str(error)\n        if 'x' in text: pass",
        'first, second = str(error), 1\n        first[0]',
        "failure = error\n    text = 'x: ' + str(failure)\n    g(text.split(':'))",
        "if (text := f'{error}').startswith('x'): pass",
        'text: str = str(error)\n        for word in text.split(): pass',
        "match str(error):\n            case 'x': pass",
        "text = one_line(error)\n        if 'memory' in text: pass",
        'plain(error).splitlines()',
        "faults.append(str(error))\n    next(fault for fault in faults if fault.startswith('/'))",
        "faults.append((1, f'{error}'))\n    for _, fault in faults:\n        fault[1:]",
        "module.error.startswith('x')",
        'any(word in self.error for word in words)',
    ],
)
def test_error_text_is_followed_through_variables(body):
    assert examinations_in(function_with_handler(body))


def test_parameter_annotated_as_an_error_is_followed():
    source = "def f(name: str, error: EngineError):\n    return str(error).split('; ')\n"
    assert examinations_in(ast.parse(source))


@pytest.mark.parametrize(
    'use',
    [
        'raise ConfigError(path, str(error)) from error',
        "raise ConfigError(f'{path}: {error}') from error",
        "print(f'{name}: {error}'.strip())",
        'log.warning("%s is not read: %s", path, error)',
        'lines.append(str(error))',
        "textwrap.indent(plain(error), 'error: ')",
        'if health.error: pass',
        "sentence = f'{error.statement}; {error.fix}'",
        "if error.status == 'cudaErrorMemoryAllocation': pass",
        'if error.errno in (1, 2): pass',
        "if 'decoder' in error.missing: pass",
        'if error.fix: pass',
        'reason = error.strerror or str(error)',
        'if other.split() == []: pass',
    ],
)
def test_formatting_and_fields_are_allowed(use):
    assert not examinations_in(function_with_handler(use))
