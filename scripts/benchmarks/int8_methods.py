# SPDX-License-Identifier: Apache-2.0
"""Compare the calibration methods on a trained YOLOX, with images whose boxes are known.

build_engine quantises the model with each method and each set of calibration images, and writes
ONNX files with Q/DQ nodes. evaluate_engine measures these files and the original with other
images, by ONNX Runtime on the CPU. scripts/trained_model.py downloads the model, and
text_scenes.py draws the images.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A checkout needs no installation.
sys.path += [str(ROOT / 'scripts'), str(ROOT / 'scripts' / 'benchmarks'), str(ROOT)]

import text_scenes  # noqa: E402
import trained_model  # noqa: E402

from trt_perception.offline.tools import build_engine, evaluate_engine  # noqa: E402
from trt_perception.offline.tools.parts.arguments import integer_at_least  # noqa: E402
from trt_perception.process.option_parser import OptionParser  # noqa: E402

EXAMPLES = """\
example:
  scripts/run scripts/benchmarks/int8_methods.py --calibration-count 300 --json yolox_cpu_300.json
"""
METHODS = ('minmax', 'percentile', 'entropy')
#: Numbers of the first image of each set. Sets do not share images.
SET_STEP = 100_000
PARAMETERS = ('--param', 'model.decoder=yolox_raw', '--param', 'model.class_names=[character]')
PACKAGES = ('onnxruntime', 'numpy', 'opencv-python-headless', 'pillow', 'matplotlib')


def main(arguments=None):
    options = parse_arguments(arguments)
    model = trained_model.cached_file()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        held_out = text_scenes.write_scenes(folder / 'held_out', range(options.images))
        quantised = []
        for number in range(1, options.sets + 1):
            images = folder / f'calibration_{number}'
            first = number * SET_STEP
            text_scenes.write_scenes(images, range(first, first + options.calibration_count))
            quantised += [
                quantise(model, images, first, method, folder / f'{method}_{number}.onnx')
                for method in METHODS
            ]
        report = folder / 'report.json'
        run(
            evaluate_engine,
            *(model, *quantised, '--images', held_out.parent, '--annotations', held_out),
            *(*PARAMETERS, '--json', report),
        )
        evaluation = json.loads(report.read_text(encoding='utf-8'))
        for figures in evaluation['models'].values():
            del figures['latency_ms']  # the machine may be busy
    record = {
        'command': f'scripts/run scripts/benchmarks/int8_methods.py --sets {options.sets} '
        f'--calibration-count {options.calibration_count} --images {options.images}',
        'model': trained_model.YOLOX.requirement,
        'machine': {
            'processor': platform.machine(),
            'cores': len(os.sched_getaffinity(0)),
            'python': platform.python_version(),
            **{package: version(package) for package in PACKAGES},
        },
        'calibration_images': options.calibration_count,
        **{key: evaluation[key] for key in ('date', 'reference', 'images')},
        **{key: evaluation[key] for key in ('confidence_threshold', 'iou_threshold', 'models')},
    }
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + '\n', encoding='utf-8')


def quantise(model, images, first, method, path):
    """Write the model with Q/DQ nodes, and return the path.

    Args:
        model: path of the ONNX file.
        images: folder of the calibration images.
        first: number of the first of them. The build compares with FP32 on this image only,
            because evaluate_engine measures all files.
        method: calibration method.
        path: path of the new file.
    """
    run(
        build_engine,
        *(model, '--decoder', 'yolox_raw', '--class-names', 'character', '--precision', 'int8'),
        *('--calibration-images', images, '--calibration-method', method),
        *('--calibration-cache', 'off', '--no-compare-fp16', '--runtime', 'tensorrt_rtx'),
        *('--validate', images / f'{first:05}.png', '--accept-disagreement'),
        *('--output', path.with_suffix('.engine'), '--qdq-onnx', path),
    )
    return path


def run(tool, *arguments):
    """Run a tool of the package. Exit if it fails."""
    code = tool.main([str(argument) for argument in arguments])
    if code:
        sys.exit(code)


def parse_arguments(arguments):
    parser = OptionParser('scripts/benchmarks/int8_methods.py', __doc__, EXAMPLES)
    parser.add_argument(
        '--sets', type=integer_at_least(1), default=3, help='of calibration images; default: 3'
    )
    parser.add_argument(
        '--calibration-count',
        type=integer_at_least(8),
        default=100,
        help='images of a set; default: 100',
    )
    parser.add_argument(
        '--images', type=integer_at_least(1), default=300, help='that measure; default: 300'
    )
    parser.add_argument('--json', type=Path, metavar='FILE', help='write all figures')
    return parser.parse_args(arguments)


if __name__ == '__main__':
    sys.exit(main())
