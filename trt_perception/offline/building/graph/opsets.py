# SPDX-License-Identifier: Apache-2.0
"""Converts a model to a newer version of ONNX's operators."""

from __future__ import annotations

import copy

import onnx
from onnx import version_converter

from trt_perception.errors import EngineError
from trt_perception.offline.building.graph.graph_index import opset_version


def upgrade_opset(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """Return a copy of a model with at least this opset version.

    Raises:
        EngineError: ONNX's converter cannot convert the model.
    """
    current = opset_version(model)
    if current >= version:
        return copy.deepcopy(model)
    try:
        # The converter drops metadata and the opset versions of other domains: restore both below.
        converted = version_converter.convert_version(model, version)
        onnx.checker.check_model(converted)
    except Exception as error:  # ConvertError, RuntimeError, ValidationError and others
        raise EngineError(
            'the model',
            f'uses ONNX opset {current}. ONNX cannot convert it to opset {version} ({error})',
            fix=f'export the model with opset {version}',
        ) from error
    if not converted.metadata_props:
        converted.metadata_props.extend(model.metadata_props)
    domains = {entry.domain for entry in converted.opset_import}
    converted.opset_import.extend(
        entry for entry in model.opset_import if entry.domain not in domains | {'ai.onnx'}
    )
    return converted
