# SPDX-License-Identifier: Apache-2.0
"""Tests of the choice of an execution provider when a pipeline is opened."""

from __future__ import annotations

import functools
import threading
from dataclasses import replace

import onnx
import onnxruntime
import pytest

from support.gpu_onnx_runtime import CPU, CUDA, TENSORRT, install_gpu_build
from support.models.detector_models import CLASS_NAMES, detector_model
from support.models.tiny_model import write_tiny_model
from trt_perception.errors import EngineError, MissingModelInfoError
from trt_perception.model.files.model_file import read_model_file
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines import open_pipeline
from trt_perception.pipelines.open_pipeline import open_onnx_pipeline
from trt_perception.pipelines.warm_up import warm_up

needs_cpu_build = pytest.mark.skipif(
    CUDA in onnxruntime.get_available_providers(), reason='this build has GPU providers'
)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


@pytest.fixture
def install(monkeypatch):
    return functools.partial(install_gpu_build, monkeypatch)


@pytest.fixture
def open_tiny(tmp_path):
    """Return a function that opens a small model with a value of `onnx_provider`."""

    def open_it(provider, **options):
        path = write_tiny_model(tmp_path / 'tiny.onnx')
        parameters = ParameterValues(onnx_provider=provider)
        return open_onnx_pipeline(
            read_model_file(path), replace(parameters.pipeline_options(), **options)
        )

    return open_it


def messages(caplog, level):
    return [record.getMessage() for record in caplog.records if record.levelname == level]


@needs_cpu_build
def test_cpu_build_opens_the_cpu_and_logs_nothing(open_tiny, caplog):
    caplog.set_level('INFO')
    pipeline = open_tiny('auto')
    assert pipeline.provider == 'cpu'
    assert warm_up(pipeline) > 0
    assert not caplog.records


@pytest.mark.parametrize('works', [(TENSORRT, CUDA), (CUDA,), (TENSORRT,)])
def test_auto_uses_the_first_provider_that_works(install, open_tiny, works, caplog):
    caplog.set_level('INFO')
    install(*works)
    pipeline = open_tiny('auto')
    assert pipeline.provider == ('tensorrt' if TENSORRT in works else 'cuda')
    assert not messages(caplog, 'WARNING')


@needs_cpu_build
def test_reason_for_each_refused_provider_is_logged_once(
    install, open_tiny, caplog, golden_messages
):
    caplog.set_level('INFO')
    install()
    assert open_tiny('auto').provider == 'cpu'
    refused = [each for each in messages(caplog, 'INFO') if 'not used' in each]
    assert len(refused) == 2
    (warning,) = messages(caplog, 'WARNING')
    golden_messages.add('\n'.join([*refused, warning]))
    assert [record.show for record in caplog.records if record.levelname == 'WARNING'] == [True]


def test_provider_that_fails_in_its_first_run_is_not_used(install, open_tiny):
    runtime = install(TENSORRT, CUDA, fails=[TENSORRT])
    assert open_tiny('auto').provider == 'cuda'
    assert len(runtime.requested) == 2


def test_requested_provider_that_fails_is_an_error(install, open_tiny, golden_messages):
    install(CUDA, fails=[CUDA])
    with golden_messages.raises(EngineError):
        open_tiny('cuda')


def test_error_of_the_model_is_not_tried_with_other_providers(install, tmp_path):
    runtime = install(TENSORRT, CUDA)
    path = tmp_path / 'plain.onnx'
    onnx.save_model(detector_model((1, 3, 64, 64)), path)
    with pytest.raises(MissingModelInfoError):
        open_onnx_pipeline(read_model_file(path), ParameterValues().pipeline_options())
    assert len(runtime.requested) == 1


@pytest.mark.parametrize(('cameras', 'largest'), [(3, 3), (20, 8), (1, 1)])
def test_smallest_and_largest_batch_run_before_the_first_image(
    install, tmp_path, cameras, largest
):
    runtime = install(TENSORRT)
    path = tmp_path / 'open.onnx'
    onnx.save_model(detector_model(('n', 3, 64, 64)), path)
    parameters = ParameterValues(
        model_decoder='dense',
        model_class_names=CLASS_NAMES,
        model_resize='letterbox',
        model_color_order='rgb',
        model_scale=1 / 255,
        onnx_provider='tensorrt',
    )
    options = replace(parameters.pipeline_options(), max_batch=cameras)
    pipeline = open_onnx_pipeline(read_model_file(path), options)
    assert pipeline.batch == largest
    assert {shape[0] for shape in runtime.shapes} == {1, largest}


def test_nodes_on_the_cpu_are_a_warning_for_the_diagnostics(
    install, open_tiny, caplog, golden_messages
):
    install(CUDA, nodes={CUDA: 7, CPU: 2})
    open_tiny('cuda')
    (record,) = caplog.records
    assert record.show
    golden_messages.add(record.getMessage())


def test_nodes_on_the_cpu_are_no_warning_if_the_cpu_was_chosen(install, open_tiny, caplog):
    install(nodes={CPU: 9})
    assert open_tiny('cpu').node_counts == {'cpu': 9}
    assert not caplog.records


def test_long_preparation_is_logged(install, open_tiny, monkeypatch, caplog):
    monkeypatch.setattr(open_pipeline, '_PROGRESS_PERIOD_S', 0.01)
    reported = threading.Event()
    log = open_pipeline._LOG
    monkeypatch.setattr(log, 'warning', lambda *_: reported.set())
    install(CUDA, on_load=lambda: reported.wait(60))
    open_tiny('cuda')
    assert reported.is_set()
