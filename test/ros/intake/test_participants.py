# SPDX-License-Identifier: Apache-2.0
"""Tests of the DDS participants that receive the raw images of a node with several cameras."""

import contextlib
import os
import shutil
import time
from pathlib import Path

import pytest
from rclpy.node import Node

from support.nodes.camera_of_many import COLOR, NAMES, CameraOfMany
from support.nodes.graph import Detector, picture_of
from support.nodes.launching import SHARE
from support.programs import executable
from trt_perception.parameters.camera import NodeParameters
from trt_perception.ros.intake import participants
from trt_perception.ros.intake.participants import ImageParticipants
from trt_perception.transport.advice import CAMERA_PROFILE, PROFILE_VARIABLES

pytest_plugins = ['support.nodes.graph_fixtures']

MIB = 2**20


@pytest.fixture
def start(client, model):
    """Return a function that starts a node with three cameras."""
    with contextlib.ExitStack() as closing:

        def start(parameters=None, **options):
            settings = {'engine_path': str(model), 'cameras': list(NAMES), **(parameters or {})}
            detector = Detector(client, settings, camera_qos=None, **options)
            closing.callback(detector.close)
            return detector

        yield start


@pytest.fixture
def make_camera():
    """Return a function that makes one camera of a node. The fixture destroys its publisher."""
    with contextlib.ExitStack() as closing:

        def make(detector, name, topic=''):
            camera = CameraOfMany(detector, name, publish=False)
            closing.callback(camera.destroy_publisher)
            camera.topic = topic or camera.topic
            camera.create_publisher()
            return camera

        yield make


@pytest.fixture
def start_connected(start, make_camera):
    """Return a function that starts an active node with three cameras, all connected."""

    def start_connected():
        detector = start({'autostart': True})
        cameras = [make_camera(detector, name) for name in NAMES]
        for camera in cameras:
            camera.connect()
        return detector, cameras

    return start_connected


def nodes_of(detector):
    """Return the names of all nodes in the namespace of a detector."""
    found = detector.client.node.get_node_names_and_namespaces()
    return sorted(name for name, namespace in found if namespace == detector.namespace)


def subscriber_of(camera):
    """Return the names of the nodes that subscribe to the images of a camera."""

    def names():
        infos = camera.client.node.get_subscriptions_info_by_topic(camera.topic)
        return [info.node_name for info in infos]

    # A name may arrive later than the subscription.
    camera.client.spin_until(lambda: not any('UNKNOWN' in name for name in names()), 'the names')
    return names()


def resources(pid):
    """Return the numbers of threads, open files and mapped shared-memory files of a process."""
    maps = Path(f'/proc/{pid}/maps').read_text().splitlines()
    shared = {line.split()[5] for line in maps if '/dev/shm/fast' in line}
    return [len(os.listdir(f'/proc/{pid}/{kind}')) for kind in ('task', 'fd')] + [len(shared)]


def test_each_raw_camera_has_a_participant_with_a_hidden_node(start_connected):
    detector, cameras = start_connected()
    hidden = [f'_detector_images_{index}' for index in range(3)]
    detector.client.spin_until(
        lambda: nodes_of(detector) == [*hidden, 'detector'], 'the names of all nodes'
    )
    assert sorted(name for camera in cameras for name in subscriber_of(camera)) == hidden
    node = detector.client.node
    for name in hidden:
        assert not node.get_service_names_and_types_by_node(name, detector.namespace)
        publishers = detector.client.spin_until(
            lambda name=name: node.get_publisher_names_and_types_by_node(name, detector.namespace),
            'the publishers of the hidden node',
        )
        assert [topic for topic, _ in publishers] == ['/parameter_events']
    for camera in cameras:
        assert camera.ask(picture_of(COLOR)).detections


def test_cleanup_frees_all_resources_of_the_participants(start_connected):
    detector, cameras = start_connected()
    pid = detector.program.pid
    for camera in cameras:
        camera.destroy_publisher()
    detector.bring_to('unconfigured')
    detector.client.spin_until(lambda: nodes_of(detector) == ['detector'], 'one node')
    before = resources(pid)
    for _ in range(5):
        detector.transition('configure', 'activate', 'deactivate', 'cleanup')
    detector.client.spin_until(
        lambda: all(now <= then + 2 for now, then in zip(resources(pid), before, strict=True)),
        f'no more resources than before: {before}',
    )


@pytest.mark.parametrize(
    ('parameters', 'expected'),
    [
        ({'image_participants': 0}, 0),
        ({'image_participants': 2}, 2),
        ({'image_intake': 'rclpy'}, 0),
        ({'image_transport': 'compressed'}, 0),
    ],
    ids=str,
)
def test_parameters_set_the_number_of_participants(start, parameters, expected):
    detector = start(parameters)
    detector.transition('configure', 'activate')
    detector.client.spin_until(lambda: len(nodes_of(detector)) == expected + 1, 'the nodes')


def test_small_images_share_the_participant_of_the_node_from_the_second_activation(
    start_connected,
):
    detector, cameras = start_connected()
    assert [subscriber_of(camera) for camera in cameras] != [['detector']] * 3
    detector.transition('deactivate', 'activate')
    for camera in cameras:
        camera.connect()
        # This process may learn late that the earlier subscription has ended.
        camera.client.spin_until(
            lambda camera=camera: subscriber_of(camera) == ['detector'], 'the only subscriber'
        )


def test_many_participants_start_with_the_usual_limit_of_open_files(start, make_camera):
    """64 participants need 1,024 files, as many as the usual limit allows."""
    command = ['bash', '-c', 'ulimit -Sn 1024; exec "$0" "$@"', executable('detector_node')]
    detector = start({'image_participants': 64}, command=command)
    detector.transition('configure', 'activate')
    make_camera(detector, NAMES[0]).connect()


def test_remapped_topic_of_a_camera_is_received(start, make_camera):
    detector = start({'autostart': True}, arguments=['-r', 'rear/image:=moved/picture'])
    camera = make_camera(detector, 'rear', detector.topic('moved/picture'))
    camera.connect()
    assert subscriber_of(camera)[0].startswith('_detector_images_')


@pytest.mark.parametrize('is_own', [False, True], ids=['profile of cameras', 'own profile'])
def test_node_replaces_the_profile_of_cameras_and_keeps_an_own_profile(
    client, model, tmp_path, monkeypatch, is_own
):
    profile = SHARE / CAMERA_PROFILE
    if is_own:
        profile = Path(shutil.copy(profile, tmp_path))
    for name in PROFILE_VARIABLES:
        monkeypatch.setenv(name, str(profile))
    detector = Detector(client, {'engine_path': str(model)})
    try:
        detector.bring_to('active')
        maps = Path(f'/proc/{detector.program.pid}/maps').read_text().splitlines()
        files = {line.split()[5] for line in maps if '/dev/shm/fast' in line}
        sizes = [os.stat(file).st_size for file in files if os.path.exists(file)]
        assert (max(sizes) > 64 * MIB) == is_own
    finally:
        detector.close()


def test_failure_to_create_a_participant_is_logged_once(client, monkeypatch):
    node, logged = Node('main', context=client.context), []
    monkeypatch.setattr(node, 'get_logger', lambda: Log(logged))
    create = participants._create_hidden_node

    def fail_at_the_second(main, index, enclave):
        if index == 1:
            raise RuntimeError('too many participants')
        return create(main, index, enclave)

    monkeypatch.setattr(participants, '_create_hidden_node', fail_at_the_second)
    created = ImageParticipants(node)
    created.start(NodeParameters.from_values({'cameras': ['a', 'b', 'c', 'd']}))
    try:
        assert len(created.ready()) == 1
        assert len(created.ready()) == 1
        assert len(logged) == 1
    finally:
        created.close()
        node.destroy_node()


def test_failure_of_an_earlier_start_is_not_logged_after_a_later_one(client, monkeypatch):
    node, logged = Node('main', context=client.context), []
    monkeypatch.setattr(node, 'get_logger', lambda: Log(logged))
    node_parameters = NodeParameters.from_values({'cameras': ['a', 'b']})
    created = ImageParticipants(node)
    with monkeypatch.context() as failing:
        failing.setattr(participants, '_create_hidden_node', lambda *_: 1 / 0)
        created.start(node_parameters)
        created.close()
    created.start(node_parameters)
    try:
        assert len(created.ready()) == 2
        assert not logged
    finally:
        created.close()
        node.destroy_node()


class Log:
    """A logger that collects warnings."""

    def __init__(self, logged):
        self.warning = logged.append


def test_participants_are_created_without_blocking_the_caller(client, monkeypatch):
    node = Node('main', context=client.context)
    create = participants._create_hidden_node
    released = []

    def wait(*arguments):
        while not released:
            time.sleep(0.01)
        return create(*arguments)

    monkeypatch.setattr(participants, '_create_hidden_node', wait)
    created = ImageParticipants(node)
    # Returns although no participant can be created yet.
    created.start(NodeParameters.from_values({'cameras': ['a', 'b']}))
    released.append(True)
    try:
        assert len(created.ready()) == 2
    finally:
        created.close()
        node.destroy_node()
