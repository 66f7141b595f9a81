# SPDX-License-Identifier: Apache-2.0
"""Run ROS 2's linters for Python with the settings of setup.cfg."""

import configparser
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKED = ('trt_perception', 'launch', 'setup.py')
# ament_pep257 asks for a verb also in the docstring of a property, which is a noun. ament_flake8
# tells properties from functions, and checks only the functions.
NOT_FOR_PEP257 = 'D401'


def needs(linter):
    return pytest.mark.skipif(
        importlib.util.find_spec(linter) is None,
        reason=f'{linter} is not installed: docs/testing.md says how to install it',
    )


def run(linter, *arguments):
    result = subprocess.run(
        [sys.executable, '-m', f'{linter}.main', *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-5000:]
    return result.stdout


@needs('ament_flake8')
def test_ament_flake8_finds_nothing():
    output = run('ament_flake8', '--config', 'setup.cfg', *CHECKED)
    assert '* trt_perception/api.py' in output  # it lists the files that it checked


@needs('ament_pep257')
def test_ament_pep257_finds_nothing():
    settings = configparser.ConfigParser(inline_comment_prefixes='#')
    settings.read(ROOT / 'setup.cfg')
    ignored = re.findall(r'\bD\d{3}\b', settings['flake8']['extend-ignore'])
    output = run('ament_pep257', *CHECKED, '--ignore', NOT_FOR_PEP257, *ignored)
    assert 'checking trt_perception/api.py' in output


@needs('ament_flake8')
def test_a_mistake_is_found(tmp_path):
    (tmp_path / 'wrong.py').write_text('def read(input):\n    return missing\n')
    result = subprocess.run(
        [sys.executable, '-m', 'ament_flake8.main', '--config', ROOT / 'setup.cfg', tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert {'A002', 'F821'} <= set(re.findall(r'\b[A-Z]\d{3}\b', result.stdout))
