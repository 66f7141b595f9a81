"""Options of build_engine: values, combinations, build.yaml, the command line over it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from trt_perception.building.options.build_options import BuildOptions
from trt_perception.building.options.rows import OPTIONS
from trt_perception.building.options.sources import add_arguments
from trt_perception.building.options.sources import given_options
from trt_perception.building.options.sources import load_options
from trt_perception.building.options.sources import read_class_names
from trt_perception.building.options.values import ShapeProfile
from trt_perception.errors import ConfigError


def refusal(given, config=None):
    with pytest.raises(ConfigError) as caught:
        load_options(config, given)
    return str(caught.value)


def options(**given):
    return load_options(None, {'onnx': 'model.onnx', **given})


def yaml_file(folder, text):
    path = folder / 'build.yaml'
    path.write_text(text)
    return path


def test_only_the_model_is_required():
    assert refusal({}).startswith("'onnx': is missing; give --onnx")
    found = options()
    assert found.precision == 'fp16'
    assert found.engine_path() == Path('model.engine')


def test_options_do_not_change():
    with pytest.raises(ValueError, match='frozen'):
        options().batch = 3


@pytest.mark.parametrize(
    ('given', 'low', 'best', 'high'),
    [
        ('1x3x480x640', (1, 3, 480, 640), (1, 3, 480, 640), (1, 3, 480, 640)),
        (
            '1x3x320x320:1x3x640X640:4x3x640x640',
            (1, 3, 320, 320),
            (1, 3, 640, 640),
            (4, 3, 640, 640),
        ),
        ([1, 3, 480, 640], (1, 3, 480, 640), (1, 3, 480, 640), (1, 3, 480, 640)),
        (
            {'min': '1x3x32x32', 'opt': [1, 3, 64, 64], 'max': '2x3x64x64'},
            (1, 3, 32, 32),
            (1, 3, 64, 64),
            (2, 3, 64, 64),
        ),
    ],
)
def test_a_profile_in_each_notation(given, low, best, high):
    (profile,) = options(shapes=given).shapes
    assert profile == ShapeProfile(low, best, high)
    assert options(shapes=str(profile)).shapes == (profile,)


def test_several_profiles():
    found = options(shapes=['1x3x64x64', '4x3x32x32:4x3x64x64:4x3x96x96']).shapes
    assert [profile.opt for profile in found] == [(1, 3, 64, 64), (4, 3, 64, 64)]


@pytest.mark.parametrize(
    ('given', 'reason'),
    [
        ('1x3x480', 'NxCxHxW'),
        ('1x3x480xsix', 'NxCxHxW'),
        ('0x3x480x640', 'from 1 to 32767'),
        ('1x3x480x640:1x3x480x640', 'one shape, or min:opt:max'),
        ('1x3x640x640:1x3x480x640:1x3x640x640', 'min <= opt <= max'),
        ({'min': '1x3x4x4'}, 'min, opt and max'),
        (7, 'NxCxHxW'),
        ([1, 3, 480], 'NxCxHxW'),
        ([True, 3, 480, 640], 'NxCxHxW'),
    ],
)
def test_a_wrong_profile_says_what_is_expected(given, reason):
    assert reason in refusal({'onnx': 'm.onnx', 'shapes': given})


@pytest.mark.parametrize('given', [8.6, '8.6', '86', 'sm_86', 'SM86', ['8.6', 8.6]])
def test_a_compute_capability_in_each_notation(given):
    assert options(compute_capabilities=given).compute_capabilities == ('8.6',)


def test_compute_capabilities_of_two_digits():
    found = options(compute_capabilities=[12.0, '100', 7.5]).compute_capabilities
    assert found == ('12.0', '10.0', '7.5')
    assert 'looks like 8.6' in refusal({'onnx': 'm.onnx', 'compute_capabilities': 'ampere'})


@pytest.mark.parametrize(
    ('given', 'reason'),
    [
        ({'precision': 'fp12'}, '--precision: expected one of fp32, tf32, fp16, bf16, int8, fp8'),
        ({'workspace_mib': 0}, 'from 1 to 1048576 MiB (got 0)'),
        ({'workspace_mib': True}, 'whole number'),
        ({'workspace_mib': '64'}, 'whole number'),
        ({'optimization_level': 6}, 'from 0 to 5 (got 6)'),
        ({'output': 'model.bin'}, '.engine, .plan, .trt'),
        ({'decoder': 'magic'}, '--decoder: must be one of dense'),
        ({'scale': 0.0}, 'must be a number from 1e-06 to 1000 (got 0.0)'),
        ({'mean': [0.0, 1.0]}, '--mean: expected a list of 3, each a number (got 2 values)'),
        ({'std': [1.0, 0.0, 1.0]}, 'must be a number from 1e-06 to 1e+06 (got 0.0)'),
        ({'std': [1e-300, 1.0, 1.0]}, 'got 1e-300)'),
        ({'mean': [0.0, 1e300, 0.0]}, 'must be a number from -1e+06 to 1e+06 (got 1e+300)'),
        ({'mean': [0.0, float('nan'), 0.0]}, '--mean: expected'),
        ({'input_size': '640'}, 'width and height'),
        ({'class_names': ['a', 'a']}, "'a' twice"),
        ({'onnx': ''}, 'empty'),
        ({'batch': 2, 'shapes': '1x3x4x4'}, '--batch or --shapes'),
        ({'annotations': 'a.json'}, 'give --validate too'),
        ({'max_accuracy_drop': 0.0}, '--max-accuracy-drop needs images to measure'),
        ({'gpu_fallback': True}, 'needs --dla-core'),
        ({'store_keep_days': 3}, 'needs --store'),
        ({'dla_core': 0, 'precision': 'fp32'}, 'fp16 and int8 only'),
        ({'class_names': ['a'], 'class_names_file': 'n.txt'}, 'not both'),
        ({'workspce_mib': 1}, "'workspce_mib': is not an option; did you mean 'workspace_mib'?"),
        ({'qqqq': 1}, "'qqqq': is not an option"),
    ],
)
def test_what_is_refused_and_why(given, reason):
    found = refusal({'onnx': 'm.onnx', **given})
    assert reason in found
    assert '\n' not in found
    assert 'pydantic' not in found


def test_a_dla_in_fp16_is_fine():
    assert options(dla_core=0, gpu_fallback=True).dla_core == 0


def test_yaml_holds_every_option(tmp_path):
    text = """
onnx: model.onnx
precision: int8
calibration-images: images/*.png
calibration_cache: off_site
timing_cache: 'off'
compute_capabilities: [8.6, 12.0]
class_names: [one, two]
validate: ./val
json: report.json
mean: [0, 0.5, 0]
plugins: [a.so, '{folder}/lib/b.so']
store: engines/../store
"""
    config = yaml_file(tmp_path, text.replace('{folder}', str(tmp_path)))
    found = load_options(config, {})
    assert found.onnx == tmp_path / 'model.onnx'
    assert found.calibration_images == str(tmp_path / 'images/*.png')
    assert found.calibration_cache == str(tmp_path / 'off_site')
    assert found.timing_cache == 'off'
    assert found.compute_capabilities == ('8.6', '12.0')
    assert found.class_names == ('one', 'two')
    assert found.validate_images == str(tmp_path / 'val')
    assert found.json_file == tmp_path / 'report.json'
    assert found.mean == (0.0, 0.5, 0.0)
    assert found.plugins == (tmp_path / 'a.so', tmp_path / 'lib/b.so')
    assert found.store == tmp_path / 'engines/../store'


@pytest.mark.parametrize(
    'value',
    [
        '../other.onnx',
        '/etc/passwd',
        '~/model.onnx',
        'sub/../../other',
        'link/model',
        './link',
        '{folder}x/model',
        '..',
        'im*/../../x/*.png',
        'ring',
        '~nobody-of-this-name/x',
    ],
)
def test_paths_in_a_yaml_stay_in_its_folder(tmp_path, value):
    folder = tmp_path / 'models'
    folder.mkdir()
    (folder / 'link').symlink_to(tmp_path)
    (folder / 'ring').symlink_to('ring')
    value = value.replace('{folder}', str(folder))
    paths = [option for option in OPTIONS if option.kind == 'path']
    assert {'onnx', 'output', 'store', 'plugins', 'calibration_images'} <= {o.name for o in paths}
    for option in paths:
        other = '' if option.name == 'onnx' else 'onnx: good.onnx'
        text = json.dumps([value] if option.is_list else value)
        found = refusal({}, yaml_file(folder, f'{other}\n{option.name}: {text}\n'))
        assert found.startswith(f"{folder}/build.yaml, line 2: '{option.name}': "), found
        assert option.flag in found or 'cannot be' in found


def test_the_command_line_may_lead_anywhere(tmp_path):
    config = yaml_file(tmp_path, 'onnx: ../a.onnx\nvalidate: /data/val\nstore: ~/engines\n')
    assert len(refusal({}, config).splitlines()) == 3
    found = load_options(config, {'onnx': '../a.onnx', 'validate': '/data/val', 'store': '~/e'})
    assert (found.onnx, found.validate_images) == (Path('../a.onnx'), '/data/val')


def test_as_dict_makes_the_same_options_again():
    first = options(
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


def test_the_command_line_wins(tmp_path):
    config = yaml_file(tmp_path, 'onnx: a.onnx\nbatch: 2\nverbose: true\n')
    found = load_options(config, {'onnx': 'b.onnx', 'verbose': False})
    assert (found.onnx, found.batch, found.verbose) == (Path('b.onnx'), 2, False)


def test_combinations_are_judged_after_both_are_joined(tmp_path):
    config = yaml_file(tmp_path, 'onnx: a.onnx\nannotations: a.json\n')
    assert load_options(config, {'validate': 'images'}).validate_images == 'images'


def test_each_wrong_key_has_its_line_and_sentence(tmp_path):
    config = yaml_file(tmp_path, 'onnx: a.onnx\nprecison: fp16\n\nbatch: many\n')
    lines = refusal({'workspace_mib': -1}, config).splitlines()
    assert sorted(lines) == sorted(
        [
            f"{config}, line 2: 'precison': is not an option; did you mean 'precision'?",
            f"{config}, line 4: 'batch': expected a whole number from 1 to 1024 (got 'many')",
            '--workspace-mib: expected a whole number from 1 to 1048576 MiB (got -1)',
        ]
    )


@pytest.mark.parametrize(
    ('text', 'reason'),
    [
        ('onnx: a\nbatch: 1\nbatch: 2\n', "line 3: 'batch' stands here twice"),
        ('json-file: a\njson_file: b\n', 'with - and with _'),
        ('- onnx\n', 'option: value'),
        ('onnx', 'option: value'),
        ('onnx: [\n', 'line 2'),
        ('onnx: !!python/object/apply:os.getcwd []\n', 'line 1: tags (!) are not supported'),
        ('a: &x [1]\nb: *x\n', 'line 1: anchors and aliases (&, *) are not supported'),
        ('a: *x\n', 'line 1: anchors and aliases'),
        (
            'plugins: [' + 'a,' * 2000 + ']',
            "line 1: 'plugins': expected at most 1024 values (got 2000)",
        ),
        ('\n'.join(f'k{n}: 1' for n in range(999)), 'options (got 999 keys)'),
        ('onnx: \x01', 'not readable as YAML: character 7 is U+0001'),
        ('[a]: 1\n', 'line 1'),
        ('shapes: {min: 1, min: 2}\n', "'min' stands here twice"),
        ('onnx: a\n' + '# ' * 600_000, 'at most 262144 bytes'),
        ('x: ' + '[' * 5000, 'line 1: lists and mappings nest deeper than 16'),
        ('yes: 1\n', "'True': is not an option"),
        ('date: 2026-13-45\n', "line 1: 'date': is not an option"),
        ('onnx: a\n"x\\ty": 1', 'line 2: expected a text with no control characters'),
    ],
)
def test_yaml_that_is_refused(tmp_path, text, reason):
    found = refusal({}, yaml_file(tmp_path, text))
    assert reason in found
    assert 'build.yaml' in found


@pytest.mark.parametrize(
    ('text', 'value'),
    [
        ('scale: 1e-3', 1e-3),
        ('scale: 1E2', 100.0),
        ('scale: 2.5e2', 250.0),
        ('scale: .5', 0.5),
        ('mean: [1e-3, -1, +2.]', (1e-3, -1.0, 2.0)),
        ('workspace_mib: 12', 12),
        ('class_names: [007, 1:30, 0x10, 1_000]', ('007', '1:30', '0x10', '1_000')),
        ('verbose: yes', True),
        ('batch: ~', None),
    ],
)
def test_numbers_are_what_people_take_for_numbers(tmp_path, text, value):
    found = load_options(yaml_file(tmp_path, f'onnx: a.onnx\n{text}\n'), {})
    assert getattr(found, text.partition(':')[0]) == value


def test_yaml_that_cannot_be_read(tmp_path):
    assert 'No such file' in refusal({}, tmp_path / 'none.yaml')
    assert 'cannot be read' in refusal({}, tmp_path)
    (tmp_path / 'b.yaml').write_bytes(b'onnx: \xff')
    assert 'UTF-8' in refusal({}, tmp_path / 'b.yaml')


@pytest.mark.parametrize('field', ['json_file', 'validate_images'])
def test_options_have_one_name(tmp_path, field):
    """By the name of its field a path would not be held to the file's folder."""
    found = refusal({}, yaml_file(tmp_path, f'onnx: a.onnx\n{field}: /etc/passwd\n'))
    assert f"line 2: '{field}': is not an option" in found


def test_an_empty_yaml_gives_the_defaults(tmp_path):
    assert load_options(yaml_file(tmp_path, ''), {'onnx': 'm.onnx'}) == options(onnx='m.onnx')


def parse(*arguments):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return given_options(parser.parse_args(arguments))


@pytest.mark.parametrize('slash', ['', '/'])
def test_a_place_outside_the_folder_is_said_once(tmp_path, slash):
    (tmp_path / 'a').mkdir()
    elsewhere = f'{tmp_path}/b'
    config = yaml_file(tmp_path / 'a', f'output: {elsewhere}{slash}')
    message = refusal({'onnx': 'm.onnx'}, config)
    assert f'(got {elsewhere}{slash});' in message
    config = yaml_file(tmp_path / 'a', 'output: ../b')
    assert f'(got ../b, which is {elsewhere});' in refusal({'onnx': 'm.onnx'}, config)


def test_the_command_line_gives_only_what_was_typed():
    assert parse() == {}
    found = parse(
        *['--onnx', 'm.onnx', '--shapes', '1x3x4x4', '2x3x4x4', '--mean', '0', '0.5', '1'],
        *['--no-refit', '--batch', '2', '--compute-capabilities', '8.6', '--input-size', '6x4'],
    )
    assert found == {
        'onnx': 'm.onnx',
        'shapes': ['1x3x4x4', '2x3x4x4'],
        'mean': [0.0, 0.5, 1.0],
        'refit': False,
        'batch': 2,
        'compute_capabilities': ['8.6'],
        'input_size': '6x4',
    }
    del found['batch']
    assert load_options(None, found).input_size == (6, 4)


def test_a_word_for_a_number_is_wrong_usage(capsys):
    with pytest.raises(SystemExit):
        parse('--batch', 'two')
    assert "invalid whole number value: 'two'" in capsys.readouterr().err


def test_the_table_is_complete():
    assert [option.field for option in OPTIONS] == list(BuildOptions.model_fields)
    groups = [option.group for option in OPTIONS]
    assert groups == sorted(groups, key=groups.index)  # each under one heading
    for option in OPTIONS:
        assert option.description.endswith('.')
        if option.kind in ('int', 'float') and not option.is_list:
            assert option.limits is not None, f'{option.name} has no range'


def test_class_names_come_from_a_file(tmp_path):
    path = tmp_path / 'names.txt'
    path.write_text('person\n traffic light \nKöter\n\n')
    found = read_class_names(options(class_names_file=str(path)))
    assert found == ('person', 'traffic light', 'Köter')
    assert read_class_names(options(class_names=['x'])) == ('x',)
    assert read_class_names(options()) == ()


@pytest.mark.parametrize(
    ('text', 'reason'),
    [
        ('', 'expected class names'),
        ('a\n\nb\n', 'one of them empty'),
        ('a\na\n', 'twice'),
        ('x' * 300, '256 characters'),
        ('y\n' * 3_000_000, 'at most'),
    ],
)
def test_a_file_of_names_that_is_refused(tmp_path, text, reason):
    path = tmp_path / 'names.txt'
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        read_class_names(options(class_names_file=str(path)))
