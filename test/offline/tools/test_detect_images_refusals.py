# SPDX-License-Identifier: Apache-2.0
"""detect_images refuses or skips bad inputs, replaces no other files and can be interrupted."""

import json
import subprocess
import sys

import cv2
import numpy as np
import pytest

from support.detect_runs import COLORS, FILES, as_expected, detections, run_detect_images
from trt_perception.offline.tools import detect_images

pytest_plugins = ['support.detect_fixtures']


def test_unknown_class_is_refused(tiny, pictures, tmp_path, capsys, golden_messages):
    arguments = ['--engine', tiny, '--source', pictures, '--output', tmp_path / 'out']
    assert run_detect_images(*arguments, '--classes', 'purple') == 1
    golden_messages.add(capsys.readouterr().err)
    assert not (tmp_path / 'out').exists()


def test_truncated_video_gives_its_readable_frames(tiny, clip, tmp_path, capsys):
    content = clip.read_bytes()
    clip.write_bytes(content[: len(content) * 2 // 3])
    code = run_detect_images('--engine', tiny, '--source', clip, '--output', tmp_path / 'out')
    frames = len(detections(tmp_path / 'out'))
    assert 0 < frames < 12
    error = capsys.readouterr().err
    # Without its index, the file may no longer announce twelve frames.
    assert (code, clip.name in error) in ((1, True), (0, False))


@pytest.mark.parametrize(
    'content',
    [b'no picture', cv2.imencode('.png', np.zeros((2, 32768, 3), np.uint8))[1].tobytes()],
    ids=['no picture', 'too long'],
)
def test_unreadable_image_is_skipped(tiny, pictures, tmp_path, capsys, content, golden_messages):
    (pictures / 'a.png').write_bytes(content)
    out = tmp_path / 'out'
    assert run_detect_images('--engine', tiny, '--source', pictures, '--output', out) == 1
    golden_messages.add(capsys.readouterr().err)
    assert set(detections(out)) == {'b.jpg', 'black.bmp'}
    as_expected(detections(out)['b.jpg'], COLORS['b.jpg'])
    (problem,) = json.loads((out / 'summary.json').read_text())['problems']
    assert 'a.png' in problem
    assert not (out / 'a.png').exists()


def test_results_are_replaced_only_with_overwrite(
    tiny, pictures, tmp_path, capsys, golden_messages
):
    out = tmp_path / 'out'
    arguments = ['--engine', tiny, '--source', pictures, '--output', out]
    assert run_detect_images(*arguments) == 0
    before = {path: path.read_bytes() for path in out.iterdir()}
    (out / 'mine.txt').write_text('kept')
    assert run_detect_images(*arguments, '--confidence', '0.95') == 2
    golden_messages.add(capsys.readouterr().err)
    assert all(path.read_bytes() == content for path, content in before.items())
    assert run_detect_images(*arguments, '--confidence', '0.95', '--overwrite') == 0
    assert (out / 'detections.json').read_bytes() != before[out / 'detections.json']
    assert (out / 'mine.txt').read_text() == 'kept'


@pytest.mark.parametrize('overwrite', [(), ('--overwrite',)])
def test_sources_are_never_replaced(tiny, pictures, overwrite, tmp_path, capsys, golden_messages):
    before = {path: path.read_bytes() for path in pictures.iterdir()}
    link = tmp_path / 'link'
    link.symlink_to(pictures)
    for folder in (pictures, link):
        arguments = ['--engine', tiny, '--source', pictures, '--output', folder]
        assert run_detect_images(*arguments, *overwrite) == 2
        golden_messages.add(capsys.readouterr().err)
    assert {path: path.read_bytes() for path in pictures.iterdir()} == before


def test_interrupt_leaves_only_complete_files(tiny, pictures, clip, tmp_path, monkeypatch, capsys):
    out = tmp_path / 'out'
    add, calls = detect_images.VideoOutput.add, []

    def add_or_interrupt(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        add(*arguments)

    monkeypatch.setattr(detect_images.VideoOutput, 'add', add_or_interrupt)
    assert run_detect_images('--engine', tiny, '--source', pictures, clip, '--output', out) == 130
    assert 'interrupted' in capsys.readouterr().err
    remaining = {path.relative_to(out).as_posix() for path in out.rglob('*') if path.is_file()}
    assert remaining == {'images/a.png', 'images/b.jpg', 'images/black.bmp.png'} | FILES


_LIMITED_VIDEO = """
import resource, sys
from pathlib import Path
import numpy as np
from trt_perception.images.detections import Detections
from trt_perception.errors import ConfigError
from trt_perception.offline.tools.parts.detection_output import VideoOutput
sys.dont_write_bytecode = True  # the limit would truncate bytecode for later processes
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
noise = np.random.default_rng(3)
nothing = Detections.empty()
try:
    with VideoOutput(Path(sys.argv[1]), 10.0, ()) as output:
        for _ in range(12):
            output.add(noise.integers(0, 256, (240, 320, 3), np.uint8), nothing)
except ConfigError as error:
    sys.exit(f'refused: {error}')
"""


@pytest.mark.parametrize(('limit', 'fits'), [(2**30, True), (20_000, False)])
def test_video_that_does_not_fit_on_the_disk_is_removed(tmp_path, limit, fits):
    target = tmp_path / 'out' / 'a.mp4'
    command = [sys.executable, '-c', _LIMITED_VIDEO, target, str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    remaining = [path.name for path in target.parent.iterdir()]
    assert (done.returncode, remaining) == ((0, ['a.mp4']) if fits else (1, [])), done.stderr
    if not fits:
        assert f'refused: {target}: ' in done.stderr
        assert ' MB are ' in done.stderr


def test_unwritable_output_folder_is_reported(tiny, pictures, tmp_path, capsys, golden_messages):
    blocked = tmp_path / 'file'
    blocked.touch()
    out = blocked / 'out'
    assert run_detect_images('--engine', tiny, '--source', pictures, '--output', out) == 1
    golden_messages.add(capsys.readouterr().err)
    arguments = ['--engine', tiny, '--source', pictures, '--no-pictures', '--output', '/proc']
    assert run_detect_images(*arguments) == 1
    assert 'detect_images: /proc: ' in capsys.readouterr().err
