# SPDX-License-Identifier: Apache-2.0
"""Tests of real builds by TensorRT-RTX, which needs no GPU to build."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.building.messages import without_variable_text
from trt_perception.errors import EngineError
from trt_perception.model.files.plan_header import RTX_TARGET_BITS, read_plan_header
from trt_perception.offline.building.engine.build import build_plan
from trt_perception.offline.building.engine.release import find_tensorrt
from trt_perception.offline.building.options.sources import load_options
from trt_perception.offline.building.precision.convert import convert_precision
from trt_perception.stages.tensorrt.log import TensorRtLog

ROOT = Path(__file__).parents[4]
DIGITS = ROOT / 'models' / 'digits.onnx'
pytestmark = [
    pytest.mark.engine_build,
    pytest.mark.skipif(
        importlib.util.find_spec('tensorrt_rtx') is None, reason='needs tensorrt_rtx'
    ),
]
# Byte 32 of a plan has one bit for each target GPU. NVIDIA does not document this.
TARGET_BITS = {'7.5': 1, '8.0': 2, '8.6': 4, '8.9': 8, '12.0': 16, '12.1': 32}


@pytest.fixture(scope='module')
def tensorrt():
    return find_tensorrt('tensorrt_rtx')


def small(sides=(1, 3, 16, 16), nodes=None, opset=19, dtype=TensorProto.FLOAT, weights=()):
    """Return a model with one input of this shape. A string makes a dimension dynamic."""
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = nodes or [helper.make_node('Conv', ['images', 'w'], ['y'], name='conv', pads=[1] * 4)]
    graph = helper.make_graph(
        nodes,
        'small',
        [helper.make_tensor_value_info('images', dtype, sides)],
        [helper.make_tensor_value_info('y', dtype, None)],
        [numpy_helper.from_array(weight, 'w'), *weights],
    )
    imports = [helper.make_opsetid('', opset), helper.make_opsetid('mine', 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString()


def build(content, tensorrt, **given):
    options = load_options(None, {'onnx': 'model.onnx', 'precision': 'fp32', **given})
    return build_plan(content, options, tensorrt)


def refusal(content, tensorrt, **given):
    with pytest.raises(EngineError) as caught:
        build(content, tensorrt, **given)
    return without_variable_text(caught.value)


def half(content):
    model = onnx.load_model_from_string(content)
    return convert_precision(model, 'fp16', strongly_typed=True).model.SerializeToString()


def test_digits_model_builds(tensorrt):
    built = build(DIGITS.read_bytes(), tensorrt)
    header = read_plan_header(built.content, 'digits')
    assert header.module == built.flavour == 'tensorrt_rtx'
    assert '.'.join(map(str, header.version)) == built.version
    assert [(t.name, t.shape, t.dtype) for t in (*built.inputs, *built.outputs)] == [
        ('images', (1, 3, 480, 640), 'float32'),
        ('output0', (1, 14, 6000), 'float32'),
    ]
    assert built.layer_count > 150
    assert built.profiles == ()
    assert built.strongly_typed


def test_fp16_engine_has_the_inputs_and_outputs_of_the_fp32_engine(tensorrt):
    fp32 = build(DIGITS.read_bytes(), tensorrt)
    fp16 = build(half(DIGITS.read_bytes()), tensorrt, precision='fp16')
    assert fp16.inputs == fp32.inputs
    assert fp16.outputs == fp32.outputs
    assert fp16.content != fp32.content


def test_each_failed_build_reports_its_own_messages(tensorrt, golden_messages):
    """TensorRT keeps the first logger of a process while any builder exists."""
    import tensorrt_rtx

    other = tensorrt_rtx.Logger(tensorrt_rtx.Logger.ERROR)
    for _ in range(2):
        golden_messages.add(refusal(DIGITS.read_bytes(), tensorrt, workspace_mib=1))
    keeps = tensorrt_rtx.Builder(TensorRtLog(tensorrt_rtx).logger)
    assert tensorrt_rtx.Builder(other)  # TensorRT ignores the second logger, with a warning
    golden_messages.add(refusal(DIGITS.read_bytes(), tensorrt, workspace_mib=1))
    del keeps


def quantised(kind, sides=(1, 3, 16, 16)):
    """Return a convolution between Q/DQ nodes of this type. Inputs and outputs are float32."""
    zeros = [helper.make_tensor(n, kind, [], [0]) for n in ('zero', 'w_zero')]
    scales = [numpy_helper.from_array(np.float32(0.05), n) for n in ('scale', 'w_scale')]
    nodes = [
        helper.make_node('QuantizeLinear', ['images', 'scale', 'zero'], ['xq'], name='xq'),
        helper.make_node('DequantizeLinear', ['xq', 'scale', 'zero'], ['x'], name='xdq'),
        helper.make_node('QuantizeLinear', ['w', 'w_scale', 'w_zero'], ['wq'], name='wq'),
        helper.make_node('DequantizeLinear', ['wq', 'w_scale', 'w_zero'], ['wd'], name='wdq'),
        helper.make_node('Conv', ['x', 'wd'], ['y'], name='conv', pads=[1] * 4),
    ]
    return small(sides, nodes=nodes, weights=[*zeros, *scales])


@pytest.mark.parametrize('sides', [(1, 3, 16, 16), ('n', 3, 'h', 'w')])
@pytest.mark.parametrize(
    ('precision', 'kind', 'target'),
    [
        ('int8', TensorProto.INT8, '8.6'),
        ('fp8', TensorProto.FLOAT8E4M3FN, '8.9'),
        ('bf16', TensorProto.BFLOAT16, '8.6'),
        ('fp16', TensorProto.FLOAT16, '7.5'),
    ],
)
def test_convolution_builds_in_each_type(tensorrt, precision, kind, target, sides):
    if precision == 'int8' and tensorrt.release < (1, 7):
        pytest.skip('TensorRT-RTX builds quantised convolutions from 1.7 on')
    if precision in ('int8', 'fp8'):
        content = quantised(kind, sides)
    else:
        nodes = [
            helper.make_node('Cast', ['images'], ['x'], to=kind),
            helper.make_node('Cast', ['w'], ['wc'], to=kind),
            helper.make_node('Conv', ['x', 'wc'], ['z'], name='conv', pads=[1] * 4),
            helper.make_node('Cast', ['z'], ['y'], to=TensorProto.FLOAT),
        ]
        content = small(sides, nodes=nodes)
    shapes = [] if sides[0] == 1 else ['1x3x16x16:1x3x32x32:4x3x64x64']
    built = build(
        content, tensorrt, precision=precision, compute_capabilities=[target], shapes=shapes
    )
    assert built.content[32] == TARGET_BITS[target]
    assert built.strongly_typed


def bits_of_this_release(tensorrt):
    """Map each compute capability that the installed release builds for to its bit in a plan."""
    names = dir(tensorrt.module.ComputeCapability)
    return {
        capability: bit
        for capability, bit in TARGET_BITS.items()
        if f'SM{capability.replace(".", "")}' in names
    }


def test_list_of_compute_capabilities_is_complete(tensorrt):
    names = [name for name in dir(tensorrt.module.ComputeCapability) if name.startswith('SM')]
    assert len(bits_of_this_release(tensorrt)) == len(names)
    assert RTX_TARGET_BITS == TARGET_BITS


def test_plan_has_the_requested_compute_capabilities(tensorrt):
    single = [[target] for target in bits_of_this_release(tensorrt)]
    for targets in [*single, ['8.0', '8.9'], ['12.0', '8.6']]:
        built = build(small(), tensorrt, compute_capabilities=targets)
        assert built.content[32] == sum(TARGET_BITS[target] for target in targets)


def test_default_targets_exclude_turing(tensorrt):
    bits = build(small(), tensorrt).content[32]
    known = sum(bits_of_this_release(tensorrt).values())
    assert bits & known == known - TARGET_BITS['7.5']


def test_dynamic_model_builds_for_one_batch_size(tensorrt):
    built = build(small(('n', 3, 16, 16)), tensorrt, batch=2)
    assert built.inputs[0].shape == (-1, 3, 16, 16)
    assert [str(profile) for profile in built.profiles] == ['2x3x16x16']


def test_each_batch_size_gets_a_profile(tensorrt):
    content = small(('n', 3, 16, 16))
    built = build(content, tensorrt, batch='8,1,4')
    assert [t.shape for t in (*built.inputs, *built.outputs)] == [(-1, 3, 16, 16), (-1, 4, 16, 16)]
    assert [str(profile) for profile in built.profiles] == [f'{n}x3x16x16' for n in (1, 4, 8)]
    assert len(built.content) > len(build(content, tensorrt, batch=4).content)


def test_dynamic_model_builds_with_several_profiles(tensorrt):
    one = build(small(('n', 3, 'h', 'w')), tensorrt, shapes='1x3x8x8:1x3x16x16:4x3x32x32')
    two = build(
        small(('n', 3, 'h', 'w')),
        tensorrt,
        shapes=['1x3x8x8:1x3x16x16:4x3x32x32', '1x3x64x64'],
    )
    assert len(two.profiles) == 2
    assert len(two.content) > len(one.content)


def test_batch_and_input_size_give_the_shape_of_the_profile(tensorrt):
    built = build(small(('n', 3, 'h', 'w')), tensorrt, batch=1, input_size='32x24')
    assert str(built.profiles[0]) == '1x3x24x32'


@pytest.mark.parametrize(
    ('sides', 'given'),
    [
        (('n', 3, 16, 16), {}),
        (('n', 3, 'h', 'w'), {}),
        (('n', 3, 'h', 'w'), {'batch': 1}),
        (('n', 3, 16, 16), {'shapes': '1x3x8x16'}),
        ((1, 3, 16, 16), {'shapes': '2x3x16x16'}),
        ((1, 3, 16, 16), {'batch': 2}),
        ((1, 3, 16, 16), {'input_size': '32x16'}),
    ],
)
def test_contradicting_shapes_are_refused_with_the_allowed_shapes(
    tensorrt, sides, given, golden_messages
):
    golden_messages.add(refusal(small(sides), tensorrt, **given))


def test_shape_option_may_repeat_the_fixed_shape(tensorrt):
    built = build(small(), tensorrt, shapes='1x3x16x16', input_size='16x16')
    assert built.profiles == ()


def test_unsupported_operators_are_named_with_their_nodes(tensorrt):
    nodes = [
        helper.make_node('Fancy', ['images'], ['a'], name='/neck/fancy', domain='mine'),
        helper.make_node('Fancy', ['a'], ['b'], name='/head/fancy', domain='mine'),
        helper.make_node('Unique', ['b'], ['y'], name='/head/unique'),
    ]
    found = refusal(small(nodes=nodes), tensorrt)
    # Releases list the nodes in different orders.
    assert 'Fancy at /neck/fancy, /head/fancy' in found
    assert 'Unique at /head/unique' in found
    assert found.count('\n') == 1
    assert '--plugins' in found


def test_invalid_node_is_named(tensorrt):
    found = refusal(small((1, 5, 16, 16)), tensorrt)
    assert 'node conv (Conv)' in found
    assert 'unsupported operators' not in found


def test_invalid_model_is_refused(tensorrt, golden_messages):
    for content in (b'', b'hello world, this is no onnx', DIGITS.read_bytes()[:100_000]):
        golden_messages.add(refusal(content, tensorrt))


def test_tensorrt_rtx_builds_with_its_builder_options(tensorrt):
    built = build(
        small(),
        tensorrt,
        sparsity=True,
        workspace_mib=1024,
        optimization_level=1,
        profiling_verbosity='none',
        verbose=True,
    )
    assert built.flags == ('SPARSE_WEIGHTS',)


def test_progress_is_reported_during_a_build(tensorrt):
    seen = []
    options = load_options(None, {'onnx': 'model.onnx', 'precision': 'fp32'})
    build_plan(DIGITS.read_bytes(), options, tensorrt, progress=lambda *step: seen.append(step))
    assert seen
    assert all(phase and 0 <= done <= total for phase, done, total in seen)


CHILD = """
import signal
import sys
import threading
from pathlib import Path
from trt_perception.offline.building.engine import build
from trt_perception.offline.building.options.sources import load_options
from trt_perception.offline.building.engine.release import find_tensorrt

options = load_options(None, {'onnx': sys.argv[1], 'precision': 'fp32'})
tensorrt = find_tensorrt('tensorrt_rtx')
signal.signal(signal.SIGTERM, signal.default_int_handler)
make_progress_monitor, is_reported = build.make_progress_monitor, threading.Event()


def make_waiting_monitor(trt, stop):
    monitor = make_progress_monitor(trt, stop)

    class Waiting(type(monitor)):
        def step_complete(self, phase_name, step):
            if not is_reported.is_set():
                is_reported.set()
                print('building', flush=True)
                stop.wait(100)  # longer than the test waits
            return super().step_complete(phase_name, step)

    return Waiting()


build.make_progress_monitor = make_waiting_monitor
try:
    build.build_plan(Path(sys.argv[1]).read_bytes(), options, tensorrt)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.unmeasured
def test_signal_ends_a_real_build():
    """The signal arrives during TensorRT's first step."""
    process = subprocess.Popen(
        [sys.executable, '-c', CHILD, str(DIGITS)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == 'building\n'
        process.terminate()
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.communicate()
