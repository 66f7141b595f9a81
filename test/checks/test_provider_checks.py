# SPDX-License-Identifier: Apache-2.0
"""Tests of doctor's checks of ONNX Runtime: installed packages and working providers."""

from __future__ import annotations

import os

import numpy as np
import onnx
import onnxruntime
import pytest

from support.findings import lines_of
from trt_perception.checks import onnx_providers
from trt_perception.checks.onnx_providers import find_installations, onnx_provider_findings

# A build of ONNX Runtime that has CUDA, but cannot load it.
BUILD_WITHOUT_LIBRARIES = """
__version__ = '1.30.0'
def get_available_providers():
    return ['CUDAExecutionProvider', 'CPUExecutionProvider']
def set_default_logger_severity(level):
    pass
def preload_dlls():
    print('Failed to load libcublas.so.13')
class SessionOptions:
    def add_session_config_entry(self, key, value):
        pass
class InferenceSession:
    def __init__(self, content, options, providers, enable_fallback):
        pass
    def get_providers(self):
        return ['CPUExecutionProvider']
    def get_inputs(self):
        return []
    get_outputs = get_inputs
    def get_modelmeta(self):
        return self
    custom_metadata_map = {}
    def run(self, names, tensors):
        return []
"""


@pytest.fixture
def install(monkeypatch, tmp_path):
    """Return a function that puts a module onnxruntime before the installed one."""

    def install_it(source):
        (tmp_path / 'onnxruntime.py').write_text(source)
        monkeypatch.setenv('PYTHONPATH', str(tmp_path), prepend=os.pathsep)

    return install_it


@pytest.fixture
def one_installation(monkeypatch):
    """Hide the packages of ONNX Runtime on this machine, which may be several."""
    monkeypatch.setattr(onnx_providers, 'find_installations', lambda: ['onnxruntime 9.0'])


def add_package(folder, name, version, files):
    info = folder / f'{name.replace("-", "_")}-{version}.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text(f'Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n')
    (info / 'RECORD').write_text(''.join(f'{file},,\n' for file in files))
    for file in files:  # importlib.metadata of Python 3.12 leaves out missing files
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).touch()


def test_trial_model_applies_relu():
    onnx.checker.check_model(onnx.load_from_string(onnx_providers._TINY_MODEL))
    session = onnxruntime.InferenceSession(
        onnx_providers._TINY_MODEL, providers=['CPUExecutionProvider']
    )
    (output,) = session.run(None, {'x': np.array([[-1, 0, 2, -3]], np.float32)})
    assert output.tolist() == [[0, 0, 2, 0]]


@pytest.mark.usefixtures('one_installation')
def test_installed_build_works():
    findings = list(onnx_provider_findings(0))
    assert findings[0].level == 'green'
    assert 'cpu' in findings[0].found


@pytest.mark.usefixtures('one_installation')
def test_each_fault_of_a_provider_gives_its_finding(install, golden_messages):
    for source in (BUILD_WITHOUT_LIBRARIES, 'import os; os._exit(3)'):
        install(source)
        golden_messages.add('\n'.join(lines_of(onnx_provider_findings(0))))


def test_two_packages_with_the_same_module_are_found(monkeypatch, tmp_path, golden_messages):
    module = 'onnxruntime/__init__.py'
    add_package(tmp_path, 'onnxruntime-gpu', '9.1', [module])
    add_package(tmp_path, 'onnxruntime-ep-nv-tensorrt-rtx', '0.5', ['onnxruntime_ep/__init__.py'])
    monkeypatch.setattr('sys.path', [str(tmp_path)])
    assert find_installations() == ['onnxruntime-gpu 9.1']

    add_package(tmp_path, 'onnxruntime', '9.0', [module])
    assert find_installations() == ['onnxruntime 9.0', 'onnxruntime-gpu 9.1']
    first = next(onnx_provider_findings(0))
    assert first.level == 'yellow'
    golden_messages.add('\n'.join(lines_of([first])))
