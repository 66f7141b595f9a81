"""Tests of models that describe the whole image in the GPU's pipeline, with stand-ins."""

import numpy as np
import pytest

from support.gpu.fake_tensorrt import PLAN
from support.models.image_models import IMAGE_TASKS, NETWORK, write_image_model
from support.models.open_model import open_by_parameters
from trt_perception.images.frame import frame_from_bgr
from trt_perception.parameters.config import DetectorConfig
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines.pipeline import detect_one

pytest_plugins = ['support.gpu.gpu_standin_fixtures']


def arrays(found):
    """Return the arrays of a result of any of the tasks."""
    if hasattr(found, 'scores'):
        return [found.scores]
    return [found.depth()] if hasattr(found, 'depth') else [found.class_ids(), found.confidence()]


@pytest.mark.parametrize('task', IMAGE_TASKS)
def test_outputs_in_pinned_memory_give_the_results_of_the_host(task, install_standins, tmp_path):
    parameters = write_image_model(task, tmp_path / 'model.onnx')
    config = DetectorConfig.from_values(parameters)
    image = np.random.default_rng(7).integers(0, 256, (333, 517, 3), np.uint8)
    frame = frame_from_bgr(image)
    host = open_by_parameters(config)
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
    engine = {**parameters, 'engine_path': str(tmp_path / 'model.engine')}
    pipeline = open_by_parameters(DetectorConfig.from_values(engine))
    pipeline.enqueue(0, [frame], [Thresholds(wants_masks=True)])
    pinned = pipeline.slots[0].result._outputs['output'].array
    pinned[: output.nbytes] = output.reshape(-1).view(np.uint8)
    (result,) = pipeline.collect(0)
    pinned[:] = 0  # the result must not refer to the memory of the slot
    for found, wanted in zip(arrays(result.found), arrays(expected), strict=True):
        np.testing.assert_array_equal(found, wanted)
    pipeline.close()
    assert recorder.mistakes == []
