# SPDX-License-Identifier: Apache-2.0
"""Converts a model to the precision of an engine.

A strongly typed TensorRT (10.12 and newer, RTX) computes in the types of the graph, so the graph
is converted. A weakly typed TensorRT (up to 10.11) chooses types within its builder flags. Then
the graph stays float32, and ``kept`` names the layers that must compute in float32.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import onnx
from onnx import TensorProto

from trt_perception.errors import ConfigError, EngineError
from trt_perception.model.build_record import QUANTISED_PRECISIONS, Precision
from trt_perception.offline.building.graph.graph_index import (
    GraphIndex,
    match_nodes,
    name_nodes,
    tensor_types,
)
from trt_perception.offline.building.graph.half_precision import (
    HalfPrecisionModel,
    convert_to_half,
)
from trt_perception.offline.building.graph.heads import find_head
from trt_perception.offline.building.graph.mac_count import (
    LayerWork,
    count_layer_macs,
    infer_shapes,
    mac_shares_by_precision,
)
from trt_perception.offline.building.graph.opsets import upgrade_opset
from trt_perception.offline.building.precision.quantise_check import check_quantised, is_quantised
from trt_perception.offline.building.precision.quantise_scales import adjust_scales

# ONNX has scales in FP16 from opset 19 on, and convolutions in BF16 from 22 on.
_MIN_OPSET: Final[Mapping[str, int]] = {'int8': 19, 'fp8': 19, 'bf16': 22}
_TYPE_NAMES: Final[Mapping[int, str]] = {
    TensorProto.FLOAT: 'fp32',
    TensorProto.FLOAT16: 'fp16',
    TensorProto.BFLOAT16: 'bf16',
}


@dataclass(frozen=True)
class PrecisionReport:
    """The types in which the nodes of a model compute.

    Attributes:
        strongly_typed: whether the graph decides the types. If not, TensorRT decides, and the
            values below describe the graph before TensorRT's decision.
        nodes: number of nodes for each type. Nodes without floating-point numbers count as
            ``other``.
        macs: share of all multiply-accumulates of the layers, by precision, 0…1.
        kept: why a node stays in FP32 despite the requested precision, by node name.
        notes: other remarks, one sentence each.
    """

    asked: str
    strongly_typed: bool
    nodes: Mapping[str, int]
    macs: Mapping[str, float]
    kept: Mapping[str, str]
    casts: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ConversionResult:
    """A model in the requested precision, with a report and the names of its layers."""

    model: onnx.ModelProto
    report: PrecisionReport
    layers: tuple[str, ...]


def convert_precision(
    model: onnx.ModelProto,
    precision: Precision,
    *,
    keep_fp32: Sequence[str] = (),
    strongly_typed: bool,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> ConversionResult:
    """Convert a model to a precision.

    In FP16 and BF16 the decoding stays in FP32, because FP16 has steps of half a pixel near 640.
    In BF16 the output layers stay in FP32 too. Inputs and outputs of the graph keep their types.

    Args:
        model: float32 model, or with Q/DQ nodes for ``int8`` and ``fp8``; not changed.
        precision: precision to compute in. In ``int8`` and ``fp8``, other layers become FP16.
        keep_fp32: patterns of node names that stay in FP32.
        strongly_typed: whether TensorRT uses the graph's types. If not, the graph keeps its types.
        input_shapes: shapes for counting work, by input name; None for the model's shapes.

    Raises:
        ConfigError: a pattern matches no node, or the model is in half precision, which allows no
            patterns.
        EngineError: the model has an unsuitable precision, or cannot be converted.
    """
    source = copy.deepcopy(model)
    name_nodes(source)
    if precision in QUANTISED_PRECISIONS:
        adjust_scales(source)
    asked = match_nodes(source, keep_fp32)
    work = count_layer_macs(source, input_shapes)
    precisions = {layer.precision for layer in work} - {'unknown'}
    _check_source(source, precision, precisions)
    convert = partial(_make_conversion, precision, strongly_typed, input_shapes)
    half = 'bf16' if precision == 'bf16' else 'fp16'
    if precisions & {'fp16', 'bf16'}:
        _check_exported(precision, half, keep_fp32, precisions)
        notes = [f'the model was exported in {half} and is not converted']
        return convert(HalfPrecisionModel(source, notes=notes))
    if precision in ('fp32', 'tf32'):
        return convert(HalfPrecisionModel(source))
    kept = _reasons_to_keep(source, precision, asked, work)
    if not strongly_typed:
        return convert(HalfPrecisionModel(source, kept))
    if precision in _MIN_OPSET:
        source = upgrade_opset(source, _MIN_OPSET[precision])
        name_nodes(source)
    converted = convert_to_half(source, half, kept)
    _check_result(converted.model, precision)
    conversion = convert(converted)
    if conversion.report.macs and not conversion.report.macs.get(precision):
        raise EngineError(
            precision,
            'no layer would compute in this precision, because all layers stay in FP32',
            fix='use narrower patterns for --keep-fp32',
        )
    return conversion


def _check_result(model: onnx.ModelProto, precision: str) -> None:
    check_quantised(model)
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise EngineError(
            'the model',
            f'is invalid after conversion to {precision}: {error}',
            fix='use fp32, or keep the named node in FP32 with --keep-fp32',
        ) from error


def _check_source(model: onnx.ModelProto, precision: str, precisions: set[str]) -> None:
    if precision in QUANTISED_PRECISIONS:
        if precision not in precisions:
            has = ', '.join(sorted(precisions)) or 'no layers'
            raise EngineError(
                'the model',
                has,
                expected=f'{precision} Q/DQ nodes',
                fix='add --calibration-images, or export a quantised model',
            )
        check_quantised(model)
    elif is_quantised(model):
        kinds = ', '.join(sorted(precisions & set(QUANTISED_PRECISIONS))) or 'Q/DQ nodes'
        raise EngineError(
            'the model',
            f'is quantised ({kinds}), so it cannot be built in {precision}',
            fix="use --precision with the model's type, or export it without Q/DQ nodes",
        )
    elif precision in ('fp32', 'tf32') and precisions & {'fp16', 'bf16'}:
        raise EngineError(
            'the model',
            f'was exported in {", ".join(sorted(precisions))}, and {precision} was requested: '
            'rounded weights stay rounded',
            fix='export the model in FP32',
        )


def _check_exported(
    precision: str, half: str, keep_fp32: Sequence[str], precisions: set[str]
) -> None:
    """Refuse options that contradict a model that was exported in half precision."""
    if half not in precisions:
        raise EngineError(
            'the model',
            f'was exported in {", ".join(sorted(precisions))}, and {precision} was requested',
            fix='export the model in FP32, so that this tool can convert it',
        )
    if keep_fp32:
        raise ConfigError(
            'layers',
            f'cannot be kept in FP32, because the model was exported in {half}',
            fix='export the model in FP32',
        )


def _reasons_to_keep(
    model: onnx.ModelProto, precision: str, asked: Sequence[str], work: Sequence[LayerWork]
) -> dict[str, str]:
    """Return the nodes that stay in FP32, each with the reason."""
    head = find_head(model, {layer.node: layer.macs for layer in work})
    decoding = () if head.strict else (*head.decoding, *head.fixed)
    kept = dict.fromkeys(decoding, 'decoding of the outputs')
    if precision == 'bf16':
        kept |= dict.fromkeys(
            head.layers, 'output layer, whose results need more than 8 bits of precision'
        )
    return kept | dict.fromkeys(asked, 'requested by the user')


def _make_conversion(
    precision: str,
    strongly_typed: bool,
    input_shapes: Mapping[str, Sequence[int]] | None,
    converted: HalfPrecisionModel,
) -> ConversionResult:
    """Return a converted model with its report."""
    work = count_layer_macs(converted.model, input_shapes)
    layers = {layer.node: layer.precision for layer in work}
    report = PrecisionReport(
        asked=precision,
        strongly_typed=strongly_typed,
        nodes=_node_types(converted.model, layers),
        macs=mac_shares_by_precision(work),
        kept=converted.kept,
        casts=converted.casts,
        notes=tuple(converted.notes),
    )
    return ConversionResult(converted.model, report, tuple(layers))


def _node_types(model: onnx.ModelProto, layers: Mapping[str, str]) -> dict[str, int]:
    """Count nodes by type: the precision of a layer, otherwise the type of the node's results."""
    graph = infer_shapes(model).graph
    index = GraphIndex(graph)
    types = tensor_types(graph)
    counted: Counter[str] = Counter()
    for node in graph.node:
        if node.op_type == 'Constant' or index.is_constant(node.output[0]):
            continue
        made = next((types[name].elem_type for name in node.output if name in types), 0)
        counted[layers.get(node.name) or _TYPE_NAMES.get(made, 'other')] += 1
    return dict(counted)
