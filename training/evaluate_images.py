# SPDX-License-Identifier: Apache-2.0
"""Evaluate the models that describe the whole image on held-out scenes.

`python training/evaluate_images.py` draws the evaluation scenes and prints the figures. --write
stores them in models/digits_images.metrics.json. The package's own code is not used.
"""

import argparse
import hashlib
import json
import pathlib
import platform

import cv2
import evaluate
import image_model
import image_samples
import letterbox
import numpy as np
import onnxruntime
import scenes

MODELS = evaluate.MODEL.parent
METRICS = MODELS / 'digits_images.metrics.json'


class Model:
    """An ONNX file with `images` (1, 3, h, w) and `logits`."""

    def __init__(self, path: pathlib.Path):
        self.session = onnxruntime.InferenceSession(str(path), providers=['CPUExecutionProvider'])
        height, width = self.session.get_inputs()[0].shape[2:]
        self.input_wh = (width, height)

    def __call__(self, image: np.ndarray) -> tuple[np.ndarray, letterbox.Letterbox]:
        """Return the logits of an RGB image (h, w, 3) uint8, without the batch axis."""
        boxed, geometry = letterbox.letterbox(image, self.input_wh)
        tensor = np.ascontiguousarray(boxed.transpose(2, 0, 1)[None], np.float32) / 255
        return self.session.run(None, {'images': tensor})[0][0], geometry

    def classes(self, image: np.ndarray) -> np.ndarray:
        """Return the class of each pixel of an RGB image (h, w, 3) uint8: (h, w)."""
        logits, geometry = self(image)
        height, width = image.shape[:2]
        inside_w, inside_h = round(width * geometry.scale), round(height * geometry.scale)
        resized = []
        for one in logits:
            whole = cv2.resize(one, self.input_wh, interpolation=cv2.INTER_LINEAR)
            part = whole[geometry.top :, geometry.left :][:inside_h, :inside_w]
            resized.append(cv2.resize(part, (width, height), interpolation=cv2.INTER_LINEAR))
        return np.stack(resized).argmax(0)


def top1(model: Model, config: scenes.SceneConfig, count: int) -> dict:
    """Return the share of digits whose best class is right."""
    right, hidden = [], []
    for scene in evaluate.drawn_scenes(config, count):
        for box, label in zip(scene.xyxy, scene.classes, strict=True):
            logits, _ = model(image_samples.digit_crop(scene.image, box))
            right.append(int(logits.argmax()) == label)
        hidden.extend(scene.hidden)
    is_whole = np.array(hidden) < 0.05
    return {
        'digits': len(right),
        'top1': round(float(np.mean(right)), 4),
        'top1_of_digits_hidden_below_5_percent': round(float(np.array(right)[is_whole].mean()), 4),
    }


def mean_iou(model: Model, config: scenes.SceneConfig, count: int) -> dict:
    """Return the mean IoU and the IoU of each class that occurs, over the pixels of all scenes."""
    classes = image_model.PIXEL_CLASSES
    pairs = np.zeros((classes, classes), np.int64)
    for scene in evaluate.drawn_scenes(config, count):
        both = image_samples.class_map(scene).astype(np.int64) * classes
        both += model.classes(scene.image)
        pairs += np.bincount(both.ravel(), minlength=classes**2).reshape(pairs.shape)
    shared = pairs.diagonal()
    union = pairs.sum(0) + pairs.sum(1) - shared
    iou = shared[union > 0] / union[union > 0]
    return {
        'mean_iou': round(float(iou.mean()), 4),
        'pixel_accuracy': round(float(shared.sum() / pairs.sum()), 4),
        'iou': iou.round(3).tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--models', type=pathlib.Path, default=MODELS, help='folder')
    parser.add_argument(
        '--tasks', nargs='+', choices=image_model.NETWORKS, default=list(image_model.NETWORKS)
    )
    parser.add_argument('--scenes', type=int, default=500)
    parser.add_argument('--set', choices=['eval', 'dev'], default='eval')
    parser.add_argument('--write', action='store_true', help=f'store in {METRICS.name}')
    arguments = parser.parse_args()
    config = scenes.EVAL if arguments.set == 'eval' else scenes.DEV
    report: dict = {'command': 'python training/evaluate_images.py --write'}
    for task in arguments.tasks:
        path = arguments.models / f'digits_{task}.onnx'
        measure = top1 if task == 'classify' else mean_iou
        found = measure(Model(path), config, arguments.scenes)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        report[task] = {'model_sha256': sha256, 'scenes': arguments.scenes, **found}
        print(task, json.dumps(found), flush=True)
    report |= {
        'versions': evaluate.versions(),
        'machine': f'{evaluate.processor()}, {platform.system()}',
    }
    if arguments.write:
        METRICS.write_text(json.dumps(report, indent=2) + '\n')


if __name__ == '__main__':
    main()
