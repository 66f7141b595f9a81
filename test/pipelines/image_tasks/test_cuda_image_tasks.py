# SPDX-License-Identifier: Apache-2.0
"""Tests of models that describe the whole image in the GPU's pipeline, with stand-ins."""

import numpy as np
import pytest

from support.gpu.fake_tensorrt import PLAN
from support.models.image_models import (
    IMAGE_TASKS,
    NETWORK,
    write_depth_anything,
    write_image_model,
)
from support.models.open_model import open_by_parameters
from trt_perception.images.frame import frame_from_bgr
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines import image_sized_pipeline
from trt_perception.pipelines.open_pipeline import open_offline_pipeline
from trt_perception.pipelines.pipeline import detect_one

pytest_plugins = ['support.gpu.gpu_standin_fixtures']


def arrays(found):
    """Return the arrays of a result of any of the tasks."""
    if hasattr(found, 'scores'):
        return [found.scores]
    return [found.depth()] if hasattr(found, 'depth') else [found.class_ids(), found.confidence()]


@pytest.mark.parametrize('task', IMAGE_TASKS)
def test_outputs_in_pinned_memory_give_the_results_of_the_host(task, install_standins, tmp_path):
    values = write_image_model(task, tmp_path / 'model.onnx')
    parameters = ParameterValues.from_values(values)
    image = np.random.default_rng(7).integers(0, 256, (333, 517, 3), np.uint8)
    frame = frame_from_bgr(image)
    host = open_by_parameters(parameters)
    expected = detect_one(host, frame, Thresholds()).found
    (output,) = host.infer(host.preprocess([frame])[0])
    host.close()
    tensors = {
        'inputs': (('images', (1, 3, *NETWORK[::-1]), 'FLOAT'),),
        'outputs': (('output', output.shape, 'FLOAT'),),
        'profiles': (),
    }
    recorder, _ = install_standins(tensors=tensors)
    (tmp_path / 'model.engine').write_bytes(PLAN)
    options = ParameterValues.from_values(values).pipeline_options()
    pipeline = open_offline_pipeline(read_model_file(tmp_path / 'model.engine'), options)
    pipeline.enqueue(0, [frame], [Thresholds()])
    pinned = pipeline.slots[0].decoder._outputs['output'].array
    pinned[: output.nbytes] = output.reshape(-1).view(np.uint8)
    (result,) = pipeline.collect(0)
    pinned[:] = 0  # the result must not refer to the memory of the slot
    for found, wanted in zip(arrays(result.found), arrays(expected), strict=True):
        np.testing.assert_array_equal(found, wanted)
    pipeline.close()
    assert recorder.mistakes == []


@pytest.mark.parametrize(
    ('task', 'wanted', 'made'),
    [
        ('semantic', 'segmentation/mask', {'class_ids': (60, 40)}),
        ('semantic', 'segmentation/camera_info', {}),
        ('depth', 'depth', {'depth': (60, 40)}),
    ],
)
def test_the_kernels_of_a_node_make_maps_with_subscribers(
    task, wanted, made, install_standins, tmp_path
):
    """The stand-ins run no kernel; test_map_kernels.py compares the pixels."""
    parameters = write_image_model(task, tmp_path / 'model.onnx')
    shape = (1, 4, 12, 16) if task == 'semantic' else (1, 48, 64)
    tensors = {
        'inputs': (('images', (1, 3, *NETWORK[::-1]), 'FLOAT'),),
        'outputs': (('output', shape, 'FLOAT'),),
        'profiles': (),
    }
    recorder, _ = install_standins(tensors=tensors)
    (tmp_path / 'model.engine').write_bytes(PLAN)
    engine = {'engine_path': str(tmp_path / 'model.engine'), 'map_size': '60x40'}
    pipeline = open_by_parameters(ParameterValues.from_values({**parameters, **engine}))
    frame = frame_from_bgr(np.zeros((333, 517, 3), np.uint8))
    before = recorder.calls.count('cuLaunchKernel')
    pipeline.enqueue(0, [frame], [Thresholds(wanted_topics=frozenset([wanted]))])
    (result,) = pipeline.collect(0)
    assert {kind: image.size_wh for kind, image in result.found.maps.items()} == made
    assert recorder.calls.count('cuLaunchKernel') - before == len(made)
    del result
    pipeline.close()
    assert recorder.mistakes == []


def test_batch_is_split_if_the_engine_accepts_fewer_images_of_their_size(
    install_standins, tmp_path
):
    write_depth_anything(tmp_path)
    tensors = {
        'inputs': (('images', (-1, 3, -1, -1), 'FLOAT'),),
        'outputs': (('output', (-1, -1, -1), 'FLOAT'),),
        'profiles': (
            ((1, 3, 56, 56), (4, 3, 56, 56), (4, 3, 56, 56)),
            ((1, 3, 14, 14), (1, 3, 56, 98), (1, 3, 280, 280)),
        ),
    }
    recorder, _ = install_standins(tensors=tensors)
    (tmp_path / 'model.engine').write_bytes(PLAN)
    values = {'engine_path': str(tmp_path / 'model.engine'), 'cameras': ['a', 'b', 'c', 'd']}
    pipeline = open_by_parameters(ParameterValues.from_values(values))
    assert pipeline.batch == 4
    wide = [frame_from_bgr(np.zeros((90, 160, 3), np.uint8)) for _ in range(3)]
    square = frame_from_bgr(np.zeros((80, 80, 3), np.uint8))
    for _ in range(2):
        pipeline.enqueue(0, [*wide[:2], square, wide[2]], [Thresholds()] * 4)
        found = pipeline.collect(0)
        assert found.pop(2).reason == 'changed_size'
        assert all(one.frame is frame for one, frame in zip(found, wide, strict=True))
    assert pipeline.batch == 1
    pipeline.close()
    assert recorder.mistakes == []


def test_image_whose_size_the_engine_refuses_leaves_other_cameras_alone(
    install_standins, tmp_path, monkeypatch, golden_messages
):
    write_depth_anything(tmp_path)
    tensors = {
        'inputs': (('images', (-1, 3, -1, -1), 'FLOAT'),),
        'outputs': (('output', (-1, -1, -1), 'FLOAT'),),
        'profiles': (((1, 3, 14, 14), (2, 3, 56, 98), (2, 3, 112, 112)),),
    }
    recorder, _ = install_standins(tensors=tensors)
    (tmp_path / 'model.engine').write_bytes(PLAN)
    values = {'engine_path': str(tmp_path / 'model.engine'), 'cameras': ['a', 'b']}
    pipeline = open_by_parameters(ParameterValues.from_values(values))
    open_model, sizes = pipeline._open_model, []

    def record_size(options):
        sizes.append(options.overrides.image_wh)
        return open_model(options)

    monkeypatch.setattr(pipeline, '_open_model', record_size)
    long_wh, usual_wh = (300, 90), (160, 90)  # networks of 182 x 56 and 98 x 56
    long, usual = (
        frame_from_bgr(np.zeros((*wh[::-1], 3), np.uint8)) for wh in (long_wh, usual_wh)
    )
    for _ in range(3):
        pipeline.enqueue(0, [long], [Thresholds()])
        (error,) = pipeline.collect(0)
        assert error.reason == 'changed_size'
    golden_messages.add(error)
    assert sizes == [long_wh, None]  # not once more for each image
    monkeypatch.setattr(image_sized_pipeline, '_RETRY_S', 0.0)
    pipeline.enqueue(0, [long, usual], [Thresholds()] * 2)
    error, found = pipeline.collect(0)
    assert error.reason == 'changed_size'
    assert found.frame is usual
    assert sizes[2:] == [long_wh, None, usual_wh]
    pipeline.close()
    assert recorder.mistakes == []
