# SPDX-License-Identifier: Apache-2.0
"""Provide fixtures for damaged engines: pytest_plugins = ['support.fuzz.untrusted_fixtures']."""

import sys
import types

import pytest

from support.fuzz.untrusted_engines import EngineFiles
from trt_perception.errors import EngineError
from trt_perception.pipelines.cuda import cuda_pipeline


@pytest.fixture
def engine_files(tmp_path):
    place = EngineFiles(tmp_path / 'models')
    place.reset()
    return place


@pytest.fixture
def received_plans(monkeypatch):
    """Replace TensorRT and the GPU; return the list of plans that the runtime received."""
    plans = []

    class Runtime:
        def __init__(self, logger):
            self.logger = logger

        def deserialize_cuda_engine(self, content):
            plans.append(bytes(content))
            raise EngineError('TensorRT', 'the stand-in was reached')

    fake = types.ModuleType('tensorrt')
    vars(fake).update(Runtime=Runtime, ILogger=object, __version__='10.13.3.9')
    device = types.SimpleNamespace(name='none', compute_capability=(8, 6), integrated=False)
    monkeypatch.setitem(sys.modules, 'tensorrt', fake)
    monkeypatch.setattr(cuda_pipeline, 'Device', lambda index: device)
    return plans
