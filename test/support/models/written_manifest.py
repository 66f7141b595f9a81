# SPDX-License-Identifier: Apache-2.0
"""Write manifests of test models, and read a manifest that must be valid."""

import hashlib
import json

import pytest

from trt_perception.errors import ManifestError
from trt_perception.model.build_record import (
    BuildRecord,
    FileIdentity,
    PrecisionRecord,
    TensorRtRecord,
)
from trt_perception.model.manifest import (
    Manifest,
    manifest_path,
    parse_manifest,
    serialise_manifest,
)
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tensors import TensorSpec


def write_manifest(path, size_wh, image, output, decoder, class_names, plugins=()):
    """Write the manifest of a model with one input and one output.

    ``image`` and ``output`` are (name, shape, dtype). With ``plugins``, the manifest says that the
    engine was built with these libraries.
    """
    content = path.read_bytes()
    identity = FileIdentity(path.name, hashlib.sha256(content).hexdigest(), len(content))
    is_onnx = path.suffix == '.onnx'
    manifest = Manifest(
        onnx=identity if is_onnx else None,
        engine=None if is_onnx else identity,
        inputs=(TensorSpec(*image),),
        outputs=(TensorSpec(*output),),
        preprocessing=Preprocessing(size_wh, dtype=image[2]),
        decoder=decoder,
        class_names=class_names,
        notes={},
        build=BuildRecord(
            *(TensorRtRecord('tensorrt', '10.13.3.9'), None, None, {}, ()),
            PrecisionRecord('fp16'),
            plugins=tuple(plugins),
        )
        if plugins
        else None,
    )
    manifest_path(path).write_bytes(serialise_manifest(manifest))


def parse_content(content):
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return parse_manifest(text, 'x.json')


def manifest_refusal(content):
    with pytest.raises(ManifestError) as caught:
        parse_content(content)
    assert str(caught.value).startswith('x.json: ')
    assert len(str(caught.value)) < 700
    return str(caught.value)
