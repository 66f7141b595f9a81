"""Looking into a finished engine on a GPU: tensors, profiles, memory, layers and their times."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trt_perception.building.engine.layers import LayerInfo, parse_layers
from trt_perception.errors import EngineError
from trt_perception.gpu import Device, DeviceBuffer, Stream, clear_async
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.input_layout import split_inputs
from trt_perception.model.tensors import TENSOR_DTYPES, TensorSpec
from trt_perception.stages.tensorrt_runtime import TensorRtContext, TensorRtEngine

__all__ = ['EngineInfo', 'LayerTime', 'inspect_engine', 'load_with_zero_inputs', 'time_layers']


@dataclass(frozen=True)
class EngineInfo:
    """What a loaded engine reports of itself.

    Attributes:
        inputs: -1 for a side that may vary.
        outputs: likewise.
        profiles: for each profile (min, opt, max) of each input by name.
        context_bytes: memory that one context needs, by profile.
        weight_bytes: of the weights; None where the release does not report it.
        verbosity: how much the engine reports: ``none``, ``layer_names_only``, ``detailed``.
        refittable: whether weights can be replaced.
        extra_streams: that run next to the main one.
        layers: in the order they run; empty where the verbosity is none.
        load_s: time to load it.
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
    """Time of one layer.

    Attributes:
        layer: which.
        ms: mean over the runs, with a wait after each, so more than within a graph.
        share: of the sum over all layers.
    """

    layer: LayerInfo
    ms: float
    share: float


def inspect_engine(model: ModelFile, device: Device) -> EngineInfo:
    """Load an engine and read all it reports.

    Raises:
        EngineError: it cannot be loaded here.
    """
    start = time.perf_counter()
    engine = TensorRtEngine(model, device)
    try:
        return _facts(engine, time.perf_counter() - start)
    finally:
        engine.close()


def _facts(engine: TensorRtEngine, load_s: float) -> EngineInfo:
    trt = importlib.import_module(engine.header.module)
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
        weight_bytes=(  # came with 10.15
            int(native.get_engine_stat(trt.EngineStat.TOTAL_WEIGHTS_SIZE))
            if hasattr(native, 'get_engine_stat')
            else None
        ),
        verbosity=str(verbosity.name).lower(),
        refittable=bool(native.refittable),
        extra_streams=int(native.num_aux_streams),
        layers=_layers(trt, native),
        load_s=load_s,
    )


def _layers(trt: Any, native: Any) -> tuple[LayerInfo, ...]:
    if native.profiling_verbosity == trt.ProfilingVerbosity.NONE:
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
    """Measure each layer on zeros, at the shape that the first profile is tuned for.

    Args:
        model: the engine.
        device: must be the current one.
        runs: to take the mean of; as many again, at most 10, warm up.
        progress: called with how many runs are done, and of how many.

    Returns:
        slowest first.

    Raises:
        EngineError: the engine cannot be run here, or reports no times.
        CudaError: there is not enough memory.
    """
    with load_with_zero_inputs(model, device) as (engine, context, stream):
        trt = importlib.import_module(engine.header.module)
        layers = {layer.name: layer for layer in _layers(trt, engine.native)}
        for _ in range(min(runs, 10)):
            context.enqueue(stream)
            stream.synchronize()
        totals = _profile(trt, context, stream, runs, progress)
    if not totals:
        raise EngineError(str(model.path), 'TensorRT reported no times of layers')
    whole = sum(totals.values())
    times = [
        LayerTime(layers.get(name, LayerInfo(name)), total / runs, total / whole if whole else 0.0)
        for name, total in totals.items()
    ]
    return tuple(sorted(times, key=lambda row: row.ms, reverse=True))


@contextlib.contextmanager
def load_with_zero_inputs(
    model: ModelFile, device: Device, shape: tuple[int, ...] | None = None
) -> Iterator[tuple[TensorRtEngine, TensorRtContext, Stream]]:
    """Load an engine, and give it a context whose tensors are all zeros.

    Args:
        model: the engine.
        device: must be the current one.
        shape: of the image input; None for the one that the first profile is tuned for.

    Raises:
        EngineError: it cannot be run here.
        CudaError: there is not enough memory.
    """
    with contextlib.ExitStack() as stack:
        engine = TensorRtEngine(model, device)
        stack.callback(engine.close)
        stream = stack.enter_context(Stream())
        tuned = [_tuned_for(engine, tensor) for tensor in engine.inputs]
        image, auxiliary = tuned[0], tuple(tuned[1:])  # any engine, not a detector's only
        if shape is not None:
            image, auxiliary = split_inputs(model.path.name, tuned)
            image = dataclasses.replace(image, shape=shape)
        context = engine.create_context(image, stream, auxiliary)
        stack.callback(context.close)
        for tensor in (image, *auxiliary, *context.outputs):
            size = math.prod(tensor.shape) * TENSOR_DTYPES.get(tensor.dtype, 1)
            buffer = stack.enter_context(DeviceBuffer(max(256, size)))
            clear_async(buffer.pointer, buffer.size, stream)
            context.bind({tensor.name: buffer.pointer})
        yield engine, context, stream


def _tuned_for(engine: TensorRtEngine, tensor: TensorSpec) -> TensorSpec:
    if -1 not in tensor.shape:
        return tensor
    shape = engine.native.get_tensor_profile_shape(tensor.name, 0)[1]
    return dataclasses.replace(tensor, shape=tuple(int(side) for side in shape))


def _profile(
    trt: Any, context: Any, stream: Stream, runs: int, progress: Callable[[int, int], None]
) -> dict[str, float]:
    """Return the sum of milliseconds over the runs by layer."""
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
