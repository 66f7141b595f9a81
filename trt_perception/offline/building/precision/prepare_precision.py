# SPDX-License-Identifier: Apache-2.0
"""The precision step of a build: calibrates for INT8 and FP8, then converts the graph's types."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import onnx

from trt_perception.model.build_record import CalibrationRecord
from trt_perception.offline.building.calibration.images import CalibrationImages
from trt_perception.offline.building.engine.calibrator import CalibrationData
from trt_perception.offline.building.engine.release import TensorRt, uses_strong_typing
from trt_perception.offline.building.graph.query_decoder import QueryDecoder
from trt_perception.offline.building.options.build_options import BuildOptions
from trt_perception.offline.building.precision.calibrate import CalibratedModel, calibrate
from trt_perception.offline.building.precision.convert import convert_precision
from trt_perception.offline.building.precision.quantise import QuantisationReport
from trt_perception.offline.building.precision.quantise_check import is_quantised
from trt_perception.offline.building.report import StepProgress


@dataclass(frozen=True)
class ConvertedModel:
    """A model in the requested precision.

    Attributes:
        quantised: model after calibration: with Q/DQ nodes if it is quantised, otherwise in FP32.
        typed: model with the types of the engine in its graph, even if TensorRT is weakly typed.
        fp32_nodes: nodes that must compute in FP32 in a weakly typed network; empty if strongly
            typed.
        kept_nodes: names of the nodes that stay in a wider precision than requested.
        calibration_data: input data for TensorRT's own calibrator; None if it is not used.
        calibration: record for the manifest; None if this build did not calibrate.
        warnings: one sentence each.
        queries: query decoder, if 16 bits may reduce its accuracy; otherwise None.
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
    """Quantise and convert a model.

    Args:
        model: slimmed model, not changed.
        images: calibration images; None if the build does not calibrate.
        tensorrt: TensorRT to build with. Its release decides whether typing is strong.
        shapes: maps each input's name to its final shape; the image input is the first.
        progress: called with the name of the current task, and its finished and total steps.

    Raises:
        ConfigError: images or patterns cannot be used.
        EngineError: the model cannot be converted to this precision.
    """
    strongly_typed = uses_strong_typing(tensorrt, options)
    tensorrt_calibrates = options.precision == 'int8' and options.calibration_tool == 'tensorrt'
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
        'fp16' if tensorrt_calibrates else options.precision,
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
        summary=_summary(
            report.macs, quantised, was_quantised=images is None and is_quantised(model)
        ),
        details=details,
    )


def _summary(
    macs: Mapping[str, float], quantised: QuantisationReport | None, *, was_quantised: bool
) -> str:
    shares = ', '.join(f'{share:.1%} {kind}' for kind, share in macs.items())
    lines = [f'share of the multiplications: {shares}' if shares else 'no layers with weights']
    if was_quantised:
        lines.append('quantised already, with ranges in the model')
    if quantised is not None:
        used, found = quantised.images['used'], quantised.images['found']
        lines.append(
            f'{quantised.quantised} of {quantised.layers} layers quantised, {quantised.method}, '
            f'{used} of {found} images; calibration cache {quantised.cache}'
        )
    return '\n'.join(lines)
