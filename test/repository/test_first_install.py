# SPDX-License-Identifier: Apache-2.0
"""Check that tests run after the README's first install, and skip without optional packages."""

import importlib.util
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from support.optional_packages import OPTIONAL, missing_optional_package

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / 'requirements'
#: The packages that the README installs. rosdep also installs packages of package.xml for tests.
FIRST_INSTALL = ('onnxruntime', 'pillow', 'pytest', 'pyyaml', 'tqdm')
#: Selects some files with property tests, tests of models and tests of ONNX Runtime.
SELECTED_TESTS = 'test_plain_text or test_manifest or test_onnx_runtime_batches or test_quantise'


def normalized(name):
    return re.sub(r'[-_.]+', '-', name).lower()


def requirements_of(name):
    """Return the distributions that a distribution requires; [] if it is not installed."""
    try:
        needed = metadata.requires(name) or ()
    except metadata.PackageNotFoundError:
        return []
    return [re.match(r'[\w.-]+', line)[0] for line in needed if 'extra ==' not in line]


def with_dependencies(names):
    """Return distributions and all distributions that they require, directly or indirectly."""
    found, pending = set(), list(names)
    while pending:
        name = normalized(pending.pop())
        if name not in found:
            found.add(name)
            pending += requirements_of(name)
    return found


def left_out_here():
    """Return the distributions whose markers exclude this version of Python or this machine."""
    text = (REQUIREMENTS / 'common.txt').read_text(encoding='utf-8')
    lines = [line.partition('#')[0].strip() for line in text.splitlines()]
    found = [Requirement(line) for line in lines if line]
    needed = {each.name for each in found if each.marker is None or each.marker.evaluate()}
    return {each.name for each in found} - needed


def packages_to_hide():
    """Return the distributions and modules that the first install leaves out."""
    pypi = (REQUIREMENTS / 'pypi.txt').read_text(encoding='utf-8')
    _, marker, plugins = pypi.partition('# --- tests')
    assert marker, 'pypi.txt has no tests'
    text = (REQUIREMENTS / 'common.txt').read_text(encoding='utf-8') + plugins
    listed = {normalized(name) for name in re.findall(r'^([\w.-]+)==', text, re.MULTILINE)}
    left_out = listed - with_dependencies(FIRST_INSTALL)
    installed = {package.metadata['Name'] for package in metadata.distributions()}
    names = {name for name in installed if normalized(name) in left_out}
    modules = metadata.packages_distributions().items()
    return names | {name for name, sources in modules if {*map(normalized, sources)} <= left_out}


def run_after_first_install(*arguments):
    folder = ROOT / 'test' / 'support' / 'first_install'
    path = [str(folder), *filter(None, [os.environ.get('PYTHONPATH')])]
    environment = {
        **os.environ,
        'PYTHONPATH': os.pathsep.join(path),
        'TRT_PERCEPTION_HIDDEN': ','.join(packages_to_hide()),
    }
    for name in ('TRT_PERCEPTION_COVERAGE', 'PYTEST_XDIST_WORKER', 'PYTEST_ADDOPTS'):
        environment.pop(name, None)
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)


def test_packages_beyond_the_first_install_are_hidden():
    names = 'onnx', 'hypothesis', 'xdist', 'pycocotools', 'scipy', 'matplotlib', 'ml_dtypes'
    code = f'import importlib.util as u; print([n for n in {names!r} if u.find_spec(n)])'
    assert run_after_first_install('-c', code).stdout == '[]\n'
    assert (
        run_after_first_install(
            '-c', 'import numpy, onnxruntime, cv2, yaml, tqdm, PIL, pytest'
        ).returncode
        == 0
    )


@pytest.mark.skipif(
    'TRT_PERCEPTION_IN_TEST' not in os.environ, reason='only scripts/test installs all packages'
)
def test_checkout_has_all_packages_that_tests_need():
    by_hand = {'ray'}  # 240 MB; docs/testing.md says how to run its tests
    names = sorted(OPTIONAL - by_hand - left_out_here())
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    assert not missing, 'requirements/ lacks packages that tests need'


@pytest.mark.ros  # the run also collects files that need ROS
@pytest.mark.timeout(900)  # collects all files and runs some
def test_every_file_collects_and_skip_reasons_mention_the_package():
    process = run_after_first_install(
        '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-rs', '-k', SELECTED_TESTS
    )

    assert process.returncode == 0, process.stdout + process.stderr
    reasons = re.findall(r'^SKIPPED \[\d+\] .*?: (.*)$', process.stdout, re.MULTILINE)
    assert {'needs onnx', 'needs hypothesis'} <= set(reasons)
    assert all(
        re.match(r'needs \w+|.*No module named|.*are not installed', one) for one in reasons
    )
    passed = re.search(r'(\d+) passed', process.stdout)
    assert int(passed[1]) > 200


def test_optional_packages_are_in_package_xml_or_the_testing_page():
    text = (ROOT / 'package.xml').read_text() + (ROOT / 'docs' / 'testing.md').read_text()
    words = set(re.findall(r'[\w-]+', text.replace('python3-', '')))
    other_names = {
        'tensorrt_rtx': 'tensorrt-rtx-cu13',
        'mcap_ros2': 'mcap-ros2-support',
        'zlib_ng': 'zlib-ng',
    }
    assert {other_names.get(name, name) for name in OPTIONAL} <= words


def import_error(code, file):
    try:
        exec(compile(code, str(file), 'exec'))
    except ImportError as error:
        return error
    raise AssertionError(f'{code} raised nothing')


INSTALLED = '/ws/install/lib/site-packages/trt_perception'


@pytest.mark.parametrize(
    ('code', 'file', 'package'),
    [
        ('import onnx.gone', ROOT / 'test' / 'test_any.py', 'onnx'),
        ('import onnx.gone', f'{INSTALLED}/offline/building/graph/any.py', 'onnx'),
        # The node must run without onnx.
        ('import onnx.gone', f'{INSTALLED}/pipelines/any.py', None),
        ('import trt_perception.gone', ROOT / 'test' / 'test_any.py', None),
        ('import misspelt', ROOT / 'test' / 'test_any.py', None),
        ('from numpy import gone', ROOT / 'test' / 'test_any.py', None),
    ],
)
def test_only_missing_optional_packages_may_skip_tests(code, file, package):
    assert missing_optional_package(import_error(code, file)) == package
