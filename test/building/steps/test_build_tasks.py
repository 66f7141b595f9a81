"""build_engine's gates with models of masks, keypoints and oriented boxes: what they measure."""

import json

import cv2
import numpy as np
import pytest

from support.gpu.gpu_support import BUILT_ON_CPU
from support.models.recorded_exports import recorded, written
from trt_perception.tools.detect_images import main as detect_images

pytest_plugins = ['support.building.build_fixtures']
pytest.importorskip('pycocotools')
pytest.importorskip('tensorrt_rtx', reason='needs tensorrt_rtx')
pytestmark = BUILT_ON_CPU
# Thresholds that leave fewer detections than COCO looks at.
FAMILIES = {
    'masks': ('ultralytics_segment_26', 0.06),
    'keypoints': ('ultralytics_pose', 0.02),
    'oriented boxes': ('ultralytics_obb', 0.06),
}


@pytest.fixture(params=FAMILIES)
def labelled(request, tmp_path):
    """Return what is measured, arguments of a build, and annotations that the model finds."""
    family, confidence = FAMILIES[request.param]
    told = recorded(family)
    # Of some, every shape is open, which a network of constants cannot be built with.
    told |= {
        f'declared_{name}': told[key].shape
        for name, key in (('input', 'pixels'), ('output', 'output'), ('prototypes', 'prototypes'))
        if key in told
    }
    model, images = tmp_path / 'model.onnx', tmp_path / 'images'
    written(told, model)
    images.mkdir()
    cv2.imwrite(str(images / 'a.png'), told['image'])
    words = ['--engine', model, '--source', images, '--output', tmp_path / 'found']
    assert detect_images([*map(str, words), '--confidence', str(confidence)]) == 0
    truth = tmp_path / 'found' / 'detections.json'
    return request.param, model, ['--precision', 'fp16', '--validate', images], truth


def test_the_gate_measures_what_the_task_says(labelled, build):
    kind, model, words, truth = labelled
    words = [*words, '--annotations', truth, '--max-accuracy-drop', '0.05']
    done = build(*words, onnx_file=model)
    assert done.code == 0
    record = done.manifest.build.accuracy
    assert record.measure == f'mAP50 of {kind}'
    assert done.report['accuracy']['summary'].startswith(f'mAP50 of {kind} ')
    assert record.reference > 0.8
    assert record.built == pytest.approx(record.reference, abs=0.05)
    details = done.report['accuracy']['details']
    assert details['compared'] == kind
    assert {'metrics', 'box_metrics'} <= details['models']['built'].keys()


def test_labels_without_it_are_refused_before_anything_is_built(
    labelled, build_error, tmp_path, golden_messages
):
    _, model, words, truth = labelled
    content = json.loads(truth.read_text())
    for entry in content['annotations']:
        for key in ('segmentation', 'keypoints', 'oriented_bbox'):
            entry.pop(key, None)
    truth.write_text(json.dumps(content))
    words = ['--onnx', model, '--output', tmp_path / 'm.engine', *words]
    message = build_error(*words, '--annotations', truth, code=2)
    golden_messages.add(message)


def test_annotations_that_only_the_boxes_meet_measure_nothing(labelled, build):
    kind, model, words, truth = labelled
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
    done = build(*words, '--annotations', truth, onnx_file=model)
    assert done.code == 0
    record = done.manifest.build.accuracy
    assert (record.reference, record.built) == (0, 0)
    built = done.report['accuracy']['details']['models']['built']
    assert built['box_metrics']['mAP50'] > 0.8
