"""Measure on labelled images what quantisation costs, by method, with and without the head.

    python training/draw_scenes.py train scenes/calibration
    python training/draw_scenes.py eval scenes/held_out
    . scripts/env
    python scripts/benchmarks/quantisation_accuracy.py scenes/calibration scenes/held_out

The models run in ONNX Runtime on the CPU, whose integer kernels round as Q/DQ says; TensorRT's
may differ in the last bit. The table is what docs/calibration.md shows.
"""

import argparse
import hashlib
import json
import tempfile
from pathlib import Path

import onnx
from tqdm import tqdm

from trt_perception.building.calibration.images import select_images
from trt_perception.building.calibration.ranges import METHODS
from trt_perception.building.precision.quantise import quantise
from trt_perception.evaluation.compare import compare_models
from trt_perception.evaluation.run import open_for_evaluation
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.manifest import manifest_path, parse_manifest
from trt_perception.parameters.config import DetectorConfig

ROOT = Path(__file__).resolve().parents[2]


def variants(arguments, model, preprocessing):
    """Yield the name and the model of each row."""
    for count in arguments.counts:
        images = select_images(arguments.calibration, count)
        for method in arguments.methods:
            for target in arguments.targets:
                for keep_head in (True, False):
                    done = quantise(
                        model,
                        preprocessing,
                        images,
                        method=method,
                        target=target,
                        keep_head=keep_head,
                    )
                    head = 'head in float' if keep_head else 'all quantised'
                    share = done.report.macs[target]
                    name = f'{target} {method}, {count} images, {head}, {share:.1%}'
                    yield name, done.model


def opened(folder, name, model, described):
    """Write a model and its manifest, and open it for evaluation."""
    content = model.SerializeToString()
    path = folder / f'{len(list(folder.iterdir()))}.onnx'
    path.write_bytes(content)
    identity = {'sha256': hashlib.sha256(content).hexdigest(), 'size_bytes': len(content)}
    described = {**described, 'onnx': {'file': path.name, **identity}}
    manifest_path(path).write_text(json.dumps(described))
    return open_for_evaluation(read_model_file(path), DetectorConfig(engine_path=str(path)))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('calibration', type=Path, help='images to calibrate with')
    parser.add_argument('held_out', type=Path, help='other images, with truth.json next to them')
    parser.add_argument('--model', type=Path, default=ROOT / 'models/digits.onnx')
    parser.add_argument('--counts', type=int, nargs='+', default=[300])
    parser.add_argument('--methods', nargs='+', default=METHODS, choices=METHODS)
    parser.add_argument('--targets', nargs='+', default=['int8'], choices=('int8', 'fp8'))
    arguments = parser.parse_args()
    described = json.loads(manifest_path(arguments.model).read_bytes())
    preprocessing = parse_manifest(json.dumps(described).encode(), 'manifest').preprocessing
    model = onnx.load(arguments.model)
    images = sorted(arguments.held_out.glob('*.jpg'))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        reference = opened(folder, 'fp32', model, described)
        candidates = {
            name: opened(folder, name, changed, described)
            for name, changed in variants(arguments, model, preprocessing)
        }
        with tqdm(total=len(images) * (1 + len(candidates)), unit='image') as bar:
            report = compare_models(
                {'fp32': reference, **candidates},
                images,
                arguments.held_out / 'truth.json',
                progress=lambda _name, done, _total: bar.update(done > 0),
            )
    print(f'| | mAP50-95 | mAP50 |\n|---|---|---|   ({len(images)} images)')
    for measured in report.models:
        figures = measured.metrics.figures
        print(f'| {measured.name} | {figures["mAP"]:.4f} | {figures["mAP50"]:.4f} |')


if __name__ == '__main__':
    main()
