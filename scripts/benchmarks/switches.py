# SPDX-License-Identifier: Apache-2.0
"""Count the identity switches of the tracker and of Roboflow's `trackers` in the same scenes.

Both sides get the boxes of track_scenes.py after non-maximum suppression, and the same thresholds.
The tracker has its default settings. The environment is that of tracks.py:

    PYTHONPATH=. tracks_env/bin/python scripts/benchmarks/switches.py --json track_switches.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from importlib.metadata import version
from pathlib import Path

import numpy as np
import supervision
from track_scenes import RATE_HZ, SCENES, SwitchCount
from trackers import ByteTrackTracker
from tracks import PEER

import trt_perception as tp

IMAGES = 300
#: Every second image of a scene arrives, or each.
STEPS = {'15 Hz': 2, '30 Hz': 1}
SIDES = 'ours', 'trackers'
_NMS_IOU = 0.45
_LEAST_SCORE = 0.1


def detections_of(image):
    """Return what the node's decoder would: the best boxes that do not overlap too much."""
    order = np.argsort(-image.scores, kind='stable')
    order = order[image.scores[order] > _LEAST_SCORE]
    boxes, scores = image.detected[order].astype(np.float32), image.scores[order]
    overlap = supervision.box_iou_batch(boxes, boxes) if len(boxes) else np.zeros((0, 0))
    kept = []
    for index in range(len(boxes)):
        if not (overlap[index, kept] > _NMS_IOU).any():
            kept.append(index)
    return tp.Detections(
        boxes[kept], scores[kept].astype(np.float32), np.zeros(len(kept), np.int32)
    )


def ours():
    """Return a function that gives detections ids."""
    tracker = tp.Tracker()
    return lambda found, stamp_s: tracker.update(found, stamp_s).detections


def trackers():
    """Return a function that gives detections ids."""
    tracker = ByteTrackTracker(**PEER)

    def update(found, stamp_s):
        given = supervision.Detections(**found.as_supervision())
        tracked = tracker.update(given, timestamp=stamp_s)
        return tp.Detections(
            tracked.xyxy.astype(np.float32),
            tracked.confidence.astype(np.float32),
            np.zeros(len(tracked), np.int32),
            ids=np.where(tracked.tracker_id >= 0, tracked.tracker_id + 1, -1).astype(np.int64),
        )

    return update


def count(scene, seed, step, make_update):
    """Return the figures of one scene, of which only each step-th image arrives."""
    update, counted = make_update(), SwitchCount()
    for index, image in enumerate(SCENES[scene](seed, step * IMAGES)):
        if index % step == 0:
            counted.add(image, update(detections_of(image), index / RATE_HZ))
    return counted.figures(IMAGES)


def counts(scene, step, seeds):
    """Return the figures of each seed and their mean for both sides."""
    result = {}
    for side, make_update in zip(SIDES, (ours, trackers), strict=True):
        found = {str(seed): count(scene, seed, step, make_update) for seed in seeds}
        rates = [figures['switches_per_100_images'] for figures in found.values()]
        result[side] = {
            'seeds': found,
            'mean_switches_per_100_images': statistics.mean(rates),
            'highest_switches_per_100_images': max(rates),
        }
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--json', type=Path, default=Path('track_switches.json'))
    parser.add_argument('--first-seed', type=int, default=100)
    parser.add_argument('--seeds', type=int, default=20)
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    result = {
        'command': 'PYTHONPATH=. tracks_env/bin/python scripts/benchmarks/switches.py',
        'machine': {
            'processor': platform.machine(),
            'cores': os.cpu_count(),
            'system': platform.system(),
            'python': platform.python_version(),
        },
        'versions': {name: version(name) for name in ('trackers', 'numpy', 'scipy')},
        'first_seed': seeds[0],
        'images': IMAGES,
        'scenes': {
            scene: {rate: counts(scene, step, seeds) for rate, step in STEPS.items()}
            for scene in SCENES
        },
    }
    options.json.write_text(json.dumps(result, indent=2) + '\n', encoding='utf-8')
    for scene, rates in result['scenes'].items():
        for rate, sides in rates.items():
            means = {side: f'{sides[side]["mean_switches_per_100_images"]:.2f}' for side in SIDES}
            print(scene, rate, means)


if __name__ == '__main__':
    main()
