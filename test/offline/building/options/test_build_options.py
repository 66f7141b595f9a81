# SPDX-License-Identifier: Apache-2.0
"""Tests of the options of build_engine: values, rules, command line, files of class names."""

from __future__ import annotations

import pytest

from support import golden
from support.building.given_options import changed_options, make_options, refusal_text
from trt_perception.errors import ConfigError
from trt_perception.offline.building.options.build_options import OPTIONS
from trt_perception.offline.building.options.sources import (
    given_options,
    load_options,
    read_class_names,
)
from trt_perception.offline.tools import build_engine


def test_only_the_onnx_option_is_required(golden_messages):
    golden_messages.add(refusal_text({}))
    found = make_options()
    assert (found.precision, str(found.engine_path())) == ('fp16', 'model.engine')


#: Values of options that are accepted, by the behaviour that they show.
ACCEPTED = {
    'profile is read in each notation': [
        {'shapes': '1x3x480x640'},
        {'shapes': [1, 3, 480, 640]},
        {'shapes': '1x3x320x320:1x3x640X640:4x3x640x640'},
        {'shapes': {'min': '1x3x32x32', 'opt': [1, 3, 64, 64], 'max': '2x3x64x64'}},
    ],
    'several profiles are read': [
        {'shapes': ['1x3x64x64', '4x3x32x32:4x3x64x64:4x3x96x96']},
    ],
    'compute capability is read in each notation': [
        {'compute_capabilities': given}
        for given in (8.6, '8.6', '86', 'sm_86', 'SM86', ['8.6', 8.6], [12.0, '100', 7.5])
    ],
    'batch sizes are sorted and distinct': [
        {'batch': given} for given in (['2'], ['8,1,4'], ['4', '1,4'], 3, [1, 64], '1, 64')
    ],
    'DLA accepts fp16': [{'dla_core': 0, 'gpu_fallback': True}],
}


def test_accepted_values_have_the_recorded_meaning():
    lines = []
    for behaviour, values in ACCEPTED.items():
        lines.append(f'== {behaviour}')
        lines += [f'{given}: {changed_options(make_options(**given))}' for given in values]
    golden.check('offline/building/accepted_options.txt', '\n'.join(lines))


#: Command lines with a value of each kind, and what they give.
COMMAND_LINES = {
    'no option gives no value': '',
    'only the given options have values': (
        'm.onnx --shapes 1x3x4x4 2x3x4x4 --mean 0 0.5 1 --no-sparsity --batch 2 '
        '--compute-capabilities 8.6 --input-size 6x4'
    ),
    'fractions are read': 'm.onnx --scale 1/255 --std 58/255 57/255 1',
}


def test_command_lines_give_the_recorded_values(golden_messages):
    for behaviour, words in COMMAND_LINES.items():
        golden_messages.add(f'{behaviour}: {parse(*words.split())}')
    assert load_options(None, parse('m.onnx', '--input-size', '6x4')).input_size == (6, 4)


REFUSED = [
    {'precision': 'fp12'},
    {'precision': None},
    {'precision': 'int4'},
    {'precision': 'fp4'},
    {'calibration_tool': 'modelopt'},
    {'verbose': 1},
    {'workspace_mib': 0},
    {'workspace_mib': True},
    {'workspace_mib': '64'},
    {'optimization_level': 6},
    {'max_accuracy_drop': float('nan')},
    {'output': 'model.bin'},
    {'output': 7},
    {'json': 'x' * 256},
    {'decoder': 'magic'},
    {'scale': 0.0},
    {'mean': [0.0, 1.0]},
    {'std': [1.0, 0.0, 1.0]},
    {'std': [1e-300, 1.0, 1.0]},
    {'mean': [0.0, 1e300, 0.0]},
    {'mean': [0.0, float('nan'), 0.0]},
    {'mean': 'grey'},
    {'input_size': '640'},
    {'class_names': ['a', 'a']},
    {'class_names': ['a', 7]},
    {'plugins': ['a.so', None]},
    {'onnx': ''},
    {'onnx': 'model.pt'},
    {'batch': 2, 'shapes': '1x3x4x4'},
    {'annotations': 'a.json'},
    {'annotations': 'a.json', 'max_accuracy_drop': 0.0},
    {'gpu_fallback': True},
    {'store_keep_days': 3},
    {'qdq_onnx': 'q.onnx'},
    {'dla_core': 0, 'precision': 'fp32'},
    {'class_names': ['a'], 'class_names_file': 'n.txt'},
    {'workspce_mib': 1},
    {'qqqq': 1},
    {'compute_capabilities': ['8.6', 'ampere']},
    {'shapes': '1x3x480'},
    {'shapes': '1x3x480xsix'},
    {'shapes': '0x3x480x640'},
    {'shapes': '1x3x480x640:1x3x480x640'},
    {'shapes': '1x3x640x640:1x3x480x640:1x3x640x640'},
    {'shapes': {'min': '1x3x4x4'}},
    {'shapes': 7},
    {'shapes': [1, 3, 480]},
    {'shapes': [True, 3, 480, 640]},
    *({'batch': value} for value in (0, 256, '0', '1,', '1,two', [], [True], 1.0, ['99999'])),
    *({'batch': value} for value in ({'a': 1}, '-1', '1;4')),
]


def test_error_of_a_refused_value_says_what_is_expected():
    told = [refusal_text({'onnx': 'm.onnx', **given}) for given in REFUSED]
    golden.check('offline/building/refused_options.txt', '\n'.join(told))


def test_options_built_from_as_dict_are_equal():
    first = make_options(
        shapes=['1x3x64x64', '1x3x32x32:1x3x32x32:2x3x32x32'],
        input_size='64x48',
        plugins=['a.so'],
        validate='v',
        json='r.json',
        mean=[0.1, 0.2, 0.3],
        compute_capabilities=['8.6'],
    )
    values = first.as_dict()
    assert values['shapes'] == ['1x3x64x64', '1x3x32x32:1x3x32x32:2x3x32x32']
    assert set(values) == {option.name for option in OPTIONS}
    assert load_options(None, values) == first


def parse(*arguments):
    return given_options(build_engine._parser().parse_args(arguments))


def test_text_instead_of_a_number_is_a_usage_error(capsys):
    with pytest.raises(SystemExit):
        parse('--store-keep-days', 'two')
    assert '--store-keep-days: invalid ' in capsys.readouterr().err


def test_options_have_adjacent_groups_descriptions_and_ranges():
    groups = [option.group for option in OPTIONS]
    assert groups == sorted(groups, key=groups.index)  # options of a group are adjacent
    for option in OPTIONS:
        assert option.description.endswith('.')
        if option.kind in ('int', 'float') and not option.is_list:
            assert option.limits is not None, f'{option.name} has no range'


def test_class_names_are_read_from_a_file(tmp_path):
    path = tmp_path / 'names.txt'
    path.write_text('person\n traffic light \nKöter\n\n')
    found = read_class_names(make_options(class_names_file=str(path)))
    assert found == ('person', 'traffic light', 'Köter')
    assert read_class_names(make_options(class_names=['x'])) == ('x',)
    assert read_class_names(make_options()) == ()


def test_file_with_the_names_of_a_published_model_is_read(tmp_path, caplog):
    """The names of published models are empty, too long, or occur twice."""
    path = tmp_path / 'names.txt'
    for bad in ('', 'x' * 257, 'cat\x1b[2J'):
        path.write_text(f'rose\n{bad}\ntulip\n')
        caplog.clear()
        found = read_class_names(make_options(class_names_file=str(path)))
        assert found == ('rose', 'class 1', 'tulip')
        assert len(caplog.records) == 1
    path.write_text('rose\nN/A\nN/A\n')
    found = read_class_names(make_options(class_names_file=str(path)))
    assert found == ('rose', 'N/A 1', 'N/A 2')


def test_invalid_file_of_class_names_is_refused(tmp_path):
    path, told = tmp_path / 'names.txt', []
    for text in ('', '\n\n', 'y\n' * 70_000, 'y\n' * 3_000_000):
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            read_class_names(make_options(class_names_file=str(path)))
        told.append(golden.without_folder(str(caught.value), tmp_path))
    golden.check('offline/building/refused_class_names.txt', '\n'.join(told))
