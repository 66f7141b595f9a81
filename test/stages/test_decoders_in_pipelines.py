# SPDX-License-Identifier: Apache-2.0
"""A generated network of each family finds known boxes in a pipeline, alone and in a batch."""

from __future__ import annotations

import numpy as np
import pytest

from support.models.open_model import open_by_parameters
from support.oracles.family_outputs import (
    NAMES,
    NETWORK,
    OUTPUTS,
    SOURCES,
    assert_found,
    batched,
    network,
    random_objects,
    to_source,
)
from trt_perception.images.frame import Frame
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.decoders.table import OBJECT_PRESETS
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.evaluation.offline_detection import detect_batch
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.pipeline import detect_one

# No network output may cause a warning. ResourceWarning may come from other tests, whose files the
# garbage collector closes at any time.
pytestmark = pytest.mark.filterwarnings('error', 'ignore::ResourceWarning')


# A pipeline also uses the image layout, additional inputs and the model's own metadata.
FORMS = {
    'torchvision': {'image': (3, NETWORK[1], NETWORK[0])},
    'tensorflow': {
        'image': (1, NETWORK[1], NETWORK[0], 3),
        'image_dtype': 'UINT8',
    },
    'labels_boxes_scores': {'beside': [('orig_target_sizes', (1, 2))]},
    'detr': {'beside': [('pixel_mask', (1, 64, 64))]},
}


# Without padding, DETR's pixel mask is 1 everywhere. test_padding.py tests other masks.
MODES = {'detr': 'stretch'}


def parameters_for(path, name):
    return ParameterValues(
        engine_path=str(path),
        model_decoder=name,
        model_class_names=NAMES,
        model_resize=MODES.get(name, 'letterbox'),
        model_color_order='rgb',
        model_scale=1.0 if name == 'tensorflow' else 1 / 255,
        model_mean=(0.0, 0.0, 0.0),
        model_std=(1.0, 1.0, 1.0),
    )


def grey(size_wh):
    width, height = size_wh
    pixels = np.full(width * height, 114, np.uint8)
    return Frame.view(pixels, width=width, height=height, step=width, encoding='mono8')


@pytest.mark.parametrize('name', OBJECT_PRESETS)
def test_generated_network_runs_in_a_pipeline(name, tmp_path):
    rng = np.random.default_rng(20)
    xyxy, scores, labels = random_objects(rng)
    outputs = batched(name, [OUTPUTS[name](rng, xyxy, scores, labels)])
    path = tmp_path / 'made.onnx'
    path.write_bytes(network(outputs, **FORMS.get(name, {})))
    pipeline = open_by_parameters(parameters_for(path, name))
    found = detect_one(pipeline, grey(SOURCES[0]), Thresholds()).detections
    letterbox = Letterbox.fit(SOURCES[0], NETWORK, MODES.get(name, 'letterbox'))
    assert_found(found, to_source(xyxy, letterbox), scores, labels)
    pipeline.close()


@pytest.mark.parametrize('name', [name for name in OBJECT_PRESETS if name != 'torchvision'])
def test_network_with_a_batch_runs_in_a_pipeline(name, tmp_path):
    """The pipeline gets two images and then one, in several sizes."""
    rng = np.random.default_rng(21)
    made = [random_objects(rng, count) for count in (6, 3)]
    outputs = batched(name, [OUTPUTS[name](rng, *one) for one in made])
    form = {key: value for key, value in FORMS.get(name, {}).items() if key != 'image'}
    form['beside'] = [(key, (2, *shape[1:])) for key, shape in form.get('beside', ())]
    by_row = name == 'tensorflow'
    image = (2, NETWORK[1], NETWORK[0], 3) if by_row else (2, 3, NETWORK[1], NETWORK[0])
    path = tmp_path / 'made.onnx'
    path.write_bytes(network(outputs, image=image, **form))
    parameters = parameters_for(path, name)
    pipeline = open_by_parameters(parameters)
    assert pipeline.batch == 2
    frames = [grey(size) for size in SOURCES]
    mode = MODES.get(name, 'letterbox')
    letterboxes = [Letterbox.fit(source, NETWORK, mode) for source in SOURCES]
    for count in (2, 1):
        run = detect_batch(pipeline, frames[:count], Thresholds())
        assert len(run) == count
        for found, letterbox, one in zip(run, letterboxes, made, strict=False):
            assert_found(found, to_source(one[0], letterbox), *one[1:])
    pipeline.close()
