# SPDX-License-Identifier: Apache-2.0
"""Versions of the installed packages that change the result of a build or a calibration."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from importlib import metadata
from typing import Final

#: Packages that decode images. Two decoders may round pixels differently, and without simplejpeg a
#: truncated JPEG is used half grey instead of being refused.
IMAGE_PACKAGES: Final = ('simplejpeg', 'pillow', 'opencv-python', 'opencv-python-headless')
#: Packages that change, round or quantise the model, run it for the figures of the report, or
#: decode images.
BUILD_PACKAGES: Final = (
    'onnx',
    'onnxslim',
    'onnxruntime',
    'onnxruntime-gpu',
    'ml_dtypes',
    *IMAGE_PACKAGES,
)


def package_versions(names: Sequence[str]) -> dict[str, str]:
    """Return the versions of the installed packages by name, without importing the packages."""
    versions = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
