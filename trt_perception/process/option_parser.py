# SPDX-License-Identifier: Apache-2.0
"""An option parser that explains a mistake in a few lines, instead of listing all options."""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from trt_perception.files.plain_text import closest_words, escape_controls, split_list
from trt_perception.process.foreign_names import ForeignNames

# Matches options, launch arguments and ROS parameters, but not topics with a namespace.
_NAMED_VALUE: Final = re.compile(r'(?s)(-*)([A-Za-z_][\w.-]*)(?:(:=|=)(.*))?')

# Other names of the argument MODEL.
_MODEL_OPTIONS: Final = ('--model', '--engine', '--onnx', '--engine-path', '--engine_path')


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Prints arguments before options, because an option with several values takes all words."""

    def _format_usage(
        self, usage: str | None, actions: Any, groups: Any, prefix: str | None
    ) -> str:
        if usage is None:
            arguments = [action for action in actions if not action.option_strings]
            named = super()._format_usage(None, arguments, [], '')
            self._prog = ' '.join(named.split())
            actions = [action for action in actions if action.option_strings]
        return super()._format_usage(usage, actions, groups, prefix)


class OptionParser(argparse.ArgumentParser):
    """A parser whose help ends with examples, and whose errors suggest the intended option.

    Args:
        examples: last lines of the help, printed unchanged.
        usage: usage line; None lists the options.
        assignment: takes a word and its values. Returns ``NAME:=VALUE`` of the ROS parameter whose
            name equals or resembles the word; empty if there is none.
        before: the shell arguments to print before a suggested assignment.
        other_name: returns the row of a name that other packages use; None for other words. The
            default knows no such names.
    """

    def __init__(
        self,
        program: str,
        description: str | None,
        examples: str,
        usage: str | None = None,
        assignment: Callable[[str, Sequence[str]], str] = lambda _name, _values: '',
        before: str = '--ros-args -p',
        other_name: Callable[[str], ForeignNames | None] = lambda _word: None,
    ) -> None:
        super().__init__(
            prog=program,
            usage=usage,
            description=description,
            epilog=examples,
            formatter_class=_HelpFormatter,
        )
        self._given: Sequence[str] = ()
        self._assignment = assignment
        self._before = before
        self._other_name = other_name
        self._model_options: Sequence[str] = ()

    def add_model(self, text: str, dest: str = 'model', **facts: Any) -> None:
        """Add the argument MODEL with a help text. The user may also give it as an option."""
        self._model_options = _MODEL_OPTIONS
        text += ' (also as --model, --engine or --onnx)'
        self.add_argument(dest, metavar='MODEL', help=text, **facts)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse like argparse, and store the given words for suggestions."""
        self._given = sys.argv[1:] if args is None else args
        if self._model_options:
            self._given = self._move_models_first()
        return super().parse_known_args(self._given, namespace)

    def _move_models_first(self) -> list[str]:
        """Return the given words with the models in front that options name."""
        models: list[str] = []
        others: list[str] = []
        target, option = others, ''
        for before, word in itertools.pairwise(('', *self._given)):
            name, equals, value = word.partition('=')
            name = name.removesuffix(':')
            is_value = before in self._option_string_actions
            if name in self._model_options or (name == 'engine_path' and not is_value):
                option, target = word, others if equals else models
                models += [value] if equals else []
                continue
            target = others if word.startswith('-') else target
            target.append(word)
        has_argument = bool(others) and not others[0].startswith('-')
        if option and (has_argument or not models):
            self.error(f'{option}: expected one model, here or as the first argument')
        return [*models, *others]

    def error(self, message: str) -> NoReturn:
        """Print the error, suggestions and the required arguments. Exit with code 2."""
        needed = self._get_formatter()
        shown = [each for each in self._actions if each.required or not each.option_strings]
        needed.add_usage(self.usage, shown, [])
        usage = ' '.join(needed.format_help().split()) + ' [OPTION ...]' * (not self.usage)
        meant = [
            sentence
            for before, word in itertools.pairwise(('', *self._given))
            if before not in self._option_string_actions and (sentence := self.suggestion(word))
        ]
        said = [f'{self.prog}: error: {message}', *meant, f'{usage}; --help says more']
        self.exit(2, escape_controls('\n'.join(said)) + '\n')

    def _words_after(self, word: str) -> list[str]:
        place = list(self._given).index(word) + 1
        return list(itertools.takewhile(lambda each: each[:1] != '-', self._given[place:]))

    def _option_text(self, option: str, values: Sequence[str]) -> str:
        """Return an option with as many of the values as it takes."""
        action = self._option_string_actions.get(option)
        if action is not None and action.nargs == '+':
            values = [item for value in values for item in split_list(value)]
        else:
            values = values[: action is None or action.nargs != 0]
        return shlex.join([option, *values])

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Print argparse's error for unknown words, and exit with code 2."""
        self._given = words
        self.error(f'unrecognized arguments: {" ".join(words)}')

    def suggestion(self, word: str) -> str:
        """Return a sentence that suggests the intended option or parameter, or an empty text."""
        named = _NAMED_VALUE.fullmatch(word)
        if named is None:
            return ''
        dashes, name, colon, value = named.groups()
        options = [*self._model_options, *self._option_string_actions]
        if dashes == '--' and colon != ':=' and self._accepts(f'--{name}', options):
            return ''
        option = f'--{name.replace("_", "-")}'
        values = [value] if value else self._words_after(word)
        if colon and not dashes and option in options:
            meant = [self._option_text(option, values)]
        elif (dashes == '--' or colon) and (other := self._other_name(name)):
            return f'{word} is not an option; {self._foreign_fix(other, values)}'
        elif (dashes or colon) and (assignment := self._assignment(name, values)):
            meant = [f'the parameter, {self._before} {shlex.quote(assignment)}']
            close = closest_words(option, options, cutoff=0.8)
            meant += [self._option_text(each, values) for each in close]
        else:
            close = closest_words(f'--{name}', options) if dashes == '--' else []
            meant = [self._option_text(each, values) for each in close]
        return f'{word} is not an option; did you mean {", or ".join(meant)}?' if meant else ''

    def _accepts(self, word: str, options: Sequence[str]) -> bool:
        """Return whether a word is an option, or an abbreviation of options if allowed."""
        return word in options or (
            self.allow_abbrev and any(option.startswith(word) for option in options)
        )

    def _foreign_fix(self, other: ForeignNames, values: Sequence[str]) -> str:
        """Return what to type instead of a name of another package."""
        option, _, value = other.builds_with.partition(' ')
        if option in self._option_string_actions:
            return f'did you mean {self._option_text(option, [value] if value else values)}?'
        if not other.ours:
            return f'no such option here: {other.note}'
        has_option = other.option in (*self._model_options, *self._option_string_actions)
        if has_option and other.note:
            return f'use {other.option} instead: {other.note}'
        if has_option:
            return f'did you mean {self._option_text(other.option, values)}?'
        assignment = self._assignment(other.ours, [] if other.note else values)
        note = f': {other.note}' if other.note else ''
        if assignment:
            parameter = f'{self._before} {shlex.quote(assignment)}'
            return f'use the parameter instead, {parameter}{note}'
        return f"the node's parameter for this is {other.ours}{note}"
