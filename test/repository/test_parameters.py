"""The parameter table and the files made from it say the same."""

from pathlib import Path

import pytest
import yaml
from ament_index_python.packages import get_package_share_directory

from support.docs_pages import ROOT, rows, section
from trt_perception.parameters.config import PARAMETERS, DetectorConfig

pytestmark = pytest.mark.ros


def test_installed_parameter_file_is_the_one_of_the_sources():
    share = Path(get_package_share_directory('trt_perception'))
    installed = (share / 'config' / 'detect.yaml').read_text(encoding='utf-8')
    assert installed == (ROOT / 'config/detect.yaml').read_text(encoding='utf-8')


def flat(tree, prefix=''):
    """Return the leaves of a parameter file by their names with dots."""
    leaves = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            leaves.update(flat(value, f'{prefix}{name}.'))
        else:
            leaves[prefix + name] = value
    return leaves


def values_of_the_file():
    content = yaml.safe_load((ROOT / 'config/detect.yaml').read_text(encoding='utf-8'))
    assert list(content) == ['/**'], 'it must fit a node of any name and namespace'
    assert list(content['/**']) == ['ros__parameters']
    return flat(content['/**']['ros__parameters'])


def test_yaml_covers_exactly_the_table():
    assert list(values_of_the_file()) == [parameter.name for parameter in PARAMETERS]


def test_yaml_holds_the_defaults():
    assert DetectorConfig.from_values(values_of_the_file()) == DetectorConfig()


def test_yaml_has_the_types_of_the_table():
    # Not by way of from_values, which takes whole numbers for doubles.
    kinds = {'bool': bool, 'integer': int, 'double': float, 'string': str}
    values = values_of_the_file()
    for parameter in PARAMETERS:
        expected = list if parameter.kind.endswith('[]') else kinds[parameter.kind]
        assert type(values[parameter.name]) is expected, parameter.name


def test_page_has_a_row_for_each_parameter():
    page = (ROOT / 'docs/parameters.md').read_text(encoding='utf-8')
    listed = rows(section(page, 'All parameters'))
    assert len(listed) == len(PARAMETERS)
    for cells, parameter in zip(listed, PARAMETERS, strict=True):
        name, kind, _, allowed, live, camera, meaning = cells
        assert name == f'`{parameter.name}`'
        assert kind == parameter.kind
        assert (live == 'yes') == parameter.live
        assert (camera == 'yes') == parameter.per_camera
        assert meaning == parameter.description
        for choice in parameter.choices:
            assert f'"{choice}"' in allowed
        if parameter.minimum is not None:
            assert f'{parameter.minimum:g} to {parameter.maximum:g}' in allowed
