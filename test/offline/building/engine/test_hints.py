# SPDX-License-Identifier: Apache-2.0
"""Tests that a known message of TensorRT leads to an error with a remedy."""

import re

import pytest

from support.building.standin_builds import make_stand_in
from trt_perception.offline.building.engine.hints import HINTS, tensorrt_error

#: Messages of TensorRT, each with a word that its remedy must contain.
TEXTS = (
    ('no tactics to implement the operation within workspace limit', '--workspace-mib'),
    ('insufficient workspace', '--workspace-mib'),
    ('Unable to load library: libnvinfer_lean.so.10', '--version-compatible'),
    ('Plugin not found, are the plugin name and version correct?', '--plugins'),
    ('No importer registered for op: GridSample', '--plugins'),
    ('Op type NonZero is not supported', '--plugins'),
    ('Scale coefficients must all be positive', '--calibration-images'),
    ('Tensor images is uniformly zero', '--calibration-images'),
    ('Quantized constant of a layer only allowed before DQ', '--keep-float'),
    ('cudnn_impl.cpp:12: CHECK(dtype == kINT8) failed', '--precision fp16'),
    ('HW-specific datatypes: b16', '--compute-capabilities'),
    ('Cannot compile for target(s) sm86: fp8_e4m3', '--compute-capabilities'),
    ('no kernel of this layer for Turing (SM75)', '--compute-capabilities'),
    ('conv1 is not supported on DLA', '--gpu-fallback'),
    ('out of memory', '--shapes'),
    ('std::bad_alloc', '--shapes'),
    ('CUDA driver version is insufficient for CUDA runtime version', 'driver'),
    ('CUDA initialization failure with error: cudaError 35', 'driver'),
    ('could not find any implementation for node conv1', '--keep-fp32'),
    ('Failed to parse the ONNX model', 'export or copy the model again'),
)


_, TENSORRT = make_stand_in('10.3.0.26')
_, TENSORRT_RTX = make_stand_in('1.7.1.116')


def remedy(tensorrt, text):
    return tensorrt_error(tensorrt, 'model.onnx', 'TensorRT does not build it', (), [text]).fix


@pytest.mark.parametrize(('text', 'advice'), TEXTS)
def test_known_message_of_tensorrt_leads_to_a_remedy(text, advice):
    assert advice in remedy(TENSORRT, text)


@pytest.mark.parametrize('text', [text for text, advice in TEXTS if advice == '--plugins'])
def test_remedy_of_tensorrt_rtx_needs_tensorrt_for_plugins(text):
    assert '--runtime' not in remedy(TENSORRT, text)
    assert '--runtime tensorrt' in remedy(TENSORRT_RTX, text)


def test_unknown_message_of_tensorrt_leads_to_no_remedy():
    assert not remedy(TENSORRT, 'a new text')


@pytest.mark.parametrize('hint', HINTS, ids=lambda hint: hint.pattern)
def test_each_hint_matches_a_known_message(hint):
    assert any(re.search(hint.pattern, text) for text, _ in TEXTS)
