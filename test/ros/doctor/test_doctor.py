# SPDX-License-Identifier: Apache-2.0
"""Tests of the command doctor: output, exit codes, cameras and nodes over DDS, missing ROS."""

import argparse
import json
import os
import pty
import re
import shlex
import subprocess

import numpy as np
import pytest
import rclpy
from ament_index_python.packages import get_package_prefix
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.clock import Clock
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, QoSReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image
from vision_msgs.msg import LabelInfo

from support import forked, golden
from support.findings import lines_of
from support.models.tiny_model import write_tiny_model
from support.programs import executable
from trt_perception.errors import ConfigError
from trt_perception.model.tasks.table import PUBLISHED_TOPICS
from trt_perception.monitoring.status_summary import Level, StatusSummary
from trt_perception.parameters.camera import NodeParameters
from trt_perception.ros.diagnostics import CameraDiagnostics, NodeDiagnostics, diagnostics_message
from trt_perception.ros.doctor import doctor
from trt_perception.ros.doctor.ros_graph import _detector_findings, _TopicListener

pytest_plugins = ['support.nodes.graph_fixtures']


def run_doctor(*arguments, environment=None, command=None):
    changed = {**os.environ, **(environment or {})}
    ended = forked.run(
        [*(command or [executable('doctor')]), *arguments],
        timeout=280,
        env={name: value for name, value in changed.items() if value is not None},
    )
    assert 'Traceback' not in ended.stderr
    return ended


def findings(*arguments, **options):
    ended = run_doctor(*arguments, '--json', **options)
    report = json.loads(ended.stdout)
    assert ended.returncode == int(report['red'] > 0), ended.stdout
    return {(entry['area'], entry['name']): entry for entry in report['findings']}


def level_of(found, name):
    [entry] = [entry for (_, each), entry in found.items() if each == name]
    return entry['level']


def test_valid_model_is_green(tmp_path):
    model = write_tiny_model(tmp_path / 'tiny.onnx')
    found = findings(model, '--seconds', '0')
    assert {entry['level'] for (area, _), entry in found.items() if area == 'model'} == {'green'}
    for name in ('numpy', 'cv2', 'rclpy', 'vision_msgs', 'ONNX Runtime'):
        assert found['Python and packages', name]['level'] == 'green'
    assert not [area for area, _ in found if area == 'cameras']


def test_truncated_model_is_red(tmp_path):
    model = write_tiny_model(tmp_path / 'tiny.onnx')
    model.write_bytes(model.read_bytes()[:-1])
    found = findings(model, '--seconds', '0')
    assert found['model', 'file']['level'] == 'red'


def test_text_report_lists_red_findings_and_exits_with_1():
    ended = run_doctor('missing.onnx', '--seconds', '0')
    assert ended.returncode == 1
    assert '  red    file: missing.onnx: ' in ended.stdout
    red = [line for line in ended.stdout.splitlines() if line.startswith('  red ')]
    assert f', {len(red)} red' in ended.stdout.splitlines()[-1]
    # Other tests on this machine may kill processes while these use shared memory.
    assert len([line for line in red if 'shared memory of a killed process' not in line]) == 1
    assert '\033' not in ended.stdout


WRONG_USAGE = [
    'model.onnx seconds:=3',
    'a.onnx --model b.onnx',
    '--model --seconds 0',
    '-p engine_path:=x --secnds 3',  # the refusal must not suggest engine_path
    'a.onnx b.onnx',
    '--seconds -1',
    '--seconds nan',
    '--device x',
    "--image-topic 'front image'",
    '--image-topic /front/',
    '--image-topic /2nd/image',
    "--image-topic ''",
    '--image-topic /{camera}s/{name}',
    '--image-topic /front/image_raw --seconds 0',
    '--what',
    '--param model.decoder',
    '--class-names cat dog',
    '--param :=dense',
    '--node detector',
]


@pytest.mark.parametrize(
    'word', ['model.class_names:=[a]', 'model_class_names:=[a]', 'class_names=[a]']
)
def test_every_spelling_of_a_parameter_reaches_ros(word):
    assert doctor._parser().parse_args(['--param', word]).param == ['model.class_names:=[a]']


def test_wrong_usage_is_refused(capsys):
    lines = []
    for words in WRONG_USAGE:
        with pytest.raises(SystemExit) as ended:
            doctor.main(shlex.split(words))
        assert ended.value.code == 2
        lines += [f'== {words}', capsys.readouterr().err.rstrip()]
    golden.check('doctor/usage.txt', '\n'.join(lines))


@pytest.mark.parametrize('no_color', [None, '1'])
def test_colours_are_used_on_a_terminal_unless_no_color_is_set(no_color):
    main, other = pty.openpty()
    environment = {**os.environ, **({'NO_COLOR': no_color} if no_color else {})}
    with subprocess.Popen(
        [executable('doctor'), '--seconds', '0'], stdout=other, env=environment
    ) as process:
        os.close(other)
        output = b''
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:  # the other end of the terminal is closed
                break
            if not part:
                break
            output += part
        process.wait(60)
    os.close(main)
    assert (b'\033[32m' in output) == (no_color is None)


def test_without_rclpy_only_dependent_checks_are_red(tmp_path):
    """rclpy cannot be imported."""
    (tmp_path / 'rclpy.py').write_text("raise ImportError('no ROS here')\n")
    path = f'{tmp_path}{os.pathsep}{os.environ["PYTHONPATH"]}'
    found = findings('--seconds', '1', environment={'ROS_DISTRO': None, 'PYTHONPATH': path})
    assert level_of(found, 'distribution') == 'red'
    assert 'no ROS here' in found['Python and packages', 'rclpy']['found']
    assert 'no ROS here' in found['cameras', 'graph']['found']
    assert found['Python and packages', 'numpy']['level'] == 'green'
    assert ('machine', 'caches') in found


def test_without_ros_one_yellow_finding_replaces_the_checks_of_ros(tmp_path):
    (tmp_path / 'rclpy.py').write_text("raise ModuleNotFoundError('no ROS here')\n")
    path = f'{tmp_path}{os.pathsep}{os.environ["PYTHONPATH"]}'
    found = findings('--seconds', '1', environment={'ROS_DISTRO': None, 'PYTHONPATH': path})
    assert level_of(found, 'ROS 2') == 'yellow'
    assert not [name for name, finding in found.items() if finding['level'] == 'red']
    assert found['Python and packages', 'numpy']['level'] == 'green'
    assert not {'rclpy', 'sensor_msgs', 'distribution', 'graph'} & {name for _, name in found}


def test_missing_middleware_is_reported():
    found = findings('--seconds', '1', environment={'RMW_IMPLEMENTATION': 'rmw_missing_cpp'})
    assert level_of(found, 'middleware') == 'red'
    assert found['cameras', 'graph']['level'] == 'red'


def test_help_explains_exit_codes(capsys):
    with pytest.raises(SystemExit) as ended:
        doctor.main(['--help'])
    assert ended.value.code == 0
    assert re.search(r'codes: 0 .+, 1 .+, 2 ', capsys.readouterr().out)


def test_each_problem_of_a_camera_has_a_finding(client, other_node):
    """Two good cameras, a silent one, one with an unknown encoding, two with invalid messages.

    One good camera has the name of a topic of detectors. The other node is a detector.
    """
    best_effort = QoSProfile(depth=5, reliability=QoSReliabilityPolicy.BEST_EFFORT)
    space = f'/doctor_{os.getpid()}'
    names = ('good', 'silent', 'strange', 'short', 'rubbish', 'depth')
    publishers = {
        name: client.node.create_publisher(
            Image, f'{space}/{name}', best_effort if name == 'good' else QoSProfile(depth=5)
        )
        for name in names
    }
    result_publishers = [
        client.node.create_publisher(Image, f'{space}/{name}', 1)
        for name in ('masks', 'debug_image')
    ]
    result_publishers += [
        other_node.create_publisher(Image, f'{space}/detector/{topic.name}', 1)
        for topic in PUBLISHED_TOPICS
        if topic.message == 'sensor_msgs/Image'
    ]
    other_node.create_publisher(LabelInfo, f'{space}/detector/label_info', 1)
    subscribed_results = []
    pixels = np.zeros(48 * 64 * 3, np.uint8).tobytes()
    image = Image(width=64, height=48, step=192, encoding='bgr8', data=pixels)
    strange = Image(width=64, height=48, step=192, encoding='32FC9', data=pixels)
    short = Image(width=64, height=48, step=192, encoding='bgr8', data=pixels[:-1])

    def send():
        publishers['good'].publish(image)
        publishers['depth'].publish(image)
        publishers['strange'].publish(strange)
        publishers['short'].publish(short)
        publishers['rubbish'].publish(b'\0\1\0\0' + b'\xee' * 60)
        subscribed_results.extend(one for one in result_publishers if one.get_subscription_count())

    timer = client.node.create_timer(0.05, send)
    command = [executable('doctor'), '--json', '--image-topic', f'{space}/silent']

    def good_camera_has_a_rate():
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            client.spin_until(lambda: process.poll() is not None, 'the end of doctor', 120)
            report = json.loads(process.stdout.read())
        assert process.returncode == 1
        found = {
            entry['name'].rpartition('/')[2]: entry
            for entry in report['findings']
            if entry['name'].startswith(space)
        }
        # On a busy machine, the images may be too irregular for a rate.
        return found if ' Hz' in found['good']['found'] else None

    try:
        found = client.spin_until(good_camera_has_a_rate, 'a rate of the good camera')
    finally:
        client.node.destroy_timer(timer)
        for publisher in (*publishers.values(), *result_publishers[:2]):
            client.node.destroy_publisher(publisher)
    assert not subscribed_results  # a subscriber would make a detector draw images
    assert set(found) == set(names)
    assert found['good']['level'] == 'green', found
    for name in ('good', 'depth'):
        assert '64x48 bgr8' in found[name]['found']
    assert 'best_effort' in found['good']['found']
    assert float(found['good']['found'].split(' Hz')[0]) > 0
    assert found['silent']['level'] == 'red'
    assert found['strange']['level'] == 'yellow'
    assert 'reliable' in found['strange']['found']
    for name, message_bytes in (('short', '9215'), ('rubbish', '64')):
        assert found[name]['level'] == 'yellow'
        assert message_bytes in re.findall(r'\d+', found[name]['found'])


@pytest.fixture
def other_node():
    """Return a node of another participant, because each participant has one type per topic."""
    context = rclpy.Context()
    rclpy.init(args=[], context=context)
    node = Node('other_node', context=context)
    yield node
    node.destroy_node()
    rclpy.shutdown(context=context)


def test_each_camera_of_a_node_has_a_finding(client, other_node):
    """Three cameras of the parameter: a good one, one with another type, and a missing one."""
    space = f'/doctor_{os.getpid()}'
    publisher = client.node.create_publisher(Image, f'{space}/front/raw', QoSProfile(depth=5))
    no_images = client.node.create_publisher(
        DiagnosticArray, f'{space}/rear/raw', QoSProfile(depth=5)
    )
    other_node.create_publisher(CompressedImage, f'{space}/front/raw', 1)
    # A running detector would have this subscription.
    other_node.create_subscription(Image, f'{space}/rear/raw', lambda _: None, 1)
    image = Image(width=64, height=48, step=192, encoding='bgr8', data=bytes(48 * 192))
    statuses = [
        DiagnosticStatus(name=name, message=message, level=DiagnosticStatus.WARN)
        for name, message in (
            ('/a/detector: detector', 'two nodes; front: stalled'),
            ('/a/detector: front', 'stalled'),
            ('/b/driver: front', 'stalled'),
        )
    ]
    diagnostics_publisher = client.node.create_publisher(
        DiagnosticArray, '/diagnostics', QoSProfile(depth=5)
    )

    def send():
        publisher.publish(image)
        diagnostics_publisher.publish(DiagnosticArray(status=statuses))

    timer = client.node.create_timer(0.05, send)
    command = [executable('doctor'), '--json', '-p', 'cameras:=[front, rear, top]']
    command += ['--seconds', '1', '--node', f'{space}/detector', '--image-topic', '{camera}/raw']

    def all_cameras_are_found():
        """Run doctor again, because it may listen for too short a time on a busy machine."""
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            client.spin_until(lambda: process.poll() is not None, 'the end of doctor', 120)
            report = json.loads(process.stdout.read())
        found = {
            entry['name']: entry
            for entry in report['findings']
            if entry['area'] in ('cameras', 'detectors')
        }
        front = found.get(f'front: {space}/front/raw', {})
        is_found = front.get('level') == 'green' and '/a/detector: front' in found
        return found if is_found else None

    try:
        findings_by_name = client.spin_until(all_cameras_are_found, 'the camera and the detector')
    finally:
        client.node.destroy_timer(timer)
        for each in (publisher, no_images, diagnostics_publisher):
            client.node.destroy_publisher(each)
    # The findings include statuses of the detector, but not of other nodes.
    assert findings_by_name['/a/detector: front']['found'] == 'stalled'
    assert findings_by_name['/a/detector: detector']['level'] == 'yellow'
    assert '/b/driver: front' not in findings_by_name
    # The test client publishes another type.
    assert '/test_client' in findings_by_name[f'rear: {space}/rear/raw']['found']
    for name in ('rear', 'top'):
        missing = findings_by_name[f'{name}: {space}/{name}/raw']
        assert missing['level'] == 'red'
        # The topic of another camera must not be suggested.
        assert 'front' not in missing['fix']


GOOD = StatusSummary(Level.OK, '', 'active')
GONE = StatusSummary(Level.ERROR, 'camera_gone', 'gone; start it')
SLOW = StatusSummary(Level.WARN, 'engine_slower', 'slow')
SAME_NAME = StatusSummary(Level.WARN, 'same_name', 'two nodes')
#: For each scene: error and problem of the node, problems of its cameras.
STATUSES = {
    'problem of a camera is reported once': ('', None, [SLOW, GONE, GOOD]),
    'problem of the node is reported besides': ('', SAME_NAME, [GONE]),
    'each of many cameras is reported': ('', None, [SLOW] * 6),
    'cameras of a node with an error are not reported': ('GPU lost', None, [GOOD, GOOD]),
}


@pytest.mark.parametrize('scene', STATUSES)
def test_statuses_of_a_node_give_the_recorded_findings(scene, golden_messages):
    error, own, problems = STATUSES[scene]
    cameras = [CameraDiagnostics(f'c{i}', summary=each) for i, each in enumerate(problems)]
    diagnostics = NodeDiagnostics('active', error, cameras=cameras, summary=own)
    statuses = diagnostics_message('/detector', Clock().now(), diagnostics).status
    golden_messages.add('\n'.join(lines_of(_detector_findings(statuses))))


def test_listener_finds_publishers_that_appear_after_the_topic(client, other_node):
    topic = f'/doctor_{os.getpid()}/late'
    node = client.node
    executor = SingleThreadedExecutor(context=other_node.context)
    executor.add_node(other_node)
    listener = _TopicListener(other_node, topic)
    assert listener.camera_report().reliability == ()
    best_effort = QoSProfile(depth=5, reliability=QoSReliabilityPolicy.BEST_EFFORT)
    jpeg = CompressedImage(format='jpeg', data=b'not a JPEG')
    for kind, message, qos in ((Image, Image(), best_effort), (CompressedImage, jpeg, 5)):
        publisher = node.create_publisher(kind, topic, qos)

        def heard(publisher=publisher, message=message):
            listener.update()
            publisher.publish(message)
            executor.spin_once(timeout_sec=0.05)
            # Until the new publisher is discovered, the images of the last one count.
            return listener.publishers and listener.camera_report().received > 3

        client.spin_until(heard, f'images of {kind.__name__}')
        report = listener.camera_report()
        assert report.compressed == (kind is CompressedImage)
        assert report.reliability == ('best_effort' if qos is best_effort else 'reliable',)
        node.destroy_publisher(publisher)
        client.spin_until(lambda: listener.update() or not listener.publishers, 'no publisher')
        assert listener.camera_report().received > 3  # received images still count


def planned_topics(image_topic, cameras, node='/detector'):
    options = argparse.Namespace(image_topic=image_topic, node=node)
    plans = doctor._camera_plans(options, NodeParameters.from_values({'cameras': cameras}))
    return {plan.name: plan.topic for plan in plans}


def test_planned_topics_follow_cameras_and_namespace():
    assert planned_topics(None, []) == {'': ''}
    assert planned_topics('/image_raw', []) == {'': '/image_raw'}
    own = {'front': '/robot/front/image', 'rear': '/robot/rear/image'}
    assert planned_topics(None, ['front', 'rear'], '/robot/detector') == own
    assert planned_topics('/{camera}/raw', ['front', 'rear'], '/robot/detector') == {
        'front': '/front/raw',
        'rear': '/rear/raw',
    }
    for topic, cameras in (('/raw', ['front', 'rear']), ('/{camera}/raw', [])):
        with pytest.raises(ConfigError):
            planned_topics(topic, cameras)


@pytest.mark.parametrize(
    ('topic', 'values', 'levels', 'plans'),
    [
        ('/raw', {'cameras': ['front', 'rear']}, ['red'], [('', 'auto')]),
        ('/{camera}/raw', {}, ['red'], [('', 'auto')]),
        ('/{camera}/raw', None, ['yellow'], [('', 'auto')]),
        ('/raw', None, [], [('/raw', 'raw')]),
        (None, None, [], [('', 'raw')]),
        (None, {'image_transport': 'auto'}, [], [('', 'auto')]),
        (None, {'image_transport': 'auto', 'engine_path': 'a.onnx'}, [], [('', 'raw')]),
    ],
)
def test_graph_process_gets_the_plans_of_the_cameras(monkeypatch, topic, values, levels, plans):
    requests = []
    monkeypatch.setattr(doctor, '_run_module', lambda *request: requests.append(request) or [])
    options = argparse.Namespace(
        image_topic=topic, node='/detector', seconds=0.5, model='', device=None
    )
    inputs = doctor._Inputs(options, values)
    findings = list(doctor._camera_findings(inputs))
    assert [finding.level for finding in findings] == levels
    for finding in findings:
        if values == {}:
            assert "-p 'cameras:=[front, rear]'" in finding.fix
        elif values:
            assert 'front, rear' in finding.found
    [(_, [request], _)] = requests  # doctor always runs the graph process
    asked_plans = json.loads(request)['plans']
    assert [(plan['topic'], plan['transport']) for plan in asked_plans] == plans


def test_errors_of_a_running_detector_are_red(active_detector):
    # The fixture's camera has stopped sending.
    active_detector.wait_for_status(
        lambda status, _: 'has stalled' in status.message, 'a report of the stall'
    )
    places = (
        ('detectors', f'{active_detector.name}: detector'),
        ('cameras', f'{active_detector.namespace}/image'),
    )

    def detector_and_camera():
        found = findings('--seconds', '1')
        return found if all(place in found for place in places) else None

    found = active_detector.client.spin_until(
        detector_and_camera, 'findings of camera and detector'
    )
    assert found[places[0]]['level'] == 'red'
    assert 'green' in {e['level'] for (area, _), e in found.items() if area == 'cameras'}


def test_doctor_is_installed_as_an_executable():
    assert os.access(f'{get_package_prefix("trt_perception")}/lib/trt_perception/doctor', os.X_OK)


def test_parameters_that_only_a_new_start_changes_are_named(tmp_path):
    file = tmp_path / 'my.yaml'
    file.write_text(
        '/**:\n  ros__parameters:\n    triton:\n      headers: h\n      servers: ["a:1"]\n'
        '    confidence_threshold: 0.5\n'
    )
    found = findings('--params-file', str(file), '--seconds', '0')
    fixed = found['parameters', 'fixed at the start']['found']
    assert 'triton.headers' in fixed
    assert 'triton.servers' in fixed
    assert 'confidence_threshold' not in fixed
    assert found['parameters', 'triton.headers']['level'] == 'yellow'
    found = findings('--params-file', str(file), '--param', 'triton.tls:=true', '--seconds', '0')
    assert ('parameters', 'triton.headers') not in found
