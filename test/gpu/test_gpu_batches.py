"""Engines of several images on a GPU: each frame's boxes are those of an engine of one image.

Each engine runs in a process of its own, which a crash within TensorRT ends instead of the tests.
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
from test_gpu_profiles import apart, needs_open_shapes

from support.gpu.gpu_support import build_plan, from_device, needs_nvjpeg, needs_tensorrt
from support.gpu.patch_pipeline import noise
from support.models.batch_models import with_batch, with_open_batch
from support.models.digits import DIGITS, SCENES
from support.models.patch_model import patch_onnx, write_engine
from trt_perception.building.graph.half_precision import convert_to_half
from trt_perception.errors import ImageError
from trt_perception.evaluation.metrics.agreement import match_by_iou
from trt_perception.evaluation.metrics.shapes import box_iou
from trt_perception.images.compressed import check_image_file
from trt_perception.images.frame import Frame, frame_from_bgr
from trt_perception.images.jpeg import as_plain_jpeg, undecoded_frame
from trt_perception.model.decoders.dense import Dense
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines.cuda_pipeline import CudaPipeline
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
    """Return a function that builds an engine of ENGINES once, and returns its path."""
    folder, built = tmp_path_factory.mktemp('engines'), {}

    def engine(kind):
        if kind not in built:
            batch, profiles = ENGINES[kind]
            plan = build_plan(patch_onnx(SIZE, DENSE, batch=batch), profiles)
            path = folder / f'{len(built)}.engine'
            built[kind] = write_engine(path, plan, SIZE, DENSE, batch=batch)
        return built[kind]

    return engine


def opened(path, **options):
    return closing(CudaPipeline(read_model_file(path), PipelineOptions(**{'depth': 2, **options})))


def blocks(width, height, seed):
    """Return a frame of 16 x 12 colours, as many as the network has patches: many boxes."""
    colours = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), np.uint8)
    bgr = cv2.resize(colours, (width, height), interpolation=cv2.INTER_NEAREST)
    return Frame.view(bgr.reshape(-1), width=width, height=height, step=3 * width, encoding='bgr8')


def frames_of(rng, count):
    """Return frames of different size, content and encoding, and thresholds for each."""
    frames, thresholds = [], []
    for _ in range(count):
        size = tuple(int(side) & ~1 for side in rng.integers(16, 400, 2))
        seed, encoding = int(rng.integers(0, 10**6)), str(rng.choice(ENCODINGS))
        plain = rng.random() < 0.5
        frames.append(blocks(*size, seed) if plain else noise(seed, encoding, size))
        wanted = ((), (0, 2), (1, 2, 3))[int(rng.integers(0, 3))]
        # Some let nothing through.
        confidence = float(rng.choice([0.2, 0.3, 0.5, 0.9999]))
        thresholds.append(Thresholds(confidence, float(rng.uniform(0.3, 0.7)), class_ids=wanted))
    return frames, thresholds


def assert_same(found, expected, pixels=0.01):
    assert len(found) == len(expected)
    np.testing.assert_array_equal(found.class_ids, expected.class_ids)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4, rtol=0)
    np.testing.assert_allclose(found.xyxy, expected.xyxy, atol=pixels, rtol=0)


def check_batches(path, alone, use_graph):
    """Hold batches of every size to frames by themselves; return how many boxes there were."""
    rng, total, empty = np.random.default_rng(11), 0, 0
    with opened(alone) as one, opened(path, use_cuda_graph=use_graph) as pipeline:
        for turn in range(30):
            most = pipeline.batch
            count = most if turn % 5 == 0 else min(most, (1, 2, 3, 8)[turn % 4])
            frames, thresholds = frames_of(rng, count)
            slot = turn % 2
            with copy_to_pipeline_memory(pipeline, frames) as placed:
                given = [frames[at] if at % 3 == 1 else placed[at] for at in range(count)]
                pipeline.enqueue(slot, given, thresholds)
                results = pipeline.collect(slot)
            assert len(results) == count
            item = pipeline.spec.input.size_bytes // pipeline.spec.batch
            for at, (frame, own) in enumerate(zip(frames, thresholds, strict=True)):
                # The input to the bit, the boxes within what another batch computes otherwise.
                expected, _ = HostPreprocessor(pipeline.spec.preprocessing)(frame)
                address = pipeline.slots[slot].input + at * item
                seen = from_device(address, np.float32, expected.shape)
                np.testing.assert_array_equal(seen, expected)
                alike = detect_one(one, frame, own).detections
                assert_same(results[at].detections, alike)
                total += len(alike)
                empty += len(alike) == 0
    assert empty > 3
    return total


@each_engine
@pytest.mark.parametrize('use_graph', [True, False])
def test_every_frame_of_a_batch_has_the_boxes_that_it_has_alone(engines, kind, use_graph):
    assert apart(check_batches, engines(kind), engines('fixed 1'), use_graph) > 100


def check_sizes(path):
    """Return which profile the contexts of each slot have, and whether they share memory."""
    with opened(path) as pipeline:
        sizes = [slot._sizes for slot in pipeline.slots]
        assert all(size.graph is not None for own in sizes for size in own)
        used = [[each.context.native.active_optimization_profile for each in own] for own in sizes]
        memory = [{each.context.memory.pointer for each in own} for own in sizes]
        batches = [[each.batch for each in own] for own in sizes]
    return used, [len(own) for own in memory], len(set.union(*memory)), batches


def test_a_profile_set_has_a_graph_for_each_size(engines):
    found = apart(check_sizes, engines('profiles 1, 4, 8'))
    assert found == ([[0, 1, 2]] * 2, [1, 1], 2, [[1, 4, 8]] * 2)


def jpeg_of(seed, size=(200, 120)):
    frame = blocks(*size, seed)
    bgr = frame.data.reshape(size[1], size[0], 3)
    _, content = cv2.imencode('.jpg', bgr)
    return as_plain_jpeg(check_image_file(content.reshape(-1)))


def check_jpegs(path):
    with opened(path, jpeg_on_gpu=True) as pipeline:
        assert pipeline.decodes_jpeg
        for place in range(8):
            frames = [jpeg_of(at) if at % 2 else blocks(90, 70, at) for at in range(8)]
            file = jpeg_of(place)
            bad = undecoded_frame(file.jpeg, file.width - 1, file.height)
            given = [bad if at == place else frame for at, frame in enumerate(frames)]
            pipeline.enqueue(place % 2, given, [Thresholds(0.3)] * 8)
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
def test_a_bad_file_costs_its_place_only(engines, kind):
    assert apart(check_jpegs, engines(kind))


def check_growth(path):
    """Frames of growing size at each place: no memory of one reaches into another's."""
    rng, found = np.random.default_rng(3), 0
    with opened(path, depth=1) as pipeline:
        for width in (40, 700, 41, 1900, 3000):
            sizes = [(width + 2 * at, 3 * width // 4 + 8 * at) for at in range(pipeline.batch)]
            frames = [blocks(*size, int(rng.integers(1000))) for size in sizes]
            pipeline.enqueue(0, frames, [Thresholds(0.3)] * len(frames))
            results = pipeline.collect(0)
            for frame, result in zip(frames, results, strict=True):
                expected = detect_one(pipeline, frame, Thresholds(0.3)).detections
                assert_same(result.detections, expected)
                found += len(expected)
    return found


def test_frames_that_grow(engines):
    assert apart(check_growth, engines('profiles 1, 4, 8')) > 50


def check_max_batch(path):
    model = read_model_file(path)
    for most, expected in ((1, 1), (2, 4), (8, 8)):
        options = PipelineOptions(depth=1, max_batch=most)
        with closing(CudaPipeline(model, options)) as pipeline:
            assert pipeline.batch == expected
            frame = blocks(200, 90, 1)
            assert len(detect_one(pipeline, frame, Thresholds(0.3)).detections) > 0
    return True


def test_one_camera_takes_no_memory_for_several(engines):
    assert apart(check_max_batch, engines('profiles 1, 4, 8'))


def half_digits(folder, batch, profiles=()):
    """Build the digits in FP16 for so many images, -1 for any number; return the engine's path."""
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
    """Return F1 at an IoU of 0.9 of batches against images alone, and how many boxes there are."""
    frames = [frame_from_bgr(cv2.imread(str(scene))) for scene in sorted(SCENES.glob('*.jpg'))]
    runs = []
    for path in paths:
        with opened(path) as pipeline:
            found = []
            for first in range(0, len(frames), pipeline.batch):
                chunk = frames[first : first + pipeline.batch]
                pipeline.enqueue(0, chunk, [Thresholds()] * len(chunk))
                found += [result.detections for result in pipeline.collect(0)]
        runs.append(found)
    alone, *others = runs
    scores = []
    for run in others:
        matched = 0
        for one, other in zip(alone, run, strict=True):
            overlap = box_iou(one.xyxy, other.xyxy)
            overlap[one.class_ids[:, None] != other.class_ids] = 0
            matched += sum(overlap[pair] >= 0.9 for pair in match_by_iou(overlap))
        scores.append(2 * matched / sum(len(each) for each in (*alone, *run)))
    return scores, sum(map(len, alone))


def test_half_precision_finds_the_same_objects(tmp_path):
    """Batches of another size choose other kernels, which round otherwise."""
    shape = (3, 480, 640)
    sizes = [{'images': ((size, *shape),) * 3} for size in (1, 4, 8)]
    paths = [half_digits(tmp_path, 1), half_digits(tmp_path, 8), half_digits(tmp_path, -1, sizes)]
    scores, boxes = apart(check_half_precision, paths)
    print(scores, boxes)
    assert boxes > 100
    assert min(scores) >= 0.99


def check_two_gpus(path):
    """Run the same batches on both, from one ring of memory; return how many boxes there were."""
    rng, thresholds = np.random.default_rng(21), [Thresholds(0.3)] * 8
    batches = [[blocks(640, 360, int(rng.integers(10**6))) for _ in range(8)] for _ in '012']
    with opened(path) as first, opened(path, device_ids=(1,)) as second:
        pipelines = first, second
        expected = [
            [detect_one(first, frame, Thresholds(0.3)).detections for frame in frames]
            for frames in batches
        ]
        # A frame's memory is of either, whose header is in front of it: one GPU at a time.
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
                for turn in range(200):
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
def test_two_gpus_find_the_same_side_by_side(engines, kind):
    assert apart(check_two_gpus, engines(kind)) > 50
