# SPDX-License-Identifier: Apache-2.0
"""Tests that the time for an input grows linearly with its size.

Each limit is a multiple of the time that this thread needs for a fixed loop. It is hundreds of
times the expected time, so other processes and slow machines do not matter.
"""

import contextlib
import json
import time
from pathlib import Path

import numpy as np
import pytest
import rclpy
from rcl_interfaces.srv import (
    DescribeParameters,
    GetParameters,
    GetParameterTypes,
    ListParameters,
    SetParameters,
    SetParametersAtomically,
)
from rclpy.parameter import Parameter

from trt_perception.errors import ConfigError, EngineError, MissingModelInfoError
from trt_perception.model.recognition.recognise import ModelOverrides, recognise
from trt_perception.model.tensors import ModelInfo, TensorSpec
from trt_perception.offline.building.options.sources import load_options
from trt_perception.offline.evaluation.coco.annotations import (
    Annotations,
    CocoImage,
    read_annotations,
)
from trt_perception.offline.evaluation.coco.classes import match_classes
from trt_perception.offline.evaluation.coco.images import match_images
from trt_perception.parameters.values import PARAMETERS, ParameterValues
from trt_perception.ros.detector_node import DetectorNode

pytestmark = [pytest.mark.ros, pytest.mark.unmeasured]

MOST = 65536
NAMES = tuple(f'class number {number}' for number in range(MOST))
#: The duplicate is at the end, so that a search must read all names to find it.
TWICE = (*NAMES[:-1], NAMES[-2])
IMAGE = (TensorSpec('images', (1, 3, 64, 64), 'float32'),)
DENSE = (TensorSpec('output0', (1, 4 + MOST, 84), 'float32'),)


def loop_s():
    """Return the thread time of a fixed loop in seconds: 5 ms on a fast core."""
    start = time.thread_time()
    sum(range(500_000))
    return time.thread_time() - start


@contextlib.contextmanager
def at_most(loops):
    start = time.thread_time()
    yield
    taken = time.thread_time() - start
    assert taken < loops * loop_s()


def test_maximum_number_of_class_names_in_metadata_is_read_quickly():
    # Names have the form of Ultralytics metadata. They are short, as longer texts are not read.
    names = {index: f'{index:x}' for index in range(MOST)}
    names[MOST - 1] = names[MOST - 2]
    with at_most(4000):
        found = recognise(
            ModelInfo('x.onnx', IMAGE, DENSE, {'names': repr(names), 'task': 'detect'}),
            ModelOverrides(),
        )
    assert found.class_names[-1] == f'fffe {MOST - 1}'
    assert len(set(found.class_names)) == MOST


def test_maximum_number_of_class_names_in_config_json_is_read_quickly():
    config = {
        'model_type': 'yolos',
        'id2label': dict(zip(map(str, range(MOST)), TWICE, strict=True)),
    }
    outputs = (
        TensorSpec('logits', (1, 100, MOST + 1), 'float32'),
        TensorSpec('pred_boxes', (1, 100, 4), 'float32'),
    )
    with at_most(4000):
        found = recognise(ModelInfo('x.onnx', IMAGE, outputs, {}, config), ModelOverrides())
    assert len(set(found.class_names)) == MOST


def test_class_filter_with_thousands_of_names_is_fast():
    parameters = ParameterValues.from_values({'class_filter': NAMES[-8000:]})
    with at_most(400):
        assert parameters.thresholds(NAMES).class_ids == tuple(range(MOST - 8000, MOST))


def test_repeated_names_are_refused_quickly(golden_messages):
    with at_most(2000), golden_messages.raises(ConfigError):
        load_options(None, {'onnx': 'm.onnx', 'class_names': list(TWICE)})
    with at_most(2000), golden_messages.raises(ConfigError):
        ParameterValues.from_values({'model.class_names': TWICE})


def test_class_map_with_all_names_is_checked_quickly(tmp_path, golden_messages):
    path = tmp_path / 'truth.json'
    content = {
        'images': [{'id': 1, 'file_name': 'a.png', 'width': 9, 'height': 9}],
        'categories': [{'id': index, 'name': f'its {name}'} for index, name in enumerate(NAMES)],
        'annotations': [{'image_id': 1, 'category_id': 5, 'bbox': [1, 2, 3, 4]}],
    }
    path.write_text(json.dumps(content))
    truth = read_annotations(path)
    with at_most(4000):
        matched = match_classes(NAMES, truth, class_map={name: f'its {name}' for name in NAMES})
    assert matched.category_ids == tuple(range(MOST))
    # No class matches. The search for similar names reads only a few names.
    with at_most(4000), golden_messages.raises(ConfigError):
        match_classes(NAMES, truth)


def test_image_files_with_one_name_in_thousands_of_folders_get_names_quickly():
    files = [Path(f'/data/drive/{number}/left/000001.jpg') for number in range(20_000)]
    names = [f'{number}/left/000001.jpg' for number in range(20_000)]
    images = tuple(CocoImage(number, name, None) for number, name in enumerate(names))
    with at_most(4000):
        pairs = match_images(Annotations(Path('truth.json'), images, {}, {}), files[::-1])
    assert [(image.file_name, path) for image, path in pairs] == list(
        zip(names, files, strict=True)
    )


def test_thousands_of_unknown_options_are_refused_quickly(tmp_path, golden_messages):
    path = tmp_path / 'build.yaml'
    path.write_text('\n'.join(f'workspace_mib{number}: 1' for number in range(10_000)))
    with at_most(4000), golden_messages.raises(ConfigError):
        load_options(path, {'onnx': 'm.onnx'})


def test_model_with_many_outputs_is_checked_quickly(tmp_path):
    outputs = tuple(TensorSpec(f'o{n}', (1, 300, n), 'float32') for n in range(1, 400))
    with at_most(4000), pytest.raises((EngineError, MissingModelInfoError)) as caught:
        recognise(ModelInfo('x.onnx', IMAGE, outputs, {}), ModelOverrides())
    assert len(str(caught.value)) < 20_000


def wide_model(path):
    """Write a model with the maximum number of classes and one anchor without objects."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    shape = (1, 4 + MOST, 1)
    constants = {'axes': np.array([1, 2, 3]), 'nothing': np.zeros(shape, np.float32)}
    nodes = [
        helper.make_node('ReduceMean', ['images', 'axes'], ['mean'], keepdims=0),
        helper.make_node('Reshape', ['mean', 'column'], ['level']),
        helper.make_node('Mul', ['level', 'nothing'], ['output']),
    ]
    constants['column'] = np.array([1, 1, 1])
    graph = helper.make_graph(
        nodes,
        'wide',
        [helper.make_tensor_value_info('images', TensorProto.FLOAT, (1, 3, 48, 64))],
        [helper.make_tensor_value_info('output', TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 18)], ir_version=9)
    onnx.save(model, path)
    return path


@pytest.fixture
def node(tmp_path):
    """Return a configured node in this process, whose model has 65536 classes."""
    given = {
        'engine_path': str(wide_model(tmp_path / 'wide.onnx')),
        'model.class_names': list(NAMES),
        'model.decoder': 'dense',
        'model.resize': 'stretch',
        'model.color_order': 'rgb',
        'model.scale': 0.004,
        'cpu_threads': 1,
    }
    context = rclpy.Context()
    rclpy.init(context=context)
    overrides = [Parameter(name, value=value) for name, value in given.items()]
    node = DetectorNode(context=context, parameter_overrides=overrides)
    assert node.trigger_configure().name == 'SUCCESS'
    yield node
    node.close()
    rclpy.shutdown(context=context)


def test_node_with_65536_classes_answers_parameter_changes(node, golden_messages):
    def change(name, value):
        with at_most(400):
            return node.set_parameters_atomically([Parameter(name, value=value)])

    assert change('class_filter', list(NAMES[-8000:])).successful
    assert change('class_filter', list(NAMES)).successful
    for number in range(10):
        assert change('confidence_threshold', 0.1 + number / 20).successful
    refused = change('class_filter', [f'{name} {"x" * 200}' for name in NAMES])
    golden_messages.add(refused.reason)
    assert len(refused.reason) < 10_000
    golden_messages.add(change('x' * 4_000_000, 1).reason)
    golden_messages.add(change('engine_path', 'x' * 4_000_000).reason)
    golden_messages.add(change('model.std', [1.0] * 500_000).reason)


def test_request_with_one_parameter_a_thousand_times_is_answered(node, golden_messages):
    from trt_perception.ros.runtime.services import answer_every_request

    answer_every_request(node, lambda service, error: None)
    services = {service.srv_type: service.callback for service in node.services}
    value = Parameter('confidence_threshold', value=0.5).to_parameter_msg()
    for kind, fields in {
        SetParameters: {'parameters': [value] * 1000},
        SetParametersAtomically: {'parameters': [value] * 1000},
        GetParameters: {'names': ['model.class_names'] * 1000},
        GetParameterTypes: {'names': ['model.class_names'] * 1000},
        DescribeParameters: {'names': ['model.class_names'] * 1000},
        ListParameters: {'prefixes': ['model'] * 100_000},
    }.items():
        with at_most(400):
            answer = services[kind](kind.Request(**fields), kind.Response())
        if kind is SetParameters:
            assert [result.successful for result in answer.results] == [False] * 1000
            golden_messages.add(answer.results[0].reason)
        elif kind is SetParametersAtomically:
            assert not answer.result.successful
        else:
            assert answer == kind.Response()
    # A request with all parameters is valid.
    names = [parameter.name for parameter in PARAMETERS]
    answer = services[GetParameters](GetParameters.Request(names=names), GetParameters.Response())
    assert len(answer.values) == len(names)
