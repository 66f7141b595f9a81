# SPDX-License-Identifier: Apache-2.0
"""Tests of the choice between installed TensorRT packages, and of errors if none is suitable."""

from __future__ import annotations

import contextlib
import sys

from support.building.tensorrt_standin import StandIn
from trt_perception.errors import CudaError, EngineError
from trt_perception.offline.building.engine import release as tensorrt_release
from trt_perception.offline.building.engine.release import find_tensorrt


def without(monkeypatch, *names):
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)


def test_auto_prefers_tensorrt_to_tensorrt_rtx(monkeypatch):
    for name, release in (('tensorrt', '10.3'), ('tensorrt_rtx', 'RTX 1.7')):
        monkeypatch.setitem(sys.modules, name, StandIn(release, '10.3.0.26'))
    assert find_tensorrt('auto').flavour == 'tensorrt'
    assert find_tensorrt('tensorrt_rtx').flavour == 'tensorrt_rtx'
    without(monkeypatch, 'tensorrt')
    assert find_tensorrt('auto').flavour == 'tensorrt_rtx'


def test_missing_tensorrt_error_mentions_the_packages_to_install(monkeypatch, golden_messages):
    without(monkeypatch, 'tensorrt', 'tensorrt_rtx')
    with golden_messages.raises(EngineError):
        find_tensorrt('auto')
    with contextlib.suppress(EngineError):
        find_tensorrt('tensorrt')


def test_reason_for_an_unusable_gpu_is_reported_if_a_gpu_is_required(monkeypatch, tmp_path):
    def device(_index):
        raise CudaError('cuda-python', 'is missing')

    monkeypatch.setattr(tensorrt_release.gpu, 'Device', device)
    monkeypatch.setattr(tensorrt_release, '_DRIVER_DEVICE', tmp_path / 'nvidiactl')
    for name, release in (('tensorrt', '10.3'), ('tensorrt_rtx', 'RTX 1.7')):
        monkeypatch.setitem(sys.modules, name, StandIn(release, '10.3.0.26'))
    # TensorRT needs a GPU; TensorRT-RTX also builds without one.
    assert find_tensorrt('tensorrt').unusable_gpu_reason == 'cuda-python: is missing'
    assert find_tensorrt('tensorrt_rtx').unusable_gpu_reason == ''
    (tmp_path / 'nvidiactl').touch()
    assert find_tensorrt('tensorrt_rtx').unusable_gpu_reason == 'cuda-python: is missing'


def test_old_tensorrt_release_is_refused(monkeypatch, golden_messages):
    monkeypatch.setitem(sys.modules, 'tensorrt', StandIn('8.6', '8.6.1'))
    with golden_messages.raises(EngineError):
        find_tensorrt('tensorrt')
