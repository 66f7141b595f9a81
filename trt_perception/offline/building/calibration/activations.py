# SPDX-License-Identifier: Apache-2.0
"""Run a model on calibration images and count the magnitudes of its tensors.

One image is processed at a time, and only histograms (``ranges``) are kept. Memory therefore
depends on the model, and not on the number of images.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from trt_perception.errors import EngineError
from trt_perception.model.input_layout import (
    constant_inputs,
    image_size,
    split_inputs,
    with_fixed_size,
)
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tensors import TensorSpec
from trt_perception.offline.building.calibration.images import CalibrationImages
from trt_perception.offline.building.calibration.ranges import MagnitudeHistogram
from trt_perception.offline.building.graph.onnx_model import input_specs


def calibration_inputs(
    model: onnx.ModelProto, preprocessing: Preprocessing
) -> tuple[TensorSpec, dict[str, npt.NDArray[Any]]]:
    """Return the description of the image input, and values for all other inputs.

    Returns:
        The image input in its final shape, and a dict from each auxiliary input's name to its
        value.

    Raises:
        EngineError: the model does not have exactly one image input, this input is not float32,
            or its fixed size differs from the size in ``preprocessing``.
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
            expected=f'the size of the preprocessing, {size[0]} wide and {size[1]} high',
            fix='set --input-size to the size in the model',
        )
    batch = closed.shape[0] if len(closed.shape) == 4 else 1
    return closed, constant_inputs(auxiliary, size, batch)


def input_shapes(
    model: onnx.ModelProto, preprocessing: Preprocessing
) -> dict[str, tuple[int, ...]]:
    """Map each input's name to its shape for calibration, the image input first.

    Raises:
        EngineError: see ``calibration_inputs``.
    """
    image, constants = calibration_inputs(model, preprocessing)
    return {image.name: image.shape, **{key: value.shape for key, value in constants.items()}}


def collect_histograms(
    model: onnx.ModelProto,
    tensors: Sequence[str],
    images: CalibrationImages,
) -> dict[str, MagnitudeHistogram]:
    """Run a model on all images, and return a histogram of magnitudes for each listed tensor.

    Args:
        model: a float32 model.
        tensors: names of the tensors to count. The image input is allowed.

    Returns:
        A dict from each tensor's name to its histogram.

    Raises:
        ConfigError: an image cannot be decoded, or the images have no content.
        EngineError: the model does not run, or a tensor contains NaN or infinity.
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
        except Exception as error:  # ONNX Runtime has an exception class per status code
            raise EngineError('the model', f'fails on {path}: {error}') from error
        for key, value in zip([name, *outputs], [tensor, *values], strict=True):
            if key in found:
                try:
                    found[key].add(value)
                except ValueError as error:
                    raise EngineError(
                        f'the tensor {key!r}',
                        f'holds {error} for {path}',
                        fix='check the export of the model and the preprocessing',
                    ) from error
    return found


def _with_outputs(model: onnx.ModelProto, tensors: Sequence[str]) -> onnx.ModelProto:
    """Return a copy of a model whose only outputs are these tensors, to save memory."""
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
    """Return a session of ONNX Runtime that runs a model on the CPU.

    Raises:
        EngineError: ONNX Runtime cannot load the model.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # only fatal errors, as in stages.onnx_runtime
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    # Idle threads must not spin: they would slow down the counting between two images.
    options.add_session_config_entry('session.intra_op.allow_spinning', '0')
    try:
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=['CPUExecutionProvider']
        )
    except Exception as error:  # ONNX Runtime has an exception class per status code
        raise EngineError('the model', f'ONNX Runtime cannot load it: {error}') from error
