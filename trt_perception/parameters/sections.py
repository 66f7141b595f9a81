"""The sections of a parameter file: which nodes they are for, and which cameras they name.

rcl ignores the sections of other nodes without a message.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from trt_perception.files.plain_text import join_first, short_repr
from trt_perception.files.regular_files import read_regular

__all__ = ['cameras_of_file', 'foreign_sections', 'unused_parameters']

# A file that a person wrote is far smaller; reading this much takes a second.
_MAX_BYTES: Final = 256 * 1024


def unused_parameters(arguments: Sequence[str], node: str) -> list[str]:
    """Return a sentence for each thing on a command line that sets parameters of others only.

    Args:
        arguments: ROS arguments as rcl took them.
        node: full name of the node, as ``/front/detector``.
    """
    sentences = []
    for option, given in itertools.pairwise(arguments):
        others, cure = [], 'leave the name out'
        if option == '--params-file':
            others = foreign_sections(Path(given), node)
            cure = f'name one of its sections {node} or /**'
        elif option in ('-p', '--param'):
            name, colon, _ = given.partition(':=')[0].rpartition(':')
            others = [f'/{name}'] if colon and not _matches(name, node) else []
        if others:
            names = [other if other.isprintable() else short_repr(other) for other in others]
            sentences.append(
                f'nothing in {given} is for this node, {node}, but for {join_first(names)}: {cure}'
            )
    return sentences


def foreign_sections(path: Path, node: str) -> list[str]:
    """Return the nodes that a parameter file is for where this one is not among them, else [].

    A file that cannot be read, or is very large, gives [] as well: rcl says what is wrong with it.
    """
    names = [name for name, _ in _read_sections(path)]
    return [] if any(_matches(name, node) for name in names) else names


def cameras_of_file(path: Path, node: str) -> list[str]:
    """Return the names in the parameter ``cameras`` that a file gives to a node; [] without.

    Of several sections for it the last one counts, as with rcl. A file that cannot be read, or is
    very large, and what is no list of names give [] as well: the node says what is wrong with it.

    Args:
        path: of the file.
        node: full name of the node, as ``/front/detector``.
    """
    cameras: list[str] = []
    for head, section in _read_sections(path):
        found = _member(_member(section, 'ros__parameters'), 'cameras')
        if found is not None and _matches(head, node):
            items = found.value if isinstance(found, yaml.SequenceNode) else []
            cameras = [item.value for item in items if isinstance(item.value, str)]
    return cameras


def _read_sections(path: Path) -> list[tuple[str, yaml.MappingNode]]:
    """Return what of a file holds ``ros__parameters``, by the names above it; [] where unread."""
    try:
        # A pipe can be read once only, and rcl has done so: it is not opened.
        text = read_regular(path, _MAX_BYTES).decode()
        # The nodes alone: to make values of all fails on what rcl reads, or takes long.
        return list(_find_sections(yaml.SafeLoader(text).get_single_node(), '', set()))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return []


def _member(node: Any, name: str) -> Any:
    """Return the last value of a name in a mapping, None where there is none."""
    members = node.value if isinstance(node, yaml.MappingNode) else []
    return next((inside for key, inside in reversed(members) if key.value == name), None)


def _find_sections(node: Any, head: str, seen: set[int]) -> Iterator[tuple[str, yaml.MappingNode]]:
    """Find what holds ``ros__parameters``, with the name above it; YAML's aliases once."""
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
    """Tell whether a section's name, with ``*`` and ``**``, is the node's."""
    parts = {'*': r'/\w+', '**': r'(/\w+)*'}
    names = [part for part in pattern.split('/') if part]
    expression = ''.join(parts.get(name, '/' + re.escape(name)) for name in names)
    return re.fullmatch(expression, node) is not None
