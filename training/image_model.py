# SPDX-License-Identifier: Apache-2.0
"""Small networks that describe the whole image: a classifier, and a class for each pixel.

Both start with the first layers of the shipped segmentation model, up to stride 8.
"""

import pathlib

import model as net
import numpy as np
import task_model
import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)
from torch import nn

DIGITS = net.CLASSES
PIXEL_CLASSES = DIGITS + 1  # the first class is the background
MAP_STRIDE = 2


class Backbone(nn.Module):
    """The first layers of the detector: 24 channels at stride 4, and 48 at stride 8."""

    def __init__(self):
        super().__init__()
        detector = net.DigitsNet()
        self.stem, self.stage4, self.stage8 = detector.stem, detector.stage4, detector.stage8

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        at4 = self.stage4(self.stem(images))
        return at4, self.stage8(at4)


class DepthwiseUnit(nn.Module):
    """Widens the channels, and convolves each alone over 5x5 cells (an inverted residual block).

    Such a block sees far with few weights: Sandler et al., MobileNetV2, 2018.
    """

    def __init__(self, cin: int, cout: int, stride: int = 1):
        super().__init__()
        wide = 2 * cin
        self.enter = net.ConvUnit(cin, wide, 1)
        self.spread = net.ConvUnit(wide, wide, 5, stride, groups=wide)
        self.leave = net.ConvUnit(wide, cout, 1)
        self.adds = cin == cout and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.leave(self.spread(self.enter(x)))
        return x + y if self.adds else y


class ImageClassifier(nn.Module):
    """Logits of the digits (b, 10) of crops (b, 3, 64, 64) in [0, 1]."""

    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.deep = nn.Sequential(
            DepthwiseUnit(48, 64, stride=2),
            *(DepthwiseUnit(64, 64) for _ in range(3)),
            net.ConvUnit(64, 128, 1),
        )
        self.leave = nn.Linear(128, DIGITS)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.leave(self.deep(self.backbone(images)[1]).mean((2, 3)))


class PixelClassifier(nn.Module):
    """Logits of the pixels' classes: (b, 3, h, w) in [0, 1] to (b, 11, h / 2, w / 2).

    Digits are recognised at strides 8 and 16. Strides 4 and 2 add the outlines.
    """

    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.far = nn.Sequential(
            DepthwiseUnit(48, 64, stride=2), DepthwiseUnit(64, 64), DepthwiseUnit(64, 64)
        )
        self.merge8 = nn.Sequential(net.ConvUnit(64 + 48, 48, 1), DepthwiseUnit(48, 48))
        self.merge4 = nn.Sequential(net.ConvUnit(48 + 24, 24, 1), net.ConvUnit(24, 24))
        self.merge2 = nn.Sequential(net.ConvUnit(24 + 16, 16, 1), net.ConvUnit(16, 16))
        self.leave = nn.Conv2d(16, PIXEL_CLASSES, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        at2 = self.backbone.stem[0](images)
        at4 = self.backbone.stage4(self.backbone.stem[1](at2))
        at8 = self.backbone.stage8(at4)
        x = self.merge8(join(self.far(at8), at8))
        x = self.merge4(join(x, at4))
        return self.leave(self.merge2(join(x, at2)))


def join(coarse: torch.Tensor, fine: torch.Tensor) -> torch.Tensor:
    """Return the channels of two maps at the stride of the finer map."""
    return torch.cat([F.interpolate(coarse, scale_factor=2.0), fine], 1)


NETWORKS = {'classify': ImageClassifier, 'semantic': PixelClassifier}


def load_backbone(backbone: Backbone, path: pathlib.Path, images: np.ndarray) -> None:
    """Load the weights of the shipped segmentation model, in place.

    Args:
        backbone: a new backbone.
        path: models/digits_segment.onnx.
        images: (b, 480, 640, 3) uint8, some dozens of scenes. They serve to measure new
            normalisation statistics.
    """
    model = task_model.TasksNet().model_of('segment')
    task_model.load_folded(model, path, torch.from_numpy(images).permute(0, 3, 1, 2) / 255)
    for name in ('stem', 'stage4', 'stage8'):
        getattr(backbone, name).load_state_dict(getattr(model.trunk, name).state_dict())


def loss_of(task: str, outputs: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Return the loss of logits.

    Args:
        task: a key of NETWORKS.
        outputs: logits, the output of the task's network.
        truth: digits (b,), or classes of pixels (b, h, w).
    """
    if task == 'classify':
        return F.cross_entropy(outputs, truth)
    # One pixel of each 2x2 pixels is enough, but another one in each step: always the first pixel
    # would move the outlines.
    row, column = torch.randint(2, (2,)).tolist()
    resized = F.interpolate(outputs, scale_factor=float(MAP_STRIDE), mode='bilinear')
    return pixel_loss(resized[..., row::2, column::2], truth[:, row::2, column::2].long())


def pixel_loss(logits: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    """Return the loss of logits (b, 11, h, w) for the classes (b, h, w) of the same pixels.

    It is the sum of three parts:

    - the cross entropy of all pixels, which are nearly all background;
    - the cross entropy between the digits, of inked pixels only. A larger weight of inked pixels
      in the first part would widen the strokes;
    - one minus the mean IoU, with probabilities instead of decisions (Rahman and Wang, 2016).
    """
    found = logits.softmax(1)
    wanted = F.one_hot(classes, PIXEL_CLASSES).permute(0, 3, 1, 2)
    shared = (found * wanted).sum((0, 2, 3))
    size = wanted.sum((0, 2, 3))
    iou = shared / (found.sum((0, 2, 3)) + size - shared)
    # The background has no digit, and is ignored by its class -1.
    digits = F.cross_entropy(logits[:, 1:], classes - 1, ignore_index=-1, reduction='sum')
    digits = digits / size[1:].sum().clamp(min=1)
    return 4 * F.cross_entropy(logits, classes) + 0.5 * digits + 1 - iou[size > 0].mean()
