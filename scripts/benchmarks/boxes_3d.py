# SPDX-License-Identifier: Apache-2.0
"""Measure boxes in space on synthetic RGB-D scenes, where the visible surface is known.

    PYTHONPATH=.:test python scripts/benchmarks/boxes_3d.py --json boxes_3d.json

Three ways to find the depths of an object are compared: the largest mode (the package), and two
ways with percentiles of the inner part of the box, or of the mask.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np

from support import rgbd_scenes as scenes
from trt_perception.boxes_3d import surface
from trt_perception.boxes_3d.calibration import Pinhole
from trt_perception.boxes_3d.depth_image import DepthImage

CAMERA = Pinhole(scenes.FOCAL, scenes.FOCAL, scenes.CX, scenes.CY, scenes.WIDTH, scenes.HEIGHT)
DEPTH_LIMIT, SIZE_LIMIT = 0.02, 0.10
#: Smallest visible share of an object in a group.
GROUPS = {'visible': 2 / 3, 'covered': 1 / 2}
MIN_PIXELS = 100


def inner_depths(region):
    """Return the known depths of the inner part of the box, or of the mask."""
    depths = region.depths if region.is_inner is None else region.depths[region.is_inner]
    return depths[depths > 0]


def percentile_span(region):
    """Return the percentiles 10 and 90 of the inner part."""
    inner = inner_depths(region)
    if not len(inner):
        return None
    near, far = np.percentile(inner, [10, 90])
    return float(near), float(np.nextafter(far, np.inf, dtype=np.float32))


def median_span(region):
    """Return the depths that differ by at most 10 % from the median of the inner part."""
    inner = inner_depths(region)
    return (0.9 * float(np.median(inner)), 1.1 * float(np.median(inner))) if len(inner) else None


WAYS = {
    'largest mode': surface._surface_span,
    'percentiles 10 to 90': percentile_span,
    'median, 10 % around it': median_span,
}


@dataclass(frozen=True)
class Result:
    """Relative errors of one object, infinite if it was left out; metres to the true middle."""

    depth: float
    width: float
    height: float
    middle_m: float
    is_frontal: bool


def result(truth, found):
    """Return the errors of one object."""
    if found is None:
        return Result(np.inf, np.inf, np.inf, np.nan, truth.is_frontal)
    center, size = np.array(found.center), np.array(found.size)
    middle, extent = (truth.low + truth.high) / 2, truth.high - truth.low
    width, height = abs(size[:2] - extent[:2]) / np.maximum(extent[:2], 1e-9)
    away = float(np.linalg.norm(center - truth.shape.middle))
    return Result(abs(center[2] - middle[2]) / middle[2], width, height, away, truth.is_frontal)


def measure(seeds):
    """Return results by group, region (box or mask) and way."""
    results = {
        group: {region: {way: [] for way in WAYS} for region in ('box', 'mask')}
        for group in GROUPS
    }
    for seed in seeds:
        random = np.random.default_rng(seed)
        scene = scenes.render(scenes.random_shapes(random), random)
        depth = DepthImage((scene.depth * 1000).round().astype(np.uint16), 0.001)
        for truth in scene.objects:
            group = next((name for name, share in GROUPS.items() if truth.visible >= share), None)
            if group is None or truth.pixels < MIN_PIXELS:
                continue
            box = surface.ImageBox(*scenes.detected_box(truth, random))
            masks = {'box': None, 'mask': surface.Mask(scenes.detected_mask(truth, random))}
            for region, mask in masks.items():
                for way, function in WAYS.items():
                    with mock.patch.object(surface, '_surface_span', function):
                        found = surface.find_surface(box, depth, CAMERA, mask=mask)
                    results[group][region][way].append(result(truth, found))
    return results


def figures(results):
    """Return the shares of good results in percent, and the distance to the true middle."""
    frontal = [each for each in results if each.is_frontal]
    away = [each.middle_m for each in results if not np.isnan(each.middle_m)]

    def percent(part, name, limit):
        return round(100 * float(np.mean([getattr(each, name) <= limit for each in part])), 1)

    return {
        'objects': len(results),
        'frontal': len(frontal),
        'depth_percent': percent(results, 'depth', DEPTH_LIMIT),
        'width_percent': percent(frontal, 'width', SIZE_LIMIT),
        'height_percent': percent(frontal, 'height', SIZE_LIMIT),
        'middle_median_m': round(float(np.median(away)), 3),
        'middle_p95_m': round(float(np.percentile(away, 95)), 3),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--json', type=Path, default=Path('boxes_3d.json'))
    # The rules were chosen on scenes below 5000.
    parser.add_argument('--first-seed', type=int, default=5000)
    parser.add_argument('--scenes', type=int, default=150)
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.scenes)
    results = measure(seeds)
    record = {
        'machine': {
            'processor': platform.machine(),
            'cores': os.cpu_count(),
            'python': platform.python_version(),
        },
        'first_seed': seeds[0],
        'scenes': len(seeds),
        'noise_m_at_1_m': scenes.NOISE,
        'smallest_visible_share': {name: round(share, 3) for name, share in GROUPS.items()},
        'figures': {
            group: {
                region: {way: figures(found) for way, found in ways.items()}
                for region, ways in regions.items()
            }
            for group, regions in results.items()
        },
    }
    options.json.write_text(json.dumps(record, indent=2) + '\n', encoding='utf-8')
    print(options.json.read_text(encoding='utf-8'))


if __name__ == '__main__':
    main()
