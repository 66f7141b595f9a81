# SPDX-License-Identifier: Apache-2.0
"""evaluate_engine measures exported models for poses, oriented boxes and masks."""

import json
import re

import cv2
import numpy as np
import pytest

from support.models.recorded_exports import recorded_values, write_export
from support.optional_packages import needs
from trt_perception.offline.tools.detect_images import main as detect_images
from trt_perception.offline.tools.evaluate_engine import main as evaluate_engine

pytestmark = needs('pycocotools')
# Each threshold keeps some detections, but fewer than the 100 that COCO uses.
FAMILIES = {
    'masks': ('ultralytics_segment_26', 0.06),
    'keypoints': ('ultralytics_pose', 0.02),
    'oriented boxes': ('ultralytics_obb', 0.06),
}


def exit_code_of(main, *words):
    try:
        return main([str(word) for word in words])
    except SystemExit as end:
        return end.code


@pytest.fixture(scope='module', params=FAMILIES)
def evaluation_inputs(request, tmp_path_factory):
    """Return a model, an image, and annotations that equal the model's detections."""
    tmp_path = tmp_path_factory.mktemp('place')
    family, confidence = FAMILIES[request.param]
    recording = recorded_values(family)
    model, images = tmp_path / 'model.onnx', tmp_path / 'images'
    write_export(recording, model)
    images.mkdir()
    cv2.imwrite(str(images / 'a.png'), recording['image'])
    words = ['--engine', model, '--source', images, '--output', tmp_path / 'found']
    assert exit_code_of(detect_images, *words, '--confidence', confidence) == 0
    truth = tmp_path / 'found' / 'detections.json'
    content = json.loads(truth.read_text())
    # Omit objects with an empty mask, because no model can find them.
    rows = content['annotations'] = [row for row in content['annotations'] if row['area']]
    assert len(rows) > 3
    truth.write_text(json.dumps(content))
    return {
        'kind': request.param,
        'confidence': confidence,
        'model': model,
        'images': images,
        'truth': truth,
        'folder': tmp_path,
    }


def evaluate(evaluation_inputs, *arguments, truth=None, models=()):
    return exit_code_of(
        evaluate_engine,
        *('--engine', evaluation_inputs['model'], *models),
        *('--images', evaluation_inputs['images']),
        *('--annotations', truth or evaluation_inputs['truth']),
        *('--confidence', evaluation_inputs['confidence'], *arguments),
    )


def write_changed_annotations(evaluation_inputs, change):
    """Write annotations after a change of each object. Return their path."""
    content = json.loads(evaluation_inputs['truth'].read_text())
    for entry in content['annotations']:
        change(entry)
    path = evaluation_inputs['folder'] / 'changed.json'
    path.write_text(json.dumps(content))
    return path


def test_evaluation_finds_the_detections_of_detect_images(evaluation_inputs, capsys):
    saved = evaluation_inputs['folder'] / 'r.json'
    arguments = [
        '--json',
        saved,
        '--results',
        evaluation_inputs['folder'],
        '--plot',
        evaluation_inputs['folder'] / 'p.png',
    ]
    if not has_matplotlib():
        arguments = arguments[:4]
    assert (
        evaluate(evaluation_inputs, *arguments, '--worst', evaluation_inputs['folder'] / 'worst')
        == 0
    )
    output = capsys.readouterr().out
    assert f'\n{evaluation_inputs["kind"]}' in output
    content = json.loads(saved.read_text())
    entry = content['models']['model.onnx']
    assert content['compared'] == entry['metrics']['of'] == evaluation_inputs['kind']
    assert entry['box_metrics']['of'] == 'boxes'
    # These scores are the highest of all detections, so no false detection comes first.
    assert entry['metrics']['mAP50'] == pytest.approx(1, abs=0.02)
    assert entry['box_metrics']['mAP50'] == pytest.approx(1, abs=0.02)
    shares = entry['at_threshold']
    assert (shares['recall'], shares['missed'], shares['wrong_class']) == (1, 0, 0)
    assert shares['right'] > 3
    if evaluation_inputs['kind'] != 'masks':  # boxes with an empty mask count as false detections
        assert shares['false'] == 0
        assert 'no image' in output
    if evaluation_inputs['kind'] == 'oriented boxes':
        assert shares['angle_error_degrees']['p90'] < 0.01
        assert ', degrees' in output
    else:
        assert 'angle_error_degrees' not in shares
    rows = json.loads((evaluation_inputs['folder'] / 'model.onnx.results.json').read_text())
    key = {'masks': 'segmentation', 'keypoints': 'keypoints', 'oriented boxes': 'oriented_bbox'}
    assert all(key[evaluation_inputs['kind']] in row for row in rows)


def has_matplotlib():
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def spoil_details(entry):
    """Change the values of an object except its box."""
    if 'keypoints' in entry:
        entry['keypoints'] = (np.array(entry['keypoints']) + [1e3, 0, 0] * 17).tolist()
    if 'oriented_bbox' in entry:
        entry['oriented_bbox'][0] += 1e3
    if isinstance(entry.get('segmentation'), dict):
        size = entry['segmentation']['size']
        entry['segmentation'] = {'size': size, 'counts': [0, 1, size[0] * size[1] - 1]}


def test_wrong_task_values_with_correct_boxes_are_mistakes(evaluation_inputs, capsys):
    truth = write_changed_annotations(evaluation_inputs, spoil_details)
    worst, saved = evaluation_inputs['folder'] / 'worst', evaluation_inputs['folder'] / 'r.json'
    assert evaluate(evaluation_inputs, '--json', saved, '--worst', worst, truth=truth) == 0
    entry = json.loads(saved.read_text())['models']['model.onnx']
    assert entry['metrics']['mAP50'] == 0
    assert entry['box_metrics']['mAP50'] == pytest.approx(1, abs=0.02)
    assert entry['at_threshold']['right'] == 0
    assert (worst / 'model.onnx' / 'montage.jpg').exists()
    assert evaluate(evaluation_inputs, '--json', saved, '--boxes-only', truth=truth) == 0
    content = json.loads(saved.read_text())
    entry = content['models']['model.onnx']
    assert content['compared'] == entry['metrics']['of'] == 'boxes'
    assert 'box_metrics' not in entry
    assert entry['metrics']['mAP50'] == pytest.approx(1, abs=0.02)
    assert entry['at_threshold']['missed'] == 0


def test_annotations_with_only_boxes_are_refused(evaluation_inputs, capsys, golden_messages):
    def strip(entry):
        for key in ('segmentation', 'keypoints', 'oriented_bbox'):
            entry.pop(key, None)

    truth = write_changed_annotations(evaluation_inputs, strip)
    assert evaluate(evaluation_inputs, truth=truth) == 1
    golden_messages.add(capsys.readouterr().err)
    assert evaluate(evaluation_inputs, '--boxes-only', truth=truth) == 0


def test_two_models_of_one_task_are_compared(evaluation_inputs, capsys):
    other = evaluation_inputs['folder'] / 'other.onnx'
    other.write_bytes(evaluation_inputs['model'].read_bytes())
    assert evaluate(evaluation_inputs, models=[other]) == 0
    output = capsys.readouterr().out
    overlap = 'mean OKS' if evaluation_inputs['kind'] == 'keypoints' else 'mean IoU'
    assert re.search(f' model.onnx +F1 +{overlap}', output)
    assert re.search(r'other\.onnx +1\.0000 +1\.0000', output)
    words = [
        '--engine',
        evaluation_inputs['model'],
        other,
        '--images',
        evaluation_inputs['images'],
    ]
    assert (
        exit_code_of(evaluate_engine, *words, '--confidence', evaluation_inputs['confidence']) == 0
    )
    assert re.search(r'other\.onnx +1\.0000 +1\.0000', capsys.readouterr().out)


def test_oks_sigmas_apply_to_keypoints_only(evaluation_inputs, capsys, golden_messages):
    saved = evaluation_inputs['folder'] / 'r.json'
    code = evaluate(evaluation_inputs, '--json', saved, '--oks-sigma', '0.1')
    output, error = capsys.readouterr()
    if evaluation_inputs['kind'] != 'keypoints':
        assert code == 1
        golden_messages.add(error)
        return
    assert code == 0
    assert 'keypoints (OKS sigma 0.1)' in output
    metrics = json.loads(saved.read_text())['models']['model.onnx']['metrics']
    assert metrics['oks_sigmas'] == [0.1] * 17
    assert evaluate(evaluation_inputs) == 0
    assert 'keypoints (OKS sigma 0.025 to 0.107)' in capsys.readouterr().out
    assert evaluate(evaluation_inputs, '--oks-sigma', '0.1', '0.2') == 1
    golden_messages.add(capsys.readouterr().err)
