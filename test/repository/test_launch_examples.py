# SPDX-License-Identifier: Apache-2.0
"""Test rules for launch files that include other files. `launch` is not needed.

test/ros/test_launch_nodes.py launches the examples if `launch` is installed.
"""

from xml.etree import ElementTree

import pytest

from support.docs_pages import ROOT

FILES = sorted(ROOT.glob('examples/*/*.launch.xml'))


def name_of(path):
    return path.name


@pytest.mark.parametrize('path', FILES, ids=name_of)
def test_each_of_several_included_files_has_its_own_group(path):
    """Outside a group, the next file gets the arguments of an included file, also defaults."""
    root = ElementTree.fromstring(path.read_text(encoding='utf-8'))
    includes = [len(parent.findall('include')) for parent in root.iter()]
    assert sum(includes) > 0
    if sum(includes) > 1:
        assert root.findall('include') == []
        assert max(includes) == 1


@pytest.mark.parametrize('path', FILES, ids=name_of)
def test_dirname_is_read_before_an_include(path):
    """After an include, dirname of Jazzy's launch is the folder of the included file."""
    text = path.read_text(encoding='utf-8')
    assert '$(dirname)' not in text.partition('<include')[2]


@pytest.mark.parametrize('path', FILES, ids=name_of)
def test_included_file_does_not_get_rviz(path):
    """detect.launch.py ignores this argument if another file includes it."""
    root = ElementTree.fromstring(path.read_text(encoding='utf-8'))
    assert root.findall('.//include/arg[@name="rviz"]') == []
