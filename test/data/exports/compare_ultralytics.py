"""Export Ultralytics' networks with random weights, and compare our boxes with its predictor's.

Prints a line for each network: the recognised decoder, the number of boxes of both, the smallest
and the median IoU of boxes with the same class and score, the largest keypoint difference in
pixels, and the largest input difference. For oriented boxes, the line has the corner distances in
pixels. Weights are random, so rounding of the input, or of an IoU at the NMS threshold, may move
or remove a box. The median IoU is therefore the meaningful value.

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
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines.open_pipeline import open_offline
from trt_perception.pipelines.pipeline import detect_one

NETWORKS = (
    *('yolov8n', 'yolov10n', 'yolo11n', 'yolo12n', 'yolo26n', 'rtdetr-l'),
    *('yolov8n-pose', 'yolo11n-pose', 'yolo12n-pose', 'yolo26n-pose'),
    *('yolov8n-obb', 'yolo11n-obb', 'yolo12n-obb', 'yolo26n-obb'),
    *('yolov8n-seg', 'yolo11n-seg', 'yolo12n-seg', 'yolo26n-seg'),
)
#: Classes, height and width, and what the exporter is asked.
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
    described = Path(ultralytics.__file__).parent / 'cfg' / 'models'
    family = re.sub(r'^(yolo\w*\d+)[nslmx](?=$|-)', r'\1', name)
    path = next(file for stem in (name, family) for file in described.glob(f'*/{stem}.yaml'))
    content = {**yaml.safe_load(path.read_text()), 'nc': classes}
    copy = folder / f'{name}.yaml'
    copy.write_text(yaml.safe_dump(content))
    model = (ultralytics.RTDETR if 'rtdetr' in name else ultralytics.YOLO)(str(copy))
    pictures = torch.nn.functional.interpolate(torch.rand(4, 3, 12, 16), size=shape)
    with torch.no_grad():
        for module in model.model.modules():  # their statistics, from pictures
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


def overlaps(found, xyxy, scores, labels):
    """Return the best IoU of each found box with a box of the same class and score."""
    return [iou for iou, _ in nearest(found, xyxy, scores, labels)] or [1.0]


def nearest(found, xyxy, scores, labels):
    """Return the best IoU of each found box with a similar box, and the index of that box."""
    best = []
    for box, score, label in zip(found.xyxy, found.scores, found.class_ids, strict=True):
        alike = np.flatnonzero((labels == label) & (np.abs(scores - score) < 0.02))
        same = xyxy[alike]
        low, high = np.maximum(same[:, :2], box[:2]), np.minimum(same[:, 2:], box[2:])
        shared = np.prod(np.clip(high - low, 0, None), axis=1)
        areas = np.prod(same[:, 2:] - same[:, :2], axis=1) + np.prod(box[2:] - box[:2])
        ious = shared / (areas - shared)
        # Boxes that fill the image are all the same: then the score tells.
        by_score = np.where(ious > ious.max(initial=0) - 1e-4, np.abs(scores[alike] - score), 1)
        best.append((ious.max(), alike[by_score.argmin()]) if len(alike) else (0.0, -1))
    return best


def moved(found, told, points):
    """Return the largest keypoint difference in pixels, for boxes with an IoU of at least 0.99."""
    pairs = enumerate(nearest(found, *told))
    ours = [(index, other) for index, (iou, other) in pairs if iou >= 0.99]
    return max(
        np.abs(found.keypoints[index, :, :2] - points[other, :, :2]).max() for index, other in ours
    )


def masks_of(found, told, theirs):
    """Return the mask overlaps, for boxes with an IoU of at least 0.99."""
    ours = found.masks.whole()
    ious = [1.0]
    for index, (iou, other) in enumerate(nearest(found, *told)):
        either = (ours[index] | (theirs[other] > 0)).sum()
        if iou >= 0.99 and either:  # the predictor leaves boxes without a mask out
            ious.append((ours[index] & (theirs[other] > 0)).sum() / either)
    return f'IoU of {len(ious) - 1} masks from {min(ious):.4f}, median {np.median(ious):.4f}'


def turned_away(found, theirs, center):
    """Return by how many pixels corners of boxes differ whose centre lies in the image, sorted.

    Each box that was found is held to the nearest one of the same score.
    """
    told, scores = theirs.xywhr.numpy(), theirs.conf.numpy()
    clipped = np.concatenate([center, told[:, 2:4]], axis=1)
    apart = []
    for corners, score, oriented in zip(
        oriented_corners(found.oriented), found.scores, found.oriented, strict=True
    ):
        far = np.abs(clipped - oriented[:4]).max(axis=1) + 1e4 * (np.abs(scores - score) > 0.02)
        nearest = far.argmin()
        if (told[nearest, :2] == center[nearest]).all():
            other = theirs.xyxyxyxy.numpy()[nearest]
            distance = np.linalg.norm(corners[:, None] - other, axis=2)
            apart.append(distance.min(axis=1).max())
    return np.sort(apart or [0.0])


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
    pipeline = open_offline(read_model_file(path), options)
    frame = Frame.view(image, width=width, height=height, step=3 * width, encoding='bgr8')
    thresholds = Thresholds(confidence_threshold=threshold, iou_threshold=0.45)
    found = detect_one(pipeline, frame, thresholds).detections
    center = np.clip(boxes.obb.xywhr[:, :2].numpy(), 0, [width, height])
    apart = turned_away(found, boxes.obb, center)
    return (
        f'{pipeline.spec.decoder}: {len(found)} and {len(boxes.obb)} boxes, corners of '
        f'{len(apart)} within {apart[-1]:.1g}, in the middle {np.median(apart):.1g}, '
        f'{(apart > 0.5).sum()} farther than half a pixel'
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
    if len(scores) > 250:  # so few that no limit of either cuts them, and far from every score
        middle = len(scores) - 200 + int(np.argmax(np.diff(scores[-200:-50])))
        threshold = float(scores[middle] + scores[middle + 1]) / 2
    (boxes,) = theirs.predict(image, conf=threshold, **options)
    xyxy = np.clip(boxes.boxes.xyxy.numpy(), 0, [width, height, width, height])
    whole = (xyxy[:, 2:] > xyxy[:, :2]).all(axis=1)
    options = PipelineOptions(limits=DecodingLimits(300, max_candidates=30_000))
    pipeline = open_offline(read_model_file(path), options)
    frame = Frame.view(image, width=width, height=height, step=3 * width, encoding='bgr8')
    tensor, _ = pipeline.preprocess([frame])
    fed = np.abs(tensor - theirs.predictor.preprocess([image]).numpy()).max()
    thresholds = Thresholds(confidence_threshold=threshold, iou_threshold=0.45)
    found = detect_one(pipeline, frame, thresholds).detections
    told = boxes.boxes.conf.numpy()[whole], boxes.boxes.cls.numpy()[whole]
    best = overlaps(found, xyxy[whole], *told)
    keypoints = ''
    if boxes.keypoints is not None:
        points = boxes.keypoints.data.numpy()[whole]
        keypoints = f'keypoints within {moved(found, (xyxy[whole], *told), points):.1g}, '
    if boxes.masks is not None:
        keypoints = f'{masks_of(found, (xyxy[whole], *told), boxes.masks.data.numpy()[whole])}, '
    return (
        f'{pipeline.spec.decoder}: {len(found)} and {whole.sum()} boxes, IoU from '
        f'{min(best):.4f}, in the middle {np.median(best):.4f}, {keypoints}input within {fed:.1g}'
    )


def main():
    image = picture()
    for name in sys.argv[1:] or NETWORKS:
        for classes, shape, asked in FORMS:
            with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
                model = network(name, classes, shape, Path(folder))
                path = Path(model.export(format='onnx', imgsz=list(shape), **asked))
                hold = compare_oriented if name.endswith('-obb') else compare
                line = hold(path.resolve(), shape, image)
            print(f'{name}, {classes} classes, {shape}, {asked}: {line}', flush=True)


if __name__ == '__main__':
    main()
