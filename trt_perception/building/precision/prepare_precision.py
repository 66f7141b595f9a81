"""The precision step: calibrate where INT8 or FP8 is wanted, then give the graph its types."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from typing import cast

import numpy as np
import numpy.typing as npt
import onnx

from trt_perception.building.engine.calibrator import CalibrationFeed
from trt_perception.building.engine.release import TensorRt
from trt_perception.building.engine.release import uses_strong_typing
from trt_perception.building.graph.mac_count import layer_work
from trt_perception.building.graph.onnx_model import input_specs
from trt_perception.building.graph.quantise_check import is_quantised
from trt_perception.building.options.build_options import BuildOptions
from trt_perception.building.precision.calibration_images import ImageSet
from trt_perception.building.precision.calibration_images import check_images
from trt_perception.building.precision.calibration_images import read_image
from trt_perception.building.precision.calibration_images import select_images
from trt_perception.building.precision.convert import convert_precision
from trt_perception.building.precision.quantise import QuantisationReport
from trt_perception.building.precision.quantise import quantise
from trt_perception.building.precision.quantise_modelopt import quantise_with_modelopt
from trt_perception.building.report import StepProgress
from trt_perception.errors import ConfigError
from trt_perception.files.cache import cache_folder
from trt_perception.images.picture_files import frame_of
from trt_perception.model.build_record import CalibrationRecord
from trt_perception.model.input_layout import constant_inputs
from trt_perception.model.input_layout import split_inputs
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.stages.host_preprocess import HostPreprocessor

__all__ = ['ConvertedModel', 'choose_images', 'make_precise', 'unused_options']

_QUANTISED = ('int8', 'fp8')
#: Options that only count where this package calibrates.
_CALIBRATION = (
    *('calibration_images', 'calibration_method', 'calibration_count', 'calibration_seed'),
    *('calibration_cache', 'calibration_tool', 'keep_float'),
)


@dataclass(frozen=True)
class ConvertedModel:
    """A model in the precision that was asked for.

    Attributes:
        model: what TensorRT parses.
        stand_in: what ONNX Runtime runs in the engine's place where no GPU is. Of a quantised
            model the rest is still FP32: in FP16 ONNX Runtime's QuantizeLinear truncates, which
            costs accuracy that no GPU loses.
        fp32_nodes: nodes that a weakly typed build is held to FP32 at.
        layer_nodes: the model's convolutions and matrix products in the precision asked for.
        kept_nodes: nodes that were kept in a wider one.
        feed: what TensorRT calibrates with, where it does so itself.
        calibration: for the manifest; None where nothing was calibrated.
        warnings: one sentence each.
        summary: for the step.
        details: for the report.
    """

    model: onnx.ModelProto
    stand_in: onnx.ModelProto
    fp32_nodes: tuple[str, ...]
    layer_nodes: tuple[str, ...]
    kept_nodes: tuple[str, ...]
    feed: CalibrationFeed | None
    calibration: CalibrationRecord | None
    warnings: tuple[str, ...]
    summary: str
    details: dict[str, Any]


def choose_images(options: BuildOptions, *, quantised: bool) -> ImageSet | None:
    """Return the images to calibrate with, None where none are needed.

    Raises:
        ConfigError: INT8 or FP8 needs images and none are given, or none are found.
    """
    if options.precision not in _QUANTISED:
        if options.calibration_images is not None:
            raise ConfigError(
                f'calibration images are for int8 and fp8 (got precision {options.precision}); '
                'add --precision int8, or leave them out'
            )
        return None
    if quantised:
        if options.qdq_onnx is not None:
            raise ConfigError(
                f'{options.onnx} is quantised already, so --qdq-onnx has nothing to write; leave '
                'it out'
            )
        return None
    if options.calibration_images is None:
        raise ConfigError(
            f'{options.precision} needs images to calibrate with: --calibration-images DIR, 100 '
            'to 500 as the camera sees them'
        )
    return select_images(
        options.calibration_images, options.calibration_count, options.calibration_seed
    )


def unused_options(options: BuildOptions, *, quantised: bool) -> str:
    """Return a sentence on options of the calibration that were given for nothing, else empty."""
    given = [
        '--' + name.replace('_', '-') for name in _CALIBRATION if name in options.model_fields_set
    ]
    if not given or (options.precision in _QUANTISED and not quantised):
        return ''
    reason = (
        'the model is quantised already, and its own ranges are used'
        if options.precision in _QUANTISED
        else f'only int8 and fp8 are calibrated (precision {options.precision})'
    )
    return f'not used: {", ".join(given)}: {reason}'


def make_precise(
    model: onnx.ModelProto,
    options: BuildOptions,
    images: ImageSet | None,
    preprocessing: Preprocessing,
    tensorrt: TensorRt,
    shapes: Mapping[str, tuple[int, ...]],
    progress: StepProgress,
) -> ConvertedModel:
    """Quantise and convert.

    Args:
        model: slimmed, not changed.
        options: what is wanted.
        images: to calibrate with, where that is needed.
        preprocessing: as at run time.
        tensorrt: that builds; its release decides whether the graph's types count.
        shapes: final shape of each input by name, the image's first.
        progress: told the part and how much of it is done.

    Raises:
        ConfigError: images or patterns do not serve.
        EngineError: the model cannot be brought to this precision.
    """
    strongly_typed = uses_strong_typing(tensorrt, options)
    quantised: QuantisationReport | None = None
    feed: CalibrationFeed | None = None
    warnings: tuple[str, ...] = ()
    implicit = options.precision == 'int8' and options.calibration_tool == 'tensorrt'
    if images is not None and implicit:
        warnings = check_images(images, preprocessing.input_size, progress=progress)
        feed = _feed(model, options, images, preprocessing, shapes)
    elif images is not None and options.calibration_tool == 'modelopt':
        model, warnings = quantise_with_modelopt(
            model,
            preprocessing,
            images,
            method=cast(Any, options.calibration_method),
            target=cast(Any, options.precision),
            keep_float=options.keep_float,
            progress=progress,
        )
    elif images is not None:
        result = quantise(
            model,
            preprocessing,
            images,
            method=options.calibration_method,
            target=cast(Any, options.precision),
            keep_float=options.keep_float,
            cache_dir=_cache(options.calibration_cache),
            progress=progress,
        )
        model, quantised, warnings = result.model, result.report, result.report.warnings
    progress('converting', 0, 0)
    converted = convert_precision(
        model,
        'fp16' if implicit else options.precision,
        keep_fp32=options.keep_fp32,
        strongly_typed=strongly_typed,
        input_shapes=shapes,
    )
    report = converted.report
    kept = {**(quantised.kept if quantised else {}), **report.kept}
    layers = [layer.node for layer in layer_work(converted.model, shapes)]
    details: dict[str, Any] = {'conversion': report.as_dict()}
    if quantised is not None:
        details['calibration'] = quantised.as_dict()
    return ConvertedModel(
        model=converted.model,
        stand_in=model if is_quantised(model) else converted.model,
        fp32_nodes=() if strongly_typed else tuple(report.kept),
        layer_nodes=tuple(layers),
        kept_nodes=tuple(kept),
        feed=feed,
        calibration=_record(options, images) if images is not None else None,
        warnings=(*warnings, *report.notes),
        summary=_summary(report.macs, quantised, already=images is None and is_quantised(model)),
        details=details,
    )


def _feed(
    model: onnx.ModelProto,
    options: BuildOptions,
    images: ImageSet,
    preprocessing: Preprocessing,
    shapes: Mapping[str, tuple[int, ...]],
) -> CalibrationFeed:
    """Return the images as TensorRT's own calibrators take them; an odd rest is left out."""
    name, shape = next(iter(shapes.items()))  # the image's stands first
    _, beside = split_inputs(options.onnx.name, input_specs(model))
    digest = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()

    def batches() -> Iterator[npt.NDArray[np.float32]]:
        preprocess = HostPreprocessor(preprocessing)
        for start in range(0, len(images.paths) - shape[0] + 1, shape[0]):
            frames = [frame_of(read_image(path)) for path in images.paths[start:][: shape[0]]]
            yield np.concatenate([preprocess(frame)[0].astype(np.float32) for frame in frames])

    return CalibrationFeed(
        name,
        shape,
        batches,
        f'{digest} {images.sha256} {preprocessing}',
        _cache(options.calibration_cache),
        constant_inputs(beside, preprocessing.input_size, shape[0]),
    )


def _cache(value: str) -> Path | None:
    if value == 'off':
        return None
    return cache_folder('calibration') if value == 'auto' else Path(value).expanduser()


def _record(options: BuildOptions, images: ImageSet) -> CalibrationRecord:
    return CalibrationRecord(
        options.calibration_tool, options.calibration_method, len(images.paths), images.sha256
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
