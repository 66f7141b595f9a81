# SPDX-License-Identifier: Apache-2.0
"""Make annotations and detections with masks, keypoints and oriented boxes."""

from dataclasses import replace

import cv2
import numpy as np

from support.oracles.evaluation_support import SIZE_WH, written
from trt_perception.images.detections import MaskGeometry, Masks
from trt_perception.model.tasks.obb import Obb
from trt_perception.model.tasks.pose import KeypointSpec, Pose
from trt_perception.model.tasks.segment import Segment
from trt_perception.offline.evaluation.coco.annotations import read_annotations
from trt_perception.offline.evaluation.dataset import read_shapes
from trt_perception.offline.evaluation.metrics.task_measures import measure_of

WIDTH, HEIGHT = SIZE_WH
BOX = (100, 100, 100, 60)
SEGMENT = Segment(mask_coefficients=1)
OBB = Obb()
FOUR = Pose(KeypointSpec(('a', 'b', 'c', 'd'), 3))
SQUARE = [[100, 100, 200, 100, 200, 160, 100, 160]]


def with_masks(detections, wholes):
    """Return detections whose masks are the given masks, cut to the boxes of the detections."""
    prototypes = np.where(np.array(wholes).reshape(-1, HEIGHT, WIDTH), 1, -1).astype(np.float32)
    own = np.eye(len(detections), dtype=np.float32)
    masks = Masks(detections.xyxy, own, prototypes, MaskGeometry(SIZE_WH, (1.0, 1.0), (0.0, 0.0)))
    return replace(detections, masks=masks)


def run_lengths(whole):
    from pycocotools import mask

    runs = mask.encode(np.asfortranarray(whole.astype(np.uint8)))
    return {'size': [HEIGHT, WIDTH], 'counts': runs['counts'].decode()}


def ellipse(xywh, share=1.0):
    left, top, width, height = xywh
    canvas = np.zeros((HEIGHT, WIDTH), np.uint8)
    center = (int(left + width / 2), int(top + height / 2))
    axes = (max(1, int(share * width / 2)), max(1, int(share * height / 2)))
    cv2.ellipse(canvas, center, axes, 0, 0, 360, 1, -1)
    return canvas > 0


def read_truth(folder, content, task, sigmas=()):
    annotations = read_annotations(written(folder, content))
    return read_shapes(annotations, measure_of(task, sigmas), (7, 17))


def only_box(annotations):
    ((box,),) = annotations.objects.values()
    return box


# The annotations that the tests read.
