"""Tests that a known message of TensorRT leads to an error with a remedy."""

import re

import pytest

from trt_perception.building.engine.hints import HINTS, tensorrt_error

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


@pytest.mark.parametrize(('text', 'advice'), TEXTS)
def test_known_message_of_tensorrt_leads_to_a_remedy(text, advice):
    error = tensorrt_error('model.onnx', 'TensorRT does not build it', (), [text])

    assert advice in error.fix


def test_unknown_message_of_tensorrt_leads_to_no_remedy():
    assert not tensorrt_error('model.onnx', 'TensorRT does not build it', (), ['a new text']).fix


@pytest.mark.parametrize('hint', HINTS, ids=lambda hint: hint.pattern)
def test_each_hint_matches_a_known_message(hint):
    assert any(re.search(hint.pattern, text) for text, _ in TEXTS)
