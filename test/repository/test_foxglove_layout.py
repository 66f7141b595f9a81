# SPDX-License-Identifier: Apache-2.0
"""Check the layout for Foxglove: its panels, and that the node has its topics."""

import json

from support.source_trees import ROOT
from trt_perception.model.tasks.task import ANNOTATIONS_TOPIC

LAYOUT = json.loads((ROOT / 'config' / 'foxglove.json').read_text(encoding='utf-8'))
#: Panels that the layout must have: the part before the exclamation mark of each name.
KINDS = {'Image', '3D', 'DiagnosticSummary', 'DiagnosticStatusPanel'}


def panels(part):
    """Return the names of the panels in a part of the layout, from first to second."""
    if isinstance(part, str):
        return [part]
    assert part.keys() == {'direction', 'splitPercentage', 'first', 'second'}
    assert part['direction'] in ('row', 'column')
    assert 0 < part['splitPercentage'] < 100
    return panels(part['first']) + panels(part['second'])


def test_every_panel_is_placed_once_and_configured():
    placed = panels(LAYOUT['layout'])
    assert sorted(placed) == sorted(LAYOUT['configById'])
    assert {name.partition('!')[0] for name in placed} == KINDS
    assert len(placed) == len(KINDS)


def test_panels_show_topics_of_the_node():
    configs = {name.partition('!')[0]: panel for name, panel in LAYOUT['configById'].items()}
    image = configs['Image']['imageMode']
    assert image['imageTopic'] == '/image'
    assert image['annotations'] == {f'/{ANNOTATIONS_TOPIC.name}': {'visible': True}}
    assert image['synchronize'] is True
    for kind in ('DiagnosticSummary', 'DiagnosticStatusPanel'):
        assert configs[kind]['topicToRender'] == '/diagnostics'
