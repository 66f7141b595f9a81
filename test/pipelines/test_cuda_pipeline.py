# SPDX-License-Identifier: Apache-2.0
"""Tests of the GPU pipeline against ONNX Runtime, with an engine of the digits detector."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from support.camera_callbacks import FaultCallback, camera_of
from support.gpu.gpu_support import build_plan, needs_tensorrt, tensorrt
from support.models.open_model import open_by_parameters
from support.scheduling.pool_runs import published_in_order
from trt_perception import gpu
from trt_perception.errors import CudaError, EngineError, MissingModelInfoError
from trt_perception.images.encode import encode_bgr
from trt_perception.images.frame import PIXEL_FORMATS, Frame
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.manifest import parse_manifest
from trt_perception.model.pipeline_options import DecodingLimits, PipelineOptions
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.benchmarking.control import MeasurementControl
from trt_perception.offline.benchmarking.measure import detect_all
from trt_perception.offline.evaluation.metrics.agreement import compare_detections, filter_by_score
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.cuda.cuda_pipeline import CudaPipeline
from trt_perception.pipelines.host.onnx_runtime_pipeline import OnnxRuntimePipeline
from trt_perception.pipelines.pipeline import detect_one
from trt_perception.scheduling.worker_pool import WorkerPool
from trt_perception.stages.gpu_kernels import MAX_CANDIDATES

pytestmark = needs_tensorrt

ROOT = Path(__file__).resolve().parents[2]
ONNX = ROOT / 'models' / 'digits.onnx'
SCENES = sorted((ROOT / 'demo' / 'scenes').glob('*.jpg'))


@pytest.fixture(scope='module')
def engine(tmp_path_factory):
    """Return the path of an engine of the digits detector, next to its manifest."""
    import hashlib

    path = tmp_path_factory.mktemp('engine') / 'digits.engine'
    plan = build_plan(ONNX.read_bytes())
    path.write_bytes(plan)
    manifest = json.loads(ONNX.with_name('digits.onnx.json').read_text())
    manifest['engine'] = {
        'file': path.name,
        'sha256': hashlib.sha256(plan).hexdigest(),
        'size_bytes': len(plan),
    }
    path.with_name('digits.engine.json').write_text(json.dumps(manifest))
    return path


def bgr_frame(bgr, encoding='bgr8'):
    rows = encode_bgr(bgr, encoding)
    pixel_format = PIXEL_FORMATS[encoding]
    height = pixel_format.image_height(rows.shape[0])
    return Frame.view(
        rows.reshape(-1),
        width=rows.shape[1] // pixel_format.bytes_per_pixel,
        height=height,
        step=rows.shape[1],
        encoding=encoding,
    )


def detections_of(pipeline, frame, thresholds, slot=0):
    return detect_one(pipeline, frame, thresholds, slot).detections


def iou(one, other):
    size = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    inter = max(size[0], 0) * max(size[1], 0)
    area = lambda box: (box[2] - box[0]) * (box[3] - box[1])  # noqa: E731
    return inter / (area(one) + area(other) - inter)


def unmatched(expected, found, near):
    """Count expected detections without a found detection of the same class at IoU 0.99.

    Return two counts. The second count has the detections whose score is within 1e-3 of the
    threshold `near`, because rounding decides about these. The first count has all others.
    """
    missing = left_out = 0
    for box, score, class_id in zip(
        expected.xyxy, expected.scores, expected.class_ids, strict=True
    ):
        partners = found.xyxy[found.class_ids == class_id]
        if any(iou(box, other) >= 0.99 for other in partners):
            continue
        overlaps = [iou(box, other) for other in found.xyxy]
        print('no partner:', class_id, score, box, 'best', max(overlaps, default=0))
        if abs(score - near) <= 1e-3:
            left_out += 1
        else:
            missing += 1
    return missing, left_out


@pytest.mark.parametrize('use_cuda_graph', [True, False])
def test_demo_scenes_give_the_detections_of_the_host(engine, use_cuda_graph):
    host = open_by_parameters(ParameterValues(engine_path=str(ONNX)))
    device = open_by_parameters(
        ParameterValues(engine_path=str(engine), use_cuda_graph=use_cuda_graph)
    )
    total = missing = left_out = 0
    for index, path in enumerate(SCENES):
        frame = bgr_frame(cv2.imread(str(path)))
        expected = detections_of(host, frame, Thresholds())
        found = detections_of(device, frame, Thresholds(), slot=index % device.depth)
        for one, other in ((expected, found), (found, expected)):
            lost, near = unmatched(one, other, 0.25)
            missing, left_out = missing + lost, left_out + near
        total += len(expected)
    device.close()
    host.close()
    print(f'{total} detections, {missing} without partner, {left_out} near a threshold left out')
    assert total > 100
    assert missing == 0


def test_changing_sizes_encodings_and_thresholds_give_the_boxes_of_the_host(engine):
    host = open_by_parameters(ParameterValues(engine_path=str(ONNX)))
    device = open_by_parameters(ParameterValues(engine_path=str(engine)))
    rng = np.random.default_rng(0)
    missing = total = 0
    for index in range(100):
        bgr = cv2.imread(str(SCENES[index % len(SCENES)]))
        scale = rng.uniform(0.4, 4.0)
        bgr = cv2.resize(bgr, None, fx=scale, fy=scale)
        encoding = rng.choice(['bgr8', 'rgba8', 'nv12', 'yuyv', 'bgra8', 'uyvy'])
        frame = bgr_frame(bgr, str(encoding))
        thresholds = Thresholds(
            float(rng.uniform(0.2, 0.6)), 0.45, class_ids=tuple(range(index % 9))
        )
        expected = detections_of(host, frame, thresholds)
        found = detections_of(device, frame, thresholds, slot=index % device.depth)
        total += len(expected)
        missing += unmatched(expected, found, thresholds.confidence_threshold)[0]
    device.close()
    host.close()
    # Pixels differ by up to one level, which sometimes moves a box that is a few pixels wide.
    assert total > 200
    assert missing <= total * 0.02, (missing, total)


def test_pool_overlaps_frames_and_publishes_in_order(engine, monkeypatch):
    frames = [bgr_frame(cv2.imread(str(path))) for path in SCENES]
    pipeline = open_by_parameters(ParameterValues(engine_path=str(engine)))
    alone = [detections_of(pipeline, frame, Thresholds()) for frame in frames]
    busy, overlaps = set(), []

    def enqueue(slot, *frame_and_thresholds, original=pipeline.enqueue):
        original(slot, *frame_and_thresholds)
        busy.add(slot)
        overlaps.append(len(busy))

    def collect(slot, original=pipeline.collect):
        busy.remove(slot)
        return original(slot)

    monkeypatch.setattr(pipeline, 'enqueue', enqueue)
    monkeypatch.setattr(pipeline, 'collect', collect)
    published = published_in_order(pipeline, frames, 500)
    pipeline.close()
    assert max(overlaps) == pipeline.depth
    for index, detections in published:
        expected = alone[index % len(frames)]
        np.testing.assert_array_equal(detections.class_ids, expected.class_ids)
        np.testing.assert_allclose(detections.xyxy, expected.xyxy, atol=1e-3)


def drift_bytes(work, cycles=100):
    """Call `work` many times. Return by how many bytes the free device memory shrinks."""
    for _ in range(5):
        work()
    before = gpu.Device(0).memory()[0]
    for _ in range(cycles):
        work()
    return before - gpu.Device(0).memory()[0]


def test_host_decodes_more_candidates_than_the_kernels_can(engine):
    frames = [bgr_frame(cv2.imread(str(path))) for path in SCENES[:6]]
    few, all_of_them = (
        PipelineOptions(limits=DecodingLimits(1024, candidates))
        for candidates in (MAX_CANDIDATES, 30_000)
    )
    runs, counts = [], []
    for pipeline in (
        OnnxRuntimePipeline(read_model_file(ONNX), few),
        OnnxRuntimePipeline(read_model_file(ONNX), all_of_them),
        CudaPipeline(read_model_file(engine), all_of_them),
    ):
        runs.append(
            detect_all(
                pipeline, frames, Thresholds(confidence_threshold=0.001), MeasurementControl(1)
            )
        )
        # With a threshold of 0, all 6000 boxes are candidates.
        counts.append(
            len(
                detect_all(
                    pipeline, frames[:1], Thresholds(confidence_threshold=0), MeasurementControl(1)
                )[0]
            )
        )
        pipeline.close()
    _, expected, found = runs
    few, many, on_device = counts
    print(f'{few} boxes of {MAX_CANDIDATES} candidates, {many} of all, {on_device} on the GPU')
    # The counts may differ, because ONNX Runtime's sigmoid is 0 where TensorRT's is above 0.
    assert min(many, on_device) > few + 100
    assert sum(map(len, expected)) > 80
    overall = compare_detections(expected, found, tuple('0123456789')).overall
    print(overall)
    assert overall.f1 > 0.98
    sure = compare_detections(
        *(filter_by_score(each, 0.25) for each in (expected, found)),
        tuple('0123456789'),
    )
    assert (sure.overall.f1, sure.overall.mean_iou) == (1, pytest.approx(1, abs=1e-3))


@pytest.mark.whole_gpu
def test_opening_and_closing_pipelines_leaks_no_memory(engine):
    parameters = ParameterValues(engine_path=str(engine))
    content = engine.read_bytes()
    trt = tensorrt()
    logger = trt.Logger(trt.Logger.ERROR)
    compiled = []

    def bare():
        """Open the engine with the same number of contexts, without this package."""
        runtime = trt.Runtime(logger)
        native = runtime.deserialize_cuda_engine(content)
        how = []
        if hasattr(trt, 'IRuntimeCache'):  # without it, each cycle compiles for seconds
            how.append(native.create_runtime_config())
            cache = how[0].create_runtime_cache()
            assert not compiled or cache.deserialize(compiled[0])
            how[0].set_runtime_cache(cache)
        contexts = [
            native.create_execution_context(*how) for _ in range(parameters.pipeline_depth)
        ]
        assert all(contexts)
        if how and not compiled:
            compiled.append(bytes(cache.serialize()))

    alone = drift_bytes(bare)
    whole = drift_bytes(lambda: open_by_parameters(parameters).close())
    print(f'100 cycles: TensorRT alone keeps {alone} bytes, the pipeline {whole}')
    # The driver allocates memory in steps of 2 MiB.
    assert whole <= max(alone, 0) + 2 * 1024 * 1024


def test_pool_keeps_order_and_count(engine):
    pipeline = open_by_parameters(ParameterValues(engine_path=str(engine)))
    published = []
    faults = []
    frames = [bgr_frame(cv2.imread(str(path))) for path in SCENES[:8]]
    camera = camera_of(
        '',
        lambda index: frames[index % 8],
        lambda index, frame, detections: published.append(index),
        faults.append,
        Thresholds(),
    )
    pool = WorkerPool([pipeline], [camera], fault_handler=FaultCallback(faults.append))
    pool.start()
    for index in range(2000):
        pool.submit(0, index)
    pool.stop()
    pipeline.close()
    (counts,) = pool.statistics()
    assert not faults
    assert published == sorted(published)
    assert counts.received == 2000 == counts.published + sum(counts.dropped.values())


# These messages are in no golden file, because they contain the name of the GPU, its memory and
# text of TensorRT.


@pytest.mark.parametrize(
    'content',
    [b'no plan at all' * 10, b'vtrt' + bytes(20) + bytes([1, 4, 0, 76]) + bytes(100)],
    ids=['no plan', 'a damaged plan'],
)
def test_invalid_plan_is_refused(tmp_path, content):
    path = tmp_path / 'x.engine'
    path.write_bytes(content)
    with pytest.raises(EngineError) as caught:
        open_by_parameters(ParameterValues(engine_path=str(path)))
    assert path.name in caught.value.subject
    assert caught.value.fix


def test_unknown_device_is_refused(engine):
    with pytest.raises(CudaError) as caught:
        open_by_parameters(ParameterValues(engine_path=str(engine), device_ids=(63,)))
    assert 'device_ids' in caught.value.subject


def test_engine_without_a_manifest_needs_parameters(engine, tmp_path):
    lonely = tmp_path / 'lonely.engine'
    lonely.write_bytes(engine.read_bytes())
    with pytest.raises(MissingModelInfoError) as caught:
        open_by_parameters(ParameterValues(engine_path=str(lonely)))
    assert list(caught.value.missing) == ['class_names']
    manifest = parse_manifest(engine.with_name('digits.engine.json').read_bytes(), 'x')
    # The shapes and the class names determine the model: the grids of 640 x 480 have 6000 cells.
    pipeline = open_by_parameters(
        ParameterValues(engine_path=str(lonely), model_class_names=manifest.class_names)
    )
    # The manifest is older than the rounding of Ultralytics' letterbox, which is recognised now.
    found = pipeline.spec.preprocessing
    assert found.size_rounding == 'half_even'
    assert replace(found, size_rounding=manifest.preprocessing.size_rounding) == (
        manifest.preprocessing
    )
    assert len(detections_of(pipeline, bgr_frame(cv2.imread(str(SCENES[0]))), Thresholds()))
    pipeline.close()


def test_second_start_uses_the_compiled_kernels(engine, tmp_path):
    result = tmp_path / 'start.json'
    script = ROOT / 'scripts' / 'benchmarks' / 'start_time.py'
    command = [sys.executable, script, engine, '--rounds', '1', '--json', result]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    print(done.stdout)
    # If TensorRT refuses a cache, the script logs a warning and exits with code 1.
    assert done.returncode == 0, done.stderr
    starts = {name: found[0] for name, found in json.loads(result.read_text())['starts'].items()}
    assert starts['none']['kernels_cache_bytes'] > 1000
    if 'tensorrt_rtx' not in starts['none']:
        return
    assert starts['none']['runtime_cache_bytes'] > 1000
    # The second start added no kernels to the cache of the first start.
    first = starts['none']['runtime_cache_bytes']
    assert starts['all']['runtime_cache_bytes'] == pytest.approx(first, rel=0.01)
