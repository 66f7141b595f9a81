# SPDX-License-Identifier: Apache-2.0
"""Tests of random models and manifests of the tasks that describe the whole image.

Outputs have wrong shapes, types and values. The pipeline must give a valid result or an error of
this package, and its memory must stay bounded.
"""

import json
import resource
from collections import Counter

import numpy as np
import pytest
from onnx import helper, numpy_helper

from support.models.image_models import NETWORK, write_image_model
from support.models.open_model import open_by_parameters
from trt_perception.errors import TrtPerceptionError
from trt_perception.images.frame import frame_from_bgr
from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.class_scores import ClassScores
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.manifest import serialise_manifest
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.tools.write_manifest import recognised_manifest
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.open_pipeline import open_offline_pipeline
from trt_perception.pipelines.pipeline import detect_one

DECODERS = {
    'classify': ('class_probabilities', 'class_logits'),
    'semantic': ('pixel_logits', 'pixel_ids'),
    'depth': (
        'depth_ultralytics',
        'relative_depth',
        'metric_depth',
        'depth_pro',
        'depth_anything_3',
        'moge',
    ),
}
#: Outputs of the depth decoders whose output is not one map (1, rows, columns).
DEPTH_OUTPUTS = {
    'depth_ultralytics': {'output': (1, 1, 48, 64)},
    'depth_pro': {'depth': (1, 48, 64), 'field_of_view': (1,)},
    'depth_anything_3': {'depth': (1, 1, 48, 64), 'sky': (1, 1, 48, 64)},
    'moge': {'points': (1, 48, 64, 3), 'mask': (1, 48, 64), 'metric_scale': (1,)},
}
SIDES = (0, 1, 2, 3, 4, 5, 7, 12, 16, 48, 64, 257, 2000)
IMAGE = frame_from_bgr(np.random.default_rng(0).integers(0, 256, (37, 53, 3), np.uint8))
VALUES = (0.0, 0.5, 1.0, -1.0, 3e38, -3e38, np.nan, np.inf, -np.inf)


@pytest.fixture(autouse=True)
def _bounded_memory():
    """Check that a test adds less than 512 MiB to the peak memory of the process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB, earlier tests included
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 * 1024


def usual_outputs(rng, decoder, count):
    """Return arrays that a decoder expects, with random values, by names of outputs."""
    if decoder.startswith('class'):
        return {'output': rng.dirichlet(np.ones(count)).astype('f4')[None]}
    if decoder == 'pixel_ids':
        ids = rng.integers(0, count + (rng.random() < 0.3), (1, 48, 64))
        return {'output': ids.astype('u1')}
    shapes = {'output': (1, 48, 64)}
    if decoder == 'pixel_logits':
        shapes = {'output': (1, count, 12, 16)}
    outputs = {}
    for name, shape in DEPTH_OUTPUTS.get(decoder, shapes).items():
        values = outputs[name] = rng.standard_normal(shape).astype('f4')
        if name == 'field_of_view':
            values += 50
        if rng.random() < 0.3:
            values.reshape(-1)[rng.integers(values.size)] = rng.choice(VALUES)
    return outputs


def hostile_output(rng):
    """Return an array of random shape and type, with random or special values."""
    while True:
        shape = [1, *rng.choice(SIDES, rng.integers(0, 5))]
        if rng.random() < 0.1:
            shape[0] = int(rng.choice(SIDES))
        if np.prod(shape) <= 2e6:
            break
    kind = rng.choice(['f4', 'f4', 'f4', 'f2', 'u1', 'i4', 'i8', 'f8', '?'])
    if kind in ('f4', 'f2', 'f8') and rng.random() < 0.5:
        with np.errstate(over='ignore'):
            return rng.choice(VALUES, shape).astype(kind)
    return rng.integers(0, int(rng.choice([2, 5, 300])), shape).astype(kind)


def write_constant_model(outputs, path):
    """Write a network that ignores its image and returns arrays by names of outputs."""
    graph = helper.make_graph(
        [helper.make_node('Identity', [f'{name}_value'], [name]) for name in outputs],
        'hostile',
        [helper.make_tensor_value_info('images', 1, [1, 3, *NETWORK[::-1]])],
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
            )
            for name, value in outputs.items()
        ],
        [numpy_helper.from_array(value, f'{name}_value') for name, value in outputs.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())


def check_result(found, class_count):
    """Check a result of an image of 53 x 37 pixels."""
    if isinstance(found, ClassScores):
        assert found.scores.shape == (class_count,)
        assert ((found.scores >= 0) & (found.scores < 1.01)).all()
    elif isinstance(found, ClassMap):
        ids = found.class_ids()
        assert (ids.dtype, ids.shape) == (np.uint8, (37, 53))
        assert ids.max() < class_count
    else:
        assert isinstance(found, DepthMap)
        depth = found.depth()
        assert (depth.dtype, depth.shape) == (np.float32, (37, 53))


def test_hostile_outputs_give_a_valid_result_or_an_error(tmp_path):
    rng = np.random.default_rng(40)
    results, errors = Counter(), 0
    for index in range(300):
        task = str(rng.choice(list(DECODERS)))
        count = int(rng.choice([0, 1, 2, 4, 5, 257]))
        parameters = write_image_model(task, tmp_path / 'model.onnx')
        decoder = parameters['model.decoder'] = str(rng.choice(DECODERS[task]))
        outputs = usual_outputs(rng, decoder, max(1, count))
        for name in rng.permutation([*outputs, 'other'])[: rng.integers(0, 3)]:
            outputs[str(name)] = hostile_output(rng)
        write_constant_model(outputs, tmp_path / 'model.onnx')
        if task != 'depth' or rng.random() < 0.1:
            parameters['model.class_names'] = [f'class {number}' for number in range(count)]
        thresholds = Thresholds(focal_length_px=float(rng.choice([0, 50])))
        try:
            pipeline = open_by_parameters(ParameterValues.from_values(parameters))
            found = detect_one(pipeline, IMAGE, thresholds).found
            check_result(found, count)
            results[decoder] += 1
        except TrtPerceptionError:
            errors += 1
        except Exception as error:
            raise AssertionError(f'model {index}: {parameters}, {outputs}') from error
    assert set(results) == {decoder for decoders in DECODERS.values() for decoder in decoders}
    assert errors > 100


def changed(rng, content):
    """Return a manifest in which one value at any depth is replaced or removed."""
    content = json.loads(json.dumps(content))
    section = content
    while True:
        key = (
            rng.choice(list(section)) if isinstance(section, dict) else rng.integers(len(section))
        )
        key = str(key) if isinstance(section, dict) else int(key)
        inner = section[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.7:
            section = inner
            continue
        if isinstance(section, dict) and rng.random() < 0.3:
            del section[key]
        else:
            replacements = [
                None,
                True,
                -1,
                0,
                2**40,
                1e300,
                '',
                'x' * 300,
                [],
                {},
                [[]],
                'softmax',
            ]
            section[key] = replacements[rng.integers(len(replacements))]
        return content


def test_hostile_manifests_give_a_valid_result_or_an_error(tmp_path):
    rng = np.random.default_rng(41)
    results, errors = Counter(), 0
    originals = {}
    for model in (*DECODERS, 'depth_anything_3', 'moge'):
        path = tmp_path / model / 'model.onnx'
        path.parent.mkdir()
        if model in DECODERS:
            parameters = write_image_model(model, path)
        else:  # recognised by the names of outputs
            parameters = {'engine_path': str(path)}
            write_constant_model(usual_outputs(rng, model, 0), path)
        options = ParameterValues.from_values(parameters).pipeline_options()
        manifest = recognised_manifest(read_model_file(path), options)
        originals[model] = json.loads(serialise_manifest(manifest))
    for index in range(200):
        model = str(rng.choice(list(originals)))
        path = tmp_path / model / 'model.onnx'
        content = changed(rng, originals[model])
        path.with_name('model.onnx.json').write_text(json.dumps(content))
        try:
            options = ParameterValues(engine_path=str(path)).pipeline_options()
            pipeline = open_offline_pipeline(read_model_file(path), options)
            found = detect_one(pipeline, IMAGE, Thresholds(focal_length_px=50)).found
            check_result(found, len(pipeline.spec.class_names))
            results[model] += 1
        except TrtPerceptionError:
            errors += 1
        except Exception as error:
            raise AssertionError(f'manifest {index}: {content}') from error
    assert set(results) == set(originals)
    assert errors > 50
