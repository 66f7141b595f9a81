# SPDX-License-Identifier: Apache-2.0
"""Record the values of Ultralytics' exporter and the results of its predictor.

Each model has a folder with expected.npz: metadata and declared shapes of the exported file, the
image, the predictor's input and the output of the file. It also has the predictor's boxes, scores,
classes, keypoints and corners. No exported file is stored. Weights are random, from a seed, and
the networks are tiny.

    python3 -m pip install torch==2.15.0 torchvision==0.29.2 onnx onnxruntime ultralytics==8.4.190
    python3 test/data/exports/record_ultralytics.py --out test/data/exports
    python3 -m pip install ultralytics==8.4.46
    python3 test/data/exports/record_ultralytics.py --families ultralytics_rtdetr_8_4_46 --out …
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from pathlib import Path

import cv2
import numpy as np
import onnx
import onnxruntime
import torch
import ultralytics
import yaml

CONV = [
    [-1, 1, 'Conv', [8, 3, 2]],
    [-1, 1, 'Conv', [8, 3, 2]],
    [-1, 1, 'Conv', [16, 3, 2]],
    [-1, 1, 'Conv', [16, 3, 2]],
    [-1, 1, 'Conv', [16, 3, 2]],
]
DETECT = [[[2, 3, 4], 1, 'Detect', ['nc']]]
# The heads of models whose keypoints have three or two values. The model description also contains
# "kpt_shape".
POSE = [[[2, 3, 4], 1, 'Pose', ['nc', [17, 3]]]]
POSE_OF_TWO = [[[2, 3, 4], 1, 'Pose', ['nc', [4, 2]]]]
POSE26 = [[[2, 3, 4], 1, 'Pose26', ['nc', [5, 3]]]]
OBB = [[[2, 3, 4], 1, 'OBB', ['nc', 1]]]
OBB26 = [[[2, 3, 4], 1, 'OBB26', ['nc', 1]]]
# Mask coefficients and width of the layers behind the prototypes.
SEGMENT = [[[2, 3, 4], 1, 'Segment', ['nc', 8, 16]]]
SEGMENT26 = [[[2, 3, 4], 1, 'Segment26', ['nc', 6, 16]]]
# Hidden size, queries, points, heads, decoder layers, feed-forward size.
RTDETR = [[[2, 3, 4], 1, 'RTDETRDecoder', ['nc', 16, 40, 4, 2, 2, 32]]]
NAMES = ('cat', 'dog', 'fox')
#: Head, number of classes, height and width, options of the exporter, and name of the model.
FAMILIES = {
    'ultralytics_rtdetr': (RTDETR, 2, (96, 128), {}, 'rtdetr-tiny'),
    'ultralytics_rtdetr_one': (RTDETR, 1, (96, 128), {'dynamic': True}, 'rtdetr-tiny'),
    'ultralytics_rtdetr_open': (RTDETR, 3, (128, 96), {'simplify': False}, 'my-yolo'),
    'ultralytics_rtdetr_8_4_46': (RTDETR, 2, (96, 128), {}, 'rtdetr-tiny'),
    'ultralytics_dense': (DETECT, 2, (96, 128), {'dynamic': True, 'simplify': False}, 'rtdetr-no'),
    'ultralytics_nms': (DETECT, 2, (96, 128), {'nms': True}, 'yolo-tiny'),
    'ultralytics_end_to_end': (DETECT, 2, (128, 96), {'nms': False}, 'rtdetr-no'),
    'ultralytics_pose': (POSE, 1, (96, 128), {'dynamic': True, 'simplify': False}, 'yolo-tiny'),
    'ultralytics_pose_of_two': (POSE_OF_TWO, 2, (128, 96), {}, 'rtdetr-no'),
    'ultralytics_pose_26': (POSE26, 2, (96, 128), {}, 'yolo-tiny'),
    'ultralytics_pose_end_to_end': (POSE26, 1, (128, 96), {'nms': False}, 'yolo-tiny'),
    'ultralytics_obb': (OBB, 1, (96, 128), {'dynamic': True, 'simplify': False}, 'yolo-tiny'),
    'ultralytics_obb_26': (OBB26, 2, (128, 96), {}, 'yolo-tiny'),
    'ultralytics_obb_end_to_end': (OBB26, 2, (96, 128), {'nms': False}, 'yolo-tiny'),
    'ultralytics_obb_nms': (OBB, 2, (96, 128), {'nms': True}, 'yolo-tiny'),
    'ultralytics_segment': (SEGMENT, 1, (96, 128), {'dynamic': True, 'simplify': False}, 'a'),
    'ultralytics_segment_26': (SEGMENT26, 2, (128, 96), {}, 'yolo-tiny'),
    'ultralytics_segment_end_to_end': (SEGMENT26, 2, (96, 128), {'nms': False}, 'yolo-tiny'),
    'ultralytics_segment_nms': (SEGMENT, 2, (96, 128), {'nms': True}, 'yolo-tiny'),
    'ultralytics_pose_nms': (POSE, 2, (96, 128), {'nms': True}, 'yolo-tiny'),
}
KEYS = (
    *('description', 'author', 'version', 'stride', 'task', 'head', 'batch', 'imgsz', 'names'),
    *('args', 'channels', 'end2end', 'kpt_shape', 'kpt_names'),
)
CONFIDENCE, IOU = 0.02, 0.45


def make_model(head, classes, shape, stem, folder):
    """Return a model with random weights, whose outputs differ between positions."""
    torch.manual_seed(1)
    description = {'nc': classes, 'backbone': CONV, 'head': head}
    description['end2end'] = head in (DETECT, POSE26, OBB26, SEGMENT26)
    if 'Pose' in head[0][2]:
        description['kpt_shape'] = head[0][3][1]
    path = folder / f'{stem}.yaml'
    path.write_text(yaml.safe_dump(description))
    kind = ultralytics.RTDETR if head is RTDETR else ultralytics.YOLO
    model = kind(str(path))
    names = ('person',) if (head, classes) == (POSE, 1) else NAMES[:classes]
    model.model.names = dict(enumerate(names))
    if head is POSE26:
        model.model.kpt_names = {number: list('abcde') for number in range(classes)}
    has_shapes = 'OBB' in head[0][2] or 'Segment' in head[0][2]
    with torch.no_grad():
        for module in model.model.modules():  # compute their statistics from pictures
            if isinstance(module, torch.nn.BatchNorm2d):
                module.train()
                module.momentum = None
                module.reset_running_stats()
        model.model(torch.rand(8, 3, *shape))
        model.model.eval()
        for name, parameter in model.model.named_parameters():
            if 'score_head' in name or 'cv3.2.2' in name:
                parameter.mul_(2)
                if name.endswith('bias'):
                    parameter.zero_()
            elif 'bbox_head' in name:
                parameter.normal_(0, 0.3)
            elif 'cv3' in name and name.endswith('2.bias'):
                parameter.fill_(-3 if has_shapes else -4)
            elif has_shapes and 'cv2' in name and name.endswith('2.bias'):
                # Wide and low boxes: left and right are farther away than top and bottom.
                bins = -torch.arange(16.0)
                parameter.copy_(torch.cat([slope * bins for slope in (0.4, 1.5, 0.4, 1.5)]))
            elif has_shapes and 'cv4' in name and name.endswith('2.weight'):
                parameter.mul_(6)
    return model


def picture(size=(110, 70)):
    """Return uint8 (height, width, 3), BGR."""
    rng = np.random.default_rng(5)
    small = rng.integers(0, 256, (7, 11, 3), np.uint8)
    return cv2.resize(small, size, interpolation=cv2.INTER_CUBIC)


def declared_shape(entry):
    """Return a declared shape, with -1 for each open dimension."""
    return [side.dim_value or -1 for side in entry.type.tensor_type.shape.dim]


def record(family, folder):
    """Write expected.npz."""
    head, classes, shape, export_options, stem = FAMILIES[family]
    # The padding of the larger image is a whole number of prototype pixels.
    image = picture((256, 128) if family == 'ultralytics_segment' else (110, 70))
    folder = folder.resolve()
    # The exporter writes into the current folder.
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        model = make_model(head, classes, shape, stem, Path(scratch))
        path = model.export(format='onnx', imgsz=list(shape), **export_options)
        file = onnx.load(path)
        metadata = {entry.key: entry.value for entry in file.metadata_props}
        predictor = (ultralytics.RTDETR if head is RTDETR else ultralytics.YOLO)(path)
        options = {'conf': CONFIDENCE, 'iou': IOU, 'max_det': 300, 'imgsz': list(shape)}
        options['retina_masks'] = True
        (found,) = predictor.predict(image, rect=False, verbose=False, **options)
        pixels = predictor.predictor.preprocess([image]).numpy()
        session = onnxruntime.InferenceSession(path, providers=['CPUExecutionProvider'])
        output, *prototypes = session.run(None, {'images': pixels})
    boxes, task_values = found.boxes, {}
    if found.keypoints is not None:
        task_values['keypoints'] = found.keypoints.data.numpy()
    if found.masks is not None:
        task_values['masks'] = np.packbits(found.masks.data.numpy().astype(bool), axis=None)
        task_values['prototypes'] = prototypes[0]
        task_values['declared_prototypes'] = np.array(declared_shape(file.graph.output[1]))
    if found.obb is not None:
        boxes = found.obb
        task_values['oriented'] = boxes.xywhr.numpy()
        task_values['corners'] = boxes.xyxyxyxy.numpy()
    declared = [declared_shape(file.graph.input[0]), declared_shape(file.graph.output[0])]
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        folder / 'expected.npz',
        metadata=np.array([[key, metadata[key]] for key in KEYS if key in metadata]),
        declared_input=np.array(declared[0]),
        declared_output=np.array(declared[1]),
        image=image,
        pixels=pixels,
        output=output,
        confidence=CONFIDENCE,
        iou=IOU,
        xyxy=boxes.xyxy.numpy(),
        scores=boxes.conf.numpy(),
        labels=boxes.cls.numpy().astype(int),
        **task_values,
    )
    size = (folder / 'expected.npz').stat().st_size
    print(f'{family}: {declared}, {output.shape}, {len(boxes)} found, {size / 1024:.0f} KiB')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    newest = [family for family in FAMILIES if '8_4' not in family]
    parser.add_argument('--families', nargs='+', default=newest, choices=FAMILIES)
    parser.add_argument('--out', type=Path, required=True, help='folder to write into')
    arguments = parser.parse_args()
    for family in arguments.families:
        record(family, arguments.out / family)


if __name__ == '__main__':
    main()
