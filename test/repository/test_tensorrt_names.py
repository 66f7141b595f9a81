# SPDX-License-Identifier: Apache-2.0
"""Check that all supported TensorRT releases have every TensorRT name that the code uses.

The check compares words, because the class of an attribute is unknown in the source. The stand-ins
check classes when tests run the code: each of their classes has only the names of the table.
"""

from __future__ import annotations

import ast
import copy
import json
import re
from pathlib import Path

from support.gpu import fake_tensorrt
from support.library_words import (
    attributes,
    beginnings,
    defined_names,
    functions_with_computed_names,
    imported_words,
    nodes_of,
    pairs,
    texts,
)
from support.source_trees import package_trees as package

TABLE = json.loads((Path(__file__).parents[1] / 'data' / 'tensorrt_api.json').read_text())
SUPPORTED = [release for release in TABLE['releases'] if release != '8.6']
RTX = [release for release in SUPPORTED if release.startswith('RTX')]
RELEASES = {
    name: {release for release, bit in zip(TABLE['releases'], bits, strict=True) if bit == '1'}
    for bits, names in TABLE['names'].items()
    for name in names
}
# Names that the code uses only if the module has IRuntimeCache, or only after a check that the
# name exists.
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
# Names that the code computes: the part in the source, and the possible endings.
COMPUTED = {
    'BuilderFlag.': [
        *['FP16', 'BF16', 'INT8'],
        *['SPARSE_WEIGHTS', 'VERSION_COMPATIBLE', 'GPU_FALLBACK', 'TF32'],
        'EXCLUDE_LEAN_RUNTIME',
    ],
    'ComputeCapability.': ['SM75', 'SM80', 'SM86', 'SM89', 'SM120'],
    'HardwareCompatibilityLevel.': ['AMPERE_PLUS', 'SAME_COMPUTE_CAPABILITY'],
    'ProfilingVerbosity.': ['NONE', 'LAYER_NAMES_ONLY', 'DETAILED'],
}
WEAK = [release for release in SUPPORTED if release.startswith('10.')]
# Names that only some releases have. The code uses the names for weakly typed networks, for
# TensorRT-RTX, or after a check that the name exists.
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
    **{f'ComputeCapability.{name}': RTX for name in COMPUTED['ComputeCapability.']},
    'HardwareCompatibilityLevel.SAME_COMPUTE_CAPABILITY': ['10.12', '10.13', '10.16', '11.4'],
}


# String constants that look like TensorRT names: an interface, or a class and its member.
NAME = r'I[A-Z]\w*[a-z]\w*|[A-Z]\w*[a-z]\w*\.\w+'
# Classes whose objects the package uses.
CLASSES = {
    *('Builder', 'IBuilderConfig', 'INetworkDefinition', 'ILayer', 'ITensor', 'OnnxParser'),
    *('ParserError', 'ITimingCache', 'IOptimizationProfile', 'IPluginRegistry', 'Runtime'),
    *('ICudaEngine', 'IExecutionContext', 'IRuntimeConfig', 'IRuntimeCache', 'EngineInspector'),
}
# Words of other libraries that no import shows, and words of the project that only few releases of
# TensorRT have.
OTHERS = {'hexdigest', 'find', 'tactic', 'CREATORS'}


def last(name):
    return name.rpartition('.')[2]


# Maps each word to the releases that have a name with this last word.
KNOWN = {}
for _name, _releases in RELEASES.items():
    KNOWN.setdefault(last(_name), set()).update(_releases)


def parts(trees):
    """Return the modules that use the TensorRT runtime, and the modules that use the builder."""
    folders = 'stages/tensorrt/', ('offline/building/engine/', 'offline/building/inspection/')
    return tuple({n: tree for n, tree in trees.items() if n.startswith(f)} for f in folders)


def names_in(trees):
    """Return the string constants that look like TensorRT names."""
    return {text for text in texts(trees) if re.fullmatch(NAME, text)}


def words(trees):
    """Return all attributes, and the last words of names in string constants."""
    return attributes(trees) | set(map(last, names_in(trees)))


def unknown(trees):
    """Return the words in these modules that no release and no other known library has."""
    runtime, builder = parts(trees)
    modules = runtime | builder
    return (
        words(modules) - set(KNOWN) - defined_names(package()) - imported_words(modules) - OTHERS
    )


def tensorrt_words(trees):
    """Return the words that TensorRT has. Other libraries may have the same words."""
    return words(trees) & set(KNOWN) - OTHERS


def test_every_word_belongs_to_a_known_library():
    assert unknown(package()) == set(), 'add words of other libraries to OTHERS'


def test_every_word_exists_in_every_supported_release():
    runtime, builder = map(tensorrt_words, parts(package()))
    only_rtx = {'IRuntimeCache', *map(last, ONLY_RTX)}
    limited = {last(name): releases for name, releases in LIMITED.items()}
    assert runtime >= only_rtx
    limited_names = {
        name for name in LIMITED if name not in computed_names() and f'{name}.' not in COMPUTED
    }
    assert builder >= set(map(last, limited_names))
    assert len(runtime | builder) > 100
    required = {word: RTX if word in only_rtx else SUPPORTED for word in runtime}
    missing = {word: set(required[word]) - KNOWN[word] for word in runtime}
    missing |= {word: set(limited.get(word, SUPPORTED)) - KNOWN[word] for word in builder}
    assert {word: sorted(releases) for word, releases in missing.items() if releases} == {}


def computed_names():
    """Return the names whose endings the code computes."""
    return {prefix + end for prefix, ends in COMPUTED.items() for end in ends}


def test_every_name_with_its_class_exists_in_every_supported_release():
    modules = {name: tree for part in parts(package()) for name, tree in part.items()}
    members = {
        pair for pair in pairs(modules) if pair.split('.')[0] in RELEASES and '__' not in pair
    }
    assert {
        'BuilderFlag.TF32',
        'DeviceType.DLA',
        'TensorFormat.LINEAR',
    } <= members | computed_names()
    for name in members | computed_names() | names_in(modules) | set(LIMITED) | ONLY_RTX:
        required = RTX if name in ONLY_RTX or name == 'IRuntimeCache' else SUPPORTED
        assert set(LIMITED.get(name, required)) <= RELEASES.get(name, set()), name


def test_names_are_computed_only_in_known_functions():
    runtime, builder = parts(package())
    assert functions_with_computed_names(runtime) == set()
    assert functions_with_computed_names(builder) == {'find_member'}
    dotted = {text for text in beginnings(builder) if re.match(r'[A-Z]\w+\.', text)}
    assert dotted == set(COMPUTED), 'add the possible endings to COMPUTED'


def test_no_other_module_uses_tensorrt():
    runtime, builder = parts(package())
    others = {n: tree for n, tree in package().items() if n not in runtime | builder}
    # Ignore words without an underscore, such as reset: other libraries also use them.
    multiword_names = {
        last(n) for n in RELEASES if n.partition('.')[0] in CLASSES and '_' in last(n)
    }
    found = attributes(others) & multiword_names - defined_names(package()) - imported_words({})
    # Words of ROS, and of the configuration of a Triton model.
    assert found == {'node_name', 'max_batch_size'}


def test_unknown_word_is_found_in_every_kind_of_use():
    wrong = {
        *('set_timing_cache', 'refittable', 'set_output_type', 'profiler', 'set_tensor_address'),
        *('is_stream_capturable', 'set_runtime_cache', 'IInt8MinMaxCalibrator', 'num_inputs'),
        *('load_library', 'DeviceType', 'num_DLA_cores', 'shape'),
    }
    runtime, builder = parts(package())
    trees = copy.deepcopy(runtime | builder)
    for node in [node for tree in trees.values() for node in ast.walk(tree)]:
        if isinstance(node, ast.Attribute) and node.attr in wrong:
            node.attr += '_of_none'
        elif isinstance(node, ast.Constant) and node.value in wrong:
            node.value += '_of_none'
    assert unknown(trees) == {f'{word}_of_none' for word in wrong}


def test_stand_in_of_the_runtime_has_only_real_names():
    """If code uses a name of another class, tests that run the code must fail."""
    module = fake_tensorrt.FakeTensorRtRtx()
    engine = fake_tensorrt._Engine(module)
    objects = {
        'ICudaEngine': dir(engine),
        'IExecutionContext': [*dir(fake_tensorrt._Context), *fake_tensorrt.REFUSED_RESULTS],
        'IRuntimeConfig': dir(fake_tensorrt._RuntimeConfig),
        'IRuntimeCache': [name for name in dir(fake_tensorrt._RuntimeCache) if name != 'content'],
        **{
            kind: fake_tensorrt.__dict__[kind].__members__
            for kind in ('TensorIOMode', 'TensorFormat', 'DataType')
        },
        'DynamicShapesKernelSpecializationStrategy': fake_tensorrt.Specialization.__members__,
    }
    other_members = {'deserialize_cuda_engine', 'create_execution_context'}
    for kind, members in objects.items():
        for member in members:
            name = f'{kind}.{member}'
            if member.startswith('_') or (kind == 'IExecutionContext' and member in other_members):
                continue
            rtx = kind.startswith(('IRuntime', 'Dynamic')) or name in ONLY_RTX
            assert set(RTX if rtx else SUPPORTED) <= RELEASES.get(name, set()), name


def test_flags_are_never_numbers():
    """Shifts may use only names of flags, because their numbers differ between releases."""
    shifts = [n for n in nodes_of(parts(package())[1], ast.BinOp) if isinstance(n.op, ast.LShift)]
    assert not [node for node in shifts if isinstance(node.right, ast.Constant)]
