# SPDX-License-Identifier: Apache-2.0
"""Tests that frames, seconds or Ctrl-C end a measurement, and tests of progress reports."""

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from test_benchmark_parts import RecordingPipeline

from support.models.fixed_model import OUTPUTS, small_onnx
from support.models.support_models import write_model
from support.optional_packages import needs
from support.programs import UNMEASURED, Program, executable
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.benchmarking import control
from trt_perception.offline.benchmarking import frames as benchmark_frames
from trt_perception.offline.benchmarking.control import (
    BenchmarkProgress,
    MeasurementControl,
    stop_on_interrupt,
)
from trt_perception.offline.benchmarking.frames import demo_scenes_folder, load_frames
from trt_perception.offline.benchmarking.measure import detect_all, measure_pipeline
from trt_perception.offline.tools import benchmark_engine

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def clock(monkeypatch):
    """Return a list with the current time in seconds, which only the test changes."""
    now = [0.0]
    monkeypatch.setattr(control.time, 'perf_counter', lambda: now[0])
    return now


def runs(control, clock, seconds_each, least=1):
    done = 0
    while control.must_continue(done, least):
        clock[0] += seconds_each
        done += 1
    return done


def test_measurement_ends_after_the_requested_frames(clock):
    control = MeasurementControl(7)
    control.begin('x')
    assert runs(control, clock, 1000) == 7
    control.begin('x', 3)
    assert runs(control, clock, 0) == 3


def test_time_limit_ends_a_measurement_early(clock):
    control = MeasurementControl(1000, seconds=10)
    control.begin('x')
    assert runs(control, clock, 0.5) == 20
    control.begin('x')
    assert runs(control, clock, 60) == 1  # a measurement runs at least one frame
    control.begin('x')
    assert runs(control, clock, 60, least=3) == 3


def test_warm_up_ends_after_its_frames_or_a_fifth_of_the_time_limit(clock):
    control = MeasurementControl(1000, warmup=100, seconds=10)
    control.begin_warm_up()
    assert runs(control, clock, 0.5, least=0) == 4
    control.begin_warm_up(200)
    assert runs(control, clock, 0, least=0) == 200
    MeasurementControl(1000).begin_warm_up()
    assert runs(MeasurementControl(1000), clock, 0, least=0) == 0


def test_stopped_measurement_ends_after_its_first_frame(clock):
    control = MeasurementControl(1000)
    control.begin('x')
    control.stopped = True
    assert runs(control, clock, 1) == 1
    assert control.runs_that_fit(0.001, 500) == 1


def test_run_count_for_the_time_limit_is_at_least_1_and_at_most_the_requested_count(clock):
    assert MeasurementControl(1000, seconds=10).runs_that_fit(0.5, 1000) == 20
    assert MeasurementControl(1000, seconds=10).runs_that_fit(0.001, 1000) == 1000
    assert MeasurementControl(1000, seconds=10).runs_that_fit(60, 1000) == 1
    assert MeasurementControl(1000).runs_that_fit(60, 1000) == 1000


def test_progress_lines_show_finished_frames(clock, capsys, golden_messages):
    with BenchmarkProgress(2) as progress:
        control = MeasurementControl(100, progress=progress)
        control.announce('model: steps')
        control.begin('one at a time')
        runs(control, clock, 1)
        control.announce('model: depth 1')
    golden_messages.add(capsys.readouterr().err)


@pytest.mark.parametrize('depth', [1, 3])
def test_pipeline_measurement_ends_at_the_time_limit(clock, depth):
    frames = [load_frames('', (10 + number, 8), 'mono8', 1)[0] for number in range(3)]
    pipeline = RecordingPipeline(depth)
    control = MeasurementControl(1000, warmup=100, seconds=10)
    expected = detect_all(pipeline, frames, Thresholds(), control)

    def tick():
        clock[0] += 1

    pipeline.clock = tick
    report = measure_pipeline(pipeline, frames, Thresholds(), expected, control)
    assert report.latency_ms.count == 10
    assert report.busy_latency_ms.count == 10 + depth - 1  # and the frames in flight
    assert not pipeline.flying


@pytest.mark.parametrize('depth', [1, 3])
def test_stopped_pipeline_measurement_collects_all_frames(clock, depth):
    frames = [load_frames('', (10 + number, 8), 'mono8', 1)[0] for number in range(3)]
    pipeline = RecordingPipeline(depth)
    control = MeasurementControl(1000, warmup=100)
    expected = detect_all(pipeline, frames, Thresholds(), control)
    left = [150]

    def tick():
        clock[0] += 1
        left[0] -= 1
        control.stopped = left[0] <= 0

    pipeline.clock = tick
    report = measure_pipeline(pipeline, frames, Thresholds(), expected, control)
    assert report.latency_ms.count == 50
    assert report.busy_latency_ms.count == 1
    assert not pipeline.flying
    assert detect_all(pipeline, frames, Thresholds(), control) is None


def test_stop_before_the_first_measurement_saves_nothing(
    tmp_path, monkeypatch, capsys, golden_messages
):
    @contextlib.contextmanager
    def stopped(control):
        control.stopped = True
        yield

    monkeypatch.setattr(benchmark_engine, 'stop_on_interrupt', stopped)
    path, saved = write_model(tmp_path, outputs=OUTPUTS), tmp_path / 'result.json'
    assert benchmark_engine.main([str(path), '--size', '64x48', '--json', str(saved)]) == 130
    printed = capsys.readouterr()
    assert printed.out == 'frames: 8, 64x48 bgr8\n'
    golden_messages.add(printed.err)
    assert not saved.exists()


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path, 'small.onnx', small_onnx(), outputs=OUTPUTS)


def benchmark(*arguments):
    return [executable('benchmark_engine'), *map(str, arguments), '--size', '64x48']


# benchmark_engine with progress reports every 0.1 s instead of 10 s, to save time. A measurement
# with the given name has no time limit.
TALKATIVE = """
import sys
from trt_perception.offline.benchmarking import control
from trt_perception.offline.tools.benchmark_engine import main

endless = sys.argv.pop(1)
announce = control.MeasurementControl.announce

def announce_without_limit(self, name):
    if name == endless:
        self.seconds = None
    announce(self, name)

control.MeasurementControl.announce = announce_without_limit
control._LINE_INTERVAL_S = 0.1
sys.exit(main())
"""


@pytest.mark.parametrize(
    ('number', 'step', 'pipelines'),
    [(1, 'small.onnx: steps', 0), (2, 'small.onnx: depth 1', 1)],
)
@needs('matplotlib')
def test_ctrl_c_keeps_finished_measurements(model, tmp_path, number, step, pipelines):
    saved, plot = tmp_path / 'result.json', tmp_path / 'plot.png'
    outputs = '--json', saved, '--plot', plot
    # A measurement before the interrupted one ends at its time limit.
    limits = '--frames', 10**9, '--warmup', 0, '--seconds', 2
    arguments = benchmark(model, model, *outputs, *limits)
    program = Program([sys.executable, '-c', TALKATIVE, step, *arguments[1:]], UNMEASURED)
    program.wait_for_output(f'[{number}/4] {step}')
    # Wait until a measurement has begun, because opening the model is not a measurement.
    program.wait_for_output('step by step' if not pipelines else 'depth 1')
    program.send(signal.SIGINT)
    assert program.wait() == 130
    assert ' Ctrl-C ' in program.output
    assert 'benchmark_engine: interrupted' in program.output
    assert 'candidates' in program.output
    report = json.loads(saved.read_text())
    assert report['partial'] is True
    (found,) = report['models']
    assert len(found['pipelines']) == len(found['ratios']) <= pipelines
    for stage in found['stages'].values():
        assert stage['alone_ms']['count'] >= 1
    assert report['agreement'] == []
    assert plot.read_bytes().startswith(b'\x89PNG')


def test_second_ctrl_c_exits_at_once():
    control = MeasurementControl(10)
    with stop_on_interrupt(control):
        signal.raise_signal(signal.SIGINT)
        assert control.stopped
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_stays_ignored_in_background_shells():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        control = MeasurementControl(10)
        with stop_on_interrupt(control):
            signal.raise_signal(signal.SIGINT)
        assert not control.stopped
    finally:
        signal.signal(signal.SIGINT, before)


def test_seconds_limit_ends_a_measurement(model, tmp_path):
    saved = tmp_path / 'result.json'
    ended = subprocess.run(
        benchmark(model, '--json', saved, '--frames', 10**9, '--seconds', 0.2),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ended.returncode == 0
    report = json.loads(saved.read_text())
    assert report['partial'] is False
    assert report['options']['seconds'] == 0.2
    (pipeline,) = report['models'][0]['pipelines']
    assert 1 <= pipeline['latency_ms']['count'] < 10**9


@pytest.mark.parametrize(
    ('given', 'seconds', 'frames'),
    [([], 10, 1000), (['--frames', 5], None, 5), (['--frames', 5, '--seconds', 3], 3, 5)],
)
def test_frames_option_removes_the_default_time_limit(model, given, seconds, frames):
    options = benchmark_engine._parser().parse_args([str(model), *map(str, given)])
    wanted = benchmark_engine._prepare(options)[3]
    assert (wanted.seconds, wanted.count) == (seconds, frames)


# Images with objects to detect.


def test_demo_scenes_are_the_default_images():
    folder = demo_scenes_folder()
    assert folder.endswith('demo/scenes')
    frames = load_frames('', (640, 480), 'bgr8', 8)
    scenes = [cv2.imread(str(path)) for path in sorted(ROOT.glob('demo/scenes/*.jpg'))[:8]]
    same = [scene.shape == (480, 640, 3) for scene in scenes]
    assert any(same)
    for frame, scene, unscaled in zip(frames, scenes, same, strict=True):
        assert not unscaled or np.array_equal(frame.data.reshape(480, 640, 3), scene)
    assert {(f.width, f.height) for f in load_frames('', None, 'bgr8', 2)} == {(1920, 1080)}


def test_synthetic_images_replace_missing_demo_scenes(monkeypatch):
    monkeypatch.setattr(benchmark_frames, 'demo_scenes_folder', lambda: '')
    frames = load_frames('', (64, 48), 'bgr8', 3)
    assert len({frame.data.tobytes() for frame in frames}) == 3


def test_demo_scenes_have_boxes_that_nms_removes(tmp_path):
    saved = tmp_path / 'result.json'
    command = [executable('benchmark_engine'), ROOT / 'models' / 'digits.onnx']
    command += ['--json', saved, '--frames', '1', '--warmup', '0']
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stderr
    (report,) = json.loads(saved.read_text())['models']
    # In every image, NMS must remove some boxes and keep others.
    assert min(report['candidates']) > 8
    assert 1 < report['pipelines'][0]['detections'] < min(report['candidates'])
    assert 'NMS were' not in ended.stdout


def test_model_without_detections_is_reported(model, capsys):
    given = [str(model), '--frames', '1', '--size', '64x48']
    assert benchmark_engine.main([*given, '--confidence', '1']) == 0
    assert 'NMS had no work' in capsys.readouterr().out
