# SPDX-License-Identifier: Apache-2.0
"""Read options from build.yaml and from the command line, which takes precedence.

Guarantees: no key in build.yaml is ignored, and errors name each wrong key with its line.
Paths in build.yaml are relative to build.yaml and must stay in its folder after links are
resolved, because people exchange such files together with models. Paths on the command line are
relative to the working folder and may lead anywhere.
"""

from __future__ import annotations

import argparse
import errno
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from trt_perception.errors import ConfigError, ValuesError
from trt_perception.files.json_section import JsonSection
from trt_perception.files.plain_text import (
    MAX_CLASSES,
    closest_words,
    fraction_as_number,
    read_yes_no,
    repair_names,
    short_repr,
)
from trt_perception.files.regular_files import read_user_file
from trt_perception.files.yaml_text import MAX_YAML_BYTES, read_yaml
from trt_perception.offline.building.options.build_options import OPTIONS, BuildOptions
from trt_perception.offline.building.options.rows import Option
from trt_perception.process.foreign_names import foreign_names

_LOG: Final = logging.getLogger(__name__)
_MAX_NAMES_BYTES: Final = 4 * 1024 * 1024
_MAX_LIST_LENGTH: Final = 1024
_OPTIONS_BY_NAME: Final = {option.name: option for option in OPTIONS}


class _OptionSection(JsonSection):
    """A mapping from option names to values. Errors name an option as the user gave it."""

    error = ConfigError

    def __init__(self, values: Mapping[str, Any], given: Collection[str]) -> None:
        super().__init__(dict(values), 'options')
        self._given = given

    def subject(self, key: str) -> str:
        return (
            _OPTIONS_BY_NAME[key].flag
            if key in _OPTIONS_BY_NAME and key in self._given
            else short_repr(key)
        )

    def format_value(self, value: object) -> str:
        return short_repr(value, 80)


def load_options(config: Path | None, given: Mapping[str, Any]) -> BuildOptions:
    """Return the options of a YAML file and of the command line.

    Args:
        config: path of build.yaml; None without this file.
        given: values from the command line by option name. They replace values of the file.

    Raises:
        ConfigError: the file cannot be read.
        ValuesError: options are unknown, have invalid values, or contradict each other.
    """
    values, places = ({}, {}) if config is None else _read_yaml(config, given)
    values |= given
    section = _OptionSection(values, given)
    found: dict[str, Any] = {}
    mistakes: list[str] = []
    for row in OPTIONS:
        # For options without a default, null in the file means that the key is missing.
        is_there = (
            section.has(row.name) if row.default is None else row.name in section.unread_keys()
        )
        try:
            if is_there:
                found[row.name] = row.read(section)
            elif row.required:
                subject = section.subject(row.name)
                raise ConfigError(subject, 'is missing', fix=f'give {row.flag}')
        except ConfigError as error:
            mistakes.append(f'{places.get(row.name, "")}{error}')
    for name in section.unread_keys():
        unknown = ConfigError(section.subject(name), 'is not an option', fix=_unknown_fix(name))
        mistakes.append(f'{places.get(name, "")}{unknown}')
    if mistakes:
        raise ValuesError(mistakes)
    return BuildOptions(given=frozenset(values), **found)


def _unknown_fix(name: str) -> str:
    """Return what to write instead of an unknown key; '' if nothing is similar."""
    foreign = foreign_names(name)
    if foreign and foreign.builds_with:
        option, _, value = foreign.builds_with.removeprefix('--').partition(' ')
        return f"did you mean '{f'{option}: {value}' if value else option}'?"
    if foreign and (not foreign.ours or _option_name(foreign.ours) in _OPTIONS_BY_NAME):
        return foreign.fix(lambda known: f"'{_option_name(known)}'?", _option_name)
    near = closest_words(name.replace('-', '_'), _OPTIONS_BY_NAME, cutoff=0.8)
    return f"did you mean '{near[0]}'?" if near and not foreign else ''


def _option_name(parameter: str) -> str:
    return parameter.removeprefix('model.')


def _read_yaml(path: Path, given: Collection[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return values and line numbers by option name, without options in ``given``.

    A line number is a text that precedes messages about the option.
    """
    content, lines = read_yaml(_read_text(path, MAX_YAML_BYTES), str(path))
    if content is None:
        return {}, {}
    if not isinstance(content, dict):
        raise ConfigError(
            str(path), type(content).__name__, expected='one "option: value" on each line'
        )
    if len(content) > 2 * len(OPTIONS):
        raise ConfigError(
            str(path), f'{len(content)} keys', expected=f'at most {len(OPTIONS)} options'
        )
    found = {str(key).replace('-', '_'): value for key, value in content.items()}
    if len(found) < len(content):
        raise ConfigError(str(path), 'an option is repeated, once with - and once with _')
    places = dict.fromkeys(found, f'{path}: ')  # keys that are not texts have no line
    places |= {n.replace('-', '_'): f'{path}, line {line}: ' for n, line in lines.items()}
    values: dict[str, Any] = {}
    mistakes: list[str] = []
    for name, value in found.items():
        if name not in given:
            try:
                values[name] = _converted(path, name, value)
            except ConfigError as error:
                mistakes.append(f'{places[name]}{error}')
    if mistakes:
        raise ValuesError(mistakes)
    return values, {name: places[name] for name in values}


def _converted(config: Path, name: str, value: Any) -> Any:
    """Convert fractions and quoted yes or no, and make paths relative to the file.

    Raises:
        ConfigError: a path leaves the folder of the file, or a list is too long.
    """
    most = MAX_CLASSES if name == 'class_names' else _MAX_LIST_LENGTH
    if isinstance(value, list) and len(value) > most:
        raise ConfigError(short_repr(name), str(len(value)), expected=f'at most {most} values')
    row = _OPTIONS_BY_NAME.get(name)
    if row is not None and row.kind == 'float':
        return (
            [*map(fraction_as_number, value)]
            if isinstance(value, list)
            else fraction_as_number(value)
        )
    if row is not None and row.kind == 'bool' and isinstance(value, str):
        answer = read_yes_no(value)
        return value if answer is None else answer
    if row is None or row.kind != 'path' or value in row.words:
        return value
    if isinstance(value, list):
        return [_converted(config, name, item) for item in value]
    if not isinstance(value, str) or not value:
        return value
    try:
        given = config.parent / Path(value).expanduser()
        home, place = config.parent.resolve(), given.resolve()
        _check_no_loop(given)
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # loop of links, NUL, unknown user after ~
        raise ConfigError(f"'{name}'", f'the path {value!r} is invalid: {error}') from error
    if not place.is_relative_to(home):
        where = '' if Path(value) == place else f', which is {place}'
        raise ConfigError(
            f"'{name}'",
            f'{value}{where}',
            expected='a path in the folder of this file',
            fix=f'give paths in other folders on the command line: {row.flag} {value}',
        )
    return str(config.parent / value)


def _check_no_loop(path: Path) -> None:
    """Raise OSError for a loop of links. From Python 3.13 on, `Path.resolve` raises no error."""
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise


def _read_text(path: Path, limit: int) -> str:
    try:
        return read_user_file(path, limit).decode('utf-8-sig')
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), f'is not text in UTF-8: {error}') from error


def read_class_names(options: BuildOptions) -> tuple[str, ...]:
    """Return the class names from the options; empty if the options have no class names.

    Raises:
        ConfigError: the file of names cannot be read, or a name is invalid.
    """
    path = options.class_names_file
    return options.class_names if path is None else read_names_file(path)


def names_file_text(path: Path | None) -> str:
    """Return the option with a file of class names, for messages; empty without a file."""
    return f'--class-names-file {path.name}' if path else ''


def read_names_file(path: Path) -> tuple[str, ...]:
    """Return the names in a text file, which has one name on each line.

    Exporters accept models with an empty or a repeated name, so files of such names are accepted
    as the metadata of these models are: an invalid name is replaced, with a warning.

    Raises:
        ConfigError: the file of names cannot be read, or has no names or too many.
    """
    lines = _read_text(path, _MAX_NAMES_BYTES).split('\n')
    names = [line.removesuffix('\r').strip(' \t') for line in lines]
    while names and not names[-1]:
        names.pop()
    if not names:
        raise ConfigError(str(path), 'no names', expected='class names, one on each line')
    if len(names) > MAX_CLASSES:
        raise ConfigError(str(path), f'{len(names)} names', expected=f'at most {MAX_CLASSES}')
    found, remark = repair_names(names)
    if remark:
        _LOG.warning('%s: %s', path, remark)
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all options to a parser. The result has no attribute for options not given.

    The required option, ``onnx``, is the argument MODEL of the command line.
    """
    titles = dict.fromkeys(option.group for option in OPTIONS)
    groups = {name: parser.add_argument_group(name) for name in titles}
    for option in (row for row in OPTIONS if not row.required):
        facts: dict[str, Any] = {'help': help_text(option), 'default': argparse.SUPPRESS}
        if option.kind == 'bool':
            facts['action'] = argparse.BooleanOptionalAction
        else:
            facts['type'] = {'int': _number_type(int), 'float': _number_type(float)}.get(
                option.kind, str
            )
            facts['metavar'] = option.metavar or '|'.join(option.choices) or None
            facts['nargs'] = '+' if option.is_list else None
        groups[option.group].add_argument(option.flag, dest=option.name, **facts)


def help_text(option: Option) -> str:
    """Return the line for --help: description, unit, range, choices and default."""
    facts = []
    if option.choices and option.metavar:
        facts.append('one of ' + ', '.join(option.choices))
    if option.limits:
        low, high = option.limits
        facts.append(f'{low:.12g} to {high:.12g} {option.unit}'.strip())
    if option.default not in (None, (), False):
        facts.append(f'default: {option.default}')
    text = option.description + (f' ({"; ".join(facts)})' if facts else '')
    return text.replace('%', '%%')


def _number_type(kind: type[int] | type[float]) -> Any:
    def number(text: str) -> int | float:
        return kind(fraction_as_number(text) if kind is float else text)

    number.__name__ = 'whole number' if kind is int else 'number'
    return number


def given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the values from the command line by option name, for ``load_options``."""
    return {name: value for name, value in vars(arguments).items() if name in _OPTIONS_BY_NAME}
