# SPDX-License-Identifier: Apache-2.0
"""The manifest reader requires each key, and checks its type and range."""

import copy
from pathlib import Path

import pytest

from support.models.support_models import DIGEST, MANIFEST, manifest, manifest_with_value
from support.models.written_manifest import manifest_refusal, parse_content
from trt_perception.errors import EngineError, ManifestError
from trt_perception.model.build_record import FileIdentity
from trt_perception.model.decoders.anchors import Dense, Nanodet, YoloxRaw
from trt_perception.model.decoders.final_boxes import (
    EndToEnd,
)
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.manifest import (
    Manifest,
    manifest_path,
    parse_manifest,
    serialise_manifest,
)
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tensors import TensorSpec


def manifest_without(path):
    content = copy.deepcopy(MANIFEST)
    place = content
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return content


def test_complete_manifest_is_read():
    assert parse_content(MANIFEST) == Manifest(
        onnx=FileIdentity('tiny.onnx', DIGEST, 7),
        engine=FileIdentity('tiny.engine', DIGEST, 9),
        inputs=(TensorSpec('images', (1, 3, 48, 64), 'float32'),),
        outputs=(TensorSpec('output0', (1, 6, -1), 'float32'),),
        preprocessing=Preprocessing(
            input_size=(64, 48),
            resize='letterbox',
            pad_value=114,
            color_order='rgb',
            scale=0.00392156862745098,
            mean=(0.0, 0.5, 0.0),
            std=(1.0, 1.0, 0.25),
            layout='nchw',
            dtype='float32',
        ),
        decoder=Dense(objectness=False, transposed=False),
        class_names=('cat', 'dog'),
        notes={'trained_on': 'nothing'},
    )


def test_manifest_path_appends_json_to_the_model_name(tmp_path):
    assert manifest_path(tmp_path / 'digits.onnx') == tmp_path / 'digits.onnx.json'
    assert manifest_path(tmp_path / 'a.b.engine') == tmp_path / 'a.b.engine.json'


@pytest.mark.parametrize('key', ['onnx', 'engine', 'notes'])
@pytest.mark.parametrize('how', ['absent', 'null'])
def test_optional_keys_may_be_absent_or_null(key, how):
    read = parse_content(manifest_without([key]) if how == 'absent' else manifest(**{key: None}))
    assert not getattr(read, key)


@pytest.mark.parametrize('name', PRESETS)
def test_each_preset_is_read_from_a_manifest(name):
    decoder = PRESETS[name].decoder
    content = manifest(decoder=decoder.as_dict())
    assert parse_content(content).decoder == decoder


#: The decoders of all presets, and decoders with extreme constants.
DECODERS = [
    *{preset.decoder: None for preset in PRESETS.values()},
    YoloxRaw(strides=(1,)),
    YoloxRaw(strides=(2, 3, 4, 5, 6, 7, 8, 1024)),
    Nanodet((16,), reg_max=64),
]
SOME_CONSTANTS = {
    'objectness': False,
    'strides': [8],
    'reg_max': 7,
    'activation': 'sigmoid',
    'box_format': 'xyxy',
    'is_metric': True,
}


def with_wrong_constants(decoder):
    """Return descriptions of a decoder that lack one key, or have a constant of others."""
    content = decoder.as_dict()
    return [
        *({name: content[name] for name in content if name != key} for key in content),
        *(
            {**content, key: SOME_CONSTANTS[key]}
            for key in sorted(SOME_CONSTANTS.keys() - content.keys())
        ),
    ]


@pytest.mark.parametrize('decoder', DECODERS, ids=str)
def test_each_family_requires_exactly_its_constants(decoder):
    assert parse_content(manifest(decoder=decoder.as_dict())).decoder == decoder
    for content in with_wrong_constants(decoder):
        with pytest.raises(ManifestError):
            parse_content(manifest(decoder=content))


@pytest.mark.parametrize(
    'decoder', [Dense(objectness=True), Nanodet((16,), reg_max=64), EndToEnd()], ids=str
)
def test_wrong_constants_are_named(decoder, golden_messages):
    for content in with_wrong_constants(decoder):
        golden_messages.add(manifest_refusal(manifest(decoder=content)))


@pytest.mark.parametrize(
    'decoder',
    [
        {'family': 'yolox_raw', 'strides': []},
        {'family': 'yolox_raw', 'strides': [8, 0]},
        {'family': 'yolox_raw', 'strides': [8, 1025]},
        {'family': 'yolox_raw', 'strides': [8, True]},
        {'family': 'yolox_raw', 'strides': [8.0]},
        {'family': 'yolox_raw', 'strides': [8] * 9},
        {'family': 'nanodet', 'strides': [8], 'reg_max': 0},
        {'family': 'detr', 'activation': 'relu'},
        {'family': 'onnx_nms', 'box_format': 'xywh'},
    ],
    ids=str,
)
def test_constants_out_of_range_are_refused(decoder, golden_messages):
    message = manifest_refusal(manifest(decoder=decoder))
    golden_messages.add(message)
    assert names_section(message, ('decoder',))


SECTIONS = {
    (): [key for key in MANIFEST if key not in ('onnx', 'engine', 'notes')],
    ('onnx',): list(MANIFEST['onnx']),
    ('engine',): list(MANIFEST['engine']),
    ('inputs', 0): list(MANIFEST['inputs'][0]),
    ('outputs', 0): list(MANIFEST['outputs'][0]),
    ('preprocessing',): list(MANIFEST['preprocessing']),
    ('decoder',): list(MANIFEST['decoder']),
}
REQUIRED_KEYS = [(*section, key) for section, keys in SECTIONS.items() for key in keys]


def names_section(message, section):
    """Return whether a message names the section: "x.json: inputs[0]: ..."."""
    shown = ''.join(f'[{key}]' if isinstance(key, int) else f'{key}' for key in section)
    return message.startswith(f'x.json: {shown}: ' if shown else 'x.json: ')


@pytest.mark.parametrize('path', REQUIRED_KEYS, ids=str)
def test_missing_required_key_is_refused(path, golden_messages):
    message = manifest_refusal(manifest_without(path))
    golden_messages.add(message)
    assert names_section(message, path[:-1])


@pytest.mark.parametrize('section', SECTIONS, ids=str)
def test_unknown_key_is_refused_in_each_section(section, golden_messages):
    message = manifest_refusal(manifest_with_value((*section, 'extra'), 1))
    golden_messages.add(message)
    assert names_section(message, section)


WRONG_VALUES = {
    'integer': ['1', 1.5, True, None, [], {}, 1.0, float('nan')],
    'integer or null': ['1', 1.5, True, [], {}, 1.0, float('nan')],
    'number': ['1', True, None, [], {}, float('nan'), float('inf'), -float('inf'), 10**400],
    'string': [1, 1.5, True, None, [], {}, ['cat']],
    'boolean': [0, 1, 'true', None, [], {}],
    'list': ['cat', 1, True, None, {}],
    'object': ['cat', 1, True, [], [1]],
}
TYPES = {
    ('schema',): 'integer',
    ('onnx',): 'object',
    ('onnx', 'file'): 'string',
    ('onnx', 'sha256'): 'string',
    ('onnx', 'size_bytes'): 'integer',
    ('engine',): 'object',
    ('engine', 'file'): 'string',
    ('engine', 'sha256'): 'string',
    ('engine', 'size_bytes'): 'integer',
    ('inputs',): 'list',
    ('inputs', 0): 'object',
    ('inputs', 0, 'name'): 'string',
    ('inputs', 0, 'shape'): 'list',
    ('inputs', 0, 'shape', 1): 'integer',
    ('inputs', 0, 'dtype'): 'string',
    ('outputs',): 'list',
    ('outputs', 0): 'object',
    ('outputs', 0, 'name'): 'string',
    ('outputs', 0, 'shape'): 'list',
    ('outputs', 0, 'dtype'): 'string',
    ('preprocessing',): 'object',
    ('preprocessing', 'input_size'): 'list',
    ('preprocessing', 'input_size', 0): 'number',
    ('preprocessing', 'resize'): 'string',
    ('preprocessing', 'antialias'): 'boolean',
    ('preprocessing', 'round_pixels'): 'boolean',
    ('preprocessing', 'filter'): 'string',
    ('preprocessing', 'crop_rounding'): 'string',
    ('preprocessing', 'size_rounding'): 'string',
    ('preprocessing', 'keeps_aspect_ratio'): 'boolean',
    ('preprocessing', 'pad_value'): 'integer or null',
    ('preprocessing', 'color_order'): 'string',
    ('preprocessing', 'scale'): 'number',
    ('preprocessing', 'mean'): 'list',
    ('preprocessing', 'mean', 2): 'number',
    ('preprocessing', 'std'): 'list',
    ('preprocessing', 'std', 0): 'number',
    ('preprocessing', 'layout'): 'string',
    ('preprocessing', 'dtype'): 'string',
    ('decoder',): 'object',
    ('decoder', 'family'): 'string',
    ('decoder', 'objectness'): 'boolean',
    ('decoder', 'transposed'): 'boolean',
    ('class_names',): 'list',
    ('class_names', 1): 'string',
    ('notes',): 'object',
    ('notes', 'trained_on'): 'string',
}


def test_table_of_types_covers_all_required_keys():
    assert {path for path in REQUIRED_KEYS if path not in TYPES} == set()


@pytest.mark.parametrize('path', TYPES, ids=str)
def test_value_of_a_wrong_type_is_refused(path):
    for value in WRONG_VALUES[TYPES[path]]:
        manifest_refusal(manifest_with_value(path, value))


OUT_OF_RANGE = {
    ('schema',): [0, 3, 2],
    ('onnx', 'file'): ['', 'models/tiny.onnx', '.', '..'],
    ('engine', 'file'): ['/tiny.engine'],
    ('onnx', 'sha256'): ['', 'a' * 63, 'A1' * 32, 'g' * 64, 'X' * 64],
    ('onnx', 'size_bytes'): [0, -1],
    ('inputs',): [[]],
    ('outputs',): [[]],
    ('inputs', 0, 'shape'): [[1, 3, -2, 4]],
    ('inputs', 0, 'name'): [''],
    ('inputs', 0, 'dtype'): ['float64'],
    ('preprocessing', 'input_size'): [
        [64],
        [64, 48, 3],
        [0, 48],
        [64, -48],
        [64.5, 48],
        [32768, 48],
        [32767, 32767],
    ],
    ('preprocessing', 'resize'): ['crop'],
    ('preprocessing', 'antialias'): ['true'],
    ('preprocessing', 'filter'): ['lanczos'],
    ('preprocessing', 'shorter_side'): [0, -1, 32768, True, 224.5, '224'],
    ('preprocessing', 'crop_rounding'): ['up'],
    ('preprocessing', 'size_rounding'): ['up', ''],
    ('preprocessing', 'size_multiple'): [0, 32768, True, 1.5],
    ('preprocessing', 'pad_value'): [-1, 256],
    ('preprocessing', 'color_order'): ['RGB'],
    ('preprocessing', 'scale'): [0, -1, 1e-300],
    ('preprocessing', 'mean'): [[0, 0, -1e300], [], [0, 'a', 0], [0, 0, 0, 0]],
    ('preprocessing', 'std'): [[1, 0, 1], [1e-300, 1, 1], [1, 1, -1]],
    ('preprocessing', 'layout'): ['hwc'],
    ('preprocessing', 'dtype'): ['uint8', 'int8'],
    ('decoder', 'family'): ['centernet'],
    ('class_names',): [
        [],
        ['cat', ''],
        ['x' * 257],
        ['cat', 'dog', 'cat'],
        ['half \ud800 pair'],
        ['the last \udfff'],
        ['nul \x00 byte'],
        [str(n) for n in range(65537)],
    ],
}


@pytest.mark.parametrize('path', OUT_OF_RANGE, ids=str)
def test_value_out_of_range_is_refused(path, golden_messages):
    for value in OUT_OF_RANGE[path]:
        golden_messages.add(manifest_refusal(manifest_with_value(path, value)))


# Keys that manifests of earlier releases lack: the default, and other values.
OPTIONAL_KEYS = {
    'antialias': (False, [True]),
    'round_pixels': (True, [False]),
    'filter': ('bilinear', ['bicubic']),
    'shorter_side': (None, [1, 256, 32767]),
    'crop_rounding': ('half_even', ['down']),
    'size_multiple': (None, [1, 14, 32767]),
    'size_rounding': ('half_up', ['half_even', 'down', 'longer_down']),
    'keeps_aspect_ratio': (False, [True]),
}


@pytest.mark.parametrize(('key', 'values'), OPTIONAL_KEYS.items())
def test_keys_of_resizing_have_defaults(key, values):
    default, others = values
    assert getattr(parse_content(manifest()).preprocessing, key) == default
    for value in (default, *others):
        read = parse_content(manifest_with_value(['preprocessing', key], value))
        assert getattr(read.preprocessing, key) == value
        assert parse_manifest(serialise_manifest(read), 'x.json') == read


# The package wrote these files before "size_rounding" existed.
WRITTEN = sorted((Path(__file__).parents[1] / 'data' / 'manifests').glob('*.json'))


@pytest.mark.parametrize('path', WRITTEN, ids=lambda path: path.stem)
def test_manifest_of_an_earlier_release_is_written_again_without_changes(path):
    text = path.read_bytes()
    assert serialise_manifest(parse_manifest(text, path.name)) == text


def test_values_at_the_limits_are_accepted():
    names = [str(number) for number in range(65535)] + ['é' * 256]
    assert parse_content(manifest(class_names=names)).class_names == tuple(names)
    for value in (0, 255, None):
        content = manifest_with_value(['preprocessing', 'pad_value'], value)
        assert parse_content(content).preprocessing.pad_value == value
    assert parse_content(
        manifest_with_value(['preprocessing', 'input_size'], [1, 32767])
    ).preprocessing
    assert parse_content(
        manifest_with_value(['preprocessing', 'input_size'], [64.0, 48.0])
    ).preprocessing
    assert parse_content(manifest_with_value(['inputs', 0, 'shape'], [])).inputs[0].shape == ()


UINT8_VALUES = {'dtype': 'uint8', 'scale': 1, 'mean': [0, 0, 0], 'std': [1, 1, 1]}


def preprocessing(**values):
    return manifest(preprocessing={**MANIFEST['preprocessing'], **values})


def test_uint8_input_allows_no_scale_mean_and_std(golden_messages):
    read = parse_content(preprocessing(**UINT8_VALUES)).preprocessing
    assert (read.dtype, read.scale) == ('uint8', 1.0)
    for key, value in [
        ('scale', 2),
        *(('mean', mean) for mean in ([1, 0, 0], [0, 1, 0], [0, 0, 1])),
        *(('std', std) for std in ([2, 1, 1], [1, 2, 1], [1, 1, 2])),
    ]:
        golden_messages.add(manifest_refusal(preprocessing(**{**UINT8_VALUES, key: value})))


def test_mean_and_std_keep_the_order_of_channels():
    read = parse_content(preprocessing(mean=[0.1, 0.2, 0.3], std=[0.4, 0.5, 0.6])).preprocessing
    assert (read.mean, read.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


def test_manifest_without_file_identity_is_refused(golden_messages):
    golden_messages.add(manifest_refusal(manifest(onnx=None, engine=None)))


def test_manifest_error_is_an_engine_error_with_a_cause():
    assert issubclass(ManifestError, EngineError)
    with pytest.raises(ManifestError) as caught:
        parse_content(b'{')
    assert isinstance(caught.value.__cause__, ValueError)
