# SPDX-License-Identifier: Apache-2.0
"""Record and measure the results of tasks that describe the whole image: classes and masks."""

from __future__ import annotations

import json

import cv2
import numpy as np
from pycocotools import mask as coco_masks
from sensor_msgs.msg import Image
from vision_msgs.msg import Classification

from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.class_scores import ClassScores
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.offline.evaluation.image_tasks.measures import IMAGE_MEASURES

#: Name and message type of the topic with the result, by task.
RESULT_TOPICS = {
    'classify': ('classification', Classification),
    'semantic': ('segmentation/mask', Image),
    'depth': ('relative_depth', Image),
}
#: Maps the key of an accuracy figure in the summary to its printed name, by task.
IMAGE_FIGURE_NAMES = {
    'classify': {'top1': 'top-1 accuracy'},
    'semantic': {'mIoU': 'mean IoU of the classes', 'pixel_accuracy': 'pixel accuracy'},
    'depth': {},  # the scenes have no true depth
}
#: The context on each side of a digit in a crop, relative to the longer side of its box.
CROP_MARGIN = 0.15
# Height of the pictures of crops, and width of the column that lists the classes, in pixels.
_CROP_PICTURE_HEIGHT = 300
_CLASS_LIST_WIDTH = 100
# Value of pixels that are not measured.
_IGNORED_CLASS = 255


def write_crops(options):
    """Write a crop of one digit of each scene to the output folder, and use the crops.

    The digit is the first with less than 5 % hidden, else the first of the scene. A crop is the
    square around the digit's box with a margin, clipped to the scene. The truth of a crop has one
    box, which covers the whole crop.
    """
    folder = options.output / 'scenes'
    folder.mkdir(exist_ok=True)
    content = json.loads(options.truth.read_text(encoding='utf-8'))
    digits = {}
    for annotation in content['annotations']:
        digits.setdefault(annotation['image_id'], []).append(annotation)
    chosen = []
    for image in content['images']:
        scene = cv2.imread(str(options.scenes / image['file_name']))
        annotation = min(digits[image['id']], key=lambda one: one['hidden'] >= 0.05)
        crop = digit_crop(scene, annotation['bbox'])
        image['height'], image['width'] = height, width = crop.shape[:2]
        same = {key: annotation[key] for key in ('id', 'image_id', 'category_id', 'iscrowd')}
        chosen.append({**same, 'bbox': [0, 0, width, height], 'area': width * height})
        cv2.imwrite(str(folder / image['file_name']), crop)
    content['annotations'] = chosen
    options.scenes, options.truth = folder, options.output / 'truth.json'
    options.truth.write_text(json.dumps(content), encoding='utf-8')


def digit_crop(image, box):
    """Return the square around a box (x, y, width, height) in pixels, clipped to the image."""
    x, y, width, height = box
    half = max(width, height) * (0.5 + CROP_MARGIN)
    centre = np.array([x + width / 2, y + height / 2])
    left, top = np.maximum(np.floor(centre - half), 0).astype(int)
    right, bottom = np.ceil(centre + half).astype(int)
    return image[top:bottom, left:right]


def image_result(task, message, classes):
    """Return the result in a message; None if there is no message."""
    if message is None:
        return None
    if task == 'classify':
        scores = np.zeros(len(classes), np.float32)
        for one in message.results:
            scores[classes.index(one.class_id)] = one.score
        return ClassScores(scores)
    size = message.width, message.height
    if task == 'depth':
        depth = np.frombuffer(bytes(message.data), '<f4').reshape(size[::-1])
        return DepthMap(depth, Letterbox.fit(size, size, 'stretch'), 'bilinear', is_metric=False)
    ids = np.array(message.data, np.uint8).reshape(size[::-1])
    return ClassMap(ids, Letterbox.fit(size, size, 'stretch'))


def image_accuracy(task, truth_file, classes, results):
    """Return the accuracy over all images that have a result.

    Crops whose true class the model lacks do not count. Without an image, all figures are None.

    Args:
        task: name of the task.
        truth_file: annotations of the images.
        classes: the model's class names.
        results: dict from the name of an image to its result, or to None.
    """
    content = json.loads(truth_file.read_text(encoding='utf-8'))
    names = {one['id']: one['name'] for one in content['categories']}
    objects = {}
    for one in content['annotations']:
        objects.setdefault(one['image_id'], []).append(one)
    measure = IMAGE_MEASURES[task](classes, {})
    for image in content['images']:
        found = results.get(image['file_name'])
        annotations = objects.get(image['id'], ())
        if found is None:
            continue
        if task == 'semantic':
            measure.add(found, true_class_map(image, annotations, names, classes))
        elif (name := names[annotations[0]['category_id']]) in classes:
            measure.add(found, name)
    figures = measure.figures()
    return {
        key: None if figures[key] is None else round(figures[key], 4)
        for key in IMAGE_FIGURE_NAMES[task]
    }


def true_class_map(image, annotations, names, classes):
    """Return the true class id of each pixel, in the model's classes: uint8 (height, width).

    Pixels without a visible object have the class ``background``, if the model has this class.
    Pixels of classes that the model lacks have the value 255.
    """
    background = classes.index('background') if 'background' in classes else _IGNORED_CLASS
    true = np.full((image['height'], image['width']), background, np.uint8)
    for one in annotations:
        mask = coco_masks.decode(one.get('visible', one['segmentation'])).astype(bool)
        name = names[one['category_id']]
        true[mask] = classes.index(name) if name in classes else _IGNORED_CLASS
    return true


def enlarged_crop(crop):
    """Return an enlarged crop, with an empty column on its left for the list of classes."""
    scale = _CROP_PICTURE_HEIGHT / crop.shape[0]
    large = cv2.resize(crop, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)
    return cv2.copyMakeBorder(large, 0, 0, _CLASS_LIST_WIDTH, 0, cv2.BORDER_CONSTANT)
