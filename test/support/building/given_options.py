# SPDX-License-Identifier: Apache-2.0
"""Make build options from keyword arguments, for tests."""

import pytest

from trt_perception.errors import ConfigError
from trt_perception.offline.building.options.build_options import OPTIONS
from trt_perception.offline.building.options.sources import load_options


def refusal_text(given, config=None):
    with pytest.raises(ConfigError) as caught:
        load_options(config, given)
    return str(caught.value)


def make_options(**given):
    return load_options(None, {'onnx': 'model.onnx', **given})


def changed_options(options):
    """Return the values that differ from the defaults, by name of the option."""
    default = make_options()
    values = {option.name: getattr(options, option.name) for option in OPTIONS}
    return {name: value for name, value in values.items() if value != getattr(default, name)}
