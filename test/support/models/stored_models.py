"""Small models as files of test/data/models, for machines without the onnx package."""

from pathlib import Path

MODELS = Path(__file__).parents[2] / 'data' / 'models'


def stored(name):
    """Return the bytes of a stored model.

    The function that makes the model and the file are compared by
    test/repository/test_stored_models.py.
    """
    return (MODELS / name).read_bytes()
