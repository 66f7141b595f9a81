# SPDX-License-Identifier: Apache-2.0
"""Test scripts/bench peers: its steps with OpenCV, its figures, and sides in processes."""

import ctypes
import itertools
import json
import subprocess
import sys
import types
import typing

import numpy as np
import pytest

from support.docs_pages import ROOT, load_script
from support.gpu.fake_tensorrt import PLAN
from support.gpu.gpu_standins import SMALL
from support.models.fixed_model import OUTPUTS, small_onnx
from support.models.support_models import write_model
from trt_perception.images.frame import frame_from_bgr
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.decoders.anchors import Dense
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tensors import TensorSpec
from trt_perception.model.thresholds import Thresholds
from trt_perception.stages.decode import decode
from trt_perception.stages.host_preprocess import HostPreprocessor

pytest_plugins = ['support.gpu.gpu_standin_fixtures']

peers = load_script('benchmarks/peers.py')
opencv_steps = load_script('benchmarks/peers/opencv_steps.py')
report = load_script('benchmarks/peers/report.py')

RANDOM = np.random.default_rng(3)


@pytest.mark.parametrize('size', [640, 512])
@pytest.mark.parametrize('size_wh', [(1920, 1080), (480, 640), (641, 333)])
def test_letterbox_equals_the_tensor_of_the_package(size_wh, size):
    bgr = RANDOM.integers(0, 256, (*size_wh[::-1], 3), np.uint8)
    expected, placed = HostPreprocessor(Preprocessing((size, size)))(frame_from_bgr(bgr))
    tensor, scale, offset = opencv_steps.letterbox(bgr, size)
    np.testing.assert_allclose(tensor, expected, atol=1e-6)
    assert offset == placed.image_xyxy[:2]
    assert scale == pytest.approx(size / max(size_wh))


def test_boxes_equal_the_boxes_of_the_package():
    output = np.zeros((1, 84, 8400), np.float32)
    # In the image: the package drops boxes that are outside, in the padding.
    output[0, :2] = RANDOM.uniform(200, 440, (2, 8400))
    output[0, 2:4] = RANDOM.uniform(60, 300, (2, 8400))
    output[0, 4:] = RANDOM.uniform(0, 0.2, (80, 8400))
    output[0, RANDOM.integers(4, 84, 60), RANDOM.integers(0, 8400, 60)] += 0.5
    frame = np.zeros((1080, 1920, 3), np.uint8)
    letterbox = Letterbox.fit((1920, 1080), (640, 640), 'letterbox')
    image, dense = (
        TensorSpec('i', (1, 3, 640, 640), 'float32'),
        TensorSpec('o', output.shape, 'float32'),
    )
    names = tuple(map(str, range(80)))
    spec = ModelSpec(image, (dense,), Preprocessing((640, 640)), Dense(), names, has_manifest=True)
    (expected,) = decode(
        [output], spec, [letterbox], [Thresholds(0.25, 0.45)], DecodingLimits(300)
    )
    xyxy, scores, class_ids = opencv_steps.boxes_of(output, 1 / 3, (0, 140))
    assert len(expected) > 20
    order = np.argsort(-scores, kind='stable')
    np.testing.assert_allclose(scores[order], expected.scores)
    np.testing.assert_array_equal(class_ids[order], expected.class_ids)
    clipped = opencv_steps.clipped(xyxy[order], frame)
    np.testing.assert_allclose(clipped, expected.xyxy, atol=1e-3)


def boxes(*rows):
    """Return the arrays of a side from rows of frame, class, score and box."""
    values = np.array(rows, float).reshape(-1, 7)
    return {
        'frame': values[:, 0].astype(int),
        'class_ids': values[:, 1].astype(int),
        'scores': values[:, 2],
        'xyxy': values[:, 3:],
    }


ONE = (0, 1, 0.5, 0, 0, 100, 100)


@pytest.mark.parametrize(
    ('other', 'pairs'),
    [
        ((0, 1, 0.4, 0, 0, 100, 91), 1),
        ((0, 1, 0.4, 0, 0, 100, 89), 0),
        ((0, 2, 0.4, 0, 0, 100, 100), 0),
        ((1, 1, 0.4, 0, 0, 100, 100), 0),
    ],
    ids=['IoU 0.91', 'IoU 0.89', 'other class', 'other frame'],
)
def test_boxes_agree_with_equal_class_and_frame_and_enough_overlap(other, pairs):
    found = report.agreement(boxes(ONE), boxes(other))
    assert (found['pairs'], found['share']) == (pairs, pairs)
    assert found['max_score_difference'] == (pytest.approx(0.1) if pairs else None)


def test_a_box_is_in_one_pair_only():
    found = report.agreement(boxes(ONE), boxes(ONE, ONE, ONE))
    assert (found['pairs'], found['boxes'], found['share']) == (1, 3, 0.5)


def test_agreement_without_boxes_is_unknown():
    found = report.agreement(boxes(), boxes())
    assert (found['pairs'], found['share']) == (0, None)
    assert report.agreement(boxes(ONE), boxes())['share'] == 0


def test_sides_run_in_processes_and_a_failing_side_is_reported(tmp_path, capsys):
    """The weights are no weights, so that Ultralytics fails, installed or not."""
    model = write_model(tmp_path, 'small.onnx', small_onnx(), outputs=OUTPUTS)
    weights = tmp_path / 'none.pt'
    weights.write_bytes(b'no weights')
    path = tmp_path / 'peers.json'
    wanted = ['--sides', 'ours_1', 'ours_python', 'ultralytics']
    times = ['--rounds', '2', '--seconds', '0.05', '--warm-up', '0']
    command = [str(model), '--weights', str(weights), '--device', 'cpu', '--images', '5']
    assert peers.main([*command, *times, *wanted, '--json', str(path)]) == 1
    record = json.loads(path.read_text())
    assert list(record['failures']) == ['ultralytics']
    assert list(record['sides']) == list(record['medians']) == ['ours_1', 'ours_python']
    for side in record['sides'].values():
        assert len(side['rounds']) == 2
        assert all(figures['frames'] > 0 for figures in side['rounds'])
        assert side['agreement']['share'] == 1
        assert side['agreement']['max_score_difference'] == 0
    rows = report.table_rows(record)
    assert [len(row) for row in rows] == [len(report.HEADS)] * 2
    assert 'ultralytics failed: ' in capsys.readouterr().out
    picture = tmp_path / 'peers.svg'
    report.plot(record, picture)
    assert report.HEADS[1] in picture.read_text()


def test_folder_without_pictures_is_refused(tmp_path):
    with pytest.raises(SystemExit) as refused:
        peers.main(['model.onnx', '--pictures', str(tmp_path)])
    assert refused.value.code == 2


def test_medians_are_those_of_the_rounds():
    rounds = [dict.fromkeys(report.FIGURES, value) for value in (9.0, 1.0, 2.0)]
    record = {'sides': {'a': {'rounds': rounds}, 'failed': {'rounds': []}}}
    assert report.summary(record) == {'a': dict.fromkeys(report.FIGURES, 2.0)}


@pytest.mark.parametrize(
    ('name', 'script', 'digits'), [('peers', 'report', 2), ('peers_dds', 'dds_report', 1)]
)
def test_command_prints_the_figures_of_a_record_and_draws_them(tmp_path, name, script, digits):
    script = ROOT / 'scripts' / 'benchmarks' / 'peers' / f'{script}.py'
    record = ROOT / 'docs' / 'data' / 'benchmarks' / 'gpu' / f'{name}.json'
    picture = tmp_path / 'peers.png'
    printed = subprocess.check_output([sys.executable, script, record], text=True)
    subprocess.check_call([sys.executable, script, record, picture])
    content = json.loads(record.read_text())
    cases = content.get('cases', [content])
    medians = [found for case in cases for found in case['medians'].values()]
    lines = printed.splitlines()[1:][: len(medians)]
    for line, median in zip(lines, medians, strict=True):
        assert f'{median["cpu_ms"]:.{digits}f}' in line
    assert picture.read_bytes().startswith(b'\x89PNG')


# The sides with an engine, without a GPU.


@pytest.mark.parametrize('images', [1, 3])
def test_sides_with_an_engine_run_and_free_everything(
    tmp_path, install_standins, images, monkeypatch
):
    """Use stand-ins for CUDA and TensorRT, which compute nothing."""
    recorder, module = install_standins(tensors=SMALL)
    model = write_model(tmp_path, 'a.engine', PLAN, outputs=OUTPUTS)
    frames = list(peers.scenes(images))
    options = types.SimpleNamespace(model=str(model), depth=2, page_locked=True)
    for name in ('limit', 'ours_pipeline', 'ours_python'):
        side_of = load_script(f'benchmarks/peers/{name}.py')
        if hasattr(side_of, 'time'):
            clock = types.SimpleNamespace(perf_counter=itertools.count(0, 0.001).__next__)
            monkeypatch.setattr(side_of, 'time', clock)
        with side_of.opened(options, frames) as side:
            assert [len(values) for values in side.detect(frames[0])] == [0, 0, 0]
            if hasattr(side, 'run'):
                assert len(side.run(frames, 0.05)) > 2
        assert recorder.kinds() == []
        assert list(module.living) == []


def test_limit_captures_upload_and_kernels_once_for_each_slot(tmp_path, install_standins):
    recorder, _ = install_standins(tensors=SMALL)
    model = write_model(tmp_path, 'a.engine', PLAN, outputs=OUTPUTS)
    frames = list(peers.scenes(1))
    limit = load_script('benchmarks/peers/limit.py')
    with limit.opened(types.SimpleNamespace(model=str(model), depth=3), frames) as side:
        side.run(frames, 0.01)
        side.run(frames, 0.01)
    begins = [i for i, name in enumerate(recorder.calls) if name == 'cudaStreamBeginCapture']
    captured = [
        recorder.calls[begin : recorder.calls.index('cudaStreamEndCapture', begin)]
        for begin in begins
    ]
    assert len(captured) == 3
    for calls in captured:
        assert 'cuLaunchKernel' in calls
        assert 'cudaMemcpy2DAsync' in calls  # the rows of the frame that the network sees


class Runtime(types.SimpleNamespace):
    """CUDA's runtime, in host memory."""

    cudaMemcpyKind = types.SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2)  # noqa: N815
    cudaError_t = types.SimpleNamespace(cudaSuccess=0)  # noqa: N815

    def __init__(self):
        super().__init__()
        self.memory = []

    def cudaMalloc(self, size):  # noqa: N802
        self.memory.append(ctypes.create_string_buffer(size))
        return 0, ctypes.addressof(self.memory[-1])

    def cudaStreamCreate(self):  # noqa: N802
        return 0, 7

    def cudaStreamSynchronize(self, stream):  # noqa: N802
        return (0 if stream == 7 else 1,)

    def cudaMemcpy(self, destination, source, size, kind):  # noqa: N802
        ctypes.memmove(destination, source, size)
        return (0 if kind in (1, 2) else 1,)


class Engine:
    """An engine of TensorRT: its output is a copy of a given array; it keeps its input."""

    num_io_tensors = 2
    shapes: typing.ClassVar = {'images': (1, 3, 640, 640), 'output0': (1, 84, 8400)}

    def __init__(self, output):
        self.values, self.places = output, {}
        self.get_tensor_name = list(self.shapes).__getitem__
        self.get_tensor_shape = self.shapes.__getitem__
        self.get_tensor_mode = {'images': 'input', 'output0': 'output'}.__getitem__
        self.get_tensor_dtype = {'images': 'f4', 'output0': self.values.dtype}.__getitem__
        self.set_tensor_address = self.places.__setitem__

    def create_execution_context(self):
        return self

    def execute_async_v3(self, _stream):
        self.given = np.empty(self.shapes['images'], np.float32)
        ctypes.memmove(self.given.ctypes.data, self.places['images'], self.given.nbytes)
        ctypes.memmove(self.places['output0'], self.values.ctypes.data, self.values.nbytes)
        return True


@pytest.mark.parametrize('dtype', ['float32', 'float16'])
def test_side_with_tensorrt_copies_tensors_to_and_from_the_engine(tmp_path, monkeypatch, dtype):
    output = np.zeros((1, 84, 8400), dtype)
    output[0, :4, 10] = 320, 320, 120, 60
    output[0, 4 + 7, 10] = 0.75
    engine = Engine(output)
    bindings = types.ModuleType('cuda.bindings')
    bindings.runtime = Runtime()
    trt = types.SimpleNamespace(
        __name__='tensorrt',
        __version__='0',
        Logger=type('Logger', (), {'WARNING': 0, '__init__': lambda self, level: None}),
        Runtime=lambda _: types.SimpleNamespace(deserialize_cuda_engine={b'plan': engine}.get),
        TensorIOMode=types.SimpleNamespace(INPUT='input'),
        nptype=np.dtype,
    )
    monkeypatch.setitem(sys.modules, 'cuda', types.ModuleType('cuda'))
    monkeypatch.setitem(sys.modules, 'cuda.bindings', bindings)
    monkeypatch.setitem(sys.modules, 'tensorrt', trt)
    module = load_script('benchmarks/peers/tensorrt_opencv.py')
    plan = tmp_path / 'yolo.engine'
    plan.write_bytes(b'plan')
    side = module.TensorRtOpenCv(types.SimpleNamespace(model=str(plan)))
    frame = RANDOM.integers(0, 256, (1080, 1920, 3), np.uint8)
    xyxy, scores, class_ids = side.detect(frame)
    assert xyxy.tolist() == [[780, 450, 1140, 630]]
    assert (scores.tolist(), class_ids.tolist()) == ([0.75], [7])
    expected, _ = HostPreprocessor(Preprocessing((640, 640)))(frame_from_bgr(frame))
    np.testing.assert_allclose(engine.given, expected, atol=1e-6)
