"""What is wrong with a command line: a few lines, with the option that was meant."""

import ast
from pathlib import Path

import pytest

import trt_perception
from trt_perception.process.option_parser import OptionParser


@pytest.fixture
def usage_error(capsys):
    parser = OptionParser('tool', 'Does things.', 'examples:\n  tool --images a')
    parser.add_argument('--images', required=True, metavar='DIR')
    parser.add_argument('--size', type=int)
    for number in range(40):
        parser.add_argument(f'--further-{number}')

    def refuse(*words):
        with pytest.raises(SystemExit) as caught:
            parser.parse_args(words)
        assert caught.value.code == 2
        printed = capsys.readouterr()
        assert printed.out == ''
        return printed.err

    return refuse


@pytest.mark.parametrize(
    'words',
    [
        '',
        *('--imagse a', '--imagse=a', '--images b --imagse a', '--images b --imagse=a'),
        *('--images a size:=3', '--images a size=3', '--images a sizes:=3', '--images a --quux'),
        '--imag a --size large',
    ],
)
def test_wrong_command_lines(usage_error, words, golden_messages):
    golden_messages.add(usage_error(*words.split()))


def test_nothing_that_was_typed_acts_on_the_terminal(usage_error):
    assert '\x1b' not in usage_error('--images', 'a', '--\x1b[31msize')


def test_a_usage_of_its_own(capsys, golden_messages):
    with pytest.raises(SystemExit):
        OptionParser('tool', None, '', 'tool --ros-args [-p NAME:=VALUE]').parse_args(['x:=1'])
    golden_messages.add(capsys.readouterr().err.splitlines()[-1])


def test_help_ends_with_the_examples(capsys):
    with pytest.raises(SystemExit):
        OptionParser('tool', 'Does things.', 'examples:\n  tool --images a').parse_args(['--help'])
    assert capsys.readouterr().out.endswith('examples:\n  tool --images a\n')


def test_every_command_line_of_the_package_is_one():
    package = Path(trt_perception.__file__).parent
    calls = [
        path.name
        for path in package.rglob('*.py')
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, 'attr', '') == 'ArgumentParser'
    ]
    assert calls == []
