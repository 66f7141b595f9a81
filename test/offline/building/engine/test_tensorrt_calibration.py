# SPDX-License-Identifier: Apache-2.0
"""Tests of TensorRT's own INT8 calibration: uploaded data, cached ranges, callback errors."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading

import numpy as np
import pytest

from support.building.standin_builds import ORIN_GPU, build, make_stand_in
from support.waiting import DEADLINE_S
from trt_perception.errors import ConfigError, CudaError, EngineError, WriteError
from trt_perception.offline.building.engine import calibrator
from trt_perception.offline.building.engine.build import build_plan
from trt_perception.offline.building.engine.calibrator import CalibrationData
from trt_perception.offline.building.engine.release import TensorRt
from trt_perception.offline.building.options.sources import load_options


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


class Memory:
    """Stand-in for GPU or page-locked memory, which counts its live objects."""

    live = 0

    def __init__(self, size):
        self.size = size
        self.array = np.zeros(size, np.uint8)
        self.pointer = id(self)
        Memory.live += 1
        Memory.last = self

    def close(self):
        Memory.live -= 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class NoStream:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def synchronize(self):
        pass


@pytest.fixture
def no_gpu_memory(monkeypatch):
    """Replace GPU memory by stand-ins, and return the list of uploaded arrays."""
    copied = []
    monkeypatch.setattr(Memory, 'live', 0)
    monkeypatch.setattr(calibrator, 'DeviceBuffer', Memory)
    monkeypatch.setattr(calibrator, 'PinnedBuffer', Memory)
    monkeypatch.setattr(calibrator, 'Stream', NoStream)

    def copy(target, source, size, stream):
        copied.append(Memory.last.array[:size].view(np.float32).copy())

    monkeypatch.setattr(calibrator, 'copy_async', copy)
    return copied


def data(values=(1, 2, 3), cache_dir=None, identity='model and images', shape=(1, 3, 8, 8)):
    def batches():
        return iter([np.full(shape, value, np.float32) for value in values])

    return CalibrationData('images', (1, 3, 8, 8), batches, identity, cache_dir)


def calibrating(module, cache=b'ranges', plan=True):
    """Return a build function that calls the calibrator as TensorRT does."""

    def build_with(monitor, logger):
        (calibrator,) = module.arguments_of_calls('IBuilderConfig.int8_calibrator =')[-1]
        assert calibrator.get_batch_size() == 1
        cached = calibrator.read_calibration_cache()
        if cached is None:
            while calibrator.get_batch(['images']):
                pass
            calibrator.write_calibration_cache(memoryview(cache))
        return module.plan() if plan else None

    return build_with


IMPLICIT = {'precision': 'int8', 'calibration_tool': 'tensorrt'}


@pytest.mark.parametrize('version', ['10.3.0.26', '10.7.0.23', '10.13.3.9', '10.16.1.11'])
@pytest.mark.parametrize('method', ['entropy', 'minmax'])
def test_tensorrt_up_to_10_calibrates_with_the_images(version, method, no_gpu_memory):
    module, tensorrt = make_stand_in(version)
    module.build = calibrating(module)
    calibration = dataclasses.replace(data(), warnings=['images are few'])
    built = build(tensorrt, calibration=calibration, calibration_method=method, **IMPLICIT)
    assert 'images are few' in built.remarks
    assert not built.strongly_typed
    assert module.builder_flags() == {'BuilderFlag.INT8', 'BuilderFlag.FP16'}
    assert [values[0] for values in no_gpu_memory] == [1, 2, 3]
    assert all(values.size == 3 * 8 * 8 for values in no_gpu_memory)
    assert built.calibration_cache_status == 'off'
    assert Memory.live == 0
    assert module.arguments_of_calls('IOptimizationProfile.set_shape') == [
        ('images', (1, 3, 8, 8), (1, 3, 8, 8), (1, 3, 8, 8))
    ]
    assert len(module.arguments_of_calls('IBuilderConfig.set_calibration_profile')) == 1


def test_ranges_are_reused_only_for_equal_inputs(no_gpu_memory, tmp_path):
    module, tensorrt = make_stand_in('10.3.0.26')
    module.build = calibrating(module)

    def cache(method='entropy', tensorrt=tensorrt, **given):
        calibration = data(cache_dir=tmp_path / 'ranges', **given)
        built = build(tensorrt, calibration=calibration, calibration_method=method, **IMPLICIT)
        return built.calibration_cache_status.split(':')[0]

    assert cache() == 'not reused'
    assert cache() == 'reused'
    assert len(no_gpu_memory) == 3
    assert cache(identity='other images') == 'not reused'
    assert cache(method='minmax') == 'not reused'
    newer = TensorRt(module, 'tensorrt', '10.3.0.30', ORIN_GPU)
    assert cache(tensorrt=newer) == 'not reused'
    for path in (tmp_path / 'ranges').iterdir():
        path.write_bytes(b'')
    assert cache() == 'not reused'


def test_cache_write_error_does_not_fail_the_build(no_gpu_memory, tmp_path):
    module, tensorrt = make_stand_in('10.3.0.26')
    module.build = calibrating(module)
    (tmp_path / 'file').write_text('')
    calibration = data(cache_dir=tmp_path / 'file' / 'ranges')
    assert (
        'not saved'
        in build(tensorrt, calibration=calibration, **IMPLICIT).calibration_cache_status
    )


def test_error_of_an_image_is_raised_after_the_build(no_gpu_memory, tmp_path, golden_messages):
    module, tensorrt = make_stand_in('10.3.0.26')
    module.build = calibrating(module)

    def batches():
        yield np.zeros((1, 3, 8, 8), np.float32)
        raise ConfigError('a.png', 'cannot be decoded')

    calibration = CalibrationData('images', (1, 3, 8, 8), batches, '', tmp_path / 'ranges')
    with golden_messages.raises(ConfigError):
        build(tensorrt, calibration=calibration, **IMPLICIT)
    assert not (tmp_path / 'ranges').exists()
    assert Memory.live == 0


@pytest.mark.parametrize(
    'raised',
    [
        *(
            ConfigError('a.png', 'is bad'),
            WriteError('a.png', 'no room'),
            OSError(5, 'I/O'),
            ValueError('a bug'),
        ),
        *(
            MemoryError(),
            KeyboardInterrupt(),
            StopIteration('within'),
            CudaError('cudaFree', 'lost'),
        ),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize('callback', ['get_batch', 'read_calibration_cache', 'write'])
def test_callbacks_raise_no_exception_into_tensorrt(
    no_gpu_memory, monkeypatch, tmp_path, raised, callback
):
    """An exception in C++ would end the process, so it is raised after TensorRT has stopped."""
    module, tensorrt = make_stand_in('10.3.0.26')
    seen = []

    def fail(*_):
        raise raised

    def build_with(monitor, logger):
        (calibrator,) = module.arguments_of_calls('IBuilderConfig.int8_calibrator =')[-1]
        with contextlib.suppress(BaseException):  # such an exception would end the process in C++
            seen.append(calibrator.read_calibration_cache())
            seen.append(bool(calibrator.get_batch(['images'])))
            seen.append(bool(calibrator.get_batch(['images'])))
            seen.append(calibrator.write_calibration_cache(memoryview(b'ranges')))
            seen.append(monitor.step_complete('build', 0))
        return module.plan()

    module.build = build_with
    names = {'get_batch': 'PinnedBuffer', 'read_calibration_cache': '_read_cache'}
    name = names.get(callback, 'tensors_without_scale')
    monkeypatch.setattr(calibrator, name, fail)
    with pytest.raises(type(raised)) as caught:
        build(tensorrt, calibration=data(cache_dir=tmp_path / 'ranges'), **IMPLICIT)
    assert caught.value is raised
    assert seen == [None, callback == 'write', callback == 'write', None, False]
    assert Memory.live == 0
    assert not (tmp_path / 'ranges').exists()


def test_cache_file_replaced_by_a_folder_does_not_fail_the_build(no_gpu_memory, tmp_path):
    module, tensorrt = make_stand_in('10.3.0.26')
    module.build = calibrating(module)
    calibration = data(cache_dir=tmp_path / 'ranges')
    assert build(tensorrt, calibration=calibration, **IMPLICIT)
    [kept] = calibration.cache_dir.iterdir()
    kept.unlink()
    kept.mkdir()
    built = build(tensorrt, calibration=calibration, **IMPLICIT)
    assert 'not saved' in built.calibration_cache_status


def test_batches_of_a_wrong_shape_are_refused(no_gpu_memory, golden_messages):
    module, tensorrt = make_stand_in('10.3.0.26')
    module.build = calibrating(module)
    with golden_messages.raises(ConfigError):
        build(tensorrt, calibration=data(shape=(1, 3, 4, 4)), **IMPLICIT)


def test_auxiliary_inputs_are_uploaded_with_each_batch(no_gpu_memory):
    module, tensorrt = make_stand_in('10.3.0.26')
    module.other_inputs = {'orig_target_sizes': (1, 2)}
    seen = []

    def build_with(monitor, logger):
        (calibrator,) = module.arguments_of_calls('IBuilderConfig.int8_calibrator =')[-1]
        while places := calibrator.get_batch(['orig_target_sizes', 'images']):
            seen.append(len(set(places)))
        calibrator.write_calibration_cache(memoryview(b'ranges'))
        return module.plan()

    module.build = build_with
    sizes = np.array([[8, 8]], np.int64)
    calibration = dataclasses.replace(data(values=(1, 2)), constants={'orig_target_sizes': sizes})
    build(tensorrt, calibration=calibration, **IMPLICIT)
    assert seen == [2, 2]
    assert [len(values) for values in no_gpu_memory] == [4, 192, 4, 192]
    assert no_gpu_memory[2].view(np.int64).tolist() == [8, 8]
    assert (no_gpu_memory[3] == 2).all()
    assert Memory.live == 0


def calibration_cache(**scales):
    """Return a cache in TensorRT's format, with scales as hexadecimal digits of float32."""
    lines = [f'{name}: {np.float32(value).view(np.uint32):x}' for name, value in scales.items()]
    return '\n'.join(['TRT-100300-EntropyCalibration2', *lines, '']).encode()


@pytest.mark.parametrize('scale', [0.0, 1e-42, np.nan, np.inf, -1.0])
def test_ranges_are_not_cached_if_a_tensor_has_no_valid_scale(
    no_gpu_memory, tmp_path, scale, golden_messages
):
    module, tensorrt = make_stand_in('10.3.0.26')
    good = calibration_cache(images=0.0078, **{'/body/Conv_output_0': 0.031})
    poor = calibration_cache(images=0.0078, **{'/body/Conv: output': scale})

    def built(cache, plan=True):
        no_gpu_memory.clear()
        module.build = calibrating(module, cache, plan)
        return build(tensorrt, calibration=data(cache_dir=tmp_path / 'ranges'), **IMPLICIT)

    first = built(poor)
    (told,) = [text for text in first.remarks if '/body/Conv' in text]
    golden_messages.add(told)
    assert 'not saved' in first.calibration_cache_status
    assert not (tmp_path / 'ranges').exists()
    with golden_messages.raises(EngineError):
        built(poor, plan=False)
    second = built(good)
    assert '/body/Conv' not in ''.join(second.remarks)
    assert built(good).calibration_cache_status.startswith('reused')
    # Older releases of this package stored caches without scales. Such a cache is not used.
    (kept,) = (tmp_path / 'ranges').iterdir()
    kept.write_bytes(poor)
    assert built(good).calibration_cache_status.startswith('not reused')
    assert len(no_gpu_memory) == 3
    assert kept.read_bytes() == good


def test_calibration_data_are_required_only_with_tensorrts_tool(golden_messages):
    _, tensorrt = make_stand_in('10.3.0.26')
    for given, calibration in ((IMPLICIT, None), ({'precision': 'fp16'}, data())):
        with golden_messages.raises(ConfigError):
            build(tensorrt, calibration=calibration, **given)


def test_ctrl_c_during_calibration_stops_it_and_keeps_no_ranges(no_gpu_memory, tmp_path):
    module, tensorrt = make_stand_in('10.3.0.26')
    module.build = calibrating(module)
    started = threading.Event()

    def batches():
        while True:
            started.set()
            yield np.zeros((1, 3, 8, 8), np.float32)

    calibration = CalibrationData('images', (1, 3, 8, 8), batches, '', tmp_path / 'ranges')
    options = load_options(None, {'onnx': 'model.onnx', **IMPLICIT})

    def press():
        started.wait(DEADLINE_S)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        build_plan(b'model', options, tensorrt, calibration=calibration)
    assert not (tmp_path / 'ranges').exists()
    assert Memory.live == 0
