# SPDX-License-Identifier: Apache-2.0
"""The manifest reader reads unusual, deep or huge JSON, or refuses it with a message."""

import json
import sys

import pytest

from support.models.support_models import MANIFEST, manifest, manifest_bytes, manifest_with_value
from support.models.written_manifest import manifest_refusal, parse_content
from support.properties import given, settings, st
from trt_perception.errors import ManifestError
from trt_perception.model.manifest import MANIFEST_MAX_BYTES, Manifest


@pytest.mark.parametrize(
    'text',
    [
        b'',
        b' ',
        b'{',
        b'{"schema": 1',
        b'\xff\xfe\xff',
        b'\x00',
        b"{'schema': 1}",
        b'{"schema": 1,}',
        manifest_bytes() + b'{}',
        manifest_bytes()[:-1],
        b'{"schema": 0x1}',
        b'{"schema": ' + b'9' * 5000 + b'}',
    ],
    ids=range(12),
)
def test_text_that_is_not_json_is_refused(text):
    manifest_refusal(text)


@pytest.mark.parametrize('text', [b'1', b'null', b'"schema"', b'[]', b'true'])
def test_json_other_than_an_object_is_refused(text, golden_messages):
    golden_messages.add(manifest_refusal(text))


@pytest.mark.parametrize(
    ('old', 'new'),
    [
        (b'"schema": 1,', b'"schema": 1, "schema": 1,'),
        (b'"pad_value": 114', b'"pad_value": 0, "pad_value": 114'),
        (b'"family": "dense"', b'"family": "dense", "family": "dense"'),
        (b'"trained_on": "nothing"', b'"trained_on": "a", "trained_on": "b"'),
    ],
)
def test_duplicate_key_is_refused(old, new, golden_messages):
    text = manifest_bytes()
    assert old in text
    golden_messages.add(manifest_refusal(text.replace(old, new)))


@pytest.mark.parametrize('key', ['file', 'sha256'])
def test_message_about_a_long_value_stays_short(key):
    assert len(manifest_refusal(manifest_with_value(['onnx', key], 'x/' * 50_000))) < 300
    assert (
        len(manifest_refusal(manifest_with_value(['preprocessing', 'resize'], 'x' * 100_000)))
        < 300
    )
    assert (
        len(manifest_refusal(manifest(**{str(number) * 1000: 1 for number in range(1000)}))) < 600
    )


def test_deeply_nested_json_is_read_or_refused():
    # Just below and above the depth that Python's JSON reader supports.
    for depth in [*range(sys.getrecursionlimit() - 120, sys.getrecursionlimit() + 20), 100_000]:
        nested = b'[' * depth + b']' * depth
        manifest_refusal(nested)
        manifest_refusal(manifest_bytes(manifest(notes=None))[:-1] + b', "more": ' + nested + b'}')
        manifest_refusal(b'{"schema": ' + nested + b'}')


def test_huge_manifest_is_refused_before_parsing(golden_messages):
    text = manifest_bytes()
    padding = MANIFEST_MAX_BYTES - len(text)
    assert parse_content(text + b' ' * padding)
    golden_messages.add(manifest_refusal(b'[' * (MANIFEST_MAX_BYTES + 1)))


PLACES = [
    *([key] for key in MANIFEST),
    *(['preprocessing', key] for key in MANIFEST['preprocessing']),
    *(['decoder', key] for key in MANIFEST['decoder']),
    ['onnx', 'file'],
    ['onnx', 'sha256'],
    ['onnx', 'size_bytes'],
    ['inputs', 0, 'name'],
    ['inputs', 0, 'shape', 2],
    ['outputs', 0, 'dtype'],
    ['class_names', 0],
    ['notes', 'trained_on'],
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=10,
)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(PLACES), json_values)
def test_random_value_at_each_place_is_read_or_refused(path, value):
    try:
        read = parse_content(manifest_with_value(path, value))
    except ManifestError:
        return
    assert isinstance(read, Manifest)


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
def test_random_bytes_are_refused(text):
    manifest_refusal(text)
