# SPDX-License-Identifier: Apache-2.0
"""Record the results of torchvision's detectors. record.py has the commands."""

from __future__ import annotations

import numpy as np
import torch
from tiny_exports import HEIGHT, NAMES, WIDTH, export, picture, save, spread_outputs

TORCHVISION = ('ssd', 'retinanet', 'faster_rcnn', 'mask_rcnn', 'keypoint_rcnn')


class Grids(torch.nn.Module):
    """A backbone that returns two feature grids by name, as torchvision's SSD expects."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 16, 7, 8, 3)
        self.second = torch.nn.Conv2d(16, 16, 3, 2, 1)

    def forward(self, image):
        first = torch.relu(self.first(image))
        return {'0': first, '1': torch.relu(self.second(first))}


def rcnn(family):
    """Return the class of an R-CNN and the arguments of its additional heads."""
    from torchvision.models import detection
    from torchvision.ops import MultiScaleRoIAlign

    head = torch.nn.Sequential(torch.nn.Conv2d(16, 8, 3, 1, 1), torch.nn.ReLU())
    pool = MultiScaleRoIAlign(['0'], 6, 2)
    if family == 'mask_rcnn':
        last = detection.mask_rcnn.MaskRCNNPredictor(8, 8, len(NAMES))
        extra = {'mask_roi_pool': pool, 'mask_head': head, 'mask_predictor': last}
        return detection.MaskRCNN, extra
    if family == 'keypoint_rcnn':
        last = detection.keypoint_rcnn.KeypointRCNNPredictor(8, 4)
        extra = {
            'keypoint_roi_pool': pool,
            'keypoint_head': head,
            'keypoint_predictor': last,
        }
        return detection.KeypointRCNN, extra
    return detection.FasterRCNN, {}


def torchvision_model(family):
    """Return a tiny detector with random weights."""
    from torchvision.models import detection
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
    from torchvision.ops import MultiScaleRoIAlign

    if family == 'ssd':
        anchors = detection.anchor_utils.DefaultBoxGenerator([[2], [2]], scales=[0.3, 0.6, 0.9])
        return detection.ssd.SSD(
            Grids(),
            anchors,
            (WIDTH, HEIGHT),
            len(NAMES),
            score_thresh=0.0,
            topk_candidates=40,
            detections_per_img=30,
        )
    backbone = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 7, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 16, 3, 2, 1)
    )
    backbone.out_channels = 16
    anchors = detection.anchor_utils.AnchorGenerator(((16, 32),), ((0.5, 1.0, 2.0),))
    sizes = {'min_size': HEIGHT, 'max_size': WIDTH}
    if family == 'retinanet':
        return detection.RetinaNet(
            backbone,
            len(NAMES),
            anchor_generator=anchors,
            score_thresh=0.0,
            topk_candidates=60,
            detections_per_img=30,
            **sizes,
        )
    kind, extra = rcnn(family)
    return kind(
        backbone,
        rpn_anchor_generator=anchors,
        box_roi_pool=MultiScaleRoIAlign(['0'], 3, 2),
        box_head=TwoMLPHead(16 * 9, 16),
        box_predictor=FastRCNNPredictor(16, len(NAMES)),
        box_score_thresh=0.0,
        box_detections_per_img=8 if extra else 30,
        rpn_post_nms_top_n_test=20,
        **extra,
        **sizes,
    )


def spread_heads(model, family):
    """Make the outputs of the model's random heads differ between positions."""
    if family == 'ssd':
        spread_outputs(model, ('classification_head',), 3)
        return
    # The initial weights are so small that all scores are nearly equal.
    heads = ('classification_head', 'regression_head', 'rpn.head', 'box_predictor')
    spread_outputs(model, heads, 12 if family == 'retinanet' else 6)
    # A random head's masks are half of all pixels; those of smooth ones have a border.
    spread_outputs(
        model, ('mask_predictor', 'keypoint_predictor', 'mask_head', 'keypoint_head'), 4
    )


def record_torchvision(family, folder):
    """Write model.onnx and expected.npz; torchvision's post-processing is inside the model."""
    torch.manual_seed(1)
    model = torchvision_model(family).eval()
    spread_heads(model, family)
    image = picture()
    pixels = torch.from_numpy(image.transpose(2, 0, 1).astype(np.float32) / 255)
    with torch.no_grad():
        (results,) = model([pixels])
    order = results['scores'].argsort(descending=True, stable=True)
    export(model, ([pixels],), folder / 'model.onnx', ['image'], list(results), dynamo=False)
    save(
        folder,
        image=image,
        threshold=0.0,
        xyxy=results['boxes'][order].numpy(),
        scores=results['scores'][order].numpy(),
        labels=results['labels'][order].numpy(),
        **{
            name: np.packbits(results[name][order].numpy() > 0.5, axis=-1)
            if name == 'masks'
            else results[name][order].numpy()
            for name in ('masks', 'keypoints')
            if name in results
        },
    )
