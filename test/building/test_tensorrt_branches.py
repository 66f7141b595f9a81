"""What is called on releases that are not installed: by a stand-in that refuses foreign names."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import os
import signal
import sys
import threading
import weakref

import numpy as np
import pytest
from tensorrt_standin import StandIn

from trt_perception.building.engine import calibrator
from trt_perception.building.engine import release as tensorrt_release
from trt_perception.building.engine.build import build_plan
from trt_perception.building.engine.calibrator import CalibrationFeed
from trt_perception.building.engine.release import BuildGpu
from trt_perception.building.engine.release import TensorRt
from trt_perception.building.engine.release import find_tensorrt
from trt_perception.building.options.sources import load_options
from trt_perception.errors import ConfigError
from trt_perception.errors import CudaError
from trt_perception.errors import EngineError
from trt_perception.errors import WriteError
from trt_perception.stages.tensorrt_log import TensorRtLog

# Version, and the release whose names it has; 10.11 is the last that is weakly typed.
WEAK = {'10.3.0.26': '10.3', '10.7.0.23': '10.7', '10.11.0.33': '10.7'}
STRONG = {'10.12.0.36': '10.12', '10.13.3.9': '10.13', '10.16.1.11': '10.16'}
STRONG |= {'11.0.0.114': '11.0', '11.4.0.106': '11.4'}
RTX = {'1.4.0.76': 'RTX 1.4', '1.7.1.116': 'RTX 1.7'}
ALL = {**WEAK, **STRONG, **RTX}
RELEASES = {**ALL, '1.6.0.1': 'RTX 1.6'}
ORIN = BuildGpu('Orin', '8.7', {'driver': '12.6', 'runtime': '12.6'})


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


def stand_in(version, gpu=ORIN):
    module = StandIn(RELEASES[version], version)
    return module, TensorRt(module, module.flavour, version, gpu)


def build(tensorrt, *, fp32_nodes=(), calibration=None, progress=lambda *_: None, **given):
    options = load_options(None, {'onnx': 'model.onnx', **given})
    return build_plan(
        b'model',
        options,
        tensorrt,
        fp32_nodes=fp32_nodes,
        calibration=calibration,
        progress=progress,
    )


def refusal(tensorrt, **given):
    with pytest.raises(EngineError) as caught:
        build(tensorrt, **given)
    return str(caught.value)


@pytest.mark.parametrize('version', WEAK)
@pytest.mark.parametrize(
    ('precision', 'flags'),
    [
        ('fp32', set()),
        ('tf32', {'BuilderFlag.TF32'}),
        ('fp16', {'BuilderFlag.FP16'}),
        ('bf16', {'BuilderFlag.BF16'}),
        ('int8', {'BuilderFlag.INT8', 'BuilderFlag.FP16'}),
    ],
)
def test_up_to_10_11_tensorrt_chooses_among_the_precisions_allowed(version, precision, flags):
    module, tensorrt = stand_in(version)
    built = build(tensorrt, precision=precision)
    assert module.flags() == flags
    assert module.called('created network') == [('',)]
    assert not built.strongly_typed
    assert module.called('IBuilderConfig.clear_flag') == (
        [] if precision == 'tf32' else [(module.BuilderFlag.TF32,)]
    )


@pytest.mark.parametrize('version', {**STRONG, **RTX})
@pytest.mark.parametrize('precision', ['fp32', 'tf32', 'fp16', 'bf16', 'int8'])
def test_elsewhere_the_model_says_the_precision(version, precision):
    if (version, precision) == ('1.4.0.76', 'int8'):
        pytest.skip('refused, see below')
    module, tensorrt = stand_in(version)
    built = build(tensorrt, precision=precision)
    assert module.flags() == ({'BuilderFlag.TF32'} if precision == 'tf32' else set())
    assert module.called('created network') == [('STRONGLY_TYPED',)]
    assert built.strongly_typed


def test_enumerations_have_other_numbers_in_other_releases():
    numbers = {
        int(StandIn(release, '1.0').BuilderFlag.VERSION_COMPATIBLE)
        for release in ('10.3', '10.7', '10.13', '11.4', 'RTX 1.7')
    }
    assert len(numbers) > 1


def test_the_stand_in_refuses_what_a_release_lacks():
    with pytest.raises(AttributeError, match=r'11\.0 has no IInt8EntropyCalibrator2'):
        _ = StandIn('11.0', '11.0').IInt8EntropyCalibrator2
    assert not hasattr(StandIn('11.0', '11.0').BuilderFlag, 'FP16')
    config = StandIn('10.13', '10.13').make_Builder(None).create_builder_config()
    with pytest.raises(AttributeError, match='num_compute_capabilities'):
        config.num_compute_capabilities = 1


@pytest.mark.parametrize('version', ALL)
def test_a_plan_says_what_built_it(version):
    module, tensorrt = stand_in(version)
    module.layers = [('a', '', 'FLOAT')] * 3
    built = build(tensorrt)
    assert (built.flavour, built.version, built.gpu) == (module.flavour, version, ORIN)
    assert built.content == module.plan()
    assert built.layers == 3
    assert [(t.name, t.shape, t.dtype) for t in built.inputs] == [
        ('images', (1, 3, 8, 8), 'float32')
    ]
    assert built.seconds >= 0


@pytest.mark.parametrize('version', WEAK)
def test_layers_of_named_nodes_stay_in_fp32(version):
    module, tensorrt = stand_in(version)
    module.layers = [
        ('/head/Softmax', '[ONNX Layer: /head/Softmax]', 'FLOAT'),
        ('/head/Softmax_2', '[ONNX Layer: /head/Softmax]', 'HALF'),
        ('/head/Softmax_shape', '[ONNX Layer: /head/Softmax]', 'INT64'),
        ('/stem/Conv', '[ONNX Layer: /stem/Conv]', 'FLOAT'),
        ('/plain', '', 'FLOAT'),
    ]
    build(tensorrt, precision='int8', fp32_nodes={'/head/Softmax', '/plain'})
    assert module.called('ILayer.precision =') == [(module.DataType.FLOAT,)] * 3
    assert module.called('ILayer.set_output_type') == [(0, module.DataType.FLOAT)] * 3
    assert 'BuilderFlag.OBEY_PRECISION_CONSTRAINTS' in module.flags()


@pytest.mark.parametrize('version', {**STRONG, **RTX})
def test_where_types_decide_layers_are_left_alone(version):
    module, tensorrt = stand_in(version)
    module.layers = [('/head', '[ONNX Layer: /head]', 'FLOAT')]
    assert 'OBEY_PRECISION_CONSTRAINTS' not in build(tensorrt, fp32_nodes={'/head'}).flags
    assert not [name for name, _ in module.calls if name.startswith('ILayer')]


@pytest.mark.parametrize('version', {**WEAK, **STRONG})
def test_every_option_of_the_builder(version, tmp_path):
    module, tensorrt = stand_in(version)
    module.dla_cores = 2
    plugin = tmp_path / 'plugin.so'
    plugin.write_text('library')
    build(
        tensorrt,
        sparsity=True,
        refit=True,
        version_compatible=True,
        gpu_fallback=True,
        dla_core=1,
        workspace_mib=64,
        optimization_level=5,
        hardware_compatibility='ampere_plus',
        profiling_verbosity='layer_names_only',
        plugins=[str(plugin)],
        shapes=['1x3x8x8'],
    )
    expected = {'SPARSE_WEIGHTS', 'REFIT', 'VERSION_COMPATIBLE', 'GPU_FALLBACK'}
    expected |= {'FP16'} if version in WEAK else set()
    assert module.flags() == {f'BuilderFlag.{name}' for name in expected}
    assert module.called('IBuilderConfig.set_memory_pool_limit') == [
        (module.MemoryPoolType.WORKSPACE, 64 * 1024 * 1024)
    ]
    for name, value in (
        ('builder_optimization_level', 5),
        ('hardware_compatibility_level', module.HardwareCompatibilityLevel.AMPERE_PLUS),
        ('profiling_verbosity', module.ProfilingVerbosity.LAYER_NAMES_ONLY),
        ('default_device_type', module.DeviceType.DLA),
        ('DLA_core', 1),
    ):
        assert module.called(f'IBuilderConfig.{name} =') == [(value,)]
    assert module.called('IPluginRegistry.load_library') == [(str(plugin),)]
    assert module.called('init_libnvinfer_plugins')


@pytest.mark.parametrize('version', ALL)
def test_what_is_not_asked_for_is_not_touched(version):
    module, tensorrt = stand_in(version)
    build(tensorrt, precision='fp32', timing_cache='off')
    config = {name for name, _ in module.calls if name.startswith('IBuilderConfig')}
    assert config == {
        'IBuilderConfig.clear_flag',
        'IBuilderConfig.profiling_verbosity =',
        'IBuilderConfig.progress_monitor =',
    }


@pytest.mark.parametrize('version', ALL)
def test_profiles(version):
    module, tensorrt = stand_in(version)
    module.shape = (-1, 3, -1, -1)
    built = build(tensorrt, shapes=['1x3x8x8', '1x3x8x8:2x3x16x16:4x3x32x32'])
    assert [str(profile) for profile in built.profiles] == [
        '1x3x8x8',
        '1x3x8x8:2x3x16x16:4x3x32x32',
    ]
    assert module.called('IOptimizationProfile.set_shape') == [
        ('images', (1, 3, 8, 8), (1, 3, 8, 8), (1, 3, 8, 8)),
        ('images', (1, 3, 8, 8), (2, 3, 16, 16), (4, 3, 32, 32)),
    ]
    assert len(module.called('IBuilderConfig.add_optimization_profile')) == 2


def test_shapes_that_tensorrt_itself_refuses():
    module, tensorrt = stand_in('10.3.0.26')
    module.shape = (-1, 3, 8, 8)
    module.refuse_profiles = True
    assert 'refuses the shapes 2x3x8x8' in refusal(tensorrt, batch=2)


def test_open_sides_beside_the_image_follow_it():
    module, tensorrt = stand_in('10.3.0.26')
    module.shape = (-1, 3, -1, -1)
    module.other_inputs = {'orig_target_sizes': (-1, 2), 'pixel_mask': (-1, -1, -1)}
    build(tensorrt, shapes=['1x3x8x8:2x3x16x16:4x3x32x16'])
    assert module.called('IOptimizationProfile.set_shape') == [
        ('images', (1, 3, 8, 8), (2, 3, 16, 16), (4, 3, 32, 16)),
        ('orig_target_sizes', (1, 2), (2, 2), (4, 2)),
        ('pixel_mask', (1, 8, 8), (2, 16, 16), (4, 32, 16)),
    ]
    # Also where the image's own are closed.
    module, tensorrt = stand_in('10.3.0.26')
    module.other_inputs = {'orig_target_sizes': (-1, 2)}
    assert build(tensorrt).profiles == ()
    assert module.called('IOptimizationProfile.set_shape') == [
        ('images', *((1, 3, 8, 8),) * 3),
        ('orig_target_sizes', *((1, 2),) * 3),
    ]


def test_inputs_of_which_nothing_is_known_are_refused():
    module, tensorrt = stand_in('10.3.0.26')
    module.other_inputs = {'sizes': (1, 2)}
    assert 'one image input' in refusal(tensorrt)


@pytest.mark.parametrize('version', RTX)
def test_targets_of_tensorrt_rtx(version):
    module, tensorrt = stand_in(version, gpu=None)
    build(tensorrt, compute_capabilities=['8.6', '12.0'])
    assert module.called('IBuilderConfig.num_compute_capabilities =') == [(2,)]
    assert module.called('IBuilderConfig.set_compute_capability') == [
        (module.ComputeCapability.SM86, 0),
        (module.ComputeCapability.SM120, 1),
    ]


@pytest.mark.parametrize(
    ('version', 'given', 'reason'),
    [
        ('10.7.0.23', {'hardware_compatibility': 'same_compute_capability'}, 'came with 10.12'),
        ('10.7.0.23', {'compute_capabilities': ['8.6']}, 'for TensorRT-RTX'),
        ('10.3.0.26', {'precision': 'fp8'}, 'compute capability 8.9'),
        ('10.3.0.26', {'dla_core': 0}, 'finds 0 DLA cores'),
        (
            '10.3.0.26',
            {'plugins': ['none.so']},
            '--plugins none.so: cannot be opened',
        ),
        ('11.4.0.106', {'precision': 'int8', 'calibration_tool': 'tensorrt'}, 'onnxruntime'),
        (
            '10.3.0.26',
            {
                'precision': 'int8',
                'calibration_tool': 'tensorrt',
                'calibration_method': 'percentile',
            },
            'entropy or minmax',
        ),
        (
            '10.3.0.26',
            {'precision': 'int8', 'calibration_tool': 'tensorrt', 'dla_core': 0},
            'give --calibration-method entropy',
        ),
        ('1.7.1.116', {'hardware_compatibility': 'ampere_plus'}, '--compute-capabilities'),
        ('1.7.1.116', {'version_compatible': True}, 'release that built them'),
        ('1.7.1.116', {'timing_cache': 'times'}, 'measures no kernels'),
        ('1.7.1.116', {'dla_core': 0}, 'on GPUs only'),
        ('1.4.0.76', {'precision': 'int8'}, 'use 1.7 or newer'),
        ('1.6.0.1', {'precision': 'int8'}, 'use 1.7 or newer'),
        ('1.4.0.76', {'compute_capabilities': ['12.1']}, 'builds for 7.5, 8.0, 8.6, 8.9, 12.0'),
        ('1.7.1.116', {'compute_capabilities': ['8.7']}, '8.9, 12.0, 12.1'),
        (
            '1.7.1.116',
            {'precision': 'bf16', 'compute_capabilities': ['7.5', '8.6']},
            'needs compute capability 8.0 or newer (got 7.5)',
        ),
        (
            '1.7.1.116',
            {'precision': 'fp8', 'compute_capabilities': ['8.6', '8.9']},
            'needs compute capability 8.9 or newer (got 8.6)',
        ),
    ],
)
def test_what_a_release_cannot_do_is_refused_with_its_reason(version, given, reason):
    module, tensorrt = stand_in(version)
    found = refusal(tensorrt, **given)
    assert reason in found
    assert not module.called('Builder.build_serialized_network')


def test_every_refusal_is_told_at_once():
    found = refusal(stand_in('1.4.0.76')[1], version_compatible=True, precision='int8')
    assert len(found.splitlines()) == 2


def test_refit_needs_a_gpu_with_tensorrt_rtx():
    assert '--refit' in refusal(stand_in('1.7.1.116', gpu=None)[1], refit=True)
    assert build(stand_in('1.7.1.116')[1], refit=True).flags == ('REFIT',)


def test_the_release_that_lacks_one_target_takes_the_next():
    module, tensorrt = stand_in('1.7.1.116')
    build(tensorrt, compute_capabilities=['12.1'])
    assert module.called('IBuilderConfig.set_compute_capability') == [
        (module.ComputeCapability.SM121, 0)
    ]


@pytest.mark.parametrize('version', {**WEAK, **STRONG})
def test_the_timing_cache_is_kept_from_build_to_build(version):
    module, tensorrt = stand_in(version)
    assert build(tensorrt).timing_cache == 'auto'
    build(tensorrt)
    times = f'times of {module.release}'.encode()
    assert module.called('IBuilderConfig.create_timing_cache') == [(b'',), (times,)]
    # Another GPU has times of its own.
    other = TensorRt(module, module.flavour, version, BuildGpu('Other', '8.7', ORIN.cuda))
    build(other)
    assert module.called('IBuilderConfig.create_timing_cache')[-1] == (b'',)


def test_a_timing_cache_in_a_file(tmp_path):
    module, tensorrt = stand_in('10.3.0.26')
    path = tmp_path / 'times'
    assert build(tensorrt, timing_cache=str(path)).timing_cache == str(path)
    assert path.read_bytes() == b'times of 10.3'
    build(tensorrt, timing_cache=str(path))
    assert module.called('IBuilderConfig.create_timing_cache')[-1] == (b'times of 10.3',)


def test_a_timing_cache_that_does_not_fit_is_made_again(tmp_path):
    module, tensorrt = stand_in('10.3.0.26')
    path = tmp_path / 'times'
    path.write_bytes(b'damaged')
    module.cache_accepted = False
    built = build(tensorrt, timing_cache=str(path))
    assert any('made again' in warning for warning in built.warnings)
    assert module.called('IBuilderConfig.create_timing_cache') == [(b'damaged',), (b'',)]


def test_a_timing_cache_that_cannot_be_written_costs_no_engine(tmp_path):
    _, tensorrt = stand_in('10.3.0.26')
    built = build(tensorrt, timing_cache=str(tmp_path / 'none' / 'times'))
    assert built.content
    assert any('not a folder' in warning for warning in built.warnings)


@pytest.mark.parametrize('version', RTX)
def test_tensorrt_rtx_has_no_timing_cache(version):
    module, tensorrt = stand_in(version)
    assert build(tensorrt).timing_cache == ''
    assert not [name for name, _ in module.calls if 'timing_cache' in name]


@pytest.mark.parametrize('version', ALL)
def test_unsupported_operators_are_all_named_with_their_places(version):
    module, tensorrt = stand_in(version)
    module.parse_errors = [
        ('/a/Fancy', 'Fancy', 'INVALID_NODE', 'creator && "Plugin not found, are the …?"'),
        ('/b/Fancy', 'Fancy', 'INTERNAL_ERROR', 'Op type Fancy is not supported in TensorRT.'),
        ('/c/Det', 'Det', 'UNSUPPORTED_NODE', 'false'),
        ('/d/Conv', 'Conv', 'INVALID_NODE', 'Kernel weight dimension failed'),
    ]
    found = refusal(tensorrt)
    assert 'Fancy at /a/Fancy, /b/Fancy; Det at /c/Det' in found
    assert 'node /d/Conv (Conv): Kernel weight dimension failed' in found
    assert '--plugins' in found


def test_a_failed_build_tells_what_was_said_and_what_to_do():
    module, tensorrt = stand_in('10.3.0.26')

    def fail(monitor, logger):
        for name, text in (
            ('WARNING', 'slow'),
            ('ERROR', 'Tactic Selection: no tactics … within workspace limit.'),
        ):
            logger.log(type('Severity', (), {'name': name}), text)

    module.build = fail
    found = refusal(tensorrt, workspace_mib=1)
    assert 'raise --workspace-mib' in found
    assert 'no tactics' in found
    assert 'slow' not in found


def test_warnings_are_reported_once():
    module, tensorrt = stand_in('10.3.0.26')

    def warn(monitor, logger):
        for _ in range(3):
            logger.log(type('Severity', (), {'name': 'WARNING'}), 'slow')
        return module.plan()

    module.build = warn
    assert build(tensorrt).warnings == ('slow',)


def test_a_builder_that_cannot_be_made_needs_a_gpu(monkeypatch):
    module, tensorrt = stand_in('10.3.0.26')

    def refuse(logger):
        raise TypeError('pybind11::init(): factory function returned nullptr')

    monkeypatch.setattr(module, 'make_Builder', refuse)
    assert 'build where a GPU and its driver are' in refusal(tensorrt)


def test_a_plan_for_another_flavour_is_not_believed():
    module, tensorrt = stand_in('10.3.0.26')
    module.build = lambda monitor, logger: b'vtrt' + bytes(100)
    assert 'for tensorrt_rtx' in refusal(tensorrt)


def endless(module, started):
    def build_until_told(monitor, logger):
        monitor.phase_start('Building', None, 4)
        monitor.phase_start('Timing kernels', 'Building', 1000)
        step = 0
        while monitor.step_complete('Timing kernels', step):
            step = min(step + 1, 998)
            started.set()
            threading.Event().wait(0.001)
        return

    return build_until_told


def test_ctrl_c_stops_the_build():
    module, tensorrt = stand_in('10.3.0.26')
    started = threading.Event()
    module.build = endless(module, started)

    def press():
        started.wait(10)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        build(tensorrt)
    alive = [t for t in threading.enumerate() if t.name == 'build' and t.is_alive()]
    assert not alive


def test_progress_is_one_scale_over_nested_phases():
    module, tensorrt = stand_in('10.3.0.26')
    seen = []
    told = threading.Event()

    def nested(monitor, logger):
        monitor.phase_start('Building', None, 4)
        monitor.step_complete('Building', 0)
        monitor.phase_start('Timing', 'Building', 10)
        monitor.step_complete('Timing', 4)
        told.wait(10)
        return module.plan()

    def progress(*position):
        seen.append(position)
        told.set()

    module.build = nested
    build(tensorrt, progress=progress)
    assert seen[0] == ('Timing', 375, 1000)  # one of 4 steps, and half of the second


def test_an_error_while_showing_progress_stops_the_build():
    module, tensorrt = stand_in('10.3.0.26')
    module.build = endless(module, threading.Event())

    def broken(*_):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        build(tensorrt, progress=broken)


def test_remarks_tell_what_a_user_should_know(monkeypatch):
    def told(version, **given):
        module, tensorrt = stand_in(version)
        module.dla_cores = 1
        return ' '.join(build(tensorrt, **given).remarks)

    monkeypatch.delenv('NVIDIA_TF32_OVERRIDE', raising=False)
    assert 'NVIDIA_TF32_OVERRIDE=0' in told('1.4.0.76', precision='fp32')
    assert told('10.3.0.26', precision='fp32') == ''
    assert told('1.4.0.76', precision='fp16') == ''
    assert 'experimental' in told('1.7.1.116', precision='int8')
    assert 'benchmark_engine' in told('10.3.0.26', precision='int8')
    dla = {'precision': 'int8', 'dla_core': 0}
    assert '--calibration-tool tensorrt' in told('10.3.0.26', **dla)
    assert '--calibration-tool tensorrt' not in told('11.4.0.106', **dla)
    monkeypatch.setenv('NVIDIA_TF32_OVERRIDE', '0')
    assert 'loads the engine only where' in told('1.4.0.76', precision='fp32')


def without(monkeypatch, *names):
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)


def test_auto_takes_tensorrt_before_tensorrt_rtx(monkeypatch):
    for name, release in (('tensorrt', '10.3'), ('tensorrt_rtx', 'RTX 1.7')):
        monkeypatch.setitem(sys.modules, name, StandIn(release, '10.3.0.26'))
    assert find_tensorrt('auto').flavour == 'tensorrt'
    assert find_tensorrt('tensorrt_rtx').flavour == 'tensorrt_rtx'
    without(monkeypatch, 'tensorrt')
    assert find_tensorrt('auto').flavour == 'tensorrt_rtx'


def test_without_tensorrt_the_way_to_get_one_is_told(monkeypatch):
    without(monkeypatch, 'tensorrt', 'tensorrt_rtx')
    with pytest.raises(EngineError, match='tensorrt-rtx-cu13'):
        find_tensorrt('auto')
    with contextlib.suppress(EngineError):
        find_tensorrt('tensorrt')


def test_a_gpu_that_must_be_there_and_cannot_be_asked_is_told(monkeypatch, tmp_path):
    def device(_index):
        raise CudaError('cuda-python is missing')

    monkeypatch.setattr(tensorrt_release.gpu, 'Device', device)
    monkeypatch.setattr(tensorrt_release, '_DRIVER', tmp_path / 'nvidiactl')
    for name, release in (('tensorrt', '10.3'), ('tensorrt_rtx', 'RTX 1.7')):
        monkeypatch.setitem(sys.modules, name, StandIn(release, '10.3.0.26'))
    # TensorRT is installed where a GPU is; TensorRT-RTX builds anywhere.
    assert find_tensorrt('tensorrt').unseen_gpu == 'cuda-python is missing'
    assert find_tensorrt('tensorrt_rtx').unseen_gpu == ''
    (tmp_path / 'nvidiactl').touch()
    assert find_tensorrt('tensorrt_rtx').unseen_gpu == 'cuda-python is missing'


def test_releases_that_are_too_old_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, 'tensorrt', StandIn('8.6', '8.6.1'))
    with pytest.raises(EngineError, match=r'10\.3 or newer \(got 8\.6\.1\)'):
        find_tensorrt('tensorrt')


# --- TensorRT's own calibration ----------------------------------------------------------------


class Memory:
    """Device or pinned memory that is only remembered."""

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
    """Replace the GPU; return what was copied to it."""
    copied = []
    monkeypatch.setattr(Memory, 'live', 0)
    monkeypatch.setattr(calibrator, 'DeviceBuffer', Memory)
    monkeypatch.setattr(calibrator, 'PinnedBuffer', Memory)
    monkeypatch.setattr(calibrator, 'Stream', NoStream)

    def copy(target, source, size, stream):
        copied.append(Memory.last.array[:size].view(np.float32).copy())

    monkeypatch.setattr(calibrator, 'copy_async', copy)
    return copied


def feed(values=(1, 2, 3), cache_dir=None, identity='model and images', shape=(1, 3, 8, 8)):
    def batches():
        return iter([np.full(shape, value, np.float32) for value in values])

    return CalibrationFeed('images', (1, 3, 8, 8), batches, identity, cache_dir)


def calibrating(module, cache=b'ranges', plan=True):
    """Make the stand-in do what TensorRT does with a calibrator."""

    def build_with(monitor, logger):
        (calibrator,) = module.called('IBuilderConfig.int8_calibrator =')[-1]
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
def test_tensorrt_calibrates_by_itself_up_to_10(version, method, no_gpu_memory):
    module, tensorrt = stand_in(version)
    module.build = calibrating(module)
    calibration = dataclasses.replace(feed(), warnings=['images are few'])
    built = build(tensorrt, calibration=calibration, calibration_method=method, **IMPLICIT)
    assert 'images are few' in built.remarks
    assert not built.strongly_typed
    assert module.flags() == {'BuilderFlag.INT8', 'BuilderFlag.FP16'}
    assert [values[0] for values in no_gpu_memory] == [1, 2, 3]
    assert all(values.size == 3 * 8 * 8 for values in no_gpu_memory)
    assert built.calibration_cache == 'off'
    assert Memory.live == 0
    assert module.called('IOptimizationProfile.set_shape') == [
        ('images', (1, 3, 8, 8), (1, 3, 8, 8), (1, 3, 8, 8))
    ]
    assert len(module.called('IBuilderConfig.set_calibration_profile')) == 1


def test_ranges_are_kept_and_reused_only_for_the_same(no_gpu_memory, tmp_path):
    module, tensorrt = stand_in('10.3.0.26')
    module.build = calibrating(module)

    def cache(method='entropy', tensorrt=tensorrt, **given):
        calibration = feed(cache_dir=tmp_path / 'ranges', **given)
        built = build(tensorrt, calibration=calibration, calibration_method=method, **IMPLICIT)
        return built.calibration_cache.split(':')[0]

    assert cache() == 'computed'
    assert cache() == 'reused'
    assert len(no_gpu_memory) == 3
    assert cache(identity='other images') == 'computed'
    assert cache(method='minmax') == 'computed'
    newer = TensorRt(module, 'tensorrt', '10.3.0.30', ORIN)
    assert cache(tensorrt=newer) == 'computed'
    for path in (tmp_path / 'ranges').iterdir():
        path.write_bytes(b'')
    assert cache() == 'computed'


def test_a_cache_that_cannot_be_written_costs_no_engine(no_gpu_memory, tmp_path):
    module, tensorrt = stand_in('10.3.0.26')
    module.build = calibrating(module)
    (tmp_path / 'file').write_text('')
    calibration = feed(cache_dir=tmp_path / 'file' / 'ranges')
    assert 'not kept' in build(tensorrt, calibration=calibration, **IMPLICIT).calibration_cache


def test_an_image_that_fails_within_tensorrt_is_the_error(no_gpu_memory, tmp_path):
    module, tensorrt = stand_in('10.3.0.26')
    module.build = calibrating(module)

    def batches():
        yield np.zeros((1, 3, 8, 8), np.float32)
        raise ConfigError('a.png cannot be decoded')

    calibration = CalibrationFeed('images', (1, 3, 8, 8), batches, '', tmp_path / 'ranges')
    with pytest.raises(ConfigError, match=r'a\.png'):
        build(tensorrt, calibration=calibration, **IMPLICIT)
    assert not (tmp_path / 'ranges').exists()
    assert Memory.live == 0


@pytest.mark.parametrize(
    'raised',
    [
        *(ConfigError('a.png'), WriteError('no room'), OSError(5, 'I/O'), ValueError('a bug')),
        *(MemoryError(), KeyboardInterrupt(), StopIteration('within'), CudaError('lost')),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize('callback', ['get_batch', 'read_calibration_cache', 'write'])
def test_nothing_is_raised_into_tensorrt(no_gpu_memory, monkeypatch, tmp_path, raised, callback):
    """It is kept, TensorRT is told to end, and then it is raised; C++ would end the process."""
    module, tensorrt = stand_in('10.3.0.26')
    seen = []

    def fail(*_):
        raise raised

    def build_with(monitor, logger):
        (calibrator,) = module.called('IBuilderConfig.int8_calibrator =')[-1]
        with contextlib.suppress(BaseException):  # what would end the process
            seen.append(calibrator.read_calibration_cache())
            seen.append(bool(calibrator.get_batch(['images'])))
            seen.append(bool(calibrator.get_batch(['images'])))
            seen.append(calibrator.write_calibration_cache(memoryview(b'ranges')))
            seen.append(monitor.step_complete('build', 0))
        return module.plan()

    module.build = build_with
    names = {'get_batch': 'PinnedBuffer', 'read_calibration_cache': '_read'}
    name = names.get(callback, 'tensors_without_range')
    monkeypatch.setattr(calibrator, name, fail)
    with pytest.raises(type(raised)) as caught:
        build(tensorrt, calibration=feed(cache_dir=tmp_path / 'ranges'), **IMPLICIT)
    assert caught.value is raised
    assert seen == [None, callback == 'write', callback == 'write', None, False]
    assert Memory.live == 0
    assert not (tmp_path / 'ranges').exists()


def test_a_cache_that_turns_into_a_folder_costs_no_engine(no_gpu_memory, tmp_path):
    module, tensorrt = stand_in('10.3.0.26')
    module.build = calibrating(module)
    calibration = feed(cache_dir=tmp_path / 'ranges')
    assert build(tensorrt, calibration=calibration, **IMPLICIT)
    [kept] = calibration.cache_dir.iterdir()
    kept.unlink()
    kept.mkdir()
    built = build(tensorrt, calibration=calibration, **IMPLICIT)
    assert 'not kept' in built.calibration_cache


def test_batches_of_another_shape_are_refused(no_gpu_memory):
    module, tensorrt = stand_in('10.3.0.26')
    module.build = calibrating(module)
    with pytest.raises(ConfigError, match=r'expected batches of \(1, 3, 8, 8\)'):
        build(tensorrt, calibration=feed(shape=(1, 3, 4, 4)), **IMPLICIT)


def test_inputs_beside_the_image_are_told_the_same_with_each_batch(no_gpu_memory):
    module, tensorrt = stand_in('10.3.0.26')
    module.other_inputs = {'orig_target_sizes': (1, 2)}
    seen = []

    def build_with(monitor, logger):
        (calibrator,) = module.called('IBuilderConfig.int8_calibrator =')[-1]
        while places := calibrator.get_batch(['orig_target_sizes', 'images']):
            seen.append(len(set(places)))
        calibrator.write_calibration_cache(memoryview(b'ranges'))
        return module.plan()

    module.build = build_with
    sizes = np.array([[8, 8]], np.int64)
    calibration = dataclasses.replace(feed(values=(1, 2)), constants={'orig_target_sizes': sizes})
    build(tensorrt, calibration=calibration, **IMPLICIT)
    assert seen == [2, 2]
    assert [len(values) for values in no_gpu_memory] == [4, 192, 4, 192]
    assert no_gpu_memory[2].view(np.int64).tolist() == [8, 8]
    assert (no_gpu_memory[3] == 2).all()
    assert Memory.live == 0


def calibration_cache(**scales):
    """Return what TensorRT writes: float32 as hexadecimal digits."""
    lines = [f'{name}: {np.float32(value).view(np.uint32):x}' for name, value in scales.items()]
    return '\n'.join(['TRT-100300-EntropyCalibration2', *lines, '']).encode()


@pytest.mark.parametrize('scale', [0.0, 1e-42, np.nan, np.inf, -1.0])
def test_tensors_without_a_range_are_told_and_their_ranges_not_kept(
    no_gpu_memory, tmp_path, scale
):
    module, tensorrt = stand_in('10.3.0.26')
    good = calibration_cache(images=0.0078, **{'/body/Conv_output_0': 0.031})
    poor = calibration_cache(images=0.0078, **{'/body/Conv: output': scale})

    def built(cache, plan=True):
        no_gpu_memory.clear()
        module.build = calibrating(module, cache, plan)
        return build(tensorrt, calibration=feed(cache_dir=tmp_path / 'ranges'), **IMPLICIT)

    first = built(poor)
    (told,) = [text for text in first.remarks if 'no range' in text]
    assert 'for /body/Conv: output: they are always 0' in told
    assert '--calibration-tool onnxruntime' in told
    assert first.calibration_cache.endswith('not kept: tensors without a range')
    assert not (tmp_path / 'ranges').exists()
    with pytest.raises(EngineError, match='no range for /body/Conv: output'):
        built(poor, plan=False)
    second = built(good)
    assert not [text for text in second.remarks if 'no range' in text]
    assert built(good).calibration_cache.startswith('reused')
    # One that an older release of this package has kept is not used either.
    (kept,) = (tmp_path / 'ranges').iterdir()
    kept.write_bytes(poor)
    assert built(good).calibration_cache.startswith('computed')
    assert len(no_gpu_memory) == 3
    assert kept.read_bytes() == good


def test_calibration_belongs_to_its_tool():
    _, tensorrt = stand_in('10.3.0.26')
    for given, calibration in ((IMPLICIT, None), ({'precision': 'fp16'}, feed())):
        with pytest.raises(ConfigError, match='--calibration-tool tensorrt'):
            build(tensorrt, calibration=calibration, **given)


def test_ctrl_c_during_calibration_stops_it_and_keeps_no_ranges(no_gpu_memory, tmp_path):
    module, tensorrt = stand_in('10.3.0.26')
    module.build = calibrating(module)
    started = threading.Event()

    def batches():
        while True:
            started.set()
            yield np.zeros((1, 3, 8, 8), np.float32)

    calibration = CalibrationFeed('images', (1, 3, 8, 8), batches, '', tmp_path / 'ranges')
    options = load_options(None, {'onnx': 'model.onnx', **IMPLICIT})

    def press():
        started.wait(10)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        build_plan(b'model', options, tensorrt, calibration=calibration)
    assert not (tmp_path / 'ranges').exists()
    assert Memory.live == 0


# --- one logger in a process -------------------------------------------------------------------


def severity(name):
    return type('Severity', (), {'name': name})


def test_tensorrt_gets_one_logger_and_each_listener_hears_its_own_time():
    module = StandIn('10.3', '10.3.0.26')
    first = TensorRtLog(module)
    first.logger.log(severity('ERROR'), 'early')
    second = TensorRtLog(module)
    assert second.logger is first.logger
    second.logger.log(severity('INTERNAL_ERROR'), 'late')
    second.logger.log(severity('WARNING'), 'slow')
    second.logger.log(severity('INFO'), 'memory')
    assert first.last_errors() == 'early | late'
    assert second.last_errors() == 'late'
    assert first.last_errors(1) == 'late'
    assert list(second.warnings) == ['slow']
    assert TensorRtLog(module).last_errors() == 'nothing'
    assert TensorRtLog(StandIn('10.3', '10.3.0.26')).logger is not first.logger


def test_a_listener_that_is_gone_hears_nothing():
    module = StandIn('10.3', '10.3.0.26')
    listener = TensorRtLog(module, quiet=True)
    logger, gone = listener.logger, weakref.ref(listener)
    del listener
    gc.collect()
    assert gone() is None
    logger.log(severity('ERROR'), 'nobody listens')


def test_errors_that_become_exceptions_are_no_errors_of_the_log(caplog):
    module = StandIn('10.3', '10.3.0.26')
    loud = TensorRtLog(module)
    with caplog.at_level(logging.INFO, 'trt_perception.tensorrt'):
        loud.logger.log(severity('ERROR'), 'one')
        loud.logger.log(severity('INFO'), 'memory')
        quiet = TensorRtLog(module, quiet=True, verbose=True)
        quiet.logger.log(severity('ERROR'), 'two')
        quiet.logger.log(severity('INFO'), 'memory again')
        quiet.logger.log(severity('VERBOSE'), 'every kernel')
    assert [(r.levelname, r.message) for r in caplog.records] == [
        ('ERROR', 'one'),
        ('INFO', 'memory again'),
        ('INFO', 'every kernel'),
    ]
