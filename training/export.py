# SPDX-License-Identifier: Apache-2.0
"""Export trained weights to models/digits.onnx and write its manifest.

`python training/export.py digits.pt` folds the normalisation and exports FP32 with a fixed batch
of one. Before writing, it checks the file with ONNX's checker, and with PyTorch on a drawn scene.
It shifts the scores, so that precision equals recall at the package's default threshold on
development scenes. A shift of all logits keeps the ranking, so mAP does not change.
"""

import argparse
import ast
import copy
import hashlib
import json
import math
import pathlib
import tempfile

import dense
import model as net
import numpy as np
import onnx
import onnxruntime
import scenes
import torch
import train

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / 'models' / 'digits.onnx'
NAMES = [str(digit) for digit in range(net.CLASSES)]
OPSET = 19
MAX_BYTES = 2_000_000
DEFAULT_THRESHOLD = 0.25
LICENCE = (
    'weights Apache-2.0; trained on handwritten digits (UCI Optical Recognition of Handwritten '
    'Digits, Alpaydin and Kaynak, CC BY 4.0) and photographs bundled with scikit-image (CC0, '
    'public domain or no known copyright restrictions; listed in training/README.md)'
)


def load(checkpoint: pathlib.Path) -> tuple[net.DigitsNet, list[dict]]:
    """Return the network with trained weights, ready for evaluation, and its stages' records."""
    stored = torch.load(checkpoint, map_location='cpu', weights_only=True)
    network = net.DigitsNet()
    network.load_state_dict(stored['weights'])
    return network.eval(), stored['stages']


def export(network: net.DigitsNet, path: pathlib.Path) -> None:
    """Fold the network and write one ONNX file with the metadata of YOLO exports."""
    width, height = net.INPUT_WH
    torch.onnx.export(
        net.fold_normalisation(network),
        (torch.zeros(1, 3, height, width),),
        str(path),
        input_names=['images'],
        output_names=['output0'],
        opset_version=OPSET,
        dynamo=False,  # the tracer writes simpler graphs: no external data, constants folded
    )
    graph = onnx.load(path)
    metadata = {
        'description': 'trt_perception handwritten digits detector',
        'license': 'Apache-2.0',
        'task': 'detect',
        'stride': str(max(net.STRIDES)),
        'imgsz': str([height, width]),
        'batch': '1',
        'names': str(dict(enumerate(NAMES))),
    }
    assert ast.literal_eval(metadata['names'])[9] == '9'
    onnx.helper.set_model_props(graph, metadata)
    onnx.save(graph, path)
    onnx.checker.check_model(str(path), full_check=True)


def balanced_threshold(path: pathlib.Path, count: int = 300) -> float:
    """Return the threshold that gives as many detections as digits: precision equals recall."""
    detector = dense.Detector(path)
    scores, digits = [], 0
    for index in range(count):
        scene = scenes.compose(scenes.DEV, index)
        scores.append(detector(scene.image).scores)
        digits += len(scene.classes)
    return float(np.sort(np.concatenate(scores))[-digits])


def shift_scores(network: net.DigitsNet, threshold: float) -> None:
    """Shift all class logits in place, so that `threshold` becomes `DEFAULT_THRESHOLD`."""
    wanted, found = DEFAULT_THRESHOLD, threshold
    shift = math.log(wanted / (1 - wanted)) - math.log(found / (1 - found))
    for head in network.heads:
        head.classes[-1].bias.data += shift


def largest_difference(network: net.DigitsNet, path: pathlib.Path) -> np.ndarray:
    """Return the largest |PyTorch - ONNX Runtime| on a scene: of box rows (px), of scores."""
    image = train.sample(0)[0][None].astype(np.float32) / 255
    with torch.no_grad():
        expected = network(torch.from_numpy(image)).numpy()
    session = onnxruntime.InferenceSession(str(path), providers=['CPUExecutionProvider'])
    difference = np.abs(session.run(None, {'images': image})[0] - expected)[0]
    return np.array([difference[:4].max(), difference[4:].max()])


def manifest(path: pathlib.Path, stages: list[dict]) -> dict:
    """Return the manifest (schema 2), which says how to feed and read the model."""
    width, height = net.INPUT_WH
    data = path.read_bytes()
    return {
        'schema': 2,
        'task': 'detect',
        'onnx': {
            'file': MODEL.name,
            'sha256': hashlib.sha256(data).hexdigest(),
            'size_bytes': len(data),
        },
        'engine': None,
        'inputs': [{'name': 'images', 'shape': [1, 3, height, width], 'dtype': 'float32'}],
        'outputs': [
            {'name': 'output0', 'shape': [1, 4 + net.CLASSES, sum(net.CELLS)], 'dtype': 'float32'}
        ],
        'preprocessing': {
            'input_size': [width, height],
            'resize': 'letterbox',
            'pad_value': 114,
            'color_order': 'rgb',
            'scale': 0.00392156862745098,
            'mean': [0.0, 0.0, 0.0],
            'std': [1.0, 1.0, 1.0],
            'layout': 'nchw',
            'dtype': 'float32',
            'antialias': False,
            'round_pixels': True,
        },
        'decoder': {'family': 'dense', 'objectness': False, 'transposed': False},
        'class_names': NAMES,
        'notes': {
            'description': 'handwritten digits 0-9 on photographs, 16 to 120 px',
            'license': LICENCE,
            'trained_on': '; then '.join(
                f'{stage["scenes_composed"]} composed scenes, {stage["steps"]} steps of '
                f'{stage["batch"]} in {stage["seconds"]} s on one {stage["device"]}'
                for stage in stages
            ),
            'reproduce': 'training/README.md',
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('checkpoint', type=pathlib.Path, help='written by train.py')
    arguments = parser.parse_args()

    network, stages = load(arguments.checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / MODEL.name
        export(copy.deepcopy(network), path)
        threshold = balanced_threshold(path)
        shift_scores(network, threshold)
        export(copy.deepcopy(network), path)
        pixels, scores = largest_difference(network, path)
        if pixels > 0.05 or scores > 1e-3:
            raise SystemExit(f'ONNX differs from PyTorch by {pixels} px, {scores} in scores')
        if path.stat().st_size > MAX_BYTES:
            raise SystemExit(f'{path.stat().st_size} bytes; at most {MAX_BYTES} can be shipped')
        MODEL.write_bytes(path.read_bytes())
    described = json.dumps(manifest(MODEL, stages), indent=2)
    MODEL.with_name(MODEL.name + '.json').write_text(described + '\n', encoding='utf-8')
    print(f'scores shifted: {threshold:.3f} became {DEFAULT_THRESHOLD}')
    print(f'{MODEL.name}: {MODEL.stat().st_size} bytes, opset {OPSET}, PyTorch within')
    print(f'{pixels:.1e} px and {scores:.1e} in scores; {json.dumps(stages)}')


if __name__ == '__main__':
    main()
