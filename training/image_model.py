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
MAP_STRIDE = 4


class Backbone(nn.Module):
    """The first layers of the detector: 24 channels at stride 4, and 48 at stride 8."""

    def __init__(self):
        super().__init__()
        detector = net.DigitsNet()
        self.stem, self.stage4, self.stage8 = detector.stem, detector.stage4, detector.stage8

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        at4 = self.stage4(self.stem(images))
        return at4, self.stage8(at4)


class ImageClassifier(nn.Module):
    """Logits of the digits (b, 10) of crops (b, 3, 64, 64) in [0, 1]."""

    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.deep = net.ConvUnit(48, 40, stride=2)
        self.leave = nn.Linear(40, DIGITS)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.leave(self.deep(self.backbone(images)[1]).mean((2, 3)))


class PixelClassifier(nn.Module):
    """Logits of the pixels' classes: (b, 3, h, w) in [0, 1] to (b, 11, h / 4, w / 4)."""

    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.near = net.ConvUnit(24, 16, 1)
        self.middle = net.ConvUnit(48, 24, 1)
        self.far = net.ConvUnit(24, 32, stride=2)
        self.merge = net.ConvUnit(24 + 32, 24, 1)
        self.refine = net.ConvUnit(16 + 24, 20)
        self.leave = nn.Conv2d(20, PIXEL_CLASSES, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        at4, at8 = self.backbone(images)
        middle = self.middle(at8)
        far = F.interpolate(self.far(middle), scale_factor=2.0)
        merged = self.merge(torch.cat([middle, far], 1))
        fine = torch.cat([self.near(at4), F.interpolate(merged, scale_factor=2.0)], 1)
        return self.leave(self.refine(fine))


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

    For pixels, it is the cross entropy of all pixels, plus the mean cross entropy of the inked
    pixels. Otherwise the many pixels of the background would hide the errors of the classes.

    Args:
        task: a key of NETWORKS.
        outputs: logits, the output of the task's network.
        truth: digits (b,), or classes of pixels (b, h, w).
    """
    if task == 'classify':
        return F.cross_entropy(outputs, truth)
    # Half of the resolution is enough for the outlines, and four times as fast.
    resized = F.interpolate(outputs, scale_factor=MAP_STRIDE / 2, mode='bilinear')
    classes = truth[:, ::2, ::2].long()
    each = F.cross_entropy(resized, classes, reduction='none')
    return each.mean() + 0.3 * each[classes > 0].mean()
