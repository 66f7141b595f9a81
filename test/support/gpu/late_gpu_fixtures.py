# SPDX-License-Identifier: Apache-2.0
"""Provide fixtures for pipelines on the GPU of late_gpu, with a stand-in for nvJPEG."""

import sys

import pytest

from support.gpu.fake_tensorrt import MODEL_PARAMETERS, PLAN, FakeTensorRt
from support.gpu.host_kernels import HostLetterbox
from support.gpu.late_gpu import PREPROCESSING, LateGpu
from support.gpu.late_nvjpeg import DecodingNvJpeg
from support.models.open_model import open_by_parameters
from trt_perception.gpu import bindings, nvjpeg
from trt_perception.parameters.values import ParameterValues


@pytest.fixture(scope='module')
def letterbox():
    return HostLetterbox(PREPROCESSING)


@pytest.fixture
def open_late_pipeline(letterbox, monkeypatch, tmp_path):
    """Return a function that opens a pipeline and returns (GPU, pipeline)."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    path = tmp_path / 'tiny.engine'
    path.write_bytes(PLAN)
    opened = []

    def put(*, integrated=False, graph=True, depth=2, tensorrt=None, **parameters):
        gpu = LateGpu(letterbox, integrated=integrated)
        monkeypatch.setattr(bindings, 'load_bindings', lambda: gpu.modules)
        monkeypatch.setitem(sys.modules, 'tensorrt', tensorrt or FakeTensorRt())
        parameters = ParameterValues(
            engine_path=str(path),
            pipeline_depth=depth,
            use_cuda_graph=graph,
            cameras=tuple(f'camera{index}' for index in range(64)),
            **{**MODEL_PARAMETERS, **parameters},
        )
        opened.append((gpu, open_by_parameters(parameters)))
        gpu.uploads.clear()
        return opened[-1]

    yield put
    for gpu, pipeline in opened:
        pipeline.close()
        assert gpu.host_bytes == {}


@pytest.fixture
def library(monkeypatch):
    fake = DecodingNvJpeg()
    monkeypatch.setattr(nvjpeg, 'load_nvjpeg', lambda: (fake, (13, 3, 2)))
    return fake


@pytest.fixture
def open_jpeg_pipeline(open_late_pipeline, library):
    """Return a function that opens a pipeline for JPEGs and returns (GPU, pipeline)."""

    def put(**options):
        gpu, pipeline = open_late_pipeline(image_transport='compressed', **options)
        assert pipeline.decodes_jpeg
        library.decoded.clear()
        library.gpu = gpu
        gpu.uploads.clear()
        return gpu, pipeline

    return put
