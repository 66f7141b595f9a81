# SPDX-License-Identifier: Apache-2.0
"""Occluders: patches of the same photograph that hide an exact fraction of a digit's ink.

Every shape is `field(x, y) < threshold`. The threshold is a quantile of the field over the digit's
ink, which gives the exact hidden fraction without a search.
"""

import numpy as np


def cut(canvas: np.ndarray, ink) -> tuple[np.ndarray, np.ndarray]:
    """Return views of the canvas under a digit, and of the digit's coverage inside the picture."""
    height, width = canvas.shape[:2]
    x0, y0 = max(ink.left, 0), max(ink.top, 0)
    x1 = min(ink.left + ink.alpha.shape[1], width)
    y1 = min(ink.top + ink.alpha.shape[0], height)
    alpha = ink.alpha[y0 - ink.top : y1 - ink.top, x0 - ink.left : x1 - ink.left]
    return canvas[y0:y1, x0:x1], alpha


def out_of_picture(ink, size_wh: tuple[int, int]) -> float:
    """Return the fraction of the ink beyond the picture's border."""
    inside = cut(np.empty((size_wh[1], size_wh[0], 0)), ink)[1]
    return 1.0 - float(inside.sum()) / float(ink.alpha.sum())


def hidden_fraction(ink, mask: np.ndarray) -> float:
    """Return the fraction of the ink under `mask` (h, w) bool or beyond the picture's border."""
    covered, alpha = cut(mask, ink)
    return 1.0 - float(alpha[~covered].sum()) / float(ink.alpha.sum())


def occlude(config, rng, canvas: np.ndarray, clutter: np.ndarray, inks: list) -> np.ndarray:
    """Draw occluders over digits, and a few over the background, in place.

    Args:
        config: a `scenes.SceneConfig`.
        rng: the scene's generator.
        canvas: (h, w, 3) float32, changed.
        clutter: (h, w, 3) float32, the picture without digits, from which occluders are cut.
        inks: the digits. At most `config.hidden[1]` of each is hidden.

    Returns:
        (h, w) bool, the area of the occluders.
    """
    height, width = canvas.shape[:2]
    mask = np.zeros((height, width), bool)
    boxes = [
        (ink.left, ink.top, ink.left + ink.alpha.shape[1], ink.top + ink.alpha.shape[0])
        for ink in inks
    ]

    def paint(window: tuple[int, int, int, int], shape: np.ndarray) -> None:
        """Paint `shape`, a bool array over `window` xyxy, if every digit remains legible."""
        x0, y0 = max(window[0], 0), max(window[1], 0)
        x1, y1 = min(window[2], width), min(window[3], height)
        shape = shape[y0 - window[1] : y1 - window[1], x0 - window[0] : x1 - window[0]]
        if shape.size == 0:
            return
        trial = mask.copy()
        trial[y0:y1, x0:x1] |= shape
        for ink, box in zip(inks, boxes, strict=True):
            apart = box[2] <= x0 or box[0] >= x1 or box[3] <= y0 or box[1] >= y1
            if not apart and hidden_fraction(ink, trial) > config.hidden[1]:
                return
        mask[:] = trial
        fill = patch(rng, clutter, (y1 - y0, x1 - x0))
        canvas[y0:y1, x0:x1][shape] = fill[shape]

    for ink in inks:
        if rng.random() < config.occluded_share:
            paint(*over_ink(rng, ink, rng.uniform(*config.hidden)))
    for _ in range(int(rng.integers(config.distractors[0], config.distractors[1] + 1))):
        side = int(rng.uniform(15, 110))
        x, y = int(rng.integers(width)), int(rng.integers(height))
        distance = field(rng, (side, side))
        paint((x, y, x + side, y + side), distance < np.quantile(distance, rng.uniform(0.1, 0.6)))
    return mask


def over_ink(rng, ink, fraction: float) -> tuple[tuple[int, int, int, int], np.ndarray]:
    """Return an occluder that hides `fraction` of a digit: its window xyxy and its shape."""
    height, width = ink.alpha.shape
    grow = int(max(height, width) * rng.uniform(0.05, 0.35))
    distance = field(rng, (height + 2 * grow, width + 2 * grow))
    over = distance[grow : grow + height, grow : grow + width]
    order = np.argsort(over, axis=None, kind='stable')
    ink_below = np.cumsum(ink.alpha.reshape(-1)[order])
    # The first pixel that would hide more than this fraction of the ink stays visible.
    stop = int(np.searchsorted(ink_below, fraction * ink_below[-1]))
    threshold = over.reshape(-1)[order[min(stop, order.size - 1)]]
    shape = distance < threshold
    # Round the window's corners: otherwise a half-plane would end in a visible square.
    y, x = np.mgrid[: shape.shape[0], : shape.shape[1]]
    u = (x / shape.shape[1] - 0.5) * 2
    v = (y / shape.shape[0] - 0.5) * 2
    shape &= np.abs(u) ** 4 + np.abs(v) ** 4 < 1
    window = (ink.left - grow, ink.top - grow, ink.left + width + grow, ink.top + height + grow)
    return window, shape


def field(rng, shape: tuple[int, int]) -> np.ndarray:
    """Return the distance of each pixel of a window (h, w) from a random point, line or bar."""
    y, x = np.mgrid[: shape[0], : shape[1]].astype(np.float32)
    x -= shape[1] / 2
    y -= shape[0] / 2
    angle = rng.uniform(0, 2 * np.pi)
    cos, sin = np.cos(angle), np.sin(angle)
    reach = max(shape)
    kind = rng.integers(3)
    if kind == 0:
        away = rng.uniform(0.4, 0.9) * reach
        return np.hypot(x - cos * away, y - sin * away)
    along = x * cos + y * sin
    if kind == 1:
        return along
    return np.abs(along - rng.uniform(-0.25, 0.25) * reach)


def patch(rng, clutter: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Return the pixels of an occluder: another relit part of the picture, or a flat colour."""
    height, width = shape
    y = int(rng.integers(clutter.shape[0] - height + 1))
    x = int(rng.integers(clutter.shape[1] - width + 1))
    part = clutter[y : y + height, x : x + width]
    if rng.random() < 0.3:
        colour = np.clip(part.mean((0, 1)) + rng.uniform(-60, 60, 3), 0, 255)
        return np.broadcast_to(colour.astype(np.float32), part.shape)
    return np.clip(part * rng.uniform(0.6, 1.3) + rng.uniform(-40, 40), 0, 255).astype(np.float32)
