# SPDX-License-Identifier: Apache-2.0
"""Reads the sections of a parameter file: names of nodes, and the cameras of a node.

rcl ignores the sections of other nodes without a message.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import join_first_items, short_repr
from trt_perception.files.regular_files import read_regular
from trt_perception.files.yaml_text import MAX_YAML_BYTES, read_yaml, yaml_failure

# A handwritten file is far smaller. Reading this size takes 1 s.
_MAX_BYTES: Final = 256 * 1024
_MAX_DEPTH: Final = 16
_TEXT_TAG: Final = 'tag:yaml.org,2002:str'


def unused_parameters(arguments: Sequence[str], node: str) -> list[str]:
    """Return a sentence for each argument that sets parameters of other nodes only.

    Args:
        arguments: ROS arguments as rcl received them, without expansion of files.
        node: full name of the node, such as ``/front/detector``.
    """
    sentences = []
    for option, given in itertools.pairwise(arguments):
        others, cure = [], 'remove the node name'
        if option == '--params-file':
            others = foreign_sections(Path(given), node)
            cure = f'rename one of its sections to {node} or /**'
        elif option in ('-p', '--param'):
            name, colon, _ = given.partition(':=')[0].rpartition(':')
            others = [f'/{name}'] if colon and not _matches(name, node) else []
        if others:
            names = [other if other.isprintable() else short_repr(other) for other in others]
            sentences.append(
                f'{given} sets nothing of this node, {node}, only of '
                f'{join_first_items(names)}: {cure}'
            )
    return sentences


def foreign_sections(path: Path, node: str) -> list[str]:
    """Return the section names of a parameter file, or [] if a section is for this node.

    An unreadable or very large file gives [] as well, because rcl reports its faults.
    """
    names = [name for name, _ in _read_sections(path)]
    return [] if any(_matches(name, node) for name in names) else names


def cameras_of_file(path: Path, node: str) -> list[str]:
    """Return the value of the parameter ``cameras`` in a file for a node, or [] if it is missing.

    The last matching section counts, as with rcl. An unreadable or very large file, and a value of
    another type, give [] as well, because the node reports these faults.

    Args:
        node: full name of the node, such as ``/front/detector``.
    """
    return _texts(_value_for_node(_read_sections(path), node, 'cameras'))


def device_ids_of_file(path: Path, node: str) -> list[int | str]:
    """Return the value of the parameter ``device_ids`` in a file for a node, like the cameras.

    An item that is no decimal number is returned as text.

    Args:
        node: full name of the node, such as ``/front/detector_0``.
    """
    items = _texts(_value_for_node(_read_sections(path), node, 'device_ids'))
    return [int(item) if re.fullmatch(r'-?[0-9]{1,9}', item) else item for item in items]


def values_of_file(path: Path, node: str) -> dict[str, Any]:
    """Return the values of all parameters in a file for a node, by their names with dots.

    A later section overrides earlier ones, as with rcl. Other than rcl, this function reads
    numbers by YAML 1.2.

    Args:
        node: full name of the node, such as ``/detector``.

    Raises:
        ConfigError: the file cannot be read, or has no section for the node.
    """
    try:
        text = read_regular(path, MAX_YAML_BYTES).decode()
    except OSError as error:
        raise ConfigError(str(path), f'cannot be read: {error.strerror or error}') from error
    except ValueError as error:
        raise ConfigError(str(path), f'cannot be read: {error}') from error
    content, _ = read_yaml(text, str(path))
    values: dict[str, Any] = {}
    heads = []
    for head, section in _named_sections(content, ''):
        heads.append(head)
        if _matches(head, node):
            values.update(_dotted(section, ''))
    if not any(_matches(head, node) for head in heads):
        raise ConfigError(
            str(path),
            f'sections for {join_first_items(heads)}' if heads else 'no ros__parameters',
            expected=f'a section for {node}',
            fix=f'name the section {node} or /**',
        )
    return values


def _named_sections(content: Any, head: str) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each ``ros__parameters``."""
    if not isinstance(content, dict):
        return
    if 'ros__parameters' in content:
        yield head, content['ros__parameters']
        return
    for name, inside in content.items():
        if isinstance(name, str):
            yield from _named_sections(inside, f'{head}/{name.strip("/")}')


def _dotted(content: Any, prefix: str) -> dict[str, Any]:
    """Return the values of nested mappings by names with dots."""
    values: dict[str, Any] = {}
    for name, value in content.items() if isinstance(content, dict) else ():
        full = f'{prefix}{name}'
        values.update(_dotted(value, f'{full}.') if isinstance(value, dict) else {full: value})
    return values


def sections_of_old_name(path: Path, old: str, nodes: Sequence[str]) -> list[str]:
    """Return the names of sections that match a node's old name, but none of the new names.

    Args:
        old: full name of the node, such as ``/front/detector``.
        nodes: full names of the nodes that replace this node.
    """
    return [
        head
        for head, _ in _read_sections(path)
        if _matches(head, old) and not any(_matches(head, node) for node in nodes)
    ]


def check_equal_lists(path: Path, nodes: Sequence[str], parameters: Sequence[str]) -> None:
    """Check that a file has the same lists for several nodes.

    Args:
        nodes: full names of the nodes.
        parameters: names of the lists, such as ``cameras``.

    Raises:
        ConfigError: a list differs between two nodes, or a value is no list.
    """
    sections = _read_sections(path)  # once, because this may take a second
    first, *others = nodes
    for parameter in parameters:
        values = [_value_for_node(sections, node, parameter) for node in nodes]
        for node, value in zip(nodes, values, strict=True):
            if value is not None and not isinstance(value, yaml.SequenceNode):
                raise ConfigError(
                    f'params_file {path}',
                    f'the value of {parameter} for {node} is no list',
                    fix='write a list in brackets',
                )
        for node, value in zip(others, values[1:], strict=True):
            if _texts(value) != _texts(values[0]):
                raise ConfigError(
                    f'params_file {path}',
                    f'{first} and {node} have different {parameter}',
                    fix='write one list for all nodes into the section /**',
                )


def _value_for_node(
    sections: Sequence[tuple[str, yaml.MappingNode]], node: str, parameter: str
) -> yaml.Node | None:
    """Return the value of a parameter in the last section for a node that has it, or None."""
    value = None
    for head, section in sections:
        if _matches(head, node):
            found = _value_of_key(_value_of_key(section, 'ros__parameters'), parameter)
            value = value if found is None else found
    return value


def _texts(node: yaml.Node | None) -> list[str]:
    """Return the items of a list as texts; [] for another value."""
    items = node.value if isinstance(node, yaml.SequenceNode) else []
    return [item.value for item in items if isinstance(item.value, str)]


def check_parameter_file(path: Path, subject: str) -> None:
    """Check that a parameter file is YAML, and that its lists are not outside ros__parameters.

    rcl refuses such files, too, but names another reason, and places in its own source. Both use
    the same parser, libyaml. This function skips large files, and pipes.

    Args:
        subject: begin of the error.

    Raises:
        ConfigError: the file is not YAML, or has a list but no ros__parameters.
    """
    parser = getattr(yaml, 'CSafeLoader', None)  # missing if PyYAML was built without libyaml
    if parser is None:
        return
    try:
        text = read_regular(path, _MAX_BYTES)
        events = list(yaml.parse(text, Loader=parser))
    except (OSError, ValueError):
        return
    except yaml.YAMLError as error:
        raise ConfigError(subject, yaml_failure(error)) from error
    has_list = any(isinstance(event, yaml.SequenceStartEvent) for event in events)
    if has_list and b'ros__parameters' not in text:
        fix = 'write ros__parameters: between the name of the node and its parameters'
        raise ConfigError(subject, 'a list, but no ros__parameters', fix=fix)


def first_mixed_list(path: Path) -> str:
    """Return the name of the first parameter that is a list of texts and other values; else ''.

    rcl refuses the whole file for such a list, and names places in its own source.
    """
    for _, section in _read_sections(path):
        parameters = _value_of_key(section, 'ros__parameters')
        if found := _mixed_list(parameters, ()):
            return found
    return ''


def _mixed_list(node: Any, names: tuple[str, ...]) -> str:
    if len(names) > _MAX_DEPTH:
        return ''
    if isinstance(node, yaml.MappingNode):
        inner = (_mixed_list(value, (*names, str(key.value))) for key, value in node.value)
        return next(filter(None, inner), '')
    items = node.value if isinstance(node, yaml.SequenceNode) else []
    kinds = {item.tag for item in items if item.tag != _TEXT_TAG or _is_word(item)}
    return '.'.join(names) if _TEXT_TAG in kinds and len(kinds) > 1 else ''


def _is_word(item: yaml.Node) -> bool:
    """Return whether rcl, too, reads a text as text. It may read some as numbers, such as 1e3."""
    return isinstance(item, yaml.ScalarNode) and (
        item.style is not None or not item.value[:1].isdigit()
    )


def _read_sections(path: Path) -> list[tuple[str, yaml.MappingNode]]:
    """Return each mapping with ``ros__parameters`` and its section name; [] for a bad file."""
    try:
        # A pipe is not opened, because rcl has already read its content.
        text = read_regular(path, _MAX_BYTES).decode()
        # Read YAML nodes only. Creating Python values may be slow, and may fail for files that rcl
        # reads.
        return list(_find_sections(yaml.SafeLoader(text).get_single_node(), '', set()))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return []


def _value_of_key(node: Any, name: str) -> Any:
    """Return the last value of a name in a mapping, or None."""
    members = node.value if isinstance(node, yaml.MappingNode) else []
    return next((inside for key, inside in reversed(members) if key.value == name), None)


def _find_sections(node: Any, head: str, seen: set[int]) -> Iterator[tuple[str, yaml.MappingNode]]:
    """Yield each mapping with ``ros__parameters`` and its section name; YAML aliases only once."""
    if not isinstance(node, yaml.MappingNode) or id(node) in seen:
        return
    seen.add(id(node))
    named = [(key.value, inside) for key, inside in node.value if isinstance(key.value, str)]
    if any(name == 'ros__parameters' for name, _ in named):
        yield head, node
        return
    for name, inside in named:
        yield from _find_sections(inside, f'{head}/{name.strip("/")}', seen)


def _matches(pattern: str, node: str) -> bool:
    """Return whether a section's name, with the wildcards ``*`` and ``**``, matches a node."""
    parts = {'*': r'/\w+', '**': r'(/\w+)*'}
    names = [part for part in pattern.split('/') if part]
    expression = ''.join(parts.get(name, '/' + re.escape(name)) for name in names)
    return re.fullmatch(expression, node) is not None
