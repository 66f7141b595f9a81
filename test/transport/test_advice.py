# SPDX-License-Identifier: Apache-2.0
"""Tests of the environment for large images, and of advice about lost or missing images."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trt_perception.transport.advice import (
    CAMERA_PROFILE,
    NODE_PROFILE,
    has_node_profile,
    loss_fix,
    node_profile_environment,
    suggest_image_topic,
    transport_environment,
)

SHARE = Path('/opt/share/trt_perception')
PROFILES = ('FASTRTPS_DEFAULT_PROFILES_FILE', 'FASTDDS_DEFAULT_PROFILES_FILE')
ALLOCATOR = ('MALLOC_MMAP_THRESHOLD_', 'MALLOC_TRIM_THRESHOLD_', 'MALLOC_TOP_PAD_')


@pytest.mark.parametrize(
    'environment',
    [
        {},
        {'RMW_IMPLEMENTATION': 'rmw_fastrtps_cpp'},
        {'FASTDDS_DEFAULT_PROFILES_FILE': '/x y.xml'},
        {'FASTDDS_DEFAULT_PROFILES_FILE': str(SHARE / NODE_PROFILE)},
        {'FASTDDS_DEFAULT_PROFILES_FILE': f'/home/me/{NODE_PROFILE}'},
        {'RMW_IMPLEMENTATION': 'rmw_cyclonedds_cpp'},
    ],
    ids=str,
)
def test_advice_against_loss_depends_on_the_environment(environment, golden_messages):
    for reliability in ('reliable', 'best_effort'):
        golden_messages.add(loss_fix(SHARE, reliability, environment))


def test_node_replaces_only_a_missing_profile_and_the_profile_of_cameras():
    share = SHARE
    own, camera = str(share / NODE_PROFILE), str(share / CAMERA_PROFILE)
    first, second = PROFILES
    assert node_profile_environment(share, {}) == {first: own, second: own}
    assert node_profile_environment(share, {first: camera}) == {first: own, second: own}
    assert node_profile_environment(share, {first: '/mine.xml'}) == {second: own}
    assert node_profile_environment(share, {first: '', second: '/mine.xml'}) == {}


@pytest.mark.parametrize('link', ['the path', 'the installed file'])
def test_profile_behind_a_link_is_recognised(tmp_path, link):
    share = tmp_path / 'share' / 'trt_perception'
    own, camera = share / NODE_PROFILE, share / CAMERA_PROFILE
    own.parent.mkdir(parents=True)
    for file in (own, camera):
        source = tmp_path / file.name
        source.touch()
        file.symlink_to(source) if link == 'the installed file' else source.rename(file)
    if link == 'the path':
        links = tmp_path / 'a.xml', tmp_path / 'b.xml'
        for path, file in zip(links, (own, camera), strict=True):
            path.symlink_to(file)
        own, camera = links

    for_node, for_camera = ({name: str(path) for name in PROFILES} for path in (own, camera))

    assert has_node_profile(for_node)
    assert not has_node_profile(for_camera)
    assert node_profile_environment(share, for_node) == {}
    assert set(node_profile_environment(share, for_camera)) == set(PROFILES)
    shipped = loss_fix(share, 'reliable', {})
    assert {loss_fix(share, 'reliable', each) for each in (for_node, for_camera)} == {shipped}


def test_file_of_the_user_with_the_name_of_a_profile_is_kept(tmp_path):
    for profile in (NODE_PROFILE, CAMERA_PROFILE):
        mine = dict.fromkeys(PROFILES, str(tmp_path / Path(profile).name))
        assert not has_node_profile(mine)
        assert node_profile_environment(SHARE, mine) == {}
        assert mine[PROFILES[0]] in loss_fix(SHARE, 'reliable', mine)


RAW, COMPRESSED = 'sensor_msgs/msg/Image', 'sensor_msgs/msg/CompressedImage'


@pytest.mark.parametrize(
    ('topics', 'image', 'transport', 'expected'),
    [
        ({}, '/image', 'raw', ''),
        ({'/a': 'std_msgs/msg/String', '/debug_image': RAW}, '/image', 'raw', ''),
        ({'/debug_image/compressed': COMPRESSED}, '/image', 'raw', ''),
        ({'/masks': RAW, '/front/masks/compressed': COMPRESSED}, '/image', 'raw', ''),
        ({'/a/compressedDepth': COMPRESSED}, '/image', 'raw', ''),
        ({'/b': RAW, '/a': RAW}, '/image', 'raw', 'image_topic:=/a'),
        (
            {'/image/compressed': COMPRESSED, '/a': RAW},
            '/image',
            'raw',
            'image_transport:=compressed',
        ),
        (
            {'/image': RAW, '/a/compressed': COMPRESSED},
            '/image',
            'compressed',
            'image_transport:=raw',
        ),
        (
            {'/a/compressed': COMPRESSED},
            *('/image', 'raw', 'image_topic:=/a image_transport:=compressed'),
        ),
        ({'/a/compressed': COMPRESSED, '/b': RAW}, '/image', 'raw', 'image_topic:=/b'),
        ({'/a/compressed': COMPRESSED, '/b': RAW}, '/image', 'compressed', 'image_topic:=/a'),
        # Both the suffix and the transport were given.
        (
            {'/a': RAW, '/b/compressed': COMPRESSED},
            '/b/compressed',
            'compressed',
            'image_topic:=/b',
        ),
    ],
)
def test_images_on_other_topics_are_suggested_with_their_arguments(
    topics, image, transport, expected, golden_messages
):
    sentence = suggest_image_topic(topics, image, transport)
    assert bool(sentence) == bool(expected)
    assert ' '.join(re.findall(r'image_\w+:=\S+', sentence.partition(' (')[0])) == expected
    if 'image_topic:=' in expected:
        golden_messages.add(sentence)


def test_topics_named_like_the_camera_are_suggested_first(golden_messages):
    kind = 'sensor_msgs/msg/Image'
    topics = dict.fromkeys(('/a/image', '/cam_rear/raw', '/front/raw'), kind)
    for camera in ('rear', 'front', 'up'):
        printed = suggest_image_topic(topics, f'/{camera}/image', 'raw', camera)
        golden_messages.add(printed)
    topics = dict.fromkeys(('/front_rear/raw', '/rear/raw'), kind)
    for camera in ('rear', 'front_rear'):
        printed = suggest_image_topic(topics, f'/{camera}/image', 'raw', camera)
        golden_messages.add(printed)
    topics = dict.fromkeys(('/a/rear/image', '/b/rear_camera/image', '/c/rear/image'), kind)
    printed = suggest_image_topic(topics, '/b/rear/image', 'raw', 'rear')
    golden_messages.add(printed)


@pytest.mark.parametrize('transport', ['raw', 'compressed'])
def test_transport_of_one_of_several_cameras_is_a_line_of_the_parameter_file(
    transport, golden_messages
):
    topics = {'raw': {'/rear/image': RAW}, 'compressed': {'/rear/image/compressed': COMPRESSED}}
    other = 'compressed' if transport == 'raw' else 'raw'
    printed = suggest_image_topic(topics[transport], '/rear/image', other, 'rear')
    line = f'camera.rear.image_transport: {transport} '
    assert line in printed
    assert '-p ' not in printed
    golden_messages.add(printed)


def test_empty_environment_gets_all_variables():
    added = transport_environment('/large.xml', {})
    assert set(added) == {*PROFILES, *ALLOCATOR}
    assert [added[name] for name in PROFILES] == ['/large.xml'] * 2
    assert all(int(added[name]) >= 64 * 1024 * 1024 for name in ALLOCATOR)


@pytest.mark.parametrize('name', [*PROFILES, *ALLOCATOR])
@pytest.mark.parametrize('value', ['/mine.xml', ''])
def test_variable_of_the_user_is_kept(name, value):
    added = transport_environment('/large.xml', {name: value, 'OTHER': 'x'})
    assert set(added) == {*PROFILES, *ALLOCATOR} - {name}


def test_environment_without_a_profile_sets_only_the_allocator():
    assert set(transport_environment('', {})) == set(ALLOCATOR)


def test_process_environment_is_the_default(monkeypatch):
    for name in (*PROFILES, *ALLOCATOR):
        monkeypatch.setenv(name, 'mine')
    assert transport_environment('/large.xml') == {}


# Print the page faults of a second array of 1 MiB, after the first array was freed. The array is
# smaller than a huge page, with which the kernel would need one page fault.
COUNT_FAULTS = """
import resource, sys
import numpy as np
from trt_perception.transport.advice import keep_freed_memory
keep_freed_memory()
np.ones(2**20, np.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones(2**20, np.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.parametrize('is_kept', [True, False])
def test_freed_memory_is_reused_unless_the_user_set_the_allocator(is_kept):
    environment = {name: value for name, value in os.environ.items() if name not in ALLOCATOR}
    if not is_kept:
        environment |= dict.fromkeys(ALLOCATOR, '131072')
    command = [sys.executable, '-c', COUNT_FAULTS]
    faults = int(subprocess.check_output(command, env=environment))
    assert (faults < 100) == is_kept
