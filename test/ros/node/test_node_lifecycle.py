"""The lifecycle over its services: every state, every way out, and failures that are answered."""

import json
import shutil

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from lifecycle_msgs.msg import Transition

from support.models.tiny_model import expected_detections
from support.nodes.graph import TRANSITIONS, Detector, found_in, picture_of

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro

RED = (200, 0, 0)


def test_whole_life_twice(start_detector, model):
    detector = start_detector({'engine_path': str(model)})
    assert detector.state() == 'unconfigured'
    for _ in range(2):
        for transition, state in (
            ('configure', 'inactive'),
            ('activate', 'active'),
            ('deactivate', 'inactive'),
            ('activate', 'active'),
            ('deactivate', 'inactive'),
            ('cleanup', 'unconfigured'),
        ):
            assert detector.change_state(transition)
            assert detector.state() == state
            detector.wait_for_status(
                lambda status, values, state=state: (
                    values['state'] == state and status.level != DiagnosticStatus.ERROR
                ),
                f'diagnostics of state {state}',
            )
            if state == 'active':
                detector.connect()
                answer = detector.ask(picture_of(RED))
                assert len(found_in(answer)) == len(expected_detections(RED, (128, 96)))


def test_images_are_heard_while_active_only(start_detector, model):
    detector = start_detector({'engine_path': str(model)})
    graph = detector.client.node

    def subscribers():
        return graph.count_subscribers(detector.topic('image'))

    for transition, count in (
        ('configure', 0),
        ('activate', 1),
        ('deactivate', 0),
        ('activate', 1),
        ('deactivate', 0),
        ('cleanup', 0),
    ):
        detector.to(transition)
        detector.client.spin_until(
            lambda count=count: subscribers() == count, f'{count} subscribers after {transition}'
        )
    detector.client.spin_until(
        lambda: not graph.count_publishers(detector.topic('detections')), 'the publisher gone'
    )


@pytest.mark.parametrize('state', ['unconfigured', 'inactive', 'active'])
def test_shutdown(start_detector, model, state):
    detector = start_detector({'engine_path': str(model)})
    detector.to(
        *{'unconfigured': [], 'inactive': ['configure']}.get(state, ['configure', 'activate'])
    )
    assert detector.change_state(f'shutdown from {state}')
    assert detector.state() == 'finalized'
    assert not detector.change_state('configure')


# Of each state, the transitions that lead out of it.
POSSIBLE = {
    'unconfigured': {'configure', 'shutdown from unconfigured'},
    'inactive': {'activate', 'cleanup', 'shutdown from inactive'},
    'active': {'deactivate', 'shutdown from active'},
    'finalized': set(),
}


@pytest.fixture(scope='module')
def detector_for_refusals(client, model):
    detector = Detector(client, {'engine_path': str(model)})
    yield detector
    detector.close()


@pytest.mark.parametrize('state', ['unconfigured', 'inactive', 'active', 'finalized'])
def test_impossible_transitions_are_answered(detector_for_refusals, state):
    detector = detector_for_refusals
    way = {'inactive': 'configure', 'active': 'activate', 'finalized': 'shutdown from active'}
    if state in way:
        detector.to(way[state])
    assert detector.state() == state
    for transition in sorted(TRANSITIONS.keys() - POSSIBLE[state]):
        assert detector.change_state(transition) is False, transition
        assert detector.state() == state
    for number, label in ((99, ''), (0, 'no such transition')):
        request = Transition(id=number, label=label)
        answer = detector.call('change_state', transition=request)
        assert answer.success is False
    assert detector.state() == state
    assert 'Traceback' not in detector.program.output


def wrong_models(model, folder):
    """Return name, engine_path and what the error says, for everything configure refuses."""

    def copy(name):
        target = folder / name
        shutil.copy(model, target)
        shutil.copy(f'{model}.json', f'{target}.json')
        return target

    corrupt = folder / 'corrupt.onnx'
    corrupt.write_bytes(b'this is no protocol buffer')
    changed = copy('changed.onnx')
    changed.write_bytes(changed.read_bytes() + b'\0')
    other = copy('other.onnx')
    manifest = json.loads(model.with_name(model.name + '.json').read_text())
    manifest['outputs'][0]['shape'][1] += 1
    other.with_name('other.onnx.json').write_text(json.dumps(manifest))
    broken = copy('broken.onnx')
    broken.with_name('broken.onnx.json').write_text('{')
    bare = folder / 'bare.onnx'
    shutil.copy(model, bare)
    return [
        ('empty path', '', "parameter 'engine_path': it is empty"),
        ('missing file', str(folder / 'missing.onnx'), 'No such file'),
        ('a folder', str(folder), 'suffix'),
        ('an engine', str(folder / 'model.engine'), 'model.engine'),
        ('corrupt', str(corrupt), 'corrupt.onnx: is not an ONNX model'),
        ('other bytes than the manifest says', str(changed), 'is not the file that'),
        ('other tensors than the manifest says', str(other), 'do not belong together'),
        ('no JSON', str(broken), 'not readable as JSON'),
        ('no manifest', str(bare), 'model.color_order'),
    ]


def test_failed_configure_says_why_and_may_be_tried_again(start_detector, model, tmp_path):
    detector = start_detector()
    for name, path, cause in wrong_models(model, tmp_path):
        detector.set_well(engine_path=path)
        before = detector.program.count(cause)
        assert detector.change_state('configure') is False, name
        assert detector.state() == 'unconfigured', name
        detector.program.wait_for_output(cause, before + 1)
        detector.wait_for_status(
            lambda status, values, cause=cause: (
                status.level == DiagnosticStatus.ERROR
                and cause in status.message
                and values['state'] == 'unconfigured'
            ),
            f'an ERROR status that says {cause!r}',
        )
    # An error that the package raises on purpose is told in words.
    assert 'Traceback' not in detector.program.output
    detector.set_well(engine_path=str(model))
    detector.to('configure', 'activate')
    detector.wait_for_status(
        lambda status, _: status.level != DiagnosticStatus.ERROR, 'a status without the old error'
    )
    detector.connect()
    assert detector.ask(picture_of(RED)).detections


def test_parameters_replace_a_manifest(start_detector, model, tmp_path):
    bare = tmp_path / 'bare.onnx'
    shutil.copy(model, bare)
    detector = start_detector(
        {
            'engine_path': str(bare),
            'autostart': True,
            'model.resize': 'letterbox',
            'model.color_order': 'bgr',
            'model.scale': 1 / 255,
            'model.decoder': 'dense',
            'model.class_names': ['blau', 'grün', 'rot'],
        }
    )
    detector.connect()
    # With the order turned round, the first class sees blue.
    [first, _] = found_in(detector.ask(picture_of((0, 0, 200))))
    assert first[0] == 'blau'
    assert first[1] == pytest.approx(200 / 255, abs=1e-5)
    [told] = [line for line in detector.program.output.splitlines() if 'configured: ' in line]
    assert told.startswith('[INFO]')
    assert told.endswith(
        f'configured: {bare}, 3 classes, detect, dense (objectness false, transposed false); '
        'letterbox on 114, bgr x 0.00392157 (as the model itself and the parameters say)'
    )
    # Of the node: the middleware has warnings of its own on some distributions.
    lines = detector.program.output.splitlines()
    assert not [line for line in lines if '[WARN]' in line and 'detector]: ' in line]


def test_autostart(start_detector, model):
    detector = start_detector({'engine_path': str(model), 'autostart': True})
    detector.client.spin_until(lambda: detector.state() == 'active', 'state active')
    detector.to('deactivate', 'cleanup', 'configure', 'activate')


def test_no_autostart_by_default(start_detector, model):
    detector = start_detector({'engine_path': str(model)})
    detector.program.wait_for_output('node up')
    assert detector.get('autostart') is False
    for _ in range(3):
        assert detector.state() == 'unconfigured'


def test_failed_autostart_stays_reachable(start_detector, model):
    detector = start_detector({'engine_path': '/missing.onnx', 'autostart': True})
    detector.wait_for_status(
        lambda status, _: status.level == DiagnosticStatus.ERROR, 'an ERROR status'
    )
    assert detector.state() == 'unconfigured'
    detector.set_well(engine_path=str(model))
    detector.to('configure', 'activate')
