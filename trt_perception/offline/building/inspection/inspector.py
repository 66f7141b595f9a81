# SPDX-License-Identifier: Apache-2.0
"""Inspects an engine on a GPU: tensors, profiles, memory, layers and layer times."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trt_perception.errors import EngineError
from trt_perception.gpu import Device, DeviceBuffer, Stream, clear_async
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.input_layout import split_inputs
from trt_perception.model.tensors import BYTES_BY_DTYPE, TensorSpec
from trt_perception.offline.building.inspection.layers import LayerInfo, parse_layers
from trt_perception.stages.tensorrt.runtime import TensorRtContext, TensorRtEngine


@dataclass(frozen=True)
class EngineInfo:
    """Properties that a loaded engine reports.

    Attributes:
        inputs: input tensors; a dynamic dimension is -1.
        outputs: output tensors; a dynamic dimension is -1.
        profiles: for each profile, maps an input's name to its shapes (min, opt, max).
        context_bytes: memory of one execution context in bytes, for each profile.
        weight_bytes: size of the weights; None if the release does not report it.
        verbosity: profiling verbosity of the build: ``none``, ``layer_names_only``, ``detailed``.
        refittable: whether the weights can be replaced.
        extra_streams: number of CUDA streams in addition to the main stream.
        layers: layers in order of execution; empty if the verbosity is ``none``,
            or the lean runtime loaded the engine.
        load_s: time to load the engine, in seconds.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    profiles: tuple[dict[str, tuple[tuple[int, ...], ...]], ...]
    context_bytes: tuple[int, ...]
    weight_bytes: int | None
    verbosity: str
    refittable: bool
    extra_streams: int
    layers: tuple[LayerInfo, ...]
    load_s: float


@dataclass(frozen=True)
class LayerTime:
    """The measured time of one layer.

    Attributes:
        ms: mean time in milliseconds. The CPU waits after each run, so a layer takes longer than
            in a CUDA graph.
        share: this time divided by the sum over all layers, 0…1.
    """

    layer: LayerInfo
    ms: float
    share: float


def inspect_engine(
    model: ModelFile, device: Device, plugin_libraries: Sequence[str | Path] = ()
) -> EngineInfo:
    """Load an engine and read its properties.

    Args:
        plugin_libraries: paths of plugin libraries. They stay loaded in this process.

    Raises:
        EngineError: the engine cannot be loaded on this machine.
    """
    start = time.perf_counter()
    engine = TensorRtEngine(model, device, plugin_libraries)
    try:
        return _read_engine_info(engine, time.perf_counter() - start)
    finally:
        engine.close()


def _read_engine_info(engine: TensorRtEngine, load_s: float) -> EngineInfo:
    trt = importlib.import_module(engine.module)
    native = engine.native
    verbosity = native.profiling_verbosity
    profiles = range(native.num_optimization_profiles)
    return EngineInfo(
        inputs=engine.inputs,
        outputs=engine.outputs,
        profiles=tuple(
            {
                tensor.name: tuple(
                    tuple(int(side) for side in shape)
                    for shape in native.get_tensor_profile_shape(tensor.name, profile)
                )
                for tensor in engine.inputs
            }
            for profile in profiles
        ),
        context_bytes=tuple(
            int(native.get_device_memory_size_for_profile_v2(profile)) for profile in profiles
        ),
        weight_bytes=(  # needs TensorRT 10.15
            int(native.get_engine_stat(trt.EngineStat.TOTAL_WEIGHTS_SIZE))
            if hasattr(native, 'get_engine_stat')
            else None
        ),
        verbosity=str(verbosity.name).lower(),
        refittable=bool(native.refittable),
        extra_streams=int(native.num_aux_streams),
        layers=_read_layers(trt, native),
        load_s=load_s,
    )


def _read_layers(trt: Any, native: Any) -> tuple[LayerInfo, ...]:
    has_inspector = hasattr(trt, 'EngineInspector')  # the lean runtime has none
    if not has_inspector or native.profiling_verbosity == trt.ProfilingVerbosity.NONE:
        return ()
    inspector = native.create_engine_inspector()
    return parse_layers(str(inspector.get_engine_information(trt.LayerInformationFormat.JSON)))


def time_layers(
    model: ModelFile,
    device: Device,
    *,
    runs: int = 50,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> tuple[LayerTime, ...]:
    """Measure the time of each layer, with zeros as input, at the opt shape of the first profile.

    Args:
        runs: number of measured runs. As many warm-up runs, but at most 10, come first.
        progress: called after each run, with the number of finished runs and of all runs.

    Returns:
        The layer times, slowest first.

    Raises:
        EngineError: the engine cannot run on this machine, or reports no times.
        CudaError: a CUDA call failed, for example because GPU memory is exhausted.
    """
    with load_with_zero_inputs(model, device) as (engine, context, stream):
        trt = importlib.import_module(engine.module)
        layers = {layer.name: layer for layer in _read_layers(trt, engine.native)}
        for _ in range(min(runs, 10)):
            context.enqueue(stream)
            stream.synchronize()
        totals = _sum_layer_times(trt, context, stream, runs, progress)
    if not totals:
        raise EngineError(str(model.path), 'TensorRT reported no layer times')
    total_ms = sum(totals.values())
    times = [
        LayerTime(
            layers.get(name, LayerInfo(name)), total / runs, total / total_ms if total_ms else 0.0
        )
        for name, total in totals.items()
    ]
    return tuple(sorted(times, key=lambda row: row.ms, reverse=True))


@contextlib.contextmanager
def load_with_zero_inputs(
    model: ModelFile, device: Device, shape: tuple[int, ...] | None = None
) -> Iterator[tuple[TensorRtEngine, TensorRtContext, Stream]]:
    """Load an engine, and create a context whose tensors are filled with zeros.

    Args:
        shape: shape of the image input; None for the opt shape of the first profile.

    Yields:
        The engine, its context, and the stream to run the context on.

    Raises:
        EngineError: the engine cannot run on this machine.
        CudaError: a CUDA call failed, for example because GPU memory is exhausted.
    """
    with contextlib.ExitStack() as stack:
        engine = TensorRtEngine(model, device)
        stack.callback(engine.close)
        stream = stack.enter_context(Stream())
        tensors = [_with_opt_shape(engine, tensor) for tensor in engine.inputs]
        image, auxiliary = tensors[0], tuple(tensors[1:])  # the engine may not be a detector
        if shape is not None:
            image, auxiliary = split_inputs(model.path.name, tensors)
            image = dataclasses.replace(image, shape=shape)
        context = engine.create_context(image, stream, auxiliary)
        stack.callback(context.close)
        for tensor in (image, *auxiliary, *context.outputs):
            size = math.prod(tensor.shape) * BYTES_BY_DTYPE.get(tensor.dtype, 1)
            buffer = stack.enter_context(DeviceBuffer(max(256, size)))
            clear_async(buffer.pointer, buffer.size, stream)
            context.bind({tensor.name: buffer.pointer})
        yield engine, context, stream


def _with_opt_shape(engine: TensorRtEngine, tensor: TensorSpec) -> TensorSpec:
    if -1 not in tensor.shape:
        return tensor
    shape = engine.native.get_tensor_profile_shape(tensor.name, 0)[1]
    return dataclasses.replace(tensor, shape=tuple(int(side) for side in shape))


def _sum_layer_times(
    trt: Any, context: Any, stream: Stream, runs: int, progress: Callable[[int, int], None]
) -> dict[str, float]:
    """Map each layer name to the sum of its times over all runs, in milliseconds."""
    totals: dict[str, float] = {}

    class Profiler(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            totals[layer_name] = totals.get(layer_name, 0.0) + ms

    execution = context.native
    execution.profiler = Profiler()
    for done in range(runs):
        context.enqueue(stream)
        stream.synchronize()
        progress(done + 1, runs)
    return totals
