# SPDX-License-Identifier: Apache-2.0
"""Provide a pytest plugin that replaces CUDA and TensorRT by stand-ins; see also gpu_standins."""

from __future__ import annotations

import sys

import pytest

from support.gpu import fake_cuda
from support.gpu.cuda_recorder import Recorder
from support.gpu.fake_tensorrt import MODEL_PARAMETERS, PLAN, FakeTensorRt
from support.gpu.gpu_standins import PIPELINE_DEPTH
from trt_perception.gpu import bindings
from trt_perception.parameters.values import ParameterValues


@pytest.fixture
def install_standins(monkeypatch, tmp_path):
    """Return a function that installs the stand-ins and returns (CUDA recorder, TensorRT)."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))

    def put(refuses='', tensors=None, **cuda):
        recorder = Recorder(fake_cuda.bindings(**cuda))
        tensorrt = FakeTensorRt(refuses, **(tensors or {}))
        monkeypatch.setattr(bindings, 'load_bindings', lambda: recorder.modules)
        monkeypatch.setitem(sys.modules, 'tensorrt', tensorrt)
        return recorder, tensorrt

    return put


@pytest.fixture
def parameters(tmp_path):
    (tmp_path / 'tiny.engine').write_bytes(PLAN)
    return ParameterValues(
        engine_path=str(tmp_path / 'tiny.engine'),
        pipeline_depth=PIPELINE_DEPTH,
        **MODEL_PARAMETERS,
    )
