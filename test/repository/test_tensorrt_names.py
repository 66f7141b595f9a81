"""Every name of TensorRT that the code uses exists in every release that is supported."""

from __future__ import annotations

import ast
import copy
import functools
import json
from pathlib import Path

import pytest
from api_flow import parse_package
from api_names import follow
from rename_locals import rename_locals

import trt_perception

pytestmark = pytest.mark.unmeasured
TABLE = json.loads((Path(__file__).parents[1] / 'data' / 'tensorrt_api.json').read_text())
SUPPORTED = [release for release in TABLE['releases'] if release != '8.6']
RTX = [release for release in SUPPORTED if release.startswith('RTX')]
RELEASES = {
    name: {release for release, bit in zip(TABLE['releases'], bits, strict=True) if bit == '1'}
    for bits, names in TABLE['names'].items()
    for name in names
}
PACKAGE = Path(trt_perception.__file__).parent
ROOTS = {'tensorrt': '', 'tensorrt_rtx': ''}
# Constant strings that can be the module's name or one in it.
TEXTS = r'tensorrt(_rtx)?|I[A-Z]\w+|[A-Z]\w*[a-z]\w*\.\w*'
# The class of what a method returns or an attribute holds; empty for Python's own.
RESULTS = {
    'Builder.create_builder_config': 'IBuilderConfig',
    'Builder.create_network': 'INetworkDefinition',
    'Builder.create_optimization_profile': 'IOptimizationProfile',
    'Builder.get_plugin_registry': 'IPluginRegistry',
    'Builder.num_DLA_cores': '',
    'DataType.name': '',
    'ErrorCode.name': '',
    'IBuilderConfig.create_timing_cache': 'ITimingCache',
    'IBuilderConfig.get_timing_cache': 'ITimingCache',
    'ICudaEngine.create_engine_inspector': 'EngineInspector',
    'ICudaEngine.create_execution_context': 'IExecutionContext',
    'ICudaEngine.create_runtime_config': 'IRuntimeConfig',
    'ICudaEngine.device_memory_size_v2': '',
    'ICudaEngine.get_tensor_dtype': 'DataType',
    'ICudaEngine.get_tensor_name': '',
    'ICudaEngine.get_tensor_profile_shape': '',
    'ICudaEngine.get_tensor_shape': '',
    'ICudaEngine.num_io_tensors': '',
    'ICudaEngine.num_optimization_profiles': '',
    'ICudaEngine.profiling_verbosity': 'ProfilingVerbosity',
    'IExecutionContext.get_tensor_shape': '',
    'IExecutionContext.infer_shapes': '',
    'ILayer.get_output': 'ITensor',
    'ILayer.metadata': '',
    'ILayer.name': '',
    'ILayer.num_outputs': '',
    'INetworkDefinition.get_input': 'ITensor',
    'INetworkDefinition.get_layer': 'ILayer',
    'INetworkDefinition.get_output': 'ITensor',
    'INetworkDefinition.num_layers': '',
    'IRuntimeCache.serialize': '',
    'IRuntimeConfig.create_runtime_cache': 'IRuntimeCache',
    'ITensor.dtype': 'DataType',
    'ITensor.name': '',
    'ITensor.shape': '',
    'ITimingCache.serialize': '',
    'OnnxParser.get_error': 'ParserError',
    'OnnxParser.num_errors': '',
    'ParserError.code': 'ErrorCode',
    'ParserError.desc': '',
    'ParserError.node_name': '',
    'ParserError.node_operator': '',
    'ProfilingVerbosity.name': '',
    'Runtime.deserialize_cuda_engine': 'ICudaEngine',
}
# Used only where the module has IRuntimeCache, or after asking for the name itself.
ONLY_RTX = {
    'CudaGraphStrategy',
    'CudaGraphStrategy.DISABLED',
    'DynamicShapesKernelSpecializationStrategy',
    'DynamicShapesKernelSpecializationStrategy.EAGER',
    'ICudaEngine.create_runtime_config',
    'IExecutionContext.is_stream_capturable',
    'IRuntimeConfig.create_runtime_cache',
    'IRuntimeConfig.cuda_graph_strategy',
    'IRuntimeConfig.dynamic_shapes_kernel_specialization_strategy',
    'IRuntimeConfig.set_execution_context_allocation_strategy',
    'IRuntimeConfig.set_runtime_cache',
    'IRuntimeCache.deserialize',
    'IRuntimeCache.serialize',
}
# What is only known when it runs, by the part of the name that stands in the source.
FOUND = {
    'BuilderFlag.': [
        *['FP16', 'BF16', 'INT8'],
        *['SPARSE_WEIGHTS', 'REFIT', 'VERSION_COMPATIBLE', 'GPU_FALLBACK', 'TF32'],
    ],
    'ComputeCapability.': ['SM75', 'SM80', 'SM86', 'SM89', 'SM120'],
    'HardwareCompatibilityLevel.': ['AMPERE_PLUS', 'SAME_COMPUTE_CAPABILITY'],
    'ProfilingVerbosity.': ['NONE', 'LAYER_NAMES_ONLY', 'DETAILED'],
}
WEAK = [release for release in SUPPORTED if release.startswith('10.')]
# Where these are used: weakly typed networks, TensorRT-RTX, or after asking whether they exist.
LIMITED = {
    'EngineStat': ['10.15', '10.16', '11.4', *RTX],
    'EngineStat.TOTAL_WEIGHTS_SIZE': ['10.15', '10.16', '11.4', *RTX],
    'ICudaEngine.get_engine_stat': ['10.15', '10.16', '11.4', *RTX],
    'BuilderFlag.FP16': WEAK,
    'BuilderFlag.BF16': WEAK,
    'BuilderFlag.INT8': WEAK,
    'BuilderFlag.OBEY_PRECISION_CONSTRAINTS': WEAK,
    'ILayer.precision': WEAK,
    'ILayer.set_output_type': WEAK,
    'IBuilderConfig.int8_calibrator': WEAK,
    'IBuilderConfig.set_calibration_profile': WEAK,
    'IInt8EntropyCalibrator2': WEAK,
    'IInt8MinMaxCalibrator': WEAK,
    'IBuilderConfig.num_compute_capabilities': RTX,
    'IBuilderConfig.set_compute_capability': RTX,
    'ComputeCapability': RTX,
    **{f'ComputeCapability.{name}': RTX for name in FOUND['ComputeCapability.']},
    'HardwareCompatibilityLevel.SAME_COMPUTE_CAPABILITY': ['10.12', '10.13', '10.16', '11.4'],
}


def names_of(trees):
    """Return what modules take from TensorRT."""
    return follow(trees, ROOTS, TEXTS, results=RESULTS, lookup='.TensorRt.find')


@functools.cache
def names():
    return names_of(parse_package(PACKAGE))


RUNTIME = 'trt_perception.stages.'


def places():
    """Return (name, whether the runtime uses it) for the runtime and for all else."""
    found = {
        (name, where.startswith(RUNTIME)) for name, used in names().used.items() for where in used
    }
    made = {prefix + name for prefix, ends in FOUND.items() for name in ends}
    return sorted(found | {(name, False) for name in made})


def used_outside_the_runtime():
    return {name for name, runtime in places() if not runtime}


def test_every_kind_of_name_is_used():
    runtime = {name for name, within in places() if within}
    assert {'Runtime', 'TensorIOMode', 'TensorFormat.LINEAR'} <= runtime
    assert any(name.startswith('ICudaEngine.') for name in runtime)
    assert any(name.startswith('IExecutionContext.') for name in runtime)
    assert runtime >= ONLY_RTX
    others = used_outside_the_runtime()
    assert {'Builder', 'OnnxParser', 'DeviceType.DLA', 'BuilderFlag.FP16'} <= others
    assert others >= set(LIMITED)
    for kind in {f'{kind}.' for kind in RESULTS.values() if kind} | set(FOUND):
        assert any(name.startswith(kind) for name in {*names().used, *others}), kind


def test_every_name_exists_in_every_supported_release():
    assert len(places()) > 100
    missing = {}
    for name, runtime in places():
        if runtime:
            wanted = RTX if name in ONLY_RTX or name == 'IRuntimeCache' else SUPPORTED
        else:
            wanted = LIMITED.get(name, SUPPORTED)
        without = set(wanted) - RELEASES.get(name, set())
        if without or name not in RELEASES:
            missing[name] = sorted(without), names().used[name]
    assert not missing, 'name, releases that lack it, and who uses it'


def test_every_object_of_tensorrt_is_followed():
    found = names()
    assert not found.unknown, 'say in RESULTS what these are attributes of'
    assert {where.rpartition('engine.')[2] for where in found.dynamic} == {'release.TensorRt.find'}
    assert found.beginnings == set(FOUND), 'say in FOUND what these can become'
    assert not found.lost


def test_names_of_variables_do_not_matter():
    renamed = rename_locals(names().trees)
    found = names_of(renamed)
    assert set(found.used) == set(names().used)
    assert found.beginnings == names().beginnings
    nodes = [node for tree in renamed.values() for node in ast.walk(tree)]
    variables = {node.id for node in nodes if isinstance(node, ast.Name)}
    objects = ('trt', 'builder', 'config', 'engine', 'inspector', 'layer', 'network', 'parser')
    assert {f'renamed_{name}' for name in objects} <= variables


def test_a_name_that_no_release_has_is_found_wherever_it_is_used():
    wrong = {
        *('IBuilderConfig.set_timing_cache', 'ICudaEngine.refittable', 'ILayer.set_output_type'),
        *('IExecutionContext.profiler', 'IExecutionContext.set_tensor_address'),
        *('IExecutionContext.is_stream_capturable', 'IRuntimeConfig.set_runtime_cache'),
        *(
            'IInt8MinMaxCalibrator',
            'IPluginRegistry.load_library',
            'INetworkDefinition.num_inputs',
        ),
    }
    assert wrong <= set(names().used)
    words = {name.rpartition('.')[2] for name in wrong}
    trees = copy.deepcopy(names().trees)
    for node in [node for tree in trees.values() for node in ast.walk(tree)]:
        if isinstance(node, ast.Attribute) and node.attr in words:
            node.attr += '_of_none'
        elif isinstance(node, ast.Constant) and node.value in words:
            node.value += '_of_none'
    found = set(names_of(trees).used)
    assert {f'{name}_of_none' for name in wrong} <= found
    assert not wrong & found


def test_no_number_stands_for_a_flag():
    """Numbers of flags differ between releases, so only names may be shifted into bits."""
    for path in (PACKAGE / 'building' / 'engine').glob('*.py'):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):
                assert not isinstance(node.right, ast.Constant), path
