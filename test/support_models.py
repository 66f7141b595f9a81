"""Manifests and models small enough to write out, for tests."""

import copy
import hashlib
import json
from pathlib import Path

DIGEST = 'a1' * 32

MANIFEST = {
    'schema': 1,
    'onnx': {'file': 'tiny.onnx', 'sha256': DIGEST, 'size_bytes': 7},
    'engine': {'file': 'tiny.engine', 'sha256': DIGEST, 'size_bytes': 9},
    'inputs': [{'name': 'images', 'shape': [1, 3, 48, 64], 'dtype': 'float32'}],
    'outputs': [{'name': 'output0', 'shape': [1, 6, -1], 'dtype': 'float32'}],
    'preprocessing': {
        'input_size': [64, 48],
        'resize': 'letterbox',
        'pad_value': 114,
        'color_order': 'rgb',
        'scale': 0.00392156862745098,
        'mean': [0, 0.5, 0],
        'std': [1, 1, 0.25],
        'layout': 'nchw',
        'dtype': 'float32',
    },
    'decoder': {'family': 'dense', 'objectness': False, 'transposed': False},
    'class_names': ['cat', 'dog'],
    'notes': {'trained_on': 'nothing'},
}


def manifest(**changes):
    """Return a whole manifest with some top-level keys replaced."""
    return {**copy.deepcopy(MANIFEST), **changes}


def changed(path, value):
    """Return a manifest whose value at a path of keys and indices is another."""
    content = copy.deepcopy(MANIFEST)
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return content


def manifest_bytes(content=None):
    return json.dumps(manifest() if content is None else content).encode()


def identity(name, content):
    return {
        'file': name,
        'sha256': hashlib.sha256(content).hexdigest(),
        'size_bytes': len(content),
    }


def write_model(folder, name='tiny.onnx', content=b'a model', **changes):
    """Write a model file and its manifest; return the model's path."""
    path = Path(folder) / name
    path.write_bytes(content)
    kind = 'onnx' if path.suffix == '.onnx' else 'engine'
    described = manifest(
        **{'onnx': None, 'engine': None, kind: identity(name, content), **changes}
    )
    path.with_name(name + '.json').write_text(json.dumps(described))
    return path
