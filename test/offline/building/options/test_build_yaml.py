"""Tests of build.yaml: every option, errors with their lines, and paths within the folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import golden
from support.building.given_options import make_options, refusal_text
from trt_perception.offline.building.options.build_options import OPTIONS
from trt_perception.offline.building.options.sources import given_options, load_options
from trt_perception.offline.tools import build_engine


def yaml_file(folder, text):
    path = folder / 'build.yaml'
    path.write_text(text)
    return path


def test_yaml_accepts_every_option(tmp_path):
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
    assert found.validate == str(tmp_path / 'val')
    assert found.json == tmp_path / 'report.json'
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
        found = refusal_text({}, yaml_file(folder, f'{other}\n{option.name}: {text}\n'))
        assert found.startswith(f"{folder}/build.yaml, line 2: '{option.name}': "), found
        assert option.flag in found or 'is invalid' in found


def test_command_line_paths_may_leave_the_folder(tmp_path):
    config = yaml_file(tmp_path, 'onnx: ../a.onnx\nvalidate: /data/val\nstore: ~/engines\n')
    assert len(refusal_text({}, config).splitlines()) == 3
    found = load_options(config, {'onnx': '../a.onnx', 'validate': '/data/val', 'store': '~/e'})
    assert (found.onnx, found.validate) == (Path('../a.onnx'), '/data/val')


def test_command_line_replaces_yaml_values(tmp_path):
    config = yaml_file(tmp_path, 'onnx: a.onnx\nbatch: 2\nverbose: true\n')
    found = load_options(config, {'onnx': 'b.onnx', 'verbose': False})
    assert (found.onnx, found.batch, found.verbose) == (Path('b.onnx'), (2,), False)


def test_rules_apply_to_merged_yaml_and_command_line_options(tmp_path):
    config = yaml_file(tmp_path, 'onnx: a.onnx\nannotations: a.json\n')
    assert load_options(config, {'validate': 'images'}).validate == 'images'


def test_error_has_a_line_for_each_wrong_key(tmp_path, golden_messages):
    config = yaml_file(tmp_path, 'onnx: a.onnx\nprecison: fp16\n\nbatch: many\n')
    golden_messages.add(
        '\n'.join(sorted(refusal_text({'workspace_mib': -1}, config).splitlines()))
    )


REFUSED = [
    'onnx: a\nbatch: 1\nbatch: 2\n',
    'json-file: a\njson_file: b\n',
    '- onnx\n',
    'onnx',
    'onnx: [\n',
    'onnx: !!python/object/apply:os.getcwd []\n',
    'a: &x [1]\nb: *x\n',
    'a: *x\n',
    'plugins: [' + 'a,' * 2000 + ']',
    '\n'.join(f'k{n}: 1' for n in range(999)),
    'onnx: \x01',
    '[a]: 1\n',
    'shapes: {min: 1, min: 2}\n',
    'onnx: a\n' + '# ' * 600_000,
    'x: ' + '[' * 5000,
    'onnx: a.onnx\nyes: 1\n',
    'onnx: a.onnx\ndate: 2026-13-45\n',
    'onnx: a.onnx\nvalidate_images: images\n',
    'onnx: a\n"x\\ty": 1',
    'batch: 2\n',
    'onnx: a.onnx\nprecison: fp16\n\nbatch: many\nscale: 0\n',
]


def test_error_of_a_refused_yaml_gives_reason_and_line(tmp_path):
    told = [refusal_text({}, yaml_file(tmp_path, text)) for text in REFUSED]
    golden.check(
        'offline/building/refused_yaml.txt', golden.without_folder('\n'.join(told), tmp_path)
    )


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
def test_numbers_follow_yaml_1_2(tmp_path, text, value):
    found = load_options(yaml_file(tmp_path, f'onnx: a.onnx\n{text}\n'), {})
    assert getattr(found, text.partition(':')[0]) == value


def test_fractions_and_quoted_yes_or_no_are_read(tmp_path):
    text = "onnx: m.onnx\nscale: 1/255\nmean: [1/2, 0, 0.25]\nantialias: 'yes'\nsparsity: no\n"
    found = load_options(yaml_file(tmp_path, text), {})
    assert found.scale == 1 / 255
    assert found.mean == (0.5, 0.0, 0.25)
    assert found.antialias is True
    assert found.sparsity is False


def test_fractions_of_options_are_read():
    words = ['m.onnx', '--scale', '1/255', '--std', '58/255', '57/255', '1']
    given = given_options(build_engine._parser().parse_args(words))
    assert given['scale'] == 1 / 255
    assert given['std'] == [58 / 255, 57 / 255, 1.0]


def test_unreadable_yaml_is_refused(tmp_path, golden_messages):
    golden_messages.add(refusal_text({}, tmp_path / 'none.yaml'))
    golden_messages.add(refusal_text({}, tmp_path))
    (tmp_path / 'b.yaml').write_bytes(b'onnx: \xff')
    golden_messages.add(refusal_text({}, tmp_path / 'b.yaml'))


def test_empty_yaml_gives_the_defaults(tmp_path):
    assert load_options(yaml_file(tmp_path, ''), {'onnx': 'm.onnx'}) == make_options(onnx='m.onnx')


@pytest.mark.parametrize('slash', ['', '/'])
def test_error_shows_a_path_outside_the_folder_once(tmp_path, slash, golden_messages):
    (tmp_path / 'a').mkdir()
    elsewhere = f'{tmp_path}/b'
    config = yaml_file(tmp_path / 'a', f'output: {elsewhere}{slash}')
    golden_messages.add(refusal_text({'onnx': 'm.onnx'}, config))
    config = yaml_file(tmp_path / 'a', 'output: ../b')
    golden_messages.add(refusal_text({'onnx': 'm.onnx'}, config))
