# SPDX-License-Identifier: Apache-2.0
"""Write an engine and its manifest for tests that damage them, and open the engine."""

import json
import random
import shutil

import pytest

from support.models.open_model import open_by_parameters
from support.models.support_models import file_identity, manifest
from trt_perception.errors import TrtPerceptionError
from trt_perception.parameters.values import ParameterValues


def random_plan(seed, size=600):
    """Return random bytes after the header of a TensorRT plan."""
    head = b'ftrt' + bytes(20) + bytes([10, 13, 3, 9])
    return head + random.Random(seed).randbytes(size - len(head))


PLAN, OTHER = random_plan(1), random_plan(2)


def manifest_of(content, name='tiny.engine', **changes):
    return manifest(**{'onnx': None, 'engine': file_identity(name, content), **changes})


class EngineFiles:
    """A folder with an engine and its manifest."""

    def __init__(self, folder):
        self.folder = folder
        self.engine = folder / 'tiny.engine'
        self.manifest = folder / 'tiny.engine.json'

    def reset(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.engine.write_bytes(PLAN)
        self.manifest.write_text(json.dumps(manifest_of(PLAN)))


def error_of_opening(path):
    """Open an engine as the node does; return its error, which must be an error of the package."""
    with pytest.raises(TrtPerceptionError) as caught:
        open_by_parameters(ParameterValues(engine_path=str(path)))
    return caught.value


def value_paths(content, at=()):
    """Yield the path of each value in JSON data, as a tuple of keys and indices."""
    if at:
        yield at
    if isinstance(content, dict | list):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from value_paths(value, (*at, key))
