"""Assignment and loss: which anchor answers for which digit, and how wrong it is.

Sources: task-aligned assignment (Feng et al., TOOD, 2021), complete IoU (Zheng et al., 2020),
distribution focal loss (Li et al., 2020). The gains are those usually published with them.
"""

import model as net
import torch
import torch.nn.functional as F  # noqa: N812

TOP_K = 10  # anchors that may answer for one digit
ALPHA, BETA = 0.5, 6.0  # alignment = score ** ALPHA * iou ** BETA
MIN_REACH_PX = 8.0  # half size below which a digit still attracts the anchors around it
GAIN_BOX, GAIN_BINS = 7.5, 1.5


def complete_iou(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Complete IoU of boxes (..., 4) xyxy, in (-1.5, 1]."""
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
    scores: torch.Tensor,
    boxes: torch.Tensor,
    centres: torch.Tensor,
    truth_boxes: torch.Tensor,
    truth_classes: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Give every digit its best-aligned anchors.

    Args:
        scores: (b, n, CLASSES) after sigmoid.
        boxes: (b, n, 4) xyxy, network pixels.
        centres: (2, n) of the anchors, see `model.anchor_points`.
        truth_boxes: (b, m, 4) xyxy; rows beyond a scene's digits are ignored.
        truth_classes: (b, m) int64, -1 in ignored rows.

    Returns:
        (b, n) int64: the digit that an anchor answers for, -1 for none; and (b, n) float32, the
        class score that the anchor should reach, 0 for none.
    """
    real = truth_classes >= 0  # (b, m)
    centre = (truth_boxes[..., :2] + truth_boxes[..., 2:]) / 2
    reach = ((truth_boxes[..., 2:] - truth_boxes[..., :2]) / 2).clamp_min(MIN_REACH_PX)
    offset = (centres.T[None, None] - centre[:, :, None]).abs()  # (b, m, n, 2)
    candidate = (offset < reach[:, :, None]).all(-1) & real[..., None]

    iou = complete_iou(truth_boxes[:, :, None], boxes[:, None]).clamp_min(0)
    index = truth_classes.clamp_min(0)[:, None].expand(-1, scores.shape[1], -1)
    score = scores.gather(2, index).transpose(1, 2)  # (b, m, n)
    alignment = score**ALPHA * iou**BETA * candidate
    # A new network's boxes may all miss a digit; the tiny term then prefers the nearest anchors.
    ranking = alignment + 1e-9 * candidate / (1 + offset.sum(-1))
    kept = torch.zeros_like(candidate)
    kept.scatter_(2, ranking.topk(TOP_K, 2).indices, True)
    kept &= candidate

    # An anchor wanted by two digits answers for the one it overlaps more.
    contested = torch.where(kept, iou + 1e-6, torch.zeros_like(iou))
    best_overlap, owner = contested.max(1)  # (b, n)
    owner = torch.where(best_overlap > 0, owner, -1)

    # The best anchor of a digit should score its IoU, the others in proportion to alignment.
    mine = owner[:, None] == torch.arange(real.shape[1], device=owner.device)[None, :, None]
    alignment = alignment * mine
    top_alignment = alignment.amax(2, keepdim=True)
    top_iou = (iou * mine).amax(2, keepdim=True)
    target = (alignment / (top_alignment + 1e-9) * top_iou).sum(1)
    return owner, target


def detection_loss(
    rows: torch.Tensor,
    centres: torch.Tensor,
    strides: torch.Tensor,
    truth_boxes: torch.Tensor,
    truth_classes: torch.Tensor,
    gain_class: float = 0.5,
) -> dict[str, torch.Tensor]:
    """Weighted parts of the loss of raw rows (b, 4 * BINS + CLASSES, n); their sum is trained."""
    bins, logits = rows.float().split([4 * net.BINS, net.CLASSES], 1)
    near, far = net.distances_from_bins(bins, strides).split(2, 1)
    boxes = torch.cat([centres - near, centres + far], 1).transpose(1, 2)  # (b, n, 4) xyxy
    logits = logits.transpose(1, 2)
    owner, target = assign(
        logits.detach().sigmoid(), boxes.detach(), centres, truth_boxes, truth_classes
    )

    scene, anchor = (owner >= 0).nonzero(as_tuple=True)
    digit = owner[scene, anchor]
    wanted = torch.zeros_like(logits)
    weight = target[scene, anchor]
    wanted[scene, anchor, truth_classes[scene, digit]] = weight
    total = target.sum().clamp_min(1.0)
    loss_class = F.binary_cross_entropy_with_logits(logits, wanted, reduction='sum') / total

    truth = truth_boxes[scene, digit]
    loss_box = ((1 - complete_iou(boxes[scene, anchor], truth)) * weight).sum() / total

    point = centres[:, anchor].T  # (k, 2)
    distance = torch.cat([point - truth[:, :2], truth[:, 2:] - point], 1)
    place = (distance / strides[anchor, None] - net.FIRST_BIN).clamp(0, net.BINS - 1.01)  # (k, 4)
    low = place.floor().long()
    share = place - low
    logp = bins.unflatten(1, (4, net.BINS))[scene, :, :, anchor].log_softmax(2)  # (k, 4, BINS)
    low_logp = logp.gather(2, low[..., None])[..., 0]
    high_logp = logp.gather(2, low[..., None] + 1)[..., 0]
    per_anchor = -((1 - share) * low_logp + share * high_logp).mean(1)
    loss_bins = (per_anchor * weight).sum() / total
    return {
        'box': GAIN_BOX * loss_box,
        'class': gain_class * loss_class,
        'bins': GAIN_BINS * loss_bins,
    }
