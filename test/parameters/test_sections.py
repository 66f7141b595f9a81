"""Parameter files that are for other nodes: what is said of them, held to what rcl takes."""

import os
import random

import pytest

from support.rcl_overrides import nodes_of_arguments, overrides
from trt_perception.parameters.sections import cameras_of_file, foreign_sections, unused_parameters

pytestmark = pytest.mark.ros


def write(path, *keys):
    """Write a file whose sections have these names; a tuple stands one below the other."""
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
def test_files_for_this_node(file, keys):
    assert foreign_sections(write(file, *keys), '/front/detector') == []


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
def test_files_for_others(file, keys, found):
    assert foreign_sections(write(file, *keys), '/front/detector') == found


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
def test_what_is_no_parameter_file_is_left_to_rcl(file, content):
    file.write_bytes(content)
    assert foreign_sections(file, '/front/detector') == []
    assert cameras_of_file(file, '/front/detector') == []


def test_aliases_are_followed_once(file):
    # Ten lines that name a thousand million sections.
    lines = ['a0: &a0 {x: {ros__parameters: {}}}']
    lines += [
        f'a{i}: &a{i} {{{", ".join(f"k{j}: *a{i - 1}" for j in range(8))}}}' for i in range(1, 10)
    ]
    file.write_text('\n'.join(lines))
    assert foreign_sections(file, '/detector') == ['/a0/x']


def test_nothing_is_read_from_a_pipe(tmp_path):
    pipe = tmp_path / 'pipe'
    os.mkfifo(pipe)
    assert foreign_sections(pipe, '/detector') == []
    assert foreign_sections(tmp_path / 'missing', '/detector') == []


def test_the_sentence_names_the_file_its_nodes_and_what_to_write(tmp_path, golden_messages):
    mine = write(tmp_path / 'mine.yaml', '/**')
    other = write(tmp_path / 'other.yaml', 'camera', '/robot/detector')
    arguments = ['node', '--ros-args', '--params-file', str(other), '--params-file', str(mine)]
    [sentence] = unused_parameters(arguments, '/detector')
    golden_messages.add(sentence)
    assert unused_parameters(arguments, '/robot/detector') == []
    assert unused_parameters(['node', '--params-file'], '/detector') == []


@pytest.mark.parametrize('option', ['-p', '--param'])
def test_a_parameter_of_another_node_on_the_command_line(option, golden_messages):
    assert unused_parameters([option, 'detector:x:=1', option, 'x:=a:b'], '/detector') == []
    [sentence] = unused_parameters([option, 'detector:x:=1'], '/front/detector')
    golden_messages.add(sentence)


def test_a_name_that_would_forge_a_line_of_the_log_is_escaped(file):
    write(file, 'a\\u001b[31m\\nfatal')
    [sentence] = unused_parameters(['--params-file', str(file)], '/detector')
    assert sentence.isprintable()


# The pair: what rcl gives a node, and what we say of the file.

TOKENS = ('*', '**', 'front', 'detector', 'front', 'detector', 'rear', 'det', 'a_1', 'Detector')


@pytest.fixture(scope='module')
def node_of():
    with nodes_of_arguments() as made:
        yield made


@pytest.mark.parametrize('seed', range(4))
def test_rcl_takes_nothing_from_exactly_the_files_that_are_called_foreign(file, node_of, seed):
    choose = random.Random(seed)
    taken = []
    while len(taken) < 60:
        parts = choose.choices(TOKENS, k=choose.randint(1, 4))
        cut = choose.randint(1, len(parts))
        name = choose.choice(['', '/']) + '/'.join(parts[:cut])
        below = '/'.join(parts[cut:])
        write(file, (name, below) if below else name)
        namespace = choose.choice(['/', '/front', '/front/rear'])
        try:
            with node_of(namespace, file) as node:
                full = node.get_fully_qualified_name()
                taken.append(bool(overrides(node)))
        except Exception:
            continue  # a name that rcl refuses
        assert taken[-1] == (foreign_sections(file, full) == []), (name, below, full)
    assert 3 < sum(taken) < 57


# The cameras that a file gives to a node, held to what rcl makes of it.


CAMERAS = {
    'one section': '/**:\n  ros__parameters:\n    cameras: [front, rear]\n',
    'quoted': '/**: {ros__parameters: {"cameras": ["front", \'rear\']}}\n',
    'the last of two sections': (
        '/**:\n  ros__parameters:\n    cameras: [a]\n'
        '/front/detector:\n  ros__parameters:\n    cameras: [b, c]\n'
    ),
    'a general one comes last': (
        '/front/detector:\n  ros__parameters:\n    cameras: [b, c]\n'
        '/**:\n  ros__parameters:\n    cameras: [a]\n'
    ),
    'the last section says nothing of it': (
        '/**:\n  ros__parameters:\n    cameras: [a]\n'
        '/front/detector:\n  ros__parameters:\n    max_detections: 7\n'
    ),
    'of another node': '/rear/detector:\n  ros__parameters:\n    cameras: [a]\n',
    'nested': 'front:\n  detector:\n    ros__parameters:\n      cameras: [a, b]\n',
    'nothing': '/**:\n  ros__parameters:\n    max_detections: 7\n',
    'an empty list': '/**:\n  ros__parameters:\n    cameras: []\n',
    'an anchor': (
        '/**:\n  ros__parameters:\n    cameras: [a, b]\n    camera:\n      a: {enabled: true}\n'
    ),
}


@pytest.mark.parametrize('name', CAMERAS)
def test_cameras_of_a_file_are_those_that_a_node_gets(name, file, node_of):
    file.write_text(CAMERAS[name])
    with node_of('/front', file) as node:
        given = [*(overrides(node).get('cameras') or [])]
    assert cameras_of_file(file, '/front/detector') == given


def test_cameras_of_no_file(tmp_path):
    assert cameras_of_file(tmp_path / 'missing.yaml', '/detector') == []
    assert cameras_of_file(tmp_path, '/detector') == []
