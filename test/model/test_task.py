# SPDX-License-Identifier: Apache-2.0
"""Tests of tasks in manifests and exporter metadata, and of their effect on outputs."""

import copy
import json
from dataclasses import fields

import pytest

from support.models.support_models import MANIFEST, manifest
from support.oracles.recognition_support import ULTRALYTICS, recognised, refusal, tensors
from trt_perception.errors import EngineError, ManifestError
from trt_perception.files.json_section import JsonSection
from trt_perception.model.decoders.anchors import Dense
from trt_perception.model.decoders.final_boxes import Torchvision
from trt_perception.model.decoders.queries import Detr
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.manifest import parse_manifest, serialise_manifest
from trt_perception.model.output_tensor import assign_outputs
from trt_perception.model.recognition.recognise import ModelOverrides
from trt_perception.model.resolve_spec import resolve_model_spec
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.obb import Obb
from trt_perception.model.tasks.pose import COCO_KEYPOINTS, KeypointSpec, Pose
from trt_perception.model.tasks.segment import Segment
from trt_perception.model.tasks.table import TASKS, read_task, write_task
from trt_perception.model.tasks.task import Task
from trt_perception.model.tensors import ModelInfo, TensorSpec

KEYPOINTS = {'names': ['head', 'tail', 'paw'], 'values': 3, 'skeleton': [[0, 1], [1, 2]]}
POSE = {'schema': 2, 'task': 'pose', 'keypoints': KEYPOINTS}
NAMES = {'names': "{0: 'cat', 1: 'dog'}"}
SPEC = KeypointSpec(('head', 'tail', 'paw'), 3, ((0, 1), (1, 2)))
#: Decoder families with one mask per object, which need no coefficients.
OWN = [decoder.as_dict() for decoder in (Detr(activation='sigmoid'), Torchvision())]


def parse(content):
    return parse_manifest(json.dumps(content).encode(), 'x.json')


def manifest_error(content):
    with pytest.raises(ManifestError) as caught:
        parse(content)
    return str(caught.value)


@pytest.mark.parametrize('task', TASKS.values(), ids=list(TASKS))
def test_fields_of_tasks_hide_no_attribute_of_the_base_class(task):
    """A hidden attribute would become the default of the field, and make its key optional."""
    assert {field.name for field in fields(task)} & set(dir(Task)) == set()


@pytest.mark.parametrize(
    'task', [DETECT, Obb(), Pose(SPEC), Segment(), Segment(32)], ids=lambda task: str(task)
)
def test_written_manifest_has_the_keys_of_all_tasks(task):
    content = write_task(task)
    assert list(content) == ['task', 'keypoints', 'mask_coefficients']
    assert read_task(JsonSection(content, 'x.json'), 'task') == task


def test_schema_1_has_the_task_detect():
    read = parse(manifest())
    assert MANIFEST['schema'] == 1
    assert read.task == DETECT
    assert b'"schema": 2,\n  "task": "detect"' in serialise_manifest(read)
    assert parse_manifest(serialise_manifest(read), 'x.json') == read


@pytest.mark.parametrize(('key', 'value'), [('task', 'detect'), ('keypoints', None)])
def test_keys_of_tasks_are_refused_in_schema_1(key, value, golden_messages):
    golden_messages.add(manifest_error(manifest(**{key: value})))


def test_task_pose_is_read_and_written():
    read = parse(manifest(**POSE))
    assert read.task == Pose(SPEC)
    assert (read.task.task_value_count, str(read.task)) == (9, 'pose (3 keypoints)')
    assert parse_manifest(serialise_manifest(read), 'x.json') == read
    assert read.as_dict()['keypoints'] == KEYPOINTS


@pytest.mark.parametrize(
    'changes',
    [
        {'schema': 2},
        {**POSE, 'task': 'semantic'},
        {**POSE, 'keypoints': None},
        {**POSE, 'task': 'detect'},
        {**POSE, 'decoder': {'family': 'efficient_nms'}},
        {'schema': 2, 'task': 'obb', 'keypoints': KEYPOINTS},
        {'schema': 2, 'task': 'obb', 'mask_coefficients': 32},
        {'mask_coefficients': 32},
        *({'schema': 2, 'task': 'segment', 'mask_coefficients': n} for n in (None, 0, 1025, '32')),
        *({'schema': 2, 'task': 'segment', 'mask_coefficients': 32, 'decoder': d} for d in OWN),
    ],
    ids=str,
)
def test_each_task_requires_exactly_its_keys(changes, golden_messages):
    golden_messages.add(manifest_error(manifest(**changes)))


@pytest.mark.parametrize(
    ('key', 'value'),
    [
        ('names', []),
        ('names', ['a', 'b', 'a']),
        ('names', [1]),
        ('names', [str(number) for number in range(1001)]),
        ('values', 1),
        ('values', 4),
        ('values', True),
        ('skeleton', [[0, 3]]),
        ('skeleton', [[0, -1]]),
        ('skeleton', [[0, 1, 2]]),
        ('skeleton', [[0, True]]),
        ('skeleton', [[0, 1]] * 1001),
        ('skeleton', None),
        ('joints', []),
    ],
    ids=lambda value: str(value)[:40],
)
def test_keypoints_out_of_range_are_refused(key, value, golden_messages):
    changed = {**copy.deepcopy(KEYPOINTS), key: value}
    golden_messages.add(manifest_error(manifest(**{**POSE, 'keypoints': changed})))


def output(*shape):
    return (TensorSpec('output0', shape, 'float32'),)


@pytest.mark.parametrize(
    ('decoder', 'shape', 'fits'),
    [
        ('dense', (1, 15, 100), True),
        ('dense', (1, 6, 100), False),
        ('dense_transposed', (1, 100, 15), True),
        ('dense_objectness', (1, 16, 100), True),
        ('end_to_end', (1, 100, 15), True),
        ('end_to_end', (1, 100, 6), False),
        ('rtdetr_end_to_end', (1, 100, 15), False),
        ('yolox_raw', (1, 100, 16), False),
    ],
)
def test_rows_must_have_room_for_keypoints(decoder, shape, fits):
    """Rows have 2 class scores and 9 task values."""
    assigned = assign_outputs(PRESETS[decoder].decoder.outputs(2, Pose(SPEC)), output(*shape))
    assert assigned == ((0,) if fits else None)


def test_wrong_number_of_keypoints_is_refused(golden_messages):
    read = parse(manifest(**POSE))
    model = ModelInfo('tiny.onnx', read.inputs, read.outputs)
    with golden_messages.raises(EngineError):
        resolve_model_spec(model, read, ModelOverrides())


def test_decoder_that_supports_no_keypoints_is_refused(golden_messages):
    read = parse(manifest(**POSE))
    model = ModelInfo('tiny.onnx', read.inputs, read.outputs)
    with golden_messages.raises(EngineError):
        resolve_model_spec(model, read, ModelOverrides(decoder='yolox_raw'))


def test_task_obb_has_one_task_value():
    read = parse(manifest(schema=2, task='obb'))
    assert read.task == Obb()
    assert (read.task.task_value_count, str(read.task)) == (1, 'obb')
    assert parse_manifest(serialise_manifest(read), 'x.json') == read


def test_task_segment_has_mask_coefficients():
    read = parse(manifest(schema=2, task='segment', mask_coefficients=32))
    assert read.task == Segment(mask_coefficients=32)
    assert (read.task.task_value_count, str(read.task)) == (32, 'segment')
    assert parse_manifest(serialise_manifest(read), 'x.json') == read
    for own in OWN:
        assert parse(manifest(schema=2, task='segment', decoder=own)).task == Segment()


def masked(prototypes, rows=38, metadata=()):
    outputs = (*tensors(output0=(1, rows, 8400)), TensorSpec('output1', prototypes, 'float32'))
    return outputs, {**ULTRALYTICS, **NAMES, 'task': 'segment', **dict(metadata)}


def test_task_has_as_many_mask_coefficients_as_prototypes():
    found = recognised(*masked((1, 32, 160, 160)))
    assert (found.decoder, found.task) == (PRESETS['dense'].decoder, Segment(32))
    assert recognised(*masked((1, 8, 160, 160), rows=14)).task.mask_coefficients == 8


@pytest.mark.parametrize(('prototypes', 'rows'), [((1, 32, 160, 160), 37), ((1, 31, 9, 9), 38)])
def test_prototypes_that_do_not_match_the_rows_are_refused(prototypes, rows, golden_messages):
    golden_messages.add(refusal(*masked(prototypes, rows)))


@pytest.mark.parametrize('prototypes', [(1, -1, 160, 160), (1, 32, 160)])
def test_unknown_number_of_prototypes_is_refused(prototypes, golden_messages):
    golden_messages.add(refusal(*masked(prototypes)))


def test_stretched_images_are_refused_for_oriented_boxes(golden_messages):
    content = manifest(schema=2, task='obb')
    content['outputs'][0]['shape'] = [1, 7, -1]
    read = parse(content)
    model = ModelInfo('tiny.onnx', read.inputs, read.outputs)
    assert resolve_model_spec(model, read, ModelOverrides()).task.is_oriented
    with golden_messages.raises(EngineError):
        resolve_model_spec(model, read, ModelOverrides(preprocessing={'resize': 'stretch'}))


OF_POSE = {**ULTRALYTICS, **NAMES, 'task': 'pose', 'kpt_shape': '[3, 3]'}


def task_of(metadata, rows):
    return recognised(tensors(output0=(1, rows, 8400)), metadata).task


@pytest.mark.parametrize(
    ('said', 'names'),
    [
        ({}, ('0', '1', '2')),
        ({'kpt_names': "{0: ['a', 'b', 'c'], 1: ['a', 'b', 'c']}"}, ('a', 'b', 'c')),
        # If classes have different names, no list is right for all classes.
        ({'kpt_names': "{0: ['a', 'b', 'c'], 1: ['d', 'e', 'f']}"}, ('0', '1', '2')),
        ({'kpt_names': "{0: ['a', 'b']}"}, ('0', '1', '2')),
        ({'kpt_names': "{0: ['a', 'a', 'b']}"}, ('a 0', 'a 1', 'b')),
        ({'kpt_names': "{0: ['a', '', 'b']}"}, ('a', 'keypoint 1', 'b')),
        ({'kpt_names': "{0: ['a', 'b', 'c\\nd']}"}, ('a', 'b', 'keypoint 2')),
        ({'kpt_names': '{0: [1, 2, 3]}'}, ('0', '1', '2')),
        ({'kpt_names': "{0: 'abc'}"}, ('0', '1', '2')),
        ({'kpt_names': '['}, ('0', '1', '2')),
    ],
    ids=str,
)
def test_keypoint_names_come_from_the_metadata(said, names):
    found = task_of({**OF_POSE, **said}, 15)
    assert found == Pose(KeypointSpec(names, 3))


def test_17_keypoints_of_a_person_get_names_and_skeleton_of_coco():
    whole = {**OF_POSE, 'kpt_shape': '[17, 3]'}
    person = {**whole, 'names': "{0: 'person'}"}
    assert task_of(person, 56) == Pose(COCO_KEYPOINTS)
    named = {**whole, 'kpt_names': f'{{0: {[*COCO_KEYPOINTS.names]}}}'}
    assert task_of(named, 57) == Pose(COCO_KEYPOINTS)
    assert task_of(whole, 57).keypoints.skeleton == ()


def test_keypoints_with_two_values_are_read():
    found = task_of({**OF_POSE, 'kpt_shape': '(4, 2)'}, 14)
    assert (found.keypoints.values, found.task_value_count) == (2, 8)


@pytest.mark.parametrize(
    'shape', ['', '[]', '[3]', '[3, 4]', '[3, 1]', '[0, 3]', '[1001, 3]', '[3.0, 3]', '9' * 9]
)
def test_invalid_kpt_shape_is_refused(shape, golden_messages):
    golden_messages.add(refusal(tensors(output0=(1, 15, 8400)), {**OF_POSE, 'kpt_shape': shape}))


@pytest.mark.parametrize('rows', [6, 14, 16])
def test_outputs_that_do_not_match_the_keypoints_are_refused(rows, golden_messages):
    golden_messages.add(refusal(tensors(output0=(1, rows, 8400)), OF_POSE))


def test_decoder_set_by_the_user_reads_keypoints():
    shape = tensors(output0=(1, 100, 15))
    found = recognised(shape, OF_POSE, decoder='dense_transposed')
    assert (found.decoder, found.task.task_value_count) == (Dense(transposed=True), 9)
