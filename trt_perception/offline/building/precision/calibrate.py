# SPDX-License-Identifier: Apache-2.0
"""Selects calibration images for INT8 and FP8, and calibrates with the requested tool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from trt_perception.errors import ConfigError
from trt_perception.files.cache import cache_folder
from trt_perception.model.build_record import QUANTISED_PRECISIONS
from trt_perception.model.input_layout import constant_inputs, split_inputs
from trt_perception.offline.building.calibration.cache import calibration_identity
from trt_perception.offline.building.calibration.images import (
    CalibrationImages,
    ImageSet,
    select_images,
)
from trt_perception.offline.building.engine.calibrator import CalibrationData
from trt_perception.offline.building.graph.onnx_model import input_specs
from trt_perception.offline.building.options.build_options import BuildOptions
from trt_perception.offline.building.precision.quantise import QuantisationReport, quantise

#: Options that have an effect only if this build calibrates.
_CALIBRATION_OPTIONS = (
    'calibration_images',
    'calibration_method',
    'calibration_count',
    'calibration_seed',
    'calibration_cache',
    'calibration_tool',
    'keep_float',
)


@dataclass(frozen=True)
class CalibratedModel:
    """The result of a calibration.

    Attributes:
        model: model with Q/DQ nodes; the model without changes if TensorRT calibrates.
        report: report on the quantisation; None if TensorRT calibrates.
        calibration_data: input data for TensorRT's calibrator; None if this package calibrates.
        warnings: one sentence each.
    """

    model: onnx.ModelProto
    report: QuantisationReport | None = None
    calibration_data: CalibrationData | None = None
    warnings: tuple[str, ...] = ()


def choose_calibration_images(options: BuildOptions, *, quantised: bool) -> ImageSet | None:
    """Return the calibration images; None if the build does not calibrate.

    Args:
        quantised: whether the model has Q/DQ nodes already.

    Raises:
        ConfigError: INT8 or FP8 needs images, but the options name none or the folder has none; or
            an option contradicts the precision or the model.
    """
    if options.precision not in QUANTISED_PRECISIONS:
        if options.calibration_images is not None:
            raise ConfigError(
                'calibration images',
                f'precision {options.precision}',
                expected='int8 or fp8',
                fix='add --precision int8, or leave --calibration-images out',
            )
        return None
    if quantised:
        if options.qdq_onnx is not None:
            raise ConfigError(
                str(options.onnx),
                'is quantised already, so --qdq-onnx would write nothing new',
                fix='leave --qdq-onnx out',
            )
        return None
    if options.calibration_images is None:
        raise ConfigError(
            options.precision,
            'needs calibration images',
            fix='add --calibration-images DIR with 100 to 500 images of the camera',
        )
    return select_images(
        options.calibration_images,
        options.calibration_count,
        options.calibration_seed,
        options.bag_selection,
    )


def unused_calibration_options(options: BuildOptions, *, quantised: bool) -> str:
    """Return a sentence that lists calibration options without effect; may be empty."""
    given = [
        '--' + name.replace('_', '-') for name in _CALIBRATION_OPTIONS if name in options.given
    ]
    if not given or (options.precision in QUANTISED_PRECISIONS and not quantised):
        return ''
    reason = (
        'the model is quantised already and keeps its ranges'
        if options.precision in QUANTISED_PRECISIONS
        else f'only int8 and fp8 need calibration (precision {options.precision})'
    )
    return f'options without effect: {", ".join(given)}: {reason}'


def calibrate(
    model: onnx.ModelProto,
    options: BuildOptions,
    images: CalibrationImages,
    shapes: Mapping[str, tuple[int, ...]],
) -> CalibratedModel:
    """Calibrate a model with the requested tool.

    Args:
        model: float32 model.
        shapes: maps each input's name to its final shape; the image input is the first.

    Raises:
        ConfigError: images or patterns cannot be used.
        EngineError: the model cannot be quantised.
    """
    if options.calibration_tool == 'tensorrt' and options.precision == 'int8':
        data = _calibration_data(model, options, images, shapes)
        return CalibratedModel(model, calibration_data=data, warnings=tuple(images.warnings))
    result = quantise(
        model,
        images,
        method=options.calibration_method,
        target=options.precision,
        keep_float=options.keep_float,
        cache_dir=_cache_folder(options.calibration_cache),
    )
    return CalibratedModel(result.model, result.report, warnings=result.report.warnings)


def _calibration_data(
    model: onnx.ModelProto,
    options: BuildOptions,
    images: CalibrationImages,
    shapes: Mapping[str, tuple[int, ...]],
) -> CalibrationData:
    """Return the input data for TensorRT's calibrator.

    TensorRT gets complete batches only, so up to N - 1 images at the end are not used.
    """
    name, shape = next(iter(shapes.items()))  # the image input is the first
    _, auxiliary = split_inputs(options.onnx.name, input_specs(model))

    def batches() -> Iterator[npt.NDArray[np.float32]]:
        batch: list[npt.NDArray[np.float32]] = []
        for _, tensor in images:
            batch.append(tensor.copy())
            if len(batch) == shape[0]:
                yield np.concatenate(batch)
                batch.clear()

    return CalibrationData(
        name,
        shape,
        batches,
        calibration_identity(model, images.selection, images.preprocessing),
        _cache_folder(options.calibration_cache),
        constant_inputs(auxiliary, images.preprocessing.input_size, shape[0]),
        images.warnings,
    )


def _cache_folder(value: str) -> Path | None:
    if value == 'off':
        return None
    return cache_folder('calibration') if value == 'auto' else Path(value).expanduser()
