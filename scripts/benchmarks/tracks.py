# SPDX-License-Identifier: Apache-2.0
"""Compare the tracker with ByteTrack of Roboflow's `trackers` on simulated scenes.

Both packages get identical boxes. `trackers` has one IoU threshold, no lower limit of scores, and
ignores classes. The tracker gets settings with the same effect. trackeval computes HOTA. Both
packages run in one process, in an environment of their own, because `trackers` installs another
OpenCV:

    python3 -m venv tracks_env
    tracks_env/bin/pip install trackers==2.6.1 trackeval==1.3.0
    PYTHONPATH=. tracks_env/bin/python scripts/benchmarks/tracks.py --json tracks.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import supervision
import trackeval
from trackers import ByteTrackTracker

import trt_perception as tp

RATE_HZ = 30
IMAGES = 300
WIDTH, HEIGHT = 1280, 720
SCENES = 20
#: Settings that give the tracker the rules of `trackers`.
SAME_RULES = {'match_iou': 0.2, 'low_match_iou': 0.2, 'low_threshold': 0, 'class_agnostic': True}
PEER = {
    'track_activation_threshold': 0.25,
    'high_conf_det_threshold': 0.25,
    'minimum_iou_threshold': 0.2,
    'minimum_consecutive_frames': 2,
    'lost_track_buffer': 30,
    'frame_rate': RATE_HZ,
}
HOTA = trackeval.metrics.HOTA()


@dataclass(frozen=True)
class Image:
    """One image of a scene: the true boxes of visible objects, their numbers, the detections."""

    stamp_s: float
    boxes: np.ndarray
    numbers: np.ndarray
    detections: tp.Detections


def scene(seed):
    """Return the images of a scene with crossings, occlusions and a camera that pans.

    Objects have random smooth accelerations. Those whose lower side is lower cover the others.
    The score falls with the covered share of a box, and the error of its sides grows with it.
    """
    random = np.random.default_rng(seed)
    count = int(random.integers(10, 21))
    size = np.stack([random.uniform(35, 80, count), random.uniform(80, 200, count)], 1)
    center = np.stack([random.uniform(0, WIDTH, count), random.uniform(250, 600, count)], 1)
    speed = np.stack([random.normal(0, 110, count), random.normal(0, 25, count)], 1)
    pan = random.uniform(40, 200), random.uniform(0.1, 0.4), random.uniform(0, 6)
    growth = random.normal(0, 0.03, count)
    classes = random.integers(0, 2, count).astype(np.int32)
    acceleration = np.zeros((count, 2))
    images = []
    for index in range(IMAGES):
        acceleration += random.normal(0, (30, 8), (count, 2)) - 0.1 * acceleration
        speed += acceleration / RATE_HZ - 0.02 * (speed - np.clip(speed, -250, 250))
        center += speed / RATE_HZ
        # Objects turn back at the borders of the scene.
        for axis, (low, high) in enumerate(((-200, WIDTH + 200), (200, 650))):
            outside = (center[:, axis] - low) * (center[:, axis] - high) > 0
            inwards = np.sign((low + high) / 2 - center[:, axis])
            speed[outside, axis] = np.abs(speed[outside, axis]) * inwards[outside]
            acceleration[outside, axis] = 0
        size *= np.exp(growth[:, None] / RATE_HZ)
        moved = center.copy()
        moved[:, 0] += pan[0] * np.sin(2 * np.pi * pan[1] * index / RATE_HZ + pan[2])
        images.append(image_of(random, index / RATE_HZ, moved, size, classes))
    return images


def image_of(random, stamp_s, center, size, classes):
    """Return one image with simulated detections."""
    limits = [WIDTH, HEIGHT, WIDTH, HEIGHT]
    boxes = np.concatenate([center - size / 2, center + size / 2], 1)
    boxes = np.clip(boxes, 0, limits)
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    share = visible_shares(boxes) * (area / size.prod(1))
    is_true = (share > 0.2) & (area > 400)
    score = 0.9 * np.clip(share * 1.2, 0, 1) ** 1.3 + random.normal(0, 0.08, len(boxes))
    # The scores of some objects drop in single images, for instance by blur.
    score -= np.where(random.random(len(boxes)) < 0.05, random.uniform(0.2, 0.7, len(boxes)), 0)
    error = (0.02 + 0.06 * (1 - share))[:, None] * np.tile(size, 2)
    detected = boxes + random.normal(0, 1, boxes.shape) * error
    false = random.poisson(1.5)
    corner = random.uniform(0, [WIDTH - 100, HEIGHT - 200], (false, 2))
    false_size = random.uniform([30, 60], [90, 190], (false, 2))
    false_boxes = np.concatenate([corner, corner + false_size], 1)
    detected = np.clip(np.concatenate([detected, false_boxes]), 0, limits)
    score = np.concatenate([np.where(area > 400, score, 0), random.beta(1.5, 6, false)])
    class_ids = np.concatenate([classes, random.integers(0, 2, false).astype(np.int32)])
    shown = (score > 0.05) & (detected[:, 2:] > detected[:, :2] + 4).all(1)
    order = np.flatnonzero(shown)[np.argsort(-score[shown], kind='stable')]
    return Image(
        stamp_s,
        boxes[is_true],
        np.flatnonzero(is_true),
        tp.Detections(
            detected[order].astype(np.float32),
            np.minimum(score[order], 1).astype(np.float32),
            class_ids[order],
        ),
    )


def visible_shares(boxes):
    """Return the share of each box that no nearer box covers, on a grid of 4 pixels.

    The lower its lower side, the nearer is a box.
    """
    owner = np.full((HEIGHT // 4, WIDTH // 4), -1)
    cells = np.round(boxes / 4).astype(int)
    for index in np.argsort(boxes[:, 3]):
        left, top, right, bottom = cells[index]
        owner[top:bottom, left:right] = index
    total = np.maximum((cells[:, 2] - cells[:, 0]) * (cells[:, 3] - cells[:, 1]), 1)
    return np.bincount(owner[owner >= 0], minlength=len(boxes)) / total


def samples(images, seed):
    """Map the name of each sampling to the images that arrive."""
    random = np.random.default_rng(1000 + seed)
    half = sorted(random.choice(len(images), len(images) // 2, replace=False).tolist())
    gap = IMAGES // 2
    return {
        'all images': images,
        'every second image': images[::2],
        'a random half': [images[index] for index in half],
        'a gap of 0.5 s': images[:gap] + images[gap + RATE_HZ // 2 :],
    }


def our_tracks(images, **settings):
    """Return boxes and ids of the tracker for each image."""
    tracker = tp.Tracker(**settings)
    results = [tracker.update(image.detections, image.stamp_s) for image in images]
    return [(found.detections.xyxy[found.ids > 0], found.ids[found.ids > 0]) for found in results]


def peer_tracks(images):
    """Return boxes and ids of `trackers` for each image."""
    tracker = ByteTrackTracker(**PEER)
    found = []
    for image in images:
        detections = supervision.Detections(**image.detections.as_supervision())
        tracked = tracker.update(detections, timestamp=image.stamp_s)
        has_id = tracked.tracker_id >= 0
        found.append((tracked.xyxy[has_id], tracked.tracker_id[has_id]))
    return found


def iou(one, other):
    """Return the IoU of boxes (n, 4) and (m, 4): (n, m)."""
    if not len(one) or not len(other):
        return np.zeros((len(one), len(other)))
    return supervision.box_iou_batch(one, other)


def hota(images, tracks):
    """Return HOTA, 0 to 100."""
    truth, truth_count = places([image.numbers for image in images])
    ids, id_count = places([numbers for _, numbers in tracks])
    data = {
        'num_timesteps': len(images),
        'num_gt_ids': truth_count,
        'num_tracker_ids': id_count,
        'num_gt_dets': sum(map(len, truth)),
        'num_tracker_dets': sum(map(len, ids)),
        'gt_ids': truth,
        'tracker_ids': ids,
        'similarity_scores': [
            iou(image.boxes, boxes) for image, (boxes, _) in zip(images, tracks, strict=True)
        ],
    }
    return 100 * float(HOTA.eval_sequence(data)['HOTA'].mean())


def places(numbers):
    """Replace the numbers of each image by numbers from 0 without gaps; return their count too."""
    known = np.unique(np.concatenate(numbers))
    return [np.searchsorted(known, each) for each in numbers], len(known)


def hotas(seeds):
    """Return for each sampling the mean HOTA over the scenes of each side."""
    sides = {
        'trackers': peer_tracks,
        'same_rules': lambda images: our_tracks(images, **SAME_RULES),
        'defaults': our_tracks,
    }
    scenes = [samples(scene(seed), seed) for seed in seeds]
    return {
        name: {
            side: statistics.mean(hota(arrived[name], track(arrived[name])) for arrived in scenes)
            for side, track in sides.items()
        }
        for name in scenes[0]
    }


def crowd(count, seed=1, images=60):
    """Return detections of many objects on a grid, each of which moves a little."""
    random = np.random.default_rng(seed)
    columns = int(np.ceil(np.sqrt(count)))
    place = np.stack([np.arange(count) % columns, np.arange(count) // columns], 1) * 60 + 60.0
    speed = random.normal(0, 1, (count, 2))
    found = []
    for index in range(images):
        center = place + speed * index + random.normal(0, 0.5, (count, 2))
        boxes = np.concatenate([center - 25, center + 25], 1).astype(np.float32)
        scores = random.uniform(0.15, 0.9, count).astype(np.float32)
        if index == 0:
            scores[:] = 0.9
        order = np.argsort(-scores, kind='stable')
        found.append(tp.Detections(boxes[order], scores[order], np.zeros(count, np.int32)))
    return found


def times_ms(count, rounds=5):
    """Return the median time of an update of both sides, which take turns, in ms."""
    found = crowd(count)
    times = {'ours': [], 'trackers': []}
    for _ in range(rounds):
        ours, peer = tp.Tracker(**SAME_RULES), ByteTrackTracker(**PEER)
        for index, detections in enumerate(found):
            given = supervision.Detections(**detections.as_supervision())
            stamp_s = index / RATE_HZ
            before = time.perf_counter()
            ours.update(detections, stamp_s)
            between = time.perf_counter()
            peer.update(given, timestamp=stamp_s)
            after = time.perf_counter()
            if index > 2:
                times['ours'].append(1e3 * (between - before))
                times['trackers'].append(1e3 * (after - between))
    return {side: statistics.median(values) for side, values in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--json', type=Path, default=Path('tracks.json'))
    # The noise of the filter was chosen on the scenes 0 to 19.
    parser.add_argument('--first-seed', type=int, default=100)
    options = parser.parse_args()
    warnings.simplefilter('ignore')
    seeds = range(options.first_seed, options.first_seed + SCENES)
    result = {
        'machine': {
            'processor': platform.machine(),
            'cores': os.cpu_count(),
            'system': platform.system(),
            'python': platform.python_version(),
        },
        'versions': {name: version(name) for name in ('trackers', 'trackeval', 'numpy', 'scipy')},
        'first_seed': seeds[0],
        'scenes': SCENES,
        'images': IMAGES,
        'rate_hz': RATE_HZ,
        'hota': hotas(seeds),
        'ms_per_update': {str(count): times_ms(count) for count in (10, 100, 300)},
    }
    options.json.write_text(json.dumps(result, indent=2) + '\n', encoding='utf-8')
    print(options.json.read_text(encoding='utf-8'))


if __name__ == '__main__':
    main()
