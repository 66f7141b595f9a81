# SPDX-License-Identifier: Apache-2.0
"""Test examples/plugin: its kernel on the CPU, its names, and the lean runtime's registry.

``test/gpu/test_gpu_plugin_example.py`` runs the kernel on a GPU. No test runs the plugins with
TensorRT, because no supported machine has it.
"""

import ast
import ctypes
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from support.gpu.host_kernels import compiled_library, needs_compiler
from support.optional_packages import needs

pytest.importorskip('onnx', reason='needs onnx')
from support.gpu.max_unpool import CASES, FOLDER, pooled, reference, source

TABLE = json.loads((FOLDER.parents[1] / 'test' / 'data' / 'tensorrt_api.json').read_text())
RELEASES = ('10.12', '10.13', '10.15', '10.16', '11.0', '11.1', '11.2', '11.3', '11.4')
BEFORE_KERNEL = """
#include <algorithm>
#define __device__
#define __global__
#define __forceinline__ inline
using std::min;
struct Index { int x; };
static Index blockIdx, blockDim, threadIdx;
"""
AFTER_KERNEL = """
extern "C" void run(const float* x, const long long* indices, int planes, int height, int width,
                    float* y, int blocks) {
    blockDim = {256};
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < 256; ++threadIdx.x)
            max_unpool(x, indices, planes, height, width, y);
}
"""
# Imports an example with the lean runtime as `tensorrt`. Prints what its registry has.
REGISTER = """
import json, sys
from pathlib import Path
import numpy as np
import tensorrt_lean as trt
# The lean runtime lacks names that the builder has. The decorators do not use them.
trt.__getattr__ = lambda name: type(name, (), {})
sys.modules['tensorrt'] = trt
from trt_perception.offline.building.engine.python_plugins import registered_creators

registry, space = trt.get_plugin_registry(), sys.argv[2]
states, attributes = [], {}
with registered_creators(trt, [Path(sys.argv[1])]):
    creator = registry.get_creator('MaxUnpool', '1', space)
    states += [creator is not None, [field.name for field in creator.field_names]]
    if not space:
        kernel = trt.PluginField(
            'kernel_shape', np.array([3, 5], np.int32), trt.PluginFieldType.INT32
        )
        plugin = creator.create_plugin(
            'node', trt.PluginFieldCollection([kernel]), trt.TensorRTPhase.BUILD
        )
        fields = plugin.clone().get_fields_to_serialize()
        attributes = {field.name: field.data.tolist() for field in fields}
states.append(registry.get_creator('MaxUnpool', '1', space) is not None)
print(json.dumps([*states, attributes]))
"""


@needs_compiler
@pytest.mark.parametrize(('shape', 'kernel', 'pads', 'strides'), CASES)
def test_kernel_equals_the_reference_evaluator(shape, kernel, pads, strides):
    values, indices = pooled(shape, kernel, pads, strides)
    expected = reference(values, indices, kernel, pads, strides)
    text = BEFORE_KERNEL + source(kernel, pads, strides) + AFTER_KERNEL
    run = compiled_library(text).run
    run.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int] * 3 + [ctypes.c_void_p, ctypes.c_int]
    found = np.full(expected.size + 1, np.nan, np.float32)  # the last element must stay
    count, channels, height, width = values.shape

    run(
        *(values.ctypes.data, indices.ctypes.data, count * channels, height, width),
        *(found.ctypes.data, -(-expected.size // 256)),
    )

    assert np.isnan(found[-1])
    np.testing.assert_array_equal(found[:-1].reshape(expected.shape), expected)
    assert expected.any()


def releases_of(name):
    """Return the releases that have this name."""
    return {
        release
        for bits, names in TABLE['names'].items()
        if name in names
        for release, bit in zip(TABLE['releases'], bits, strict=True)
        if bit == '1'
    }


@pytest.mark.parametrize('name', ['max_unpool_v3.py', 'max_unpool_aot.py'])
def test_releases_have_every_name_of_tensorrt(name):
    tree = ast.parse((FOLDER / name).read_text())
    used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used = {text.removeprefix('trt.') for text in used if text.startswith('trt.')}
    used = {text for text in used if not text.endswith('.__init__')}
    interfaces = [text for text in used if text.startswith('IPlugin')]
    methods = {
        item.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for item in node.body
        if isinstance(item, ast.FunctionDef) and item.name != '__init__'
    }
    assert used
    for text in used:
        assert releases_of(text) >= set(RELEASES), text
    for method in methods:
        found = set().union(*(releases_of(f'{kind}.{method}') for kind in interfaces))
        assert found >= set(RELEASES), method


@needs('tensorrt_lean')
@pytest.mark.parametrize(
    ('name', 'space', 'stays', 'attributes'),
    [
        (
            'max_unpool_v3.py',
            '',
            False,
            {'kernel_shape': [3, 5], 'pads': [0] * 4, 'strides': [1] * 2},
        ),
        ('max_unpool_aot.py', 'trt_perception', True, {}),
    ],
)
def test_real_registry_has_the_creator(name, space, stays, attributes):
    done = subprocess.run(
        [sys.executable, '-c', REGISTER, str(FOLDER / name), space],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(entry for entry in sys.path if entry)},
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == [True, ['kernel_shape', 'pads', 'strides'], stays, attributes]
