"""Quantise with NVIDIA ModelOpt instead of ONNX Runtime, where somebody installed it.

Not run by us: it brings PyTorch and CUDA wheels, 6.4 GB. Written after ModelOpt's documentation of
``modelopt.onnx.quantization.quantize``; what comes out goes through the same check as our own.
"""

from __future__ import annotations

import copy
import importlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from trt_perception.building.calibration.activations import calibration_inputs, input_shapes
from trt_perception.building.calibration.images import CheckedImages, ImageSet
from trt_perception.building.graph.graph_index import name_nodes
from trt_perception.building.precision.quantise import kept_layers
from trt_perception.building.precision.quantise_check import check_quantised
from trt_perception.building.precision.quantise_scales import fit_scales, without_unusable
from trt_perception.building.report import StepProgress
from trt_perception.errors import ConfigError, EngineError
from trt_perception.model.preprocessing import Preprocessing

__all__ = ['quantise_with_modelopt']

_METHODS = {'entropy': 'entropy', 'minmax': 'max'}
_MODULE = 'modelopt.onnx.quantization'


def quantise_with_modelopt(
    model: onnx.ModelProto,
    preprocessing: Preprocessing,
    images: ImageSet,
    *,
    method: str = 'minmax',
    target: str = 'int8',
    keep_float: Sequence[str] = (),
    progress: StepProgress,
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Return the model with Q/DQ nodes that ModelOpt placed, the rest in float32, and warnings.

    All tensors of all images are held in memory, as ModelOpt's interface wants it.

    Args:
        model: float32, not changed.
        preprocessing: as at run time.
        images: what to calibrate with.
        method: ModelOpt has ``entropy`` and ``minmax`` (its ``max``).
        target: INT8 or FP8.
        keep_float: patterns of node names that stay in float, as the head's output layers do.
        progress: called with a step's name, how many are done, and of how many.

    Raises:
        ConfigError: ModelOpt is not installed, or the method or images cannot serve.
        EngineError: ModelOpt fails, or TensorRT would refuse what it made.
    """
    tool = _modelopt(method)
    source = copy.deepcopy(model)
    name_nodes(source)
    image, constants = calibration_inputs(source, preprocessing)
    kept = kept_layers(source, keep_float, input_shapes(source, preprocessing))
    checked = CheckedImages(images, preprocessing, progress)
    tensors = np.concatenate([tensor.copy() for _, tensor in checked])
    data = {
        image.name: tensors,
        # The same for each image; ModelOpt splits all of them along the first axis.
        **{key: np.repeat(value, len(tensors), axis=0) for key, value in constants.items()},
    }
    progress('quantising', 0, 1)
    settings = {
        'quantize_mode': target,
        'calibration_method': _METHODS[method],
        'calibration_data': data,
        'calibration_eps': ['cpu'],
        'nodes_to_exclude': list(kept),
        'high_precision_dtype': 'fp32',
    }
    result = _run_tool(tool, source, settings)
    progress('quantising', 1, 1)
    fit_scales(result)
    warnings = checked.warnings
    result, idle = without_unusable(result)
    if idle:
        named = ', '.join(f'{layer} (reads {tensor})' for layer, tensor in idle.items())
        warnings.append(f'these layers stay in float, because ModelOpt found no range: {named}')
    check_quantised(result)
    return result, tuple(warnings)


def _run_tool(tool: Any, model: onnx.ModelProto, settings: Mapping[str, Any]) -> onnx.ModelProto:
    """Return what ModelOpt, which reads and writes files, makes of a model."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / 'model.onnx', Path(folder) / 'quantised.onnx'
        onnx.save(model, before)
        try:
            tool.quantize(onnx_path=str(before), output_path=str(after), **settings)
            result: onnx.ModelProto = onnx.load(after)
        except Exception as error:  # whatever ModelOpt and what it stands on may raise
            raise EngineError('the model', f'ModelOpt cannot quantise it: {error}') from error
    name_nodes(result)
    return result


def _modelopt(method: str) -> Any:
    """Return ModelOpt, which must know the method."""
    if method not in _METHODS:
        raise ConfigError(
            'the calibration method of ModelOpt', repr(method), expected=' or '.join(_METHODS)
        )
    try:
        return importlib.import_module(_MODULE)
    except ImportError as error:
        raise ConfigError(
            'the calibration tool modelopt',
            'needs NVIDIA ModelOpt, which is not installed (6.4 GB with PyTorch)',
            fix=(
                "python3 -m pip install 'nvidia-modelopt[onnx]', in an environment of "
                'its own; or use the calibration tool onnxruntime'
            ),
        ) from error
