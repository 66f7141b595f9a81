# SPDX-License-Identifier: Apache-2.0
"""Opens a model file with the pipeline that fits it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import Final

from trt_perception.errors import (
    ConfigError,
    EngineError,
    InterruptionError,
    ManifestError,
    MissingModelInfoError,
    TrtPerceptionError,
)
from trt_perception.model.files.model_file import ModelFile, read_model_file
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.cuda.cuda_pipeline import CudaPipeline
from trt_perception.pipelines.host.onnx_runtime_pipeline import OnnxRuntimePipeline
from trt_perception.pipelines.host.triton_pipeline import TritonPipeline
from trt_perception.pipelines.image_sized_pipeline import follow_image_size
from trt_perception.pipelines.pipeline import Pipeline, collect_all
from trt_perception.pipelines.warm_up import grey_frame
from trt_perception.stages.onnx_runtime import installed_providers

_LOG: Final = logging.getLogger(__name__)
_PROGRESS_PERIOD_S: Final = 10.0
# Errors of the model or the process, which would be the same with another provider.
_NOT_OF_THE_PROVIDER: Final = (
    ConfigError,
    InterruptionError,
    ManifestError,
    MissingModelInfoError,
)


def open_pipeline(path: str, options: PipelineOptions) -> Pipeline:
    """Open a model for a node: an engine, an ONNX file with `onnx_provider`, or a served model.

    Raises:
        ConfigError: the path is empty, or the address of a server is malformed.
        EngineError: the model cannot be used. The message says why, and how to correct it.
        CudaError: the file is an engine, and no GPU can run it.
    """
    if not path:
        raise ConfigError(
            "parameter 'engine_path'",
            'is empty',
            fix='name an engine or ONNX file: engine_path:=/path/to/model.onnx '
            '(detect.launch.py) or --ros-args -p engine_path:=/path/to/model.onnx (detector_node)',
        )
    model = read_model_file(path, accepts_server=True)
    return follow_image_size(options, lambda each: _open_pipeline(model, each))


def open_offline_pipeline(model: ModelFile, options: PipelineOptions) -> Pipeline:
    """Open a model file for use without a node. Results contain the values for masks and maps.

    Raises:
        EngineError: the model cannot be used. The message says why, and how to correct it.
        CudaError: the file is an engine, and no GPU can run it.
    """
    return follow_image_size(
        options, lambda each: _open_pipeline(model, each, returns_outputs=True)
    )


def _open_pipeline(
    model: ModelFile, options: PipelineOptions, *, returns_outputs: bool = False
) -> Pipeline:
    if model.address is not None:
        return TritonPipeline(model.address, options)
    if model.is_onnx:
        return open_onnx_pipeline(model, options)
    return CudaPipeline(model, options, returns_outputs=returns_outputs)


def open_onnx_pipeline(
    model: ModelFile, options: PipelineOptions, *, open_batch: int | None = None
) -> OnnxRuntimePipeline:
    """Open an ONNX model. A provider on the GPU runs once, so that it has built its engines.

    With `auto`, a provider that cannot be opened or fails in this run is logged, and the next one
    is tried: TensorRT, CUDA, CPU. Providers that this build of ONNX Runtime lacks cost nothing.

    Args:
        open_batch: as for OnnxRuntimePipeline.

    Raises:
        EngineError: the model cannot be opened, or the requested provider cannot be used.
    """
    name = model.path.name
    if options.onnx_provider != 'auto':
        return _open(model, options, options.onnx_provider, open_batch)
    installed = installed_providers(name)
    candidates = [provider for provider in ('tensorrt', 'cuda') if provider in installed]
    for provider in candidates:
        try:
            return _open(model, options, provider, open_batch)
        except _NOT_OF_THE_PROVIDER:  # noqa: PERF203
            raise
        except EngineError as error:
            _LOG.info('%s: provider %s is not used: %s', name, provider, error)
    pipeline = _open(model, options, 'cpu', open_batch)
    if candidates:
        refused = ' and '.join(candidates)
        text = '%s runs on the CPU, because %s do not work here: see the log, or set onnx_provider'
        _LOG.warning(text, name, refused, extra={'show': True})
    return pipeline


def _open(
    model: ModelFile, options: PipelineOptions, provider: str, open_batch: int | None
) -> OnnxRuntimePipeline:
    if provider == 'cpu':
        return OnnxRuntimePipeline(model, options, open_batch=open_batch)
    name = model.path.name
    with contextlib.ExitStack() as undo:
        with _progress_in_log(f'{name}: provider {provider}'):
            pipeline = OnnxRuntimePipeline(
                model, options, provider=provider, open_batch=open_batch
            )
            undo.callback(pipeline.close)
            _run_smallest_and_largest_batch(pipeline, name)
        undo.pop_all()
    counts = pipeline.node_counts or {}
    if on_cpu := counts.get('cpu'):
        text = '%s: the CPU runs %d of %d nodes, because provider %s does not'
        _LOG.warning(text, name, on_cpu, sum(counts.values()), provider, extra={'show': True})
    return pipeline


def _run_smallest_and_largest_batch(pipeline: OnnxRuntimePipeline, name: str) -> None:
    """Run grey images. TensorRT then has engines for all batch sizes between the two.

    Raises:
        EngineError: the model cannot be run by this provider.
    """
    try:
        for count in sorted({1, pipeline.batch}):
            pipeline.enqueue(0, [grey_frame()] * count, [Thresholds()] * count)
            collect_all(pipeline, 0)
    except TrtPerceptionError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        raise EngineError(
            name,
            f'provider {pipeline.provider} fails: {error}',
            fix='set onnx_provider to another provider',
        ) from error


@contextlib.contextmanager
def _progress_in_log(what: str) -> Iterator[None]:
    """Log the begin, each 10 s, and the end of a block that may take minutes.

    ONNX Runtime before 1.24 keeps the interpreter's lock, so that only begin and end are logged.
    """
    ended = threading.Event()
    started = time.monotonic()

    def report() -> None:
        while not ended.wait(_PROGRESS_PERIOD_S):
            # A warning, because tools show no other messages.
            _LOG.warning('%s is not ready after %.0f s', what, time.monotonic() - started)

    thread = threading.Thread(target=report, name='provider progress', daemon=True)
    _LOG.info('%s is being prepared. The first time, this can take minutes', what)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    _LOG.info('%s is ready after %.1f s', what, time.monotonic() - started)
