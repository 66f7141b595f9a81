"""Messages of build_engine as golden files have them."""

import re

from support import golden

# What differs between releases of other packages.
_OTHERS = {
    r'(TensorRT-RTX) [\d.]+': r'\1 VERSION',
    r'\(Error parsing [^)]*\)': '(what protobuf says)',
    r'(Pillow cannot decode it): [^;\n]*': r'\1: what Pillow says',
}


def told(messages, folder):
    """Return messages without the temporary folder, releases, and other packages' own words."""
    text = golden.without_folder(''.join(messages), folder)
    for pattern, words in _OTHERS.items():
        text = re.sub(pattern, words, text)
    return text
