"""Recordings of test/data/exports/record_ultralytics.py, and ONNX files with the same outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from support.oracles.family_outputs import network

EXPORTS = Path(__file__).parents[2] / 'data' / 'exports'


def recorded(family):
    """Return metadata, shapes, input, outputs, and the detections of the exporter's predictor."""
    with np.load(EXPORTS / family / 'expected.npz') as content:
        return dict(content)


def written(told, path, metadata=None):
    """Write a file with the exported file's declarations and outputs; return its parameters."""
    import onnx

    given = dict(told['metadata'].tolist()) if metadata is None else metadata
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
    """Open sides of an input or output of an ONNX file."""
    for side, told in zip(value.type.tensor_type.shape.dim, shape, strict=True):
        if told < 0:
            side.Clear()
            side.dim_param = 'open'
