# SPDX-License-Identifier: Apache-2.0
"""Quantises a model with images, to INT8 or FP8, with the Q/DQ nodes that TensorRT accepts.

ONNX Runtime's quantiser writes the Q/DQ nodes; this module chooses layers and ranges. TensorRT's
parser accepts only symmetric quantisation with float biases. Weights have one scale per output
channel, activations one per tensor. Only inputs of layers are quantised: TensorRT fuses a
convolution with the activation behind it only if no nodes lie between them.
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

from trt_perception.errors import ConfigError, EngineError
from trt_perception.files.plain_text import join_first_items
from trt_perception.offline.building.calibration.activations import (
    collect_histograms,
    input_shapes,
)
from trt_perception.offline.building.calibration.cache import (
    cache_path,
    calibration_identity,
    read_ranges,
    write_ranges,
)
from trt_perception.offline.building.calibration.images import CalibrationImages
from trt_perception.offline.building.calibration.ranges import (
    PERCENTILE,
    RANGES_VERSION,
    CalibrationMethod,
)
from trt_perception.offline.building.graph.graph_index import GraphIndex, match_nodes, name_nodes
from trt_perception.offline.building.graph.heads import find_head
from trt_perception.offline.building.graph.mac_count import (
    count_layer_macs,
    infer_shapes,
    mac_shares_by_precision,
)
from trt_perception.offline.building.graph.opsets import upgrade_opset
from trt_perception.offline.building.precision.quantise_check import check_quantised
from trt_perception.offline.building.precision.quantise_fp8 import convert_to_fp8
from trt_perception.offline.building.precision.quantise_scales import (
    adjust_scales,
    check_weights,
    unquantisable_layers,
)

# From opset 19 on, ONNX has FP8, and scales in other types than float32.
_MIN_OPSET = 19
_FP16_MAX = 65504.0
_QUANTISER_SETTINGS = {
    'ActivationSymmetric': True,
    'WeightSymmetric': True,
    'QuantizeBias': False,
}


@dataclass(frozen=True)
class QuantisationReport:
    """Describes how a model was quantised.

    Attributes:
        target: ``int8`` or ``fp8``.
        images: number of used and found images, the seed, and a hash of their contents.
        cache: ``off``, ``reused``, or why ranges were not reused.
        macs: share of all multiply-accumulates, by precision, 0…1.
        kept: why a layer stays in float, by node name.
        seconds: time for calibration and quantisation, in seconds.
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
    """A model with Q/DQ nodes, otherwise in float32, and the report on its quantisation."""

    model: onnx.ModelProto
    report: QuantisationReport


def quantise(
    model: onnx.ModelProto,
    images: CalibrationImages,
    *,
    method: CalibrationMethod = 'minmax',
    target: str = 'int8',
    keep_float: Sequence[str] = (),
    cache_dir: Path | None = None,
) -> QuantisedModel:
    """Quantise the layers of a float32 model, except for the output layers of its head.

    Args:
        model: float32 model, not changed.
        images: calibration images, preprocessed like images at run time.
        target: ``int8`` or ``fp8`` (E4M3).
        keep_float: patterns of node names that stay in float.
        cache_dir: folder for ranges; None to store no ranges.

    Returns:
        The model with opset 19 or newer, in FP32 between the Q/DQ nodes, and the report.

    Raises:
        ConfigError: the images cannot be used, or a pattern matches no node.
        EngineError: the model cannot be quantised: it is not in float32, is quantised already, or
            does not run.
    """
    start = time.perf_counter()
    source = upgrade_opset(model, _MIN_OPSET)
    name_nodes(source)
    shape = input_shapes(source, images.preprocessing)
    kept = _layers_to_keep(source, keep_float, shape)
    index = GraphIndex(source.graph)
    chosen = _layers_to_quantise(index, kept)
    ranges, cache = _find_ranges(source, chosen, images, method, cache_dir)
    unusable = unquantisable_layers(chosen, ranges, index)
    if len(unusable) == len(chosen):
        raise EngineError(
            'the model',
            f'no layer can be quantised: {_list_reasons(unusable)}',
            fix='check the images, and use the --scale, --mean and --std of the training',
        )
    images.progress('quantising', 0, 1)
    result = _quantise_layers(
        source, [n.name for n in chosen if n.name not in unusable], ranges, target
    )
    images.progress('quantising', 1, 1)
    work = count_layer_macs(result, shape)
    report = QuantisationReport(
        tool=_tool_name(),
        target=target,
        method=method,
        images=images.selection.as_dict(),
        cache=cache,
        layers=sum(index.is_layer(node) for node in source.graph.node),
        quantised=sum(layer.precision == target for layer in work),
        macs=mac_shares_by_precision(work),
        kept={**kept, **unusable},
        warnings=(*images.warnings, *_range_warnings(ranges, unusable)),
        seconds=time.perf_counter() - start,
    )
    return QuantisedModel(result, report)


def _find_ranges(
    source: onnx.ModelProto,
    layers: Sequence[onnx.NodeProto],
    images: CalibrationImages,
    method: CalibrationMethod,
    cache_dir: Path | None,
) -> tuple[dict[str, float], str]:
    """Return the range of each tensor that the layers read, and whether the cache had them."""
    tensors = list(dict.fromkeys(node.input[0] for node in layers))
    identity = calibration_identity(source, images.selection, images.preprocessing)
    path = cache_path(cache_dir, 'json', identity, method, PERCENTILE, RANGES_VERSION)
    ranges, cache = read_ranges(path, tensors)
    if ranges is None:
        found = collect_histograms(source, tensors, images)
        ranges = {name: seen.choose_range(method) for name, seen in found.items()}
        cache += write_ranges(path, ranges)
    return ranges, cache


def _layers_to_quantise(index: GraphIndex, kept: Mapping[str, str]) -> list[onnx.NodeProto]:
    """Return the layers to quantise.

    Raises:
        EngineError: no layer is left, or weights contain NaN or infinity.
    """
    chosen = [n for n in index.graph.node if index.is_layer(n) and n.name not in kept]
    if not chosen:
        raise EngineError(
            'the model',
            'no layer is left to quantise',
            fix='use narrower patterns for --keep-float',
        )
    check_weights(chosen, index)
    return chosen


def _list_reasons(found: Mapping[str, str]) -> str:
    return join_first_items(
        [f'{name}: {reason}' for name, reason in found.items()], separator='; '
    )


def _layers_to_keep(
    model: onnx.ModelProto,
    patterns: Sequence[str],
    shapes: Mapping[str, Sequence[int]],
) -> dict[str, str]:
    """Return the layers of a float32 model that stay in float, each with the reason.

    Raises:
        ConfigError: a pattern matches no node, or the patterns match no layer with weights.
        EngineError: a layer is not in float32.
    """
    work = count_layer_macs(model, shapes)
    if any(layer.precision != 'fp32' for layer in work):
        kinds = ', '.join(sorted({layer.precision for layer in work}))
        raise EngineError(
            'the model',
            f'layers in {kinds}',
            expected='a model in FP32',
            fix='export the model in FP32',
        )
    head = find_head(model, {layer.node: layer.macs for layer in work})
    kept = dict.fromkeys(head.layers, 'output layer of the head')
    kept |= dict.fromkeys(head.fixed, 'part of the decoding')
    layers = {layer.node for layer in work}
    asked = [name for name in match_nodes(model, patterns) if name in layers]
    if patterns and not asked:
        raise ConfigError(
            ', '.join(map(repr, patterns)),
            'matches only nodes without weights, which are never quantised',
            fix='use patterns that match layers with weights',
        )
    return dict.fromkeys(asked, 'requested by the user') | kept


def _range_warnings(ranges: Mapping[str, float], unusable: Mapping[str, str]) -> Iterator[str]:
    """Yield warnings about layers that stay in float, and values too large for FP16."""
    if unusable:
        yield (
            f'these layers stay in float: {_list_reasons(unusable)}. Calibrate with more images '
            'if the camera sees objects that these images do not show'
        )
    large = [name for name, top in ranges.items() if top > _FP16_MAX]
    if large:
        yield (
            f'{join_first_items(large)} exceed {_FP16_MAX:.0f}, the largest number in FP16. The '
            'engine computes unquantised layers in FP16: keep the nodes that compute these '
            'tensors in FP32 (--keep-fp32)'
        )


def _quantise_layers(
    source: onnx.ModelProto, nodes: Sequence[str], ranges: Mapping[str, float], target: str
) -> onnx.ModelProto:
    """Return a checked model with Q/DQ nodes of the target type at these layers."""
    result = _insert_qdq_nodes(source, nodes, ranges)
    if target == 'fp8':
        result = convert_to_fp8(result, source)
    adjust_scales(result)
    check_quantised(result)
    onnx.checker.check_model(result)
    return result


def _separate_biases(model: onnx.ModelProto) -> None:
    """Give each layer its own bias, in place.

    ONNX Runtime's quantiser copies shared biases to names that other tensors may have.
    """
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    used: set[str] = set()
    for node in model.graph.node:
        if node.op_type not in ('Conv', 'ConvTranspose', 'Gemm') or len(node.input) < 3:
            continue
        bias = node.input[2]
        if bias in used and bias in constants:
            own = onnx.TensorProto.FromString(constants[bias].SerializeToString())
            own.name = node.input[2] = f'{node.output[0]}/own_bias'
            model.graph.initializer.append(own)
        used.add(bias)


def _insert_qdq_nodes(
    model: onnx.ModelProto, nodes: Sequence[str], ranges: Mapping[str, float]
) -> onnx.ModelProto:
    """Let ONNX Runtime write Q/DQ nodes for the data and weights of these layers."""
    from onnxruntime import quantization
    from onnxruntime.quantization import calibrate

    wanted = set(nodes)
    chosen = [node for node in model.graph.node if node.name in wanted]
    magnitudes = {node.input[0]: np.float32(ranges[node.input[0]]) for node in chosen}
    limits = {name: (-top, top) for name, top in magnitudes.items()}
    kinds = sorted({node.op_type for node in chosen})
    source = infer_shapes(model)
    _separate_biases(source)
    quantizer = quantization.QDQQuantizer(
        model=source,
        per_channel=True,
        reduce_range=False,
        weight_qType=quantization.QuantType.QInt8,
        activation_qType=quantization.QuantType.QInt8,
        tensors_range=calibrate.TensorsData(quantization.CalibrationMethod.MinMax, limits),
        nodes_to_quantize=list(nodes),
        nodes_to_exclude=[],
        op_types_to_quantize=kinds,
        extra_options={**_QUANTISER_SETTINGS, 'OpTypesToExcludeOutputQuantization': kinds},
    )
    log = logging.getLogger()
    level = log.level
    log.setLevel(logging.ERROR)  # hide the quantiser's warnings about these settings
    try:
        quantizer.quantize_model()
        quantizer.model.topological_sort()
    finally:
        log.setLevel(level)
    result: onnx.ModelProto = quantizer.model.model
    return result


def _tool_name() -> str:
    import onnxruntime

    return f'onnxruntime {onnxruntime.__version__}'
