# SPDX-License-Identifier: Apache-2.0
"""Check that lower layers ignore node settings and frame types, and the names of checks."""

import ast

import pytest

from support.source_trees import nodes_of, package_trees

#: Files and folders that may import the parameters of the node: the node, the tools, and the
#: Python interface.
SHELLS = ('api.py', 'commands.py', 'parameters/', 'ros/', 'offline/bags/', 'offline/tools/')
#: Exceptions to each rule, with the reason.
EXCEPTIONS = {
    'frame': {'pipelines/cuda/slot.py': 'isinstance is cheaper than two calls for each frame'},
    'settings': {
        'checks/cameras.py': 'CameraPlan: doctor passes on the values that it read from the node',
    },
}


def checks_the_type_of_a_frame(node):
    """Return whether a call is isinstance with a frame class, such as JpegFrame."""
    if getattr(node.func, 'id', '') != 'isinstance':
        return False
    names = (getattr(part, 'attr', getattr(part, 'id', '')) for part in ast.walk(node.args[1]))
    return any(name.endswith('Frame') for name in names)


def test_no_module_tests_the_type_of_a_frame():
    found = [
        name
        for name, tree in package_trees().items()
        for node in nodes_of([tree], ast.Call)
        if checks_the_type_of_a_frame(node)
    ]
    assert found == list(EXCEPTIONS['frame'])


def imported_settings(tree):
    """Return the imported modules of trt_perception.parameters."""
    names = {alias.name for node in nodes_of([tree], ast.Import) for alias in node.names}
    for node in nodes_of([tree], ast.ImportFrom):
        names |= {f'{node.module}.{alias.name}' for alias in node.names}
    settings = 'trt_perception.parameters'
    return {name for name in names if name.startswith(settings)}


def test_lower_layers_do_not_import_parameters_of_the_node():
    found = {
        name: imported
        for name, tree in package_trees().items()
        if not name.startswith(SHELLS) and (imported := imported_settings(tree))
    }
    assert found.keys() == EXCEPTIONS['settings'].keys()


def breaks_the_rule_of_names(function):
    """Return whether a function's name hides what it does about a wrong value.

    docs/extending.md has the rule.
    """
    name = function.name.lstrip('_')
    returned = ast.unparse(function.returns) if function.returns else ''
    return (
        (returned == 'Mistake | None') != name.endswith('_mistake')
        or (name.startswith('check_') and any(t in returned for t in ('Finding', 'bool', 'Error')))
        or name.startswith(('refuse_', 'require_'))
    )


def test_names_of_functions_say_whether_a_wrong_value_is_returned_or_raised():
    found = [
        f'{name}: {function.name}'
        for name, tree in package_trees().items()
        for function in nodes_of([tree], ast.FunctionDef)
        if breaks_the_rule_of_names(function)
    ]
    assert found == []


@pytest.mark.parametrize(
    ('code', 'breaks'),
    [
        ('def name_mistake(name) -> Mistake | None: ...', False),
        ('def wrong_name(name) -> Mistake | None: ...', True),
        ('def name_mistake(name) -> str: ...', True),
        ('def check_name(name) -> None: ...', False),
        ('def _check_name(name) -> EngineError | None: ...', True),
        ('def check_name(name) -> Iterator[Finding]: ...', True),
        ('def _refuse_name(name) -> None: ...', True),
    ],
)
def test_rule_of_names_is_applied(code, breaks):
    assert breaks_the_rule_of_names(ast.parse(code).body[0]) is breaks


@pytest.mark.parametrize(
    ('code', 'kind', 'settings'),
    [
        ('isinstance(x, JpegFrame)', True, False),
        ('isinstance(x, (int, frame.Frame))', True, False),
        ('isinstance(x, int)', False, False),
        ('from trt_perception.parameters.values import ParameterValues', False, True),
        ('from trt_perception.parameters import values', False, True),
        ('from trt_perception.model.thresholds import Thresholds', False, False),
    ],
)
def test_checks_find_forbidden_code(code, kind, settings):
    tree = ast.parse(code)
    assert any(map(checks_the_type_of_a_frame, nodes_of([tree], ast.Call))) is kind
    assert bool(imported_settings(tree)) is settings
