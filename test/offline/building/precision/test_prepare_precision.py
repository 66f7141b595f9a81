# SPDX-License-Identifier: Apache-2.0
"""Tests that an INT8 model for TensorRT's own calibration has batches and no Q/DQ nodes."""

import shutil

import numpy as np
import pytest

from support.building.tensorrt_standin import StandIn
from support.models import small_detectors
from support.models.digits import CALIBRATION_IMAGES
from support.models.scaled_models import SMALL_PREPROCESSING
from trt_perception.errors import ConfigError
from trt_perception.images.frame import frame_from_bgr
from trt_perception.images.image_files import read_image_file
from trt_perception.offline.building.calibration.images import CalibrationImages, select_images
from trt_perception.offline.building.engine.release import TensorRt
from trt_perception.offline.building.options.sources import load_options
from trt_perception.offline.building.precision.prepare_precision import prepare_precision
from trt_perception.stages.host_preprocess import HostPreprocessor


def precise(images, batch=1):
    model, *_ = small_detectors.raw_maps()
    for entry in (*model.graph.input, *model.graph.output):
        entry.type.tensor_type.shape.dim[0].dim_value = batch
    given = {'onnx': 'model.onnx', 'precision': 'int8', 'calibration_tool': 'tensorrt'}
    options = load_options(None, {**given, 'calibration_images': str(CALIBRATION_IMAGES)})
    module = StandIn('10.3', '10.3.0.26')
    tensorrt = TensorRt(module, module.flavour, '10.3.0.26', None)
    shapes = {'images': (batch, 3, 64, 64)}
    checked = CalibrationImages(images, SMALL_PREPROCESSING)
    return prepare_precision(model, options, checked, tensorrt, shapes, lambda *_: None)


@pytest.mark.parametrize('batch', [1, 3])
def test_batches_have_each_image_once_preprocessed_as_at_run_time(batch):
    images = select_images(CALIBRATION_IMAGES, 8)
    made = precise(images, batch)
    assert not any('Quantize' in node.op_type for node in made.model.graph.node)
    preprocess = HostPreprocessor(SMALL_PREPROCESSING)
    expected = [
        preprocess(frame_from_bgr(read_image_file(path)))[0].copy() for path in images.paths
    ]
    for _ in range(2):  # TensorRT may read the batches twice
        batches = list(made.calibration_data.open_batches())
        assert (
            {each.shape for each in batches}
            == {made.calibration_data.batch_shape}
            == {(batch, 3, 64, 64)}
        )
        # An incomplete last batch is left out.
        np.testing.assert_array_equal(
            np.concatenate(batches), np.concatenate(expected)[: 8 // batch * batch]
        )
    [few] = CalibrationImages(images, SMALL_PREPROCESSING).warnings
    assert few in made.warnings


def test_too_few_calibration_images_are_refused(tmp_path, golden_messages):
    for path in select_images(CALIBRATION_IMAGES, 8).paths[:3]:
        shutil.copy(path, tmp_path)
    with golden_messages.raises(ConfigError):
        precise(select_images(tmp_path))
