"""Tests of the fallback: rclpy takes the images if rcl differs or a parameter requests it."""

import ctypes

import numpy as np
import pytest
from sensor_msgs.msg import Image

from support.nodes.graph import command_image
from support.nodes.intake_taker import intakes
from trt_perception.ros.camera.messages import frame_from_image
from trt_perception.ros.intake.intake import SerializedMessage, check_intake
from trt_perception.ros.intake.subscriptions import IntakeSubscription, TypedSubscription
from trt_perception.ros.wire import rcl
from trt_perception.ros.wire.rcl import RclError

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro


class _Shorter(ctypes.Structure):
    """A wait set without its last member, so rcl writes behind the struct."""

    _fields_ = rcl._WaitSetStruct._fields_[:-1]


class _Longer(ctypes.Structure):
    """A message info with an additional first member, which shifts all others."""

    _fields_ = [('new', ctypes.c_uint8 * 32), *rcl.SerializedArray._fields_]


@pytest.mark.parametrize('fault', ['wait set', 'array', 'function', 'library'])
def test_rclpy_takes_images_if_rcl_differs_at_the_start(make_taker, monkeypatch, fault):
    if fault == 'wait set':
        monkeypatch.setattr(rcl, '_WaitSetStruct', _Shorter)
    elif fault == 'array':
        monkeypatch.setattr(rcl, 'SerializedArray', _Longer)
    elif fault == 'function':
        monkeypatch.setattr(rcl, '_GIL_RELEASING_CALLS', {'rcl_of_tomorrow': ()})
    else:

        def missing(name):
            raise OSError(f'{name}: cannot open shared object file')

        monkeypatch.setattr(ctypes, 'CDLL', missing)
    rcl.load_rcl.cache_clear()
    try:
        taker = make_taker()
        taker.open()
        with pytest.raises(RclError):  # doctor also calls this check
            check_intake(taker.client.context)
    finally:
        rcl.load_rcl.cache_clear()
    assert len(taker.logged) == 1
    assert intakes() == 0
    assert taker.intake.uses_rclpy
    camera = taker.publisher()
    camera.publish(command_image(3, 1))
    taker.wait(1)
    assert isinstance(taker.images[0], Image)
    assert frame_from_image(taker.images[0]).data[0] == 3
    assert taker.client.node.count_subscribers(taker.topic) == 1
    taker.client.node.destroy_publisher(camera)


def test_rclpy_takes_images_if_rcl_differs_later(make_taker, monkeypatch):
    taker = make_taker()
    taker.open()
    monkeypatch.setattr(
        rcl.MessageTaker,
        'take',
        lambda *_: (_ for _ in ()).throw(RclError('a take', 'went wrong')),
    )
    camera = taker.publisher()
    camera.publish(command_image(3, 1))
    taker.client.spin_until(lambda: not intakes(), 'the end of the thread')
    assert taker.input.resubscribe_if_lost()
    taker.client.spin_until(camera.get_subscription_count, 'the subscription')
    camera.publish(command_image(4, 2))
    taker.wait(1)
    assert isinstance(taker.images[-1], Image)
    assert len(taker.logged) == 1
    taker.client.node.destroy_publisher(camera)


@pytest.mark.parametrize(
    ('intake', 'kind', 'message'),
    [('auto', IntakeSubscription, SerializedMessage), ('rclpy', TypedSubscription, Image)],
)
def test_parameter_selects_rclpy_or_the_intake(make_taker, intake, kind, message):
    taker = make_taker(image_intake=intake)
    taker.open()
    assert isinstance(taker.input._subscription, kind)
    camera = taker.publisher()
    camera.publish(command_image(1, 1))
    taker.wait(1)
    assert isinstance(taker.images[0], message)
    assert np.array_equal(frame_from_image(taker.images[0]).data[:3], [1, 0, 0])
    taker.client.node.destroy_publisher(camera)
