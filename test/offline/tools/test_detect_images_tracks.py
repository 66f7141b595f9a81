# SPDX-License-Identifier: Apache-2.0
"""detect_images --track: ids in the results, low scores, sequences, and drawn trails."""

import json

import cv2
import numpy as np
import pytest

from support.detect_runs import run_detect_images
from support.docs_pages import ROOT
from support.models.picture_model import picture_with, write_picture_model
from support.optional_packages import needs
from trt_perception.offline.evaluation.coco.annotations import read_annotations

pytestmark = [needs('onnx'), needs('scipy')]

MOVING = [((10 + 2 * step, 20, 10, 12, 0.9 if step < 3 else 0.2),) for step in range(6)]


@pytest.fixture
def picture_model(tmp_path):
    return write_picture_model(tmp_path / 'picture.onnx')


def write_sequence(folder, images, scale=1):
    folder.mkdir(parents=True)
    for index, boxes in enumerate(images):
        assert cv2.imwrite(str(folder / f'{index:03d}.png'), picture_with(boxes, scale))
    return folder


def rows_by_image(out):
    """Return (track_id, score) of each object, by the name of its image."""
    content = json.loads((out / 'detections.json').read_text())
    found = {image['id']: (image['file_name'], []) for image in content['images']}
    for row in content['annotations']:
        found[row['image_id']][1].append((row['track_id'], round(row['score'], 1)))
    return dict(found.values())


def run(model, out, *sources, options=()):
    return run_detect_images(
        model, '--source', *sources, '--output', out, '--confidence', 0.5, '--track', *options
    )


def test_results_have_ids_and_low_scores_of_tracks(
    picture_model, tmp_path, capsys, golden_messages
):
    folder = write_sequence(tmp_path / 'images', MOVING)
    assert run(picture_model, tmp_path / 'out', folder) == 0
    golden_messages.add(capsys.readouterr().out.splitlines()[0])
    rows = list(rows_by_image(tmp_path / 'out').values())
    assert rows == [[(None, 0.9)], [(1, 0.9)], [(1, 0.9)], *[[(1, 0.2)]] * 3]
    results = json.loads((tmp_path / 'out' / 'results.json').read_text())
    assert [row['track_id'] for row in results] == [None, 1, 1, 1, 1, 1]
    summary = json.loads((tmp_path / 'out' / 'summary.json').read_text())
    assert summary['tracks'] == 1
    assert summary['confidence_threshold'] == 0.5
    assert summary['tracker']['type'] == 'bytetrack'
    assert summary['tracker']['low_threshold'] == 0.1
    # evaluate_engine reads the file as annotations.
    assert read_annotations(tmp_path / 'out' / 'detections.json')


def test_each_folder_is_a_sequence_and_no_id_is_given_twice(picture_model, tmp_path):
    one = write_sequence(tmp_path / 'images' / 'one', MOVING[:3])
    two = write_sequence(tmp_path / 'images' / 'two', MOVING[:3])
    assert run(picture_model, tmp_path / 'out', one, two) == 0
    ids = {name: rows[0][0] for name, rows in rows_by_image(tmp_path / 'out').items()}
    assert [ids[f'one/00{index}.png'] for index in range(3)] == [None, 1, 1]
    assert [ids[f'two/00{index}.png'] for index in range(3)] == [None, 2, 2]


def test_images_are_in_the_order_of_their_numbers(picture_model, tmp_path):
    folder = write_sequence(tmp_path / 'images', [])
    for step in range(12):
        boxes = ((8 + 4 * step, 20, 6, 8, 0.9),)
        assert cv2.imwrite(str(folder / f'img{step}.png'), picture_with(boxes))
    assert run(picture_model, tmp_path / 'out', folder, options=['--fps', 10]) == 0
    rows = rows_by_image(tmp_path / 'out')
    assert list(rows) == [f'img{step}.png' for step in range(12)]
    assert list(rows.values())[-1] == list(rows.values())[2] != [(None, 0.9)]


@pytest.mark.parametrize(('fps', 'after_the_gap'), [(30, 1), (4, None)])
def test_time_between_images_follows_the_rate(picture_model, tmp_path, fps, after_the_gap):
    """The object is missing in 5 images: 0.2 s or 1.5 s."""
    still = MOVING[0]
    folder = write_sequence(tmp_path / 'images', [still, still, *[()] * 5, still])
    assert run(picture_model, tmp_path / 'out', folder, options=['--fps', fps]) == 0
    assert rows_by_image(tmp_path / 'out')['007.png'] == [(after_the_gap, 0.9)]


def test_settings_of_the_tracker_apply(picture_model, tmp_path):
    folder = write_sequence(tmp_path / 'images', MOVING)
    options = ['--param', 'tracker.min_hits=1', '--param', 'tracker.publish_low=false']
    assert run(picture_model, tmp_path / 'out', folder, options=options) == 0
    rows = list(rows_by_image(tmp_path / 'out').values())
    assert rows == [[(1, 0.9)], [(1, 0.9)], [(1, 0.9)], [], [], []]


def test_trails_are_drawn_into_the_pictures(picture_model, tmp_path):
    """Pixels of the picture that differ from a picture of the same objects without a tracker."""
    folder = write_sequence(tmp_path / 'images', [((8, 20, 6, 8, 0.9),), *MOVING[:3]], scale=10)
    assert run(picture_model, tmp_path / 'tracked', folder) == 0
    trail = cv2.imread(str(tmp_path / 'tracked' / '003.png'))
    # The trail goes from the first to the last centre. The left box is not in this picture.
    assert trail[200, 110:130].any(axis=1).all()


def test_video_has_the_rate_of_its_file(picture_model, tmp_path):
    path = tmp_path / 'clip.avi'
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*'FFV1'), 5.0, (64, 48))
    if not writer.isOpened():
        pytest.skip('this OpenCV has no lossless codec')
    still = picture_with(MOVING[0])
    # At 5 images/s, a gap of 6 images takes 1.4 s.
    for image in [still, still, *[np.zeros_like(still)] * 6, still]:
        writer.write(image)
    writer.release()
    assert run(picture_model, tmp_path / 'out', path) == 0
    assert rows_by_image(tmp_path / 'out')['clip.avi#000001'] == [(1, 0.9)]
    assert rows_by_image(tmp_path / 'out')['clip.avi#000008'] == [(None, 0.9)]
    options = ['--fps', 30]
    assert run(picture_model, tmp_path / 'faster', path, options=options) == 0
    assert rows_by_image(tmp_path / 'faster')['clip.avi#000008'] == [(1, 0.9)]


def test_options_without_effect_are_refused(picture_model, tmp_path, capsys, golden_messages):
    folder = write_sequence(tmp_path / 'images', MOVING)
    base = [picture_model, '--source', folder, '--output', tmp_path / 'out']
    semantic = ROOT / 'models' / 'digits_semantic.onnx'
    for code, arguments in (
        (2, [*base, '--fps', 10]),
        (2, [*base, '--track', '--fps', 0]),
        (2, [*base, '--param', 'tracker.match_iou=0.5']),
        (2, [*base, '--track', '--param', 'tracker.type=none']),
        (1, [semantic, *base[1:], '--track']),
    ):
        assert run_detect_images(*arguments) == code
        golden_messages.add(capsys.readouterr().err.splitlines()[-1])
    assert not (tmp_path / 'out').exists()


def test_without_the_option_results_have_no_ids(picture_model, tmp_path):
    folder = write_sequence(tmp_path / 'images', MOVING)
    out = tmp_path / 'out'
    assert run_detect_images(picture_model, '--source', folder, '--output', out) == 0
    rows = json.loads((out / 'results.json').read_text())
    assert rows
    assert not any('track_id' in row for row in rows)
