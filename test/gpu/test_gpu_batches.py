# SPDX-License-Identifier: Apache-2.0
"""Engines with a batch size above 1 find the same boxes as an engine with batch size 1.

Each engine runs in its own process. A crash inside TensorRT ends that process, not the tests.
"""

from __future__ import annotations

import hashlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import cv2
import numpy as np
import onnx
import pytest
from test_gpu_devices import needs_two_gpus
from test_gpu_profiles import in_new_process, needs_open_shapes

from support.gpu.gpu_support import build_plan, from_device, needs_nvjpeg, needs_tensorrt
from support.gpu.patch_pipeline import noise_frame
from support.models.batch_models import with_batch, with_open_batch
from support.models.digits import DIGITS, SCENES
from support.models.patch_model import patch_onnx, write_engine
from trt_perception.errors import ImageError
from trt_perception.images.compressed import check_image_file
from trt_perception.images.frame import Frame, frame_from_bgr
from trt_perception.images.jpeg import as_plain_jpeg, undecoded_frame
from trt_perception.model.decoders.anchors import Dense
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.building.graph.half_precision import convert_to_half
from trt_perception.offline.evaluation.metrics.agreement import match_by_iou
from trt_perception.offline.evaluation.metrics.shapes import box_iou
from trt_perception.pipelines.cuda.cuda_pipeline import CudaPipeline
from trt_perception.pipelines.pipeline import detect_one
from trt_perception.pipelines.warm_up import copy_to_pipeline_memory
from trt_perception.stages.host_preprocess import HostPreprocessor

pytestmark = needs_tensorrt

DENSE = Dense()
SIZE = 128, 96
ENCODINGS = ['bgr8', 'rgba8', 'nv12', 'mono8', 'uyvy', 'bayer_grbg8']


def profile(low, high):
    width, height = SIZE
    shapes = (low, 3, height, width), (high, 3, height, width), (high, 3, height, width)
    return {'images': shapes}


ENGINES = {
    'fixed 1': (1, ()),
    'fixed 3': (3, ()),
    'fixed 8': (8, ()),
    'profiles 1, 4, 8': (-1, (profile(1, 1), profile(4, 4), profile(8, 8))),
    'profile 4': (-1, (profile(4, 4),)),
    'profiles 2, 8': (-1, (profile(2, 2), profile(8, 8))),
    'open to 8': (-1, (profile(1, 8),)),
}
each_engine = pytest.mark.parametrize(
    'kind',
    [
        pytest.param(kind, marks=needs_open_shapes) if kind.startswith('open') else kind
        for kind in ENGINES
        if kind != 'fixed 1'
    ],
)


@pytest.fixture(scope='module')
def engines(tmp_path_factory):
    """Return a function that builds each engine of ENGINES once and returns its path."""
    folder, built = tmp_path_factory.mktemp('engines'), {}

    def engine(kind):
        if kind not in built:
            batch, profiles = ENGINES[kind]
            plan = build_plan(patch_onnx(SIZE, DENSE, batch=batch), profiles)
            path = folder / f'{len(built)}.engine'
            built[kind] = write_engine(path, plan, SIZE, DENSE, batch=batch)
        return built[kind]

    return engine


def open_pipeline(path, **options):
    return closing(CudaPipeline(read_model_file(path), PipelineOptions(**{'depth': 2, **options})))


def blocks(width, height, seed):
    """Return a frame with many boxes: 16 x 12 colour blocks, one for each patch of the network."""
    colours = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), np.uint8)
    bgr = cv2.resize(colours, (width, height), interpolation=cv2.INTER_NEAREST)
    return Frame.view(bgr.reshape(-1), width=width, height=height, step=3 * width, encoding='bgr8')


def frames_of(rng, count):
    """Return frames of different sizes, contents and encodings, and thresholds for each frame."""
    frames, thresholds = [], []
    for _ in range(count):
        size = tuple(int(side) & ~1 for side in rng.integers(16, 400, 2))
        seed, encoding = int(rng.integers(0, 10**6)), str(rng.choice(ENCODINGS))
        is_blocks = rng.random() < 0.5
        frames.append(blocks(*size, seed) if is_blocks else noise_frame(seed, encoding, size))
        class_ids = ((), (0, 2), (1, 2, 3))[int(rng.integers(0, 3))]
        # The highest threshold rejects all boxes.
        confidence = float(rng.choice([0.2, 0.3, 0.5, 0.9999]))
        thresholds.append(
            Thresholds(confidence, float(rng.uniform(0.3, 0.7)), class_ids=class_ids)
        )
    return frames, thresholds


def assert_same(found, expected, pixels=0.01):
    assert len(found) == len(expected)
    np.testing.assert_array_equal(found.class_ids, expected.class_ids)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4, rtol=0)
    np.testing.assert_allclose(found.xyxy, expected.xyxy, atol=pixels, rtol=0)


def check_batches(path, single_path, use_graph):
    """Compare batches of every size with single frames. Return the number of boxes."""
    rng, total, empty = np.random.default_rng(11), 0, 0
    with (
        open_pipeline(single_path) as single,
        open_pipeline(path, use_cuda_graph=use_graph) as pipeline,
    ):
        for turn in range(30):
            max_batch = pipeline.batch
            count = max_batch if turn % 5 == 0 else min(max_batch, (1, 2, 3, 8)[turn % 4])
            frames, thresholds = frames_of(rng, count)
            slot = turn % 2
            with copy_to_pipeline_memory(pipeline, frames) as placed:
                inputs = [frames[at] if at % 3 == 1 else placed[at] for at in range(count)]
                pipeline.enqueue(slot, inputs, thresholds)
                results = pipeline.collect(slot)
            assert len(results) == count
            item = pipeline.spec.input.size_bytes // pipeline.spec.batch
            for at, (frame, frame_thresholds) in enumerate(zip(frames, thresholds, strict=True)):
                # The input must be equal. Boxes may differ, because another batch size computes
                # differently.
                expected, _ = HostPreprocessor(pipeline.spec.preprocessing)(frame)
                address = pipeline.slots[slot].input + at * item
                tensor = from_device(address, np.float32, expected.shape)
                np.testing.assert_array_equal(tensor, expected)
                single_result = detect_one(single, frame, frame_thresholds).detections
                assert_same(results[at].detections, single_result)
                total += len(single_result)
                empty += len(single_result) == 0
    assert empty > 3
    return total


@each_engine
@pytest.mark.parametrize('use_graph', [True, False])
def test_frames_of_a_batch_have_the_same_boxes_as_single_frames(engines, kind, use_graph):
    assert in_new_process(check_batches, engines(kind), engines('fixed 1'), use_graph) > 100


def check_sizes(path):
    """Return the slots' profiles, memory blocks in each slot and in total, and batch sizes."""
    with open_pipeline(path) as pipeline:
        sizes = [slot._sizes for slot in pipeline.slots]
        assert all(size.graph is not None for slot_sizes in sizes for size in slot_sizes)
        profiles = [
            [size.context.native.active_optimization_profile for size in slot_sizes]
            for slot_sizes in sizes
        ]
        memory = [{size.context.memory.pointer for size in slot_sizes} for slot_sizes in sizes]
        batches = [[size.batch for size in slot_sizes] for slot_sizes in sizes]
    return profiles, [len(slot_sizes) for slot_sizes in memory], len(set.union(*memory)), batches


def test_each_batch_size_has_its_own_profile_and_graph(engines):
    found = in_new_process(check_sizes, engines('profiles 1, 4, 8'))
    assert found == ([[0, 1, 2]] * 2, [1, 1], 2, [[1, 4, 8]] * 2)


def jpeg_of(seed, size=(200, 120)):
    frame = blocks(*size, seed)
    bgr = frame.data.reshape(size[1], size[0], 3)
    _, content = cv2.imencode('.jpg', bgr)
    return as_plain_jpeg(check_image_file(content.reshape(-1)))


def check_jpegs(path):
    with open_pipeline(path, jpeg_on_gpu=True) as pipeline:
        assert pipeline.decodes_jpeg
        for place in range(8):
            frames = [jpeg_of(at) if at % 2 else blocks(90, 70, at) for at in range(8)]
            file = jpeg_of(place)
            bad = undecoded_frame(file.jpeg, file.width - 1, file.height)
            inputs = [bad if at == place else frame for at, frame in enumerate(frames)]
            pipeline.enqueue(place % 2, inputs, [Thresholds(0.3)] * 8)
            end = time.monotonic() + 30
            while not pipeline.is_done(place % 2):
                assert time.monotonic() < end
            results = pipeline.collect(place % 2)
            assert isinstance(results[place], ImageError)
            for at, frame in enumerate(frames):
                if at != place:
                    expected = detect_one(pipeline, frame, Thresholds(0.3)).detections
                    assert_same(results[at].detections, expected)
    return True


@needs_nvjpeg
@pytest.mark.parametrize('kind', ['fixed 8', 'profiles 1, 4, 8'])
def test_unreadable_jpeg_affects_no_other_frame_of_the_batch(engines, kind):
    assert in_new_process(check_jpegs, engines(kind))


def check_growth(path):
    """Check that a larger frame at any place of a batch overwrites no other frame."""
    rng, boxes = np.random.default_rng(3), 0
    with open_pipeline(path, depth=1) as pipeline:
        for width in (40, 700, 41, 1900, 3000):
            sizes = [(width + 2 * at, 3 * width // 4 + 8 * at) for at in range(pipeline.batch)]
            frames = [blocks(*size, int(rng.integers(1000))) for size in sizes]
            pipeline.enqueue(0, frames, [Thresholds(0.3)] * len(frames))
            results = pipeline.collect(0)
            for frame, result in zip(frames, results, strict=True):
                expected = detect_one(pipeline, frame, Thresholds(0.3)).detections
                assert_same(result.detections, expected)
                boxes += len(expected)
    return boxes


def test_frames_of_growing_size_do_not_overlap_in_memory(engines):
    assert in_new_process(check_growth, engines('profiles 1, 4, 8')) > 50


def check_max_batch(path):
    model = read_model_file(path)
    for max_batch, expected in ((1, 1), (2, 4), (8, 8)):
        options = PipelineOptions(depth=1, max_batch=max_batch)
        with closing(CudaPipeline(model, options)) as pipeline:
            assert pipeline.batch == expected
            frame = blocks(200, 90, 1)
            assert len(detect_one(pipeline, frame, Thresholds(0.3)).detections) > 0
    return True


def test_max_batch_selects_the_smallest_sufficient_batch_size(engines):
    assert in_new_process(check_max_batch, engines('profiles 1, 4, 8'))


def half_digits(folder, batch, profiles=()):
    """Build the digit model in FP16 with this batch size (-1: any). Return the engine's path."""
    model = onnx.load_model(DIGITS)
    if batch != 1:
        model = with_open_batch(model) if batch < 0 else with_batch(model, batch)
    for index, node in enumerate(model.graph.node):
        node.name = node.name or f'node {index}'
    plan = build_plan(convert_to_half(model, 'fp16', {}).model.SerializeToString(), profiles)
    path = folder / f'digits{batch}.engine'
    path.write_bytes(plan)
    manifest = json.loads(DIGITS.with_name('digits.onnx.json').read_text())
    digest = hashlib.sha256(plan).hexdigest()
    manifest['engine'] = {'file': path.name, 'sha256': digest, 'size_bytes': len(plan)}
    for tensor in (*manifest['inputs'], *manifest['outputs']):
        tensor['shape'][0] = batch
    path.with_name(f'{path.name}.json').write_text(json.dumps(manifest))
    return path


def check_half_precision(paths):
    """Return the F1 (IoU 0.9) of each batched run against single images, and the box count."""
    frames = [frame_from_bgr(cv2.imread(str(scene))) for scene in sorted(SCENES.glob('*.jpg'))]
    runs = []
    for path in paths:
        with open_pipeline(path) as pipeline:
            detections = []
            for first in range(0, len(frames), pipeline.batch):
                chunk = frames[first : first + pipeline.batch]
                pipeline.enqueue(0, chunk, [Thresholds()] * len(chunk))
                detections += [result.detections for result in pipeline.collect(0)]
        runs.append(detections)
    single_run, *others = runs
    scores = []
    for run in others:
        matched = 0
        for single, other in zip(single_run, run, strict=True):
            overlap = box_iou(single.xyxy, other.xyxy)
            overlap[single.class_ids[:, None] != other.class_ids] = 0
            matched += sum(overlap[pair] >= 0.9 for pair in match_by_iou(overlap))
        scores.append(
            2
            * matched
            / sum(len(detections_of_image) for detections_of_image in (*single_run, *run))
        )
    return scores, sum(map(len, single_run))


def test_batches_in_half_precision_find_the_same_objects(tmp_path):
    """Other batch sizes use other TensorRT kernels, which round differently."""
    shape = (3, 480, 640)
    sizes = [{'images': ((size, *shape),) * 3} for size in (1, 4, 8)]
    paths = [half_digits(tmp_path, 1), half_digits(tmp_path, 8), half_digits(tmp_path, -1, sizes)]
    scores, boxes = in_new_process(check_half_precision, paths)
    print(scores, boxes)
    assert boxes > 100
    assert min(scores) >= 0.99


def check_two_gpus(path, open_pipeline=open_pipeline, turns=200):
    """Run the same batches on both GPUs from shared buffers. Return the number of boxes."""
    rng, thresholds = np.random.default_rng(21), [Thresholds(0.3)] * 8
    batches = [[blocks(640, 360, int(rng.integers(10**6))) for _ in range(8)] for _ in '012']
    with open_pipeline(path) as first, open_pipeline(path, device_id=1) as second:
        pipelines = first, second
        expected = [
            [detect_one(first, frame, Thresholds(0.3)).detections for frame in frames]
            for frames in batches
        ]
        # Only one GPU at a time may use a frame, because each pipeline writes its header in front
        # of the pixels. Both pipelines may allocate the frame's memory.
        for owner in pipelines:
            for frames, alone in zip(batches, expected, strict=True):
                with copy_to_pipeline_memory(owner, frames) as placed:
                    for pipeline in pipelines:
                        pipeline.enqueue(0, placed, thresholds)
                        for result, one in zip(pipeline.collect(0), alone, strict=True):
                            assert_same(result.detections, one)

        def work(pipeline):
            with (
                copy_to_pipeline_memory(first, batches[0]) as one,
                copy_to_pipeline_memory(second, batches[1]) as other,
            ):
                for turn in range(turns):
                    index = turn % 2
                    pipeline.enqueue(index, (one, other)[index], thresholds)
                    found = pipeline.collect(index)
                    for result, alone in zip(found, expected[index], strict=True):
                        assert_same(result.detections, alone)

        with ThreadPoolExecutor(2) as threads:
            for done in [threads.submit(work, pipeline) for pipeline in pipelines]:
                done.result(timeout=60)
    return sum(len(found) for alone in expected for found in alone)


@needs_two_gpus
@pytest.mark.parametrize('kind', ['fixed 8', 'profiles 1, 4, 8'])
def test_two_gpus_in_parallel_find_the_same_objects(engines, kind):
    assert in_new_process(check_two_gpus, engines(kind)) > 50
