"""The images that an INT8 or FP8 model is calibrated with, and the calibration by each tool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from trt_perception.building.calibration.cache import calibration_identity
from trt_perception.building.calibration.images import CalibrationImages, ImageSet, select_images
from trt_perception.building.engine.calibrator import CalibrationData
from trt_perception.building.graph.onnx_model import input_specs
from trt_perception.building.options.build_options import BuildOptions
from trt_perception.building.precision.quantise import QuantisationReport, quantise
from trt_perception.errors import ConfigError
from trt_perception.files.cache import cache_folder
from trt_perception.model.build_record import QUANTISED
from trt_perception.model.input_layout import constant_inputs, split_inputs

__all__ = [
    'CalibratedModel',
    'calibrate',
    'choose_calibration_images',
    'unused_calibration_options',
]

#: Options that only count where this package calibrates.
_CALIBRATION = (
    *('calibration_images', 'calibration_method', 'calibration_count', 'calibration_seed'),
    *('calibration_cache', 'calibration_tool', 'keep_float'),
)


@dataclass(frozen=True)
class CalibratedModel:
    """A model after the calibration.

    Attributes:
        model: with Q/DQ nodes, unless TensorRT calibrates.
        report: on the quantisation, where this package did it.
        calibration_data: what TensorRT calibrates with, where it does so itself.
        warnings: one sentence each.
    """

    model: onnx.ModelProto
    report: QuantisationReport | None = None
    calibration_data: CalibrationData | None = None
    warnings: tuple[str, ...] = ()


def choose_calibration_images(options: BuildOptions, *, quantised: bool) -> ImageSet | None:
    """Return the images to calibrate with, None where none are needed.

    Raises:
        ConfigError: INT8 or FP8 needs images and none are given, or none are found.
    """
    if options.precision not in QUANTISED:
        if options.calibration_images is not None:
            raise ConfigError(
                'calibration images',
                f'precision {options.precision}',
                expected='int8 or fp8',
                fix='add --precision int8, or leave them out',
            )
        return None
    if quantised:
        if options.qdq_onnx is not None:
            raise ConfigError(
                str(options.onnx),
                'is quantised already, so --qdq-onnx has nothing to write',
                fix='leave it out',
            )
        return None
    if options.calibration_images is None:
        raise ConfigError(
            options.precision,
            'needs images to calibrate with',
            fix='give --calibration-images DIR, 100 to 500 as the camera sees them',
        )
    return select_images(
        options.calibration_images, options.calibration_count, options.calibration_seed
    )


def unused_calibration_options(options: BuildOptions, *, quantised: bool) -> str:
    """Return a sentence on options of the calibration that were given for nothing, else empty."""
    given = ['--' + name.replace('_', '-') for name in _CALIBRATION if name in options.given]
    if not given or (options.precision in QUANTISED and not quantised):
        return ''
    reason = (
        'the model is quantised already, and its own ranges are used'
        if options.precision in QUANTISED
        else f'only int8 and fp8 are calibrated (precision {options.precision})'
    )
    return f'not used: {", ".join(given)}: {reason}'


def calibrate(
    model: onnx.ModelProto,
    options: BuildOptions,
    images: CalibrationImages,
    shapes: Mapping[str, tuple[int, ...]],
) -> CalibratedModel:
    """Calibrate with the tool that was asked for; the arguments are those of prepare_precision.

    Raises:
        ConfigError: the images or patterns cannot be used.
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
        cache_dir=_cache(options.calibration_cache),
    )
    return CalibratedModel(result.model, result.report, warnings=result.report.warnings)


def _calibration_data(
    model: onnx.ModelProto,
    options: BuildOptions,
    images: CalibrationImages,
    shapes: Mapping[str, tuple[int, ...]],
) -> CalibrationData:
    """Return the images as TensorRT's own calibrators take them; an odd rest is left out."""
    name, shape = next(iter(shapes.items()))  # the image's stands first
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
        _cache(options.calibration_cache),
        constant_inputs(auxiliary, images.preprocessing.input_size, shape[0]),
        images.warnings,
    )


def _cache(value: str) -> Path | None:
    if value == 'off':
        return None
    return cache_folder('calibration') if value == 'auto' else Path(value).expanduser()
