# SPDX-License-Identifier: Apache-2.0
"""Tests of calls to TensorRT releases that are not installed, with a stand-in for each release."""

from __future__ import annotations

import os

import pytest

from support.building.standin_builds import (
    ORIN_GPU,
    RTX_RELEASES,
    STRONG_TYPING_RELEASES,
    TESTED_RELEASES,
    WEAK_TYPING_RELEASES,
    build,
    make_stand_in,
    refusal_text,
)
from support.building.tensorrt_standin import StandIn
from trt_perception.errors import UnavailableError
from trt_perception.offline.building.engine.release import BuildGpu, TensorRt


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


@pytest.mark.parametrize('version', WEAK_TYPING_RELEASES)
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
def test_builder_flags_set_the_allowed_precisions_up_to_tensorrt_10_11(version, precision, flags):
    module, tensorrt = make_stand_in(version)
    built = build(tensorrt, precision=precision)
    assert module.builder_flags() == flags
    assert module.arguments_of_calls('created network') == [('',)]
    assert not built.strongly_typed
    assert module.arguments_of_calls('IBuilderConfig.clear_flag') == (
        [] if precision == 'tf32' else [(module.BuilderFlag.TF32,)]
    )


@pytest.mark.parametrize('version', {**STRONG_TYPING_RELEASES, **RTX_RELEASES})
@pytest.mark.parametrize('precision', ['fp32', 'tf32', 'fp16', 'bf16', 'int8'])
def test_newer_tensorrt_releases_get_no_precision_flags(version, precision):
    if (version, precision) == ('1.4.0.76', 'int8'):
        pytest.skip('TensorRT-RTX 1.4 refuses INT8')
    module, tensorrt = make_stand_in(version)
    built = build(tensorrt, precision=precision)
    assert module.builder_flags() == ({'BuilderFlag.TF32'} if precision == 'tf32' else set())
    assert module.arguments_of_calls('created network') == [('STRONGLY_TYPED',)]
    assert built.strongly_typed


def test_stand_ins_give_enumerations_different_numbers():
    numbers = {
        int(StandIn(release, '1.0').BuilderFlag.VERSION_COMPATIBLE)
        for release in ('10.3', '10.7', '10.13', '11.4', 'RTX 1.7')
    }
    assert len(numbers) > 1


def test_stand_in_refuses_names_that_its_release_lacks(golden_messages):
    with golden_messages.raises(AttributeError):
        _ = StandIn('11.0', '11.0').IInt8EntropyCalibrator2
    assert not hasattr(StandIn('11.0', '11.0').BuilderFlag, 'FP16')
    config = StandIn('10.13', '10.13').make_Builder(None).create_builder_config()
    with golden_messages.raises(AttributeError):
        config.num_compute_capabilities = 1


@pytest.mark.parametrize('version', TESTED_RELEASES)
def test_built_plan_has_its_flavour_version_gpu_and_tensors(version):
    module, tensorrt = make_stand_in(version)
    module.layers = [('a', '', 'FLOAT')] * 3
    built = build(tensorrt)
    assert (built.flavour, built.version, built.gpu) == (module.flavour, version, ORIN_GPU)
    assert built.content == module.plan()
    assert built.layer_count == 3
    assert [(t.name, t.shape, t.dtype) for t in built.inputs] == [
        ('images', (1, 3, 8, 8), 'float32')
    ]
    assert built.build_s >= 0


@pytest.mark.parametrize('version', WEAK_TYPING_RELEASES)
def test_layers_of_named_nodes_stay_in_fp32(version):
    module, tensorrt = make_stand_in(version)
    module.layers = [
        ('/head/Softmax', '[ONNX Layer: /head/Softmax]', 'FLOAT'),
        ('/head/Softmax_2', '[ONNX Layer: /head/Softmax]', 'HALF'),
        ('/head/Softmax_shape', '[ONNX Layer: /head/Softmax]', 'INT64'),
        ('/stem/Conv', '[ONNX Layer: /stem/Conv]', 'FLOAT'),
        ('/plain', '', 'FLOAT'),
    ]
    build(tensorrt, precision='int8', fp32_nodes={'/head/Softmax', '/plain'})
    assert module.arguments_of_calls('ILayer.precision =') == [(module.DataType.FLOAT,)] * 3
    assert module.arguments_of_calls('ILayer.set_output_type') == [(0, module.DataType.FLOAT)] * 3
    assert 'BuilderFlag.OBEY_PRECISION_CONSTRAINTS' in module.builder_flags()


@pytest.mark.parametrize('version', {**STRONG_TYPING_RELEASES, **RTX_RELEASES})
def test_strongly_typed_layers_are_not_changed(version):
    module, tensorrt = make_stand_in(version)
    module.layers = [('/head', '[ONNX Layer: /head]', 'FLOAT')]
    assert 'OBEY_PRECISION_CONSTRAINTS' not in build(tensorrt, fp32_nodes={'/head'}).flags
    assert not [name for name, _ in module.calls if name.startswith('ILayer')]


@pytest.mark.parametrize('version', {**WEAK_TYPING_RELEASES, **STRONG_TYPING_RELEASES})
def test_all_options_reach_the_builder(version, tmp_path):
    module, tensorrt = make_stand_in(version)
    module.dla_cores = 2
    plugin = tmp_path / 'plugin.so'
    plugin.write_text('library')
    build(
        tensorrt,
        sparsity=True,
        version_compatible=True,
        gpu_fallback=True,
        dla_core=1,
        workspace_mib=64,
        optimization_level=5,
        hardware_compatibility='ampere_plus',
        profiling_verbosity='layer_names_only',
        plugins=[str(plugin), 'imported_before.py'],
        shapes=['1x3x8x8'],
    )
    expected = {'SPARSE_WEIGHTS', 'GPU_FALLBACK'}
    expected |= {'VERSION_COMPATIBLE', 'EXCLUDE_LEAN_RUNTIME'}
    expected |= {'FP16'} if version in WEAK_TYPING_RELEASES else set()
    assert module.builder_flags() == {f'BuilderFlag.{name}' for name in expected}
    assert module.arguments_of_calls('IBuilderConfig.set_memory_pool_limit') == [
        (module.MemoryPoolType.WORKSPACE, 64 * 1024 * 1024)
    ]
    for name, value in (
        ('builder_optimization_level', 5),
        ('hardware_compatibility_level', module.HardwareCompatibilityLevel.AMPERE_PLUS),
        ('profiling_verbosity', module.ProfilingVerbosity.LAYER_NAMES_ONLY),
        ('default_device_type', module.DeviceType.DLA),
        ('DLA_core', 1),
    ):
        assert module.arguments_of_calls(f'IBuilderConfig.{name} =') == [(value,)]
    ((loaded,),) = module.arguments_of_calls('IPluginRegistry.load_library')
    assert os.path.samefile(loaded, plugin)
    assert module.arguments_of_calls('init_libnvinfer_plugins')


@pytest.mark.parametrize('version', TESTED_RELEASES)
def test_builder_keeps_its_defaults_without_options(version):
    module, tensorrt = make_stand_in(version)
    build(tensorrt, precision='fp32', timing_cache='off')
    config = {name for name, _ in module.calls if name.startswith('IBuilderConfig')}
    assert config == {
        'IBuilderConfig.clear_flag',
        'IBuilderConfig.profiling_verbosity =',
        'IBuilderConfig.progress_monitor =',
    }


@pytest.mark.parametrize('version', TESTED_RELEASES)
def test_profiles_of_the_options_are_added(version):
    module, tensorrt = make_stand_in(version)
    module.shape = (-1, 3, -1, -1)
    built = build(tensorrt, shapes=['1x3x8x8', '1x3x8x8:2x3x16x16:4x3x32x32'])
    assert [str(profile) for profile in built.profiles] == [
        '1x3x8x8',
        '1x3x8x8:2x3x16x16:4x3x32x32',
    ]
    assert module.arguments_of_calls('IOptimizationProfile.set_shape') == [
        ('images', (1, 3, 8, 8), (1, 3, 8, 8), (1, 3, 8, 8)),
        ('images', (1, 3, 8, 8), (2, 3, 16, 16), (4, 3, 32, 32)),
    ]
    assert len(module.arguments_of_calls('IBuilderConfig.add_optimization_profile')) == 2


def test_shapes_refused_by_tensorrt_are_an_error(golden_messages):
    module, tensorrt = make_stand_in('10.3.0.26')
    module.shape = (-1, 3, 8, 8)
    module.refuse_profiles = True
    golden_messages.add(refusal_text(tensorrt, batch=2))


def test_dynamic_auxiliary_inputs_follow_the_image():
    module, tensorrt = make_stand_in('10.3.0.26')
    module.shape = (-1, 3, -1, -1)
    module.other_inputs = {'orig_target_sizes': (-1, 2), 'pixel_mask': (-1, -1, -1)}
    build(tensorrt, shapes=['1x3x8x8:2x3x16x16:4x3x32x16'])
    assert module.arguments_of_calls('IOptimizationProfile.set_shape') == [
        ('images', (1, 3, 8, 8), (2, 3, 16, 16), (4, 3, 32, 16)),
        ('orig_target_sizes', (1, 2), (2, 2), (4, 2)),
        ('pixel_mask', (1, 8, 8), (2, 16, 16), (4, 32, 16)),
    ]
    # If the image input has fixed dimensions, the auxiliary input gets the same batch size.
    module, tensorrt = make_stand_in('10.3.0.26')
    module.other_inputs = {'orig_target_sizes': (-1, 2)}
    assert build(tensorrt).profiles == ()
    assert module.arguments_of_calls('IOptimizationProfile.set_shape') == [
        ('images', *((1, 3, 8, 8),) * 3),
        ('orig_target_sizes', *((1, 2),) * 3),
    ]


def test_unknown_auxiliary_inputs_are_refused(golden_messages):
    module, tensorrt = make_stand_in('10.3.0.26')
    module.other_inputs = {'sizes': (1, 2)}
    golden_messages.add(refusal_text(tensorrt))


@pytest.mark.parametrize(
    ('version', 'capabilities'),
    [
        *((version, {'8.6': 'SM86', '12.0': 'SM120'}) for version in RTX_RELEASES),
        ('1.7.1.116', {'12.1': 'SM121'}),  # TensorRT-RTX 1.4 lacks this one
    ],
)
def test_compute_capabilities_reach_tensorrt_rtx(version, capabilities):
    module, tensorrt = make_stand_in(version, gpu=None)
    build(tensorrt, compute_capabilities=list(capabilities))
    assert module.arguments_of_calls('IBuilderConfig.num_compute_capabilities =') == [
        (len(capabilities),)
    ]
    assert module.arguments_of_calls('IBuilderConfig.set_compute_capability') == [
        (getattr(module.ComputeCapability, name), index)
        for index, name in enumerate(capabilities.values())
    ]


@pytest.mark.parametrize(
    ('version', 'given'),
    [
        ('10.7.0.23', {'hardware_compatibility': 'same_compute_capability'}),
        ('10.7.0.23', {'compute_capabilities': ['8.6']}),
        ('10.3.0.26', {'precision': 'fp8'}),
        ('10.3.0.26', {'dla_core': 0}),
        ('10.3.0.26', {'plugins': ['none.so']}),
        ('11.4.0.106', {'precision': 'int8', 'calibration_tool': 'tensorrt'}),
        (
            '10.3.0.26',
            {
                'precision': 'int8',
                'calibration_tool': 'tensorrt',
                'calibration_method': 'percentile',
            },
        ),
        ('10.3.0.26', {'precision': 'int8', 'calibration_tool': 'tensorrt', 'dla_core': 0}),
        ('1.7.1.116', {'hardware_compatibility': 'ampere_plus'}),
        ('1.7.1.116', {'version_compatible': True}),
        ('1.7.1.116', {'timing_cache': 'times'}),
        ('1.7.1.116', {'dla_core': 0}),
        ('1.7.1.116', {'plugins': ['none.so']}),
        ('1.4.0.76', {'precision': 'int8'}),
        ('1.6.0.1', {'precision': 'int8'}),
        ('1.4.0.76', {'compute_capabilities': ['12.1']}),
        ('1.7.1.116', {'compute_capabilities': ['8.7']}),
        ('1.7.1.116', {'precision': 'bf16', 'compute_capabilities': ['7.5', '8.6']}),
        ('1.7.1.116', {'precision': 'fp8', 'compute_capabilities': ['8.6', '8.9']}),
    ],
)
def test_unsupported_option_is_refused_with_a_reason(version, given, golden_messages):
    module, tensorrt = make_stand_in(version)
    golden_messages.add(refusal_text(tensorrt, **given))
    assert not module.arguments_of_calls('Builder.build_serialized_network')


def test_all_unsupported_options_are_in_one_error(golden_messages):
    with pytest.raises(UnavailableError) as caught:
        build(make_stand_in('1.4.0.76')[1], version_compatible=True, precision='int8')
    int8 = caught.value.refused[1]
    assert [error.subject for error in caught.value.refused] == [
        '--version-compatible',
        '--precision int8',
    ]
    golden_messages.add(caught.value)
    assert 'fp16' not in int8.found
    assert str(caught.value).splitlines()[1] == f'{int8.statement}; {int8.fix}'


@pytest.mark.parametrize('version', {**WEAK_TYPING_RELEASES, **STRONG_TYPING_RELEASES})
def test_timing_cache_is_kept_for_the_next_build(version):
    module, tensorrt = make_stand_in(version)
    assert build(tensorrt).timing_cache == 'auto'
    build(tensorrt)
    times = f'times of {module.release}'.encode()
    assert module.arguments_of_calls('IBuilderConfig.create_timing_cache') == [(b'',), (times,)]
    # A build for another GPU starts with an empty timing cache.
    other = TensorRt(module, module.flavour, version, BuildGpu('Other', '8.7', ORIN_GPU.cuda))
    build(other)
    assert module.arguments_of_calls('IBuilderConfig.create_timing_cache')[-1] == (b'',)


def test_timing_cache_is_kept_in_a_file(tmp_path):
    module, tensorrt = make_stand_in('10.3.0.26')
    path = tmp_path / 'times'
    assert build(tensorrt, timing_cache=str(path)).timing_cache == str(path)
    assert path.read_bytes() == b'times of 10.3'
    build(tensorrt, timing_cache=str(path))
    assert module.arguments_of_calls('IBuilderConfig.create_timing_cache')[-1] == (
        b'times of 10.3',
    )


def test_unusable_timing_cache_is_replaced(tmp_path, golden_messages):
    module, tensorrt = make_stand_in('10.3.0.26')
    path = tmp_path / 'times'
    path.write_bytes(b'damaged')
    module.cache_accepted = False
    built = build(tensorrt, timing_cache=str(path))
    golden_messages.add('\n'.join(built.warnings))
    assert module.arguments_of_calls('IBuilderConfig.create_timing_cache') == [
        (b'damaged',),
        (b'',),
    ]


def test_timing_cache_write_error_is_only_a_warning(tmp_path, golden_messages):
    _, tensorrt = make_stand_in('10.3.0.26')
    built = build(tensorrt, timing_cache=str(tmp_path / 'none' / 'times'))
    assert built.content
    golden_messages.add('\n'.join(built.warnings))


@pytest.mark.parametrize('version', RTX_RELEASES)
def test_tensorrt_rtx_has_no_timing_cache(version):
    module, tensorrt = make_stand_in(version)
    assert build(tensorrt).timing_cache == ''
    assert not [name for name, _ in module.calls if 'timing_cache' in name]


def test_remarks_mention_the_restrictions_of_the_engine(monkeypatch, golden_messages):
    def add_remarks(version, **given):
        module, tensorrt = make_stand_in(version)
        module.dla_cores = 1
        golden_messages.add(
            '\n'.join((f'TensorRT {version}, {given}:', *build(tensorrt, **given).remarks, ''))
        )

    monkeypatch.delenv('NVIDIA_TF32_OVERRIDE', raising=False)
    for version, precision in (
        *(('1.4.0.76', 'fp32'), ('10.3.0.26', 'fp32'), ('1.4.0.76', 'fp16')),
        *(('1.7.1.116', 'int8'), ('10.3.0.26', 'int8')),
    ):
        add_remarks(version, precision=precision)
    for version in ('10.3.0.26', '11.4.0.106'):
        add_remarks(version, precision='int8', dla_core=0)
    monkeypatch.setenv('NVIDIA_TF32_OVERRIDE', '0')
    add_remarks('1.4.0.76', precision='fp32')
