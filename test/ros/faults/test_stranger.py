# SPDX-License-Identifier: Apache-2.0
"""Tests of a stranger on the ROS graph who sets parameters to get files, tokens or images."""

import pytest
from rclpy.parameter import Parameter

from support.fake_triton import fake_triton
from support.models.support_models import tiny_onnx
from support.nodes.graph import picture_of
from support.optional_packages import needs

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = [needs('onnx', 'tritonclient'), pytest.mark.each_distro]

TOKEN = 'Bearer 3f9a-of-the-robot'
MODEL = {
    'model.resize': 'letterbox',
    'model.color_order': 'rgb',
    'model.scale': 1 / 255,
    'model.decoder': 'dense',
    'model.class_names': ['cat', 'dog'],
}


@pytest.fixture(name='servers')
def _servers():
    """The server of the start, a server in triton.servers, and a stranger's server."""
    with fake_triton() as own, fake_triton() as listed, fake_triton() as foreign:
        yield own, listed, foreign


@pytest.fixture(name='secret')
def _secret(tmp_path):
    secret = tmp_path / 'id_token'
    secret.write_text('x-secret: 6d1c-of-the-user\n')
    return secret


def address(server):
    return f'triton://{server.address}/tiny'


@pytest.fixture(name='detector')
def _detector(start_detector, servers, tmp_path):
    own, listed, _ = servers
    headers = tmp_path / 'headers'
    headers.write_text(f'authorization: {TOKEN}\n')
    return start_detector(
        {
            'engine_path': address(own),
            'triton.headers': str(headers),
            'triton.servers': [listed.address],
            'triton.shared_memory': False,
            'triton.timeout_ms': 60_000.0,
            **MODEL,
        }
    )


@pytest.mark.parametrize('state', ['unconfigured', 'inactive', 'active'])
def test_parameters_of_the_start_cannot_change_in_any_state(detector, secret, servers, state):
    detector.bring_to(state)
    foreign = servers[2]
    changes = {
        'triton.headers': str(secret),
        'triton.ca_file': str(secret),
        'triton.certificate_file': str(secret),
        'triton.key_file': str(secret),
        'triton.tls': True,
        'triton.shared_memory': True,
        'triton.servers': [foreign.address],
        'plugin_libraries': [str(secret)],
    }
    before = {name: detector.get(name) for name in changes}
    for name, value in changes.items():
        assert not detector.set({name: value})[0][0], name
    # One refused value refuses all values of the request.
    assert not detector.set_at_once({'confidence_threshold': 0.9, 'triton.tls': True})[0]
    assert {name: detector.get(name) for name in changes} == before
    assert detector.get('confidence_threshold') == pytest.approx(0.25)
    # `ros2 param load` sets equal values.
    lists = {name: value for name, value in before.items() if isinstance(value, list)}
    assert detector.set({name: before[name] for name in before.keys() - lists.keys()}) == (
        [(True, '')] * (len(before) - len(lists))
    )
    for name, value in lists.items():
        assert detector.set({name: value}, Parameter.Type.STRING_ARRAY) == [(True, '')]


@pytest.mark.parametrize(
    'form',
    [
        'triton://{host}:{port}/tiny',
        'triton:/{host}:{port}/tiny',
        'triton://{host}:{port}/tiny/1',
        'triton://{host}:0{port}/tiny',
        'triton://127.0.0.1:{port}/tiny',
        'triton://[::1]:{port}/tiny',
        'triton://unix:{port}/tiny',
    ],
)
def test_server_of_a_stranger_is_refused_and_gets_nothing(detector, servers, form):
    own, _, foreign = servers
    detector.bring_to('active')
    detector.connect(picture_of((9, 9, 9)))
    detector.transition('deactivate', 'cleanup')
    host, port = foreign.address.split(':')
    other = form.format(host=host, port=port)
    assert not detector.set({'engine_path': other})[0][0]
    assert not detector.set_at_once({'triton.servers': [foreign.address], 'engine_path': other})[0]
    assert detector.get('engine_path') == address(own)
    detector.bring_to('active')
    detector.connect(picture_of((9, 9, 9)))
    assert not foreign.calls
    assert own.headers['ModelInfer']['authorization'] == TOKEN


def test_listed_server_gets_images_but_no_token(detector, servers):
    own, listed, _ = servers
    detector.set_or_fail(engine_path=address(listed))
    detector.bring_to('active')
    detector.connect(picture_of((9, 9, 9)))
    assert not own.calls
    assert listed.calls['ModelInfer'] > 0
    assert all(TOKEN not in each.values() for each in listed.headers.values())
    detector.transition('deactivate', 'cleanup')
    detector.set_or_fail(engine_path=address(own))
    detector.bring_to('active')
    assert own.headers['ModelInfer']['authorization'] == TOKEN


def test_autostart_opens_no_channel_to_a_server_of_a_stranger(start_detector, servers, tmp_path):
    foreign = servers[2]
    model = tmp_path / 'tiny.onnx'
    model.write_bytes(tiny_onnx())
    detector = start_detector({'engine_path': str(tmp_path / 'no.onnx'), 'autostart': True})
    for path in (address(foreign), str(model)):
        detector.set({'engine_path': path})
    detector.set_or_fail(**{'model.decoder': 'dense'})
    assert detector.set({'model.class_names': ['cat', 'dog']}, Parameter.Type.STRING_ARRAY)[0][0]
    detector.set_or_fail(
        **{'model.resize': 'letterbox', 'model.color_order': 'rgb', 'model.scale': 1 / 255}
    )
    detector.connect(picture_of((9, 9, 9)))
    assert not foreign.calls
