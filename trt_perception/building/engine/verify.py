"""Looking at an engine that was just built: loaded where a GPU is, by its header where none is."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from trt_perception.building.engine.inspector import inspect_engine, load_with_zero_inputs
from trt_perception.building.engine.layers import (
    LayerInfo,
    check_precision,
    layer_precisions,
    require_precision,
)
from trt_perception.building.engine.release import BuildGpu
from trt_perception.building.options.build_options import BuildOptions
from trt_perception.errors import TrtPerceptionError
from trt_perception.gpu import Device, Event, Graph
from trt_perception.model.files.model_file import ModelFile

__all__ = ['EngineCheck', 'EngineLatency', 'measure_latency', 'verify_engine', 'why_not_loadable']

_RUNS: Final = 200
# The GPU raises its clocks only after some work.
_WARM_UP_S: Final = 0.3


@dataclass(frozen=True)
class EngineLatency:
    """Time of the network alone on the GPU, in milliseconds, one image at a time."""

    p50: float
    p99: float

    def as_dict(self) -> dict[str, float]:
        """Return the figures as JSON has them."""
        return {'p50': self.p50, 'p99': self.p99}


@dataclass(frozen=True)
class EngineCheck:
    """What a loaded engine showed.

    Attributes:
        layers: in the order they run; empty where the engine reports none.
        deviations: type of each convolution and matrix product that has not the precision
            asked for, by ONNX node or by layer.
        context_bytes: memory of one context.
        latency: of the network alone.
    """

    layers: tuple[LayerInfo, ...]
    deviations: Mapping[str, str]
    context_bytes: int
    latency: EngineLatency

    @property
    def precisions(self) -> dict[str, int]:
        """How many layers compute in each type; empty where the engine does not report it."""
        return layer_precisions(self.layers)

    def as_dict(self) -> dict[str, Any]:
        """Return what the report's section on optimisation says."""
        return {
            'precision_as_built': self.precisions or None,
            'not_as_asked': dict(self.deviations),
            'layers': [
                {
                    'name': one.name,
                    'kind': one.kind,
                    'precision': one.precision,
                    'nodes': one.nodes,
                }
                for one in self.layers
            ],
            'fused_nodes': sum(len(one.nodes) for one in self.layers if len(one.nodes) > 1),
            'context_bytes': self.context_bytes,
        }


def why_not_loadable(gpu: BuildGpu | None, options: BuildOptions) -> str:
    """Return why an engine cannot be loaded on this machine, empty where it can."""
    if gpu is None:
        return 'no GPU here to load it on'
    targets = options.compute_capabilities
    if targets and gpu.compute_capability not in targets:
        return (
            f'built for compute capabilities {", ".join(targets)}; {gpu.name} here has '
            f'{gpu.compute_capability}'
        )
    return ''


def verify_engine(
    model: ModelFile,
    options: BuildOptions,
    shape: tuple[int, ...],
    nodes: Collection[str],
    excluded_nodes: Collection[str],
) -> EngineCheck:
    """Load an engine, hold its layers to the precision that was asked, and time it.

    Args:
        model: the engine.
        options: what was asked.
        shape: of the image input, to time it at.
        nodes: the model's convolutions and matrix products that shall have that precision.
        excluded_nodes: those that were to stay in another.

    Raises:
        EngineError: it cannot be loaded, or mostly computes in a wider type than asked.
        CudaError: a CUDA call failed.
    """
    device = Device(0)
    engine_info = inspect_engine(model, device)
    deviations: Mapping[str, str] = {}
    if any(layer.precision for layer in engine_info.layers):
        found = check_precision(engine_info.layers, options.precision, nodes, excluded_nodes)
        if not found.node_count:  # the release does not report which nodes a layer came from
            found = check_precision(engine_info.layers, options.precision)
        require_precision(found, model.path.name)
        deviations = found.deviations
    return EngineCheck(
        layers=engine_info.layers,
        deviations=deviations,
        context_bytes=max(engine_info.context_bytes, default=0),
        latency=measure_latency(model, device, shape),
    )


def measure_latency(model: ModelFile, device: Device, shape: tuple[int, ...]) -> EngineLatency:
    """Time an engine alone, on zeros, by a CUDA graph as in the node, where it can be captured.

    Args:
        model: the engine.
        device: must be the current one.
        shape: of the image input.

    Raises:
        EngineError: it cannot be run.
        CudaError: a CUDA call failed.
    """
    with (
        load_with_zero_inputs(model, device, shape) as (engine, context, stream),
        contextlib.ExitStack() as stack,
        Event() as start,
        Event() as end,
    ):
        launch = functools.partial(context.enqueue, stream)
        launch()  # what is done in the first run only cannot be captured
        stream.synchronize()
        if context.is_capturable(stream):
            with contextlib.suppress(TrtPerceptionError):
                graph = stack.enter_context(Graph(stream, launch))
                launch = functools.partial(graph.launch, stream)
        seconds: list[float] = []
        warm = time.perf_counter() + _WARM_UP_S
        while len(seconds) < _RUNS:
            start.record(stream)
            launch()
            end.record(stream)
            stream.synchronize()
            if time.perf_counter() > warm:
                seconds.append(end.seconds_since(start))
        engine.save_runtime_cache()  # the node's first start on this machine is its second
        p50, p99 = (float(value) for value in np.percentile(seconds, (50, 99)))
        return EngineLatency(p50 * 1e3, p99 * 1e3)
