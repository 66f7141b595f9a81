"""Run a model on calibration images and take the ranges of its tensors.

Images go through HostPreprocessor, the code that feeds the model at run time. One image is in work
at a time: what is kept of it are histograms (calibration_ranges), so that memory depends on the
model and not on the number of images.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from trt_perception.building.calibration_ranges import Magnitudes
from trt_perception.building.images import ImageSet
from trt_perception.building.images import read_image
from trt_perception.errors import EngineError
from trt_perception.manifest import Preprocessing
from trt_perception.picture_files import frame_of
from trt_perception.stages.host_preprocess import HostPreprocessor

__all__ = ['Statistics', 'collect_magnitudes', 'feed_shape', 'image_input', 'open_session']


@dataclass(frozen=True)
class Statistics:
    """What all images together showed: by tensor its magnitudes; and the time it took."""

    magnitudes: Mapping[str, Magnitudes]
    seconds: float


def image_input(model: onnx.ModelProto) -> onnx.ValueInfoProto:
    """Return the one input of a model that takes images.

    Raises:
        EngineError: there is not exactly one input of four dimensions and floating point.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [entry for entry in model.graph.input if entry.name not in constants]
    if len(inputs) != 1:
        raise EngineError(
            'calibration expects a model with one input, an image (got '
            f'{", ".join(entry.name for entry in inputs) or "none"}); export the detector alone'
        )
    kind = inputs[0].type.tensor_type
    if len(kind.shape.dim) != 4 or kind.elem_type != onnx.TensorProto.FLOAT:
        name = onnx.TensorProto.DataType.Name(kind.elem_type)
        raise EngineError(
            f'calibration expects the input {inputs[0].name!r} to be float32 of 4 dimensions '
            f'(got {name} of {len(kind.shape.dim)}); export the model in FP32'
        )
    entry: onnx.ValueInfoProto = inputs[0]
    return entry


def feed_shape(model: onnx.ModelProto, preprocessing: Preprocessing) -> tuple[int, ...]:
    """Return the shape that a model is calibrated with: (batch, 3, height, width).

    Raises:
        EngineError: the model is fixed to another size than preprocessing makes.
    """
    entry = image_input(model)
    width, height = preprocessing.input_size
    fixed = [dimension.dim_value for dimension in entry.type.tensor_type.shape.dim]
    wanted = (fixed[0] or 1, 3, height, width)
    if any(have not in (0, want) for have, want in zip(fixed, wanted, strict=True)):
        raise EngineError(
            f'the model takes {entry.name!r} as {"x".join(str(side or "?") for side in fixed)}, '
            f'preprocessing makes {"x".join(map(str, wanted))}; set the input size to the '
            "model's"
        )
    return wanted


def collect_magnitudes(
    model: onnx.ModelProto,
    tensors: Sequence[str],
    preprocessing: Preprocessing,
    images: ImageSet,
    *,
    progress: Callable[[str, int, int], None],
) -> Statistics:
    """Run a model on all images and count the magnitudes of some of its tensors.

    Args:
        model: in float32.
        tensors: which; the input may be among them.
        preprocessing: as at run time; the tensor is float32 whatever its dtype says.
        images: the choice.
        progress: called with a step's name, how many are done, and of how many.

    Raises:
        ConfigError: an image cannot be decoded.
        EngineError: the model does not run, or a tensor holds NaN or infinity.
    """
    start = time.perf_counter()
    name = image_input(model).name
    batch = feed_shape(model, preprocessing)[0]
    session = open_session(_with_outputs(model, [tensor for tensor in tensors if tensor != name]))
    outputs = [tensor for tensor in tensors if tensor != name]
    preprocess = HostPreprocessor(_in_float32(preprocessing))
    found = {tensor: Magnitudes() for tensor in tensors}
    for done, path in enumerate(images.paths):
        progress('calibrating', done, len(images.paths))
        tensor, _ = preprocess(frame_of(read_image(path)))
        feed = np.repeat(tensor, batch, axis=0) if batch > 1 else tensor
        try:
            values = session.run(outputs, {name: feed})
        except Exception as error:  # ONNX Runtime has a class for each of its status codes
            raise EngineError(f'the model fails on {path}: {error}') from error
        for key, value in zip([name, *outputs], [tensor, *values], strict=True):
            if key in found:
                _count(found[key], value, key, str(path))
    progress('calibrating', len(images.paths), len(images.paths))
    return Statistics(found, time.perf_counter() - start)


def _count(
    magnitudes: Magnitudes, value: npt.NDArray[np.floating], tensor: str, path: str
) -> None:
    try:
        magnitudes.add(value)
    except ValueError as error:
        raise EngineError(
            f'the tensor {tensor!r} holds {error} for {path}; a model that overflows in FP32 '
            'cannot be quantised: check its export and the preprocessing'
        ) from error


def _in_float32(preprocessing: Preprocessing) -> Preprocessing:
    fields = {**vars(preprocessing), 'dtype': 'float32'}
    return Preprocessing(**fields)


def _with_outputs(model: onnx.ModelProto, tensors: Sequence[str]) -> onnx.ModelProto:
    """Return a copy that hands out these tensors and nothing else, so that no memory is wasted."""
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
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
    options.log_severity_level = 3
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    try:
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=['CPUExecutionProvider']
        )
    except Exception as error:  # see above
        raise EngineError(f'ONNX Runtime cannot load the model: {error}') from error
