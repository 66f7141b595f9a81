# SPDX-License-Identifier: Apache-2.0
"""Provide the YOLOX of scripts/trained_model.py: pytest_plugins = ['support.trained_fixtures']."""

import pytest

from support.docs_pages import load_script

#: A longer download would end the process of the test.
DOWNLOAD_S = 120


@pytest.fixture(scope='session')
def trained_yolox():
    """Return the path of the ONNX file. Skip the test if it cannot be downloaded."""
    script = load_script('trained_model.py')
    try:
        return script.cached_file(timeout_s=DOWNLOAD_S)
    except (script.DownloadError, OSError) as error:
        pytest.skip(f'needs the file of scripts/trained_model.py: {error}')
