# SPDX-License-Identifier: Apache-2.0
"""Tests that all files name the same versions of Python, and pin each requirement once."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from trt_perception.checks.software import _PYTHON_VERSIONS

ROOT = Path(__file__).resolve().parents[2]
OLDEST, NEWEST = (minor for _, minor in _PYTHON_VERSIONS)
VERSIONS = [f'3.{minor}' for minor in range(OLDEST, NEWEST + 1)]


def requirements(name):
    """Return the requirements of a file and of the files that it includes."""
    found = []
    for line in (ROOT / 'requirements' / name).read_text().splitlines():
        line = line.partition('#')[0].strip()
        if line.startswith('-r '):
            found += requirements(line[3:])
        elif line and not line.startswith('-c '):
            found.append(Requirement(line))
    return found


def test_classifiers_are_the_tested_versions():
    command = [sys.executable, 'setup.py', '--classifiers']
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r'^Programming Language :: Python :: ([\d.]+)$', output, re.M) == VERSIONS


@pytest.mark.parametrize(
    'name',
    ['README.md', 'docs/get_started.md', 'scripts/lib/environment.sh', 'scripts/test_python'],
)
def test_text_names_the_tested_versions(name):
    ranges = re.findall(r'\b(3\.\d+) to (3\.\d+)\b', (ROOT / name).read_text())
    assert ranges
    assert set(ranges) == {(VERSIONS[0], VERSIONS[-1])}


@pytest.mark.parametrize('name', ['jazzy.txt', 'kilted.txt'])
@pytest.mark.parametrize('version', VERSIONS)
def test_each_package_has_one_pinned_version(name, version):
    environment = {'python_version': version, 'python_full_version': f'{version}.0'}
    wanted = [
        requirement
        for requirement in requirements(name)
        if requirement.marker is None or requirement.marker.evaluate(environment)
    ]
    names = [requirement.name.lower() for requirement in wanted]
    assert len(set(names)) == len(names)
    assert all(str(requirement.specifier).startswith('==') for requirement in wanted)
    # A package with one pin may be for some versions only: others need none, or have no wheel.
    lines = Counter(requirement.name.lower() for requirement in requirements(name))
    assert all(lines[package] == 1 for package in lines.keys() - set(names))
