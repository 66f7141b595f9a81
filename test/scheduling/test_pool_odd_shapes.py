# SPDX-License-Identifier: Apache-2.0
"""One answer of an odd shape drops the images of its batch, and both cameras go on."""

import time
from collections import Counter
from contextlib import closing

import numpy as np
import pytest

from support.camera_callbacks import FaultCallback, camera_of
from support.models.open_model import open_by_parameters
from support.models.output_models import write_shape_model
from support.optional_packages import needs
from trt_perception.errors import OutputError
from trt_perception.images.frame import frame_from_bgr
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.host.onnx_runtime_pipeline import OnnxRuntimePipeline
from trt_perception.pipelines.open_pipeline import open_pipeline
from trt_perception.pipelines.warm_up import open_warm_pipeline
from trt_perception.scheduling.worker_pool import WorkerPool

DEADLINE_S = 60.0
#: What changes in the shapes of the outputs, for each level of brightness.
CHANGES = (
    {},
    {'det_boxes': (1, 0, 0)},
    {'det_boxes': (-1, 0, 0), 'det_scores': (-1, 0)},
    {'num_dets': (1, 0), 'det_boxes': (1, 0, 0), 'det_scores': (1, 0), 'det_classes': (1, 0)},
    {'num_dets': (-1, 0), 'det_boxes': (-1, 0, 0), 'det_scores': (-1, 0), 'det_classes': (-1, 0)},
    {'num_dets': (0, -1)},
    {'det_boxes': (0, 1, 0)},
    {'det_scores': (0, -5)},
    {'det_classes': (0, 5)},
    {'det_boxes': (0, 0, -1)},
    {'det_boxes': (0, -5, -4), 'det_scores': (0, -5)},
    {'det_boxes': (0, 4, 0), 'det_scores': (0, 4), 'det_classes': (0, 3)},
)
ODD = range(1, len(CHANGES))
DETECT = {
    'model.decoder': 'efficient_nms',
    'model.class_names': ['cat', 'dog'],
    'model.resize': 'letterbox',
    'model.color_order': 'rgb',
    'model.scale': 1 / 255,
}


def frame_of(level):
    """Return an image for which `write_shape_model` makes one of the changes."""
    brightness = round(255 * level / (len(CHANGES) - 1))
    return frame_from_bgr(np.full((48, 64, 3), brightness, np.uint8))


class Run:
    """A pool with two cameras, whose messages are frames.

    Attributes:
        sent: number of messages of each camera.
        dropped: reasons of dropped images of each camera.
        found: number of detections in each published image of each camera.
    """

    def __init__(self, pipeline):
        self.sent, self.faults = [0, 0], []
        self.dropped, self.found = (Counter(), Counter()), ([], [])
        self._pool = WorkerPool(
            [pipeline],
            [self._camera(index) for index in (0, 1)],
            fault_handler=FaultCallback(self.faults.append),
        )
        self._pool.start()

    def _camera(self, index):
        return camera_of(
            str(index),
            lambda frame: frame,
            lambda _message, _frame, found: self.found[index].append(len(found)),
            lambda error: self.dropped[index].update([error.reason]),
            Thresholds(),
        )

    def send(self, *frames):
        """Send a frame of each camera, or none, and wait until they are published or dropped."""
        for index, frame in enumerate(frames):
            if frame is not None:
                self.sent[index] += 1
                self._pool.submit(index, frame)
        end = time.monotonic() + DEADLINE_S
        while self._ended() != self.sent:
            assert not self.faults, self.faults
            assert time.monotonic() < end, 'no result'
            time.sleep(1e-3)

    def _ended(self):
        return [
            sum(counts.values()) + len(found)
            for counts, found in zip(self.dropped, self.found, strict=True)
        ]

    def stop(self):
        """Stop the pool, and check the counts against what happened."""
        self._pool.stop()
        assert not self.faults
        for index, counts in enumerate(self._pool.statistics()):
            assert counts.received == self.sent[index]
            assert counts.published == len(self.found[index])
            assert counts.dropped == self.dropped[index]
            assert (counts.failed, counts.in_flight) == (0, 0)
            assert counts.received == counts.published + sum(counts.dropped.values())


@needs('onnx')
def test_local_model_with_open_dimensions_drops_only_the_image_of_an_odd_answer(tmp_path):
    path = write_shape_model(tmp_path / 'shapes.onnx', CHANGES)
    parameters = ParameterValues.from_values({'engine_path': str(path), **DETECT})
    with closing(open_by_parameters(parameters)) as pipeline:
        run = Run(pipeline)
        for level in ODD:
            run.send(frame_of(0), None)
            run.send(frame_of(level), frame_of(0))
            assert run.dropped[0] == {'bad_output': level}
        run.send(frame_of(0), frame_of(0))
        run.stop()
    assert run.found == ([5] * len(CHANGES), [5] * len(CHANGES))
    assert not run.dropped[1]


@needs('onnx')
def test_odd_answer_to_a_batch_drops_the_images_of_this_batch(tmp_path):
    path = write_shape_model(tmp_path / 'shapes.onnx', CHANGES, batch='n')
    parameters = ParameterValues.from_values({'engine_path': str(path), **DETECT})
    options = parameters.pipeline_options()
    with closing(OnnxRuntimePipeline(read_model_file(path), options, open_batch=2)) as pipeline:
        good = [frame_of(0), frame_of(0)]
        both = [Thresholds()] * 2
        for level in ODD:
            pipeline.enqueue(0, good, both)
            assert [len(result.detections) for result in pipeline.collect(0)] == [5, 5]
            pipeline.enqueue(0, [frame_of(0), frame_of(level)], both)
            errors = pipeline.collect(0)
            assert [error.reason for error in errors] == ['bad_output'] * 2
        run = Run(pipeline)
        for level in ODD:
            run.send(frame_of(0), frame_of(0))
            run.send(frame_of(level), frame_of(0))
        run.send(frame_of(0), frame_of(0))
        run.stop()
    assert run.dropped[0] == {'bad_output': len(ODD)}
    # The worker may form one or two batches of two messages.
    assert set(run.dropped[1]) <= {'bad_output'}
    assert len(run.found[1]) >= len(CHANGES)


@needs('onnx')
@pytest.mark.parametrize('level', ODD)
def test_odd_answer_in_the_trial_run_is_an_error_of_configure(tmp_path, level):
    """The grey image of the trial run has the second of three levels."""
    path = write_shape_model(tmp_path / 'shapes.onnx', [{}, CHANGES[level], {}])
    options = ParameterValues.from_values({'engine_path': str(path), **DETECT}).pipeline_options()
    with pytest.raises(OutputError) as caught:
        open_warm_pipeline(str(path), options, open_pipeline)
    assert 'det_boxes' in caught.value.found
    assert caught.value.expected
    assert caught.value.fix


def served(server, **values):
    """Open the model of a fake server."""
    values = {**DETECT, 'model.decoder': 'dense', 'triton.timeout_ms': 60_000, **values}
    values['engine_path'] = f'triton://{server.address}/tiny'
    return open_by_parameters(ParameterValues.from_values(values))


def dense_answer(*shape, **values):
    """Return an answer of this shape with the values of `dense` outputs, without objects."""
    from support.fake_triton import answer

    return answer(np.zeros(shape, np.float32), shape=shape, **values)


#: Shapes that a description with open dimensions allows.
ODD_ANSWERS = ((2, 6, 6), (0, 6, 6), (1, 7, 6), (1, 5, 6), (1, 0, 6), (0, 0, 0), (3, 1, 1))
#: Shapes that no description allows.
IMPOSSIBLE_ANSWERS = (
    *((), (6, 6), (1, 1, 6, 6), (-1, 6, 6), (-1, -1, 6)),
    *((0, 2**62, 2**62), (2**62, 0, 6), (2**62, 6, 6)),
)


@needs('tritonclient')
@pytest.mark.parametrize('shared_memory', [False, True])
def test_server_drops_only_the_image_of_an_odd_answer(shared_memory):
    from support.fake_triton import answer, config, fake_triton, tensor

    dims = [-1, 6, 6] if shared_memory else [-1, -1, -1]
    with fake_triton() as server:
        server.config = config(outputs=[tensor('output0', dims)])
        with closing(served(server, **{'triton.shared_memory': shared_memory})) as pipeline:
            assert bool(pipeline._served._watch.regions) is shared_memory
            run = Run(pipeline)
            odd = [
                shape
                for shape in ODD_ANSWERS
                if all(wanted in (-1, side) for side, wanted in zip(shape, dims, strict=True))
            ]
            assert len(odd) > 1
            for count, shape in enumerate(odd, 1):
                server.infer = dense_answer(*shape)
                run.send(frame_of(0), None)
                assert run.dropped[0] == {'bad_output': count}
                server.infer = dense_answer(1, 6, 6)
                run.send(frame_of(0), frame_of(0))
            for shape in IMPOSSIBLE_ANSWERS:
                server.infer = answer(shape=shape, content=bytes(4 * 36))
                run.send(frame_of(0), None)
                server.infer = answer(shape=shape, content=b'')
                run.send(frame_of(0), None)
                server.infer = dense_answer(1, 6, 6)
                published = len(run.found[1])
                # After an error, requests fail at once until the model is known to be ready.
                while len(run.found[1]) == published:
                    run.send(None, frame_of(0))
            run.stop()
    assert run.dropped[0] == {
        'bad_output': len(odd),
        'server_error': 2 * len(IMPOSSIBLE_ANSWERS),
    }
    assert set(run.dropped[1]) <= {'server_error'}
