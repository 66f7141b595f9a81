"""Bring a model to a newer version of ONNX's operators."""

from __future__ import annotations

import copy

import onnx
from onnx import version_converter

from trt_perception.building.graph.graph_index import opset_version
from trt_perception.errors import EngineError

__all__ = ['upgrade_opset']


def upgrade_opset(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """Return a copy at this opset or, where it is newer already, at its own.

    Raises:
        EngineError: ONNX's converter cannot do it.
    """
    have = opset_version(model)
    if have >= version:
        return copy.deepcopy(model)
    try:
        # The converter drops what it does not know: metadata and opsets of other domains.
        converted = version_converter.convert_version(model, version)
        onnx.checker.check_model(converted)
    except Exception as error:  # ConvertError, RuntimeError, ValidationError …: whatever it meets
        raise EngineError(
            'the model',
            f'uses ONNX opset {have}, this needs {version}, and ONNX cannot convert it ({error})',
            fix=f'export it again with opset {version}',
        ) from error
    if not converted.metadata_props:
        converted.metadata_props.extend(model.metadata_props)
    domains = {entry.domain for entry in converted.opset_import}
    converted.opset_import.extend(
        entry for entry in model.opset_import if entry.domain not in domains | {'ai.onnx'}
    )
    return converted
