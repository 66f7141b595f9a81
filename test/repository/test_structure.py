"""Check sizes of folders, modules and functions, and that lower layers ignore node settings."""

import ast

import pytest

from support.source_trees import PACKAGE, ROOT, nodes_of, package_trees

#: Files and folders that may import the parameters of the node: the node, the tools, and the
#: Python interface.
SHELLS = ('api.py', 'commands.py', 'parameters/', 'ros/', 'tools/')
#: Exceptions to each limit, with the reason. A folder may have more than 12 modules if each module
#: is one entry of a table, such as a task or a tool.
EXCEPTIONS = {
    'folder': {
        'tools': 'one module for each command, besides those that commands share',
    },
    'function': {},
    'frame': {'pipelines/cuda_slot.py': 'isinstance is cheaper than two calls for each frame'},
    'settings': {
        'checks/cameras.py': 'CameraPlan: doctor passes on the values that it read from the node',
    },
}


def folders_of(root, pattern):
    """Map the path of each folder to its number of files."""
    counts = {}
    for path in root.rglob(pattern):
        if path.name != '__init__.py':
            folder = path.parent.relative_to(root).as_posix()
            counts[folder] = counts.get(folder, 0) + 1
    return counts


def functions():
    for name, tree in package_trees().items():
        for node in nodes_of([tree], ast.FunctionDef, ast.AsyncFunctionDef):
            yield f'{name}: {node.name}', node.end_lineno - node.lineno + 1


def above_limit(counts, limit, exceptions=()):
    return {name: count for name, count in counts if count > limit and name not in exceptions}


def test_package_folder_has_at_most_12_modules():
    counts = folders_of(PACKAGE, '*.py').items()
    assert not above_limit(counts, 12, EXCEPTIONS['folder'])


def test_package_root_has_at_most_4_modules():
    assert folders_of(PACKAGE, '*.py')['.'] <= 4


def test_test_folder_has_at_most_20_files():
    assert not above_limit(folders_of(ROOT / 'test', 'test_*.py').items(), 20)


def test_function_has_at_most_60_lines():
    assert not above_limit(functions(), 60, EXCEPTIONS['function'])


def test_module_has_at_most_400_lines():
    lines = ((path, len(path.read_text().splitlines())) for path in PACKAGE.rglob('*.py'))
    assert not above_limit(lines, 400)


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
    """Return the imported modules of trt_perception.parameters, except parameters.frame."""
    names = {alias.name for node in nodes_of([tree], ast.Import) for alias in node.names}
    for node in nodes_of([tree], ast.ImportFrom):
        names |= {f'{node.module}.{alias.name}' for alias in node.names}
    settings = 'trt_perception.parameters'
    return {
        name
        for name in names
        if name.startswith(settings) and not name.startswith(f'{settings}.frame')
    }


def test_lower_layers_do_not_import_parameters_of_the_node():
    found = {
        name: imported
        for name, tree in package_trees().items()
        if not name.startswith(SHELLS) and (imported := imported_settings(tree))
    }
    assert found.keys() == EXCEPTIONS['settings'].keys()


@pytest.mark.parametrize(
    ('code', 'kind', 'settings'),
    [
        ('isinstance(x, JpegFrame)', True, False),
        ('isinstance(x, (int, frame.Frame))', True, False),
        ('isinstance(x, int)', False, False),
        ('from trt_perception.parameters.config import DetectorConfig', False, True),
        ('from trt_perception.parameters import config', False, True),
        ('from trt_perception.parameters.frame import Thresholds', False, False),
    ],
)
def test_checks_find_forbidden_code(code, kind, settings):
    tree = ast.parse(code)
    assert any(map(checks_the_type_of_a_frame, nodes_of([tree], ast.Call))) is kind
    assert bool(imported_settings(tree)) is settings


def test_every_exception_to_a_limit_is_needed():
    lines, modules = dict(functions()), folders_of(PACKAGE, '*.py')
    assert all(lines[name] > 60 for name in EXCEPTIONS['function'])
    assert all(modules[name] > 12 for name in EXCEPTIONS['folder'])
