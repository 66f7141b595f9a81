# SPDX-License-Identifier: Apache-2.0
"""detect_images reads images and videos, and writes COCO files."""

import json
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from support.detect_runs import (
    COLORS,
    FILES,
    as_expected,
    detections,
    drawn,
    picture,
    run_detect_images,
)
from support.docs_pages import ROOT
from support.gpu.gpu_support import build_plan, needs_tensorrt
from support.gpu.host_kernels import needs_compiler
from support.models.support_models import file_identity
from support.models.tiny_model import CLASS_NAMES, write_tiny_model
from support.optional_packages import needs
from support.programs import DEADLINE_S, UNMEASURED, Program, executable, run_tied
from support.range_recorder import record_ranges, recorded_ranges
from trt_perception.offline.evaluation.coco.annotations import read_annotations
from trt_perception.offline.tools import evaluate_engine
from trt_perception.offline.tools.parts.detection_sources import DetectionPlan, VideoFile

pytest_plugins = ['support.detect_fixtures']

#: Runs detect_images, and sends SIGINT to itself in the given call of a function.
INTERRUPTED = """
import importlib, itertools, os, signal, sys
from trt_perception import commands

module, name, call = sys.argv.pop(1), sys.argv.pop(1), int(sys.argv.pop(1))
module = importlib.import_module(f'trt_perception.offline.tools.{module}')
function, calls = getattr(module, name), itertools.count(1)

def interrupted(*arguments, **options):
    if next(calls) == call:
        os.kill(os.getpid(), signal.SIGINT)
    return function(*arguments, **options)

setattr(module, name, interrupted)
sys.exit(commands.detect_images())
"""


def test_folder_of_images_is_processed(tiny, pictures, tmp_path, capfd):
    out = tmp_path / 'out'
    assert run_detect_images('--engine', tiny, '--source', pictures, '--output', out) == 0
    output, error = capfd.readouterr()  # capfd also captures OpenCV's messages
    assert error == ''
    names = {path.name for path in out.iterdir()}
    assert names == {'a.png', 'b.jpg', 'black.bmp.png'} | FILES
    found = detections(out)
    assert set(found) == set(COLORS)
    for name, rgb in COLORS.items():
        as_expected(found[name], rgb)
    for name in ('a.png', 'b.jpg'):
        assert drawn(out / name, picture(COLORS[name]))
    assert (cv2.imread(str(out / 'black.bmp.png')) == 0).all()
    summary = json.loads((out / 'summary.json').read_text())
    assert summary['images'] == 3
    assert summary['images_with_detections'] == 2
    assert summary['classes'] == {'red': 2, 'green': 1, 'blue': 1}
    assert summary['model'] == 'tiny.onnx'
    assert summary['problems'] == []
    assert summary['decoder']['family'] == 'dense'
    assert summary['preprocessing']['resize'] == 'letterbox'
    assert 0 < summary['latency_ms']['p50'] <= summary['latency_ms']['p99']
    assert ' 2 of 3 images' in output
    assert '\nsaved 3 annotated images in ' in output
    # The source images are unchanged.
    assert (cv2.imread(str(pictures / 'a.png')) == picture(COLORS['a.png'])).all()


@needs('nvtx')
@needs_compiler
def test_ranges_of_a_program_are_recorded_by_a_profiler(tiny, pictures, tmp_path, monkeypatch):
    file = tmp_path / 'ranges.txt'
    record_ranges(monkeypatch, file)
    command = [executable('detect_images'), tiny, '--source', pictures, '--nvtx']
    process = run_tied([*command, '--output', tmp_path / 'out'], timeout_s=DEADLINE_S)
    assert process.returncode == 0, process.stderr
    stages = ['preprocess', 'infer', 'decode']
    # The first batch is the warm-up.
    expected = ['enqueue 1', *stages, 'collect 1', 'batch of 1'] * (1 + len(COLORS))
    assert recorded_ranges(file) == expected


def test_skipped_folders_are_named(tiny, pictures, tmp_path, capsys):
    for name in ('night', 'empty', '.thumbnails'):
        (pictures / name).mkdir()
    for name in ('night', '.thumbnails'):
        cv2.imwrite(str(pictures / name / 'd.PNG'), picture((0, 0, 255)))
    arguments = ('--engine', tiny, '--no-pictures', '--output')
    assert run_detect_images(*arguments, tmp_path / '1', '--source', pictures) == 0
    assert set(detections(tmp_path / '1')) == set(COLORS)
    error = capsys.readouterr().err
    expected = f"{pictures}: its subfolders were not read: night; '{pictures}/**' includes them\n"
    assert error == f'detect_images: {expected}'
    assert run_detect_images(*arguments, tmp_path / '2', '--source', f'{pictures}/**') == 0
    assert set(detections(tmp_path / '2')) == {*COLORS, 'night/d.PNG'}
    assert capsys.readouterr().err == ''


def test_tilde_is_the_home_folder(tiny, pictures, tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    assert run_detect_images('--engine', tiny, '--source', pictures, '--output', '~/found') == 0
    assert (tmp_path / 'found' / 'detections.json').is_file()


def test_batch_model_finds_the_same_objects(tiny, pictures, clip, tmp_path):
    several = write_tiny_model(tmp_path / 'several.onnx', batch=4)
    found = []
    for path, out in ((tiny, tmp_path / 'one'), (several, tmp_path / 'four')):
        sources = ('--source', pictures, clip)
        assert (
            run_detect_images('--engine', path, *sources, '--output', out, '--confidence', '0.01')
            == 0
        )
        found.append(detections(out))
    assert found[0] == found[1]  # less than one batch of images, three batches of video frames
    assert sum(map(len, found[1].values())) == 20


@needs('pycocotools')
def test_detections_can_be_read_as_annotations(tiny, pictures, tmp_path):
    out = tmp_path / 'out'
    assert (
        run_detect_images('--engine', tiny, '--source', pictures, '--output', out, '--no-pictures')
        == 0
    )
    assert {path.name for path in out.iterdir()} == FILES
    annotations = read_annotations(out / 'detections.json')
    assert list(annotations.categories.values()) == list(CLASS_NAMES)
    saved = tmp_path / 'report.json'
    from pycocotools.coco import COCO

    coco = COCO(str(out / 'detections.json'))
    results = coco.loadRes(str(out / 'results.json'))
    assert results.anns.keys() == coco.anns.keys() != set()
    for id_, row in results.anns.items():
        same = [coco.anns[id_][key] for key in ('image_id', 'category_id', 'bbox', 'score')]
        assert [row[key] for key in ('image_id', 'category_id', 'bbox', 'score')] == same
    arguments = ['--engine', tiny, '--images', pictures, '--annotations', out / 'detections.json']
    assert evaluate_engine.main([str(a) for a in [*arguments, '--json', saved]]) == 0
    (report,) = json.loads(saved.read_text())['models'].values()
    assert report['metrics']['mAP'] == pytest.approx(1)


def test_class_and_threshold_options_apply(tiny, pictures, tmp_path):
    arguments = ['--engine', tiny, '--source', pictures, '--no-pictures', '--output']
    assert run_detect_images(*arguments, tmp_path / '1', '--classes', 'blue', 'red') == 0
    assert [row[0] for row in detections(tmp_path / '1')['b.jpg']] == ['blue']
    assert run_detect_images(*arguments, tmp_path / '2', '--confidence', '0.95') == 0
    as_expected(detections(tmp_path / '2')['a.png'], COLORS['a.png'], threshold=0.95)
    # The two red boxes of a.png overlap with an IoU of 1/3.
    assert run_detect_images(*arguments, tmp_path / '3', '--iou', '0.3') == 0
    assert len(detections(tmp_path / '3')['a.png']) == 1
    assert run_detect_images(*arguments, tmp_path / '4', '--max-detections', '1') == 0
    assert {name: len(rows) for name, rows in detections(tmp_path / '4').items()} == {
        'a.png': 1,
        'b.jpg': 1,
        'black.bmp': 0,
    }


def test_model_without_a_manifest_runs_with_parameters(pictures, tmp_path, capsys):
    bare = write_tiny_model(tmp_path / 'bare.onnx', manifest=False)
    arguments = ['--engine', bare, '--source', pictures, '--output']
    parameters = [
        'resize=letterbox',
        'color_order=rgb',
        'scale=0.00392156862745098',
        'decoder=dense',
    ]
    parameters += ['class_names=[red, green, blue]']
    for value in parameters:
        arguments[2:2] = ['--param', f'model.{value}']
    assert run_detect_images(*arguments, tmp_path / 'out') == 0
    as_expected(detections(tmp_path / 'out')['a.png'], COLORS['a.png'])


def test_video_is_written_with_boxes(tiny, clip, tmp_path, capsys):
    out = tmp_path / 'out'
    assert run_detect_images('--engine', tiny, '--source', clip, '--output', out) == 0
    assert ' 12 of 12 images' in capsys.readouterr().out
    found = detections(out)
    assert list(found) == [f'colors.avi#{number:06d}' for number in range(12)]
    for number, rows in enumerate(found.values()):
        as_expected(rows, np.eye(3, dtype=int)[number // 4] * 255)
    assert {path.name for path in out.iterdir()} == {
        'colors.avi.mp4',
        'detections.json',
        'results.json',
        'summary.json',
    }
    capture = cv2.VideoCapture(str(out / 'colors.avi.mp4'))
    assert capture.get(cv2.CAP_PROP_FPS) == pytest.approx(12.5)
    frames = []
    while True:
        more, bgr = capture.read()
        if not more:
            break
        frames.append(bgr)
    assert len(frames) == 12
    for number, bgr in enumerate(frames):
        color = np.eye(3, dtype=int)[number // 4][::-1] * 255
        changed = np.abs(bgr.astype(int) - color).max(axis=2) > 60
        assert 0.001 < changed.mean() < 0.3


def test_several_sources_keep_separate_folders(tiny, pictures, tmp_path):
    other = tmp_path / 'more' / 'deep'
    other.mkdir(parents=True)
    cv2.imwrite(str(other / 'a.png'), picture((0, 0, 255)))
    out = tmp_path / 'out'
    sources = [pictures, f'{tmp_path}/more/**/*.png', pictures / 'a.png']  # a.png twice
    assert run_detect_images('--engine', tiny, '--source', *sources, '--output', out) == 0
    assert set(detections(out)) == {
        'images/a.png',
        'images/b.jpg',
        'images/black.bmp',
        'more/deep/a.png',
    }
    assert json.loads((out / 'summary.json').read_text())['images'] == 4
    assert (out / 'more' / 'deep' / 'a.png').is_file()


def run_interrupted(function, call, *arguments):
    """Run detect_images with Ctrl-C in a call of a function. Return the output."""
    words = *function.rsplit('.', 1), call, *arguments
    program = Program([sys.executable, '-c', INTERRUPTED, *words], UNMEASURED)
    try:
        assert program.wait() == 130
    finally:
        program.close()
    assert 'Traceback' not in program.output
    return program.output


def test_ctrl_c_keeps_the_results_of_finished_images(tiny, pictures, tmp_path):
    out = tmp_path / 'out'
    # The third image is found, but not yet drawn.
    output = run_interrupted(
        'parts.detection_output.coco_rows', 3, tiny, '--source', pictures, '--output', out
    )
    assert 'detect_images: interrupted; the results are partial: 2 of 3 images\n' in output
    assert {path.name for path in out.iterdir()} == {'a.png', 'b.jpg'} | FILES
    found = detections(out)
    assert list(found) == ['a.png', 'b.jpg']
    for name, rows in found.items():
        as_expected(rows, COLORS[name])
    rows = json.loads((out / 'results.json').read_text())
    assert len(rows) == sum(map(len, found.values()))
    summary = json.loads((out / 'summary.json').read_text())
    assert (summary['images'], summary['partial']) == (2, True)


def test_ctrl_c_keeps_the_results_of_video_frames(tiny, pictures, clip, tmp_path):
    out = tmp_path / 'out'
    output = run_interrupted(
        'parts.detection_output.coco_rows', 8, tiny, '--source', pictures, clip, '--output', out
    )
    assert ': 7 of 15 images\n' in output
    assert len(detections(out)) == 7
    # The interrupted video has no annotated copy.
    assert {path.name for path in out.iterdir()} == {'images'} | FILES


def test_ctrl_c_keeps_the_results_of_the_whole_image(pictures, tmp_path):
    out = tmp_path / 'out'
    model = ROOT / 'models' / 'digits_semantic.onnx'
    output = run_interrupted(
        'parts.image_task_output.write_atomically', 3, model, '--source', pictures, '--output', out
    )
    assert ': 2 of 3 images\n' in output
    assert [row['file_name'] for row in json.loads((out / 'results.json').read_text())] == [
        'a.png',
        'b.jpg',
    ]


def test_number_of_images_is_unknown_with_a_video_of_unknown_length(tmp_path):
    video = VideoFile(tmp_path / 'live.webm', fps=30.0, frames=0)
    plan = DetectionPlan(tmp_path, (('a.png', tmp_path / 'a.png'),), (('live.webm', video),), {})
    assert plan.total_images == 0


def test_ctrl_c_before_the_first_result_replaces_no_files(tiny, pictures, tmp_path):
    arguments = tiny, '--source', pictures, '--output', tmp_path / 'out'
    assert run_detect_images(*arguments) == 0
    before = detections(tmp_path / 'out')
    output = run_interrupted('parts.detection_output.coco_rows', 1, *arguments, '--overwrite')
    assert output == 'detect_images: interrupted before all results were saved\n'
    assert detections(tmp_path / 'out') == before


@needs_tensorrt
def test_engine_gives_the_same_detections(tiny, pictures, tmp_path):
    plan = build_plan(Path(tiny).read_bytes())
    engine = tmp_path / 'tiny.engine'
    engine.write_bytes(plan)
    manifest = json.loads((tmp_path / 'tiny.onnx.json').read_text())
    del manifest['onnx']
    manifest['engine'] = file_identity(engine.name, plan)
    engine.with_name('tiny.engine.json').write_text(json.dumps(manifest))
    assert (
        run_detect_images('--engine', engine, '--source', pictures, '--output', tmp_path / 'out')
        == 0
    )
    for name, rgb in COLORS.items():
        as_expected(detections(tmp_path / 'out')[name], rgb)
