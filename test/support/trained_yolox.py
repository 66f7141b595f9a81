# SPDX-License-Identifier: Apache-2.0
"""What tests of the YOLOX of scripts/trained_model.py share."""

import json

import cv2
import numpy as np

#: What the file does not say, as parameters and as options of the tools.
PARAMETERS = {'model_decoder': 'yolox_raw', 'model_class_names': ['character']}
PARAM_OPTIONS = (
    *('--param', 'model.decoder=yolox_raw'),
    *('--param', 'model.class_names=[character]'),
)
#: The usual thresholds of a node.
THRESHOLDS = {'confidence': 0.25, 'iou': 0.45}


def read_truth(path):
    """Yield each image below truth.json with its true boxes: left, top, right and bottom."""
    content = json.loads(path.read_text())
    for image in content['images']:
        boxes = [row['bbox'] for row in content['annotations'] if row['image_id'] == image['id']]
        boxes = np.array(boxes, float)
        boxes[:, 2:] += boxes[:, :2]
        yield cv2.imread(str(path.parent / image['file_name'])), boxes
