"""ModelOpt: exercised with a stand-in, as it is not installed."""

import sys
import types

import onnx
import pytest

from support.models import small_detectors
from support.models.digits import CALIBRATION
from support.models.scaled_models import SMALL
from trt_perception.building.calibration.images import select_images
from trt_perception.building.precision import quantise_modelopt
from trt_perception.building.precision.quantise import quantise
from trt_perception.building.precision.quantise_modelopt import quantise_with_modelopt
from trt_perception.errors import ConfigError, EngineError


def test_modelopt_is_asked_for_by_name():
    model, *_ = small_detectors.raw_maps()
    assert 'modelopt' not in sys.modules
    settings = {'progress': lambda *_: None}
    with pytest.raises(ConfigError, match=r'nvidia-modelopt\[onnx\]'):
        quantise_with_modelopt(model, SMALL, select_images(CALIBRATION, 8), **settings)
    with pytest.raises(ConfigError, match='entropy or minmax'):
        quantise_with_modelopt(
            model, SMALL, select_images(CALIBRATION, 8), method='percentile', **settings
        )


def test_modelopt_is_given_what_it_needs(monkeypatch):
    model, layers, _ = small_detectors.raw_maps()
    images = select_images(CALIBRATION, 8)
    asked = {}

    def quantize(**arguments):
        asked.update(arguments)
        source = onnx.load(arguments['onnx_path'])
        onnx.save(quantise(source, SMALL, images).model, arguments['output_path'])

    monkeypatch.setattr(
        quantise_modelopt, '_modelopt', lambda _: types.SimpleNamespace(quantize=quantize)
    )
    settings = {'progress': lambda *_: None}
    result, warnings = quantise_with_modelopt(model, SMALL, images, method='minmax', **settings)
    assert any('8 images' in warning for warning in warnings)
    assert any(node.op_type == 'QuantizeLinear' for node in result.graph.node)
    assert asked['calibration_data']['images'].shape == (8, 3, 64, 64)
    assert asked['calibration_method'] == 'max'
    assert asked['nodes_to_exclude'] == layers

    def fails(**_arguments):
        raise RuntimeError('no kernel image')

    monkeypatch.setattr(
        quantise_modelopt, '_modelopt', lambda _: types.SimpleNamespace(quantize=fails)
    )
    with pytest.raises(
        EngineError, match='the model: ModelOpt cannot quantise it: no kernel image'
    ):
        quantise_with_modelopt(model, SMALL, images, **settings)
