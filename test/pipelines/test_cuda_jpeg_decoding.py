# SPDX-License-Identifier: Apache-2.0
"""Tests of JPEG files on a real GPU: tensors and boxes equal the host's and stay in order.

The expected input tensor is the host's preprocessing of the pixels that OpenCV decodes.
test/pipelines/test_cuda_jpeg.py does the same with stand-ins for GPU and nvJPEG.
"""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path

import cv2
import numpy as np
import pytest
from test_cuda_pipeline import engine as digits_engine  # noqa: F401  a fixture

from support.fuzz import jpeg_fuzz
from support.gpu.gpu_support import needs_nvjpeg, needs_tensorrt
from support.gpu.patch_pipeline import expected_tensor, input_of, tensor_from_pipeline
from support.models.open_model import open_by_parameters
from support.scheduling.pool_runs import published_in_order
from trt_perception import gpu
from trt_perception.errors import ImageError
from trt_perception.images.compressed import check_image_file
from trt_perception.images.detections import Detections
from trt_perception.images.frame import DeferredFrame, frame_from_bgr
from trt_perception.images.jpeg import JpegFrameReader, as_plain_jpeg, decode_on_cpu
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.evaluation.metrics.agreement import compare_detections
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.pipeline import detect_one

pytest_plugins = ['support.gpu.patch_pipeline_fixtures']
pytestmark = [needs_tensorrt, needs_nvjpeg]

DEMO = Path(__file__).resolve().parents[2] / 'demo'
DIGITS = tuple('0123456789')
WAYS = [(False, True), (False, False), (True, True)]


def jpeg_of(content):
    frame = as_plain_jpeg(check_image_file(np.frombuffer(content, np.uint8)))
    assert not isinstance(frame, str), frame
    return frame


def jpeg(seed, width=37, height=23, sampling='420', **options):
    return jpeg_of(
        jpeg_fuzz.encoded_jpeg(jpeg_fuzz.scene_bgr(width, height, seed), sampling, **options)
    )


def assert_near(found, expected, sampling='420'):
    """Allow two levels per pixel for the decoders, and one more for rounding in the letterbox."""
    levels = 5 if sampling == '411' else 3
    assert np.abs(found - expected).max() <= levels / 255 + 1e-6
    assert np.abs(found - expected).mean() < 0.2 / 255


@pytest.mark.parametrize('sampling', jpeg_fuzz.SAMPLINGS)
@pytest.mark.parametrize(('integrated', 'graph'), WAYS)
def test_nvjpeg_decodes_into_the_memory_that_the_kernels_read(
    open_patch_pipeline, integrated, graph, sampling
):
    pipeline = open_patch_pipeline(
        integrated=integrated, graph=graph, image_transport='compressed'
    )
    assert pipeline.decodes_jpeg
    sizes = [(37, 23), (64, 48), (1920, 1080), (9, 100), (2100, 1400), (37, 23)]
    for seed, size in enumerate(sizes):
        frame = jpeg(seed, *size, sampling, interval=seed)
        found = tensor_from_pipeline(pipeline, frame, seed % 2)
        assert_near(found, expected_tensor(pipeline, decode_on_cpu(frame)), sampling)


@pytest.mark.parametrize(('integrated', 'graph'), WAYS)
def test_overlapping_slots_give_the_tensors_of_single_frames(
    open_patch_pipeline, integrated, graph
):
    """All four slots are busy with JPEGs and decoded frames. Sizes change from frame to frame."""
    pipeline = open_patch_pipeline(
        integrated=integrated, graph=graph, depth=4, image_transport='compressed'
    )
    rng = random.Random(5)
    frames = [jpeg(seed, rng.randrange(8, 700), rng.randrange(8, 500)) for seed in range(12)]
    alone = [tensor_from_pipeline(pipeline, frame) for frame in frames]
    for turn in range(60):
        flying = [(turn * 4 + slot) * 5 % 12 for slot in range(4)]
        for slot, index in enumerate(flying):
            pixels = (turn + slot) % 3 == 0
            frame = decode_on_cpu(frames[index]) if pixels else frames[index]
            pipeline.enqueue(slot, [frame], [Thresholds()])
        for slot, index in enumerate(flying):
            pipeline.collect(slot)
            found = input_of(pipeline, slot)
            if (turn + slot) % 3 == 0:
                expected = expected_tensor(pipeline, decode_on_cpu(frames[index]))
                assert np.abs(found - expected).max() <= 1e-6
            else:
                np.testing.assert_array_equal(found, alone[index])


@pytest.mark.parametrize(('integrated', 'graph'), WAYS)
def test_files_read_in_overlapping_slots_give_the_tensors_of_single_frames(
    open_patch_pipeline, integrated, graph
):
    """Files of different sizes and kinds, some truncated, run in all slots at the same time."""
    pipeline = open_patch_pipeline(
        integrated=integrated, graph=graph, depth=4, image_transport='compressed'
    )
    rng, camera = random.Random(6), JpegFrameReader()
    files = [
        jpeg_fuzz.encoded_jpeg(
            jpeg_fuzz.scene_bgr(rng.randrange(8, 900), rng.randrange(8, 600), seed)
        )
        for seed in range(10)
    ]
    files.append(cv2.imencode('.png', jpeg_fuzz.scene_bgr(300, 200))[1].tobytes())
    files.append(files[0][:-30])
    alone = [tensor_from_pipeline(pipeline, jpeg_of(file)) for file in files[:10]]
    alone.append(expected_tensor(pipeline, frame_from_bgr(jpeg_fuzz.scene_bgr(300, 200))))
    for turn in range(60):
        flying = [(turn * 4 + slot) * 5 % 12 for slot in range(4)]
        for slot, index in enumerate(flying):
            file = np.frombuffer(files[index], np.uint8)
            unread = DeferredFrame(functools.partial(camera, file))
            pipeline.enqueue(slot, [unread], [Thresholds()])
        for slot, index in enumerate(flying):
            (result,) = pipeline.collect(slot)
            if index == 11:
                assert isinstance(result, ImageError)
                continue
            assert np.abs(input_of(pipeline, slot) - alone[index]).max() <= 1e-6


def test_damaged_files_affect_no_other_frame(open_patch_pipeline, caplog):
    pipeline = open_patch_pipeline(depth=3, image_transport='compressed')
    files = jpeg_fuzz.plain_jpegs()
    rng = random.Random(11)
    whole = jpeg_of(files['320x240 420 5'])
    expected = tensor_from_pipeline(pipeline, whole)
    refused = 0
    for _ in range(400):
        caplog.clear()
        content = jpeg_fuzz.randomly_changed_jpeg(rng, files)
        try:
            frame = as_plain_jpeg(check_image_file(np.frombuffer(content, np.uint8)))
        except ImageError:
            continue
        if isinstance(frame, str):
            continue
        pipeline.enqueue(0, [frame], [Thresholds()])
        pipeline.enqueue(1, [whole], [Thresholds()])
        pipeline.collect(0)  # the CPU may also refuse this file
        pipeline.collect(1)
        np.testing.assert_array_equal(input_of(pipeline, 1), expected)
        refused += bool(caplog.records)
    assert refused > 0  # each cause was logged once
    assert refused < 5


@pytest.fixture(scope='module')
def scenes():
    """Return the JPEG contents of the demo scenes, and the true detections of each scene."""
    truth = json.loads((DEMO / 'truth.json').read_text())
    files, found = [], []
    for image in truth['images']:
        boxes = [each for each in truth['annotations'] if each['image_id'] == image['id']]
        corners = np.array([each['bbox'] for each in boxes], np.float32).reshape(-1, 4)
        corners[:, 2:] += corners[:, :2]
        ids = np.array([each['category_id'] for each in boxes], np.int32)
        found.append(Detections(corners, np.ones(len(boxes), np.float32), ids))
        files.append((DEMO / 'scenes' / image['file_name']).read_bytes())
    assert len(files) == 60
    return files, found


def open_digits(path, **parameters):
    return open_by_parameters(
        ParameterValues(engine_path=str(path), image_transport='compressed', **parameters)
    )


def test_demo_scenes_give_the_boxes_of_opencv_decoding(digits_engine, scenes):  # noqa: F811
    files, truth = scenes
    pipeline = open_digits(digits_engine)
    runs = {'OpenCV': [], 'nvJPEG': []}
    differing = 0
    for content in files:
        frame = jpeg_of(content)
        for name, pixels_or_file in (('OpenCV', decode_on_cpu(frame)), ('nvJPEG', frame)):
            runs[name].append(detect_one(pipeline, pixels_or_file, Thresholds()).detections)
        one, other = runs['OpenCV'][-1], runs['nvJPEG'][-1]
        same = compare_detections([one], [other], DIGITS).overall
        differing += same.matched != max(same.reference, same.candidate)
    pipeline.close()
    figures = {}
    for name, found in runs.items():
        overall = compare_detections(truth, found, DIGITS).overall
        recall, precision = (
            overall.matched / total for total in (overall.reference, overall.candidate)
        )
        figures[name] = recall, precision
    agreement = compare_detections(runs['OpenCV'], runs['nvJPEG'], DIGITS)
    print(figures, agreement.as_dict() | {'classes': None}, f'{differing} scenes differ')
    assert figures['nvJPEG'] == pytest.approx(figures['OpenCV'], abs=0.005)
    assert min(figures['OpenCV']) > 0.5
    assert agreement.overall.f1 > 0.99
    assert agreement.overall.mean_iou > 0.99


@pytest.mark.whole_gpu
def test_pool_publishes_jpegs_in_order(digits_engine, scenes):  # noqa: F811
    frames = [jpeg_of(content) for content in scenes[0]]
    pipeline = open_digits(digits_engine, pipeline_depth=4)
    alone = [detect_one(pipeline, frame, Thresholds()).detections for frame in frames]
    free = gpu.Device(0).memory()[0]
    published = published_in_order(pipeline, frames, 600)
    lost = free - gpu.Device(0).memory()[0]
    pipeline.close()
    for index, detections in published:
        expected = alone[index % len(frames)]
        np.testing.assert_array_equal(detections.class_ids, expected.class_ids)
        np.testing.assert_array_equal(detections.xyxy, expected.xyxy)
    print(f'{lost} bytes of device memory allocated during the run')
    assert lost < 256 * 2**20


@pytest.mark.whole_gpu
def test_opening_and_closing_jpeg_pipelines_leaks_no_memory(open_patch_pipeline):
    """Closing a pipeline must free all memory that nvJPEG allocated for it."""
    frame = jpeg(1, 1920, 1080)

    def work():
        pipeline = open_patch_pipeline(image_transport='compressed')
        tensor_from_pipeline(pipeline, frame)
        pipeline.close()

    for _ in range(3):
        work()
    before = gpu.Device(0).memory()[0]
    for _ in range(10):
        work()
    lost = before - gpu.Device(0).memory()[0]
    print(f'{lost} bytes after 10 cycles')
    assert lost < 64 * 2**20


def test_cpu_decoder_reads_the_demo_scenes_as_opencv_does(scenes):
    for content in scenes[0]:
        frame = decode_on_cpu(jpeg_of(content))
        expected = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
        assert (frame.plane().reshape(expected.shape) == expected).all()
