# SPDX-License-Identifier: Apache-2.0
"""Tests that no part of a file that is not a model reaches an error or the log."""

import json

import pytest

from support.models.support_models import tiny_onnx
from support.optional_packages import needs
from trt_perception.errors import TrtPerceptionError
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.files.plan_header import read_plan_header
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.pipelines.open_pipeline import open_pipeline

pytestmark = needs('onnx')

SECRET = 'hunter2-correct-horse'
TEXTS = {
    'text': f'{SECRET}\n' * 9,
    'key': f'-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n-----END OPENSSH PRIVATE KEY-----\n',
    'json': json.dumps({'password': SECRET, SECRET: 1}),
    'json text': json.dumps(SECRET),
    'json list': json.dumps([SECRET]),
    'json number': '8675309',
    'repeated key': f'{{"{SECRET}": 1, "{SECRET}": 2}}',
    'no json': f'{{"{SECRET}": {SECRET}',
    'bad escape': f'{{"\\{SECRET}": 1}}',
    'schema': json.dumps({'schema': SECRET}),
    'schema 2': json.dumps({'schema': 2, 'task': SECRET, 'password': f'{SECRET}\n'}),
    'binary': ''.join(map(chr, range(1, 127))) + SECRET,
    'empty': '',
}


def parts(text):
    """Return all parts of four characters, as text and as the hexadecimal digits of an error."""
    found = set()
    for start in range(len(text) - 3):
        part = text[start : start + 4]
        found |= {part, part.encode().hex(), part.encode().hex(' ')}
    return found


def open_model(path):
    if path.suffix == '.onnx':
        open_pipeline(str(path), PipelineOptions(onnx_provider='cpu')).close()
    else:  # without a GPU, a pipeline would not read the plan
        read_plan_header(read_model_file(path).content, path.name)


def what_is_said(path, caplog):
    caplog.set_level('DEBUG')
    with pytest.raises(TrtPerceptionError) as caught:
        open_model(path)
    return f'{caught.value}\n{caplog.text}'.replace(str(path.parent), '')


@pytest.mark.parametrize('text', TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize('suffix', ['.onnx', '.engine', '.plan', '.trt', '.onnx.json', 'config'])
def test_secret_file_is_not_quoted(tmp_path, caplog, suffix, text):
    path = tmp_path / ('model.onnx' if suffix in ('.onnx.json', 'config') else f'model{suffix}')
    secret = {
        '.onnx.json': tmp_path / 'model.onnx.json',
        'config': tmp_path / 'config.json',
    }.get(suffix, path)
    path.write_bytes(tiny_onnx())
    secret.write_text(text)
    said = what_is_said(path, caplog)
    # Words of the messages themselves.
    own = parts('schema task password json model engine onnx TensorRT ftrt vtrt')
    assert not {part for part in parts(text) - own if part in said}
