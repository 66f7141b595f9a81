# SPDX-License-Identifier: Apache-2.0
"""Assignment of anchors to digits, and the loss of their predictions.

Sources: task-aligned assignment (Feng et al., TOOD, 2021), complete IoU (Zheng et al., 2020),
distribution focal loss (Li et al., 2020). The gains are the usual published values.
"""

from collections.abc import Callable
from typing import NamedTuple

import model as net
import torch
import torch.nn.functional as F  # noqa: N812

TOP_K = 10  # anchors assigned to one digit at most
ALPHA, BETA = 0.5, 6.0  # alignment = score ** ALPHA * iou ** BETA
MIN_REACH_PX = 8.0  # a digit with a smaller half size attracts anchors up to this distance
GAIN_BOX, GAIN_BINS = 7.5, 1.5

Overlap = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def complete_iou(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the complete IoU of boxes (..., 4) xyxy, in (-1.5, 1]."""
    eps = 1e-7
    overlap = (
        torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])
    ).clamp_min(0)
    hull = torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])
    size_a, size_b = a[..., 2:] - a[..., :2], b[..., 2:] - b[..., :2]
    inter = overlap.prod(-1)
    iou = inter / (size_a.prod(-1) + size_b.prod(-1) - inter + eps)
    centre = (a[..., :2] + a[..., 2:] - b[..., :2] - b[..., 2:]) / 2
    distance = centre.square().sum(-1) / (hull.square().sum(-1) + eps)
    angle_a = torch.atan(size_a[..., 0] / (size_a[..., 1] + eps))
    angle_b = torch.atan(size_b[..., 0] / (size_b[..., 1] + eps))
    aspect = 4 / torch.pi**2 * (angle_a - angle_b).square()
    with torch.no_grad():
        weight = aspect / (1 - iou + aspect + eps)
    return iou - distance - weight * aspect


@torch.no_grad()
def assign(
    logits: torch.Tensor,
    boxes: torch.Tensor,
    centres: torch.Tensor,
    truth_boxes: torch.Tensor,
    truth_classes: torch.Tensor,
    overlap: Overlap = complete_iou,
    truth: torch.Tensor | None = None,
) -> 'Answers':
    """Assign to every digit its best-aligned anchors.

    Args:
        logits: (b, CLASSES, n).
        boxes: (b, n, 4) xyxy, network pixels; or in the form of `overlap`.
        centres: (2, n), anchor centres, see `model.anchor_points`.
        truth_boxes: (b, m, 4) xyxy; unused rows are ignored.
        truth_classes: (b, m) int64, -1 in ignored rows.
        overlap: function that compares two boxes, at most 1.
        truth: (b, m, v), the truth in the form of `overlap`; default: `truth_boxes`.

    Returns:
        The anchors assigned to each digit. Shapes do not depend on values, so the host does not
        wait for the GPU.
    """
    real = truth_classes >= 0  # (b, m)
    centre = (truth_boxes[..., :2] + truth_boxes[..., 2:]) / 2
    reach = ((truth_boxes[..., 2:] - truth_boxes[..., :2]) / 2).clamp_min(MIN_REACH_PX)
    offset = (centres.T[None, None] - centre[:, :, None]).abs()  # (b, m, n, 2)
    candidate = (offset < reach[:, :, None]).all(-1) & real[..., None]

    truth = truth_boxes if truth is None else truth
    iou = overlap(truth[:, :, None], boxes[:, None]).clamp_min(0)
    index = truth_classes.clamp_min(0)[..., None].expand(-1, -1, logits.shape[2])
    score = logits.gather(1, index).sigmoid()  # (b, m, n)
    alignment = score**ALPHA * iou**BETA * candidate
    # The boxes of a new network may all miss a digit. The tiny term prefers the nearest anchors.
    ranking = alignment + 1e-9 * candidate / (1 + offset.sum(-1))
    anchor = ranking.topk(TOP_K, 2).indices  # (b, m, TOP_K)
    kept = torch.zeros_like(candidate).scatter(2, anchor, True) & candidate

    # An anchor assigned to two digits keeps the digit with the larger overlap.
    owner = torch.where(kept, iou + 1e-6, torch.zeros_like(iou)).argmax(
        1, keepdim=True
    )  # (b, 1, n)
    mine = kept & (owner == torch.arange(real.shape[1], device=owner.device)[:, None])

    # The target score of a digit's best anchor is its IoU; others are proportional to alignment.
    alignment, iou = ((each * mine).gather(2, anchor) for each in (alignment, iou))
    share = alignment / (alignment.amax(2, keepdim=True) + 1e-9)
    weight = share * iou.amax(2, keepdim=True)
    return Answers(anchor, weight, weight.sum().clamp_min(1.0))


class Answers(NamedTuple):
    """Assigned anchors: k places for each of m digits in b scenes.

    Attributes:
        anchor: (b, m, k) int64, index of the anchor.
        weight: (b, m, k), target class score of the anchor; 0 if the place is not assigned.
        total: sum of the weights, at least 1; a scalar.
    """

    anchor: torch.Tensor
    weight: torch.Tensor
    total: torch.Tensor

    def mean(self, per_place: torch.Tensor) -> torch.Tensor:
        """Return the weighted mean of (b, m, k) values, all finite."""
        return (per_place * self.weight).sum() / self.total

    def take(self, values: torch.Tensor) -> torch.Tensor:
        """Select values (b, v, n) at the assigned anchors: (b, m, k, v)."""
        scenes, digits, places = self.anchor.shape
        index = self.anchor.reshape(scenes, 1, -1).expand(-1, values.shape[1], -1)
        return values.gather(2, index).unflatten(2, (digits, places)).permute(0, 2, 3, 1)


def class_loss(logits: torch.Tensor, found: Answers, truth_classes: torch.Tensor) -> torch.Tensor:
    """Return the binary cross entropy of logits (b, CLASSES, n), as log(1 + e^x) - target x."""
    index = truth_classes.clamp_min(0)[..., None, None].expand(*found.anchor.shape, 1)
    reached = found.take(logits).gather(3, index)[..., 0]
    return (F.softplus(logits).sum() - (found.weight * reached).sum()) / found.total


def bins_loss(
    bins: torch.Tensor, found: Answers, distance: torch.Tensor, strides: torch.Tensor
) -> torch.Tensor:
    """Return the distribution focal loss of `bins`, (b, 4 * BINS, n).

    `distance`, (b, m, k, 4), has the true distances from each anchor to the sides of its box, in
    pixels.
    """
    place = distance / strides[found.anchor][..., None] - net.FIRST_BIN
    place = place.clamp(0, net.BINS - 1.01)  # (b, m, k, 4)
    low = place.floor().long()
    share = place - low
    logp = found.take(bins).unflatten(3, (4, net.BINS)).log_softmax(4)
    low_logp = logp.gather(4, low[..., None])[..., 0]  # (b, m, k, 4)
    high_logp = logp.gather(4, low[..., None] + 1)[..., 0]
    return found.mean(-((1 - share) * low_logp + share * high_logp).mean(3))


def detection_loss(
    rows: torch.Tensor,
    centres: torch.Tensor,
    strides: torch.Tensor,
    truth_boxes: torch.Tensor,
    truth_classes: torch.Tensor,
    gain_class: float = 0.5,
) -> tuple[dict[str, torch.Tensor], Answers]:
    """Return the weighted parts of the loss of raw rows (b, 4 * BINS + CLASSES, n).

    The second value holds the assigned anchors.
    """
    bins, logits = rows.float().split([4 * net.BINS, net.CLASSES], 1)
    near, far = net.distances_from_bins(bins, strides).split(2, 1)
    boxes = torch.cat([centres - near, centres + far], 1)  # (b, 4, n) xyxy
    found = assign(logits, boxes.transpose(1, 2), centres, truth_boxes, truth_classes)
    truth = truth_boxes[:, :, None]
    point = centres.T[found.anchor]  # (b, m, k, 2)
    distance = torch.cat([point - truth[..., :2], truth[..., 2:] - point], 3)
    parts = {
        'box': GAIN_BOX * found.mean(1 - complete_iou(found.take(boxes), truth)),
        'class': gain_class * class_loss(logits, found, truth_classes),
        'bins': GAIN_BINS * bins_loss(bins, found, distance, strides),
    }
    return parts, found
