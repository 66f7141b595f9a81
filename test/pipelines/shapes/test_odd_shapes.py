# SPDX-License-Identifier: Apache-2.0
"""Outputs of odd shapes are errors of their images, for each preset, task and dynamic dimension.

A server, or a model with dynamic dimensions, may answer with any shape that its description
allows. Such an answer must stop neither the pipeline nor the images after it.
"""

import numpy as np
import pytest

from support.oracles.family_outputs import NAMES, NETWORK
from support.oracles.odd_shapes import (
    CASES,
    TASKS,
    agree,
    odd_shapes,
    open_tensors,
    usual_outputs,
    wanted_outputs,
    with_shape,
)
from trt_perception.errors import EngineError, OutputError, OutputShapeError
from trt_perception.images.detections import Detections
from trt_perception.images.frame import frame_from_bgr
from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.manifest import Manifest
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.recognition.recognise import ModelOverrides
from trt_perception.model.tensors import ModelInfo, TensorSpec
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.host.array_pipeline import ArrayPipeline

WIDTH, HEIGHT = 200, 90
GREY = np.full((HEIGHT, WIDTH, 3), 114, np.uint8)
FRAMES = [frame_from_bgr(GREY), frame_from_bgr(GREY[:, :120].copy())]


PREPROCESSING = {
    'resize': 'letterbox',
    'color_order': 'rgb',
    'scale': 1 / 255,
    'mean': (0.0, 0.0, 0.0),
    'std': (1.0, 1.0, 1.0),
}
#: Changes to outputs without objects, which are valid unless the decoder has a fixed grid.
NO_OBJECTS = ('every N 0', 'every Q 0', 'every K 0', 'every M 0')


class Model:
    """A model that returns the same outputs in each run."""

    def __init__(self, outputs):
        self.outputs = outputs

    def run(self, tensors):
        return self.outputs

    def close(self):
        pass


def inputs_for(preset, batch):
    inputs = [TensorSpec('images', (batch, 3, NETWORK[1], NETWORK[0]), 'float32')]
    if PRESETS[preset].decoder.needs_size_input:
        inputs.append(TensorSpec('orig_target_sizes', (batch, 2), 'int64'))
    return tuple(inputs)


def open_case(preset, task, batch):
    """Open a pipeline for a model with a manifest, in whose outputs each dimension is open."""
    inputs, outputs = inputs_for(preset, batch), open_tensors(preset, task)
    manifest = Manifest(
        task=TASKS[task],
        onnx=None,
        engine=None,
        inputs=inputs,
        outputs=outputs,
        preprocessing=Preprocessing(NETWORK),
        decoder=PRESETS[preset].decoder,
        class_names=NAMES,
        notes={},
    )
    info = ModelInfo('model', inputs, outputs)
    return ArrayPipeline(Model([]), info, manifest, PipelineOptions(), open_batch=2)


def run(pipeline, outputs, images):
    """Return the results of a batch, as a pipeline computes them."""
    pipeline._model.outputs = outputs
    tensor, letterboxes = pipeline.preprocess(FRAMES[:images])
    return pipeline.decode(pipeline.infer(tensor), letterboxes, [Thresholds()] * images)


def use(found, task, frame):
    """Make everything that a node makes of a result. Return the size of what was found."""
    bgr = GREY[:, : frame.width].copy()
    TASKS[task].draw(bgr, found, NAMES)
    if isinstance(found, Detections):
        if found.masks is not None:
            assert found.masks.whole().shape == (len(found), HEIGHT, frame.width)
            found.masks.number(np.zeros((HEIGHT, frame.width), np.uint16))
        return len(found)
    for size_wh in (None, (64, 48), (1, 1)):
        shape = (HEIGHT, frame.width) if size_wh is None else size_wh[::-1]
        if isinstance(found, ClassMap):
            assert found.class_ids(size_wh).shape == shape
            assert not found.has_confidence or found.confidence(size_wh).shape == shape
        elif isinstance(found, DepthMap):
            assert found.depth(size_wh).shape == shape
        else:
            assert len(found.best(9)[0]) == len(NAMES)
    return 1


#: For each name: the batch of the model's input, and the number of images.
BATCHES = {'one': (1, 1), 'open batch': (-1, 2), 'filled batch': (2, 1)}


def test_cases_include_every_preset():
    assert {preset for preset, _ in CASES} == set(PRESETS)


@pytest.mark.parametrize(
    ('preset', 'task', 'batch', 'images'),
    [
        pytest.param(*case, *BATCHES[name], id=f'{" ".join(case)} {name}')
        for case in CASES
        for name in BATCHES
        if name == 'one' or case[0] != 'torchvision'  # which has no batch axis
    ],
)
def test_odd_shape_is_an_error_of_its_images(preset, task, batch, images):
    pipeline = open_case(preset, task, batch)
    computed = images if batch < 0 else batch
    usual = usual_outputs(preset, task, computed)
    wanted = wanted_outputs(preset, task)
    shapes = tuple(array.shape for array in usual.values())
    assert agree(wanted, shapes, computed)

    def check_usual():
        results = run(pipeline, list(usual.values()), images)
        assert all(
            use(found, task, frame) for found, frame in zip(results, FRAMES[:images], strict=True)
        )

    check_usual()
    for label, changed in odd_shapes(wanted, shapes):
        outputs = [
            with_shape(array, shape) for array, shape in zip(usual.values(), changed, strict=True)
        ]
        try:
            results = run(pipeline, outputs, images)
            assert len(results) == images
            for found, frame in zip(results, FRAMES[:images], strict=True):
                if not agree(wanted, changed, computed):
                    assert isinstance(found, OutputShapeError)
                    assert found.reason == 'bad_output'
                elif not isinstance(found, OutputError):
                    use(found, task, frame)
                else:
                    assert label not in NO_OBJECTS or PRESETS[preset].decoder.grid_strides()
        except Exception as error:
            raise AssertionError(label) from error
    check_usual()


@pytest.mark.parametrize(('preset', 'task'), CASES, ids=[' '.join(case) for case in CASES])
def test_odd_shape_during_recognition_is_an_error_of_configure(preset, task):
    """Without manifest and decoder, recognition runs the model once to find the shapes."""
    wanted, usual = wanted_outputs(preset, task), usual_outputs(preset, task, 1)
    inputs, outputs = inputs_for(preset, 1), open_tensors(preset, task)
    shapes = tuple(array.shape for array in usual.values())
    count = 0
    for class_names in ((), NAMES):
        overrides = ModelOverrides(
            preprocessing=PREPROCESSING,
            class_names=class_names,
            task=TASKS[task].name if class_names else '',
        )
        for label, changed in [('usual', shapes), *odd_shapes(wanted, shapes)]:
            arrays = [
                with_shape(array, shape)
                for array, shape in zip(usual.values(), changed, strict=True)
            ]
            try:
                pipeline = ArrayPipeline(
                    Model(arrays),
                    ModelInfo('model', inputs, outputs),
                    None,
                    PipelineOptions(overrides=overrides),
                    open_batch=1,
                )
                (found,) = run(pipeline, arrays, 1)
            except EngineError:
                count += 1
            except Exception as error:
                raise AssertionError(label) from error
            else:
                assert isinstance(found, OutputError) or use(found, task, FRAMES[0]) >= 0
    assert count
