# SPDX-License-Identifier: Apache-2.0
"""Run builds with stand-ins for TensorRT releases that are not installed."""

from __future__ import annotations

import pytest

from support.building.tensorrt_standin import StandIn
from trt_perception.errors import EngineError
from trt_perception.offline.building.engine.build import build_plan
from trt_perception.offline.building.engine.release import BuildGpu, TensorRt
from trt_perception.offline.building.options.sources import load_options

# Each table maps the version that a stand-in reports to the release whose recorded names the
# stand-in offers. The last version with weak typing is 10.11.
WEAK_TYPING_RELEASES = {'10.3.0.26': '10.3', '10.7.0.23': '10.7', '10.11.0.33': '10.7'}
STRONG_TYPING_RELEASES = {'10.12.0.36': '10.12', '10.13.3.9': '10.13', '10.16.1.11': '10.16'}
STRONG_TYPING_RELEASES |= {'11.0.0.114': '11.0', '11.4.0.106': '11.4'}
RTX_RELEASES = {'1.4.0.76': 'RTX 1.4', '1.7.1.116': 'RTX 1.7'}
TESTED_RELEASES = {**WEAK_TYPING_RELEASES, **STRONG_TYPING_RELEASES, **RTX_RELEASES}
RECORDED_RELEASES = {**TESTED_RELEASES, '1.6.0.1': 'RTX 1.6'}
ORIN_GPU = BuildGpu('Orin', '8.7', {'driver': '12.6', 'runtime': '12.6'})


def make_stand_in(version, gpu=ORIN_GPU):
    module = StandIn(RECORDED_RELEASES[version], version)
    return module, TensorRt(module, module.flavour, version, gpu)


def build(tensorrt, *, fp32_nodes=(), calibration=None, progress=lambda *_: None, **given):
    options = load_options(None, {'onnx': 'model.onnx', **given})
    return build_plan(
        b'model',
        options,
        tensorrt,
        fp32_nodes=fp32_nodes,
        calibration=calibration,
        progress=progress,
    )


def refusal_text(tensorrt, **given):
    with pytest.raises(EngineError) as caught:
        build(tensorrt, **given)
    return str(caught.value)
