# SPDX-License-Identifier: Apache-2.0
"""Tests of launch arguments without launch: names, values, mistakes, and how rcl reads them.

ros/test_launch_nodes.py launches the files.
"""

import itertools
import json
from pathlib import Path

import pytest
import rclpy
import yaml
from ament_index_python.packages import get_package_share_directory

from support.rcl_overrides import nodes_of_arguments, overrides
from trt_perception.errors import ConfigError
from trt_perception.parameters.launch_arguments import (
    check_topic,
    demo_cameras,
    existing_file,
    image_remappings,
    launch_arguments,
    node_count,
    node_shares,
    parameter_file_text,
    parameter_values,
    share_cameras,
    share_devices,
    unknown_arguments,
    wants_rviz,
)

pytestmark = pytest.mark.ros

SHARE = Path(get_package_share_directory('trt_perception'))
ARGUMENTS = launch_arguments(SHARE)


def leaves(tree, head=''):
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f'{head}{name}.')
        else:
            yield head + name, value


DEFAULTS = dict(
    leaves(
        yaml.safe_load((SHARE / 'config' / 'detect.yaml').read_text())['/**']['ros__parameters']
    )
)


def test_every_parameter_is_an_argument():
    own = {'image_topic', 'params_file', 'namespace', 'nodes', 'log_level', 'transport_profile'}
    assert set(ARGUMENTS) == {*own, 'rviz', *DEFAULTS, 'use_sim_time'}


def test_only_autostart_is_passed_by_default():
    defaults = {name: default for name, (default, _) in ARGUMENTS.items()}
    assert parameter_values(defaults) == {'autostart': True}


@pytest.mark.parametrize('name', sorted(set(DEFAULTS) - {'autostart'}))
def test_descriptions_end_with_the_default(name, golden_messages):
    default, description = ARGUMENTS[name]
    assert default == ''
    value = json.dumps(DEFAULTS[name]).replace('""', 'empty').strip('"')
    if isinstance(DEFAULTS[name], list):
        value = value.strip('[]') or 'empty'
    assert description.endswith(f' {value}.')
    golden_messages.add(description)


# Topics.


@pytest.mark.parametrize(
    ('topic', 'cameras'),
    [('/depth', ['front', 'rear']), ('/{camera}/depth', []), ('/{cam}/depth', ['front'])],
)
def test_topic_of_another_argument_is_refused(topic, cameras, golden_messages):
    with golden_messages.raises(ConfigError) as caught:
        check_topic('depth_topic', topic, cameras)
    assert caught.value.subject == 'depth_topic'


# Files.


def test_path_of_an_existing_file_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    (tmp_path / 'my.yaml').touch()
    assert existing_file('params_file', '~/my.yaml') == tmp_path / 'my.yaml'


@pytest.mark.parametrize('path', ['/missing.yaml', 'missing.yaml', 'folder'])
def test_missing_files_and_folders_are_refused(tmp_path, monkeypatch, golden_messages, path):
    (tmp_path / 'folder').mkdir()
    monkeypatch.chdir(tmp_path)
    with golden_messages.raises(ConfigError):
        existing_file('params_file', path)


# Values.


@pytest.mark.parametrize(
    ('name', 'text', 'value'),
    [
        ('confidence_threshold', '0.9', 0.9),
        ('confidence_threshold', '1', 1.0),
        ('model.scale', '1e-3', 0.001),
        ('model.pad_value', '-1', -1),
        ('use_cuda_graph', 'False', False),
        ('use_sim_time', 'true', True),
        ('image_qos.reliability', 'best_effort', 'best_effort'),
        ('engine_path', '1e5', '1e5'),
        ('cameras', 'front,rear', ['front', 'rear']),
        ('cameras', " [front, 'rear'] ", ['front', 'rear']),
        ('cameras', 'front', ['front']),
        ('cameras', '[]', []),
        ('plugin_libraries', '/opt/a.so,/opt/b.so', ['/opt/a.so', '/opt/b.so']),
        ('class_filter', '[3, 7]', ['3', '7']),
        ('model.class_names', '["bow, arrow", cat, \'a b\']', ['bow, arrow', 'cat', 'a b']),
        ('model.class_names', '["cat"]', ['cat']),
        ('model.input_size', '[640, 480]', [640, 480]),
        ('model.mean', '[0.485, 0, 1e-3]', [0.485, 0.0, 0.001]),
        ('device_ids', '1', [1]),
        ('device_ids', '0, 1', [0, 1]),
    ],
)
def test_values_are_parsed_by_the_parameters_type(name, text, value):
    [(found, parsed)] = parameter_values({name: text, 'image_topic': 'a', 'foreign': 'b'}).items()
    assert (found, parsed, type(parsed)) == (name, value, type(value))


@pytest.mark.parametrize(
    ('name', 'text'),
    [
        ('autostart', 'perhaps'),
        ('use_sim_time', '1'),
        ('max_detections', '1.5'),
        ('max_detections', '9' * 5000),
        ('max_detections', '0'),
        ('iou_threshold', 'half'),
        ('iou_threshold', 'nan'),
        ('iou_threshold', '1e999'),
        ('image_transport', 'theora'),
        ('cameras', 'front,'),
        ('cameras', 'front,front'),
        ('cameras', 'front rear'),
        ('device_ids', '0;1'),
        ('device_ids', '0,0'),
        ('log_level', 'verbose'),
    ],
)
def test_wrong_values_are_refused(name, text, golden_messages):
    with golden_messages.raises(ConfigError) as caught:
        parameter_values({'engine_path': 'a.onnx', 'log_level': 'INFO', name: text})
    assert name in str(caught.value)


def test_every_wrong_value_is_reported():
    with pytest.raises(ConfigError) as caught:
        parameter_values({'iou_threshold': '7', 'log_level': 'x', 'cpu_threads': 'y'})
    assert len(str(caught.value).splitlines()) == 3


# Image topics.


@pytest.mark.parametrize(
    ('topic', 'cameras', 'expected'),
    [
        ('', [], []),
        ('', ['front', 'rear'], []),
        ('/a/image_raw', [], [('image', '/a/image_raw')]),
        ('/a/image_raw', ['front'], [('front/image', '/a/image_raw')]),
        (
            '/{camera}/image_raw',
            ['front', 'rear'],
            [('front/image', '/front/image_raw'), ('rear/image', '/rear/image_raw')],
        ),
        ('{camera}_{camera}', ['a'], [('a/image', 'a_a')]),
    ],
)
def test_image_topics_become_remappings(topic, cameras, expected):
    assert image_remappings(topic, cameras) == expected


@pytest.mark.parametrize(
    ('topic', 'cameras'),
    [
        ('/image_raw', ['front', 'rear']),
        ('/{camera}/image', []),
        ('/{name}/image', ['front']),
        ('/{camera}/{x}', ['front', 'rear']),
        ('/{camera/image', ['front']),
        ('/{{camera}}', ['front']),
        ('/{}', []),
        ('/}{', []),
        ('/front-camera/image', []),
        ('/{camera}/image raw', ['front']),
    ],
)
def test_topics_that_do_not_fit_the_cameras_are_refused(topic, cameras, golden_messages):
    with golden_messages.raises(ConfigError):
        image_remappings(topic, cameras)


ROS_NAMES = ['/a', 'a', '~/a', '/a1/b_', '/_a', '_a/_1', '/_', 'A', 'a_b_c/d']
OTHER_NAMES = [
    *(
        '/',
        '~',
        '~a',
        '/a/~/b',
        'a/~',
        '//a',
        '/a//b',
        'a/',
        '/1a',
        'a/1',
        '/a__b',
        '/__a',
        '/a_/_b',
    ),
    *('/a-b', '/a b', '/a.b', '/ä', 'a:b', '$a', '*', '/a/**', 'rostopic://a', '/a\n'),
]


@pytest.mark.parametrize('topic', [*ROS_NAMES, *OTHER_NAMES])
def test_topic_is_refused_if_ros_refuses_the_remapping(topic):
    context = rclpy.Context()
    try:
        rclpy.init(args=['--ros-args', '-r', f'image:={topic}'], context=context)
    except RuntimeError:
        with pytest.raises(ConfigError):
            image_remappings(topic, [])
    else:
        rclpy.shutdown(context=context)
        assert image_remappings(topic, []) == [('image', topic)]


@pytest.mark.parametrize(
    ('name', 'text', 'expected'),
    [
        ('model.scale', '1/255', 1 / 255),
        ('model.mean', '123.675/255,0.5,1/2', (123.675 / 255, 0.5, 0.5)),
        ('autostart', 'yes', True),
        ('use_cuda_graph', 'No', False),
        ('model.antialias', 'yes', 1),
        ('model.antialias', 'false', 0),
        ('model.antialias', '-1', -1),
    ],
)
def test_fractions_and_yes_or_no_are_read(name, text, expected):
    given = parameter_values({name: text})[name]
    assert (tuple(given) if isinstance(given, list | tuple) else given) == expected


@pytest.mark.parametrize(('text', 'expected'), [('true', True), ('True', True), ('false', False)])
def test_rviz_is_true_or_false(text, expected):
    assert wants_rviz(text) is expected


@pytest.mark.parametrize('text', ['', 'on it'])
def test_other_values_of_rviz_are_refused(text, golden_messages):
    with golden_messages.raises(ConfigError):
        wants_rviz(text)


def test_rviz_is_not_started_by_default():
    default, _ = ARGUMENTS['rviz']
    assert not wants_rviz(default)


# Names.


@pytest.mark.parametrize(
    'name',
    [
        *('engine_pth', 'model', 'model_path', 'model.keypoints', 'confidence', 'threshold'),
        *('Image-Topic', 'input_image_topic', 'image_qos_reliability', 'reliability', 'decoder'),
        *('device', 'param_file', 'name_space', 'sim_time', 'camera', 'devices', 'half', 'depth'),
    ],
)
def test_name_similar_to_an_argument_is_a_mistake(name, golden_messages):
    [sentence], far = unknown_arguments([f'{name}:=x'], ARGUMENTS)
    golden_messages.add(sentence)
    assert not far


@pytest.mark.parametrize('name', ['arm', 'robot', 'x', 'robot_description', 'rate'])
def test_name_unlike_all_arguments_gives_a_warning(name, golden_messages):
    near, [sentence] = unknown_arguments([f'{name}:=x'], ARGUMENTS)
    assert not near
    golden_messages.add(sentence)


def test_own_arguments_of_an_including_file_are_no_mistakes():
    near, far = unknown_arguments(['half', 'use_3d'], ARGUMENTS, includes_others=True)
    assert (near, len(far)) == ([], 2)
    near, _ = unknown_arguments(['threshold'], ARGUMENTS, includes_others=True)
    assert len(near) == 1


def test_camera_parameter_is_refused_with_the_file_to_copy(golden_messages):
    [sentence], far = unknown_arguments(['camera.front.enabled:=false'], ARGUMENTS)
    golden_messages.add(sentence)
    assert not far


@pytest.mark.parametrize(
    'typed',
    [
        [],
        ['engine_path:=a:=b', 'image_qos.depth:=2'],
        ['launch-prefix:=gdb', 'launch-prefix-filter:=x', 'sigterm_timeout:=3'],
        ['ros_namespace:=robot', 'emulate_tty:=false', 'sigkill_timeout:=3'],
    ],
)
def test_valid_arguments_are_accepted(typed):
    assert unknown_arguments(typed, ARGUMENTS) == ([], [])


def test_unknown_name_is_reported_once_and_a_declared_name_never():
    assert unknown_arguments(['engine_pth:=a'], {*ARGUMENTS, 'engine_pth'}) == ([], [])
    near, _ = unknown_arguments(['engine_pth:=a', 'engine_pth:=b'], ARGUMENTS)
    assert len(near) == 1


# Several nodes.

NAMES = [f'camera_{number}' for number in range(64)]


@pytest.mark.parametrize(('cameras', 'nodes'), [(1, 1), (5, 2), (5, 5), (64, 2), (64, 7)])
def test_each_camera_is_in_one_share(cameras, nodes):
    shares = share_cameras(NAMES[:cameras], nodes)
    assert [name for share in shares for name in share] == NAMES[:cameras]
    sizes = [len(share) for share in shares]
    assert len(sizes) == nodes
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) > 0


def test_one_node_may_have_a_camera_without_a_name():
    assert share_cameras([], 1) == [()]


@pytest.mark.parametrize(('cameras', 'nodes'), [(0, 2), (1, 2), (3, 64)])
def test_more_nodes_than_named_cameras_are_refused(cameras, nodes, golden_messages):
    with golden_messages.raises(ConfigError) as caught:
        share_cameras(NAMES[:cameras], nodes)
    assert caught.value.fix


@pytest.mark.parametrize('text', ['1', '2', '64'])
def test_number_of_nodes_is_read(text):
    assert node_count(text) == int(text)


@pytest.mark.parametrize('text', ['', '0', '-1', '65', '1.5', 'two', '²', '9' * 5000])
def test_wrong_number_of_nodes_is_refused(text, golden_messages):
    with golden_messages.raises(ConfigError):
        node_count(text)


@pytest.mark.parametrize(
    ('devices', 'nodes', 'expected'),
    [
        ([0], 1, [(0,)]),
        ([0, 2], 1, [(0, 2)]),
        ([3], 2, [(3,), (3,)]),
        ([0, 2], 2, [(0,), (2,)]),
        ([0, 2, 5], 2, [(0, 5), (2,)]),
        ([0, 2], 3, [(0,), (2,), (0,)]),
    ],
)
def test_nodes_share_the_devices(devices, nodes, expected):
    assert share_devices(devices, nodes) == expected


def test_one_node_gets_the_parameters_unchanged():
    [node] = node_shares({'cameras': ['a', 'b']}, 1, ['a', 'b'], [0, 1])
    assert (node.name, node.parameters) == ('detector', {'cameras': ['a', 'b']})


def test_each_of_several_nodes_gets_its_share(overrides_of, tmp_path):
    nodes = node_shares({'cameras': ['a', 'b', 'c'], 'iou_threshold': 0.5}, 2, 'abc', [1, 4])
    assert [(node.name, node.cameras) for node in nodes] == [
        ('detector_0', ('a',)),
        ('detector_1', ('b', 'c')),
    ]
    found = overrides_of(write_given_file(tmp_path, nodes[1].parameters))
    assert {
        name: [*value] if hasattr(value, '__len__') else value for name, value in found.items()
    } == {
        'cameras': ['b', 'c'],
        'cameras_of_other_nodes': ['a'],
        'device_ids': [4],
        'iou_threshold': 0.5,
        'nodes_on_this_machine': 2,
    }


@pytest.mark.parametrize(
    'cameras', [['a', 'b', 'a'], [f'camera_{number}' for number in range(65)]], ids=len
)
def test_cameras_that_no_single_node_would_accept_are_refused(cameras, golden_messages):
    with golden_messages.raises(ConfigError):
        node_shares({}, 2, cameras)


@pytest.mark.parametrize('devices', [[0, 'x'], [0, -1], [1, 1]], ids=str)
def test_devices_that_no_single_node_would_accept_are_refused(devices, golden_messages):
    with golden_messages.raises(ConfigError):
        node_shares({}, 2, ['a', 'b'], devices)


def test_number_of_all_nodes_on_the_machine_can_be_given():
    nodes = node_shares({'nodes_on_this_machine': 5}, 2, ['a', 'b'])
    assert [node.parameters['nodes_on_this_machine'] for node in nodes] == [5, 5]


# Parameters that reach the node.


@pytest.fixture(scope='module')
def overrides_of():
    """Return a function that lets rcl read files, and returns the values for /front/detector."""
    with nodes_of_arguments() as node_of:

        def read(*paths):
            with node_of('/front', *paths) as node:
                return overrides(node)

        yield read


def write_given_file(folder, values):
    path = folder / 'given.yaml'
    path.write_text(parameter_file_text(values))
    return path


NODE_PATTERNS = ('/**', '/front/detector', '/front/*', '/**/detector', '/*/detector', '/front/**')


@pytest.mark.parametrize('sections', itertools.permutations(NODE_PATTERNS, 2), ids='-'.join)
def test_arguments_override_every_section_of_the_file(overrides_of, tmp_path, sections):
    mine = tmp_path / 'mine.yaml'
    mine.write_text(
        ''.join(
            f'{section}:\n  ros__parameters:\n    iou_threshold: 0.{index + 1}\n'
            f'    model:\n      pad_value: {index}\n    cpu_threads: {index}\n'
            for index, section in enumerate(sections)
        )
    )
    given = write_given_file(tmp_path, {'iou_threshold': 0.9, 'model.pad_value': 99})
    found = overrides_of(mine, given)
    assert found == {'iou_threshold': 0.9, 'model.pad_value': 99, 'cpu_threads': 1}


@pytest.mark.parametrize(
    'text',
    [
        *('1e5', 'true', '0x10', '~', '1_000', '.5', "it's", '"', 'a: b', '# no', '[a]', '', ' '),
        *('ä€😀', 'a\tb\\n', '/x' * 300 + ' y.onnx', '- a', '*a', '!b', '2026-01-01', 'off'),
    ],
)
def test_text_argument_reaches_the_node_unchanged(overrides_of, tmp_path, text):
    assert overrides_of(write_given_file(tmp_path, {'engine_path': text})) == {'engine_path': text}


@pytest.mark.parametrize('value', [['front', 'on'], ['1e5'], [0, 1]])
def test_list_reaches_the_node_unchanged(overrides_of, tmp_path, value):
    assert [*overrides_of(write_given_file(tmp_path, {'x': value}))['x']] == value


@pytest.mark.parametrize('value', [1e-05, 0.00392156862745098, 1e22, -1.0, 0, -7, 2**40, True])
def test_numbers_reach_the_node_unchanged(overrides_of, tmp_path, value):
    [found] = overrides_of(write_given_file(tmp_path, {'x': value})).values()
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ('text', 'names'),
    [
        ('', ()),
        ('3', ('camera_1', 'camera_2', 'camera_3')),
        ('front,rear', ('front', 'rear')),
        ('[front, rear]', ('front', 'rear')),
        ('front', ('front',)),
    ],
)
def test_demo_reads_camera_names_from_its_argument(text, names):
    assert demo_cameras(text) == names


@pytest.mark.parametrize('text', ['0', '65', '9' * 5000, 'front,front', '2nd', 'a b'])
def test_invalid_cameras_of_the_demo_are_refused(text, golden_messages):
    with golden_messages.raises(ConfigError) as caught:
        demo_cameras(text)
    assert len(str(caught.value)) < 300
