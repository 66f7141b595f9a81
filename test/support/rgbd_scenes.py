# SPDX-License-Identifier: Apache-2.0
"""Synthetic RGB-D scenes of known shapes: people, boxes and bottles in a room.

The renderer intersects rays with shapes and shares no code with the package. Each pixel has 3 x 3
rays: the middle one is what the camera measures, and all of them together are the true surface.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

WIDTH, HEIGHT = 640, 480
FOCAL, CX, CY = 525.0, 319.5, 239.5  # a Kinect, K from the centre of the first pixel
SUB = 3
FLOOR_Y = 1.1  # metres below the camera
WALL_Z = 9.0
NOISE = 0.0015  # metres at 1 m
Z_TAIL = 1.0  # percent of the visible surface at each end that the extent along z leaves out


@dataclass(frozen=True)
class Shape:
    """One object: a person (six capsules), a bottle (cylinder), or a box with a yaw.

    Attributes:
        kind: ``person``, ``bottle`` or ``box``.
        middle: x, y, z of the true middle in metres.
        size: width, height and length in metres; the width of others is their diameter.
        yaw: radians about the vertical.
    """

    kind: str
    middle: tuple
    size: tuple
    yaw: float = 0.0


@dataclass(frozen=True)
class Truth:
    """What is visible of an object.

    Attributes:
        low, high: least and largest x, y and z of the visible surface in metres.
        visible: share of the object's pixels that nothing covers.
        pixels: number of visible pixels.
        box: x, y of the centre, width, height in pixels from the image's corner.
        mask: bool (height, width).
        is_frontal: whether at least half of the visible pixels are of a face towards the camera.
    """

    shape: Shape
    low: np.ndarray
    high: np.ndarray
    visible: float
    pixels: int
    box: tuple
    mask: np.ndarray
    is_frontal: bool


@dataclass(frozen=True)
class Scene:
    """depth: float32 (height, width) as measured, metres, 0 in holes; objects: each Truth."""

    depth: np.ndarray
    objects: list


def rays():
    """Return x/z, (1, 3 * width), and y/z, (3 * height, 1), of all rays."""
    offset = (np.arange(SUB) - 1) / SUB
    u = (np.arange(WIDTH)[:, None] + offset).ravel()
    v = (np.arange(HEIGHT)[:, None] + offset).ravel()
    return (u - CX)[None] / FOCAL, (v - CY)[:, None] / FOCAL


def hit_box(shape, dx, dy):
    """Return the depth where rays enter a box; infinity where they miss it."""
    cos, sin = np.cos(shape.yaw), np.sin(shape.yaw)
    origin = -np.array(shape.middle)
    at = (cos * origin[0] - sin * origin[2], origin[1], sin * origin[0] + cos * origin[2])
    along = (cos * dx - sin + 0 * dy, dy + 0 * dx, sin * dx + cos + 0 * dy)
    enter, leave = -np.inf, np.inf
    with np.errstate(divide='ignore', invalid='ignore'):
        for start, ray, side in zip(at, along, shape.size, strict=True):
            one, other = (-side / 2 - start) / ray, (side / 2 - start) / ray
            enter = np.maximum(enter, np.minimum(one, other))
            leave = np.minimum(leave, np.maximum(one, other))
    return np.where((enter < leave) & (enter > 0), enter, np.inf)


def _first_root(a, b, c):
    with np.errstate(invalid='ignore'):
        return (-b - np.sqrt(b * b - a * c)) / a


def hit_person(shape, dx, dy):
    """Return the depth where rays enter the head, body, arms or legs of a person."""
    x, y, z = shape.middle
    width, height, _ = shape.size
    top = y - height / 2
    # Share of the width: place and diameter. Share of the height: upper and lower end.
    parts = (
        (0, 0.38, 0, 0.17),
        (0, 0.64, 0.13, 0.55),
        (-0.4, 0.2, 0.17, 0.52),
        (0.4, 0.2, 0.17, 0.52),
        (-0.2, 0.3, 0.46, 1),
        (0.2, 0.3, 0.46, 1),
    )
    depth = np.inf
    for place, diameter, upper, lower in parts:
        middle = x + place * width, top + height * (upper + lower) / 2, z
        size = diameter * width, height * (lower - upper), diameter * width
        depth = np.minimum(depth, hit_upright(Shape('capsule', middle, size), dx, dy))
    return depth


def hit_upright(shape, dx, dy):
    """Return the depth where rays enter a capsule or a cylinder that stands upright."""
    x, y, z = shape.middle
    radius, half = shape.size[0] / 2, shape.size[1] / 2
    if shape.kind == 'capsule':
        half -= radius
    depth = _first_root(dx * dx + 1 + 0 * dy, -(x * dx + z) + 0 * dy, x * x + z * z - radius**2)
    depth = np.where(np.isnan(depth) | (abs(dy * depth - y) > half), np.inf, depth)
    for end in (y - half, y + half):
        if shape.kind == 'capsule':  # half a ball
            root = _first_root(
                dx * dx + dy * dy + 1, -(x * dx + end * dy + z), x * x + end**2 + z * z - radius**2
            )
            outside = np.sign(end - y) * (dy * root - end) < 0
        else:  # a disc
            with np.errstate(divide='ignore', invalid='ignore'):
                root = end / dy + 0 * dx
                outside = (dx * root - x) ** 2 + (root - z) ** 2 > radius**2
        depth = np.minimum(depth, np.where(np.isnan(root) | outside | (root <= 0), np.inf, root))
    return depth


HITS = {'person': hit_person, 'bottle': hit_upright, 'box': hit_box}


def window(shape):
    """Return rows and columns of the rays that may meet a shape."""
    x, y, z = shape.middle
    reach = np.linalg.norm(shape.size) / 2
    ends = max(z - reach, 0.05), z + reach

    def part(middle, principal, count):
        edges = [
            (FOCAL * side / end + principal + 1) * SUB
            for side in (middle - reach, middle + reach)
            for end in ends
        ]
        low, high = np.clip([min(edges) - 3 * SUB, max(edges)], 0, count)
        return slice(int(low), int(high))

    return part(y, CY, HEIGHT * SUB), part(x, CX, WIDTH * SUB)


def render(shapes, random, *, noise=NOISE, holes=True):
    """Return the scene of some shapes."""
    dx, dy = rays()
    with np.errstate(divide='ignore'):
        floor = np.where(dy > 0, FLOOR_Y / dy, np.inf) + 0 * dx
    depth = np.minimum(floor, WALL_Z)
    owner = np.full(depth.shape, -1)
    alone = []
    for index, shape in enumerate(shapes):
        rows, columns = part = window(shape)
        hit = HITS[shape.kind](shape, dx[:, columns], dy[rows])
        alone.append(np.count_nonzero(np.isfinite(hit)) / SUB**2)
        nearer = hit < depth[part]
        depth[part][nearer] = hit[nearer]
        owner[part][nearer] = index
    objects = []
    for index, shape in enumerate(shapes):
        row, column = np.nonzero(owner == index)
        mask = owner[1::SUB, 1::SUB] == index
        pixels = np.count_nonzero(mask)
        if not pixels:
            continue
        z = depth[row, column]
        points = np.stack([dx[0, column] * z, dy[row, 0] * z, z])
        low, high = points.min(1), points.max(1)
        low[2], high[2] = np.percentile(z, [Z_TAIL, 100 - Z_TAIL])
        facing = np.mean(z < shape.middle[2] - shape.size[2] / 2 + 0.01)
        left, right = column.min() / SUB, (column.max() + 1) / SUB
        top, bottom = row.min() / SUB, (row.max() + 1) / SUB
        box = (left + right) / 2, (top + bottom) / 2, right - left, bottom - top
        objects.append(
            Truth(
                shape, low, high, pixels / max(alone[index], 1), pixels, box, mask,
                shape.kind != 'box' or (shape.yaw == 0 and facing >= 0.5),
            )
        )  # fmt: skip
    return Scene(measured(depth[1::SUB, 1::SUB], random, noise, holes), objects)


def measured(depth, random, noise, holes):
    """Return depth as a stereo camera measures it: noise, steps of 1 mm, holes."""
    depth = depth + random.normal(0, 1, depth.shape) * noise * depth**2
    depth = np.round(depth, 3)
    if holes:
        depth[random.random(depth.shape) < 0.02] = 0
        # Beside a nearer surface, one of two cameras sees nothing: 55 mm baseline.
        shadow = np.zeros(depth.shape, bool)
        disparity = np.where(depth > 0, FOCAL * 0.055 / np.maximum(depth, 0.1), 0)
        for shift in range(1, 20):
            shadow[:, :-shift] |= disparity[:, shift:] - disparity[:, :-shift] > shift
        depth[shadow] = 0
        for _ in range(12):
            x, y = random.uniform(0, WIDTH), random.uniform(0, HEIGHT)
            a, b = random.uniform(3, 18, 2)
            v, u = np.ogrid[:HEIGHT, :WIDTH]
            depth[((u - x) / a) ** 2 + ((v - y) / b) ** 2 < 1] = 0
    return depth.astype(np.float32)


def random_shapes(random):
    """Return up to 12 objects at 0.7 to 6.5 m that do not touch, some behind others."""
    shapes = []
    for _ in range(12):
        z = random.uniform(1.0, 6.5)
        x = random.uniform(-0.5, 0.5) * z
        kind = random.choice(['person', 'bottle', 'box', 'box'])
        if kind == 'person':
            width, height = random.uniform(0.35, 0.55), random.uniform(1.5, 1.95)
            size, y, z = (width, height, width), FLOOR_Y - height / 2, max(z, 1.8)
        elif kind == 'bottle':
            width, height = random.uniform(0.06, 0.1), random.uniform(0.2, 0.32)
            size, z = (width, height, width), random.uniform(0.7, 2.2)
            x, y = random.uniform(-0.4, 0.4) * z, random.uniform(-0.3, 0.3) * z
        else:
            size = tuple(random.uniform(0.25, 0.9, 3))
            y = FLOOR_Y - size[1] / 2
            if random.random() < 0.5:  # on something that is not modelled
                y -= random.uniform(0.3, 1.2)
        yaw = 0.0
        if kind == 'box' and random.random() < 0.5:
            yaw = random.uniform(-0.7, 0.7)
        shape = Shape(str(kind), (x, y, z), size, yaw)
        if not any(touch(shape, other) for other in shapes):
            shapes.append(shape)
    return shapes


def touch(shape, other):
    """Return whether two shapes may overlap, seen from above."""
    reach = sum(np.hypot(each.size[0], each.size[2]) / 2 for each in (shape, other))
    return np.hypot(shape.middle[0] - other.middle[0], shape.middle[2] - other.middle[2]) < reach


def detected_box(truth, random):
    """Return the box as a detector finds it: each side is off by about 1 % or 1 pixel."""
    x, y, width, height = truth.box
    sides = np.array([x - width / 2, y - height / 2, x + width / 2, y + height / 2])
    sides += random.normal(0, 1, 4) * np.maximum(0.01 * np.array([width, height] * 2), 0.5)
    left, top, right, bottom = sides
    return (left + right) / 2, (top + bottom) / 2, right - left, bottom - top


def detected_mask(truth, random):
    """Return the mask as a network with a quarter of the resolution finds it."""
    coarse = truth.mask.reshape(HEIGHT // 4, 4, WIDTH // 4, 4).mean((1, 3))
    coarse = cv2.resize(coarse, (WIDTH, HEIGHT), interpolation=cv2.INTER_LINEAR)
    return coarse > random.uniform(0.45, 0.55)
