# SPDX-License-Identifier: Apache-2.0
"""Test the crops of scripts/demo.py, and its figures for classes and class maps."""

import json
import sys
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco_masks
from sensor_msgs.msg import Image
from vision_msgs.msg import Classification, ObjectHypothesis

from support.demo_runs import ROOT

sys.path.append(str(ROOT / 'scripts'))
import demo_image_tasks

import demo

pytestmark = pytest.mark.ros

CATEGORIES = [{'id': 4, 'name': 'four'}, {'id': 7, 'name': 'seven'}]


def classification(**scores):
    results = [ObjectHypothesis(class_id=name, score=score) for name, score in scores.items()]
    return Classification(results=results)


def mask_message(ids):
    height, width = ids.shape
    return Image(
        height=height, width=width, step=width, encoding='mono8', data=ids.astype('u1').tobytes()
    )


def write_truth(folder, maps):
    """Write annotations of maps of category ids, with one mask for each category of an image."""
    images, annotations = [], []
    for number, categories in enumerate(maps):
        height, width = categories.shape
        images.append({'id': number, 'file_name': f'{number}.jpg', 'width': width})
        images[-1]['height'] = height
        for category in np.unique(categories[categories > 0]).tolist():
            mask = np.asfortranarray(categories == category, np.uint8)
            encoded = coco_masks.encode(mask)
            rows = {'size': [height, width], 'counts': encoded['counts'].decode()}
            annotations.append({'image_id': number, 'category_id': category, 'segmentation': rows})
    content = {'images': images, 'annotations': annotations, 'categories': CATEGORIES}
    path = folder / 'truth.json'
    path.write_text(json.dumps(content))
    return path


def test_top1_is_the_share_of_right_best_classes(tmp_path):
    classes = ['other', 'seven', 'four']
    truth = write_truth(tmp_path, [np.full((2, 2), category) for category in (4, 7, 4, 7)])
    messages = {
        '0.jpg': classification(four=0.9, seven=0.1),
        '1.jpg': classification(other=0.5, seven=0.4),
        '2.jpg': classification(four=0.4, other=0.3, seven=0.3),
        '3.jpg': None,  # the image was dropped
    }
    results = {
        name: demo_image_tasks.image_result('classify', message, classes)
        for name, message in messages.items()
    }
    found = demo_image_tasks.image_accuracy('classify', truth, classes, results)
    assert found == {'top1': 0.6667}


def test_crops_without_a_class_of_the_model_are_not_measured(tmp_path):
    truth = write_truth(tmp_path, [np.full((2, 2), category) for category in (4, 7)])
    found = demo_image_tasks.image_result('classify', classification(seven=0.9), ['seven'])
    results = {'0.jpg': found, '1.jpg': found}
    figures = demo_image_tasks.image_accuracy('classify', truth, ['seven'], results)
    assert figures == {'top1': 1.0}


@pytest.mark.parametrize('background', ['background', 'something else'])
def test_mean_iou_counts_the_pixels_of_all_images(tmp_path, background):
    rng = np.random.default_rng(5)
    true = [rng.choice([0, 4, 7], (6, 9)) for _ in range(3)]
    classes = ['seven', background, 'four']
    true_ids = [np.select([one == 7, one == 4], [0, 2], 1) for one in true]
    found_ids = [np.where(rng.random(one.shape) < 0.8, one, 2) for one in true_ids]
    results = {
        f'{number}.jpg': demo_image_tasks.image_result('semantic', mask_message(ids), classes)
        for number, ids in enumerate(found_ids[:2])
    }
    results['2.jpg'] = None
    truth = write_truth(tmp_path, true)
    figures = demo_image_tasks.image_accuracy('semantic', truth, classes, results)

    wanted, ours = np.concatenate(true_ids[:2]), np.concatenate(found_ids[:2])
    used = [0, 1, 2]
    if background != 'background':
        # The truth says nothing about pixels without a digit.
        ours, wanted = ours[wanted != 1], wanted[wanted != 1]
        used = [0, 2]
    iou = [
        np.sum((ours == each) & (wanted == each)) / np.sum((ours == each) | (wanted == each))
        for each in used
    ]
    assert figures['mIoU'] == pytest.approx(np.mean(iou), abs=1e-4)
    assert figures['pixel_accuracy'] == pytest.approx(np.mean(ours == wanted), abs=1e-4)


def test_hidden_ink_is_background():
    visible = np.asfortranarray([[0, 1, 0]], np.uint8)
    encoded = [coco_masks.encode(one) for one in (np.ones_like(visible), visible)]
    masks = dict(zip(('segmentation', 'visible'), encoded, strict=True))
    true = demo_image_tasks.true_class_map(
        {'height': 1, 'width': 3},
        [{'category_id': 4, **masks}],
        {4: 'four'},
        ['background', 'four'],
    )
    np.testing.assert_array_equal(true, visible)


@pytest.mark.parametrize('task', ['classify', 'semantic'])
def test_accuracy_without_results_is_not_measured(tmp_path, task):
    truth = write_truth(tmp_path, [np.full((2, 2), 4)])
    found = demo_image_tasks.image_accuracy(task, truth, ['four'], {'0.jpg': None})
    assert found == dict.fromkeys(demo_image_tasks.IMAGE_FIGURE_NAMES[task])


def test_crops_show_a_whole_digit_of_each_scene(tmp_path):
    scenes, truth = ROOT / 'demo' / 'scenes', ROOT / 'demo' / 'truth.json'
    options = SimpleNamespace(scenes=scenes, truth=truth, output=tmp_path)
    demo_image_tasks.write_crops(options)
    original, content = (json.loads(one.read_text()) for one in (truth, options.truth))
    assert len(content['annotations']) == len(content['images']) == 60
    for image, annotation in zip(content['images'], content['annotations'], strict=True):
        [digit] = [one for one in original['annotations'] if one['id'] == annotation['id']]
        assert digit['hidden'] < 0.05
        for key in ('image_id', 'category_id'):
            assert annotation[key] == digit[key]
        assert annotation['image_id'] == image['id']
        crop = cv2.imread(str(options.scenes / image['file_name']))
        assert crop.shape[:2] == (image['height'], image['width'])
        # The crop is a part of the scene. JPEG changes some grey levels.
        scene = cv2.imread(str(scenes / image['file_name']))
        differences = cv2.matchTemplate(scene, crop, cv2.TM_SQDIFF)
        _, _, (left, top), _ = cv2.minMaxLoc(differences)
        x, y, width, height = digit['bbox']
        assert left <= x
        assert top <= y
        assert left + image['width'] >= x + width
        assert top + image['height'] >= y + height


def test_depth_has_the_values_of_the_message_and_no_figures():
    values = np.arange(6, dtype='<f4').reshape(2, 3)
    message = Image(height=2, width=3, step=12, encoding='32FC1', data=values.tobytes())
    found = demo_image_tasks.image_result('depth', message, ())
    np.testing.assert_array_equal(found.depth(), values)
    assert demo_image_tasks.image_result('depth', None, ()) is None
    assert not demo_image_tasks.IMAGE_FIGURE_NAMES['depth']


@pytest.mark.parametrize('task', ['classify', 'semantic', 'depth'])
def test_model_without_boxes_needs_its_task(task):
    options = SimpleNamespace(model='digits.onnx', task='detect')
    with pytest.raises(RuntimeError, match=f'is a model of the task {task}'):
        demo.check_task(options, task)
