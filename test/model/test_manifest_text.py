# SPDX-License-Identifier: Apache-2.0
"""Written manifests read back as equal objects, and the build section is read strictly."""

import argparse
import copy
import json
import shlex
import string

import pytest

from support.models.support_models import manifest, write_model
from support.properties import given, settings, st
from trt_perception.errors import ManifestError
from trt_perception.model.build_record import (
    IMAGE_ORIGINS,
    PRECISIONS,
    AccuracyRecord,
    AgreementRecord,
    BuildRecord,
    CalibrationRecord,
    CudaRecord,
    GpuRecord,
    PrecisionRecord,
    ProfileRange,
    TensorRtRecord,
)
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.manifest import parse_manifest, rebuild_command, serialise_manifest

BUILD = {
    'tensorrt': {'flavour': 'tensorrt_rtx', 'version': '1.7.1.12'},
    'gpu': {'name': 'NVIDIA RTX A4000', 'compute_capability': '8.6'},
    'cuda': {'driver': '13.0', 'runtime': '13.5'},
    'options': {
        'onnx': 'tiny.onnx',
        'precision': 'int8',
        'batch': 2,
        'scale': 0.5,
        'sparsity': True,
        'refit': True,
        'keep_fp32': ['/model/*', 'a b'],
        'mean': [0.5, 1, -2.0],
    },
    'profiles': [{'images': {'min': [1, 3, 4, 4], 'opt': [2, 3, 4, 4], 'max': [4, 3, 8, 8]}}],
    'precision': {'asked': 'int8', 'keep_fp32': ['/model/*'], 'as_built': {'layers': {'Int8': 3}}},
    'calibration': {
        'tool': 'onnxruntime',
        'method': 'entropy',
        'images': 300,
        'images_sha256': 'ab' * 32,
    },
    'accuracy': {
        'images': 60,
        'measure': 'mAP50',
        'reference': 0.98,
        'built': 0.97,
        'runtime': 'TensorRT-RTX 1.7.1',
    },
    'agreement': {
        'f1': 0.93,
        'reference_detections': 812,
        'images': 60,
        'images_of': 'validation',
        'runtime': 'TensorRT-RTX 1.7.1',
        'warning': 'only 93.0% agree',
    },
    'plugins': [{'file': 'libfancy.so', 'sha256': 'cd' * 32, 'size_bytes': 16536}],
}


def changed(content, path, value):
    place = content = copy.deepcopy(content)
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return content


def parse(content):
    return parse_manifest(json.dumps(content).encode(), 'x.json')


def test_build_section_is_read():
    build = parse(manifest(build=BUILD)).build
    assert build.tensorrt == TensorRtRecord('tensorrt_rtx', '1.7.1.12')
    assert build.gpu == GpuRecord('NVIDIA RTX A4000', '8.6')
    assert build.cuda == CudaRecord('13.0', '13.5')
    assert build.options['keep_fp32'] == ('/model/*', 'a b')
    assert build.options['refit'] is True
    assert build.profiles == ({'images': ProfileRange((1, 3, 4, 4), (2, 3, 4, 4), (4, 3, 8, 8))},)
    assert build.precision == PrecisionRecord('int8', ('/model/*',), {'Int8': 3})
    assert build.calibration == CalibrationRecord('onnxruntime', 'entropy', 300, 'ab' * 32)
    assert build.accuracy == AccuracyRecord(60, 'mAP50', 0.98, 0.97, 'TensorRT-RTX 1.7.1')
    assert build.agreement == AgreementRecord(
        0.93, 812, 60, 'validation', 'TensorRT-RTX 1.7.1', 'only 93.0% agree'
    )


def test_manifest_without_agreement_is_read():
    build = {name: value for name, value in BUILD.items() if name != 'agreement'}
    for content in (build, {**build, 'agreement': None}):
        assert parse(manifest(build=content)).build.agreement is None


def test_manifest_of_an_older_release_needs_no_plugin_library():
    build = {name: value for name, value in BUILD.items() if name != 'plugins'}
    assert parse(manifest(build=build)).build.plugins == ()


@pytest.mark.parametrize('missing', [{}, {'build': None}])
def test_manifest_without_a_build_section_is_valid(missing):
    assert parse(manifest(**missing)).build is None


def test_unverified_layers_are_read_as_none():
    content = changed(manifest(build=BUILD), ['build', 'precision', 'as_built'], 'unverified')
    content = changed(content, ['build', 'gpu'], None)
    content = changed(content, ['build', 'cuda'], None)
    read = parse(content)
    assert read.build.precision.as_built is None
    assert read.build.gpu is None
    assert parse_manifest(serialise_manifest(read), 'again.json') == read
    assert json.loads(serialise_manifest(read))['build']['precision']['as_built'] == 'unverified'


@pytest.mark.parametrize(
    ('path', 'value'),
    [
        (['tensorrt', 'flavour'], 'trt'),
        (['tensorrt', 'version'], 1.7),
        (['tensorrt', 'more'], 1),
        (['gpu', 'name'], None),
        (['gpu', 'more'], 1),
        (['cuda', 'driver'], 13),
        (['options'], []),
        (['options', '--onnx'], 'x'),
        (['options', 'onnx'], None),
        (['options', 'onnx'], {}),
        (['options', 'mean'], [0, [1]]),
        (['options', 'mean'], [True]),
        (['options', 'scale'], 10**400),
        (['profiles'], {}),
        (['profiles', 0, 'images'], [1]),
        (['profiles', 0, 'images', 'min'], [1, 3, 4]),
        (['profiles', 0, 'images', 'opt'], [9, 3, 4, 4]),
        (['profiles', 0, 'images', 'min'], [0, 3, 4, 4]),
        (['profiles', 0, 'images', 'more'], 1),
        (['precision', 'asked'], 'int4'),
        (['precision', 'keep_fp32'], [1]),
        (['precision', 'as_built'], 'verified'),
        (['precision', 'as_built'], {}),
        (['precision', 'as_built', 'layers', 'Int8'], -1),
        (['precision', 'as_built', 'layers', 'Int8'], 1.5),
        (['precision', 'as_built', 'more'], 1),
        (['calibration', 'images'], 0),
        (['calibration', 'more'], 1),
        (['accuracy', 'built'], 'good'),
        (['accuracy', 'more'], 1),
        (['agreement', 'f1'], 'good'),
        (['agreement', 'f1'], True),
        (['agreement', 'images_of'], 'training'),
        (['agreement', 'reference_detections'], -1),
        (['agreement', 'warning'], None),
        (['agreement', 'more'], 1),
        (['plugins'], {}),
        (['plugins', 0, 'file'], '../libfancy.so'),
        (['plugins', 0, 'sha256'], 'CD' * 32),
        (['plugins', 0, 'size_bytes'], 0),
        (['plugins', 0, 'more'], 1),
        (['more'], 1),
    ],
)
def test_invalid_value_in_the_build_section_is_refused(path, value, golden_messages):
    content = manifest(build=BUILD)
    with golden_messages.raises(ManifestError):
        parse(changed(content, ['build', *path], value))


@pytest.mark.parametrize('key', ['tensorrt', 'options', 'profiles', 'precision'])
def test_missing_part_of_the_build_section_is_refused(key, golden_messages):
    build = {name: value for name, value in BUILD.items() if name != key}
    with golden_messages.raises(ManifestError):
        parse(manifest(build=build))


# Exclude control characters, because a manifest must not contain them.
TEXT = st.text(st.characters(exclude_categories=('Cs', 'Cc', 'Cf', 'Zl', 'Zp')), max_size=30)
NAME = st.text(string.ascii_lowercase, min_size=1, max_size=12)
NUMBER = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
SHARE = st.floats(0, 1)


@st.composite
def ranges(draw):
    sides = draw(st.lists(st.lists(st.integers(1, 9999), min_size=3, max_size=3), max_size=5))
    return ProfileRange(*(tuple(sorted(side)[i] for side in sides) for i in range(3)))


BUILDS = st.builds(
    BuildRecord,
    tensorrt=st.builds(TensorRtRecord, st.sampled_from(['tensorrt', 'tensorrt_rtx']), TEXT),
    gpu=st.none() | st.builds(GpuRecord, TEXT, TEXT),
    cuda=st.none() | st.builds(CudaRecord, TEXT, TEXT),
    options=st.dictionaries(
        NAME, TEXT | NUMBER | st.booleans() | st.lists(TEXT | NUMBER).map(tuple), max_size=5
    ),
    profiles=st.lists(st.dictionaries(TEXT, ranges(), max_size=2), max_size=3).map(tuple),
    precision=st.builds(
        PrecisionRecord,
        st.sampled_from(PRECISIONS),
        st.lists(TEXT, max_size=3).map(tuple),
        st.none() | st.dictionaries(TEXT, st.integers(0, 10**6), max_size=4),
    ),
    calibration=st.none() | st.builds(CalibrationRecord, TEXT, TEXT, st.integers(1, 10**6), TEXT),
    accuracy=st.none() | st.builds(AccuracyRecord, st.integers(1, 99), TEXT, SHARE, SHARE, TEXT),
    agreement=st.none()
    | st.builds(
        AgreementRecord,
        st.none() | SHARE,
        st.integers(0, 10**6),
        st.integers(0, 999),
        st.sampled_from(IMAGE_ORIGINS),
        TEXT,
        TEXT,
    ),
)


@settings(deadline=None, max_examples=40)
@given(build=BUILDS, names=st.lists(TEXT.filter(bool), min_size=2, max_size=2, unique=True))
def test_written_manifest_reads_back_as_an_equal_object(build, names):
    plain = parse(manifest(class_names=names))
    whole = type(plain)(**{**vars(plain), 'build': build})
    assert parse_manifest(serialise_manifest(whole), 'x.json') == whole


def arguments_of(command):
    """Parse a command as the shell and the command line of build_engine do."""
    words = shlex.split(command)
    assert words[:4] == ['ros2', 'run', 'trt_perception', 'build_engine']
    parser = argparse.ArgumentParser()
    parser.add_argument('onnx')
    for name in ('output', 'precision', 'batch', 'scale'):
        parser.add_argument(f'--{name}')
    parser.add_argument('--sparsity', action=argparse.BooleanOptionalAction)
    parser.add_argument('--keep-fp32', nargs='+')
    parser.add_argument('--mean', nargs='+', type=float)
    return vars(parser.parse_args(words[4:]))


def test_rebuild_command_has_the_options_of_the_build(tmp_path):
    engine = tmp_path / 'my tiny.engine'
    read = parse(manifest(build=BUILD))
    given = arguments_of(rebuild_command(read, engine))
    assert given == {
        'onnx': 'tiny.onnx',
        'output': str(engine),
        'precision': 'int8',
        'batch': '2',
        'scale': '0.5',
        'sparsity': True,
        'keep_fp32': ['/model/*', 'a b'],
        'mean': [0.5, 1.0, -2.0],
    }
    (tmp_path / 'tiny.onnx').write_bytes(b'x')
    assert arguments_of(rebuild_command(read, engine))['onnx'] == str(tmp_path / 'tiny.onnx')
    off = changed(manifest(build=BUILD), ['build', 'options', 'sparsity'], False)
    assert arguments_of(rebuild_command(parse(off), engine))['sparsity'] is False


@pytest.mark.parametrize('read', [None, parse(manifest())])
def test_rebuild_command_has_only_the_paths_without_a_build_section(tmp_path, read):
    given = arguments_of(rebuild_command(read, tmp_path / 'tiny.engine'))
    assert given['onnx'] == str(tmp_path / 'tiny.onnx')
    assert given['output'] == str(tmp_path / 'tiny.engine')
    assert given['precision'] is None


def test_mismatch_errors_contain_the_rebuild_command(tmp_path, golden_messages):
    engine = write_model(tmp_path, 'tiny.engine', build=BUILD)
    command = rebuild_command(read_model_file(engine).manifest, engine)
    assert '--precision int8' in command
    engine.write_bytes(b'another')
    with golden_messages.raises(ManifestError):
        read_model_file(engine)
    onnx = write_model(tmp_path, 'tiny.onnx')
    onnx.write_bytes(b'another')
    with golden_messages.raises(ManifestError):
        read_model_file(onnx)
