# SPDX-License-Identifier: Apache-2.0
"""Export Ultralytics networks with random weights, and compare the package with their predictor.

Print a line for each network: the recognised decoder, and the number of boxes of both sides. Then
follow the smallest and the median IoU of boxes with the same class and score. The line ends with
the largest keypoint difference in pixels and the largest input difference. For oriented boxes, the
line has the corner distances in pixels. Weights are random, so rounding of the input, or of an IoU
at the NMS threshold, may move or remove a box. The median IoU is therefore the meaningful value.

    python3 -m pip install torch==2.15.0 torchvision==0.29.2 onnx onnxruntime ultralytics==8.4.190
    PYTHONPATH=. python3 test/data/exports/compare_ultralytics.py [NETWORK …]
"""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np
import torch
import ultralytics
import yaml

from trt_perception.images.detections import oriented_corners
from trt_perception.images.frame import Frame
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.pipeline_options import DecodingLimits, PipelineOptions
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.open_pipeline import open_offline_pipeline
from trt_perception.pipelines.pipeline import detect_one

NETWORKS = (
    *('yolov8n', 'yolov10n', 'yolo11n', 'yolo12n', 'yolo26n', 'rtdetr-l'),
    *('yolov8n-pose', 'yolo11n-pose', 'yolo12n-pose', 'yolo26n-pose'),
    *('yolov8n-obb', 'yolo11n-obb', 'yolo12n-obb', 'yolo26n-obb'),
    *('yolov8n-seg', 'yolo11n-seg', 'yolo12n-seg', 'yolo26n-seg'),
)
#: The number of classes, the input size (height, width) and the exporter's options of each export.
FORMS = (
    (80, (320, 320), {}),
    (2, (352, 416), {'nms': False}),
    (2, (320, 320), {'nms': True}),
    (1, (352, 416), {'dynamic': True}),
    (80, (320, 320), {'dynamic': True, 'simplify': False, 'nms': False}),
    (2, (320, 320), {'quantize': 16}),
)


def picture():
    """Return uint8 (375, 500, 3), BGR."""
    small = np.random.default_rng(3).integers(0, 256, (12, 16, 3), np.uint8)
    image = cv2.resize(small, (500, 375), interpolation=cv2.INTER_CUBIC)
    cv2.circle(image, (380, 120), 60, (220, 30, 40), -1)
    return image


def network(name, classes, shape, folder):
    """Return a network from Ultralytics' description, whose outputs differ between positions."""
    torch.manual_seed(1)
    descriptions = Path(ultralytics.__file__).parent / 'cfg' / 'models'
    family = re.sub(r'^(yolo\w*\d+)[nslmx](?=$|-)', r'\1', name)
    path = next(file for stem in (name, family) for file in descriptions.glob(f'*/{stem}.yaml'))
    content = {**yaml.safe_load(path.read_text()), 'nc': classes}
    copy = folder / f'{name}.yaml'
    copy.write_text(yaml.safe_dump(content))
    model = (ultralytics.RTDETR if 'rtdetr' in name else ultralytics.YOLO)(str(copy))
    pictures = torch.nn.functional.interpolate(torch.rand(4, 3, 12, 16), size=shape)
    with torch.no_grad():
        for module in model.model.modules():  # compute their statistics from pictures
            if isinstance(module, torch.nn.BatchNorm2d):
                module.train()
                module.momentum = None
                module.reset_running_stats()
        model.model(pictures)
        model.model.eval()
        for key, parameter in model.model.named_parameters():
            if 'bbox_head' in key and not parameter.any():
                parameter.normal_(0, 0.1)
            elif re.search(r'cv3\.\d\.2\.', key):
                parameter.mul_(0.3)
                if key.endswith('bias'):
                    parameter.normal_(-2, 0.5)
    return model


def best_overlaps(found, xyxy, scores, labels):
    """Return the best IoU of each found box with a box of the same class and score."""
    return [iou for iou, _ in nearest(found, xyxy, scores, labels)] or [1.0]


def nearest(found, xyxy, scores, labels):
    """Return the best IoU of each found box with a similar box, and the index of that box."""
    best = []
    for box, score, label in zip(found.xyxy, found.scores, found.class_ids, strict=True):
        similar = np.flatnonzero((labels == label) & (np.abs(scores - score) < 0.02))
        boxes = xyxy[similar]
        low, high = np.maximum(boxes[:, :2], box[:2]), np.minimum(boxes[:, 2:], box[2:])
        shared = np.prod(np.clip(high - low, 0, None), axis=1)
        areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) + np.prod(box[2:] - box[:2])
        ious = shared / (areas - shared)
        # Several boxes may fill the image. The score then selects among these equal boxes.
        score_gaps = np.where(
            ious > ious.max(initial=0) - 1e-4, np.abs(scores[similar] - score), 1
        )
        best.append((ious.max(), similar[score_gaps.argmin()]) if len(similar) else (0.0, -1))
    return best


def keypoint_error(found, expected, points):
    """Return the largest keypoint difference in pixels, for boxes with an IoU of at least 0.99."""
    pairs = enumerate(nearest(found, *expected))
    ours = [(index, other) for index, (iou, other) in pairs if iou >= 0.99]
    return max(
        np.abs(found.keypoints[index, :, :2] - points[other, :, :2]).max() for index, other in ours
    )


def mask_report(found, expected, theirs):
    """Return the mask overlaps, for boxes with an IoU of at least 0.99."""
    ours = found.masks.whole()
    ious = [1.0]
    for index, (iou, other) in enumerate(nearest(found, *expected)):
        either = (ours[index] | (theirs[other] > 0)).sum()
        if iou >= 0.99 and either:  # the predictor omits masks without pixels
            ious.append((ours[index] & (theirs[other] > 0)).sum() / either)
    return f'IoU of {len(ious) - 1} masks from {min(ious):.4f}, median {np.median(ious):.4f}'


def corner_distances(found, theirs, center):
    """Return the corner distances in pixels, sorted, of boxes with their centre in the image.

    Each found box is compared with the nearest box of a similar score.
    """
    expected, scores = theirs.xywhr.numpy(), theirs.conf.numpy()
    clipped = np.concatenate([center, expected[:, 2:4]], axis=1)
    distances = []
    for corners, score, oriented in zip(
        oriented_corners(found.oriented), found.scores, found.oriented, strict=True
    ):
        far = np.abs(clipped - oriented[:4]).max(axis=1) + 1e4 * (np.abs(scores - score) > 0.02)
        nearest = far.argmin()
        if (expected[nearest, :2] == center[nearest]).all():
            other = theirs.xyxyxyxy.numpy()[nearest]
            distance = np.linalg.norm(corners[:, None] - other, axis=2)
            distances.append(distance.min(axis=1).max())
    return np.sort(distances or [0.0])


def compare_oriented(path, shape, image):
    """Return the report line of one exported file with oriented boxes."""
    height, width = image.shape[:2]
    theirs = ultralytics.YOLO(str(path))
    options = {'imgsz': list(shape), 'rect': False, 'iou': 0.45, 'max_det': 300, 'verbose': False}
    (boxes,) = theirs.predict(image, conf=0.05, **options)
    scores = np.sort(boxes.obb.conf.numpy())
    threshold = 0.05
    if len(scores) > 250:
        middle = len(scores) - 200 + int(np.argmax(np.diff(scores[-200:-50])))
        threshold = float(scores[middle] + scores[middle + 1]) / 2
    (boxes,) = theirs.predict(image, conf=threshold, **options)
    options = PipelineOptions(limits=DecodingLimits(300, max_candidates=30_000))
    pipeline = open_offline_pipeline(read_model_file(path), options)
    frame = Frame.view(image, width=width, height=height, step=3 * width, encoding='bgr8')
    thresholds = Thresholds(confidence_threshold=threshold, iou_threshold=0.45)
    found = detect_one(pipeline, frame, thresholds).detections
    center = np.clip(boxes.obb.xywhr[:, :2].numpy(), 0, [width, height])
    distances = corner_distances(found, boxes.obb, center)
    return (
        f'{pipeline.spec.decoder}: {len(found)} and {len(boxes.obb)} boxes, corners of '
        f'{len(distances)} within {distances[-1]:.1g}, in the middle {np.median(distances):.1g}, '
        f'{(distances > 0.5).sum()} farther than half a pixel'
    )


def compare(path, shape, image):
    """Return the report line of one exported file."""
    height, width = image.shape[:2]
    theirs = (ultralytics.RTDETR if 'rtdetr' in path.name else ultralytics.YOLO)(str(path))
    options = {'imgsz': list(shape), 'rect': False, 'iou': 0.45, 'max_det': 300, 'verbose': False}
    options['retina_masks'] = True
    (boxes,) = theirs.predict(image, conf=0.05, **options)
    scores = np.sort(boxes.boxes.conf.numpy())
    threshold = 0.05
    if len(scores) > 250:  # keep fewer boxes than both limits, cut at a gap of the scores
        middle = len(scores) - 200 + int(np.argmax(np.diff(scores[-200:-50])))
        threshold = float(scores[middle] + scores[middle + 1]) / 2
    (boxes,) = theirs.predict(image, conf=threshold, **options)
    xyxy = np.clip(boxes.boxes.xyxy.numpy(), 0, [width, height, width, height])
    whole = (xyxy[:, 2:] > xyxy[:, :2]).all(axis=1)
    options = PipelineOptions(limits=DecodingLimits(300, max_candidates=30_000))
    pipeline = open_offline_pipeline(read_model_file(path), options)
    frame = Frame.view(image, width=width, height=height, step=3 * width, encoding='bgr8')
    tensor, _ = pipeline.preprocess([frame])
    input_error = np.abs(tensor - theirs.predictor.preprocess([image]).numpy()).max()
    thresholds = Thresholds(confidence_threshold=threshold, iou_threshold=0.45)
    found = detect_one(pipeline, frame, thresholds).detections
    expected = boxes.boxes.conf.numpy()[whole], boxes.boxes.cls.numpy()[whole]
    best = best_overlaps(found, xyxy[whole], *expected)
    keypoints = ''
    if boxes.keypoints is not None:
        points = boxes.keypoints.data.numpy()[whole]
        keypoints = (
            f'keypoints within {keypoint_error(found, (xyxy[whole], *expected), points):.1g}, '
        )
    if boxes.masks is not None:
        keypoints = (
            f'{mask_report(found, (xyxy[whole], *expected), boxes.masks.data.numpy()[whole])}, '
        )
    return (
        f'{pipeline.spec.decoder}: {len(found)} and {whole.sum()} boxes, IoU from '
        f'{min(best):.4f}, in the middle {np.median(best):.4f}, {keypoints}'
        f'input within {input_error:.1g}'
    )


def main():
    image = picture()
    for name in sys.argv[1:] or NETWORKS:
        for classes, shape, export_options in FORMS:
            with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
                model = network(name, classes, shape, Path(folder))
                path = Path(model.export(format='onnx', imgsz=list(shape), **export_options))
                compare_file = compare_oriented if name.endswith('-obb') else compare
                line = compare_file(path.resolve(), shape, image)
            print(f'{name}, {classes} classes, {shape}, {export_options}: {line}', flush=True)


if __name__ == '__main__':
    main()
