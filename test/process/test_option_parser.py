# SPDX-License-Identifier: Apache-2.0
"""Tests of short error messages for wrong command lines, with the most similar option."""

import ast
from pathlib import Path

import pytest

import trt_perception
from trt_perception.process.option_parser import OptionParser


@pytest.fixture
def refused_command_line(capsys):
    parser = OptionParser('tool', 'Does things.', 'examples:\n  tool --images a')
    parser.add_argument('--images', required=True, metavar='DIR')
    parser.add_argument('--size', type=int)
    for number in range(40):
        parser.add_argument(f'--further-{number}')

    def parse_and_return_error(*arguments):
        with pytest.raises(SystemExit) as caught:
            parser.parse_args(arguments)
        assert caught.value.code == 2
        printed = capsys.readouterr()
        assert printed.out == ''
        return printed.err

    return parse_and_return_error


@pytest.mark.parametrize(
    'arguments',
    [
        '',
        *('--imagse a', '--imagse=a', '--images b --imagse a', '--images b --imagse=a'),
        *('--images a size:=3', '--images a size=3', '--images a sizes:=3', '--images a --quux'),
        '--imag a --size large',
    ],
)
def test_wrong_command_line_is_explained(refused_command_line, arguments, golden_messages):
    golden_messages.add(refused_command_line(*arguments.split()))


def test_error_contains_no_escape_sequence_of_the_user(refused_command_line):
    assert '\x1b' not in refused_command_line('--images', 'a', '--\x1b[31msize')


def test_error_shows_a_custom_usage(capsys, golden_messages):
    with pytest.raises(SystemExit):
        OptionParser('tool', None, '', 'tool --ros-args [-p NAME:=VALUE]').parse_args(['x:=1'])
    golden_messages.add(capsys.readouterr().err.splitlines()[-1])


def test_help_ends_with_the_examples(capsys):
    with pytest.raises(SystemExit):
        OptionParser('tool', 'Does things.', 'examples:\n  tool --images a').parse_args(['--help'])
    assert capsys.readouterr().out.endswith('examples:\n  tool --images a\n')


def test_package_uses_no_other_argument_parser():
    package = Path(trt_perception.__file__).parent
    calls = [
        path.name
        for path in package.rglob('*.py')
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, 'attr', '') == 'ArgumentParser'
    ]
    assert calls == []


def test_usage_mentions_the_model_before_options_with_several_values():
    parser = OptionParser('tool', None, '')
    parser.add_argument('--source', nargs='+')
    parser.add_model('a model')
    assert parser.format_usage() == 'usage: tool MODEL [-h] [--source SOURCE [SOURCE ...]]\n'
