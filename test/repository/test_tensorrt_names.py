"""Every name of TensorRT that the code uses exists in every release that is supported."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import trt_perception
from trt_perception.building.engine.calibrator import CLASSES as CALIBRATORS

TABLE = json.loads((Path(__file__).parents[1] / 'data' / 'tensorrt_api.json').read_text())
SUPPORTED = [release for release in TABLE['releases'] if release != '8.6']
RTX = [release for release in SUPPORTED if release.startswith('RTX')]
RELEASES = {
    name: {release for release, bit in zip(TABLE['releases'], bits, strict=True) if bit == '1'}
    for bits, names in TABLE['names'].items()
    for name in names
}
PACKAGE = Path(trt_perception.__file__).parent
SOURCE = PACKAGE / 'stages' / 'tensorrt_runtime.py'

# What stands behind a variable's or an attribute's name in the source.
OBJECTS = {
    '_trt': '',
    'trt': '',
    '_engine': 'ICudaEngine.',
    '_runtime': 'Runtime.',
    'context': 'IExecutionContext.',
    '_context': 'IExecutionContext.',
    'config': 'IRuntimeConfig.',
    '_runtime_cache': 'IRuntimeCache.',
    'strategy': 'DynamicShapesKernelSpecializationStrategy.',
    'mode': 'TensorIOMode.',
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


def chain(node):
    """Return the parts of a.b.c, empty for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [*([node.id] if isinstance(node, ast.Name) else []), *reversed(parts)]


def used_names():
    """Return the table's name of each attribute that the source takes from TensorRT."""
    tree = ast.parse(SOURCE.read_text())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, 'id', '') in ('getattr', 'hasattr'):
            owner = chain(node.args[0])
            if owner and owner[-1] in OBJECTS:
                found.add(OBJECTS[owner[-1]] + node.args[1].value)
        parts = chain(node)
        for index, part in enumerate(parts[:-1]):
            if part in OBJECTS:
                found.add(OBJECTS[part] + '.'.join(parts[index + 1 :]))
                break
    return {name for name in found if not name.startswith('__') and '.__' not in name}


def test_the_source_uses_names_of_every_kind():
    names = used_names()
    assert {'Runtime', 'TensorIOMode', 'TensorFormat.LINEAR'} <= names
    assert any(name.startswith('ICudaEngine.') for name in names)
    assert any(name.startswith('IExecutionContext.') for name in names)
    assert ONLY_RTX & names


@pytest.mark.parametrize('name', sorted(used_names()))
def test_name_exists_in_every_supported_release(name):
    assert name in RELEASES, f'no release has {name}'
    wanted = set(RTX if name in ONLY_RTX or name == 'IRuntimeCache' else SUPPORTED)
    missing = sorted(wanted - RELEASES[name])
    assert not missing, f'{name} is missing in {missing}'


def test_what_only_rtx_has_is_really_used():
    assert used_names() >= ONLY_RTX


# --- the builder ---------------------------------------------------------------------------------

BUILDING = [
    PACKAGE / 'building' / 'engine' / f'{name}.py'
    for name in (
        *('build', 'calibrator', 'capabilities', 'config', 'hints', 'inspector', 'network'),
        *('progress', 'release'),
    )
]
BUILDING_OBJECTS = {
    'trt': '',
    'module': '',
    'builder': 'Builder.',
    'cache': 'ITimingCache.',
    'config': 'IBuilderConfig.',
    'execution': 'IExecutionContext.',
    'inspector': 'EngineInspector.',
    'layer': 'ILayer.',
    'native': 'ICudaEngine.',
    'network': 'INetworkDefinition.',
    'parser': 'OnnxParser.',
    'profile': 'IOptimizationProfile.',
    'registry': 'IPluginRegistry.',
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


def builder_names():
    """Return the table's name of each attribute that the builder takes, or looks up by name."""
    found, prefixes = set(), set()
    for path in BUILDING:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, 'attr', '') == 'find':
                text = node.args[0]
                if isinstance(text, ast.Constant):
                    found.add(text.value)
                elif isinstance(text, ast.JoinedStr):
                    prefixes.add(text.values[0].value)
            parts = chain(node)
            for index, part in enumerate(parts[:-1]):
                if part in BUILDING_OBJECTS:
                    found.add(BUILDING_OBJECTS[part] + '.'.join(parts[index + 1 :]))
                    break
    unknown = prefixes - set(FOUND)
    assert not unknown, f'say in FOUND what {unknown} can become'
    found |= {prefix + name for prefix in prefixes for name in FOUND[prefix]}
    found |= set(CALIBRATORS.values())  # looked up through this table
    return {name for name in found if '__' not in name}


def test_the_builder_uses_names_of_every_kind():
    names = builder_names()
    assert {'Builder', 'OnnxParser', 'DeviceType.DLA', 'BuilderFlag.FP16'} <= names
    for prefix in set(BUILDING_OBJECTS.values()) | set(FOUND):
        assert any(name.startswith(prefix) for name in names), prefix


@pytest.mark.parametrize('name', sorted(builder_names()))
def test_the_builder_takes_names_that_exist(name):
    assert name in RELEASES, f'no release has {name}'
    missing = sorted(set(LIMITED.get(name, SUPPORTED)) - RELEASES[name])
    assert not missing, f'{name} is missing in {missing}'


def test_what_is_limited_is_really_used():
    assert builder_names() >= set(LIMITED)


def test_no_number_stands_for_a_flag():
    """Numbers of flags differ between releases, so only names may be shifted into bits."""
    for path in BUILDING:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):
                assert not isinstance(node.right, ast.Constant), path
