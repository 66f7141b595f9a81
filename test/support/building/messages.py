# SPDX-License-Identifier: Apache-2.0
"""Prepare texts of build_engine for golden files."""

import re

from support import golden

# Texts that differ between releases of other packages, and their replacements.
_REPLACEMENTS = {
    r'(TensorRT-RTX) [\d.]+': r'\1 VERSION',
    r'\(Error parsing [^)]*\)': '(what protobuf says)',
    r'(Pillow cannot decode it): [^;\n]*': r'\1: what Pillow says',
    r'(TensorRT reported): .*': r'\1: what TensorRT says',
    r'(tensorrt_rtx) [\d.]+': r'\1 VERSION',
    r'expected at most \d+ and \d+, which ONNX [\d.]+ knows': 'expected what this ONNX knows',
    r'[\d.]+ [KM]iB against [\d.]+ [KM]iB': 'SIZE against SIZE',
    r'which has \d+ detections, the built model \d+': 'which has SOME, the built model OTHERS',
}


def without_variable_text(message):
    """Return a message without versions, engine sizes and texts of other packages."""
    text = str(message)
    for pattern, words in _REPLACEMENTS.items():
        text = re.sub(pattern, words, text)
    return text


def text_of_messages(messages, folder):
    """Return messages without the temporary folder and variable text."""
    return without_variable_text(golden.without_folder(''.join(messages), folder))
