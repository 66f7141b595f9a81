# SPDX-License-Identifier: Apache-2.0
"""Ground truth in COCO's format: boxes, masks, oriented boxes and corners of every digit.

The field `visible` of a digit below an occluder has the mask of its visible ink.
"""

import itertools

import numpy as np
import scenes
import shapes
from pycocotools import mask as coco_masks


def coco_truth(drawn: list[scenes.Scene]) -> dict:
    """Return the ground truth of scenes. Only the sizes of their images are read."""
    images, annotations = [], []
    for index, scene in enumerate(drawn):
        height, width = scene.image.shape[:2]
        name = f'scene_{index:03d}.jpg'
        images.append({'id': index + 1, 'file_name': name, 'width': width, 'height': height})
        for box, label, hidden, shape in zip(
            scene.xyxy, scene.classes, scene.hidden, scene.shapes, strict=True
        ):
            x0, y0, x1, y1 = (float(value) for value in box)
            annotations.append(
                {
                    'id': len(annotations) + 1,
                    'image_id': index + 1,
                    'category_id': int(label),
                    'bbox': [x0, y0, x1 - x0, y1 - y0],
                    'area': (x1 - x0) * (y1 - y0),
                    'iscrowd': 0,
                    'hidden': round(float(np.clip(hidden, 0, 1)), 3),
                    **of_shape(shape, box, (width, height)),
                    **visible_ink(shape, box, scene.occluders),
                }
            )
    return {
        'info': {
            'description': 'Handwritten digits on photographs, the demo scenes of trt_perception',
            'license': 'see README.md beside this file',
        },
        'images': images,
        'annotations': annotations,
        'categories': categories(),
    }


def categories() -> list[dict]:
    """Return the digits as categories, with the names of their corners."""
    outline = [[1, 2], [2, 3], [3, 4], [4, 1]]
    return [
        {'id': digit, 'name': str(digit), 'keypoints': list(shapes.CORNERS), 'skeleton': outline}
        for digit in range(10)
    ]


def of_shape(shape: shapes.Shape, xyxy: np.ndarray, size_wh: tuple[int, int]) -> dict:
    """Return an annotation's fields besides the box.

    Fields: the mask's run lengths; centre x, centre y, width, height and angle in radians of the
    oriented box; x, y and visibility of the corners. Corners outside the picture are unlabelled.
    """
    mask = whole_mask(shape, xyxy, size_wh)
    corners = shape.corners.astype(float).round(2).tolist()
    inside = ((shape.corners >= 0) & (shape.corners <= size_wh)).all(axis=1)
    points = [
        (x, y, 2) if shown else (0, 0, 0) for (x, y), shown in zip(corners, inside, strict=True)
    ]
    return {
        'segmentation': run_lengths(mask),
        'oriented_bbox': shape.oriented.astype(float).round(4).tolist(),
        'keypoints': list(itertools.chain(*points)),
        'num_keypoints': int(inside.sum()),
    }


def visible_ink(shape: shapes.Shape, xyxy: np.ndarray, occluders: np.ndarray) -> dict:
    """Return the field `visible` of a digit below an occluder; an empty dict for other digits."""
    mask = whole_mask(shape, xyxy, occluders.shape[::-1])
    if not mask[occluders].any():
        return {}
    mask[occluders] = 0
    return {'visible': run_lengths(mask)}


def whole_mask(shape: shapes.Shape, xyxy: np.ndarray, size_wh: tuple[int, int]) -> np.ndarray:
    """Return the mask of a digit in the size of its picture: (h, w) uint8."""
    x0, y0, x1, y1 = xyxy.astype(int)
    mask = np.zeros(size_wh[::-1], np.uint8, order='F')
    mask[y0:y1, x0:x1] = shape.mask
    return mask


def run_lengths(mask: np.ndarray) -> dict:
    """Return the run lengths of a mask, as COCO stores them."""
    encoded = coco_masks.encode(mask)
    return {'size': list(mask.shape), 'counts': encoded['counts'].decode()}
