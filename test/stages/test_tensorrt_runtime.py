# SPDX-License-Identifier: Apache-2.0
"""Tests of calls to TensorRT's runtime, with stand-ins: profiles, formats, compiled kernels.

test_gpu_engines and test_gpu_profiles check on a GPU that TensorRT computes the right values.
"""

from __future__ import annotations

import logging
import sys

import pytest

from support.gpu import fake_cuda
from support.gpu.cuda_recorder import Recorder
from support.gpu.fake_tensorrt import (
    MODEL_PARAMETERS,
    PLAN,
    FakeTensorRt,
    FakeTensorRtRtx,
    Specialization,
    TensorFormat,
)
from support.models.open_model import open_by_parameters
from trt_perception.errors import EngineError
from trt_perception.files.cache import cache_folder
from trt_perception.gpu import bindings
from trt_perception.parameters.values import ParameterValues

DEPTH = 3
DYNAMIC_TENSORS = {
    'inputs': (('images', (1, 3, -1, -1), 'FLOAT'),),
    'outputs': (('output', (1, 7, -1), 'FLOAT'),),
}


def shapes(*sizes):
    """Return a profile from the (width, height) of minimum, optimum and maximum."""
    return tuple((1, 3, height, width) for width, height in sizes)


RANGES = (shapes((64, 48), (64, 48), (128, 96)), shapes((128, 96), (192, 144), (256, 192)))
FIXED = (shapes((64, 48), (64, 48), (64, 48)), shapes((128, 96), (128, 96), (128, 96)))


def warnings_of(caplog):
    """Return the logged warnings and errors, without other log messages."""
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def open_with_standin(monkeypatch, tmp_path):
    """Return a function that installs a stand-in for TensorRT and opens its engine."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))

    def open_engine(module, size=(64, 48), cameras=1):
        recorder = Recorder(fake_cuda.bindings())
        flavour = 'tensorrt_rtx' if isinstance(module, FakeTensorRtRtx) else 'tensorrt'
        monkeypatch.setattr(bindings, 'load_bindings', lambda: recorder.modules)
        monkeypatch.setitem(sys.modules, flavour, module)
        path = tmp_path / 'tiny.engine'
        path.write_bytes((b'ftrt' if flavour == 'tensorrt' else b'vtrt') + PLAN[4:])
        parameters = ParameterValues(
            engine_path=str(path),
            pipeline_depth=DEPTH,
            model_input_size=size,
            cameras=tuple(f'camera{index}' for index in range(cameras)),
            **MODEL_PARAMETERS,
        )
        open_by_parameters(parameters).close()
        return recorder

    return open_engine


@pytest.mark.parametrize(
    ('profiles', 'size', 'expected'),
    [
        (FIXED, (64, 48), 0),
        (FIXED, (128, 96), 1),
        (RANGES, (64, 48), 0),
        (RANGES, (128, 96), 0),
        (RANGES, (136, 96), 1),
        (RANGES, (256, 192), 1),
    ],
)
def test_first_profile_that_includes_the_size_is_selected(
    open_with_standin, profiles, size, expected
):
    module = FakeTensorRt(profiles=profiles, **DYNAMIC_TENSORS)
    open_with_standin(module, size)
    assert module.arguments['set_optimization_profile_async'][0] == expected
    assert module.arguments['set_input_shape'] == ('images', (1, 3, size[1], size[0]))
    assert module.calls.count('set_input_shape') == DEPTH


def test_size_outside_all_profiles_is_refused(open_with_standin, golden_messages):
    with golden_messages.raises(EngineError):
        open_with_standin(FakeTensorRt(profiles=RANGES, **DYNAMIC_TENSORS), (264, 192))


def batch_profile(batch):
    return ((batch, 3, 48, 64),) * 3


@pytest.mark.parametrize(
    ('cameras', 'expected'), [(16, [1, 4, 8]), (5, [1, 4, 8]), (4, [1, 4]), (1, [1]), (0, [1])]
)
def test_each_batch_size_has_a_context_and_the_contexts_of_a_slot_share_memory(
    open_with_standin, cameras, expected
):
    module = FakeTensorRtRtx(
        profiles=[batch_profile(size) for size in (8, 1, 4)],
        inputs=(('images', (-1, 3, 48, 64), 'FLOAT'),),
        outputs=(('output', (-1, 7, 4), 'FLOAT'),),
    )
    recorder = open_with_standin(module, cameras=cameras)
    sizes = [(profile, shape[0]) for profile, shape, _ in module.contexts]
    assert sizes == [((8, 1, 4).index(size), size) for size in expected] * DEPTH
    memory = [address for *_, address in module.contexts]
    count = len(expected)
    assert memory == [address for address in memory[::count] for _ in range(count)]
    assert len(set(memory)) == DEPTH
    assert recorder.kinds() == []
    assert list(module.living) == []


@pytest.mark.parametrize('sizes', [(2, 8), (8, 2), (1, 4), (4,)])
@pytest.mark.parametrize('reports', [False, True])
def test_open_batch_is_found_from_the_profiles(open_with_standin, sizes, reports):
    module = FakeTensorRt(
        profiles=[batch_profile(size) for size in sizes],
        inputs=(('images', (-1, 3, 48, 64), 'FLOAT'),),
        outputs=(('output', (-1, 7, 4), 'FLOAT'),),
    )
    module.reports_profile = reports
    open_with_standin(module, cameras=8)
    assert [shape[0] for _, shape, _ in module.contexts][-len(sizes) :] == sorted(sizes)


def test_model_with_a_fixed_inner_batch_of_1_runs_single_images(
    open_with_standin, caplog, golden_messages
):
    module = FakeTensorRt(
        profiles=[tuple((size, 3, 48, 64) for size in (1, 2, 4))],
        inputs=(('images', (-1, 3, 48, 64), 'FLOAT'),),
        outputs=(('output', (1, 7, 4), 'FLOAT'),),
    )
    open_with_standin(module, cameras=4)
    assert [shape[0] for _, shape, _ in module.contexts] == [1, 2] + [1] * (DEPTH - 1)
    (message,) = warnings_of(caplog)
    golden_messages.add(message)


def test_tensor_format_of_each_profile_is_checked_without_warnings(
    open_with_standin, caplog, golden_messages
):
    open_with_standin(FakeTensorRt(profiles=FIXED, **DYNAMIC_TENSORS))
    assert not warnings_of(caplog)
    for profile in (0, 1):
        module = FakeTensorRt(profiles=FIXED, **DYNAMIC_TENSORS)
        module.formats = {profile: TensorFormat.CHW32}
        with golden_messages.raises(EngineError):
            open_with_standin(module)


def test_failing_engine_with_open_shapes_is_refused_with_a_fix(open_with_standin, golden_messages):
    module = FakeTensorRt('execute_async_v3', profiles=RANGES, **DYNAMIC_TENSORS)
    with golden_messages.raises(EngineError):
        open_with_standin(module, (136, 96))
    with golden_messages.raises(EngineError):
        open_with_standin(FakeTensorRt('execute_async_v3', profiles=FIXED, **DYNAMIC_TENSORS))


def test_kernels_are_compiled_before_the_graph_capture(open_with_standin):
    module = FakeTensorRtRtx()
    open_with_standin(module)
    config = module.config
    assert config.dynamic_shapes_kernel_specialization_strategy == Specialization.EAGER
    assert config.cuda_graph_strategy == module.CudaGraphStrategy.DISABLED
    assert config.allocation == module.ExecutionContextAllocationStrategy.USER_MANAGED


def test_second_start_compiles_no_kernels(open_with_standin, caplog):
    first, second = FakeTensorRtRtx(), FakeTensorRtRtx()
    open_with_standin(first)
    assert first.compiled == 1  # the contexts share the compiled kernels
    open_with_standin(second)
    assert second.compiled == 0
    assert not warnings_of(caplog)


def test_rejected_runtime_cache_is_replaced(open_with_standin, caplog, golden_messages):
    open_with_standin(FakeTensorRtRtx())
    module = FakeTensorRtRtx(accepts=False)  # simulates a new driver
    open_with_standin(module)
    assert module.compiled == 1
    (message,) = warnings_of(caplog)
    golden_messages.add(message)


def test_each_release_has_its_own_runtime_cache(open_with_standin):
    open_with_standin(FakeTensorRtRtx())
    module = FakeTensorRtRtx()
    module.__version__ = '1.7.1.116'
    open_with_standin(module)
    assert module.compiled == 1
    assert len(list(cache_folder('runtime').iterdir())) == 2


@pytest.mark.parametrize('kind', ['kernels', 'runtime'])
def test_damaged_cache_is_replaced_once(open_with_standin, caplog, kind, golden_messages):
    def compilations():
        module = FakeTensorRtRtx()
        return open_with_standin(module).calls.count('nvrtcCompileProgram'), module.compiled

    assert compilations() == (1, 1)
    assert compilations() == (0, 0)
    (path,) = cache_folder(kind).iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    assert compilations() == ((1, 0) if kind == 'kernels' else (0, 1))
    (message,) = warnings_of(caplog)
    golden_messages.add(message.replace(path.name, 'CACHE'))
    assert compilations() == (0, 0)
