# SPDX-License-Identifier: Apache-2.0
"""Tests of the fallback: rclpy takes the images if rcl differs or a parameter requests it."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest
from sensor_msgs.msg import Image

from support.nodes.graph import command_image
from support.nodes.intake_taker import intakes
from support.rcl_stand_in import (
    CHANGED_LAYOUTS,
    compile_stand_in,
    load_instead_of_rcl,
    needs_compiler,
)
from trt_perception.ros.camera.messages import frame_from_image
from trt_perception.ros.intake import intake as intake_module
from trt_perception.ros.intake import subscriptions
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


def check_rclpy_takes_images(taker):
    """Check that an open taker gave up its intake, said so once, and receives images."""
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


@pytest.mark.parametrize(
    'fault',
    ['wait set', 'array', 'function', 'library', pytest.param('layout', marks=needs_compiler)],
)
def test_rclpy_takes_images_if_rcl_differs_at_the_start(make_taker, monkeypatch, tmp_path, fault):
    if fault == 'wait set':
        monkeypatch.setattr(rcl, '_WaitSetStruct', _Shorter)
    elif fault == 'array':
        monkeypatch.setattr(rcl, 'SerializedArray', _Longer)
    elif fault == 'function':
        monkeypatch.setattr(rcl, '_GIL_RELEASING_CALLS', {'rcl_of_tomorrow': ()})
    elif fault == 'layout':
        macros = CHANGED_LAYOUTS['array has two flags before the allocator']
        load_instead_of_rcl(monkeypatch, compile_stand_in(tmp_path, macros))
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
    check_rclpy_takes_images(taker)


@pytest.mark.parametrize('fault', ['subscription', 'event', 'guard condition', 'address'])
def test_rclpy_takes_images_if_its_handles_differ(make_taker, monkeypatch, fault):
    real = subscriptions._rclpy

    class WithoutAddress:
        """A subscription whose attribute `pointer` has another name."""

        def __init__(self, *arguments):
            self._handle = real.Subscription(*arguments)
            self.destroy_when_not_in_use = self._handle.destroy_when_not_in_use

        def __enter__(self):
            self._handle.__enter__()

        def __exit__(self, *error):
            self._handle.__exit__(*error)

    handles = {'Subscription': real.Subscription, 'EventHandle': real.EventHandle}
    if fault == 'subscription':
        handles['Subscription'] = lambda node, options: None
    elif fault == 'event':
        del handles['EventHandle']
    elif fault == 'guard condition':
        monkeypatch.setattr(intake_module, '_rclpy', SimpleNamespace())
    else:
        handles['Subscription'] = WithoutAddress
        handles['EventHandle'] = lambda source, kind: real.EventHandle(source._handle, kind)
    monkeypatch.setattr(subscriptions, '_rclpy', SimpleNamespace(**handles))
    taker = make_taker()
    taker.open()
    check_rclpy_takes_images(taker)


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
