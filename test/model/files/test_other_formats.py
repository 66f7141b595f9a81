# SPDX-License-Identifier: Apache-2.0
"""Tests of files of other formats under the name of a model."""

import bz2
import gzip
import io
import lzma
import pickle
import zipfile

import pytest

from support.models.support_models import tiny_onnx
from support.optional_packages import needs
from trt_perception.errors import EngineError
from trt_perception.model.files.model_file import read_model_file

pytestmark = needs('onnx')


def zipped(content):
    made = io.BytesIO()
    with zipfile.ZipFile(made, 'w') as archive:
        archive.writestr('model.onnx', content)
    return made.getvalue()


FORMATS = {
    'Git LFS': b'version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12\n',
    'web page': b'\n<!DOCTYPE html>\n<html lang="en"><head>',
    'web page with a mark': b'\xef\xbb\xbf<HTML><body>',
    'OpenVINO': b'<?xml version="1.0"?>\n<net name="model">',
    'zip': zipped(tiny_onnx()),
    'gzip': gzip.compress(tiny_onnx()),
    'bzip2': bz2.compress(tiny_onnx()),
    'xz': lzma.compress(tiny_onnx()),
    'pickle': pickle.dumps({'weights': [1.0]}),
    'HDF5': b'\x89HDF\r\n\x1a\n' + bytes(64),
    'TensorFlow Lite': b'\x1c\0\0\0TFL3' + bytes(64),
    'library': b'\x7fELF' + bytes(64),
}


@pytest.mark.parametrize('suffix', ['.onnx', '.engine'])
@pytest.mark.parametrize('content', FORMATS.values(), ids=FORMATS)
def test_other_format_is_named_with_a_way_out(tmp_path, golden_messages, content, suffix):
    path = tmp_path / f'model{suffix}'
    path.write_bytes(content)
    with golden_messages.raises(EngineError) as caught:
        read_model_file(path)
    assert caught.value.expected
    assert caught.value.fix


def test_engine_with_the_suffix_of_onnx_is_named(tmp_path, golden_messages):
    path = tmp_path / 'model.onnx'
    path.write_bytes(b'ftrt' + bytes(100))
    with golden_messages.raises(EngineError):
        read_model_file(path)
    assert read_model_file(path.rename(tmp_path / 'model.engine')).content[:4] == b'ftrt'


def test_onnx_files_of_many_producers_are_not_refused(tmp_path):
    import onnx

    # A model starts with the IR version, the producer or another field, in any order.
    model = onnx.load_model_from_string(tiny_onnx())
    for producer in ('', 'PK', '<html>', 'x' * 127):
        model.producer_name = producer
        for content in (model.SerializeToString(), model.SerializeToString()[2:]):
            path = tmp_path / 'model.onnx'
            path.write_bytes(content)
            assert read_model_file(path).content == content
