# SPDX-License-Identifier: Apache-2.0
"""Check that docs/threads.md lists every thread and every lock of the node."""

import ast
import re

import pytest

from support.docs_pages import ROOT, codes, rows, section
from support.source_trees import package_trees

PAGE = (ROOT / 'docs' / 'threads.md').read_text(encoding='utf-8')
#: Code that runs without a node.
OTHERS = ('api.py', 'offline/', 'checks/')
#: Threads whose name is computed: the expression, and how the page names the thread.
COMPUTED = {'self._name': 'detector', 'topic.topic.name': 'masks'}
LOCKS = {'Lock', 'RLock', 'Condition', 'Semaphore', 'BoundedSemaphore'}


def node_trees():
    return {path: tree for path, tree in package_trees().items() if not path.startswith(OTHERS)}


def thread_names(tree):
    """Return the name of each thread that a module starts. A computed name ends with …."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [thread_name(call) for call in calls if ast.unparse(call.func) == 'threading.Thread']


def thread_name(call):
    """Return the name that a call of threading.Thread gives."""
    (name,) = (keyword.value for keyword in call.keywords if keyword.arg == 'name')
    if isinstance(name, ast.Constant):
        return name.value
    if isinstance(name, ast.JoinedStr):
        return f'{name.values[0].value}…'
    return COMPUTED[ast.unparse(name)]


def lock_names(tree, scope=''):
    """Return each lock of a module, such as `Class.lock` for an attribute."""
    found = set()
    for node in ast.iter_child_nodes(tree):
        inner = node.name if isinstance(node, ast.ClassDef) else scope
        found |= lock_names(node, inner)
        if not makes_lock(node):
            continue
        if isinstance(node, ast.Assign | ast.AnnAssign):
            (target,) = node.targets if isinstance(node, ast.Assign) else (node.target,)
            name = target.attr if isinstance(target, ast.Attribute) else target.id
        elif isinstance(node, ast.FunctionDef):  # a cached property
            name = node.name
        found.add(f'{scope}.{name}' if scope else name)
    return found


def makes_lock(node):
    """Return whether a statement itself assigns or returns a new lock."""
    if isinstance(node, ast.FunctionDef):
        returned = [each.value for each in node.body if isinstance(each, ast.Return)]
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        returned = [node.value]
    else:
        return False
    return any(
        isinstance(each, ast.Attribute) and each.attr in LOCKS
        for value in returned
        if value is not None
        for each in ast.walk(value)
    )


def test_every_thread_of_the_node_is_described():
    listed = [codes(cell) for cell, *_ in rows(section(PAGE, 'Threads'))]
    listed = {names[0] for names in listed if names}  # other libraries start the rest
    started = {name for tree in node_trees().values() for name in thread_names(tree)}
    prefixes = {name.rstrip('…') for name in started if name.endswith('…')}
    numbered = {name for name in listed if re.sub(r'\d+$', '', name) in prefixes}
    assert {re.sub(r'\d+$', '', name) for name in numbered} == prefixes
    assert listed - numbered == {name for name in started if not name.endswith('…')}


def test_every_lock_of_the_node_is_described():
    listed = {(codes(cell)[0], codes(cell)[1]) for cell, _ in rows(section(PAGE, 'Locks'))}
    assert listed == {
        (name, path) for path, tree in node_trees().items() for name in lock_names(tree)
    }


@pytest.mark.parametrize(
    ('text', 'threads', 'locks'),
    [
        ('threading.Thread(target=run, name="a", daemon=True)', ['a'], set()),
        ('threading.Thread(target=run, name=f"a_{number}")', ['a_…'], set()),
        ('LOCK: Final = threading.Lock()', [], {'LOCK'}),
        ('class A:\n def f(self):\n  self.b = threading.RLock()', [], {'A.b'}),
        ('class A:\n b: Any = field(default_factory=threading.Lock)', [], {'A.b'}),
        ('class A:\n def b(self):\n  return threading.Condition()', [], {'A.b'}),
        ('class A:\n b: threading.Lock\n c = threading.Event()', [], set()),
    ],
)
def test_reader_finds_threads_and_locks(text, threads, locks):
    tree = ast.parse(text)
    assert thread_names(tree) == threads
    assert lock_names(tree) == locks
