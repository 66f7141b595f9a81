# SPDX-License-Identifier: Apache-2.0
"""Check examples/nav2 against the parameters and rules of Nav2's semantic segmentation layer.

The tables below are from the layer's calls of declare_parameter in commit a70cf6e. The layer is
not on PyPI.
"""

from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from ament_index_python.packages import get_package_share_directory

from support.docs_pages import ROOT
from trt_perception.parameters.launch_arguments import launch_arguments

FOLDER = ROOT / 'examples' / 'nav2'
NAME = 'semantic_segmentation_layer'
LAYER = {
    'enabled': bool,
    'combination_method': int,
    'observation_sources': str,
    'publish_debug_topics': bool,
    'use_approximate_time_sync': bool,
}
SOURCE = {
    'segmentation_topic': str,
    'confidence_topic': str,
    'labels_topic': str,
    'pointcloud_topic': str,
    'observation_persistence': float,
    'expected_update_rate': float,
    'class_types': list,
    'max_obstacle_distance': float,
    'min_obstacle_distance': float,
    'tile_map_decay_time': float,
    'visualize_tile_map': bool,
    'use_cost_selection': bool,
}
CLASS_TYPE = {
    'classes': list,
    'base_cost': int,
    'max_cost': int,
    'mark_confidence': int,
    'samples_to_max_cost': int,
    'dominant_priority': bool,
}
#: Values that the layer stores in a byte.
BYTES = ('base_cost', 'max_cost', 'mark_confidence')
# The 19 classes that are evaluated, in the order of their ids.
CITYSCAPES = [
    *('road', 'sidewalk', 'building', 'wall', 'fence', 'pole', 'traffic light', 'traffic sign'),
    *('vegetation', 'terrain', 'sky', 'person', 'rider', 'car', 'truck', 'bus', 'train'),
    *('motorcycle', 'bicycle'),
]


@pytest.fixture(scope='module')
def costmap():
    content = yaml.safe_load((FOLDER / 'costmap.yaml').read_text())
    return content['local_costmap']['local_costmap']['ros__parameters']


def check(section, declared, subsections):
    """Check that a section has declared parameters in their types, and these subsections."""
    values = {name: value for name, value in section.items() if name not in subsections}
    assert values.keys() <= declared.keys()
    # ROS 2 refuses a whole number for a parameter that was declared with a fraction.
    assert {name: type(value) for name, value in values.items()} == {
        name: declared[name] for name in values
    }
    assert set(subsections) <= section.keys()


def class_types(costmap):
    """Return the sections of the class types of each source."""
    layer = costmap[NAME]
    for source in layer['observation_sources'].split():
        for name in layer[source]['class_types']:
            yield layer[source][name]


def test_parameters_have_the_names_and_types_of_the_layer(costmap):
    layer = dict(costmap[NAME])
    assert NAME in costmap['plugins']
    assert layer.pop('plugin') == 'semantic_segmentation_layer::SemanticSegmentationLayer'
    sources = layer['observation_sources'].split()
    check(layer, LAYER, sources)
    for source in sources:
        check(layer[source], SOURCE, layer[source]['class_types'])
    for section in class_types(costmap):
        check(section, CLASS_TYPE, [])


def test_values_are_in_the_range_of_the_layer(costmap):
    assert costmap[NAME]['combination_method'] in (0, 1)
    for section in class_types(costmap):
        assert all(0 <= section[name] <= 255 for name in BYTES)
        assert section['base_cost'] <= section['max_cost']


def test_every_class_of_the_model_is_listed_once(costmap):
    listed = [name for section in class_types(costmap) for name in section['classes']]
    assert sorted(listed) == sorted(CITYSCAPES)


def test_topics_are_the_topics_of_the_node(costmap):
    layer = costmap[NAME]
    for source in layer['observation_sources'].split():
        topics = [
            layer[source][f'{name}_topic'] for name in ('segmentation', 'confidence', 'labels')
        ]
        assert topics == [f'/segmentation/{name}' for name in ('mask', 'confidence', 'label_info')]


def test_launch_file_passes_declared_arguments_to_the_launch_file_of_the_package():
    share = get_package_share_directory('trt_perception')
    launch = ElementTree.parse(FOLDER / 'segmentation.launch.xml').getroot()
    [include] = launch.iter('include')
    declared = {argument.get('name'): argument for argument in launch.findall('arg')}

    given = {argument.get('name'): argument.get('value') for argument in include.iter('arg')}
    file = include.get('file').replace('$(find-pkg-share trt_perception)', share)

    assert (ROOT / 'launch' / 'detect.launch.py').read_text() == Path(file).read_text()
    assert given.keys() <= launch_arguments(ROOT).keys()
    assert given == {name: f'$(var {name})' for name in declared}
    # detect.launch.py does not pass an empty value to the node, so a parameter file may set it.
    assert declared['map_size'].get('default') == ''
