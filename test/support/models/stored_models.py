# SPDX-License-Identifier: Apache-2.0
"""Read small models from test/data/models, so that tests need no onnx package."""

from pathlib import Path

MODELS = Path(__file__).parents[2] / 'data' / 'models'


def stored_model(name):
    """Return the bytes of a stored model.

    test/repository/test_stored_models.py compares the file with the function that makes the model.
    """
    return (MODELS / name).read_bytes()
