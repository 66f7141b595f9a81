# SPDX-License-Identifier: Apache-2.0
"""Read pages, their code blocks and tables, and the code that they describe."""

import ast
import functools
import importlib.util
import re
import sys
from pathlib import Path

from support.source_trees import PACKAGE, ROOT, package_trees

#: The pages of the repository. docs/site has pages of the site only.
PAGES = [
    ROOT / 'README.md',
    *sorted((ROOT / 'docs').glob('*.md')),
    *sorted((ROOT / 'examples').rglob('*.md')),
]
README, INDEX, OWN_MODEL, TROUBLESHOOTING, TRANSPORT = (
    (ROOT / name).read_text(encoding='utf-8')
    for name in (
        'README.md',
        'docs/README.md',
        'docs/own_model.md',
        'docs/troubleshooting.md',
        'docs/transport.md',
    )
)
ARCHITECTURE, MANIFEST, RECOGNITION_PAGE, ERRORS = (
    (ROOT / name).read_text(encoding='utf-8')
    for name in (
        'docs/architecture.md',
        'docs/manifest.md',
        'docs/recognition.md',
        'docs/errors.md',
    )
)
#: Both pages about benchmarks. No heading is on both.
BENCHMARKS = '\n'.join(
    (ROOT / 'docs' / name).read_text(encoding='utf-8')
    for name in ('benchmarks.md', 'benchmarks_details.md')
)


@functools.cache
def sources():
    """Return the syntax tree of each file of the package."""
    return {PACKAGE / name: tree for name, tree in package_trees().items()}


def load_script(path):
    """Return a file below scripts/ as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / 'scripts' / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module here
    spec.loader.exec_module(module)
    return module


def page_id(path):
    return str(path.relative_to(ROOT))


def blocks(text, language):
    """Return the code blocks of one language."""
    return re.findall(rf'^```{language}\n(.*?)^```', text, re.DOTALL | re.MULTILINE)


def prose(text):
    """Return a page without its code blocks."""
    return re.sub(r'^```.*?^```', '', text, flags=re.DOTALL | re.MULTILINE)


def section(text, title):
    """Return the text below one heading, up to the next heading of any level."""
    found = re.search(rf'^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)', text, re.DOTALL | re.MULTILINE)
    assert found, title
    return found[1]


def rows(text):
    """Return the cells of each table row, without head and ruler."""
    lines = [line for line in text.splitlines() if line.startswith('|')]
    tables = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines]
    rulers = [index for index, row in enumerate(tables) if set(''.join(row)) <= set('-: ')]
    skipped = {*rulers, *(index - 1 for index in rulers)}
    return [row for index, row in enumerate(tables) if index not in skipped]


def codes(text):
    """Return all texts in backticks."""
    return re.findall(r'`([^`\n]+)`', text)


def calls(name):
    """Return every call of a function or method of that name in the package."""
    return _all_calls().get(name, [])


@functools.cache
def _all_calls():
    found = {}
    for tree in sources().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = getattr(node.func, 'attr', getattr(node.func, 'id', ''))
                found.setdefault(name, []).append(node)
    return found


def launch_arguments(name):
    """Return the names of a launch file's arguments, including arguments of the included file."""
    from trt_perception.parameters.launch_arguments import launch_arguments as arguments

    tree = ast.parse((ROOT / 'launch' / name).read_text(encoding='utf-8'))
    named = set(arguments(ROOT))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, 'id', '') == 'DeclareLaunchArgument':
            named |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return named


def executables():
    """Return the console scripts of setup.py."""
    setup = ast.parse((ROOT / 'setup.py').read_text(encoding='utf-8'))
    found = [
        entry.value.split('=')[0].strip()
        for node in ast.walk(setup)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if getattr(key, 'value', '') == 'console_scripts'
        for entry in value.elts
    ]
    assert 'detector_node' in found
    return set(found)


@functools.cache
def literals():
    """Return the texts in the package and its launch files, with … for inserted values."""
    found = []
    launch = [ast.parse(path.read_text('utf-8')) for path in (ROOT / 'launch').glob('*.py')]
    for tree in (*sources().values(), *launch):
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else '…' for p in node.values]
                found.append(''.join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return '\n'.join(found)


def quoted(message):
    """Return whether the code contains this message. … in the message matches any text."""
    pattern = '[^\n]*'.join(re.escape(part.strip()) for part in message.split('…'))
    return re.search(pattern, literals()) is not None
