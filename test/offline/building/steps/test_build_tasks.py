# SPDX-License-Identifier: Apache-2.0
"""build_engine checks accuracy gates of models with masks, keypoints or oriented boxes."""

import json

import cv2
import numpy as np
import pytest

from support.gpu.gpu_support import BUILT_ON_CPU_MARKS
from support.models.recorded_exports import recorded_values, write_export
from support.models.task_comparison import write_without_metadata
from support.models.task_models import write_task_model
from trt_perception.model.tasks.segment import Segment
from trt_perception.offline.tools.detect_images import main as detect_images

pytest_plugins = ['support.building.build_fixtures']
pytest.importorskip('pycocotools')
pytest.importorskip('tensorrt_rtx', reason='needs tensorrt_rtx')
pytestmark = BUILT_ON_CPU_MARKS
# Thresholds that keep the number of detections below COCO's limit.
FAMILIES = {
    'masks': ('ultralytics_segment_26', 0.06),
    'keypoints': ('ultralytics_pose', 0.02),
    'oriented boxes': ('ultralytics_obb', 0.06),
}


@pytest.fixture(params=FAMILIES)
def labelled_model(request, tmp_path):
    """Return a measured shape, a model, build arguments, and annotations equal to its output."""
    family, confidence = FAMILIES[request.param]
    recording = recorded_values(family)
    # Fix all shapes. Some recorded models have open shapes, but a constant network cannot.
    recording |= {
        f'declared_{name}': recording[key].shape
        for name, key in (('input', 'pixels'), ('output', 'output'), ('prototypes', 'prototypes'))
        if key in recording
    }
    model, images = tmp_path / 'model.onnx', tmp_path / 'images'
    write_export(recording, model)
    images.mkdir()
    cv2.imwrite(str(images / 'a.png'), recording['image'])
    words = ['--engine', model, '--source', images, '--output', tmp_path / 'found']
    assert detect_images([*map(str, words), '--confidence', str(confidence)]) == 0
    truth = tmp_path / 'found' / 'detections.json'
    return request.param, model, ['--precision', 'fp16', '--validate', images], truth


def test_accuracy_gate_uses_the_map_of_the_task(labelled_model, build):
    kind, model, words, truth = labelled_model
    words = [*words, '--annotations', truth, '--max-accuracy-drop', '0.05']
    result = build(*words, onnx_file=model)
    assert result.code == 0
    record = result.manifest.build.accuracy
    assert record.measure == f'mAP50 of {kind}'
    assert result.report['accuracy']['summary'].startswith(f'mAP50 of {kind} ')
    assert record.reference > 0.8
    assert record.built == pytest.approx(record.reference, abs=0.05)
    details = result.report['accuracy']['details']
    assert details['compared'] == kind
    assert {'metrics', 'box_metrics'} <= details['models']['built'].keys()


def test_labels_without_task_fields_are_refused_before_the_build(
    labelled_model, build_error, tmp_path, golden_messages
):
    _, model, words, truth = labelled_model
    content = json.loads(truth.read_text())
    for entry in content['annotations']:
        for key in ('segmentation', 'keypoints', 'oriented_bbox'):
            entry.pop(key, None)
    truth.write_text(json.dumps(content))
    words = ['--onnx', model, '--output', tmp_path / 'm.engine', *words]
    message = build_error(*words, '--annotations', truth, code=2)
    golden_messages.add(message)


def test_accuracy_is_0_if_only_the_boxes_match(labelled_model, build):
    kind, model, words, truth = labelled_model
    content = json.loads(truth.read_text())
    for entry in content['annotations']:
        if kind == 'keypoints':
            entry['keypoints'] = (np.array(entry['keypoints']) + [1e3, 0, 0] * 17).tolist()
        elif kind == 'masks':
            height, width = entry['segmentation']['size']
            runs = [0, 1, height * width - 1]
            entry['segmentation'] = {'size': [height, width], 'counts': runs}
        else:
            entry['oriented_bbox'][0] += 1e3
    truth.write_text(json.dumps(content))
    result = build(*words, '--annotations', truth, onnx_file=model)
    assert result.code == 0
    record = result.manifest.build.accuracy
    assert (record.reference, record.built) == (0, 0)
    built = result.report['accuracy']['details']['models']['built']
    assert built['box_metrics']['mAP50'] > 0.8


def test_task_option_replaces_the_metadata_of_a_model(build, tmp_path):
    stripped = write_without_metadata(write_task_model(tmp_path / 'model.onnx', 'segment'))
    names = tmp_path / 'names.txt'
    names.write_text('\n'.join(map(str, range(10))))
    words = ['--precision', 'fp32', '--class-names-file', names]

    result = build('--task', 'segment', *words, onnx_file=stripped)

    assert result.code == 0
    assert result.manifest.task == Segment(mask_coefficients=1)
