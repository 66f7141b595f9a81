"""Every name of TensorRT that the code uses exists in every release that is supported.

By words: of which class an attribute is, the stand-ins tell when tests run the code: they have no
names but those of the table, class by class.
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


# A text that looks like a name of TensorRT's: an interface, or a class and what is in it.
NAME = r'I[A-Z]\w*[a-z]\w*|[A-Z]\w*[a-z]\w*\.\w+'
# Those whose objects the package has.
CLASSES = {
    *('Builder', 'IBuilderConfig', 'INetworkDefinition', 'ILayer', 'ITensor', 'OnnxParser'),
    *('ParserError', 'ITimingCache', 'IOptimizationProfile', 'IPluginRegistry', 'Runtime'),
    *('ICudaEngine', 'IExecutionContext', 'IRuntimeConfig', 'IRuntimeCache', 'EngineInspector'),
}
# What no import names, and what is ours and called as something that few releases have.
OTHERS = {'hexdigest', 'find', 'tactic'}


def last(name):
    return name.rpartition('.')[2]


# The releases that have something of this last word.
KNOWN = {}
for _name, _releases in RELEASES.items():
    KNOWN.setdefault(last(_name), set()).update(_releases)


def parts(trees):
    """Return the modules that have TensorRT's objects, the runtime's and the builder's."""
    folders = ('stages/tensorrt_', 'building/engine/')
    return tuple({n: tree for n, tree in trees.items() if n.startswith(f)} for f in folders)


def names_in(trees):
    """Return the texts that look like names."""
    return {text for text in texts(trees) if re.fullmatch(NAME, text)}


def words(trees):
    """Return the attributes, and the last words of names in texts."""
    return attributes(trees) | set(map(last, names_in(trees)))


def unknown(trees):
    """Return the words in these parts that are neither TensorRT's nor anybody else's."""
    runtime, builder = parts(trees)
    some = runtime | builder
    return words(some) - set(KNOWN) - defined_names(package()) - imported_words(some) - OTHERS


def of_tensorrt(trees):
    """Return the words that are TensorRT's, and perhaps somebody else's, too."""
    return words(trees) & set(KNOWN) - OTHERS


def test_every_word_is_known():
    assert unknown(package()) == set(), 'say in OTHERS what is not of TensorRT'


def test_every_word_exists_in_every_supported_release():
    runtime, builder = map(of_tensorrt, parts(package()))
    only_rtx = {'IRuntimeCache', *map(last, ONLY_RTX)}
    limited = {last(name): releases for name, releases in LIMITED.items()}
    assert runtime >= only_rtx
    named = {name for name in LIMITED if name not in made() and f'{name}.' not in FOUND}
    assert builder >= set(map(last, named))
    assert len(runtime | builder) > 100
    wanted = {word: RTX if word in only_rtx else SUPPORTED for word in runtime}
    missing = {word: set(wanted[word]) - KNOWN[word] for word in runtime}
    missing |= {word: set(limited.get(word, SUPPORTED)) - KNOWN[word] for word in builder}
    assert {word: sorted(releases) for word, releases in missing.items() if releases} == {}


def made():
    """Return the names whose ends are only known when the program runs."""
    return {prefix + end for prefix, ends in FOUND.items() for end in ends}


def test_every_name_with_its_class_exists_in_every_supported_release():
    some = {name: tree for part in parts(package()) for name, tree in part.items()}
    members = {pair for pair in pairs(some) if pair.split('.')[0] in RELEASES and '__' not in pair}
    assert {'BuilderFlag.TF32', 'DeviceType.DLA', 'TensorFormat.LINEAR'} <= members | made()
    for name in members | made() | names_in(some) | set(LIMITED) | ONLY_RTX:
        wanted = RTX if name in ONLY_RTX or name == 'IRuntimeCache' else SUPPORTED
        assert set(LIMITED.get(name, wanted)) <= RELEASES.get(name, set()), name


def test_names_are_made_and_looked_up_in_known_places_only():
    runtime, builder = parts(package())
    assert functions_with_computed_names(runtime) == set()
    assert functions_with_computed_names(builder) == {'find'}
    dotted = {text for text in beginnings(builder) if re.match(r'[A-Z]\w+\.', text)}
    assert dotted == set(FOUND), 'say in FOUND what these can become'


def test_no_other_module_uses_tensorrt():
    runtime, builder = parts(package())
    others = {n: tree for n, tree in package().items() if n not in runtime | builder}
    # A word alone, as reset, may be anybody's.
    theirs = {last(n) for n in RELEASES if n.partition('.')[0] in CLASSES and '_' in last(n)}
    found = attributes(others) & theirs - defined_names(package()) - imported_words({})
    assert found == {'node_name'}, "ROS's; what else is there of TensorRT's?"


def test_a_word_that_no_release_has_is_found_wherever_it_is_used():
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


def test_the_stand_in_of_the_runtime_has_no_names_of_its_own():
    """So a name of another class fails where tests run the code."""
    module = fake_tensorrt.FakeTensorRtRtx()
    engine = fake_tensorrt._Engine(module)
    objects = {
        'ICudaEngine': dir(engine),
        'IExecutionContext': [*dir(fake_tensorrt._Context), *fake_tensorrt.REFUSALS],
        'IRuntimeConfig': dir(fake_tensorrt._RuntimeConfig),
        'IRuntimeCache': [name for name in dir(fake_tensorrt._RuntimeCache) if name != 'content'],
        **{
            kind: fake_tensorrt.__dict__[kind].__members__
            for kind in ('TensorIOMode', 'TensorFormat', 'DataType')
        },
        'DynamicShapesKernelSpecializationStrategy': fake_tensorrt.Specialization.__members__,
    }
    of_others = {'deserialize_cuda_engine', 'create_execution_context'}
    for kind, members in objects.items():
        for member in members:
            name = f'{kind}.{member}'
            if member.startswith('_') or (kind == 'IExecutionContext' and member in of_others):
                continue
            rtx = kind.startswith(('IRuntime', 'Dynamic')) or name in ONLY_RTX
            assert set(RTX if rtx else SUPPORTED) <= RELEASES.get(name, set()), name


def test_no_number_stands_for_a_flag():
    """Numbers of flags differ between releases, so only names may be shifted into bits."""
    shifts = [n for n in nodes_of(parts(package())[1], ast.BinOp) if isinstance(n.op, ast.LShift)]
    assert not [node for node in shifts if isinstance(node.right, ast.Constant)]
