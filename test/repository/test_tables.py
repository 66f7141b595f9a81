# SPDX-License-Identifier: Apache-2.0
"""Check that parts of pages and config/detect.yaml equal the output of scripts/tables."""

import re

import pytest

from support.docs_pages import ROOT, load_script

pytestmark = pytest.mark.ros

tables = load_script('tables.py')


def test_generated_parts_are_up_to_date():
    found = [path.relative_to(ROOT).as_posix() for path in tables.outdated()]
    assert found == [], 'run scripts/tables'


def test_every_generated_part_is_on_exactly_one_page():
    pages = [path.read_text(encoding='utf-8') for path in (ROOT / 'docs').rglob('*.md')]
    names = [name for page in pages for name in re.findall(r'^<!-- begin (.*?) -->$', page, re.M)]
    assert sorted(names) == sorted(tables.PARTS)


def test_outdated_part_is_rewritten():
    page = 'before\n<!-- begin encodings -->\n\n`bgr8`\n\n<!-- end -->\nafter\n'
    written = tables.page_text(page)
    assert written == page.replace('`bgr8`\n', tables.encodings())
    assert tables.page_text(written) == written


def test_unknown_part_is_refused():
    with pytest.raises(SystemExit, match='unknown generated part colours'):
        tables.page_text('<!-- begin colours -->\n<!-- end -->\n')


def test_check_reports_an_outdated_page_and_writes_nothing(tmp_path, monkeypatch, capsys):
    (tmp_path / 'docs').mkdir()
    (tmp_path / 'config').mkdir()
    page, settings = tmp_path / 'docs' / 'page.md', tmp_path / 'config' / 'detect.yaml'
    old = '<!-- begin encodings -->\n<!-- end -->\n'
    page.write_text(old)
    settings.write_text(tables.detect_yaml())
    (tmp_path / tables.BOXES_YAML).write_text(tables.boxes_yaml())
    monkeypatch.setattr(tables, 'ROOT', tmp_path)

    monkeypatch.setattr('sys.argv', ['tables', '--check'])
    assert tables.main() == 1
    assert capsys.readouterr().out == 'out of date: docs/page.md\n'
    assert page.read_text() == old

    monkeypatch.setattr('sys.argv', ['tables'])
    assert tables.main() == 0
    assert '`bgr8`' in page.read_text()
    monkeypatch.setattr('sys.argv', ['tables', '--check'])
    assert tables.main() == 0
