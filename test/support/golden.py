# SPDX-License-Identifier: Apache-2.0
"""Compare texts of the package with files of test/golden.

A test joins its messages, reports or logs to one text and calls `check`. Or it takes the fixture
`golden_messages` and adds one message after the other. Classes, fields and exit codes stay
assertions in Python. After an intended change of the wording,

    scripts/test --rewrite-golden test/model/test_recognition_refusal.py

writes the files again. Read their changes with `git diff` before the commit.

This module is a pytest plugin. conftest.py registers it. Runs without conftest.py need the option
`-p support.golden`.
"""

import ast
import contextlib
import difflib
import hashlib
import os
import re
import tempfile
from pathlib import Path

import pytest

# Messages name the tools of the package as in an installed ROS 2, whatever this machine has.
os.environ['TRT_PERCEPTION_RUN'] = 'ros2 run trt_perception'
os.environ['TRT_PERCEPTION_ROS2'] = 'ros2'
FOLDER = Path(__file__).resolve().parents[1] / 'golden'
#: Whether `check` writes the files instead of comparing. conftest.py sets it (--rewrite-golden).
rewriting = False


def check(name, text):
    """Fail unless a text equals its golden file.

    Args:
        name: the file below test/golden, a literal with a folder, such as 'model/refused.txt'.
        text: the package's text, without parts that differ between machines or runs.
    """
    path = FOLDER / name
    text = without_decoders(text.rstrip('\n')) + '\n'
    if rewriting:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding='utf-8')
        return
    if not path.is_file():
        pytest.fail(f'test/golden/{name} is missing: {_how_to_rewrite()}', pytrace=False)
    _compare(name, path.read_text(encoding='utf-8'), text)


def _compare(name, expected, text):
    if text != expected:
        old, new = expected.splitlines(), text.splitlines()
        lines = difflib.unified_diff(old, new, f'test/golden/{name}', 'now', lineterm='', n=1)
        advice = f'if this is intended: {_how_to_rewrite()}'
        named = [_with_scene(line, old) for line in lines]
        pytest.fail('\n'.join([*named, advice]), pytrace=False)


def _with_scene(line, old):
    """Add the name of the scene, a line that begins with ==, to the first line of a hunk."""
    if not (hunk := re.match(r'@@ -(\d+)', line)):
        return line
    scenes = [text for text in old[: int(hunk[1])] if text.startswith('== ')]
    return ' '.join([line, *scenes[-1:]])


def without_decoders(text):
    """Replace the lists of all presets and families, so that a new decoder changes no file."""
    from trt_perception.model.decoders.table import DECODERS_BY_FAMILY, PRESETS

    for names, word in ((PRESETS, 'ALL_PRESETS'), (DECODERS_BY_FAMILY, 'ALL_FAMILIES')):
        for quote in ('', "'", '"'):
            text = text.replace(', '.join(f'{quote}{name}{quote}' for name in names), word)
    return text


class GoldenMessages:
    """Collects the messages of one test, which are a part of the golden file of its test file.

    test/model/test_task.py has golden/model/task.txt, with a part after '== NAME' for each test.

    Args:
        item: the pytest item of the test.
        folder: folder of temporary files. Folders in it become FOLDER, and namespaces of test
            nodes become NAMESPACE.
    """

    def __init__(self, item, folder):
        self._item = item
        own, others = re.escape(str(folder)), re.escape(tempfile.gettempdir())
        self._temporary = re.compile(rf'({own}/[^/\s\'",:;)]+|{others}/tmp\w+)')
        self._texts = []

    def add(self, text):
        """Add an error or a text, unless it equals the previous one."""
        message = self._temporary.sub('FOLDER', str(text)).strip('\n')
        message = re.sub(r'/(test|intake)_\d+(_\d+)?', '/NAMESPACE', message)
        message = without_decoders(message)
        if self._texts[-1:] != [message]:
            self._texts.append(message)

    @contextlib.contextmanager
    def raises(self, kind):
        """Expect an error, as pytest.raises does, and add its message."""
        with pytest.raises(kind) as caught:
            yield caught
        self.add(caught.value)

    def check(self):
        """Fail unless the messages equal the test's part of the golden file."""
        name, part = file_of(self._item.path), part_of(self._item)
        path = FOLDER / name
        content = path.read_text(encoding='utf-8') if path.is_file() else ''
        parts = dict(re.findall(r'^== (.*)\n((?:(?!== ).*\n)*)', content, re.MULTILINE))
        text = '\n'.join([*self._texts, '', ''])
        if rewriting:
            names = {
                part_of(item) for item in self._item.session.items if item.path == self._item.path
            }
            kept = {key: value for key, value in parts.items() if key in names}
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(''.join(f'== {k}\n{v}' for k, v in {**kept, part: text}.items()))
        elif part not in parts:
            pytest.fail(f'{part} is missing in {name}: {_how_to_rewrite()}', pytrace=False)
        else:
            _compare(name, parts[part], text)


@pytest.fixture
def golden_messages(request, tmp_path_factory):
    """Return the messages of the test, which are compared after the test has passed."""
    refuse_shared_file(request.path)
    return GoldenMessages(request.node, tmp_path_factory.getbasetemp())


def refuse_shared_file(test):
    """Fail if a test file that uses `golden_messages` also passes its own golden file to `check`.

    `check` writes the whole file, so --rewrite-golden would delete the parts of the fixture.

    Args:
        test: the path of the test file.
    """
    name = file_of(test)
    if re.search(rf'\bcheck\(\s*[\'"]{re.escape(name)}[\'"]', test.read_text(encoding='utf-8')):
        pytest.fail(
            f'golden.check would overwrite test/golden/{name}, which holds the golden_messages of '
            f'{test.name}: pass another name to golden.check',
            pytrace=False,
        )


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Compare the messages of a passed test with its golden file."""
    result = yield
    if isinstance(messages := pyfuncitem.funcargs.get('golden_messages'), GoldenMessages):
        messages.check()
    return result


def part_of(item):
    """Return the name of a test's part of the golden file: the test's name, or a short form.

    Repeated backslashes become one, because mutmut escapes test names a second time.
    """
    name = re.sub(r'\\+', r'\\', item.name)
    if len(name) <= 120:
        return name
    return f'{name[:100]}… {hashlib.sha256(name.encode()).hexdigest()[:8]}]'


def file_of(test):
    """Return the name of the golden file of a test file that uses `golden_messages`."""
    folders = test.parts[:-1]
    below_test = folders[len(folders) - folders[::-1].index('test') :]
    return '/'.join([*below_test, f'{test.stem.removeprefix("test_")}.txt'])


def _how_to_rewrite():
    file = os.environ.get('PYTEST_CURRENT_TEST', 'FILE').partition('::')[0]
    return f'scripts/test --rewrite-golden {file}'


def without_folder(text, folder):
    """Return a text with FOLDER instead of a path, such as the test's temporary folder."""
    return text.replace(str(folder), 'FOLDER')


def unused(folder, tests):
    """Return the golden files below a folder that no test uses.

    A test uses a file that it names, or that belongs to its test file (`file_of`).

    Args:
        folder: the folder of golden files.
        tests: paths of the test files.
    """
    tests = list(tests)
    used = {
        file_of(path) for path in tests if 'golden_messages' in path.read_text(encoding='utf-8')
    }
    used |= {
        node.value
        for path in tests
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8')))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    names = [str(path.relative_to(folder)) for path in folder.rglob('*') if path.is_file()]
    return sorted(set(names) - used)
