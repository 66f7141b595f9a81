# SPDX-License-Identifier: Apache-2.0
"""detect_images writes classes and maps for models that describe the whole image."""

import json

import cv2
import numpy as np
import pytest

from support.detect_runs import run_detect_images
from support.models.image_models import IMAGE_TASKS, NAMES, tool_arguments
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results import image_limits
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.offline.tools.parts import image_task_output
from trt_perception.offline.tools.parts.image_task_output import ImageTaskResults

WIDTH, HEIGHT = 160, 90


@pytest.fixture
def images(tmp_path):
    """A folder with an image that is red on the left and dark blue on the right."""
    bgr = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    bgr[:, : WIDTH // 2, 2] = 255
    bgr[:, WIDTH // 2 :, 0] = 153
    folder = tmp_path / 'images'
    folder.mkdir()
    cv2.imwrite(str(folder / 'halves.png'), bgr)
    return folder


def run(task, images, tmp_path, *others, **parameters):
    """Run detect_images. Return the exit code and the output folder."""
    words = tool_arguments(task, tmp_path / 'model.onnx', **parameters)
    out = tmp_path / 'out'
    return run_detect_images(*words, '--source', images, '--output', out, *others), out


def rows_of(out):
    return json.loads((out / 'results.json').read_text())


def summary_of(out):
    return json.loads((out / 'summary.json').read_text())


@pytest.mark.parametrize('task', IMAGE_TASKS)
def test_result_is_drawn_and_no_coco_file_is_written(task, images, tmp_path, capsys):
    code, out = run(task, images, tmp_path)
    assert code == 0, capsys.readouterr().err
    files = {path.name for path in out.iterdir()}
    maps = {'maps'} if task != 'classify' else set()
    assert files == {'halves.png', 'results.json', 'summary.json'} | maps
    drawn = cv2.imread(str(out / 'halves.png'))
    assert cv2.absdiff(drawn, cv2.imread(str(images / 'halves.png'))).max() > 50
    summary = summary_of(out)
    assert (summary['task'], summary['images']) == (task, 1)
    assert 'confidence_threshold' not in summary


def test_classes_are_written_best_first(images, tmp_path):
    _, out = run('classify', images, tmp_path)
    (row,) = rows_of(out)
    assert (row['file_name'], row['width'], row['height']) == ('halves.png', WIDTH, HEIGHT)
    assert [entry['name'] for entry in row['classes']] == ['red', 'blue', 'gray', 'green']
    # The means of red, green and blue are 0.5, 0 and 0.3. Gray has 2 for each.
    logits = np.array([9 * 0.5, 9 * 0.3, 2 * 0.8, 0])
    scores = [entry['score'] for entry in row['classes']]
    np.testing.assert_allclose(scores, np.exp(logits) / np.exp(logits).sum(), atol=1e-3)
    assert summary_of(out)['classes'] == {'red': 1}


def test_class_map_has_an_id_in_each_pixel(images, tmp_path):
    _, out = run('semantic', images, tmp_path, '--no-pictures')
    (row,) = rows_of(out)
    ids = cv2.imread(str(out / row['map']), cv2.IMREAD_UNCHANGED)
    assert (ids.dtype, ids.shape) == (np.uint8, (HEIGHT, WIDTH))
    assert (ids[:, :75] == NAMES.index('red')).all()
    assert (ids[:, 85:] == NAMES.index('blue')).all()
    assert row['shares'] == pytest.approx({'red': 0.5, 'blue': 0.5}, abs=0.03)
    assert summary_of(out)['classes'] == pytest.approx(row['shares'])


def test_metric_depth_is_written_in_millimetres(images, tmp_path):
    _, out = run('depth', images, tmp_path)
    (row,) = rows_of(out)
    depth = cv2.imread(str(out / row['map']), cv2.IMREAD_UNCHANGED)
    assert (depth.dtype, depth.shape) == (np.uint16, (HEIGHT, WIDTH))
    np.testing.assert_allclose(depth[:, [0, -1]], [[1000 / 3, 200]] * HEIGHT, atol=1)
    assert row['unit'] == 'm'
    assert [row['low'], row['high']] == pytest.approx([0.2, 1 / 3], abs=0.02)


def test_relative_depth_is_scaled_from_low_to_high(images, tmp_path):
    _, out = run('depth', images, tmp_path, model_decoder='relative_depth')
    (row,) = rows_of(out)
    levels = cv2.imread(str(out / row['map']), cv2.IMREAD_UNCHANGED)
    assert (levels.min(), levels.max()) == (1, 65535)
    depth = row['low'] + (levels - 1.0) / 65534 * (row['high'] - row['low'])
    np.testing.assert_allclose(depth[:, [0, -1]], [[1 / 3, 0.2]] * HEIGHT, atol=1e-3)
    assert row['unit'] is None


@pytest.mark.parametrize('task', IMAGE_TASKS)
def test_summary_has_counts_or_shares_of_classes_or_the_depth(
    task, images, tmp_path, golden_messages, capsys
):
    assert run(task, images, tmp_path)[0] == 0
    golden_messages.add(capsys.readouterr().out.partition('latency')[0])


@pytest.mark.parametrize(
    ('is_metric', 'values', 'expected'),
    [
        (True, [0.0004, 1.2345, 70, np.nan, np.inf, -1], [0, 1234, 65535, 0, 0, 0]),
        (False, [-2, 0, 2, np.nan, np.inf, 1], [1, 32768, 65535, 0, 0, 49152]),
        (False, [3, 3, 3, np.nan, 3, 3], [1, 1, 1, 0, 1, 1]),
        (True, [np.nan] * 6, [0] * 6),
    ],
)
def test_unknown_and_far_depths_have_their_own_values(is_metric, values, expected, tmp_path):
    letterbox = Letterbox.fit((6, 1), (6, 1), 'stretch')
    grid = np.array([values], np.float32)
    results = ImageTaskResults((), tmp_path, {})
    results.add('a', (6, 1), DepthMap(grid, letterbox, 'nearest', is_metric))
    written = cv2.imread(str(tmp_path / 'maps' / 'a.png'), cv2.IMREAD_UNCHANGED)
    assert np.abs(written[0].astype(int) - expected).max() <= 1


def test_frames_of_a_video_have_numbered_maps(tmp_path):
    video = tmp_path / 'drive.mp4'
    writer = cv2.VideoWriter(str(video), cv2.VideoWriter.fourcc(*'mp4v'), 10, (64, 48))
    for _ in range(3):
        writer.write(np.full((48, 64, 3), (0, 0, 255), np.uint8))
    writer.release()
    code, out = run('semantic', video, tmp_path)
    assert code == 0
    maps = [f'maps/drive.mp4#00000{number}.png' for number in range(3)]
    assert [row['map'] for row in rows_of(out)] == maps
    assert all((out / name).is_file() for name in maps)
    assert (out / 'drive.mp4').is_file()


def test_maps_of_one_name_and_existing_maps_are_refused(images, tmp_path, golden_messages, capsys):
    (images / 'halves.jpg').write_bytes((images / 'halves.png').read_bytes())
    assert run('semantic', images, tmp_path)[0] == 1
    golden_messages.add(capsys.readouterr().err)
    (images / 'halves.jpg').unlink()
    existing = tmp_path / 'out' / 'maps' / 'halves.png'
    existing.parent.mkdir(parents=True)
    existing.write_bytes(b'labels')
    assert run('semantic', images, tmp_path)[0] == 1
    assert existing.read_bytes() == b'labels'
    assert run('semantic', images, tmp_path, '--overwrite')[0] == 0
    assert existing.read_bytes() != b'labels'


@pytest.mark.parametrize(
    'option', ['--classes red', '--confidence 0.5', '--iou 0.6', '--max-detections 5']
)
def test_option_for_objects_is_refused(option, images, tmp_path, golden_messages, capsys):
    assert run('semantic', images, tmp_path, *option.split())[0] == 1
    golden_messages.add(capsys.readouterr().err)
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('is_metric', [True, False])
@pytest.mark.parametrize('strip_pixels', [1, 100, 2**30])
def test_saved_depth_does_not_depend_on_the_strips(monkeypatch, strip_pixels, is_metric):
    monkeypatch.setattr(image_limits, '_STRIP_PIXELS', strip_pixels)
    grid = np.random.default_rng(0).uniform(-2, 70, (20, 30)).astype('f4')
    grid[3, :7] = np.nan, np.inf, -np.inf, 0, -1, 65.535, 65.6
    found = DepthMap(grid, Letterbox.fit((30, 20), (30, 20), 'stretch'), 'nearest', is_metric)
    pixels, values = image_task_output._depth_pixels(found)
    known = np.isfinite(grid) & ((grid > 0) | (not is_metric))
    low, high = float(grid[known].min()), float(grid[known].max())
    assert (values['low'], values['high']) == (low, high)
    exact = grid.astype(np.float64)
    levels = 1000 * exact if is_metric else 1 + (exact - low) * 65534 / (high - low)
    expected = np.where(known, np.nan_to_num(levels).clip(0, 65535), 0)
    assert np.abs(pixels - expected).max() <= 0.5 + 1e-6
    assert ((pixels == 0) == (np.rint(expected) == 0)).all()
