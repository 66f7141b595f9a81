# SPDX-License-Identifier: Apache-2.0
"""Check docs/building.md against the code: options, commands, steps and errors."""

import ast
import re
import shlex

import pytest
import yaml

from support.docs_pages import ROOT, blocks, codes, literals, quoted, rows, section, sources
from trt_perception.model.build_record import PRECISIONS
from trt_perception.offline.building.options.build_options import OPTIONS
from trt_perception.offline.building.options.sources import given_options, load_options
from trt_perception.offline.building.report import BuildReport
from trt_perception.offline.tools import build_engine

PAGE = (ROOT / 'docs' / 'building.md').read_text(encoding='utf-8')
PAGES = [(ROOT / name).read_text(encoding='utf-8') for name in ('README.md', 'docs/building.md')]


def commands(name):
    lines = [
        line
        for page in PAGES
        for block in blocks(page, 'bash')
        for line in block.replace('\\\n', ' ').splitlines()
    ]
    start = f'ros2 run trt_perception {name} '
    return [shlex.split(line)[4:] for line in lines if line.startswith(start)]


@pytest.mark.parametrize('words', commands('build_engine'), ids=' '.join)
def test_commands_of_the_page_are_accepted(words, tmp_path):
    if '--config' in words:
        words[words.index('--config') + 1] = str(tmp_path / 'build.yaml')
        (tmp_path / 'build.yaml').write_text(blocks(PAGE, 'yaml')[0])
    parsed = build_engine._parser().parse_args(words)
    load_options(parsed.config, given_options(parsed))


def test_example_of_an_option_file_is_accepted(tmp_path):
    (block,) = blocks(PAGE, 'yaml')
    path = tmp_path / 'build.yaml'
    path.write_text(block)
    assert load_options(path, {}).precision == 'int8'
    assert len(yaml.safe_load(block)) > 5


def test_options_on_the_page_exist():
    flags = {option.flag for option in OPTIONS} | {'--config', '--help', '--update-manifest'}
    described = {word for code in codes(PAGE) for word in re.findall(r'--[a-z][a-z0-9-]*', code)}
    assert described <= flags | {'--times', '--param'}  # these two are options of other tools
    assert len(described) > 20


def test_install_command_lists_the_packages_of_the_extra():
    setup = (ROOT / 'setup.py').read_text(encoding='utf-8')
    (extra,) = re.findall(r"'build': \[(.*?)\]", setup, re.DOTALL)
    packages = sorted(re.findall(r"'([^']+)'", extra))
    message = next(text for text in literals().splitlines() if 'of the extra "build" into' in text)
    for text in (*PAGES, message):
        # The pages keep NumPy 1 for Ubuntu's OpenCV and cv_bridge. The message is also for others.
        (line,) = re.findall(r"python3 -m pip install (?:'numpy<2' )?(onnx .*)", text)
        assert sorted(shlex.split(line)) == packages


def test_every_precision_is_described():
    described = [codes(row[0])[0] for row in rows(section(PAGE, 'Which precision'))]
    assert described == list(PRECISIONS)


def test_every_step_is_described():
    """Compare the steps on the page with the names in the code, in the order of a real build."""
    named = {
        node.args[0].value
        for path, tree in sources().items()
        if ROOT / 'trt_perception/offline/building' in path.parents
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, 'attr', '') == 'step'
    }
    described = [name for row in rows(section(PAGE, 'Build')) for name in row[0].split(', ')]
    assert set(described) == named
    (sample,) = blocks(PAGE, 'text')
    shown = [line.split()[0] for line in sample.splitlines() if not line.startswith(' ')]
    assert [name for name in shown if name not in described] == []
    assert [name for name in described if name in shown and name != 'check'] == [
        name for name in shown if name != 'check'
    ]


def test_every_key_of_the_report_is_described():
    assert codes(section(PAGE, 'Report')) == ['--json FILE', *BuildReport().as_dict()]


def quoted_errors():
    """Return the error texts that the page quotes."""
    return [code for row in rows(section(PAGE, 'Troubleshooting')) for code in codes(row[0])]


@pytest.mark.parametrize('text', quoted_errors())
def test_page_quotes_errors_exactly(text):
    assert quoted(text), text
