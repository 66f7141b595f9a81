# SPDX-License-Identifier: Apache-2.0
"""Provide fixtures for tests of build_engine. Test files name this plugin in pytest_plugins.

The tests of a file repeat no equal work. Their builds share caches, onnxslim slims equal models
once, and ONNX Runtime runs equal models on equal images once. Tests that do not check the engine
may also let TensorRT build equal models with equal options once (`reuse_equal_plans`).
"""

import functools
import hashlib
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from support.folders import contents_by_path
from support.models.detector_models import read_report, run_build_engine
from support.models.digits import DIGITS
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.manifest import parse_manifest
from trt_perception.offline.building.engine import capabilities
from trt_perception.offline.building.engine.verify import EngineCheck, EngineLatency
from trt_perception.offline.building.precision import calibrate
from trt_perception.offline.building.steps import engine_steps, validation
from trt_perception.offline.building.steps.validation import open_model
from trt_perception.pipelines.host import onnx_runtime_pipeline
from trt_perception.stages.onnx_runtime import OnnxModel


class CachedOnnxModel(OnnxModel):
    """An ONNX model that stores its outputs. Equal models with equal inputs share them."""

    def __init__(self, answers, model, *arguments):
        super().__init__(model, *arguments)
        self._answers = answers
        self._content = hashlib.sha256(model.content).digest()

    def run(self, tensors):
        key = self._content, *((name, tensor_digest(tensor)) for name, tensor in tensors.items())
        if key not in self._answers:
            self._answers[key] = super().run(tensors)
        return [answer.copy() for answer in self._answers[key]]


def tensor_digest(tensor):
    return tensor.shape, tensor.dtype, hashlib.sha256(np.ascontiguousarray(tensor)).digest()


@pytest.fixture(scope='module')
def reuse_equal_results(tmp_path_factory):
    """Share caches and the results for equal models between all tests of a file."""
    import onnxslim  # a late import: it takes 0.8 s, and collection does not need it

    real, slimmed = onnxslim.slim, {}

    def slim(model):
        content = model.SerializeToString(deterministic=True)
        if content not in slimmed:
            slimmed[content] = real(model).SerializeToString()
        return onnx.load_from_string(slimmed[content])

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))
        patch.setattr(onnxslim, 'slim', slim)
        patch.setattr(onnx_runtime_pipeline, 'OnnxModel', functools.partial(CachedOnnxModel, {}))
        yield


#: Options that TensorRT receives only if it calibrates itself.
OPTIONS_NOT_FOR_TENSORRT = {
    *('onnx', 'output', 'json', 'report', 'store', 'store_keep_days', 'qdq_onnx', 'compare_fp16'),
    *('calibration_images', 'calibration_count', 'calibration_seed', 'calibration_cache'),
    *('calibration_method', 'validate', 'annotations'),
    *('max_accuracy_drop', 'accept_disagreement', 'decoder', 'class_names', 'class_names_file'),
    *('resize', 'shorter_side', 'filter', 'antialias', 'pad_value'),
    *('color_order', 'scale', 'mean', 'std'),
}


@pytest.fixture(scope='module')
def reuse_equal_plans(reuse_equal_results):
    """Let TensorRT build equal models with equal options only once."""
    real, plans = engine_steps.build_plan, {}

    def build_plan(content, options, tensorrt, *, fp32_nodes=(), calibration=None, **named):
        told = {k: v for k, v in options.as_dict().items() if k not in OPTIONS_NOT_FOR_TENSORRT}
        key = content, repr(told), repr(tensorrt), tuple(fp32_nodes)
        if calibration is not None or key not in plans:
            plans[key] = real(
                *(content, options, tensorrt),
                fp32_nodes=fp32_nodes,
                calibration=calibration,
                **named,
            )
        return plans[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_steps, 'build_plan', build_plan)
        yield


@pytest.fixture
def own_caches(tmp_path_factory, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))


@pytest.fixture
def build(tmp_path, reuse_equal_results):
    """Return a function that builds the digits model. It returns exit code, report, manifest."""

    def built(*words, onnx_file=DIGITS):
        engine, report = tmp_path / 'digits.engine', tmp_path / 'r.json'
        code = run_build_engine('--onnx', onnx_file, '--output', engine, '--json', report, *words)
        beside = engine.with_name('digits.engine.json')
        manifest = parse_manifest(beside.read_bytes(), 'm') if beside.exists() else None
        return SimpleNamespace(code=code, report=read_report(report), manifest=manifest)

    return built


@pytest.fixture
def build_error(tmp_path, capsys):
    """Return a function that runs a failing build, and returns the error message.

    The function checks that the build changed no file.
    """

    def refuse(*arguments, code=1):
        before = contents_by_path(tmp_path)
        capsys.readouterr()
        assert run_build_engine(*arguments) == code
        assert contents_by_path(tmp_path) == before
        message = capsys.readouterr().err
        assert message.startswith('build_engine: ')
        assert 'Traceback' not in message
        return message

    return refuse


@pytest.fixture
def clip_quantisation(monkeypatch):
    """Return a function that makes quantisation clip all data at a fraction of their range."""

    def spoiled(share):
        real = calibrate.quantise

        def quantise(*arguments, **named):
            done = real(*arguments, **named)
            index = {tensor.name: tensor for tensor in done.model.graph.initializer}
            scales = {n.input[1] for n in done.model.graph.node if n.op_type == 'QuantizeLinear'}
            for name in scales:
                scale = numpy_helper.to_array(index[name]) * np.float32(share)
                index[name].CopyFrom(numpy_helper.from_array(np.asarray(scale), name))
            return done

        monkeypatch.setattr(calibrate, 'quantise', quantise)

    return spoiled


@pytest.fixture
def gpu_that_runs(monkeypatch):
    """Return a function that makes engines give the outputs of an ONNX file, as if on a GPU."""

    def stand_in_for(model):
        seen = EngineCheck((), {}, 1024, EngineLatency(1.0, 1.0))
        monkeypatch.setattr(engine_steps, 'why_not_loadable', lambda *_: '')
        monkeypatch.setattr(engine_steps, 'verify_engine', lambda *_: seen)
        monkeypatch.setattr(engine_steps, 'Device', lambda _: None)
        monkeypatch.setattr(engine_steps, 'measure_latency', lambda *_: EngineLatency(2.0, 2.0))
        monkeypatch.setattr(capabilities, '_ONNX_RUNTIME_PROBLEMS', {})
        engines = []

        def stand_in(file):
            if not file.is_onnx:
                engines.append(file)
                file = read_model_file(model)
            return open_model(file)

        monkeypatch.setattr(validation, 'open_model', stand_in)
        return engines

    return stand_in_for
