# SPDX-License-Identifier: Apache-2.0
"""Check which files an installation contains besides the Python modules."""

import importlib.util
from pathlib import Path

import pytest
from ament_index_python.packages import get_package_share_directory

pytestmark = pytest.mark.ros

ROOT = Path(__file__).resolve().parents[2]
SHARE = Path(get_package_share_directory('trt_perception'))


def files_below(folder):
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob('*')
        if path.is_file() and '__pycache__' not in path.parts
    }


@pytest.mark.parametrize('folder', ['launch', 'config'])
def test_all_launch_files_and_settings_are_installed(folder):
    assert files_below(SHARE / folder) == files_below(ROOT / folder)


def test_robots_get_only_the_model_and_scenes_of_the_launched_demo():
    assert sorted(files_below(SHARE / 'models')) == [
        'README.md',  # has the licence
        'digits.onnx',
        'digits.onnx.json',
    ]
    scenes = [f'scenes/scene_{number:03}.jpg' for number in range(10)]
    assert sorted(files_below(SHARE / 'demo')) == ['README.md', *scenes]
    assert sum(files_below(SHARE).values()) < 3_500_000


@pytest.mark.skipif(
    importlib.util.find_spec('launch_ros') is None,
    reason='launch_ros is not installed (not on PyPI; apt has it: ros-base)',
)
def test_files_that_the_launched_demo_names_are_installed():
    from launch.actions import DeclareLaunchArgument
    from launch.launch_description_sources import get_launch_description_from_python_launch_file

    path = str(SHARE / 'launch' / 'demo.launch.py')
    description = get_launch_description_from_python_launch_file(path)
    [engine] = [
        action
        for action in description.entities
        if isinstance(action, DeclareLaunchArgument) and action.name == 'engine_path'
    ]
    assert Path(engine.default_value[0].text).is_file()
