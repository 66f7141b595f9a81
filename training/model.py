# SPDX-License-Identifier: Apache-2.0
"""The digits detector: a small anchor-free one-stage network with a dense output.

The form is usual for such detectors: strided 3x3 convolutions; stages that split, refine and
concatenate; pyramid pooling; a top-down and bottom-up neck; separate box and class branches. Box
distances are distributions over bins (Li et al., Generalized Focal Loss, 2020). The code was
written for this package. A stride-32 output is unnecessary: the longest digit has 120 px, which is
seven cells of stride 16.
"""

import torch
import torch.nn.functional as F  # noqa: N812 (everybody calls it F)
from torch import nn

INPUT_WH = (640, 480)
STRIDES = (8, 16)
# Shapes are constants, so that the exported graph does not compute them.
CELLS = tuple(INPUT_WH[0] // stride * (INPUT_WH[1] // stride) for stride in STRIDES)
CLASSES = 10
BINS = 16
# The first bin is one cell *outside* the anchor, because a narrow 1 may lie between two anchors.
FIRST_BIN = -1.0


class ConvUnit(nn.Module):
    """Convolution, batch normalisation, SiLU; (b, cin, h, w) to (b, cout, h/stride, w/stride)."""

    def __init__(self, cin: int, cout: int, kernel: int = 3, stride: int = 1, groups: int = 1):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(cout, eps=1e-3, momentum=0.03)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.norm(self.conv(x)))

    def folded(self) -> nn.Conv2d:
        """Return the convolution with the normalisation folded into weight and bias."""
        gain = self.norm.weight / torch.sqrt(self.norm.running_var + self.norm.eps)
        conv = self.conv
        fused = nn.Conv2d(
            conv.in_channels,
            conv.out_channels,
            conv.kernel_size,
            conv.stride,
            conv.padding,
            groups=conv.groups,
        )
        fused.weight.data = conv.weight.data * gain.data[:, None, None, None]
        fused.bias.data = self.norm.bias.data - self.norm.running_mean * gain.data
        return fused


class Refine(nn.Module):
    """Two 3x3 convolutions with a residual connection."""

    def __init__(self, channels: int):
        super().__init__()
        self.first = ConvUnit(channels, channels)
        self.second = ConvUnit(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(self.first(x))


class Stage(nn.Module):
    """Refines half of the channels `depth` times; a 1x1 convolution joins all steps."""

    def __init__(self, cin: int, cout: int, depth: int = 1):
        super().__init__()
        self.half = cout // 2
        self.enter = ConvUnit(cin, cout, 1)
        self.steps = nn.ModuleList(Refine(self.half) for _ in range(depth))
        self.leave = ConvUnit(self.half * (2 + depth), cout, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.enter(x).split(self.half, 1))
        for step in self.steps:
            parts.append(step(parts[-1]))
        return self.leave(torch.cat(parts, 1))


class PyramidPool(nn.Module):
    """Adds maxima over 5, 9 and 13 cells to the input, for the surroundings of a digit."""

    def __init__(self, channels: int):
        super().__init__()
        self.enter = ConvUnit(channels, channels // 2, 1)
        self.leave = ConvUnit(channels * 2, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.enter(x)]
        for _ in range(3):
            parts.append(F.max_pool2d(parts[-1], 5, 1, 2))
        return self.leave(torch.cat(parts, 1))


class Head(nn.Module):
    """Box bins and class logits of one level: (b, c, h, w) to (b, 4 * BINS + CLASSES, h, w)."""

    def __init__(self, cin: int, box_width: int = 32, class_width: int = 48):
        super().__init__()
        self.box = nn.Sequential(
            ConvUnit(cin, box_width),
            ConvUnit(box_width, box_width),
            nn.Conv2d(box_width, 4 * BINS, 1),
        )
        self.classes = nn.Sequential(
            ConvUnit(cin, class_width),
            ConvUnit(class_width, class_width),
            nn.Conv2d(class_width, CLASSES, 1),
        )
        nn.init.zeros_(self.box[-1].bias)
        # digits are rare, so the first scores are near 0.7 %
        nn.init.constant_(self.classes[-1].bias, -5.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.box(x), self.classes(x)], 1)


class DigitsNet(nn.Module):
    """Backbone, neck and heads.

    In training, `forward` returns the raw rows (b, 4 * BINS + CLASSES, n) for the loss. In
    evaluation, it returns (b, 4 + CLASSES, n): cx, cy, w, h in network pixels, then scores.
    """

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(ConvUnit(3, 16, stride=2), ConvUnit(16, 24, stride=2))
        self.stage4 = Stage(24, 24, depth=2)
        self.stage8 = nn.Sequential(ConvUnit(24, 48, stride=2), Stage(48, 48, depth=2))
        self.stage16 = nn.Sequential(ConvUnit(48, 80, stride=2), Stage(80, 80))
        self.stage32 = nn.Sequential(ConvUnit(80, 80, stride=2), PyramidPool(80))
        self.merge16 = Stage(160, 64)
        self.merge8 = Stage(112, 48, depth=2)
        self.down16 = ConvUnit(48, 48, stride=2)
        self.out16 = Stage(112, 64)
        self.heads = nn.ModuleList([Head(48), Head(64)])
        # Two buffers, each used once, because the exporter stores a constant for every use.
        centres, strides = anchor_points()
        self.register_buffer('centres', centres, persistent=False)
        self.register_buffer('strides', strides, persistent=False)

    def features(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Convert images (b, 3, 480, 640) in [0, 1] to features at strides 4, 8 and 16.

        The features have 24, 48 and 64 channels. The features at strides 8 and 16 are outputs of
        the neck and inputs of the heads.
        """
        at4 = self.stage4(self.stem(images))
        at8 = self.stage8(at4)
        at16 = self.stage16(at8)
        at32 = self.stage32(at16)
        mid16 = self.merge16(torch.cat([F.interpolate(at32, scale_factor=2.0), at16], 1))
        out8 = self.merge8(torch.cat([F.interpolate(mid16, scale_factor=2.0), at8], 1))
        return at4, out8, self.out16(torch.cat([self.down16(out8), mid16], 1))

    def rows(self, images: torch.Tensor) -> torch.Tensor:
        """Convert images (b, 3, 480, 640) in [0, 1] to raw rows (b, 4 * BINS + CLASSES, n)."""
        levels = zip(self.heads, self.features(images)[1:], CELLS, strict=True)
        rows = 4 * BINS + CLASSES
        return torch.cat([head(x).reshape(-1, rows, cells) for head, x, cells in levels], 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows = self.rows(images)
        if self.training:
            return rows
        bins, logits = rows.split([4 * BINS, CLASSES], 1)
        near, far = distances_from_bins(bins, self.strides).split(2, 1)
        centre = self.centres + (far - near) / 2
        return torch.cat([centre, near + far, logits.sigmoid()], 1)


def anchor_points() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cell centres x, y (2, n) and strides (n,) of all levels, in network pixels."""
    centres, strides = [], []
    for stride in STRIDES:
        x = (torch.arange(INPUT_WH[0] // stride) + 0.5) * stride
        y = (torch.arange(INPUT_WH[1] // stride) + 0.5) * stride
        grid_y, grid_x = torch.meshgrid(y, x, indexing='ij')
        centres.append(torch.stack([grid_x, grid_y]).flatten(1))
        strides.append(torch.full((grid_x.numel(),), float(stride)))
    return torch.cat(centres, 1), torch.cat(strides)


def distances_from_bins(bins: torch.Tensor, strides: torch.Tensor) -> torch.Tensor:
    """Convert bins (b, 4 * BINS, n) to distances left, top, right, bottom in px: (b, 4, n)."""
    share = bins.reshape(-1, 4, BINS, sum(CELLS)).softmax(2)
    steps = torch.arange(BINS, dtype=share.dtype, device=share.device) + FIRST_BIN
    return (share * steps[:, None]).sum(2) * strides


def fold_normalisation(model: nn.Module) -> nn.Module:
    """Replace every `ConvUnit`'s normalisation by a bias, in place, for the export."""
    for unit in model.modules():
        if isinstance(unit, ConvUnit):
            unit.conv = unit.folded()
            unit.norm = nn.Identity()
    return model
