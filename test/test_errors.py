# SPDX-License-Identifier: Apache-2.0
"""Test that errors have fields, and that their message is one sentence made of the fields."""

import pickle

import pytest

from trt_perception.errors import (
    CudaError,
    EngineError,
    ImageError,
    MissingModelInfoError,
    UnavailableError,
    ValuesError,
)


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


@pytest.mark.parametrize(
    'error',
    [
        EngineError('x.onnx', '3 bytes', expected='an ONNX file', fix='export it again'),
        ImageError('bad_step', 'step', '3', expected='at least 6 bytes'),
        CudaError('cudaFree', 'failed', status='cudaErrorIllegalAddress', sticky=True),
        ValuesError(['a: is bad', 'b: is bad']),
        UnavailableError('this release', [EngineError('--a', 'is new', fix='leave it out')]),
        MissingModelInfoError(
            'x', 'is plain', fix='say more', arguments='--task', missing={'a': 'b'}, seen=['c']
        ),
    ],
)
def test_error_of_another_process_is_whole(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy).keys() == vars(error).keys()
