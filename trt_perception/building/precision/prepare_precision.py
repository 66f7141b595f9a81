"""The precision step: calibrate where INT8 or FP8 is wanted, then give the graph its types."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import onnx

from trt_perception.building.calibration.images import CalibrationImages
from trt_perception.building.engine.calibrator import CalibrationData
from trt_perception.building.engine.release import TensorRt, uses_strong_typing
from trt_perception.building.graph.query_decoder import QueryDecoder
from trt_perception.building.options.build_options import BuildOptions
from trt_perception.building.precision.calibrate import CalibratedModel, calibrate
from trt_perception.building.precision.convert import convert_precision
from trt_perception.building.precision.quantise import QuantisationReport
from trt_perception.building.precision.quantise_check import is_quantised
from trt_perception.building.report import StepProgress
from trt_perception.model.build_record import CalibrationRecord

__all__ = ['ConvertedModel', 'prepare_precision']


@dataclass(frozen=True)
class ConvertedModel:
    """A model in the precision that was asked for.

    Attributes:
        model: what TensorRT parses.
        quantised: with its Q/DQ nodes, where it has any; the rest is still FP32.
        typed: with the types of this precision in its graph, which the engine's are, too.
        fp32_nodes: nodes that a weakly typed build is held to FP32 at.
        layer_nodes: the model's convolutions and matrix products in the precision asked for.
        kept_nodes: nodes that were kept in a wider one.
        calibration_data: what TensorRT calibrates with, where it does so itself.
        calibration: for the manifest; None where nothing was calibrated.
        warnings: one sentence each.
        summary: for the step.
        details: for the report.
        queries: the decoder of a model with queries, where 16 bits are known to lose accuracy.
    """

    model: onnx.ModelProto
    quantised: onnx.ModelProto
    typed: onnx.ModelProto
    fp32_nodes: tuple[str, ...]
    layer_nodes: tuple[str, ...]
    kept_nodes: tuple[str, ...]
    calibration_data: CalibrationData | None
    calibration: CalibrationRecord | None
    warnings: tuple[str, ...]
    summary: str
    details: dict[str, Any]
    queries: QueryDecoder | None = None


def prepare_precision(
    model: onnx.ModelProto,
    options: BuildOptions,
    images: CalibrationImages | None,
    tensorrt: TensorRt,
    shapes: Mapping[str, tuple[int, ...]],
    progress: StepProgress,
) -> ConvertedModel:
    """Quantise and convert.

    Args:
        model: slimmed, not changed.
        options: what is wanted.
        images: to calibrate with, where that is needed.
        tensorrt: that builds; its release decides whether the graph's types count.
        shapes: final shape of each input by name, the image's first.
        progress: called with the part and how much of it is done.

    Raises:
        ConfigError: images or patterns do not serve.
        EngineError: the model cannot be brought to this precision.
    """
    strongly_typed = uses_strong_typing(tensorrt, options)
    implicit = options.precision == 'int8' and options.calibration_tool == 'tensorrt'
    calibrated, record = CalibratedModel(model), None
    if images is not None:
        calibrated = calibrate(model, options, images, shapes)
        tool, method = options.calibration_tool, options.calibration_method
        chosen = images.selection
        record = CalibrationRecord(tool, method, len(chosen.paths), chosen.sha256)
    model, quantised = calibrated.model, calibrated.report
    progress('converting', 0, 0)
    convert = functools.partial(
        convert_precision,
        model,
        'fp16' if implicit else options.precision,
        keep_fp32=options.keep_fp32,
        input_shapes=shapes,
    )
    converted = convert(strongly_typed=strongly_typed)
    report = converted.report
    kept = {**(quantised.kept if quantised else {}), **report.kept}
    details: dict[str, Any] = {'conversion': asdict(report)}
    if quantised is not None:
        details['calibration'] = asdict(quantised)
    return ConvertedModel(
        model=converted.model,
        quantised=model,
        typed=converted.model if strongly_typed else convert(strongly_typed=True).model,
        fp32_nodes=() if strongly_typed else tuple(report.kept),
        layer_nodes=converted.layers,
        kept_nodes=tuple(kept),
        calibration_data=calibrated.calibration_data,
        calibration=record,
        warnings=(*calibrated.warnings, *report.notes),
        summary=_summary(report.macs, quantised, already=images is None and is_quantised(model)),
        details=details,
    )


def _summary(
    macs: Mapping[str, float], quantised: QuantisationReport | None, *, already: bool
) -> str:
    shares = ', '.join(f'{share:.1%} {kind}' for kind, share in macs.items())
    lines = [f'of the multiplications: {shares}' if shares else 'no layers with weights']
    if already:
        lines.append('quantised already: its own ranges are used')
    if quantised is not None:
        used, found = quantised.images['used'], quantised.images['found']
        lines.append(
            f'{quantised.quantised} of {quantised.layers} layers quantised, {quantised.method}, '
            f'{used} of {found} images; cache: {quantised.cache}'
        )
    return '\n'.join(lines)
