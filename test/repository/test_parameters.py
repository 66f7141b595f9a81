# SPDX-License-Identifier: Apache-2.0
"""Check that the parameter table, config/detect.yaml and the page agree."""

from pathlib import Path

import pytest
import yaml
from ament_index_python.packages import get_package_share_directory

from support.docs_pages import ROOT, rows, section
from trt_perception.parameters.values import PARAMETERS, ParameterValues

pytestmark = pytest.mark.ros


def test_installed_parameter_file_equals_the_source_file():
    share = Path(get_package_share_directory('trt_perception'))
    installed = (share / 'config' / 'detect.yaml').read_text(encoding='utf-8')
    assert installed == (ROOT / 'config/detect.yaml').read_text(encoding='utf-8')


def flatten(tree, prefix=''):
    """Map the dotted name of each parameter in a file to its value."""
    leaves = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            leaves.update(flatten(value, f'{prefix}{name}.'))
        else:
            leaves[prefix + name] = value
    return leaves


def read_values():
    content = yaml.safe_load((ROOT / 'config/detect.yaml').read_text(encoding='utf-8'))
    assert list(content) == ['/**'], 'the file must apply to nodes of any name and namespace'
    assert list(content['/**']) == ['ros__parameters']
    return flatten(content['/**']['ros__parameters'])


def test_parameter_file_has_exactly_the_parameters_of_the_table():
    assert list(read_values()) == [parameter.name for parameter in PARAMETERS]


def test_parameter_file_contains_the_defaults():
    assert ParameterValues.from_values(read_values()) == ParameterValues()


def test_values_of_the_parameter_file_have_the_types_of_the_table():
    # Read the file directly, because `from_values` accepts integers for doubles.
    kinds = {'bool': bool, 'integer': int, 'double': float, 'string': str}
    values = read_values()
    for parameter in PARAMETERS:
        expected = list if parameter.kind.endswith('[]') else kinds[parameter.kind]
        assert type(values[parameter.name]) is expected, parameter.name


def test_page_has_a_row_for_each_parameter():
    page = (ROOT / 'docs/parameters.md').read_text(encoding='utf-8')
    listed = rows(section(page, 'All parameters'))
    assert len(listed) == len(PARAMETERS)
    for cells, parameter in zip(listed, PARAMETERS, strict=True):
        name, kind, _, allowed, can_change, camera, meaning = cells
        assert name == f'`{parameter.name}`'
        assert kind == parameter.kind
        assert (can_change == 'always') == parameter.live
        assert (can_change == 'never') == parameter.start_only
        assert (camera == 'yes') == parameter.per_camera
        assert meaning == parameter.description
        for choice in parameter.choices:
            assert f'"{choice}"' in allowed
        if parameter.limits:
            low, high = parameter.limits
            assert f'{low:g} to {high:g}' in allowed
