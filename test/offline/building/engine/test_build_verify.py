# SPDX-License-Identifier: Apache-2.0
"""Tests of the check of a built engine. Stand-ins for GPU and TensorRT return recordings."""

import hashlib
import json
import sys
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.gpu import fake_cuda
from support.gpu.cuda_recorder import Recorder
from support.gpu.fake_tensorrt import PLAN, FakeTensorRtRtx
from trt_perception import gpu
from trt_perception.errors import EngineError
from trt_perception.gpu import bindings
from trt_perception.model.files.model_file import ModelFile
from trt_perception.offline.building.engine.verify import verify_engine
from trt_perception.offline.building.inspection import inspector
from trt_perception.offline.building.inspection.inspector import inspect_engine, time_layers
from trt_perception.offline.building.options.sources import load_options

RECORDED = json.loads((Path(__file__).parents[3] / 'data' / 'inspector_rtx.json').read_text())
SHAPE = (1, 3, 48, 64)
# The convolutions and the matrix product of the recorded network.
NODES = {'stem', 'body', 'wide', 'fc'}
IMAGE = ('images', SHAPE, 'FLOAT')
SIZES = ('orig_target_sizes', (1, 2), 'INT64')


class ProfilingVerbosity(Enum):
    LAYER_NAMES_ONLY = 0
    NONE = 1
    DETAILED = 2


class Module(FakeTensorRtRtx):
    """A stand-in for TensorRT-RTX whose engine reports recorded layers.

    Args:
        recording: key in `RECORDED`; empty for an engine that reports no layers.
        tensors: tensors of the engine, as for FakeTensorRtRtx.
    """

    EngineInspector = SimpleNamespace
    ProfilingVerbosity = ProfilingVerbosity
    LayerInformationFormat = SimpleNamespace(JSON='json')
    EngineStat = SimpleNamespace(TOTAL_WEIGHTS_SIZE='weights')

    class IProfiler:
        def __init__(self):
            pass

    def __init__(self, recording, **tensors):
        super().__init__(**tensors)
        self.recording = recording
        self.addresses = {}  # by name of the tensor

    def answer(self, name, make=lambda: True, arguments=()):
        if name == 'set_tensor_address':
            self.addresses.update([arguments])
        return super().answer(name, make, arguments)

    def Runtime(self, logger):  # noqa: N802
        runtime = super().Runtime(logger)
        return SimpleNamespace(
            deserialize_cuda_engine=lambda content: self.with_layer_reports(
                runtime.deserialize_cuda_engine(content)
            )
        )

    def with_layer_reports(self, engine):
        verbosity = ProfilingVerbosity.DETAILED if self.recording else ProfilingVerbosity.NONE
        engine.profiling_verbosity = verbosity
        engine.refittable, engine.num_aux_streams = False, 1
        engine.get_device_memory_size_for_profile_v2 = lambda profile: 4096
        engine.get_engine_stat = lambda stat: 1000
        text = json.dumps(RECORDED[self.recording]) if self.recording else ''
        inspector = SimpleNamespace(get_engine_information=lambda kind: text)
        engine.create_engine_inspector = lambda: inspector
        return engine


@pytest.fixture
def engine(monkeypatch, tmp_path):
    """Return a function that installs the stand-ins. In the end, all objects must be released."""
    recorder = Recorder(fake_cuda.bindings())
    monkeypatch.setattr(bindings, 'load_bindings', lambda: recorder.modules)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    monkeypatch.setattr('trt_perception.offline.building.engine.verify._WARM_UP_S', 0)
    modules = []

    def put(recording, inputs=(IMAGE,), **tensors):
        module = Module(recording, inputs=inputs, **tensors)
        monkeypatch.setitem(sys.modules, 'tensorrt_rtx', module)
        modules.append(module)
        content = b'vtrt' + PLAN[4:]
        digest = hashlib.sha256(content).hexdigest()
        return ModelFile(tmp_path / 'x.engine', content, digest, None)

    put.recorder = recorder
    yield put
    assert recorder.kinds() == []
    assert [list(module.living) for module in modules] == [[]] * len(modules)


def verified(model, precision, shape=SHAPE, excluded_nodes=(), nodes=NODES):
    options = load_options(None, {'onnx': 'model.onnx', 'precision': precision})
    return verify_engine(model, options, shape, nodes, excluded_nodes)


@pytest.mark.parametrize(
    ('precision', 'counts'),
    [
        ('fp32', {'fp32': 9}),
        ('fp16', {'fp16': 8, 'fp32': 1}),
        ('bf16', {'bf16': 7, 'fp32': 3}),
    ],
)
def test_engine_in_the_requested_precision_passes_the_check(engine, precision, counts):
    seen = verified(engine(precision), precision)
    report = seen.as_dict()
    assert report['precision_as_built'] == counts
    assert report['not_as_asked'] == {}
    assert len(report['layers']) == sum(counts.values())
    assert 'stem' in report['layers'][1]['nodes']
    assert report['fused_nodes'] > 0
    assert report['context_bytes'] == 4096
    assert seen.latency.p50 == seen.latency.p99 == 1.5  # ms, from the stand-in's events
    assert json.dumps(report)


def test_runtime_cache_is_saved_for_the_node(engine, tmp_path):
    verified(engine('fp16'), 'fp16')
    (cached,) = (tmp_path / 'trt_perception' / 'runtime').iterdir()
    assert b'compiled' in cached.read_bytes()


def test_fp32_engine_is_refused_if_fp16_was_requested(engine, golden_messages):
    with golden_messages.raises(EngineError):
        verified(engine('fp32'), 'fp16')


def test_layers_in_a_wider_type_are_named(engine, monkeypatch):
    entry = json.loads(json.dumps(RECORDED['fp16']))
    wide = next(one for one in entry['Layers'] if 'wide' in one.get('Metadata', ''))
    for tensor in wide['Inputs']:
        tensor['Format/Datatype'] = 'Float'
    monkeypatch.setitem(RECORDED, 'partly', entry)
    model = engine('partly')
    assert dict(verified(model, 'fp16').deviations) == {'wide': 'fp32'}
    assert dict(verified(model, 'fp16', excluded_nodes={'wide'}).deviations) == {}


@pytest.mark.parametrize('fails', ['', 'cudaStreamEndCapture', 'cudaGraphInstantiate'])
def test_latency_is_measured_with_a_cuda_graph_if_possible(engine, fails):
    """If the capture of the graph fails, each run must call enqueue."""
    model = engine('fp16')
    engine.recorder.fails = lambda index, name: 'cudaErrorInvalidValue' if name == fails else None
    assert verified(model, 'fp16').latency.p50 == 1.5
    launched = sys.modules['tensorrt_rtx'].calls.count('execute_async_v3')
    assert launched == 2 if not fails else launched > 100


def test_engine_without_layer_information_still_reports_latency(engine):
    seen = verified(engine(''), 'fp16')
    assert seen.as_dict()['precision_as_built'] is None
    assert seen.layers == ()
    assert seen.latency.p50 == 1.5


@pytest.mark.parametrize('inputs', [(SIZES, IMAGE), (IMAGE, SIZES)])
def test_auxiliary_inputs_get_a_shape_and_zeros(engine, monkeypatch, inputs):
    """Some exports of RT-DETR have the original image sizes as a second input."""
    zeroed = {}  # number of bytes by address
    monkeypatch.setattr(
        inspector, 'clear_async', lambda pointer, size, stream: zeroed.update({pointer: size})
    )
    model = engine('fp16', inputs=inputs)
    module = sys.modules['tensorrt_rtx']

    assert verified(model, 'fp16').latency.p50 == 1.5

    assert module.calls.count('set_input_shape') == 2
    assert len(module.addresses) == 3  # two inputs, one output
    assert set(zeroed) == set(module.addresses.values())
    assert zeroed[module.addresses['images']] >= 4 * 3 * 48 * 64
    assert zeroed[module.addresses['orig_target_sizes']] >= 8 * 2


def test_dynamic_engine_is_timed_only_at_shapes_within_its_profile(engine, golden_messages):
    ranges = tuple((batch, 3, 48, 64) for batch in (1, 2, 4))
    model = engine(
        'fp16', inputs=(('images', (-1, 3, 48, 64), 'FLOAT'),), profiles=(ranges,), outputs=()
    )
    assert verified(model, 'fp16', (2, 3, 48, 64)).latency.p50 == 1.5
    with golden_messages.raises(EngineError):
        verified(model, 'fp16', (8, 3, 48, 64))


def test_inspection_loads_plugin_libraries_first(engine, tmp_path):
    library = tmp_path / 'libfancy.so'
    library.write_bytes(b'library of Fancy')
    model = engine('fp16')

    inspect_engine(model, gpu.Device(0), [library])

    calls = sys.modules['tensorrt_rtx'].calls
    assert calls.index('load_library') < calls.index('deserialize_cuda_engine')


def test_missing_layer_times_are_an_error(engine, golden_messages):
    with golden_messages.raises(EngineError):
        time_layers(engine('fp16'), gpu.Device(0), runs=3)
