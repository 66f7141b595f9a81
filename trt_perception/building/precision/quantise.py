"""Quantise a model with images: explicit Q/DQ that TensorRT accepts, INT8 or FP8.

ONNX Runtime's quantiser writes the Q/DQ nodes; which layers, with which ranges, is decided here.
Symmetric, weights per output channel, activations per tensor, biases in float: anything else
TensorRT's parser refuses. Only what a layer *reads* is quantised: behind a convolution stands
its activation, and TensorRT fuses both when nothing stands between them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from trt_perception.building.calibration.activations import collect_histograms, input_shapes
from trt_perception.building.calibration.cache import (
    cache_path,
    calibration_identity,
    read_ranges,
    write_ranges,
)
from trt_perception.building.calibration.images import CalibrationImages
from trt_perception.building.calibration.ranges import PERCENTILE, VERSION, Method
from trt_perception.building.graph.graph_index import GraphIndex, match_nodes, name_nodes
from trt_perception.building.graph.heads import find_head
from trt_perception.building.graph.mac_count import count_layer_macs, infer_shapes, mac_shares
from trt_perception.building.graph.opsets import upgrade_opset
from trt_perception.building.precision.quantise_check import check_quantised
from trt_perception.building.precision.quantise_fp8 import convert_to_fp8
from trt_perception.building.precision.quantise_scales import (
    check_weights,
    fit_scales,
    unquantisable_layers,
)
from trt_perception.errors import ConfigError, EngineError
from trt_perception.files.plain_text import join_first

__all__ = ['QuantisationReport', 'QuantisedModel', 'quantise']

# From opset 19 on a scale may have the type of the rest of the network, and FP8 exists.
_OPSET = 19
_FP16_LARGEST = 65504.0
_SETTINGS = {
    'ActivationSymmetric': True,
    'WeightSymmetric': True,
    'QuantizeBias': False,
}


@dataclass(frozen=True)
class QuantisationReport:
    """How a model was quantised.

    Attributes:
        tool: what wrote the Q/DQ nodes, with its version.
        target: ``int8`` or ``fp8``.
        method: how ranges were cut.
        images: how many, of how many, the seed, and the hash over their contents.
        cache: ``off``, ``reused``, or why ranges were computed.
        layers: how many layers with weights the model has.
        quantised: how many of them are quantised.
        macs: share of all multiply-accumulates by precision, 0…1.
        kept: by node, why it stays in float.
        warnings: about images and ranges, one sentence each.
        seconds: wall time of all.
    """

    tool: str
    target: str
    method: str
    images: Mapping[str, Any]
    cache: str
    layers: int
    quantised: int
    macs: Mapping[str, float]
    kept: Mapping[str, str]
    warnings: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class QuantisedModel:
    """A model with Q/DQ nodes, the rest in float32, and how it was made."""

    model: onnx.ModelProto
    report: QuantisationReport


def quantise(
    model: onnx.ModelProto,
    images: CalibrationImages,
    *,
    method: Method = 'minmax',
    target: str = 'int8',
    keep_float: Sequence[str] = (),
    cache_dir: Path | None = None,
) -> QuantisedModel:
    """Quantise the layers of a float32 model, but for the bare output layers of its head.

    Args:
        model: float32, not changed.
        images: what to calibrate with, as the network takes them.
        method: how ranges are cut, see calibration_ranges.
        target: ``int8`` or ``fp8`` (E4M3).
        keep_float: patterns of node names that stay in float too.
        cache_dir: where ranges are kept, None for nowhere.

    Returns:
        The model at opset 19 or above, in FP32 between the Q/DQ nodes, and the report.

    Raises:
        ConfigError: the images cannot serve, or a pattern matches no node.
        EngineError: the model cannot be quantised: not float32, quantised already, does not run.
    """
    start = time.perf_counter()
    source = upgrade_opset(model, _OPSET)
    name_nodes(source)
    shape = input_shapes(source, images.preprocessing)
    kept = _kept_layers(source, keep_float, shape)
    index = GraphIndex(source.graph)
    chosen = _chosen(index, kept)
    ranges, cache = _ranges(source, chosen, images, method, cache_dir)
    idle = _idle(chosen, ranges, index)
    images.progress('quantising', 0, 1)
    result = _with_nodes(source, [n.name for n in chosen if n.name not in idle], ranges, target)
    images.progress('quantising', 1, 1)
    work = count_layer_macs(result, shape)
    report = QuantisationReport(
        tool=_tool(),
        target=target,
        method=method,
        images=images.selection.as_dict(),
        cache=cache,
        layers=sum(index.is_layer(node) for node in source.graph.node),
        quantised=sum(layer.precision == target for layer in work),
        macs=mac_shares(work),
        kept={**kept, **idle},
        warnings=(*images.warnings, *_about_ranges(ranges, idle)),
        seconds=time.perf_counter() - start,
    )
    return QuantisedModel(result, report)


def _ranges(
    source: onnx.ModelProto,
    layers: Sequence[onnx.NodeProto],
    images: CalibrationImages,
    method: Method,
    cache_dir: Path | None,
) -> tuple[dict[str, float], str]:
    """Return the range of each tensor that the layers read, and where they came from."""
    tensors = list(dict.fromkeys(node.input[0] for node in layers))
    identity = calibration_identity(source, images.selection, images.preprocessing)
    path = cache_path(cache_dir, 'json', identity, method, PERCENTILE, VERSION)
    ranges, cache = read_ranges(path, tensors)
    if ranges is None:
        found = collect_histograms(source, tensors, images)
        ranges = {name: seen.choose_range(method) for name, seen in found.items()}
        cache += write_ranges(path, ranges)
    return ranges, cache


def _chosen(index: GraphIndex, kept: Mapping[str, str]) -> list[onnx.NodeProto]:
    """Return the layers to quantise, whose weights are numbers."""
    chosen = [n for n in index.graph.node if index.is_layer(n) and n.name not in kept]
    if not chosen:
        raise EngineError(
            'the model',
            'no layer is left to quantise',
            fix='keep fewer layers in float',
        )
    check_weights(chosen, index)
    return chosen


def _idle(
    layers: Sequence[onnx.NodeProto], ranges: Mapping[str, float], index: GraphIndex
) -> dict[str, str]:
    """Return the layers whose ranges cannot be used, and why; never all of them."""
    idle = unquantisable_layers(layers, ranges, index)
    if len(idle) == len(layers):
        raise EngineError(
            'the model',
            f'no layer can be quantised: {_listed(idle)}',
            fix='check the images, and that --scale, --mean and --std are those of the training',
        )
    return idle


def _listed(found: Mapping[str, str]) -> str:
    return join_first([f'{name}: {reason}' for name, reason in found.items()], separator='; ')


def _kept_layers(
    model: onnx.ModelProto,
    patterns: Sequence[str],
    shapes: Mapping[str, Sequence[int]],
) -> dict[str, str]:
    """Return which layers of a float32 model stay in float, and why.

    Raises:
        ConfigError: a pattern matches no node, or all of them none that could be quantised.
        EngineError: layers have another type.
    """
    work = count_layer_macs(model, shapes)
    if any(layer.precision != 'fp32' for layer in work):
        kinds = ', '.join(sorted({layer.precision for layer in work}))
        raise EngineError(
            'the model',
            f'layers in {kinds}',
            expected='an FP32 model to quantise',
            fix='export it in FP32',
        )
    head = find_head(model, {layer.node: layer.macs for layer in work})
    kept = dict.fromkeys(head.layers, 'output layer of the head')
    kept |= dict.fromkeys(head.fixed, 'part of the decoding')
    layers = {layer.node for layer in work}
    asked = [name for name in match_nodes(model, patterns) if name in layers]
    if patterns and not asked:
        raise ConfigError(
            ', '.join(map(repr, patterns)),
            'matches no layer that could be quantised, only nodes without weights',
            fix='name layers with weights',
        )
    return dict.fromkeys(asked, 'asked for') | kept


def _about_ranges(ranges: Mapping[str, float], idle: Mapping[str, str]) -> Iterator[str]:
    """Yield what the user should know of tensors that are nearly 0, or too large for FP16."""
    if idle:
        yield (
            f'these layers stay in float: {_listed(idle)}. If the camera sees things that '
            'these images do not show, calibrate with images of them too'
        )
    large = [name for name, top in ranges.items() if top > _FP16_LARGEST]
    if large:
        yield (
            f'{join_first(large)} exceed {_FP16_LARGEST:.0f}, the most that FP16 '
            'holds, in which the engine computes what is not quantised: keep the nodes that make '
            'them in FP32 (--keep-fp32)'
        )


def _with_nodes(
    source: onnx.ModelProto, nodes: Sequence[str], ranges: Mapping[str, float], target: str
) -> onnx.ModelProto:
    """Return the model with Q/DQ nodes of the target's type at these layers, checked."""
    result = _insert(source, nodes, ranges)
    if target == 'fp8':
        result = convert_to_fp8(result, source)
    fit_scales(result)
    check_quantised(result)
    onnx.checker.check_model(result)
    return result


def _insert(
    model: onnx.ModelProto, nodes: Sequence[str], ranges: Mapping[str, float]
) -> onnx.ModelProto:
    """Let ONNX Runtime write Q/DQ nodes at the data and the weights of these layers."""
    from onnxruntime import quantization
    from onnxruntime.quantization import calibrate

    wanted = set(nodes)
    chosen = [node for node in model.graph.node if node.name in wanted]
    tops = {node.input[0]: np.float32(ranges[node.input[0]]) for node in chosen}
    limits = {name: (-top, top) for name, top in tops.items()}
    kinds = sorted({node.op_type for node in chosen})
    quantizer = quantization.QDQQuantizer(
        model=infer_shapes(model),
        per_channel=True,
        reduce_range=False,
        weight_qType=quantization.QuantType.QInt8,
        activation_qType=quantization.QuantType.QInt8,
        tensors_range=calibrate.TensorsData(quantization.CalibrationMethod.MinMax, limits),
        nodes_to_quantize=list(nodes),
        nodes_to_exclude=[],
        op_types_to_quantize=kinds,
        extra_options={**_SETTINGS, 'OpTypesToExcludeOutputQuantization': kinds},
    )
    log = logging.getLogger()
    level = log.level
    log.setLevel(logging.ERROR)  # it reports to the root logger what is meant here
    try:
        quantizer.quantize_model()
        quantizer.model.topological_sort()
    finally:
        log.setLevel(level)
    result: onnx.ModelProto = quantizer.model.model
    return result


def _tool() -> str:
    import onnxruntime

    return f'onnxruntime {onnxruntime.__version__}'
