# SPDX-License-Identifier: Apache-2.0
"""Test the plugin that compares texts with golden files (support/golden.py)."""

import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from support import golden
from trt_perception.model.decoders.table import DECODERS_BY_FAMILY, PRESETS

TEST_FOLDER = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(golden, 'FOLDER', tmp_path)
    monkeypatch.setattr(golden, 'rewriting', False)


def test_equal_text_passes(tmp_path):
    (tmp_path / 'said.txt').write_text('one\ntwo\n')

    golden.check('said.txt', 'one\ntwo')


def test_changed_text_fails_with_the_difference_and_the_command(tmp_path):
    (tmp_path / 'said.txt').write_text('one\ntwo\n')

    with pytest.raises(pytest.fail.Exception) as failure:
        golden.check('said.txt', 'one\n2\n')

    lines = str(failure.value).splitlines()
    assert lines[-3:-1] == ['-two', '+2']
    assert lines[-1].endswith('scripts/test --rewrite-golden test/repository/test_golden.py')


def test_each_difference_names_its_scene(tmp_path):
    old = [f'== {scene}\none\ntwo\nthree\n' for scene in ('far', 'near', 'gone')]
    (tmp_path / 'said.txt').write_text(''.join(old))

    with pytest.raises(pytest.fail.Exception) as failure:
        golden.check('said.txt', ''.join([old[0], old[1].replace('three', '3'), '== new\none\n']))

    hunks = [line for line in str(failure.value).splitlines() if line.startswith('@@')]
    assert [hunk.partition('== ')[2] for hunk in hunks] == ['near']


def test_missing_file_fails_with_the_command():
    with pytest.raises(pytest.fail.Exception, match=r'said.txt is missing: scripts/test --rewri'):
        golden.check('said.txt', 'one')


def test_rewriting_makes_the_next_check_pass(monkeypatch):
    monkeypatch.setattr(golden, 'rewriting', True)
    golden.check('model/said.txt', 'one')
    monkeypatch.setattr(golden, 'rewriting', False)

    golden.check('model/said.txt', 'one')


def test_temporary_folder_becomes_a_word(tmp_path):
    assert golden.without_folder(f'{tmp_path}/a.onnx: bad', tmp_path) == 'FOLDER/a.onnx: bad'


@pytest.mark.parametrize('quote', ['', "'", '"'])
@pytest.mark.parametrize(
    ('names', 'word'), [(PRESETS, 'ALL_PRESETS'), (DECODERS_BY_FAMILY, 'ALL_FAMILIES')]
)
def test_list_of_all_decoders_becomes_a_word(names, word, quote, tmp_path):
    (tmp_path / 'said.txt').write_text(f'expected {word}\n')
    quoted = [f'{quote}{name}{quote}' for name in names]

    golden.check('said.txt', f'expected {", ".join(quoted)}')
    with pytest.raises(pytest.fail.Exception):
        golden.check('said.txt', f'expected {", ".join(quoted[1:])}')


@pytest.fixture
def messages(tmp_path):
    """Return a function that creates GoldenMessages for a test in test/model/test_task.py."""

    def make(name='test_one'):
        path = tmp_path / 'test/model/test_task.py'
        names = ('test_one', 'test_two[a]')
        items = [SimpleNamespace(name=name, path=path) for name in names]
        session = SimpleNamespace(items=items)
        item = SimpleNamespace(name=name, path=path, session=session)
        return golden.GoldenMessages(item, tmp_path)

    return make


def test_rewriting_stores_messages_of_each_test_in_its_own_section(
    tmp_path, monkeypatch, messages
):
    monkeypatch.setattr(golden, 'rewriting', True)
    path = tmp_path / 'model/task.txt'
    path.parent.mkdir()
    path.write_text('== test_gone\nold\n\n')
    for name in ('test_one', 'test_two[a]'):
        golden_messages = messages(name)
        with golden_messages.raises(ValueError):
            raise ValueError(f'{tmp_path}/folder-1/a.onnx: bad\nof {name}')
        golden_messages.add('more')
        golden_messages.check()

    parts = (f'== {n}\nFOLDER/a.onnx: bad\nof {n}\nmore\n\n' for n in ('test_one', 'test_two[a]'))
    assert path.read_text() == ''.join(parts)


@pytest.mark.parametrize(('text', 'passes'), [('one', True), ('two', False)])
def test_messages_are_compared_with_the_section_of_their_test(tmp_path, messages, text, passes):
    (tmp_path / 'model').mkdir()
    (tmp_path / 'model/task.txt').write_text('== test_other\ntwo\n\n== test_one\none\n\n')
    golden_messages = messages()
    golden_messages.add(text)
    with contextlib.nullcontext() if passes else pytest.raises(pytest.fail.Exception):
        golden_messages.check()


def test_missing_section_fails(messages):
    with pytest.raises(pytest.fail.Exception, match=r'is missing in model/task.txt: scripts/te'):
        messages().check()


@pytest.mark.parametrize(
    ('call', 'is_refused'),
    [
        ("golden.check('model/task.txt', text)", True),
        ('golden.check(\n    "model/task.txt",\n    text,\n)', True),
        ("golden.check('model/refused.txt', text)", False),
    ],
)
def test_own_golden_file_passed_to_check_is_refused(tmp_path, call, is_refused):
    test = tmp_path / 'test/model/test_task.py'
    test.parent.mkdir(parents=True)
    test.write_text(call)

    refusal = pytest.raises(pytest.fail.Exception, match=r'overwrite test/golden/model/task.txt')
    with refusal if is_refused else contextlib.nullcontext():
        golden.refuse_shared_file(test)


def test_unused_file_is_found(tmp_path):
    for name in ('model/used.txt', 'model/unused.txt'):
        path = tmp_path / 'golden' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    test = tmp_path / 'test_said.py'
    test.write_text("golden.check('model/used.txt', 'one')")

    assert golden.unused(tmp_path / 'golden', [test]) == ['model/unused.txt']


def test_each_golden_file_is_used():
    unused = golden.unused(TEST_FOLDER / 'golden', TEST_FOLDER.rglob('test_*.py'))

    assert not unused, f'type: git rm {" ".join(f"test/golden/{name}" for name in unused)}'
