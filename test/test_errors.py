# SPDX-License-Identifier: Apache-2.0
"""Test that errors have fields, and that their message is one sentence made of the fields."""

import pytest

from trt_perception.errors import CudaError, EngineError, ImageError, ValuesError


@pytest.mark.parametrize(
    ('error', 'sentence', 'statement'),
    [
        (EngineError('x.onnx', 'is empty'), 'x.onnx: is empty', 'x.onnx: is empty'),
        (
            EngineError('x.onnx', '3 bytes', expected='an ONNX file', fix='export it again'),
            'x.onnx: expected an ONNX file (got 3 bytes); export it again',
            'x.onnx: expected an ONNX file (got 3 bytes)',
        ),
        (EngineError('x', 'is z', fix='do w; then v'), 'x: is z; do w; then v', 'x: is z'),
    ],
)
def test_error_has_the_expected_sentence_and_statement(error, sentence, statement):
    assert str(error) == sentence
    assert error.statement == statement


def test_errors_store_their_own_fields():
    image = ImageError('bad_step', 'step', '3', expected='at least 6 bytes')
    assert (image.reason, str(image)) == ('bad_step', 'step: expected at least 6 bytes (got 3)')
    lost = CudaError('cudaFree', 'failed', status='cudaErrorIllegalAddress', sticky=True)
    assert (lost.status, lost.sticky) == ('cudaErrorIllegalAddress', True)
    assert not CudaError('cudaFree', 'failed').sticky
    several = ValuesError(['a: is bad', 'b: is bad'])
    assert (several.mistakes, str(several)) == (('a: is bad', 'b: is bad'), 'a: is bad\nb: is bad')
