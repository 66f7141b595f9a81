# SPDX-License-Identifier: Apache-2.0
"""Tests of warnings about parameter files for other nodes, compared with rcl."""

import array
import os
import random

import pytest

from support.rcl_overrides import nodes_of_arguments, overrides
from trt_perception.errors import ConfigError
from trt_perception.parameters import sections
from trt_perception.parameters.sections import (
    cameras_of_file,
    check_equal_lists,
    device_ids_of_file,
    foreign_sections,
    sections_of_old_name,
    unused_parameters,
    values_of_file,
)

pytestmark = pytest.mark.ros


def write_sections(path, *keys):
    """Write a file with sections of these names. A tuple is a chain of nested keys."""
    lines = []
    for key in keys:
        names = key if isinstance(key, tuple) else (key,)
        lines += [f'{"  " * depth}"{name}":' for depth, name in enumerate(names)]
        lines += [f'{"  " * len(names)}ros__parameters:', f'{"  " * len(names)}  a: 1']
    path.write_text('\n'.join(lines) + '\n')
    return path


@pytest.fixture
def file(tmp_path):
    return tmp_path / 'mine.yaml'


@pytest.mark.parametrize(
    'keys',
    [
        ['/**'],
        ['/front/detector'],
        ['front/detector'],
        [('front', 'detector')],
        [('/**', 'detector')],
        ['/*/detector'],
        ['/front/**'],
        [('/', '**')],
        ['/**/front/**'],
        ['/camera', '/front/detector'],
        [('front', 'camera'), '/**/detector'],
    ],
)
def test_sections_for_this_node_are_not_foreign(file, keys):
    assert foreign_sections(write_sections(file, *keys), '/front/detector') == []


@pytest.mark.parametrize(
    ('keys', 'found'),
    [
        (['detector'], ['/detector']),
        (['/detector', 'camera'], ['/detector', '/camera']),
        ([('front', 'camera')], ['/front/camera']),
        (['/*'], ['/*']),
        (['/front/Detector'], ['/front/Detector']),
    ],
)
def test_sections_for_other_nodes_are_foreign(file, keys, found):
    assert foreign_sections(write_sections(file, *keys), '/front/detector') == found


@pytest.mark.parametrize(
    'content',
    [
        b'',
        b'a: [',
        b'\xff\xfe\x00',
        b'a: ' + b'9' * 5000,
        b'a: 2026-99-99',
        b'a: !!float ""',
        b'a: !!bool x',
        b'a: !!timestamp x',
        b'a: ' + b'1:' * 100_000 + b'1',
        b'a: &x {b: *x}',
        b'[' * 5000,
        b'a: &a {b: {c: 1}}\n' + b'\n'.join(b'k%d: *a' % i for i in range(100)),
        b'{a: ' * 3000,
        b'x' * 300_000,
        b'- 1',
        b'~: {ros: 1}',
        b'/**: {ros__parameters: {cameras: front}}',
        b'/**: {ros__parameters: {cameras: {a: b}}}',
        b'/**: {ros__parameters: [cameras]}',
        b'/**: {ros__parameters: {cameras: [[a], {b: c}]}}',
        b'/**: {ros__parameters: {[x]: 1, ? {a: b} : 2}}',
        b'/**: &x {ros__parameters: *x}',
    ],
)
def test_invalid_parameter_files_are_left_to_rcl(file, content):
    file.write_bytes(content)
    assert foreign_sections(file, '/front/detector') == []
    assert cameras_of_file(file, '/front/detector') == []


def test_nested_yaml_aliases_are_followed_once(file):
    # Ten lines whose nested aliases expand to more than 10^8 sections.
    lines = ['a0: &a0 {x: {ros__parameters: {}}}']
    lines += [
        f'a{i}: &a{i} {{{", ".join(f"k{j}: *a{i - 1}" for j in range(8))}}}' for i in range(1, 10)
    ]
    file.write_text('\n'.join(lines))
    assert foreign_sections(file, '/detector') == ['/a0/x']


def test_pipes_and_missing_files_are_not_read(tmp_path):
    pipe = tmp_path / 'pipe'
    os.mkfifo(pipe)
    assert foreign_sections(pipe, '/detector') == []
    assert foreign_sections(tmp_path / 'missing', '/detector') == []


def test_warning_mentions_the_file_its_nodes_and_the_fix(tmp_path, golden_messages):
    mine = write_sections(tmp_path / 'mine.yaml', '/**')
    other = write_sections(tmp_path / 'other.yaml', 'camera', '/robot/detector')
    arguments = ['node', '--ros-args', '--params-file', str(other), '--params-file', str(mine)]
    [sentence] = unused_parameters(arguments, '/detector')
    golden_messages.add(sentence)
    assert unused_parameters(arguments, '/robot/detector') == []
    assert unused_parameters(['node', '--params-file'], '/detector') == []


@pytest.mark.parametrize('option', ['-p', '--param'])
def test_parameter_of_another_node_on_the_command_line_gives_a_warning(option, golden_messages):
    assert unused_parameters([option, 'detector:x:=1', option, 'x:=a:b'], '/detector') == []
    [sentence] = unused_parameters([option, 'detector:x:=1'], '/front/detector')
    golden_messages.add(sentence)


def test_section_name_with_control_characters_is_escaped(file):
    write_sections(file, 'a\\u001b[31m\\nfatal')
    [sentence] = unused_parameters(['--params-file', str(file)], '/detector')
    assert sentence.isprintable()


# Comparison with the parameters that rcl gives a node.

TOKENS = ('*', '**', 'front', 'detector', 'front', 'detector', 'rear', 'det', 'a_1', 'Detector')


@pytest.fixture(scope='module')
def create_node():
    with nodes_of_arguments() as create:
        yield create


@pytest.mark.parametrize('seed', range(4))
def test_rcl_uses_a_file_exactly_if_its_sections_are_not_foreign(file, create_node, seed):
    choose = random.Random(seed)
    used = []
    while len(used) < 60:
        parts = choose.choices(TOKENS, k=choose.randint(1, 4))
        cut = choose.randint(1, len(parts))
        name = choose.choice(['', '/']) + '/'.join(parts[:cut])
        below = '/'.join(parts[cut:])
        write_sections(file, (name, below) if below else name)
        namespace = choose.choice(['/', '/front', '/front/rear'])
        try:
            with create_node(namespace, file) as node:
                full = node.get_fully_qualified_name()
                used.append(bool(overrides(node)))
        except Exception:
            continue  # rcl refuses this name
        assert used[-1] == (foreign_sections(file, full) == []), (name, below, full)
    assert 3 < sum(used) < 57


# The cameras of a file for a node, compared with rcl.


CAMERAS = {
    'one section': '/**:\n  ros__parameters:\n    cameras: [front, rear]\n',
    'quoted': '/**: {ros__parameters: {"cameras": ["front", \'rear\']}}\n',
    'the last of two sections': (
        '/**:\n  ros__parameters:\n    cameras: [a]\n'
        '/front/detector:\n  ros__parameters:\n    cameras: [b, c]\n'
    ),
    'a general section comes last': (
        '/front/detector:\n  ros__parameters:\n    cameras: [b, c]\n'
        '/**:\n  ros__parameters:\n    cameras: [a]\n'
    ),
    'the last section has no cameras': (
        '/**:\n  ros__parameters:\n    cameras: [a]\n'
        '/front/detector:\n  ros__parameters:\n    max_detections: 7\n'
    ),
    'section of another node': '/rear/detector:\n  ros__parameters:\n    cameras: [a]\n',
    'nested': 'front:\n  detector:\n    ros__parameters:\n      cameras: [a, b]\n',
    'no cameras': '/**:\n  ros__parameters:\n    max_detections: 7\n',
    'an empty list': '/**:\n  ros__parameters:\n    cameras: []\n',
    'an anchor': (
        '/**:\n  ros__parameters:\n    cameras: [a, b]\n    camera:\n      a: {enabled: true}\n'
    ),
}


@pytest.mark.parametrize('name', CAMERAS)
def test_cameras_of_a_file_equal_those_of_rcl(name, file, create_node):
    file.write_text(CAMERAS[name])
    with create_node('/front', file) as node:
        given = [*(overrides(node).get('cameras') or [])]
    assert cameras_of_file(file, '/front/detector') == given


def test_missing_parameter_file_has_no_cameras(tmp_path):
    assert cameras_of_file(tmp_path / 'missing.yaml', '/detector') == []
    assert cameras_of_file(tmp_path, '/detector') == []


@pytest.mark.parametrize(
    ('keys', 'found'),
    [
        (['/**'], []),
        (['/front/*'], []),
        (['/front/detector_0'], []),
        (['/camera'], []),
        (['/**', '/front/detector'], ['/front/detector']),
        ([('/**', 'detector'), '/*/detector'], ['/**/detector', '/*/detector']),
    ],
)
def test_sections_that_only_a_single_node_reads_are_found(file, keys, found):
    nodes = ['/front/detector_0', '/front/detector_1']
    assert sections_of_old_name(write_sections(file, *keys), '/front/detector', nodes) == found


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('', []),
        ('device_ids: []', []),
        ('device_ids: [0, 2]', [0, 2]),
        ('device_ids: 3', []),
        ('device_ids: [0, x]', [0, 'x']),
        ('device_ids: [1.5]', ['1.5']),
        ('device_ids: [-1, 99999999999]', [-1, '99999999999']),
    ],
)
def test_devices_of_a_file_are_read(file, text, expected):
    file.write_text(f'/**:\n  ros__parameters:\n    x: 1\n    {text}\n')
    assert device_ids_of_file(file, '/front/detector_0') == expected


DETECTORS = ['/detector_0', '/detector_1', '/detector_2']
LIST_FOR_ALL = '/**: {ros__parameters: {cameras: [a, b, c], device_ids: [0, 1]}}\n'


@pytest.mark.parametrize(
    'text',
    [
        '',
        LIST_FOR_ALL,
        LIST_FOR_ALL + 'detector_1: {ros__parameters: {image_qos: {depth: 2}}}\n',
        LIST_FOR_ALL + '/*: {ros__parameters: {device_ids: [3]}}\n',
    ],
)
def test_equal_lists_for_all_nodes_are_accepted(file, text):
    file.write_text(text)
    check_equal_lists(file, DETECTORS, ['cameras', 'device_ids'])


@pytest.mark.parametrize(
    ('text', 'parameter'),
    [
        (LIST_FOR_ALL + 'detector_2: {ros__parameters: {device_ids: [1]}}\n', 'device_ids'),
        ('detector_0: {ros__parameters: {cameras: [a]}}\n', 'cameras'),
        ('/**: {ros__parameters: {device_ids: 1}}\n', 'device_ids'),
        (LIST_FOR_ALL + '/*: {ros__parameters: {cameras: {a: 1}}}\n', 'cameras'),
    ],
    ids=['device_ids', 'cameras', 'a number', 'a mapping'],
)
def test_different_lists_of_single_nodes_and_other_values_are_refused(
    file, text, parameter, golden_messages
):
    file.write_text(text)
    with golden_messages.raises(ConfigError) as caught:
        check_equal_lists(file, DETECTORS, ['cameras', 'device_ids'])
    assert caught.value.fix
    # The launch argument replaces the list of the file.
    check_equal_lists(file, DETECTORS, [*{'cameras', 'device_ids'} - {parameter}])
    if 'detector_' in text:
        check_equal_lists(file, DETECTORS[:1], [parameter])


def test_file_is_read_once_for_all_nodes(file, monkeypatch):
    """Reading the parameters of 64 cameras takes 0.2 s."""
    file.write_text(LIST_FOR_ALL)
    read, calls = sections.read_regular, []
    monkeypatch.setattr(sections, 'read_regular', lambda *given: calls.append(0) or read(*given))
    nodes = [f'/detector_{number}' for number in range(64)]
    check_equal_lists(file, nodes, ['cameras', 'device_ids'])
    assert len(calls) == 1


# All values of a file for a node, compared with rcl.


@pytest.mark.parametrize(
    'content',
    [
        '/**:\n  ros__parameters:\n    a: 1\n    b: {c: x, d: {e: 2.5, f: true}}\n',
        '/**:\n  ros__parameters: {a: 1, b: 2}\n/detector:\n  ros__parameters: {b: 3}\n',
        '/detector:\n  ros__parameters: {b: 3}\n/**:\n  ros__parameters: {a: 1, b: 2}\n',
        'detector: {ros__parameters: {a: 1}}\n/*:\n  ros__parameters: {c.d: [r, s]}\n',
        '/**:\n  ros__parameters:\n    list: [1, 2]\n    text: "no"\n    empty: ""\n',
    ],
)
def test_values_of_a_file_equal_those_of_rcl(content, file, create_node):
    file.write_text(content)
    with create_node('/', file) as node:
        expected = {
            name: list(value) if isinstance(value, (tuple, array.array)) else value
            for name, value in overrides(node).items()
        }
        assert values_of_file(file, node.get_fully_qualified_name()) == expected


@pytest.mark.parametrize(
    'content', [None, '', 'a: 1\n', '/rear:\n  ros__parameters: {a: 1}\n', '{', b'\xff']
)
def test_file_without_values_for_the_node_is_refused(content, file):
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError):
        values_of_file(file, '/detector')
