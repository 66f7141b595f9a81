# SPDX-License-Identifier: Apache-2.0
"""Check that the package never executes the content of a file.

The check forbids eval, pickle, YAML loaders that create objects, and shells.
"""

import ast

import pytest

from support.source_trees import PACKAGE, ROOT, nodes_of, tree_of

CALLS = {'eval', 'exec', 'compile', '__import__', 'execfile'}
MODULES = {'pickle', 'marshal', 'shelve', 'dill', 'joblib', 'cloudpickle', 'imp', 'xmlrpc'}
ATTRIBUTES = {
    'os': {'system', 'popen', 'tempnam'},
    'tempfile': {'mktemp'},
    'yaml': {
        'load',
        'load_all',
        'full_load',
        'unsafe_load',
        'Loader',
        'FullLoader',
        'UnsafeLoader',
    },
    'torch': {'load'},
    'cv2': {'FileStorage'},
}


def findings(tree):
    """Return the forbidden imports, attributes and calls of a module."""
    names = [alias.name for node in nodes_of([tree], ast.Import) for alias in node.names]
    names += [
        f'{node.module}.{alias.name}'
        for node in nodes_of([tree], ast.ImportFrom)
        for alias in node.names
    ]
    names += [
        f'{node.value.id}.{node.attr}'
        for node in nodes_of([tree], ast.Attribute)
        if isinstance(node.value, ast.Name)
    ]
    found = [name for name in names if is_dangerous(*name.split('.'))]
    return found + [call for node in nodes_of([tree], ast.Call) for call in _forbidden_calls(node)]


def is_dangerous(top, *names):
    return top in MODULES or (names and names[-1] in ATTRIBUTES.get(top, ()))


def _forbidden_calls(node):
    if isinstance(node.func, ast.Name) and node.func.id in CALLS:
        return [node.func.id]
    options = {k.arg: getattr(k.value, 'value', ...) for k in node.keywords}
    if options.get('shell', False) is not False:
        return ['shell=True']
    target = ast.unparse(node.func)
    if target in ('np.load', 'numpy.load') and options.get('allow_pickle') is not False:
        return ['np.load without allow_pickle=False']
    return []


def test_sources_contain_no_forbidden_calls():
    files = [path for name in ('launch', 'scripts') for path in (ROOT / name).rglob('*.py')]
    files += [*PACKAGE.rglob('*.py'), ROOT / 'setup.py']
    assert len(files) > 60
    found = {str(path): findings(tree_of(path)) for path in files}
    assert not {path: calls for path, calls in found.items() if calls}


@pytest.mark.parametrize(
    'text',
    [
        'eval(x)',
        'exec(x)',
        'import pickle',
        'from pickle import loads',
        'import yaml\nyaml.load(x, Loader=L)',
        'from yaml import unsafe_load',
        'class L(yaml.FullLoader): pass',
        'import subprocess\nsubprocess.run(x, shell=True)',
        'subprocess.run(x, shell=flag)',
        'os.system(x)',
        'np.load(x)',
        'np.load(x, allow_pickle=True)',
        '__import__(x)',
    ],
)
def test_forbidden_call_is_found(text):
    assert findings(ast.parse(text))


@pytest.mark.parametrize(
    'text',
    [
        'yaml.safe_load(x)',
        'class L(yaml.SafeLoader): pass',
        'np.load(x, allow_pickle=False)',
        'subprocess.run([x])',
        're.compile(x)',
        'model.eval()',
    ],
)
def test_allowed_call_is_not_reported(text):
    assert findings(ast.parse(text)) == []
