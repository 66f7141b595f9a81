"""Run a model on calibration images and take the ranges of its tensors.

One image is in work at a time: what is kept of it are histograms (calibration_ranges), so that
memory depends on the model and not on the number of images.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from trt_perception.building.calibration.images import CalibrationImages
from trt_perception.building.calibration.ranges import MagnitudeHistogram
from trt_perception.building.graph.onnx_model import input_specs
from trt_perception.errors import EngineError
from trt_perception.model.input_layout import (
    constant_inputs,
    image_size,
    split_inputs,
    with_fixed_size,
)
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tensors import TensorSpec

__all__ = [
    *('calibration_inputs', 'collect_histograms', 'input_shapes', 'open_session'),
]


def calibration_inputs(
    model: onnx.ModelProto, preprocessing: Preprocessing
) -> tuple[TensorSpec, dict[str, npt.NDArray[Any]]]:
    """Return what a model is calibrated with, in the shapes it has then.

    Args:
        model: the model.
        preprocessing: how images become its input.

    Returns:
        the image, and by name the values of the auxiliary inputs.

    Raises:
        EngineError: the model has no single image, takes it in another type than float32, or is
            fixed to another size than preprocessing makes.
    """
    image, auxiliary = split_inputs('the model', input_specs(model))
    size = preprocessing.input_size
    if image.dtype != 'float32':
        raise EngineError(
            f'input {image.name!r} for calibration',
            image.dtype,
            expected='float32',
            fix='export the model in FP32',
        )
    closed = with_fixed_size(image, size)
    if image_size(closed) != size:
        raise EngineError(
            f'input {image.name!r}',
            f'{"x".join(str(side) if side > 0 else "?" for side in image.shape)}',
            expected=f'a size that preprocessing makes, {size[0]} wide and {size[1]} high',
            fix="set the input size to the model's",
        )
    batch = closed.shape[0] if len(closed.shape) == 4 else 1
    return closed, constant_inputs(auxiliary, size, batch)


def input_shapes(
    model: onnx.ModelProto, preprocessing: Preprocessing
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the inputs that a model is calibrated with, the image's first.

    Raises:
        EngineError: as calibration_inputs.
    """
    image, constants = calibration_inputs(model, preprocessing)
    return {image.name: image.shape, **{key: value.shape for key, value in constants.items()}}


def collect_histograms(
    model: onnx.ModelProto,
    tensors: Sequence[str],
    images: CalibrationImages,
) -> dict[str, MagnitudeHistogram]:
    """Run a model on all images and count the magnitudes of some of its tensors.

    Args:
        model: in float32.
        tensors: which; the input may be among them.
        images: to run it on.

    Raises:
        ConfigError: an image cannot be decoded, or they show nothing.
        EngineError: the model does not run, or a tensor holds NaN or infinity.
    """
    image, constants = calibration_inputs(model, images.preprocessing)
    name = image.name
    outputs = [tensor for tensor in tensors if tensor != name]
    session = open_session(_with_outputs(model, outputs))
    found = {tensor: MagnitudeHistogram() for tensor in tensors}
    for path, tensor in images:
        several = len(image.shape) == 4 and image.shape[0] > 1
        feed = np.repeat(tensor, image.shape[0], axis=0) if several else tensor
        try:
            values = session.run(outputs, {name: feed.reshape(image.shape), **constants})
        except Exception as error:  # ONNX Runtime has a class for each of its status codes
            raise EngineError('the model', f'fails on {path}: {error}') from error
        for key, value in zip([name, *outputs], [tensor, *values], strict=True):
            if key in found:
                _add_values(found[key], value, key, str(path))
    return found


def _add_values(
    magnitudes: MagnitudeHistogram, value: npt.NDArray[np.floating], tensor: str, path: str
) -> None:
    try:
        magnitudes.add(value)
    except ValueError as error:
        raise EngineError(
            f'the tensor {tensor!r}',
            f'holds {error} for {path}',
            fix='check the export of the model and the preprocessing',
        ) from error


def _with_outputs(model: onnx.ModelProto, tensors: Sequence[str]) -> onnx.ModelProto:
    """Return a copy that hands out these tensors and nothing else, so that no memory is wasted."""
    copied = copy.deepcopy(model)
    del copied.graph.output[:]
    for name in tensors:
        copied.graph.output.append(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        )
    if not tensors:
        copied.graph.output.extend(model.graph.output)
    return copied


def open_session(model: onnx.ModelProto) -> Any:
    """Return ONNX Runtime's session of a model on the CPU.

    Raises:
        EngineError: ONNX Runtime cannot load it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # as in stages.onnx_runtime
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    # Between two images a spinning pool would only take time from counting their values.
    options.add_session_config_entry('session.intra_op.allow_spinning', '0')
    try:
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=['CPUExecutionProvider']
        )
    except Exception as error:  # see above
        raise EngineError('the model', f'ONNX Runtime cannot load it: {error}') from error
