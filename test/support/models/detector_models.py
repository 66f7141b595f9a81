# SPDX-License-Identifier: Apache-2.0
"""Make a detector that builds quickly, and run build_engine in this process."""

import json
import sys
from pathlib import Path

import cv2
import numpy as np

from trt_perception.model.manifest import parse_manifest
from trt_perception.offline.tools import build_engine

ROOT = Path(__file__).parents[3]
SIZE = 64
ANCHORS = 64
CLASS_NAMES = ('cat', 'dog')
#: Options of build_engine that describe what the ONNX file of detector_model does not contain.
DECODER_AND_CLASSES_ARGUMENTS = ('--decoder', 'dense', '--class-names', *CLASS_NAMES)


def int8_arguments(path, images):
    """Return the arguments of an INT8 build of a detector, calibrated with a folder of images."""
    return (
        *('--onnx', path, *DECODER_AND_CLASSES_ARGUMENTS),
        *('--precision', 'int8', '--calibration-images', images),
    )


def detector_model(sides=(1, 3, SIZE, SIZE), *, before=(), opset=19):
    """Return a model: two convolutions, then boxes and scores of 64 anchors.

    Args:
        sides: sides of the input; text stands for an open side.
        before: nodes that make ``x`` from ``images``; none by default.
        opset: version of ONNX's own operators.
    """
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(3)
    rows = 4 + len(CLASS_NAMES)
    arrays = {
        'w1': random.normal(0, 0.2, (16, 3, 8, 8)).astype(np.float32),
        'w2': random.normal(0, 0.2, (16, 16, 3, 3)).astype(np.float32),
        'w3': random.normal(0, 0.2, (rows, 16, 1, 1)).astype(np.float32),
        # Boxes in the middle of the image, so that there are detections.
        'b3': np.array([32, 32, 24, 24, *(0 for _ in CLASS_NAMES)], np.float32),
        'shape': np.array([0, rows, ANCHORS]),
        'split': np.array([4, len(CLASS_NAMES)]),
    }
    nodes = [
        *(before or [helper.make_node('Identity', ['images'], ['x'])]),
        helper.make_node('Conv', ['x', 'w1'], ['a'], name='stem', strides=[8, 8]),
        helper.make_node('Relu', ['a'], ['b'], name='relu'),
        helper.make_node('Conv', ['b', 'w2'], ['c'], name='body', pads=[1] * 4),
        helper.make_node('Relu', ['c'], ['d']),
        helper.make_node('Conv', ['d', 'w3', 'b3'], ['e'], name='head'),
        helper.make_node('Reshape', ['e', 'shape'], ['f'], name='flat'),
        helper.make_node('Split', ['f', 'split'], ['boxes', 'logits'], name='parts', axis=1),
        helper.make_node('Sigmoid', ['logits'], ['scores'], name='scores'),
        helper.make_node('Concat', ['boxes', 'scores'], ['output'], name='join', axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        'detector',
        [helper.make_tensor_value_info('images', TensorProto.FLOAT, sides)],
        [helper.make_tensor_value_info('output', TensorProto.FLOAT, (sides[0], rows, ANCHORS))],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    imports = [helper.make_opsetid('', opset), helper.make_opsetid('mine', 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def write_detector(folder, name='net.onnx', **changes):
    import onnx

    path = folder / name
    onnx.save_model(detector_model(**changes), path)
    return path


def write_images(folder, count=10):
    """Write ``count`` different pictures."""
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(5)
    for number in range(count):
        small = random.integers(0, 256, (6, 8, 3)).astype(np.uint8)
        picture = cv2.resize(small, (96, 80), interpolation=cv2.INTER_CUBIC)
        assert cv2.imwrite(str(folder / f'{number}.png'), picture)
    return folder


def run_build_engine(*arguments):
    """Run build_engine in this process; return its exit code."""
    return build_engine.main([str(word) for word in arguments])


def parsed_models(monkeypatch):
    """Return a list that collects the content that later builds give TensorRT to parse."""
    import onnx

    from trt_perception.offline.building.steps import engine_steps

    parsed = []
    real = engine_steps.build_plan

    def build_plan(content, *arguments, **named):
        parsed.append(onnx.load_model_from_string(content))
        return real(content, *arguments, **named)

    monkeypatch.setattr(engine_steps, 'build_plan', build_plan)
    return parsed


def yolo_sized_detector(side=640):
    """Return a detector of YOLO11n's size with random weights, for square images."""
    sys.path.insert(0, str(ROOT / 'scripts' / 'benchmarks'))
    try:
        from reference_network import build_network
    finally:
        sys.path.pop(0)
    return build_network(False, (side, side), 1)[0]


def read_report(path):
    return json.loads(path.read_text())


def read_manifest_beside(engine):
    path = engine.with_name(engine.name + '.json')
    return parse_manifest(path.read_bytes(), path.name)


def check_report(report, engine):
    """Check the properties of a report that its readers rely on."""
    assert list(report) == [
        *('operation', 'status', 'error', 'reused', 'input_model', 'output_engine'),
        *('configuration', 'optimization', 'performance', 'accuracy', 'agreement', 'steps'),
        'warnings',
    ]
    assert (report['operation'], report['status'], report['error']) == (
        'build_engine',
        'done',
        None,
    )
    assert report['output_engine']['file'] == str(engine)
    assert report['output_engine']['size_bytes'] == engine.stat().st_size
    assert report['performance']['size_bytes'] == engine.stat().st_size
    assert report['performance']['build_seconds'] > 0
    assert report['configuration']['tensorrt']['flavour'] == 'tensorrt_rtx'
    assert {step['status'] for step in report['steps']} <= {'done', 'skipped'}
    assert all(step['outcome'] for step in report['steps'])
