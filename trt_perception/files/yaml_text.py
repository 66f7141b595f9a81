# SPDX-License-Identifier: Apache-2.0
"""Read the part of YAML that people use for options: plain values, lists and mappings.

Guarantees: a value is text, a number, true, false, null, or a list or mapping of such values. A
number has at most 19 digits before its point. Repeated keys, deep nesting, aliases and tags are
refused, and the numbers of values and collections are limited. Any other text raises an error with
one sentence and, if known, the line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import MAX_CLASSES, name_mistake, short_repr

#: PyYAML needs seconds for a text of 1 MB, and a thousand times as much memory as the text.
MAX_YAML_BYTES: Final = 256 * 1024
_MAX_DEPTH: Final = 16
_MAX_COLLECTIONS: Final = 4096
#: Enough for the largest list of class names and all other options.
_MAX_VALUES: Final = MAX_CLASSES + 4096
_NUMBER_AND_BOOL_PATTERNS: Final[Mapping[str, tuple[str, str]]] = {
    'bool': ('yYnNtTfFoO', r'(?i:yes|no|true|false|on|off)'),
    'int': ('-+0123456789', r'[-+]?(?:0|[1-9][0-9]{0,18})'),
    'float': (
        '-+0123456789.',
        r'[-+]?(?:[0-9]{1,19}\.[0-9]{0,40}|\.[0-9]{1,40})(?:[eE][-+]?[0-9]{1,3})?'
        r'|[-+]?[0-9]{1,19}[eE][-+]?[0-9]{1,3}'
        r'|[-+]?\.(?i:inf)|\.(?i:nan)',
    ),
}


class _StrictLoader(yaml.SafeLoader):
    """Loads YAML's plain types, and refuses tags, aliases and repeated keys.

    Numbers follow YAML 1.2: 1e-3 is a number, while 1:30, 0x10 and 1_000 are texts.
    """

    yaml_implicit_resolvers: Any = {}  # noqa: RUF012 - as in the base class
    _nested = _lists = _values = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if event.anchor is not None:
            raise _yaml_error('anchors and aliases (&, *) are not supported', event)
        if event.tag is not None:
            raise _yaml_error('tags (!) are not supported', event)
        if self._nested == _MAX_DEPTH:
            raise _yaml_error(f'lists and mappings nest deeper than {_MAX_DEPTH}', event)
        self._count(event)
        text = event.value if isinstance(event, yaml.ScalarEvent) else ''
        if text and (mistake := name_mistake(text, MAX_YAML_BYTES)):
            raise _yaml_error(f'expected {mistake["expected"]} (got {mistake["found"]})', event)
        self._nested += 1
        node = super().compose_node(parent, index)
        self._nested -= 1
        return node

    def _count(self, event: Any) -> None:
        """Count values and collections, and refuse a text as soon as it has too many."""
        if isinstance(event, yaml.ScalarEvent):
            self._values += 1
        else:
            self._lists += 1
        if self._lists > _MAX_COLLECTIONS:
            raise _yaml_error(f'more than {_MAX_COLLECTIONS} lists and mappings', event)
        if self._values > _MAX_VALUES:
            raise _yaml_error(f'more than {_MAX_VALUES} values', event)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _yaml_error('a key must be plain text, not a list or mapping', key)
            if key.value in seen:
                raise _yaml_error(f'the key {short_repr(key.value)} is repeated', key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


for _kind, (_first, _pattern) in _NUMBER_AND_BOOL_PATTERNS.items():
    _StrictLoader.add_implicit_resolver(
        f'tag:yaml.org,2002:{_kind}', re.compile(f'(?:{_pattern})$'), list(_first)
    )
_StrictLoader.add_implicit_resolver(
    'tag:yaml.org,2002:null', re.compile('(?:~|null|Null|NULL|)$'), ['~', 'n', 'N', '']
)


def _yaml_error(problem: str, where: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=where.start_mark)


def read_yaml(text: str, origin: str) -> tuple[Any, dict[str, int]]:
    """Return the value of a YAML document, and the lines of its keys.

    Args:
        text: the document, at most MAX_YAML_BYTES characters.

    Returns:
        the value (None for an empty document), and the line of each key of a mapping, from 1.

    Raises:
        ConfigError: the document cannot be read; the message gives the reason in one sentence.
    """
    if len(text) > MAX_YAML_BYTES:
        raise ConfigError(origin, str(len(text)), expected=f'at most {MAX_YAML_BYTES} characters')
    try:
        loader = _StrictLoader(text)
        node = loader.get_single_node()
        content = None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(origin, yaml_failure(error)) from error
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return content, {str(key.value): key.start_mark.line + 1 for key, _ in pairs}


def yaml_failure(error: Exception) -> str:
    """Return the line, if it is known, and the reason of an exception of PyYAML."""
    if isinstance(error, yaml.reader.ReaderError):
        return f'not readable as YAML: character {error.position + 1} is U+{error.character:04X}'
    mark = getattr(error, 'problem_mark', None)
    if isinstance(error, yaml.MarkedYAMLError) and mark is not None:
        return f'line {mark.line + 1}: {error.problem}'
    return f'not readable as YAML: {error or type(error).__name__}'
