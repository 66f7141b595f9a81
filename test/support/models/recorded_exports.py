# SPDX-License-Identifier: Apache-2.0
"""Read the recordings of record_ultralytics.py, and write ONNX files with the same outputs.

The recordings are in test/data/exports.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from support.oracles.family_outputs import network

EXPORTS = Path(__file__).parents[2] / 'data' / 'exports'


def recorded_values(family):
    """Return the recorded values of one export by name.

    The values are metadata, shapes, input and outputs, and the detections of the predictor.
    """
    with np.load(EXPORTS / family / 'expected.npz') as content:
        return dict(content)


def write_export(told, path, metadata=None):
    """Write an ONNX file with the recorded declarations and outputs; return node parameters."""
    import onnx

    given = dict(told['metadata'].tolist()) if metadata is None else metadata
    if 'task' in given:  # the recordings lack this key, which all these files have
        given = {'author': 'Ultralytics', **given}
    outputs = {'output0': told['output']}
    if 'prototypes' in told:
        outputs['output1'] = told['prototypes']
    content = network(outputs, told['pixels'].shape, metadata=given)
    model = onnx.load_model_from_string(content)
    _declare(model.graph.input[0], told['declared_input'])
    _declare(model.graph.output[0], told['declared_output'])
    if 'prototypes' in told:
        _declare(model.graph.output[1], told['declared_prototypes'])
    path.write_bytes(model.SerializeToString())
    return {'engine_path': str(path), 'max_detections': 300}


def _declare(value, shape):
    """Give an input or output of an ONNX file an open side for each negative size in ``shape``."""
    for side, told in zip(value.type.tensor_type.shape.dim, shape, strict=True):
        if told < 0:
            side.Clear()
            side.dim_param = 'open'
