"""Nothing in the package runs what a file says: no eval, no pickle, YAML by the safe loader."""

import ast
from pathlib import Path

import pytest

import trt_perception

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(trt_perception.__file__).parent
FILES = [
    *sorted(PACKAGE.rglob('*.py')),
    *sorted((ROOT / 'launch').glob('*.py')),
    *sorted((ROOT / 'scripts').rglob('*.py')),
    ROOT / 'setup.py',
]
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


def findings(text):
    """Return what a module does that it must not."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split('.')[0] in MODULES]
        elif isinstance(node, ast.ImportFrom):
            top = node.module.split('.')[0]
            names = {alias.name for alias in node.names}
            found += [node.module] if top in MODULES else []
            found += [f'{top}.{name}' for name in names & ATTRIBUTES.get(top, set())]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in ATTRIBUTES.get(node.value.id, ()):
                found.append(f'{node.value.id}.{node.attr}')
        elif isinstance(node, ast.Call):
            found += _call(node)
    return found


def _call(node):
    if isinstance(node.func, ast.Name) and node.func.id in CALLS:
        return [node.func.id]
    options = {k.arg: getattr(k.value, 'value', ...) for k in node.keywords}
    if options.get('shell', False) is not False:
        return ['shell=True']
    target = ast.unparse(node.func)
    if target in ('np.load', 'numpy.load') and options.get('allow_pickle') is not False:
        return ['np.load without allow_pickle=False']
    return []


def test_nothing_dangerous():
    found = {str(path): findings(path.read_text(encoding='utf-8')) for path in FILES}
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
def test_the_test_would_notice(text):
    assert findings(text)


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
def test_what_is_fine(text):
    assert findings(text) == []


def test_the_files_are_found():
    assert len(FILES) > 60
