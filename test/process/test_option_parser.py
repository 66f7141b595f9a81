"""What is wrong with a command line: a few lines, with the option that was meant."""

import ast
from pathlib import Path

import pytest

import trt_perception
from trt_perception.process.option_parser import OptionParser


@pytest.fixture
def refused(capsys):
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
        *said, usage = printed.err.splitlines()
        assert usage == 'usage: tool --images DIR [OPTION ...]; --help says more'
        return said

    return refuse


def test_what_is_missing(refused):
    assert refused() == ['tool: error: the following arguments are required: --images']


@pytest.mark.parametrize('words', [['--imagse', 'a'], ['--imagse=a']])
def test_an_option_that_is_misspelt_is_named(refused, words):
    meant = '--imagse is no option; did you mean --images?'
    assert refused(*words) == [
        'tool: error: the following arguments are required: --images',
        meant,
    ]
    said = refused('--images', 'b', *words)
    assert said == [f'tool: error: unrecognized arguments: {" ".join(words)}', meant]


@pytest.mark.parametrize('word', ['size:=3', 'size=3'])
def test_an_option_that_is_typed_as_those_of_launch(refused, word, said):
    assert refused('--images', 'a', word) == [
        f'tool: error: unrecognized arguments: {word}',
        f'{word} is no option; did you mean --size 3?',
    ]
    (printed,) = refused('--images', 'a', 'sizes:=3')
    said(printed)


def test_a_word_that_resembles_none(refused):
    said = refused('--images', 'a', '--quux')
    assert said == ['tool: error: unrecognized arguments: --quux']


def test_a_wrong_value_of_a_right_option(refused, said):
    (printed,) = refused('--imag', 'a', '--size', 'large')
    said(printed)


def test_nothing_that_was_typed_acts_on_the_terminal(refused):
    said = refused('--images', 'a', '--\x1b[31msize')
    assert '\x1b' not in ''.join(said)


def test_a_usage_of_its_own(capsys):
    with pytest.raises(SystemExit):
        OptionParser('tool', None, '', 'tool --ros-args [-p NAME:=VALUE]').parse_args(['x:=1'])
    usage = 'usage: tool --ros-args [-p NAME:=VALUE]; --help says more'
    assert capsys.readouterr().err.splitlines()[-1] == usage


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
