# SPDX-License-Identifier: Apache-2.0
"""Check that the stored models equal the models that their functions create."""

import pytest

from support import golden
from support.models.fixed_model import make_small_onnx
from support.models.stored_models import MODELS, stored_model
from support.models.support_models import make_tiny_onnx
from support.models.tiny_model import make_tiny_model

MAKERS = {
    'corner.onnx': make_tiny_onnx,
    'small.onnx': make_small_onnx,
    'tiny.onnx': make_tiny_model,
}


@pytest.mark.parametrize('name', MAKERS)
def test_stored_model_equals_the_model_of_its_function(name):
    import onnx

    created = MAKERS[name]()

    if golden.rewriting:
        MODELS.joinpath(name).write_bytes(created)
    assert onnx.load_model_from_string(created) == onnx.load_model_from_string(
        stored_model(name)
    ), 'type: scripts/test --rewrite-golden test/repository/test_stored_models.py'


def test_no_other_model_is_stored():
    assert {path.name for path in MODELS.iterdir()} == set(MAKERS)
