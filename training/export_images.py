# SPDX-License-Identifier: Apache-2.0
"""Export a network of `train_images.py`: a model and a manifest.

`python training/export_images.py classify.pt` writes models/digits_classify.onnx and its manifest,
or the files of the semantic model. Like `export.py`, it folds the normalisation and compares the
file with PyTorch.
"""

import argparse
import json
import pathlib
import tempfile

import export
import image_model
import image_samples
import model as net
import numpy as np
import onnx
import onnxruntime
import torch

MODELS = export.MODEL.parent
MAX_BYTES = 300_000
DESCRIPTIONS = {
    'classify': 'the handwritten digit 0-9 of a square crop of a photograph',
    'semantic': 'pixels of handwritten digits 0-9 on photographs, 16 to 120 px',
}


def load(checkpoint: pathlib.Path) -> tuple[str, torch.nn.Module, list[dict]]:
    """Return the task, the network in evaluation mode, and the record of its training."""
    stored = torch.load(checkpoint, map_location='cpu', weights_only=True)
    network = image_model.NETWORKS[stored['task']]()
    network.load_state_dict(stored['weights'])
    return stored['task'], net.fold_normalisation(network.eval()), stored['stages']


def input_wh(task: str) -> tuple[int, int]:
    """Return the width and height of the input."""
    side = image_samples.CROP_SIDE
    return (side, side) if task == 'classify' else net.INPUT_WH


def export_task(task: str, network: torch.nn.Module, path: pathlib.Path) -> None:
    """Write a folded network as one ONNX file, and compare it with PyTorch.

    Raises:
        SystemExit: ONNX Runtime and PyTorch differ, or the file is too large to ship.
    """
    width, height = input_wh(task)
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.random((1, 3, height, width), np.float32))
    network.half().float()  # rounds the weights, so that FP16 stores them exactly
    torch.onnx.export(
        network,
        (images,),
        str(path),
        input_names=['images'],
        output_names=['logits'],
        opset_version=export.OPSET,
        dynamo=False,
    )
    graph = onnx.load(path)
    store_in_half(graph.graph)
    description = f'trt_perception, {DESCRIPTIONS[task]}'
    onnx.helper.set_model_props(graph, {'description': description, 'license': 'Apache-2.0'})
    onnx.save(graph, path)
    onnx.checker.check_model(str(path), full_check=True)
    with torch.no_grad():
        expected = network(images).numpy()
    session = onnxruntime.InferenceSession(str(path), providers=['CPUExecutionProvider'])
    difference = np.abs(session.run(None, {'images': images.numpy()})[0] - expected).max()
    if difference > 1e-3:
        raise SystemExit(f'ONNX differs from PyTorch by {difference}')
    if path.stat().st_size > MAX_BYTES:
        raise SystemExit(f'{path.stat().st_size} bytes; at most {MAX_BYTES} can be shipped')


def store_in_half(graph: onnx.GraphProto) -> None:
    """Store float32 weights as FP16, in place. Cast nodes restore them."""
    wide = [each for each in graph.initializer if each.data_type == onnx.TensorProto.FLOAT]
    for index, tensor in enumerate(wide):
        weights = onnx.numpy_helper.to_array(tensor)
        if weights.size < 8 or not tensor.dims:
            continue
        half = onnx.numpy_helper.from_array(weights.astype(np.float16), f'h{index}')
        cast = onnx.helper.make_node('Cast', [half.name], [tensor.name], to=onnx.TensorProto.FLOAT)
        graph.initializer.remove(tensor)
        graph.initializer.append(half)
        graph.node.insert(0, cast)


def manifest(task: str, path: pathlib.Path, stages: list[dict]) -> dict:
    """Return the manifest, which says how to feed and read the model."""
    content = export.manifest(path, stages)
    width, height = input_wh(task)
    content['task'] = task
    content['onnx']['file'] = path.name
    content['inputs'][0]['shape'] = [1, 3, height, width]
    content['preprocessing']['input_size'] = [width, height]
    shape, decoder = [1, len(export.NAMES)], {'family': 'class_scores', 'activation': 'softmax'}
    if task == 'semantic':
        content['class_names'] = ['background', *export.NAMES]
        stride = image_model.MAP_STRIDE
        shape = [1, image_model.PIXEL_CLASSES, height // stride, width // stride]
        decoder = {'family': 'pixel_logits'}
    content['outputs'] = [{'name': 'logits', 'shape': shape, 'dtype': 'float32'}]
    content['decoder'] = decoder
    content['notes']['description'] = DESCRIPTIONS[task]
    trained = content['notes']['trained_on']
    content['notes']['trained_on'] = f'from layers of digits_segment.onnx; {trained}'
    return content


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('checkpoint', type=pathlib.Path, help='written by train_images.py')
    parser.add_argument('--out', type=pathlib.Path, default=MODELS, help='folder')
    arguments = parser.parse_args()
    task, network, stages = load(arguments.checkpoint)
    target = arguments.out / f'digits_{task}.onnx'
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / target.name
        export_task(task, network, path)
        described = json.dumps(manifest(task, path, stages), indent=2)
        target.write_bytes(path.read_bytes())
    target.with_name(f'{target.name}.json').write_text(described + '\n', encoding='utf-8')
    print(f'{target.name}: {target.stat().st_size} bytes')


if __name__ == '__main__':
    main()
