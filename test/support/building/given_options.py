"""Make build options from keyword arguments, for tests."""

import pytest

from trt_perception.errors import ConfigError
from trt_perception.offline.building.options.sources import load_options


def refusal_text(given, config=None):
    with pytest.raises(ConfigError) as caught:
        load_options(config, given)
    return str(caught.value)


def make_options(**given):
    return load_options(None, {'onnx': 'model.onnx', **given})
