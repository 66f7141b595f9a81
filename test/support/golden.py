"""Compare long texts of the package with files of test/golden.

A test joins the messages, reports or logs that it caused to one text and calls `check`. Classes,
fields and exit codes stay assertions in Python. After an intended change of the wording,

    scripts/test --rewrite-golden test/model/test_recognition_refusal.py

writes the files again; read their changes with `git diff` before the commit.
"""

import ast
import difflib
import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / 'golden'
#: Whether `check` writes the files instead of comparing; --rewrite-golden sets it (conftest.py).
rewriting = False


def check(name, text):
    """Fail unless text equals the golden file.

    Args:
        name: the file below test/golden, a literal with a folder, as 'model/refused.txt'.
        text: what the package wrote, without anything that differs between machines or runs.
    """
    path = FOLDER / name
    text = text.rstrip('\n') + '\n'
    if rewriting:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding='utf-8')
        return
    if not path.is_file():
        pytest.fail(f'test/golden/{name} is missing: {_how_to_rewrite()}', pytrace=False)
    expected = path.read_text(encoding='utf-8')
    if text != expected:
        old, new = expected.splitlines(), text.splitlines()
        lines = difflib.unified_diff(old, new, f'test/golden/{name}', 'now', lineterm='', n=1)
        advice = f'if this is intended: {_how_to_rewrite()}'
        pytest.fail('\n'.join([*lines, advice]), pytrace=False)


def _how_to_rewrite():
    file = os.environ.get('PYTEST_CURRENT_TEST', 'FILE').partition('::')[0]
    return f'scripts/test --rewrite-golden {file}'


def without_folder(text, folder):
    """Return text with FOLDER in the place of a path, as that of the test's temporary folder."""
    return text.replace(str(folder), 'FOLDER')


def unused(folder, tests):
    """Return the golden files below folder whose name is no literal in a test file.

    Args:
        folder: the folder of golden files.
        tests: paths of the test files.
    """
    used = {
        node.value
        for path in tests
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8')))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    names = [str(path.relative_to(folder)) for path in folder.rglob('*') if path.is_file()]
    return sorted(set(names) - used)
