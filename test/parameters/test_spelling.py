# SPDX-License-Identifier: Apache-2.0
"""Tests of assignments that messages print: --param reads back the words that the user typed."""

import shlex

import pytest

from support.optional_packages import needs
from trt_perception.errors import ConfigError
from trt_perception.offline.tools import detect_images
from trt_perception.offline.tools.parts.model_arguments import (
    _PARAMETERS_SET_ELSEWHERE,
    suggest_tool_assignment,
    values_from_options,
)
from trt_perception.parameters.spelling import assignment_text
from trt_perception.parameters.triton import OFFLINE_TIMEOUT_MS
from trt_perception.parameters.values import PARAMETERS, ParameterValues

NAMES = [
    (['cat'], ('cat',)),
    (['cat', 'dog'], ('cat', 'dog')),
    (['cat,dog'], ('cat', 'dog')),
    (['[cat, dog]'], ('cat', 'dog')),
    (['[cat,', 'dog]'], ('cat', 'dog')),
    (['traffic light', 'Größe'], ('traffic light', 'Größe')),
    *(([word], (word,)) for word in ('yes', 'N', '12', '1e5', 'null', '~', 'nan', '.5', '0x1F')),
    *(([word], (word,)) for word in ('a: b', '#1', 'a #1', '- a', '*a', '{a}', "it's", 'a\\b')),
]


def config_of(arguments):
    """Return the parameters that detect_images reads from a part of a shell command."""
    words = shlex.split(f'm.onnx --source a --output b {arguments}')
    return values_from_options(detect_images._parser().parse_args(words), 'm.onnx')


@pytest.mark.parametrize(('words', 'names'), NAMES)
@pytest.mark.parametrize('option', ['-p', '--param'])
def test_printed_class_names_are_the_typed_names(option, words, names):
    printed = suggest_tool_assignment('class-names', words)
    assert config_of(f'{option} {shlex.quote(printed)}').model_class_names == names


def sample_of(row):
    """Return the words of a value that differs from the default."""
    if row.name == 'tracker.low_threshold':
        return ['0.2']  # at most tracker.high_threshold
    if row.choices:
        return [row.choices[-1]]
    if row.kind == 'bool':
        return [str(not row.default).lower()]
    if row.kind in ('integer', 'double'):
        return [str(int(row.limits[1]))]
    lists = {'integer[]': ['64', '32'], 'double[]': ['0.5', '0.25', '1'], 'string': ['12']}
    return lists.get(row.kind, ['front', 'off' if 'names' in row.name else 'rear'])


def value_of(row, words):
    """Return words as a value of the parameter."""
    reader = {'bool': lambda word: word == 'true', 'integer': int, 'double': float}
    values = [reader.get(row.kind.removesuffix('[]'), str)(word) for word in words]
    return tuple(values) if row.kind.endswith('[]') else values[0]


@pytest.mark.parametrize('row', PARAMETERS, ids=lambda row: row.name)
def test_printed_assignment_of_each_parameter_is_read_back(row):
    if row.name in _PARAMETERS_SET_ELSEWHERE:
        assert suggest_tool_assignment(row.name, sample_of(row)) == ''
        return
    printed = suggest_tool_assignment(row.name, sample_of(row))
    defaults = {'engine_path': 'm.onnx', 'triton.timeout_ms': OFFLINE_TIMEOUT_MS}
    option = ''
    if row.name.startswith('tracker.'):
        pytest.importorskip('scipy', reason='needs scipy')
        option, defaults['tracker.type'] = '--track ', 'bytetrack'
    expected = ParameterValues.from_values({**defaults, row.name: value_of(row, sample_of(row))})
    assert config_of(f'{option}--param {shlex.quote(printed)}') == expected


@needs('scipy')
def test_settings_of_a_tracker_are_refused_without_one():
    with pytest.raises(ConfigError):
        config_of('--param tracker.match_iou=0.5')
    assert config_of('--track --param tracker.match_iou=0.5').tracker_match_iou == 0.5


@pytest.mark.parametrize('row', PARAMETERS, ids=lambda row: row.name)
def test_assignment_without_a_value_has_a_placeholder_of_its_kind(row):
    is_list = row.kind.endswith('[]')
    assert assignment_text(row.name, []) == f'{row.name}:={"[VALUE]" if is_list else "VALUE"}'
