# SPDX-License-Identifier: Apache-2.0
"""Backgrounds of the digits: crops of photographs, with much more clutter for training."""

import cv2
import numpy as np
import sources


def background(config, rng: np.random.Generator, size_wh: tuple[int, int]) -> np.ndarray:
    """Return a relit crop of a photograph at scene size, (h, w, 3) float32; varied for training.

    `config` is a `scenes.SceneConfig`.
    """
    picture = photograph_crop(config, rng, size_wh)
    if config.augment:
        picture = vary(config, rng, picture)
    gain = rng.uniform(*config.gain)
    bias = rng.uniform(-config.bias, config.bias)
    return np.clip((picture - 127.0) * gain + 127.0 + bias, 0.0, 255.0)


def photograph_crop(config, rng: np.random.Generator, size_wh: tuple[int, int]) -> np.ndarray:
    """Return a part of a random photograph, mirrored with probability 0.5: (h, w, 3) float32."""
    photographs = sources.photographs(config.split)
    photograph = photographs[rng.integers(len(photographs))]
    if config.augment:
        photograph = np.rot90(photograph, int(rng.integers(4)))
    height, width = photograph.shape[:2]
    fit = min(width / size_wh[0], height / size_wh[1]) * rng.uniform(*config.crop)
    crop_w, crop_h = int(size_wh[0] * fit), int(size_wh[1] * fit)
    x = int(rng.integers(width - crop_w + 1))
    y = int(rng.integers(height - crop_h + 1))
    crop = np.ascontiguousarray(photograph[y : y + crop_h, x : x + crop_w])
    if rng.random() < 0.5:
        crop = crop[:, ::-1]
    interpolation = cv2.INTER_AREA if fit > 1 else cv2.INTER_CUBIC
    return cv2.resize(crop, size_wh, interpolation=interpolation).astype(np.float32)


def vary(config, rng: np.random.Generator, picture: np.ndarray) -> np.ndarray:
    """Blend, recolour and clutter a picture, because there are only ten training photographs."""
    size_wh = (picture.shape[1], picture.shape[0])
    if rng.random() < 0.35:
        weight = rng.uniform(0.2, 0.8)
        if rng.random() < 0.6:
            other = texture(rng, size_wh)
        else:
            other = photograph_crop(config, rng, size_wh)
        picture = picture * weight + other * (1 - weight)
    mix = np.eye(3) + rng.uniform(-0.5, 0.5, (3, 3))
    mix /= np.maximum(np.abs(mix).sum(1, keepdims=True), 1e-3)
    picture = cv2.transform(picture, mix.astype(np.float32))
    if rng.random() < 0.3:
        picture = 255.0 - picture
    if rng.random() < 0.5:
        spots(rng, picture)
    return picture


def texture(rng: np.random.Generator, size_wh: tuple[int, int]) -> np.ndarray:
    """Return coloured noise of several scales and, sometimes, lines: (h, w, 3) float32."""
    picture = np.zeros((size_wh[1], size_wh[0], 3), np.float32)
    for cells in (2, int(rng.integers(3, 9)), int(rng.integers(9, 60))):
        grid = rng.uniform(0, 255, (cells, cells, 3)).astype(np.float32)
        kind = cv2.INTER_CUBIC if rng.random() < 0.7 else cv2.INTER_NEAREST
        picture += cv2.resize(grid, size_wh, interpolation=kind) / 3.0
    for _ in range(int(rng.integers(0, 25))):
        ends = rng.uniform(-100, 900, (2, 2)).astype(int)
        colour = rng.uniform(0, 255, 3).tolist()
        thickness = int(rng.integers(1, 8))
        cv2.line(picture, ends[0].tolist(), ends[1].tolist(), colour, thickness, cv2.LINE_AA)
    return picture


def spots(rng: np.random.Generator, picture: np.ndarray) -> None:
    """Paint soft blobs in place, some with rays, that look like lamps, glints and shadows."""
    height, width = picture.shape[:2]
    for _ in range(int(rng.integers(1, 13))):
        radius = float(np.exp(rng.uniform(np.log(3), np.log(45))))
        reach = int(radius * 2.2) + 2
        x, y = int(rng.integers(width)), int(rng.integers(height))
        x0, y0 = max(x - reach, 0), max(y - reach, 0)
        x1, y1 = min(x + reach, width), min(y + reach, height)
        v, u = np.mgrid[y0 - y : y1 - y, x0 - x : x1 - x].astype(np.float32) / radius
        angle = rng.uniform(0, np.pi)
        along = u * np.cos(angle) + v * np.sin(angle)
        across = (v * np.cos(angle) - u * np.sin(angle)) * rng.uniform(1, 3)
        distance = np.hypot(along, across)
        if rng.random() < 0.3:
            rays = int(rng.integers(2, 9))
            distance = distance * (1.2 - np.abs(np.cos(rays * np.arctan2(across, along))))
        cover = 1 / (1 + np.exp(np.clip((distance - 1) * rng.uniform(3, 25), -30, 30)))
        colour = rng.uniform(0, 255) + rng.uniform(-50, 50, 3)
        part = picture[y0:y1, x0:x1]
        part += (colour.astype(np.float32) - part) * (cover * rng.uniform(0.4, 1))[..., None]
