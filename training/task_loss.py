# SPDX-License-Identifier: Apache-2.0
"""The losses of the three tasks, in addition to the detector's losses.

Sources: mask coefficients and binary cross entropy inside the box (Bolya et al., YOLACT, 2019),
Dice (Milletari et al., V-Net, 2016), masks learned at random points of the interpolated logits
(Kirillov et al., PointRend, 2020), ProbIoU (Llerena et al., 2021) in Ultralytics' form, and
Huber's loss for the other parts.
"""

from typing import NamedTuple

import loss
import model as net
import task_model
import torch
import torch.nn.functional as F  # noqa: N812

POINTS = 14  # grid points per side; POINTS ** 2 points of each digit are compared with its mask
GAIN_MASK, GAIN_CORNERS, GAIN_ANGLE, GAIN_CLASS = 3.0, 36.0, 48.0, 0.5
SOFT_ANGLE, SOFT_CORNER = 0.02, 0.02  # radians, digit sizes: Huber's loss is linear above


class Truth(NamedTuple):
    """The truth of b scenes with m rows, in network pixels. Rows of class -1 are unused.

    Attributes:
        boxes: (b, m, 4) xyxy.
        classes: (b, m) int64.
        ink: (b, 1, 480, 640) float in [0, 1], 1 where a digit is.
        oriented: (b, m, 5): centre x, centre y, width, height, angle in radians.
        corners: (b, m, 4, 2).
    """

    boxes: torch.Tensor
    classes: torch.Tensor
    ink: torch.Tensor
    oriented: torch.Tensor
    corners: torch.Tensor


def tasks_loss(
    rows: dict[str, torch.Tensor],
    prototypes: torch.Tensor,
    trunk: net.DigitsNet,
    truth: Truth,
    gain_class: float = GAIN_CLASS,
) -> dict[str, torch.Tensor]:
    """Return the weighted parts of the loss by task and name; their sum is trained."""
    parts = {}
    upright = trunk.centres, trunk.strides, truth.boxes, truth.classes, gain_class
    for task in ('segment', 'pose'):
        raw = rows[task].float()
        carried = task_model.split(task, raw)[2]
        found, answers = loss.detection_loss(raw[:, : -carried.shape[1]], *upright)
        if task == 'segment':
            found['mask'] = mask_loss(carried, prototypes.float(), truth, answers)
        else:
            places = task_model.read_carried(task, carried, trunk)
            found['corners'] = corners_loss(places, truth, answers)
        parts |= {f'{task} {name}': value for name, value in found.items()}
    found = oriented_loss(rows['obb'].float(), trunk, truth, gain_class)
    return parts | {f'obb {name}': value for name, value in found.items()}


def mask_loss(
    coefficients: torch.Tensor, prototypes: torch.Tensor, truth: Truth, answers: loss.Answers
) -> torch.Tensor:
    """Return cross entropy and Dice loss at random points of each box.

    Args:
        coefficients: (b, PROTOTYPES, n).
        prototypes: (b, PROTOTYPES, 120, 160).
        truth: truth of the scenes. Boxes do not overlap, so all ink in a box is its digit's.
        answers: the assigned anchors.
    """
    at = points_in(truth.boxes)  # (b, m, p, 2)
    size = at.new_tensor(net.INPUT_WH)
    grid = at / size * 2 - 1  # -1 to 1 over the image, for every resolution
    sampled = F.grid_sample(prototypes, grid, padding_mode='border', align_corners=False)
    inked = F.grid_sample(truth.ink, grid, padding_mode='border', align_corners=False) > 0.5
    wanted = inked[:, 0, :, None].float()  # (b, m, 1, p)
    logits = answers.take(coefficients) @ sampled.transpose(1, 2)  # (b, m, k, p)
    entropy = F.binary_cross_entropy_with_logits(
        logits, wanted.expand_as(logits), reduction='none'
    )
    share = logits.sigmoid()
    dice = 1 - (2 * (share * wanted).sum(3) + 1) / (share.sum(3) + wanted.sum(3) + 1)
    return GAIN_MASK * answers.mean(entropy.mean(3) + dice)


def points_in(boxes: torch.Tensor) -> torch.Tensor:
    """Return a random point per grid cell of boxes (b, m, 4): (b, m, POINTS ** 2, 2)."""
    steps = torch.arange(POINTS, device=boxes.device, dtype=boxes.dtype)
    cells = torch.stack(torch.meshgrid(steps, steps, indexing='xy'), -1).reshape(-1, 2)
    inside = (cells + torch.rand((*boxes.shape[:2], *cells.shape), device=boxes.device)) / POINTS
    low, high = boxes[:, :, None].split(2, -1)
    return low + inside * (high - low)


def corners_loss(places: torch.Tensor, truth: Truth, answers: loss.Answers) -> torch.Tensor:
    """Return Huber's loss of corners (b, 8, n), relative to the digit's size as in OKS."""
    found = answers.take(places).unflatten(3, (-1, 2))  # (b, m, k, 4, 2)
    wanted = truth.corners[:, :, None].expand_as(found)
    size = truth.boxes[..., 2:] - truth.boxes[..., :2]
    side = size.prod(2).clamp_min(1).sqrt()[..., None, None, None]
    each = F.smooth_l1_loss(found / side, wanted / side, beta=SOFT_CORNER, reduction='none')
    return GAIN_CORNERS * answers.mean(each.mean((3, 4)))


def oriented_loss(
    raw: torch.Tensor, trunk: net.DigitsNet, truth: Truth, gain_class: float
) -> dict[str, torch.Tensor]:
    """Return the loss parts of raw rows (b, 4 * BINS + CLASSES + 1, n) of oriented boxes.

    ProbIoU hardly depends on the angle of an almost square box, so the angle has its own part. The
    true angle of a digit is known, and only one angle describes its box.
    """
    bins, logits, carried = task_model.split('obb', raw)
    angle = task_model.read_carried('obb', carried, trunk)
    distances = net.distances_from_bins(bins, trunk.strides)
    centre, size = task_model.turned_boxes(distances, angle, trunk.centres)
    boxes = torch.cat([centre, size, angle], 1)  # (b, 5, n)
    answers = loss.assign(
        logits,
        boxes.transpose(1, 2),
        trunk.centres,
        truth.boxes,
        truth.classes,
        prob_iou,
        truth.oriented,
    )
    found = answers.take(boxes)  # (b, m, k, 5)
    wanted = truth.oriented[:, :, None].expand_as(found)
    distance = distances_along(trunk.centres.T[answers.anchor], wanted)
    turned = F.smooth_l1_loss(found[..., 4], wanted[..., 4], beta=SOFT_ANGLE, reduction='none')
    return {
        'box': loss.GAIN_BOX * answers.mean(1 - prob_iou(wanted, found)),
        'class': gain_class * loss.class_loss(logits, answers, truth.classes),
        'bins': loss.GAIN_BINS * loss.bins_loss(bins, answers, distance, trunk.strides),
        'angle': GAIN_ANGLE * answers.mean(turned),
    }


def distances_along(points: torch.Tensor, oriented: torch.Tensor) -> torch.Tensor:
    """Return distances of points (..., 2) to the sides of oriented boxes (..., 5): (..., 4)."""
    x, y = (points - oriented[..., :2]).unbind(-1)
    cos, sin = oriented[..., 4].cos(), oriented[..., 4].sin()
    place = torch.stack([x * cos + y * sin, y * cos - x * sin], -1)
    half = oriented[..., 2:4] / 2
    return torch.cat([half + place, half - place], -1)


def prob_iou(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ProbIoU of oriented boxes (..., 5): 1 - the Hellinger distance of their Gaussians."""
    eps = 1e-6
    (ax, ay, a1, a2, a3), (bx, by, b1, b2, b3) = gaussian(a), gaussian(b)
    s1, s2, s3 = a1 + b1, a2 + b2, a3 + b3
    both = (s1 * s2 - s3.square()).clamp_min(eps)
    x, y = ax - bx, ay - by
    far = (s1 * y.square() + s2 * x.square()) / both / 4 - s3 * x * y / both / 2
    alone = (
        (a1 * a2 - a3.square()).clamp_min(eps) * (b1 * b2 - b3.square()).clamp_min(eps)
    ).sqrt()
    distance = (far + (both / (4 * alone)).log() / 2).clamp(eps, 100)
    return 1 - (1 - (-distance).exp() + eps).sqrt()


def gaussian(boxes: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return mean x and y, variances along x and y, and covariance of oriented boxes (..., 5)."""
    x, y, width, height, angle = boxes.unbind(-1)
    along, across = width.clamp_min(1).square() / 12, height.clamp_min(1).square() / 12
    cos, sin = angle.cos(), angle.sin()
    return (
        x,
        y,
        along * cos.square() + across * sin.square(),
        along * sin.square() + across * cos.square(),
        (along - across) * cos * sin,
    )
