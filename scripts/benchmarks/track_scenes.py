# SPDX-License-Identifier: Apache-2.0
"""Simulated scenes with 20 crossing objects for the tracker's benchmarks; the count of switches.

walking: people in front of a standing camera. All figures of this scene were chosen before its
identity switches were first counted:

- camera: 640 x 480, 30 Hz, horizontal field of view 62.2° (Raspberry Pi Camera v2), 1 m above the
  floor, level;
- 20 people, who enter at a side and leave, 3 to 15 m away when they enter (2 to 16 m later). The
  view holds 130 m² between 3 and 15 m, so that there are 0.15 people per m²: they walk freely;
- height 1.7 ± 0.08 m, speed 1.4 ± 0.25 m/s (at least 0.5), direction within ± 20° of sideways
  (one standard deviation). The speed varies by 0.1 m/s within about 1 s;
- width of a box: 0.5 m, and up to 0.25 m more in the middle of each step of 0.7 m, if the person
  is seen from the side;
- detector: that of tracks.py. The score falls with the covered share, and the error of a box grows
  with it. 5 % of the scores drop by 0.2 to 0.7. An image has 1.5 false detections.

crowded: a scene that no robot sees. Boxes have a quarter of the image's area. A box that
is a person of 1.7 m moves with 2.7 m/s on average, and up to 5.7 m/s. Objects turn back at the
borders within one image. The detector has no drops and no false detections.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
from demo_tracks import matched_ids  # noqa: E402

WIDTH, HEIGHT = 640, 480
RATE_HZ = 30
OBJECTS = 20
_LIMITS = (WIDTH, HEIGHT, WIDTH, HEIGHT)
_FOCAL_PX = WIDTH / 2 / np.tan(np.radians(62.2) / 2)
_CAMERA_HEIGHT_M = 1.0
_DISTANCES_M = 3.0, 15.0
#: People who are nearer or farther have left.
_LEFT_M = 2.0, 16.0
_STEP_M = 0.7
#: The scene runs for this time before its first image, so that people are everywhere.
_WARM_UP_S = 30
#: Objects that nearer objects cover more are not counted.
_LEAST_SEEN = 0.2


@dataclass(frozen=True)
class SceneImage:
    """One image of a scene.

    Attributes:
        boxes: the true boxes, float64 (n, 4): left, top, right, bottom, within the image.
        numbers: the number of each object, which stays with it: (n,).
        seen: the visible share of each object, 0 to 1: (n,).
        detected: the detected boxes, float64 (m, 4).
        scores: of the detected boxes, 0 to 1: (m,).
    """

    boxes: np.ndarray
    numbers: np.ndarray
    seen: np.ndarray
    detected: np.ndarray
    scores: np.ndarray

    def truth_rows(self):
        """Return the objects that are at least a fifth visible, as rows of a COCO file."""
        return [
            {'track_id': number, 'bbox': [*box[:2], box[2] - box[0], box[3] - box[1]]}
            for box, number, seen in zip(
                self.boxes.tolist(), self.numbers.tolist(), self.seen, strict=True
            )
            if seen > _LEAST_SEEN
        ]


class People:
    """People who cross the view of the camera; who leaves is replaced by a new person."""

    def __init__(self, random):
        self._random = random
        self._count = 0
        self.place = np.zeros((OBJECTS, 2))  # to the right and away from the camera, m
        self.velocity = np.zeros((OBJECTS, 2))  # m/s
        self._change = np.zeros((OBJECTS, 2))  # m/s
        self._height = np.zeros(OBJECTS)  # m
        self._steps = np.zeros(OBJECTS)
        self.numbers = np.zeros(OBJECTS, int)
        self._enter(np.arange(OBJECTS))

    def _enter(self, which):
        random, count = self._random, len(which)
        side = random.choice([-1, 1], count)
        distance = random.uniform(*_DISTANCES_M, count)
        self.place[which] = np.stack(
            [-side * (distance * WIDTH / 2 / _FOCAL_PX + 0.4), distance], axis=1
        )
        speed = np.maximum(random.normal(1.4, 0.25, count), 0.5)
        angle = np.radians(random.normal(0, 20, count))
        self.velocity[which] = np.stack([side * speed * np.cos(angle), speed * np.sin(angle)], 1)
        self._change[which] = 0
        self._height[which] = random.normal(1.7, 0.08, count)
        self._steps[which] = random.uniform(0, 1, count)
        self.numbers[which] = self._count + np.arange(count)
        self._count += count

    def walk(self, elapsed_s):
        """Move everybody; replace those who left."""
        noise = self._random.normal(0, 0.1, (OBJECTS, 2))
        self._change += np.sqrt(2 * elapsed_s) * noise - elapsed_s * self._change
        velocity = self.velocity + self._change
        self.place += elapsed_s * velocity
        self._steps += elapsed_s * np.hypot(*velocity.T) / _STEP_M
        left, _, right, _ = self.boxes().T
        is_gone = np.where(self.velocity[:, 0] > 0, left > WIDTH, right < 0)
        nearest, farthest = _LEFT_M
        distance = self.place[:, 1]
        self._enter(np.flatnonzero(is_gone | (distance < nearest) | (distance > farthest)))

    def boxes(self):
        """Return the whole boxes, also outside of the image: float64 (n, 4), pixels."""
        sideways, distance = self.place.T
        scale = _FOCAL_PX / distance
        from_the_side = np.abs(self.velocity[:, 0]) / np.hypot(*self.velocity.T)
        width = 0.5 + 0.25 * from_the_side * np.abs(np.sin(np.pi * self._steps))
        center = WIDTH / 2 + scale * sideways
        bottom = HEIGHT / 2 + scale * _CAMERA_HEIGHT_M
        half = scale * width / 2
        return np.stack([center - half, bottom - scale * self._height, center + half, bottom], 1)


def walking_scene(seed, images):
    """Yield the images of a scene in which people walk, at 30 Hz."""
    random = np.random.default_rng(seed)
    people = People(random)
    for _ in range(_WARM_UP_S * RATE_HZ):
        people.walk(1 / RATE_HZ)
    for _ in range(images):
        people.walk(1 / RATE_HZ)
        whole = people.boxes()
        boxes = np.clip(whole, 0, _LIMITS)
        size = whole[:, 2:] - whole[:, :2]
        inside = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) / size.prod(axis=1)
        seen = visible_shares(boxes) * inside
        scores = 0.9 * np.clip(1.2 * seen, 0, 1) ** 1.3 + random.normal(0, 0.08, OBJECTS)
        drops = random.uniform(0.2, 0.7, OBJECTS)
        scores -= np.where(random.random(OBJECTS) < 0.05, drops, 0)
        error = (0.02 + 0.06 * (1 - seen))[:, None] * np.tile(size, 2)
        detected = boxes + random.normal(0, 1, boxes.shape) * error
        false, false_scores = false_detections(random)
        detected = np.clip(np.concatenate([detected, false]), 0, _LIMITS)
        scores = np.concatenate([scores, false_scores])
        is_found = (scores > 0.05) & (detected[:, 2:] > detected[:, :2] + 4).all(axis=1)
        yield SceneImage(
            boxes,
            people.numbers.copy(),
            seen,
            detected[is_found],
            np.minimum(scores[is_found], 1),
        )


def false_detections(random):
    """Return boxes of the size of people, anywhere in the image, and their scores."""
    count = random.poisson(1.5)
    scale = _FOCAL_PX / random.uniform(*_DISTANCES_M, count)
    size = scale[:, None] * [0.5, 1.7]
    corner = random.uniform(0, 1, (count, 2)) * ([WIDTH, HEIGHT] - size)
    return np.concatenate([corner, corner + size], axis=1), random.beta(1.5, 6, count)


def crowded_scene(seed, images):
    """Yield the images of a crowded scene with sudden turns, at 30 Hz."""
    random = np.random.default_rng(seed)
    size = np.stack([random.uniform(30, 60, OBJECTS), random.uniform(60, 110, OBJECTS)], axis=1)
    center = random.uniform(size / 2, [WIDTH, HEIGHT] - size / 2)
    direction = np.where(np.arange(OBJECTS) % 2, 1, -1)
    speed = np.stack(
        [direction * random.uniform(60, 200, OBJECTS), random.normal(0, 10, OBJECTS)], axis=1
    )
    for _ in range(images):
        center += speed / RATE_HZ
        low, high = size / 2, [WIDTH, HEIGHT] - size / 2
        speed = np.where(center < low, np.abs(speed), speed)
        speed = np.where(center > high, -np.abs(speed), speed)
        center = np.clip(center, low, high)
        boxes = np.concatenate([center - size / 2, center + size / 2], axis=1)
        seen = visible_shares(boxes)
        scores = 0.9 * seen**1.3 + random.normal(0, 0.05, OBJECTS)
        error = (0.02 + 0.06 * (1 - seen))[:, None] * np.tile(size, 2)
        detected = np.clip(boxes + random.normal(0, 1, boxes.shape) * error, 0, _LIMITS)
        found = np.flatnonzero(scores > 0.02)
        yield SceneImage(
            boxes, np.arange(OBJECTS), seen, detected[found], np.clip(scores[found], 0, 1)
        )


def visible_shares(boxes):
    """Return the share of each box that no nearer box covers. The lower one is nearer."""
    owner = np.full((HEIGHT, WIDTH), -1)
    pixels = np.rint(boxes).astype(int)
    for index in np.argsort(boxes[:, 3]):
        left, top, right, bottom = pixels[index]
        owner[top:bottom, left:right] = index
    area = np.maximum((pixels[:, 2:] - pixels[:, :2]).prod(axis=1), 1)
    return np.bincount(owner[owner >= 0], minlength=len(boxes)) / area


SCENES = {'walking': walking_scene, 'crowded': crowded_scene}


class SwitchCount:
    """Counts ids and identity switches: objects whose id differs from their last id."""

    def __init__(self):
        self.switches = self.matched = self.visible = 0
        self.ids = set()
        self._last = {}

    def add(self, image, found):
        """Count one image.

        Args:
            image: the SceneImage.
            found: Detections with ids; None if there was no answer.
        """
        rows = image.truth_rows()
        self.visible += len(rows)
        if found is None:
            return
        self.ids.update(number for number in found.ids.tolist() if number > 0)
        for row, number in matched_ids(rows, found):
            if number > 0:
                self.matched += 1
                self.switches += self._last.setdefault(row['track_id'], number) != number
                self._last[row['track_id']] = number

    def figures(self, images):
        """Return the figures of a scene of this number of images."""
        return {
            'switches': self.switches,
            'switches_per_100_images': 100 * self.switches / images,
            'objects': len(self._last),
            'ids': len(self.ids),
            'visible_objects': self.visible / images,
            'objects_with_an_id_percent': 100 * self.matched / self.visible,
        }
