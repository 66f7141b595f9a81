"""Slimming an ONNX graph, kept only where it computes the same as before."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx

from trt_perception.building.graph.graph_index import name_nodes
from trt_perception.errors import EngineError
from trt_perception.plain_text import one_line

__all__ = ['Slimmed', 'random_inputs', 'slim']

# Of the largest value of an output. Folding changes the order of additions, which changes the
# last bits of float32; a lost or wrong node changes everything.
_TOLERANCE: Final = 1e-4
_DTYPES: Final[Mapping[int, Any]] = {
    onnx.TensorProto.FLOAT: np.float32,
    onnx.TensorProto.FLOAT16: np.float16,
    onnx.TensorProto.DOUBLE: np.float64,
    onnx.TensorProto.INT32: np.int32,
    onnx.TensorProto.INT64: np.int64,
    onnx.TensorProto.UINT8: np.uint8,
    onnx.TensorProto.BOOL: np.bool_,
}

_Tensors = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Slimmed:
    """A graph after slimming, or as it was.

    Attributes:
        model: slimmed where ``warning`` is empty, else the one that was given.
        before: nodes before.
        after: nodes after; the same as before where it was left alone.
        difference: largest difference of an output, as a share of the output's largest value.
        warning: why the graph was left alone, empty where it was not.
    """

    model: onnx.ModelProto
    before: int
    after: int
    difference: float
    warning: str


def slim(model: onnx.ModelProto, inputs: _Tensors) -> Slimmed:
    """Fold constants and remove what does nothing, and compare both by ONNX Runtime.

    Args:
        model: not changed.
        inputs: what both are run on, by name of the input; see random_inputs.
    """
    before = len(model.graph.node)
    try:
        expected = _run(model, inputs)
    except Exception as error:
        return _left(
            model, f'ONNX Runtime cannot run the model to compare: {one_line(error, 200)}'
        )
    try:
        slimmed = _slim(model)
        got = _run(slimmed, inputs)
    except Exception as error:
        return _left(model, f'onnxslim cannot slim it: {one_line(error, 200)}')
    if got.keys() != expected.keys():
        return _left(model, 'the slimmed graph has other outputs')
    difference = max(_difference(expected[name], got[name]) for name in expected)
    if not difference <= _TOLERANCE:
        return _left(
            model, f'the slimmed graph computes something else (differs by {difference:.2g})'
        )
    return Slimmed(slimmed, before, len(slimmed.graph.node), difference, '')


def _left(model: onnx.ModelProto, reason: str) -> Slimmed:
    count = len(model.graph.node)
    return Slimmed(model, count, count, 0.0, f'the graph was not slimmed: {reason}')


def _slim(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnxslim  # takes 0.8 s to import; an engine from the store does not need it

    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    logger = logging.getLogger('onnxslim')
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        # Shapes that vary must go on varying, and the opset is not slimming's business.
        slimmed: onnx.ModelProto = onnxslim.slim(copied)
    finally:
        logger.setLevel(level)
    if not slimmed.metadata_props:
        slimmed.metadata_props.extend(model.metadata_props)
    name_nodes(slimmed)
    onnx.checker.check_model(slimmed)
    return slimmed


def _run(model: onnx.ModelProto, inputs: _Tensors) -> _Tensors:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # Its own rewriting would hide, or be blamed for, a difference.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=['CPUExecutionProvider']
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def _difference(expected: npt.NDArray[Any], got: npt.NDArray[Any]) -> float:
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return math.inf
    if not np.issubdtype(expected.dtype, np.floating):
        return 0.0 if np.array_equal(expected, got) else math.inf
    one, other = expected.astype(np.float64), got.astype(np.float64)
    if not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return math.inf
    finite = np.isfinite(one)
    if not finite.any():
        return 0.0
    largest = float(np.abs(one[finite]).max())
    apart = float(np.abs(one[finite] - other[finite]).max())
    return apart / largest if largest > 0 else apart


def random_inputs(
    model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], seed: int = 0
) -> _Tensors:
    """Return an input of random numbers from 0 to 1 for each input of a model.

    Args:
        model: the model.
        shapes: final shapes by input; those of others must be fixed.
        seed: of the numbers.

    Raises:
        EngineError: an input has an open side, or a type that cannot be made.
    """
    random = np.random.default_rng(seed)
    weights = {tensor.name for tensor in model.graph.initializer}
    tensors = {}
    for value in model.graph.input:
        if value.name in weights:
            continue
        kind = value.type.tensor_type
        shape = shapes.get(value.name) or tuple(side.dim_value for side in kind.shape.dim)
        dtype = _DTYPES.get(kind.elem_type)
        if dtype is None or any(side < 1 for side in shape):
            name = onnx.TensorProto.DataType.Name(kind.elem_type).lower()
            raise EngineError(
                f'input {value.name!r}', f'{name}{list(shape)} cannot be filled with numbers'
            )
        tensors[value.name] = (
            random.random(shape).astype(dtype)
            if np.issubdtype(dtype, np.floating)
            else random.integers(0, 2, shape).astype(dtype)
        )
    return tensors
