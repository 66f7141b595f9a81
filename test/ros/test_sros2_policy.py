# SPDX-License-Identifier: Apache-2.0
"""Test that the SROS 2 policy allows exactly the names that nodes use, and that nodes work."""

import functools
import importlib.util
import json
import os
import shutil
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import cv2
import numpy as np
import pytest
from rclpy.action.graph import (
    get_action_client_names_and_types_by_node,
    get_action_server_names_and_types_by_node,
)

from support.models.image_models import IMAGE_TASKS, write_image_model
from support.models.recorded_exports import recorded_values, write_export
from support.optional_packages import needs
from support.programs import DEADLINE_S, Program, executable
from trt_perception.model.tasks.table import PUBLISHED_TOPICS, TASKS

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = [pytest.mark.each_distro, needs('scipy')]

POLICY = Path(__file__).resolve().parents[2] / 'config' / 'sros2_policy.xml'
KINDS = ('subscribe', 'publish', 'reply', 'request', 'execute', 'call')


def allowed_names(node, namespace):
    """Return the full names that the policy allows a node, by kind of use."""
    (profile,) = [
        profile
        for profile in ElementTree.parse(POLICY).getroot().iter('profile')
        if profile.get('node') == node
    ]
    names = {kind: set() for kind in KINDS}
    for group in profile:
        (kind,) = group.keys()
        assert group.get(kind) == 'ALLOW'
        for element in group:
            name = element.text
            if name.startswith('~/'):
                name = f'{namespace}/{node}/{name[2:]}'
            elif not name.startswith('/'):
                name = f'{namespace}/{name}'
            assert name not in names[kind], f'{name} is listed twice'
            names[kind].add(name)
    return names


def allowed_names_without_a_bond(node):
    """Return the allowed names without the topic of the bond, which test_bond.py tests."""
    names = allowed_names(node, '/NAMESPACE')
    return {kind: of_kind - {'/NAMESPACE/bond'} for kind, of_kind in names.items()}


def used_names(graph, node, namespace):
    """Return the full names that a node uses on the graph, by kind of use."""
    where = node, namespace
    actions = [
        get_action_server_names_and_types_by_node,
        get_action_client_names_and_types_by_node,
    ]
    servers, clients = ({name for name, _ in get_names(graph, *where)} for get_names in actions)
    return {
        'subscribe': {n for n, _ in graph.get_subscriber_names_and_types_by_node(*where)},
        'publish': {n for n, _ in graph.get_publisher_names_and_types_by_node(*where)},
        'reply': {n for n, _ in graph.get_service_names_and_types_by_node(*where)},
        'request': {n for n, _ in graph.get_client_names_and_types_by_node(*where)},
        'execute': servers,
        'call': clients,
    }


def names_used_by_runs(client, start, node, namespaces):
    """Return the names that runs of a node use, with NAMESPACE instead of each namespace."""
    found = {kind: set() for kind in KINDS}
    for namespace, ready in namespaces.items():
        start(namespace)

        def is_ready(namespace=namespace, ready=ready):
            known = (node, namespace) in client.node.get_node_names_and_namespaces()
            return known and ready(used_names(client.node, node, namespace))

        client.spin_until(is_ready, f'{node} in {namespace}')
        for kind, names in used_names(client.node, node, namespace).items():
            found[kind] |= {name.replace(namespace, '/NAMESPACE') for name in names}
    return found


def test_policy_allows_exactly_what_the_detector_uses(client, model, start_detector, tmp_path):
    settings = {'engine_path': str(model), 'autostart': True}
    spaces = {
        f'/policy_{os.getpid()}_raw': {**settings},
        f'/policy_{os.getpid()}_compressed': {
            **settings,
            'image_transport': 'compressed',
            'use_sim_time': True,
        },
        f'/policy_{os.getpid()}_pose': {
            **write_export(recorded_values('ultralytics_pose'), tmp_path / 'pose.onnx'),
            'autostart': True,
            'tracker.type': 'bytetrack',  # has a service
        },
        f'/policy_{os.getpid()}_segment': {
            **write_export(recorded_values('ultralytics_segment'), tmp_path / 'segment.onnx'),
            'autostart': True,
        },
        **{
            f'/policy_{os.getpid()}_{task}': {
                **write_image_model(task, tmp_path / f'{task}.onnx'),
                'autostart': True,
            }
            for task in IMAGE_TASKS
        },
    }

    def start(namespace):
        command = [executable('detector_node'), '--ros-args', '-r', f'__ns:={namespace}']
        for name, value in spaces[namespace].items():
            command += ['-p', f'{name}:={json.dumps(value)}']
        start_detector(start=lambda _: Program(command))

    def is_complete(names, namespace, task):
        """Return whether discovery found all publishers, the subscriptions and the services."""
        of_task = (*TASKS[task].topics, *TASKS[task].label_topics)
        published = {*(topic.name for topic in of_task), 'label_info', 'debug_image'}
        wanted = {f'{namespace}/{name}' for name in (*published, 'detector/transition_event')}
        has_calibration = any(name.endswith('/camera_info') for name in names['subscribe'])
        return (
            wanted | {'/diagnostics', '/rosout', '/parameter_events'} <= names['publish']
            and any('/image' in name for name in names['subscribe'])
            and has_calibration == (task in ('semantic', 'depth'))
            and len(names['reply']) >= 12 + (task == 'pose')
        )

    tasks = ['detect', 'detect', 'pose', 'segment', *IMAGE_TASKS]
    complete = {
        namespace: functools.partial(is_complete, namespace=namespace, task=task)
        for namespace, task in zip(spaces, tasks, strict=True)
    }
    found = names_used_by_runs(client, start, 'detector', complete)
    assert found == allowed_names_without_a_bond('detector')


def test_policy_allows_the_topics_of_every_task():
    """Test the topics of all tasks, because a running model publishes only some of them."""
    names = allowed_names('detector', '')['publish']
    other_topics = {
        '/bond',
        '/detector/transition_event',
        '/diagnostics',
        '/parameter_events',
        '/rosout',
    }
    assert names - other_topics == {f'/{topic.name}' for topic in PUBLISHED_TOPICS}


def test_policy_allows_exactly_what_replay_images_uses(client, tmp_path):
    cv2.imwrite(str(tmp_path / 'a.png'), np.zeros((48, 64, 3), np.uint8))
    programs = []

    def start(namespace):
        raw = namespace.endswith('raw')
        command = [executable('replay_images'), tmp_path, '--loop', '--rate', '1']
        command += ['--encoding', 'bgr8' if raw else 'jpeg', '--ros-args']
        command += [
            '-r',
            f'__ns:={namespace}',
            '-p',
            f'use_sim_time:={"true" if raw else "false"}',
        ]
        programs.append(Program(command))

    def ready(names):
        return any('image' in name for name in names['publish']) and len(names['reply']) >= 7

    spaces = [f'/policy_{os.getpid()}_{kind}' for kind in ('replay_raw', 'replay_compressed')]
    try:
        found = names_used_by_runs(client, start, 'replay_images', dict.fromkeys(spaces, ready))
    finally:
        for program in programs:
            program.close()
    assert found == allowed_names('replay_images', '/NAMESPACE')


def test_policy_allows_exactly_what_detections_3d_uses(client):
    programs = []

    def start(namespace):
        transport = 'raw' if namespace.endswith('raw') else 'compressedDepth'
        settings = [
            'autostart:=true',
            f'depth_transport:={transport}',
            f'use_sim_time:={"true" if transport == "raw" else "false"}',
        ]
        command = [executable('detections_3d'), '--ros-args', '-r', f'__ns:={namespace}']
        programs.append(Program([*command, *(w for each in settings for w in ('-p', each))]))

    def ready(names, depth):
        return (
            any(name.endswith(depth) for name in names['subscribe'])
            and len(names['publish']) >= 7
            and len(names['subscribe']) >= (7 if depth == '/depth' else 6)
            and len(names['reply']) >= 12
        )

    kinds = {'raw': '/depth', 'compressed': '/compressedDepth'}
    spaces = {
        f'/policy_{os.getpid()}_boxes_{kind}': functools.partial(ready, depth=depth)
        for kind, depth in kinds.items()
    }
    try:
        found = names_used_by_runs(client, start, 'detections_3d', spaces)
    finally:
        for program in programs:
            program.close()
    assert found == allowed_names_without_a_bond('detections_3d')


def test_policy_has_the_format_of_sros2():
    root = ElementTree.parse(POLICY).getroot()
    assert (root.tag, root.get('version')) == ('policy', '0.2.0')
    paths = [enclave.get('path') for enclave in root.iter('enclave')]
    names = ('detector', 'detections_3d', 'camera')
    assert paths == [f'/trt_perception/{name}' for name in names]
    assert {profile.get('ns') for profile in root.iter('profile')} == {'/'}


def missing_for_enclaves():
    """Return the reason why nodes cannot run in enclaves here; empty if they can."""
    if importlib.util.find_spec('sros2') is None or shutil.which('ros2') is None:
        return 'needs sros2 to make keys: sudo apt install ros-$ROS_DISTRO-sros2 (no wheel has it)'
    return ''


@pytest.mark.skipif(bool(missing_for_enclaves()), reason=missing_for_enclaves())
def test_detector_and_camera_work_in_their_enclaves(model, tmp_path):
    """Test a detector and a camera with exactly the permissions of the policy."""
    keys = tmp_path / 'keys'
    tool = ['ros2', 'security']
    subprocess.run([*tool, 'create_keystore', keys], check=True, timeout=DEADLINE_S)
    for name in ('detector', 'camera'):
        enclave = f'/trt_perception/{name}'
        subprocess.run([*tool, 'create_enclave', keys, enclave], check=True, timeout=DEADLINE_S)
        subprocess.run(
            [*tool, 'create_permission', keys, enclave, POLICY], check=True, timeout=DEADLINE_S
        )
    environment = {
        'ROS_SECURITY_KEYSTORE': str(keys),
        'ROS_SECURITY_ENABLE': 'true',
        'ROS_SECURITY_STRATEGY': 'Enforce',
    }
    for name in range(20):
        cv2.imwrite(str(tmp_path / f'{name}.png'), np.zeros((48, 64, 3), np.uint8))
    detector = Program(
        [
            *(executable('detector_node'), '--ros-args', '--enclave', '/trt_perception/detector'),
            *('-p', f'engine_path:={model}', '-p', 'autostart:=true'),
        ],
        environment,
    )
    camera = None
    try:
        while 'active: waiting for images' not in detector.output:
            if 'have the security libraries' in detector.output:
                pytest.skip('this Fast DDS is built without security')
            assert detector.alive
            time.sleep(0.05)
        camera = Program(
            [
                *(executable('replay_images'), tmp_path, '--wait-for-subscribers', '1'),
                *('--ros-args', '--enclave', '/trt_perception/camera'),
            ],
            environment,
        )
        assert camera.wait() == 0, 'not all images were sent and acknowledged'
        detector.send(2)
        detector.wait_for_output('counts: ')
    finally:
        for program in filter(None, (detector, camera)):
            program.close()
    assert ' 0 published' not in detector.output.partition('counts: ')[2]
