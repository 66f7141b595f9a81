# SPDX-License-Identifier: Apache-2.0
"""Slims an ONNX graph with onnxslim, and keeps the result only if it computes the same."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx

from trt_perception.files.plain_text import to_one_line
from trt_perception.offline.building.graph.graph_index import name_nodes

# Largest accepted difference, relative to the largest value of an output. Folding changes the
# order of additions, which changes the last bits of float32. A wrong node changes much more.
_TOLERANCE: Final = 1e-4

_Tensors = dict[str, npt.NDArray[Any]]


def slim(model: onnx.ModelProto, inputs: _Tensors) -> tuple[onnx.ModelProto, str]:
    """Fold constants, remove useless nodes, and compare both models in ONNX Runtime.

    Args:
        model: the model, not changed.
        inputs: maps an input's name to its value for both models, such as from random_inputs.

    Returns:
        The slimmed model and an empty text; or the given model and the reason for keeping it.
    """
    reason = 'the graph was not slimmed:'
    try:
        expected = _run_model(model, inputs)
    except Exception as error:
        said = to_one_line(error, 200)
        return model, f'{reason} ONNX Runtime cannot run the model for a comparison: {said}'
    try:
        slimmed = _run_onnxslim(model)
        got = _run_model(slimmed, inputs)
    except Exception as error:
        return model, f'{reason} onnxslim failed: {to_one_line(error, 200)}'
    if got.keys() != expected.keys():
        return model, f'{reason} the slimmed graph has other outputs'
    difference = max(_relative_difference(expected[name], got[name]) for name in expected)
    if not difference <= _TOLERANCE:
        return model, f'{reason} the results differ by {difference:.2g} of the largest value'
    return slimmed, ''


def _run_onnxslim(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnxslim  # the import takes 0.8 s, and an engine from the store does not need it

    logger = logging.getLogger('onnxslim')
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        # Pass no shapes and no opset version, so that onnxslim keeps both.
        slimmed: onnx.ModelProto = onnxslim.slim(copy.deepcopy(model))
    finally:
        logger.setLevel(level)
    if not slimmed.metadata_props:
        slimmed.metadata_props.extend(model.metadata_props)
    name_nodes(slimmed)
    onnx.checker.check_model(slimmed)
    return slimmed


def _run_model(model: onnx.ModelProto, inputs: _Tensors) -> _Tensors:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry('session.intra_op.allow_spinning', '0')
    # ONNX Runtime's own rewriting could hide or cause a difference.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=['CPUExecutionProvider']
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def _relative_difference(expected: npt.NDArray[Any], got: npt.NDArray[Any]) -> float:
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return math.inf
    if not np.issubdtype(expected.dtype, np.floating):
        return 0.0 if np.array_equal(expected, got) else math.inf
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(got)):
        return math.inf
    first, second = expected[finite].astype(np.float64), got[finite].astype(np.float64)
    largest = float(np.abs(first).max(initial=0.0))
    distance = float(np.abs(first - second).max(initial=0.0))
    return distance / largest if largest > 0 else distance


def random_inputs(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> _Tensors:
    """Return random values for each input of a model: floats from 0 to 1, other types 0 or 1.

    Args:
        shapes: maps the name of each input to its shape, without dynamic dimensions.
    """
    random = np.random.default_rng(0)
    tensors = {}
    for value in model.graph.input:
        if value.name in shapes:  # skip weights
            shape = shapes[value.name]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            numbers = random.random(shape) if dtype.kind == 'f' else random.integers(0, 2, shape)
            tensors[value.name] = numbers.astype(dtype)
    return tensors
