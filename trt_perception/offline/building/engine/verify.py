# SPDX-License-Identifier: Apache-2.0
"""Checks a new engine on a GPU: precision of its layers, and latency."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from trt_perception.errors import TrtPerceptionError
from trt_perception.gpu import Device, Event, Graph
from trt_perception.model.files.model_file import ModelFile
from trt_perception.offline.building.engine.release import BuildGpu
from trt_perception.offline.building.inspection.inspector import (
    inspect_engine,
    load_with_zero_inputs,
)
from trt_perception.offline.building.inspection.layers import (
    LayerInfo,
    check_precision,
    compare_precision,
    layer_precisions,
)
from trt_perception.offline.building.options.build_options import BuildOptions

_TIMED_RUNS: Final = 200
# A GPU raises its clocks only under load.
_WARM_UP_S: Final = 0.3


@dataclass(frozen=True)
class EngineLatency:
    """GPU time of the network alone for one batch, in milliseconds: median and 99th percentile."""

    p50: float
    p99: float

    def as_dict(self) -> dict[str, float]:
        """Return the times as JSON values."""
        return {'p50': self.p50, 'p99': self.p99}


@dataclass(frozen=True)
class EngineCheck:
    """The results of checking a loaded engine.

    Attributes:
        layers: layers in order of execution; empty if the engine reports none.
        deviations: maps the name of an ONNX node or layer to its type, for each convolution and
            matrix product whose type is wider than requested.
        context_bytes: memory of one execution context in bytes, for the largest profile.
        latency: GPU time of the network alone.
    """

    layers: tuple[LayerInfo, ...]
    deviations: Mapping[str, str]
    context_bytes: int
    latency: EngineLatency

    @property
    def precisions(self) -> dict[str, int]:
        """Number of layers for each type of arithmetic; empty if the engine reports no types."""
        return layer_precisions(self.layers)

    def as_dict(self) -> dict[str, Any]:
        """Return the values for the section ``optimization`` of the report."""
        return {
            'precision_as_built': self.precisions or None,
            'not_as_asked': dict(self.deviations),
            'layers': [
                {
                    'name': layer.name,
                    'kind': layer.kind,
                    'precision': layer.precision,
                    'nodes': layer.nodes,
                }
                for layer in self.layers
            ],
            'fused_nodes': sum(len(layer.nodes) for layer in self.layers if len(layer.nodes) > 1),
            'context_bytes': self.context_bytes,
        }


def why_not_loadable(gpu: BuildGpu | None, options: BuildOptions) -> str:
    """Return why an engine cannot be loaded on this machine; empty if it can."""
    if gpu is None:
        return 'this machine has no GPU'
    targets = options.compute_capabilities
    if targets and gpu.compute_capability not in targets:
        return (
            f'built for compute capabilities {", ".join(targets)}; this machine has {gpu.name}, '
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
    """Load an engine, check the precision of its layers, and measure its latency.

    Args:
        shape: shape of the image input for the latency, (N, 3, H, W).
        excluded_nodes: nodes that deliberately have another precision than requested.

    Raises:
        EngineError: the engine cannot be loaded, or mostly computes in a wider type than
            requested.
        CudaError: a CUDA call failed.
    """
    device = Device(0)
    engine_info = inspect_engine(model, device, options.plugin_libraries)
    deviations: Mapping[str, str] = {}
    if any(layer.precision for layer in engine_info.layers):
        check = compare_precision(engine_info.layers, options.precision, nodes, excluded_nodes)
        if not check.node_count:  # this release of TensorRT does not report a layer's ONNX nodes
            check = compare_precision(engine_info.layers, options.precision)
        check_precision(check, model.path.name)
        deviations = check.deviations
    return EngineCheck(
        layers=engine_info.layers,
        deviations=deviations,
        context_bytes=max(engine_info.context_bytes, default=0),
        latency=measure_latency(model, device, shape),
    )


def measure_latency(
    model: ModelFile, device: Device, shape: tuple[int, ...] | None = None
) -> EngineLatency:
    """Measure the GPU time of an engine alone, with zeros as input.

    Like the node, this function runs the engine as a CUDA graph if it can be captured. It also
    saves the runtime cache, so that the node's first start on this machine finds it.

    Args:
        shape: shape of the image input, (N, 3, H, W); None for the opt shape of the first profile.

    Raises:
        EngineError: the engine cannot run on this machine.
        CudaError: a CUDA call failed.
    """
    with (
        load_with_zero_inputs(model, device, shape) as (engine, context, stream),
        contextlib.ExitStack() as stack,
        Event() as start,
        Event() as end,
    ):
        launch = functools.partial(context.enqueue, stream)
        launch()  # the first run does work that cannot be captured
        stream.synchronize()
        if context.is_capturable(stream):
            with contextlib.suppress(TrtPerceptionError):
                graph = stack.enter_context(Graph(stream, launch))
                launch = functools.partial(graph.launch, stream)
        seconds: list[float] = []
        warm_until_s = time.perf_counter() + _WARM_UP_S
        while len(seconds) < _TIMED_RUNS:
            start.record(stream)
            launch()
            end.record(stream)
            stream.synchronize()
            if time.perf_counter() > warm_until_s:
                seconds.append(end.seconds_since(start))
        engine.save_runtime_cache()
        p50, p99 = (float(value) for value in np.percentile(seconds, (50, 99)))
        return EngineLatency(p50 * 1e3, p99 * 1e3)
