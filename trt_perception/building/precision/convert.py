"""Give a model the precision that an engine shall have.

A strongly typed TensorRT (10.12 and above, 11, RTX) computes in the types of the graph, so the
graph is rewritten. A weakly typed one (TensorRT up to 10.11) chooses by itself within the flags it
is given: the graph stays float32, and ``kept`` names the layers to hold in float32.
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

from trt_perception.building.graph.graph_index import (
    GraphIndex,
    match_nodes,
    name_nodes,
    tensor_types,
)
from trt_perception.building.graph.half_precision import HalfPrecisionModel, convert_to_half
from trt_perception.building.graph.heads import find_head
from trt_perception.building.graph.mac_count import (
    LayerWork,
    count_layer_macs,
    infer_shapes,
    mac_shares,
)
from trt_perception.building.graph.opsets import upgrade_opset
from trt_perception.building.precision.quantise_check import check_quantised, is_quantised
from trt_perception.building.precision.quantise_scales import fit_scales
from trt_perception.errors import ConfigError, EngineError
from trt_perception.model.build_record import QUANTISED, Precision

__all__ = ['Conversion', 'PrecisionReport', 'convert_precision']

# FP16 scales exist from opset 19 on, convolutions in BF16 from 22 on.
_OPSET: Final[Mapping[str, int]] = {'int8': 19, 'fp8': 19, 'bf16': 22}
_NAMES: Final[Mapping[int, str]] = {
    TensorProto.FLOAT: 'fp32',
    TensorProto.FLOAT16: 'fp16',
    TensorProto.BFLOAT16: 'bf16',
}


@dataclass(frozen=True)
class PrecisionReport:
    """What a model's nodes compute in.

    Attributes:
        asked: the precision.
        strongly_typed: whether the graph says it; otherwise TensorRT decides, and what follows is
            the graph before it does.
        nodes: how many nodes compute in each type; those without floating-point numbers count as
            ``other``.
        macs: share of all multiply-accumulates of the layers by precision, 0…1.
        kept: by node, why it stays in FP32 though less was asked for.
        casts: how many Cast nodes were added.
        notes: what else is worth knowing, one sentence each.
    """

    asked: str
    strongly_typed: bool
    nodes: Mapping[str, int]
    macs: Mapping[str, float]
    kept: Mapping[str, str]
    casts: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Conversion:
    """A model in the precision that was asked for, what became of it, and its layers' names."""

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
) -> Conversion:
    """Rewrite a model for an engine of some precision.

    In FP16 and BF16 the decoding stays in FP32 (float16 has steps of half a pixel at 640), in BF16
    the output layers too. Inputs and outputs of the graph keep their types.

    Args:
        model: float32, or with Q/DQ nodes for ``int8`` and ``fp8``; not changed.
        precision: what to compute in. In ``int8`` and ``fp8`` what is not quantised becomes FP16.
        keep_fp32: patterns of node names that stay in FP32.
        strongly_typed: whether the graph's types will be obeyed; if not, it keeps its types.
        input_shapes: by input, dimensions to count work with where the model leaves them open.

    Raises:
        ConfigError: a pattern matches no node.
        EngineError: the model has the wrong precision to start from, or cannot be converted.
    """
    source = copy.deepcopy(model)
    name_nodes(source)
    if precision in QUANTISED:
        fit_scales(source)
    asked = match_nodes(source, keep_fp32)
    work = count_layer_macs(source, input_shapes)
    found = {layer.precision for layer in work} - {'unknown'}
    _check_start(source, precision, found)
    convert = partial(_converted, precision, strongly_typed, input_shapes)
    half = 'bf16' if precision == 'bf16' else 'fp16'
    if found & {'fp16', 'bf16'}:
        _check_exported(precision, half, keep_fp32, found)
        notes = [f'the model was exported in {half} and stays as it is']
        return convert(HalfPrecisionModel(source, notes=notes))
    if precision in ('fp32', 'tf32'):
        return convert(HalfPrecisionModel(source))
    kept = _reasons(source, precision, asked, work)
    if not strongly_typed:
        return convert(HalfPrecisionModel(source, kept))
    if precision in _OPSET:
        source = upgrade_opset(source, _OPSET[precision])
        name_nodes(source)
    narrow = convert_to_half(source, half, kept)
    _check_result(narrow.model, precision)
    done = convert(narrow)
    if done.report.macs and not done.report.macs.get(precision):
        raise EngineError(
            precision,
            'no layer would compute in it: all are kept in FP32',
            fix='narrow the patterns that keep layers in FP32',
        )
    return done


def _check_result(model: onnx.ModelProto, precision: str) -> None:
    check_quantised(model)
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise EngineError(
            'the model',
            f'is not valid any more after conversion to {precision}: {error}',
            fix='use fp32, or keep the node that is named in FP32',
        ) from error


def _check_start(model: onnx.ModelProto, precision: str, found: set[str]) -> None:
    if precision in QUANTISED:
        if precision not in found:
            has = ', '.join(sorted(found)) or 'no layers'
            raise EngineError(
                'the model',
                has,
                expected=f'{precision} Q/DQ nodes',
                fix='give calibration images, or export a quantised model',
            )
        check_quantised(model)
    elif is_quantised(model):
        kinds = ', '.join(sorted(found & set(QUANTISED))) or 'Q/DQ nodes'
        raise EngineError(
            'the model',
            f'is quantised ({kinds}), so it cannot be built as {precision}',
            fix='ask for its own precision, or export it without Q/DQ',
        )
    elif precision in ('fp32', 'tf32') and found & {'fp16', 'bf16'}:
        raise EngineError(
            'the model',
            f'was exported in {", ".join(sorted(found))}, and {precision} was asked '
            'for: what rounding took does not come back',
            fix='export it in FP32',
        )


def _check_exported(precision: str, half: str, keep_fp32: Sequence[str], found: set[str]) -> None:
    """Refuse what a model cannot become that is in half precision already."""
    if half not in found:
        raise EngineError(
            'the model',
            f'was exported in {", ".join(sorted(found))}, and {precision} was asked for',
            fix='export it in FP32 and let this tool convert it',
        )
    if keep_fp32:
        raise ConfigError(
            'layers',
            f'cannot be kept in FP32, because the model was exported in {half}',
            fix='export it in FP32',
        )


def _reasons(
    model: onnx.ModelProto, precision: str, asked: Sequence[str], work: Sequence[LayerWork]
) -> dict[str, str]:
    """Return which nodes stay in FP32, and why."""
    head = find_head(model, {layer.node: layer.macs for layer in work})
    decoding = () if head.strict else (*head.decoding, *head.fixed)
    kept = dict.fromkeys(decoding, 'decoding of the outputs')
    if precision == 'bf16':
        kept |= dict.fromkeys(head.layers, 'output layer: its results need more than 8 bits')
    return kept | dict.fromkeys(asked, 'asked for')


def _converted(
    precision: str,
    strongly_typed: bool,
    input_shapes: Mapping[str, Sequence[int]] | None,
    narrow: HalfPrecisionModel,
) -> Conversion:
    """Return a converted model with the report on it."""
    work = count_layer_macs(narrow.model, input_shapes)
    layers = {layer.node: layer.precision for layer in work}
    report = PrecisionReport(
        asked=precision,
        strongly_typed=strongly_typed,
        nodes=_node_types(narrow.model, layers),
        macs=mac_shares(work),
        kept=narrow.kept,
        casts=narrow.casts,
        notes=tuple(narrow.notes),
    )
    return Conversion(narrow.model, report, tuple(layers))


def _node_types(model: onnx.ModelProto, layers: Mapping[str, str]) -> dict[str, int]:
    """Count nodes by what they compute in: a layer's precision, else the type of its results."""
    graph = infer_shapes(model).graph
    index = GraphIndex(graph)
    types = tensor_types(graph)
    counted: Counter[str] = Counter()
    for node in graph.node:
        if node.op_type == 'Constant' or index.is_constant(node.output[0]):
            continue
        made = next((types[name].elem_type for name in node.output if name in types), 0)
        counted[layers.get(node.name) or _NAMES.get(made, 'other')] += 1
    return dict(counted)
