# SPDX-License-Identifier: Apache-2.0
"""Tests of build.yaml: every option, errors with their lines, and paths within the folder."""

from __future__ import annotations

import json

import pytest

from support import golden
from support.building.given_options import changed_options, refusal_text
from trt_perception.offline.building.options.build_options import OPTIONS
from trt_perception.offline.building.options.sources import load_options


def yaml_file(folder, text):
    path = folder / 'build.yaml'
    path.write_text(text)
    return path


#: Files that are accepted, and the command line, by the behaviour that they show.
ACCEPTED = {
    'each kind of value, hyphens in names, paths and words for paths are read': (
        """
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
""",
        {},
    ),
    'file without options gives the defaults': ('', {'onnx': 'model.onnx'}),
    'command line replaces values of the file': (
        'onnx: a.onnx\nbatch: 2\nverbose: true\n',
        {'onnx': 'b.onnx', 'verbose': False},
    ),
    'rules apply to file and command line together': (
        'onnx: a.onnx\nannotations: a.json\n',
        {'validate': 'images'},
    ),
    'paths of the command line may leave the folder': (
        'onnx: ../a.onnx\nvalidate: /data/val\nstore: ~/engines\n',
        {'onnx': '../a.onnx', 'validate': '/data/val', 'store': '/e'},
    ),
    'numbers follow YAML 1.2': (
        """
scale: 1e-3
mean: [1e-3, -1, +2.]
std: [1E2, 2.5e2, .5]
workspace_mib: 12
class_names: [007, 1:30, 0x10, 1_000]
""",
        {'onnx': 'model.onnx'},
    ),
    'fractions, yes and no, and nothing are read': (
        """
scale: 1/255
mean: [1/2, 0, 0.25]
antialias: 'yes'
sparsity: no
verbose: yes
batch: ~
""",
        {'onnx': 'model.onnx'},
    ),
}


@pytest.mark.parametrize('behaviour', ACCEPTED)
def test_accepted_file_gives_the_recorded_options(tmp_path, behaviour, golden_messages):
    text, given = ACCEPTED[behaviour]
    config = yaml_file(tmp_path, text.replace('{folder}', str(tmp_path)))
    for name, value in changed_options(load_options(config, given)).items():
        golden_messages.add(golden.without_folder(f'{name}: {value!r}', tmp_path))


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


def test_unreadable_yaml_is_refused(tmp_path, golden_messages):
    golden_messages.add(refusal_text({}, tmp_path / 'none.yaml'))
    golden_messages.add(refusal_text({}, tmp_path))
    (tmp_path / 'b.yaml').write_bytes(b'onnx: \xff')
    golden_messages.add(refusal_text({}, tmp_path / 'b.yaml'))


@pytest.mark.parametrize('slash', ['', '/'])
def test_error_shows_a_path_outside_the_folder_once(tmp_path, slash, golden_messages):
    (tmp_path / 'a').mkdir()
    elsewhere = f'{tmp_path}/b'
    config = yaml_file(tmp_path / 'a', f'output: {elsewhere}{slash}')
    golden_messages.add(refusal_text({'onnx': 'm.onnx'}, config))
    config = yaml_file(tmp_path / 'a', 'output: ../b')
    golden_messages.add(refusal_text({'onnx': 'm.onnx'}, config))
