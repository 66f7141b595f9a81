# SPDX-License-Identifier: Apache-2.0
"""Tests that any YAML or JSON file is read, or refused with a message.

Readers must not raise other exceptions, block, or use gigabytes of memory.

Each case goes through the package's check, and then through PyYAML or Python's json. A seed
generates the cases, so all runs have the same cases.
"""

import argparse
import contextlib
import copy
import json
import random
import resource

import pytest

from support.fuzz.untrusted_engines import value_paths
from support.models.support_models import manifest
from trt_perception.errors import ConfigError, TrtPerceptionError
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.manifest import parse_manifest
from trt_perception.model.recognition.recognise import ModelOverrides, recognise
from trt_perception.model.tensors import ModelInfo, TensorSpec
from trt_perception.offline.building.calibration.cache import read_ranges
from trt_perception.offline.building.options.build_options import OPTIONS
from trt_perception.offline.building.options.sources import load_options, read_class_names
from trt_perception.offline.evaluation.coco.annotations import read_annotations
from trt_perception.offline.evaluation.coco.classes import read_class_map
from trt_perception.offline.tools.parts.model_arguments import values_from_options

IMAGE = (TensorSpec('images', (1, 3, 640, 640), 'float32'),)
DENSE = (TensorSpec('output0', (1, 6, 8400), 'float32'),)
QUERIES = (
    TensorSpec('logits', (1, 300, 2), 'float32'),
    TensorSpec('pred_boxes', (1, 300, 4), 'float32'),
)
# Parts of YAML, and values that break readers: numbers with thousands of digits or in base 60,
# tags, aliases, dates, invalid characters.
WORDS = [
    *('a', 'onnx', 'shapes', '-', ':', '- ', ': ', '\n', '\n  ', '{', '}', '[', ']', ','),
    *('&a ', '*a', '!!int ', '!!float ', '!!bool ', '!!set ', '!!binary ', '!!timestamp ', '!x '),
    *('|', '>', '%YAML 1.1\n', '%TAG ! x\n', '---\n', '...\n', '? ', '#', '"', "'", '\\'),
    *('"\\ud800"', '"\\x1b"', '"\\U00110000"', '<<', '=', '~', 'null', 'yes', '1', '1e999', '-1'),
    *('0x1f', '010', '1:1:1', '1:' * 3000 + '1', '9' * 6000, '0x' + 'f' * 6000, '.inf', '.nan'),
    *('2001-01-01', '2001-13-45', '\t', '\r', '\x85', '\u2028', '\ufeff', '\0', 'é', '@', '`'),
    *('x' * 300, '1x3x4x4', '1x3x' + '9' * 5000 + 'x4', '/etc/passwd', '~nobody/x', 'a/' * 3000),
]
VALUES = [
    *(None, True, 0, -1, 1e999, float('nan'), 10**30, 10**400, 1e-300, 5e-324, '', [], {}, 'x'),
    *('x' * 70_000, '\ud800', '\x1b', [[]], [1, 2, 3], {'a': 1}, {'0': 'a'}, 10**4000, -0.0),
]
LITERALS = [
    *('{', '}', '[', ']', '(', ')', ':', ',', '0', '1', '"a"', "'b'", 'b"x"', '...', 'None', '-'),
    *('+', '1j', '0x' + 'f' * 6000, '9' * 6000, '{0: 0x' + 'f' * 6000 + '}', 'set()', '*', '\n'),
    *('1e999', '\0', '\ud800', '-' * 5000, '[' * 300, '(' * 150, 'not ', '"\\x1b"', "'\\d'"),
]
COCO = {
    'images': [{'id': 1, 'file_name': 'a.png', 'width': 9, 'height': 9}],
    'categories': [{'id': 1, 'name': 'cat'}],
    'annotations': [{'image_id': 1, 'category_id': 1, 'bbox': [1, 2, 3, 4], 'area': 3}],
}
PROCESSOR = {
    'size': {'height': 640, 'width': 640},
    'rescale_factor': 1 / 255,
    'do_normalize': True,
    'image_mean': [0.4, 0.4, 0.4],
    'image_std': [0.2, 0.2, 0.2],
    'resample': 2,
}
HUGGING_FACE = {
    'model_type': 'rt_detr',
    'id2label': {'0': 'a', '1': 'b'},
    'preprocessor_config': PROCESSOR,
}
METADATA = {'names': "{0: 'a', 1: 'b'}", 'task': 'detect', 'imgsz': '[640, 640]', 'stride': '32'}


def words(rng, most):
    return ''.join(rng.choice(WORDS) for _ in range(rng.randrange(1, most)))


def spoiled(rng, content):
    """Return the content with some values replaced or removed."""
    content = copy.deepcopy(content)
    for _ in range(rng.randrange(1, 4)):
        path = rng.choice(list(value_paths(content)) or [()])
        if not path:
            break
        place = content
        for key in path[:-1]:
            place = place[key]
        if rng.random() < 0.7:
            place[path[-1]] = copy.deepcopy(rng.choice(VALUES))
        else:
            del place[path[-1]]
    return content


def as_json(rng, content):
    """Return bytes, mostly valid JSON."""
    text = json.dumps(spoiled(rng, content))
    chance = rng.random()
    if chance < 0.1:
        other = rng.choice(['9' * 5000, 'NaN', '-Infinity', '[', '{"a":', '\0', '1e99999'])
        text = text.replace(rng.choice(['1', '"', '{']), other, 1)
    elif chance < 0.2:
        text = text[: rng.randrange(len(text) + 1)]
    elif chance < 0.25:
        text = rng.choice(['[' * 100_000, '{"a":' * 100_000, text + text, '{"a": 1, "a": 2}'])
    encoding = rng.choice(['utf-8'] * 8 + ['utf-16', 'utf-32', 'utf-8-sig'])
    return text.encode(encoding, 'surrogatepass')


# Each function writes a damaged file into the folder, and reads the file.


def yaml_options(rng, folder):
    rows = [
        f'{rng.choice(OPTIONS).name}: {words(rng, 6) if rng.random() < 0.8 else [words(rng, 3)]}'
        for _ in range(rng.randrange(1, 5))
    ]
    text = '\n'.join(rows) if rng.random() < 0.6 else words(rng, 25)
    (folder / 'build.yaml').write_text(text, 'utf-8', 'surrogatepass')
    load_options(folder / 'build.yaml', {'onnx': 'm.onnx'})


def yaml_bytes(rng, folder):
    content = bytearray(b'onnx: a.onnx\nshapes: [1x3x4x4, 2x3x4x4]\nclass_names: ["a", b]\n')
    for _ in range(rng.randrange(1, 6)):
        content[rng.randrange(len(content))] = rng.randrange(256)
    (folder / 'build.yaml').write_bytes(content)
    load_options(folder / 'build.yaml', {})


def parameter_of_a_tool(rng, folder):
    name = rng.choice(['model.std', 'model.class_names', 'model.scale', 'cpu_threads'])
    given = {'confidence': 0.25, 'iou': 0.4, 'max_detections': 3, 'device': 0, 'nvtx': False}
    options = argparse.Namespace(**given, param=[f'{name}={words(rng, 6)}'])
    values_from_options(options, 'm.onnx')


def file_of_names(rng, folder):
    (folder / 'names.txt').write_text(words(rng, 25), 'utf-8', 'surrogatepass')
    names = str(folder / 'names.txt')
    read_class_names(load_options(None, {'onnx': 'm.onnx', 'class_names_file': names}))


def manifest_file(rng, folder):
    parse_manifest(as_json(rng, manifest()), 'x.json')


def annotations(rng, folder):
    (folder / 'truth.json').write_bytes(as_json(rng, COCO))
    read_annotations(folder / 'truth.json')


def class_map(rng, folder):
    (folder / 'map.json').write_bytes(as_json(rng, {'a': 'b', 'c': None}))
    read_class_map(folder / 'map.json')


def calibration_cache(rng, folder):
    (folder / 'ranges.json').write_bytes(as_json(rng, {'x': 1.0}))
    assert read_ranges(folder / 'ranges.json', ['x'])[1]


def files_of_hugging_face(rng, folder):
    (folder / 'm.onnx').write_bytes(b'x')
    (folder / 'config.json').write_bytes(as_json(rng, HUGGING_FACE) or b' ')
    (folder / 'preprocessor_config.json').write_bytes(as_json(rng, PROCESSOR) or b' ')
    model = read_model_file(folder / 'm.onnx')
    assert repr(model.config)
    recognise(ModelInfo('m.onnx', IMAGE, QUERIES, {}, model.config), ModelOverrides())


def metadata_of_an_engine(rng, folder):
    content = as_json(rng, {**METADATA, 'names': {'0': 'a'}, 'imgsz': [640, 640]})
    plan = len(content).to_bytes(4, 'little') + content + b'ftrt' + bytes(40)
    (folder / 'm.engine').write_bytes(plan)
    model = read_model_file(folder / 'm.engine')
    recognise(ModelInfo('m.engine', IMAGE, DENSE, model.metadata), ModelOverrides())


def metadata_of_an_onnx_file(rng, folder):
    metadata = dict(METADATA)
    for _ in range(rng.randrange(1, 3)):
        text = ''.join(rng.choice(LITERALS) for _ in range(rng.randrange(1, 9)))
        metadata[rng.choice(list(metadata))] = text
    recognise(ModelInfo('m.onnx', IMAGE, DENSE, metadata), ModelOverrides())


READERS = [
    *(yaml_options, yaml_bytes, parameter_of_a_tool, file_of_names, manifest_file, annotations),
    *(class_map, calibration_cache, files_of_hugging_face, metadata_of_an_engine),
    metadata_of_an_onnx_file,
]


@pytest.mark.parametrize('reader', READERS, ids=lambda reader: reader.__name__)
def test_random_file_is_read_or_refused_with_a_message(reader, tmp_path):
    read = 0
    for seed in range(200):
        with contextlib.suppress(TrtPerceptionError):
            reader(random.Random(seed), tmp_path)
            read += 1
    print(f'{read} of 200 read')


@pytest.mark.parametrize(
    'text',
    [
        'batch: ' + '9' * 6000,
        'batch: 0x' + 'f' * 6000,
        'batch: ' + '1:' * 3000 + '1',
        'scale: 1:30',
        'batch: !!int "1"',
        'class_names: !!set {a, b}',
        'class_names: !!binary aGk=',
        'onnx: 2001-01-01',
        'shapes: 1x3x' + '9' * 5000 + 'x4',
        'output: ' + 'x' * 300 + '.engine',
        'validate: ' + 'x' * 300,
        'onnx: "a\\ud800.onnx"',
        'a: ' + '[' * 100,
        'a: [' + '[],' * 5000 + ']',
    ],
    ids=range(14),
)
def test_refused_yaml_has_a_message(tmp_path, text, golden_messages):
    path = tmp_path / 'build.yaml'
    path.write_text(text if text.startswith('onnx') else f'{text}\nonnx: a.onnx\n')
    with golden_messages.raises(ConfigError) as caught:
        load_options(path, {})
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    'text',
    [
        '{"a": 1, "b": {"a": 1, "a": 2}}',
        '[1, NaN]',
        '[-Infinity]',
        '9' * 5000,
        '[' * 100_000,
        '{"a":' * 100_000,
        '[1,\n 2',
        b'"\xff"',
        '',
    ],
    ids=range(9),
)
def test_refused_json_has_a_message(text, golden_messages):
    from trt_perception.files.json_section import parse_json

    with golden_messages.raises(ValueError):
        parse_json(text)


# Some reader needed minutes for each of these texts. A text has 256 KiB, or less if our reader
# takes 0.3 s for it.
LARGE = {
    'a list': 'a: [' + 'a,' * 130_000 + ']',
    'lines': 'a:\n' + '- a\n' * 25_000,
    'keys': '\n'.join(f'k{number}: ' for number in range(15_000)),
    'questions': '? a\n' * 25_000,
    'brackets': '[' * 262_000,
    'pairs of brackets': '[' + '[],' * 87_000 + ']',
    'colons': '1:' * 131_000,
    'digits': 'a: ' + '1' * 262_000,
    'base 60': 'a: ' + '1:' * 130_000 + '1',
    'anchors': 'a: [' + '&a,' * 87_000 + ']',
    'laughs': '\n'.join(f'a{n}: &a{n} [{f"*a{n - 1}," * 9}]' for n in range(1, 30)),
    'a text': 'a: "' + 'x' * 262_000 + '"',
    'spaces': 'a:' + ' ' * 262_000,
    'above the size limit': '#' * 300_000,
}


# Texts that are refused before their end. The message must name the exceeded limit.
GIVEN_UP = {
    'a list': ' 69632 values',
    'pairs of brackets': ' 4096 lists',
}


@pytest.mark.unmeasured
@pytest.mark.parametrize('kind', LARGE)
def test_large_yaml_is_refused_in_little_time_and_memory(kind, tmp_path):
    path = tmp_path / 'build.yaml'
    path.write_text(LARGE[kind])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ConfigError) as caught:
        load_options(path, {})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 1024
    assert GIVEN_UP.get(kind, '') in str(caught.value)
    assert len(str(caught.value)) < 1000
