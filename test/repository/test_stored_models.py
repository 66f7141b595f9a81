"""The stored models are what their functions make."""

import pytest

from support import golden
from support.models.fixed_model import make_small_onnx
from support.models.stored_models import MODELS, stored
from support.models.support_models import make_tiny_onnx
from support.models.tiny_model import make_tiny_model

MAKERS = {
    'corner.onnx': make_tiny_onnx,
    'small.onnx': make_small_onnx,
    'tiny.onnx': make_tiny_model,
}


@pytest.mark.parametrize('name', MAKERS)
def test_stored_model_is_what_its_function_makes(name):
    import onnx

    made = MAKERS[name]()

    if golden.rewriting:
        MODELS.joinpath(name).write_bytes(made)
    assert onnx.load_model_from_string(made) == onnx.load_model_from_string(stored(name)), (
        'type: scripts/test --rewrite-golden test/repository/test_stored_models.py'
    )


def test_no_other_model_is_stored():
    assert {path.name for path in MODELS.iterdir()} == set(MAKERS)
