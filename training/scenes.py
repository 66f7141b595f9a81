# SPDX-License-Identifier: Apache-2.0
"""Seeded scenes: handwritten digits on photographs, with boxes, classes and hidden fractions.

`compose(config, index)` is a pure function: it gives the same scene on every machine with the
pinned NumPy and OpenCV. The pixels of a scene do not depend on earlier scenes.
"""

import dataclasses
import functools
from typing import NamedTuple

import backgrounds
import cv2
import numpy as np
import occlusion
import pens
import sources
from shapes import Shape, shape_of


@dataclasses.dataclass(frozen=True)
class SceneConfig:
    """Parameters of the generator. Lengths are source pixels, grey levels are 0-255.

    Attributes:
        split: digits and photographs of this split are used.
        seed: seed of all scenes.
        sizes_wh: possible sizes of a scene.
        size_weights: probabilities of these sizes.
        digits: smallest and largest number of digits in a scene.
        side_px: range of the longer side, log-uniform. The drawn digits have 16 to 120 pixels.
        rotation_deg: largest rotation in both directions, uniform.
        shear: largest horizontal shear in both directions, uniform.
        aspect: range of the width factor before the rotation.
        contrast: range of the luminance difference between the ink and its surroundings.
        clutter_factor: smallest contrast in standard deviations of the surroundings.
        legible_share: share of pixels whose luminance must differ from the ink by half of the
            smallest contrast.
        digit_blur: range of the Gaussian sigma of a digit.
        occluded_share: share of digits that get an occluder. Some occluders find no place.
        hidden: range of the fraction of the ink that an occluder hides.
        border_share: share of digits that may cross the border of the picture.
        distractors: smallest and largest number of occluders that hide no digit.
        crop: range of the used share of the photograph's side.
        gain: range of the factor on the grey levels of the background.
        bias: largest offset of the grey levels of the background in both directions, uniform.
        scene_blur: range of the Gaussian sigma of the picture, for half of the scenes.
        noise: range of the Gaussian sigma of the noise.
        augment: whether backgrounds and strokes are varied, for training only.
        bend_cells: standard deviation of the elastic deformation in scan cells, with `augment`.
        stroke: standard deviation of the stroke's threshold in grey levels, with `augment`.
    """

    split: sources.Split
    seed: int
    sizes_wh: tuple[tuple[int, int], ...] = ((640, 480), (800, 600), (480, 640))
    size_weights: tuple[float, ...] = (0.5, 0.25, 0.25)
    digits: tuple[int, int] = (3, 12)
    side_px: tuple[float, float] = (17.5, 115.0)
    rotation_deg: float = 25.0
    shear: float = 0.15
    aspect: tuple[float, float] = (0.8, 1.2)
    contrast: tuple[float, float] = (60.0, 170.0)
    clutter_factor: float = 1.3
    legible_share: float = 0.92
    digit_blur: tuple[float, float] = (0.3, 1.1)
    occluded_share: float = 0.34
    hidden: tuple[float, float] = (0.05, 0.30)
    border_share: float = 0.04
    distractors: tuple[int, int] = (0, 3)
    crop: tuple[float, float] = (0.55, 1.0)
    gain: tuple[float, float] = (0.75, 1.25)
    bias: float = 25.0
    scene_blur: tuple[float, float] = (0.0, 0.8)
    noise: tuple[float, float] = (0.0, 6.0)
    augment: bool = False
    bend_cells: float = 0.0
    stroke: float = 0.0


TRAIN = SceneConfig(
    split='train',
    seed=1,
    # Most training scenes have the network's size. The others train the letterbox.
    size_weights=(0.7, 0.15, 0.15),
    side_px=(15.0, 122.0),
    rotation_deg=30.0,
    shear=0.3,
    aspect=(0.65, 1.35),
    contrast=(50.0, 180.0),
    legible_share=0.85,
    digit_blur=(0.3, 1.3),
    occluded_share=0.4,
    distractors=(0, 6),
    crop=(0.3, 1.0),
    gain=(0.6, 1.4),
    bias=45.0,
    scene_blur=(0.0, 1.0),
    noise=(0.0, 9.0),
    augment=True,
    bend_cells=0.35,
    stroke=0.06,
)
DEV = SceneConfig(split='dev', seed=2)
EVAL = SceneConfig(split='eval', seed=3)
DEMO = SceneConfig(split='eval', seed=4)

INK_ALPHA = 0.4  # least coverage of an inked pixel, for the truth box
LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)


class Scene(NamedTuple):
    """A picture and its truth, with one row per digit.

    Attributes:
        image: (h, w, 3) uint8 RGB.
        xyxy: (n, 4) float32, tight box of the ink before occlusion, source pixels.
        classes: (n,) int64.
        hidden: (n,) float32, fraction of the ink under occluders or outside the picture.
        shapes: one shape per digit; empty for a scene from a file.
        occluders: (h, w) bool, the area of the occluders; None for a scene from a file.
    """

    image: np.ndarray
    xyxy: np.ndarray
    classes: np.ndarray
    hidden: np.ndarray
    shapes: tuple[Shape, ...] = ()
    occluders: np.ndarray | None = None


class Drawn(NamedTuple):
    """A digit after rotation and scaling, before its placement.

    Attributes:
        alpha: (h, w) float32, coverage of each pixel in [0, 1].
        linear: (2, 2), maps the upright digit to pixels.
        angle: rotation in `linear`, in radians, clockwise in the picture.
    """

    alpha: np.ndarray
    linear: np.ndarray
    angle: float


class Ink(NamedTuple):
    """A drawn digit at its place in the picture.

    Attributes:
        alpha: (h, w) float32, coverage of each pixel in [0, 1]. It may reach beyond the picture.
        left: column of the first pixel.
        top: row of the first pixel.
        linear: as in `Drawn`.
        angle: as in `Drawn`.
    """

    alpha: np.ndarray
    left: int
    top: int
    linear: np.ndarray
    angle: float


def compose(config: SceneConfig, index: int) -> Scene:
    """Return scene number `index` of the endless sequence that `config` describes."""
    rng = np.random.default_rng((config.seed, index))
    size_wh = config.sizes_wh[rng.choice(len(config.sizes_wh), p=config.size_weights)]
    canvas = backgrounds.background(config, rng, size_wh)
    clutter = canvas.copy()  # occluders are cut from the picture without digits

    inks: list[Ink] = []
    classes: list[int] = []
    taken = np.zeros((0, 4), np.float32)
    wanted = int(rng.integers(config.digits[0], config.digits[1] + 1))
    for _ in range(12 * wanted):
        if len(inks) == wanted:
            break
        label = int(rng.integers(10))
        drawn = draw_digit(config, rng, label)
        ink = place(config, rng, drawn, size_wh, taken)
        if ink is None or not blend_ink(config, rng, canvas, ink):
            continue
        inks.append(ink)
        classes.append(label)
        taken = np.vstack([taken, ink_box(ink, size_wh, margin=2)])

    mask = occlusion.occlude(config, rng, canvas, clutter, inks)
    image = finish(config, rng, canvas)
    boxes = [ink_box(ink, size_wh) for ink in inks]
    hidden = [occlusion.hidden_fraction(ink, mask) for ink in inks]
    return Scene(
        image,
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(classes, np.int64),
        np.array(hidden, np.float32),
        tuple(
            shape_of(ink, box, size_wh, INK_ALPHA) for ink, box in zip(inks, boxes, strict=True)
        ),
        mask,
    )


def draw_digit(config: SceneConfig, rng: np.random.Generator, label: int) -> Drawn:
    """Return the coverage of a digit, rotated, sheared and scaled in one warp."""
    choices = pens.pens_by_digit(config.split)[label]
    ink, levels = choices[rng.integers(len(choices))]
    if config.augment:
        ink = pens.bend(rng, ink, config.bend_cells)
        stroke = rng.normal(levels[0] + 0.05, config.stroke, (3, 3)).astype(np.float32)
        ink = ink - cv2.resize(stroke, ink.shape[::-1], interpolation=cv2.INTER_CUBIC)
    else:
        ink = ink - np.float32(levels[rng.integers(len(levels))])

    angle = np.deg2rad(rng.uniform(-config.rotation_deg, config.rotation_deg))
    shear = np.array([[1.0, rng.uniform(-config.shear, config.shear)], [0.0, 1.0]])
    stretch = np.diag([rng.uniform(*config.aspect), 1.0])
    cos, sin = np.cos(angle), np.sin(angle)
    linear = np.array([[cos, -sin], [sin, cos]]) @ shear @ stretch
    # The ink's extent after the rotation fixes the scale, so that `side_px` limits the truth box.
    turned = linear @ np.argwhere(ink > 0)[:, ::-1].T
    low, high = turned.min(1) - 0.5, turned.max(1) + 0.5  # the outer edges of the pixels
    side = np.exp(rng.uniform(*np.log(config.side_px)))
    scale = side / (high - low).max()
    pad = 3 + 0.15 * side
    size = np.ceil((high - low) * scale + 2 * pad).astype(int)
    warp = np.hstack([linear * scale, (pad - low * scale)[:, None]])
    alpha = cv2.warpAffine(ink, warp, size.tolist(), flags=cv2.INTER_CUBIC, borderValue=-0.5)
    alpha = np.clip(alpha / rng.uniform(0.15, 0.35) + 0.5, 0.0, 1.0)
    alpha = cv2.GaussianBlur(alpha, (0, 0), rng.uniform(*config.digit_blur) * min(1, side / 30))
    return Drawn(alpha, linear * scale, float(angle))


def place(
    config: SceneConfig,
    rng: np.random.Generator,
    drawn: Drawn,
    size_wh: tuple[int, int],
    taken: np.ndarray,
) -> Ink | None:
    """Return a free place for a digit, or None after twenty failed attempts."""
    height, width = drawn.alpha.shape
    sticks_out = rng.random() < config.border_share
    for _ in range(20):
        if sticks_out:
            x = int(rng.integers(-width // 3, size_wh[0] - 2 * width // 3))
            y = int(rng.integers(-height // 3, size_wh[1] - 2 * height // 3))
        else:
            x = int(rng.integers(size_wh[0] - width + 1))
            y = int(rng.integers(size_wh[1] - height + 1))
        ink = Ink(drawn.alpha, x, y, drawn.linear, drawn.angle)
        if occlusion.out_of_picture(ink, size_wh) > 0.6 * config.hidden[1]:
            continue
        box = ink_box(ink, size_wh, margin=2)
        overlap = np.minimum(box[2:], taken[:, 2:]) - np.maximum(box[:2], taken[:, :2])
        if not (overlap > 0).all(axis=1).any():
            return ink
    return None


def ink_box(ink: Ink, size_wh: tuple[int, int], margin: int = 0) -> np.ndarray:
    """Return the tight box of the inked pixels, grown by `margin`, clipped: (4,) float32 xyxy."""
    inked = ink.alpha >= INK_ALPHA
    x = np.flatnonzero(inked.any(0)) + ink.left
    y = np.flatnonzero(inked.any(1)) + ink.top
    low = np.maximum([x[0] - margin, y[0] - margin], 0)
    high = np.minimum([x[-1] + 1 + margin, y[-1] + 1 + margin], size_wh)
    return np.concatenate([low, high]).astype(np.float32)


def blend_ink(config: SceneConfig, rng: np.random.Generator, canvas: np.ndarray, ink: Ink) -> bool:
    """Draw the digit onto the canvas; return False if no ink colour would be legible there."""
    spot, alpha = occlusion.cut(canvas, ink)
    luminance = spot @ LUMINANCE
    mean, deviation = float(luminance.mean()), float(luminance.std())
    contrast = max(rng.uniform(*config.contrast), config.clutter_factor * deviation)
    signs = [s for s in (-1, 1) if 0 <= mean + s * contrast <= 255]
    if not signs:
        contrast = max(mean, 255 - mean)  # the larger contrast of black and white ink
        signs = [1 if mean < 127 else -1]
    target = mean + signs[rng.integers(len(signs))] * contrast
    # A mean hides bimodal surroundings, such as half rocket and half sky. So the ink must differ
    # from nearly every pixel under it and around it.
    if float((np.abs(luminance - target) >= config.contrast[0] / 2).mean()) < config.legible_share:
        return False
    colour = target + rng.uniform(-60, 60, 3)
    colour += target - colour @ LUMINANCE  # restores the luminance of the ink
    colour = np.clip(colour, 0, 255).astype(np.float32)
    # restores the luminance that clipping changed
    colour += np.float32(target) - colour @ LUMINANCE
    opacity = rng.uniform(0.88, 1.0)
    spot += (np.clip(colour, 0, 255) - spot) * (alpha * opacity)[..., None]
    return True


@functools.cache
def noise_tile() -> np.ndarray:
    """Return unit Gaussian noise (1200, 1200, 3) float32, drawn only once: drawing takes 15 ms."""
    return np.random.default_rng(0).standard_normal((1200, 1200, 3), np.float32)


def finish(config: SceneConfig, rng: np.random.Generator, canvas: np.ndarray) -> np.ndarray:
    """Add a camera's blur and noise; return (h, w, 3) uint8."""
    sigma = rng.uniform(*config.scene_blur)
    if rng.random() < 0.5 and sigma > 0.2:
        canvas = cv2.GaussianBlur(canvas, (0, 0), sigma)
    height, width = canvas.shape[:2]
    y, x = rng.integers(0, 1200 - height + 1), rng.integers(0, 1200 - width + 1)
    noise = noise_tile()[y : y + height, x : x + width]
    canvas = cv2.addWeighted(canvas, 1.0, noise, rng.uniform(*config.noise), 0.0)
    return np.clip(canvas + 0.5, 0, 255).astype(np.uint8)
