"""Run builds with stand-ins for TensorRT releases that are not installed."""

from __future__ import annotations

import pytest

from support.building.tensorrt_standin import StandIn
from trt_perception.building.engine.build import build_plan
from trt_perception.building.engine.release import BuildGpu, TensorRt
from trt_perception.building.options.sources import load_options
from trt_perception.errors import EngineError

# The release whose recorded names the stand-in has, by its version. 10.11 is the last version with
# weak typing.
WEAK = {'10.3.0.26': '10.3', '10.7.0.23': '10.7', '10.11.0.33': '10.7'}
STRONG = {'10.12.0.36': '10.12', '10.13.3.9': '10.13', '10.16.1.11': '10.16'}
STRONG |= {'11.0.0.114': '11.0', '11.4.0.106': '11.4'}
RTX = {'1.4.0.76': 'RTX 1.4', '1.7.1.116': 'RTX 1.7'}
ALL = {**WEAK, **STRONG, **RTX}
RELEASES = {**ALL, '1.6.0.1': 'RTX 1.6'}
ORIN = BuildGpu('Orin', '8.7', {'driver': '12.6', 'runtime': '12.6'})


def stand_in(version, gpu=ORIN):
    module = StandIn(RELEASES[version], version)
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


def refusal(tensorrt, **given):
    with pytest.raises(EngineError) as caught:
        build(tensorrt, **given)
    return str(caught.value)
