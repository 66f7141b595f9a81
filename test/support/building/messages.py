"""Messages of build_engine as golden files have them."""

import re

from support import golden

# What differs between releases of other packages.
_OTHERS = {
    r'(TensorRT-RTX) [\d.]+': r'\1 VERSION',
    r'\(Error parsing [^)]*\)': '(what protobuf says)',
    r'(Pillow cannot decode it): [^;\n]*': r'\1: what Pillow says',
    r'(TensorRT reported): .*': r'\1: what TensorRT says',
    r'(tensorrt_rtx) [\d.]+': r'\1 VERSION',
    r'expected at most \d+ and \d+, which ONNX [\d.]+ knows': 'expected what this ONNX knows',
    r'[\d.]+ against [\d.]+ MiB': 'SIZE against SIZE MiB',
    r'which has \d+, what was built has \d+': 'which has SOME, what was built has OTHERS',
}


def worded(message):
    """Return a message without releases, sizes of engines, and other packages' own words."""
    text = str(message)
    for pattern, words in _OTHERS.items():
        text = re.sub(pattern, words, text)
    return text


def told(messages, folder):
    """Return messages without the temporary folder, and as `worded` does."""
    return worded(golden.without_folder(''.join(messages), folder))
