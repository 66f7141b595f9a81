# SPDX-License-Identifier: Apache-2.0
"""A moving scene for the demo, and the measure of the ids in its results.

The scene is an illustration. Its sizes and distances were chosen by hand among about 60 variants,
also by the number of identity switches, because the model misreads digits that cover each other
more. With larger overlaps, the default settings gave 6 to 14 switches. So the figures of this
scene do not measure the tracker; scripts/benchmarks/tracks.py does.
"""

from __future__ import annotations

import json

import cv2
import numpy as np

from trt_perception.images.trails import Trails
from trt_perception.offline.evaluation.coco.run_lengths import decode_counts

IMAGES = 64
SIZE_WH = (640, 480)
OBJECTS = 8
#: Pixels per image. The objects of even rows move to the right, the others to the left.
_SPEEDS = (5.0, 6.5, 8.0)
_HEIGHT = 56
# Objects of a pair that meet differ by this number of rows.
_OFFSET = 40
# The truth lacks objects that nearer objects cover by more than this share.
_MAX_HIDDEN = 0.6
_MIN_IOU = 0.5
#: Keys of ``track_figures``.
TRACK_FIGURES = ('objects', 'ids', 'identity_switches')


def write_moving_scene(options):
    """Write the images of a moving scene and its truth to the output folder, and use them.

    Digits of the demo's scenes move in two directions, and pass in front of each other. Each
    object of the truth has a track_id.
    """
    content = json.loads(options.truth.read_text(encoding='utf-8'))
    sprites = digit_sprites(options.scenes, content)
    folder = options.output / 'scenes'
    folder.mkdir(exist_ok=True)
    for picture in folder.glob('*.jpg'):
        picture.unlink()
    background = cv2.imread(str(options.scenes / content['images'][1]['file_name']))
    background = cv2.GaussianBlur(cv2.resize(background, SIZE_WH), (0, 0), 40)
    images, annotations = [], []
    for index in range(IMAGES):
        bgr, objects = scene_at(index, background, sprites)
        name = f'moving_{index:03d}.jpg'
        cv2.imwrite(str(folder / name), bgr, [cv2.IMWRITE_JPEG_QUALITY, 95])
        width, height = SIZE_WH
        images.append({'id': index, 'file_name': name, 'width': width, 'height': height})
        for number, category, (left, top, right, bottom) in objects:
            box = [left, top, right - left, bottom - top]
            annotations.append(
                {
                    'id': len(annotations) + 1,
                    'image_id': index,
                    'category_id': category,
                    'track_id': number,
                    'bbox': box,
                    'area': box[2] * box[3],
                    'iscrowd': 0,
                }
            )
    content |= {'images': images, 'annotations': annotations}
    options.scenes, options.truth = folder, options.output / 'truth.json'
    options.truth.write_text(json.dumps(content), encoding='utf-8')


def digit_sprites(scenes, content):
    """Return (category, pixels, opacity) of one digit of each class, the largest without occluder.

    Pixels are uint8 (h, w, 3), BGR, opacity is float32 (h, w, 1).
    """
    files = {image['id']: image['file_name'] for image in content['images']}
    best = {}
    for annotation in content['annotations']:
        if not annotation['hidden']:
            before = best.get(annotation['category_id'])
            if before is None or annotation['area'] > before['area']:
                best[annotation['category_id']] = annotation
    sprites = []
    for category, annotation in sorted(best.items())[:OBJECTS]:
        rows, columns = annotation['segmentation']['size']
        counts = decode_counts(annotation['segmentation']['counts'])
        ink = np.repeat(np.arange(len(counts)) % 2, counts).reshape(columns, rows).T
        left, top, width, height = (round(side) for side in annotation['bbox'])
        box = np.s_[top : top + height, left : left + width]
        scale = _HEIGHT / height
        bgr = cv2.imread(str(scenes / files[annotation['image_id']]))[box]
        # Pixels outside of the ink get the mean colour of the ink, so that its edge has no halo.
        inside = ink[box].astype(np.float32)
        flat = np.where(inside[..., None] > 0, bgr, bgr[inside > 0].mean(axis=0)).astype(np.uint8)
        opacity = cv2.resize(inside, None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)
        pixels = cv2.resize(flat, None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)
        sprites.append((category, pixels, opacity[..., None]))
    return sprites


def scene_at(index, background, sprites):
    """Return an image of the scene, and (number, category, box) of each visible object."""
    bgr, width = background.astype(np.float32), SIZE_WH[0]
    owner = np.full(SIZE_WH[::-1], -1)
    placed = []
    for number, (category, pixels, opacity) in enumerate(sprites, 1):
        height, own_width = pixels.shape[:2]
        room = width - own_width
        moved = 100 * number + _SPEEDS[number % len(_SPEEDS)] * index
        # Objects turn back at the borders.
        left = abs((moved + room * (number % 2)) % (2 * room) - room)
        rows = SIZE_WH[1] - 24 - _HEIGHT - _OFFSET
        top = 12 + rows * ((number - 1) // 2) / (OBJECTS // 2 - 1)
        top += _OFFSET * (number % 2)
        left, top = round(left), round(top)
        part = np.s_[top : top + height, left : left + own_width]
        bgr[part] += opacity * (pixels - bgr[part])
        owner[part][opacity[..., 0] > 0.5] = number
        placed.append((number, category, (left, top, left + own_width, top + height), opacity))
    objects = []
    for number, category, box, opacity in placed:
        seen = np.count_nonzero(owner == number)
        if seen > (1 - _MAX_HIDDEN) * np.count_nonzero(opacity > 0.5):
            objects.append((number, category, box))
    return np.rint(bgr).astype(np.uint8), objects


def track_figures(options, results):
    """Return the numbers of objects, of ids and of identity switches.

    A switch is an object whose id differs from its last id.

    Args:
        results: a dict from the name of an image to its detections with ids, or to None.
    """
    content = json.loads(options.truth.read_text(encoding='utf-8'))
    truth = {image['id']: [] for image in content['images']}
    for row in content['annotations']:
        truth[row['image_id']].append(row)
    ids, last, switches = set(), {}, 0
    for image in content['images']:
        found = results.get(image['file_name'])
        if found is None:
            continue
        ids.update(number for number in found.ids.tolist() if number > 0)
        for row, number in matched_ids(truth[image['id']], found):
            if number > 0:
                switches += last.setdefault(row['track_id'], number) != number
                last[row['track_id']] = number
    return dict(zip(TRACK_FIGURES, (len(last), len(ids), switches), strict=True))


def matched_ids(rows, found):
    """Yield pairs of an object of the truth and the id of its detection, largest overlap first.

    Each detection belongs to one object only, because a covered object may have none.
    """
    left_top = np.array([row['bbox'][:2] for row in rows], np.float64).reshape(-1, 1, 2)
    sides = np.array([row['bbox'][2:] for row in rows], np.float64).reshape(-1, 1, 2)
    xyxy = found.xyxy.astype(np.float64)
    common = np.minimum(left_top + sides, xyxy[:, 2:]) - np.maximum(left_top, xyxy[:, :2])
    area = common.clip(min=0).prod(axis=2)
    overlap = area / (sides.prod(axis=2) + (xyxy[:, 2:] - xyxy[:, :2]).prod(axis=1) - area)
    while overlap.size and overlap.max() >= _MIN_IOU:
        index, detection = np.unravel_index(overlap.argmax(), overlap.shape)
        yield rows[index], int(found.ids[detection])
        overlap[index], overlap[:, detection] = 0, 0


def write_trails(path, options, task, names, results, stamps):
    """Draw the last result with the trails of the whole run into a picture."""
    trails, image = Trails(length_s=float('inf')), None
    for name, found in results.items():
        if found is not None:
            image = cv2.imread(str(options.scenes / name))
            trails.draw(image, found, stamps[name] * 1e-9)
            last = found
    if image is not None:
        task.draw(image, last, names)
        cv2.imwrite(str(path), image)
