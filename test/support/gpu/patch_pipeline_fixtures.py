# SPDX-License-Identifier: Apache-2.0
"""Provide fixtures for a pipeline of a patch model on a real GPU."""

import pytest

from support.gpu.gpu_support import build_plan
from support.models.open_model import open_by_parameters
from support.models.patch_model import patch_onnx, write_engine
from trt_perception import gpu
from trt_perception.model.decoders.anchors import Dense
from trt_perception.parameters.values import ParameterValues

_SIZE = (64, 48)
_DECODER = Dense()


@pytest.fixture(scope='module')
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp('engine')
    return write_engine(
        folder / 'patches.engine', build_plan(patch_onnx(_SIZE, _DECODER)), _SIZE, _DECODER
    )


@pytest.fixture
def open_patch_pipeline(engine, monkeypatch):
    """Return a function that opens a pipeline.

    With ``integrated``, the GPU reports that it is an integrated GPU.
    """
    pipelines = []

    def make(*, integrated=False, depth=2, graph=True, **parameters):
        with monkeypatch.context() as patch:
            if integrated:
                made = gpu.Device.__init__

                def made_integrated(self, index):
                    made(self, index)
                    self.integrated = True

                patch.setattr(gpu.Device, '__init__', made_integrated)
            parameters = ParameterValues(
                engine_path=str(engine),
                pipeline_depth=depth,
                use_cuda_graph=graph,
                **parameters,
            )
            pipelines.append(open_by_parameters(parameters))
        return pipelines[-1]

    yield make
    for pipeline in pipelines:
        pipeline.close()
