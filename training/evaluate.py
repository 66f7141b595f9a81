# SPDX-License-Identifier: Apache-2.0
"""Evaluate models/digits.onnx on held-out scenes, through ONNX Runtime and pycocotools.

`python training/evaluate.py` draws the evaluation scenes from a seed, without a download, and
prints the figures. --write stores them in models/digits.metrics.json. Takes minutes on a CPU.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import importlib.metadata
import io
import json
import os
import pathlib
import platform
import time
from collections.abc import Iterator

import cv2
import dense
import numpy as np
import onnxruntime
import scenes
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / 'models' / 'digits.onnx'
METRICS = ROOT / 'models' / 'digits.metrics.json'
CONFIDENCE, NMS_IOU = 0.25, 0.45  # defaults of the node; precision and recall use them


def drawn_scenes(config: scenes.SceneConfig, count: int) -> Iterator[scenes.Scene]:
    """Yield the first `count` scenes of a configuration."""
    for index in range(count):
        yield scenes.compose(config, index)


def demo_scenes() -> Iterator[scenes.Scene]:
    """Yield the shipped demo scenes, decoded from their JPEG files."""
    folder = ROOT / 'demo'
    truth = json.loads((folder / 'truth.json').read_text())
    for image in truth['images']:
        rows = [a for a in truth['annotations'] if a['image_id'] == image['id']]
        xywh = np.array([a['bbox'] for a in rows], np.float32).reshape(-1, 4)
        bgr = cv2.imread(str(folder / 'scenes' / image['file_name']), cv2.IMREAD_COLOR)
        yield scenes.Scene(
            cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB),
            np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], 1),
            np.array([a['category_id'] for a in rows], np.int64),
            np.array([a['hidden'] for a in rows], np.float32),
        )


def evaluate(detector: dense.Detector, source: Iterator[scenes.Scene]) -> dict:
    """Return all figures of one set of scenes."""
    truth: list[dict] = []
    results: list[dict] = []
    sizes: list[tuple[int, int]] = []
    hidden: list[np.ndarray] = []
    digest = hashlib.sha256()
    found_count, right_count = 0, 0
    for index, scene in enumerate(source):
        height, width = scene.image.shape[:2]
        sizes.append((width, height))
        hidden.append(scene.hidden)
        digest.update(scene.image.tobytes())
        digest.update(scene.xyxy.tobytes())
        truth += [coco_row(index, box, label) for box, label in zip(*scene[1:3], strict=True)]
        found = detector(scene.image, iou_threshold=NMS_IOU)
        results += [
            coco_row(index, box, label) | {'score': float(score)}
            for box, score, label in zip(*found, strict=True)
        ]
        sure = found.scores > CONFIDENCE
        confident = dense.Found(found.xyxy[sure], found.scores[sure], found.classes[sure])
        found_count += int(sure.sum())
        right_count += int(dense.match(confident, scene.xyxy, scene.classes).sum())
    stats = coco_stats(truth, results, sizes)
    return {
        'scenes': len(sizes),
        'digits': len(truth),
        'digits_hidden_5_to_30_percent': round(float((np.concatenate(hidden) >= 0.05).mean()), 3),
        'sha256_of_pixels_and_boxes': digest.hexdigest(),
        'mAP50': round(float(stats[1]), 4),
        'mAP50_95': round(float(stats[0]), 4),
        f'precision_at_{CONFIDENCE}': round(right_count / max(found_count, 1), 4),
        f'recall_at_{CONFIDENCE}': round(right_count / max(len(truth), 1), 4),
    }


def coco_row(image_id: int, xyxy: np.ndarray, label: int) -> dict:
    """Return one box in COCO's format, where image and annotation ids start at 1."""
    x0, y0, x1, y1 = (float(value) for value in xyxy)
    return {
        'image_id': image_id + 1,
        'category_id': int(label),
        'bbox': [x0, y0, x1 - x0, y1 - y0],
        'area': (x1 - x0) * (y1 - y0),
        'iscrowd': 0,
    }


def coco_stats(truth: list[dict], results: list[dict], sizes: list[tuple[int, int]]) -> np.ndarray:
    """Return COCOeval's twelve figures. At most 100 detections per scene count, as in COCO."""
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {
            'info': {},
            'images': [
                {'id': i + 1, 'width': size[0], 'height': size[1]} for i, size in enumerate(sizes)
            ],
            'categories': [{'id': digit, 'name': str(digit)} for digit in range(10)],
            'annotations': [row | {'id': i + 1} for i, row in enumerate(truth)],
        }
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes(results), 'bbox')
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats


def milliseconds_on_one_core(onnx_path: pathlib.Path, runs: int = 30) -> float:
    """Return the median milliseconds of one inference on one thread, without other steps."""
    detector = dense.Detector(onnx_path, threads=1)
    width, height = detector.input_wh
    image = np.random.default_rng(0).random((1, 3, height, width), np.float32)
    times = []
    for _ in range(runs + 3):
        start = time.perf_counter()
        detector.session.run(None, {'images': image})
        times.append(time.perf_counter() - start)
    return round(float(np.median(times[3:])) * 1e3, 1)


def versions() -> dict[str, str]:
    """Return the versions that the figures depend on."""
    return {
        'python': platform.python_version(),
        'numpy': np.__version__,
        'opencv': cv2.__version__,
        'onnxruntime': onnxruntime.__version__,
        'pycocotools': importlib.metadata.version('pycocotools'),
    }


def processor() -> str:
    """Return the processor's name, if the system reports it."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines():
            if line.startswith('model name'):
                return line.split(':', 1)[1].strip()
    return platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--model', type=pathlib.Path, default=MODEL)
    parser.add_argument('--scenes', type=int, default=500)
    parser.add_argument('--set', choices=['eval', 'dev'], default='eval')
    parser.add_argument('--write', action='store_true', help=f'store in {METRICS.name}')
    arguments = parser.parse_args()

    config = scenes.EVAL if arguments.set == 'eval' else scenes.DEV
    detector = dense.Detector(arguments.model)
    figures = {
        arguments.set: evaluate(detector, drawn_scenes(config, arguments.scenes)),
    }
    if (ROOT / 'demo' / 'truth.json').exists() and arguments.set == 'eval':
        figures['demo'] = evaluate(detector, demo_scenes())
    report = {
        'model_sha256': hashlib.sha256(arguments.model.read_bytes()).hexdigest(),
        'command': 'python training/evaluate.py --write',
        **figures,
        'nms_iou': NMS_IOU,
        'one_core_ms': milliseconds_on_one_core(arguments.model),
        'dataset': dataclasses.asdict(config),
        'versions': versions(),
        'machine': f'{processor()}, {os.cpu_count()} cores, {platform.system()}',
    }
    print(json.dumps({k: v for k, v in report.items() if k != 'dataset'}, indent=2))
    if arguments.write:
        METRICS.write_text(json.dumps(report, indent=2) + '\n')


if __name__ == '__main__':
    main()
