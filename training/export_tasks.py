# SPDX-License-Identifier: Apache-2.0
"""Export the network of `train_tasks.py`: a model and a manifest for each task.

`python training/export_tasks.py tasks/state.pt` writes models/digits_segment.onnx, digits_obb.onnx
and digits_pose.onnx with the outputs, names and metadata of Ultralytics' exporter. Like
`export.py`, it folds the normalisation and compares with PyTorch. It shifts the scores, so that
precision equals recall at the package's default threshold on development scenes.
"""

import argparse
import copy
import hashlib
import json
import pathlib
import tempfile

import export
import model as net
import numpy as np
import onnx
import onnxruntime
import scenes
import shapes
import task_dense
import task_model
import torch
import train_tasks

MODELS = pathlib.Path(__file__).resolve().parent.parent / 'models'
MAX_BYTES = 2_500_000
FINDS = {'segment': 'masks', 'obb': 'oriented boxes', 'pose': 'four corners as keypoints'}


def load(checkpoint: pathlib.Path) -> tuple[task_model.TasksNet, list[dict]]:
    """Return the averaged network, ready for evaluation, and the records of its training."""
    stored = torch.load(checkpoint, map_location='cpu', weights_only=True)
    network = task_model.TasksNet()
    network.load_state_dict(stored['average'])
    return network.eval(), stored['stages']


def metadata(task: str) -> dict[str, str]:
    """Return the metadata of Ultralytics' exporter that apply to this model."""
    width, height = net.INPUT_WH
    found = {
        'description': f'trt_perception handwritten digits, {FINDS[task]}',
        'license': 'Apache-2.0',
        'task': task,
        'stride': str(max(net.STRIDES)),
        'imgsz': str([height, width]),
        'batch': '1',
        'names': str(dict(enumerate(export.NAMES))),
    }
    if task == 'pose':
        found['kpt_shape'] = str([len(shapes.CORNERS), 2])
        found['kpt_names'] = str({digit: list(shapes.CORNERS) for digit in range(net.CLASSES)})
    return found


def write_onnx(model: task_model.TaskModel, path: pathlib.Path) -> None:
    """Fold a copy of the model and write it as one ONNX file."""
    width, height = net.INPUT_WH
    outputs = ['output0', 'output1'] if model.task == 'segment' else ['output0']
    torch.onnx.export(
        net.fold_normalisation(copy.deepcopy(model)).eval(),
        (torch.zeros(1, 3, height, width),),
        str(path),
        input_names=['images'],
        output_names=outputs,
        opset_version=export.OPSET,
        dynamo=False,
    )
    graph = onnx.load(path)
    onnx.helper.set_model_props(graph, metadata(model.task))
    onnx.save(graph, path)
    onnx.checker.check_model(str(path), full_check=True)


def balanced_threshold(path: pathlib.Path, count: int) -> float:
    """Return the threshold that gives as many detections as digits."""
    detector = task_dense.TaskDetector(path)
    scores, digits = [], 0
    for index in range(count):
        scene = scenes.compose(scenes.DEV, index)
        scores.append(detector(scene.image).scores)
        digits += len(scene.classes)
    every = np.sort(np.concatenate(scores))
    return float(every[-min(digits, len(every))])


def largest_difference(model: task_model.TaskModel, path: pathlib.Path) -> tuple[float, float]:
    """Return the largest |PyTorch - ONNX Runtime| on a scene: of scores, of all other outputs."""
    image = train_tasks.sample(train_tasks.CONFIG, 0)[0][None].astype(np.float32) / 255
    with torch.no_grad():
        expected = model(torch.from_numpy(image))
    expected = expected if isinstance(expected, tuple) else (expected,)
    session = onnxruntime.InferenceSession(str(path), providers=['CPUExecutionProvider'])
    found = session.run(None, {'images': image})
    each = [np.abs(a - b.numpy()) for a, b in zip(found, expected, strict=True)]
    scores = each[0][:, 4 : 4 + net.CLASSES]
    rest = np.delete(each[0], np.s_[4 : 4 + net.CLASSES], 1)
    return float(scores.max()), float(max(rest.max(), *(one.max() for one in each[1:]), 0))


def manifest(task: str, path: pathlib.Path, stages: list[dict]) -> dict:
    """Return the manifest, which says how to feed and read the model."""
    content = export.manifest(path, [])
    outputs = content['outputs']
    outputs[0]['shape'][1] += task_model.CARRIED[task]
    content['task'] = task
    content['onnx']['file'] = path.name
    if task == 'segment':
        height, width = (side // task_model.PROTOTYPE_STRIDE for side in net.INPUT_WH[::-1])
        shape = [1, task_model.PROTOTYPES, height, width]
        outputs.append({'name': 'output1', 'shape': shape, 'dtype': 'float32'})
        content['mask_coefficients'] = task_model.PROTOTYPES
    if task == 'pose':
        outline = [[0, 1], [1, 2], [2, 3], [3, 0]]
        names = list(shapes.CORNERS)
        content['keypoints'] = {'names': names, 'values': 2, 'skeleton': outline}
    content['onnx']['sha256'] = hashlib.sha256(path.read_bytes()).hexdigest()
    content['notes'] |= {
        'description': f'{FINDS[task]} of handwritten digits 0-9 on photographs, 16 to 120 px',
        'trained_on': '; then '.join(
            [
                stages[0]['origin'],
                *(
                    f'{stage["scenes_composed"]} composed scenes, {stage["steps"]} steps of '
                    f'{stage["batch"]} in {stage["seconds"]} s on one {stage["device"]}'
                    for stage in stages
                ),
            ]
        ),
    }
    return content


def export_task(
    network: task_model.TasksNet,
    task: str,
    stages: list[dict],
    folder: pathlib.Path,
    scene_count: int = 300,
) -> dict:
    """Write one model and its manifest; return the measured figures.

    Raises:
        SystemExit: ONNX Runtime and PyTorch differ, or the file is too large to ship.
    """
    model = network.model_of(task)
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / f'digits_{task}.onnx'
        write_onnx(model, path)
        threshold = balanced_threshold(path, scene_count)
        export.shift_scores(model.head, threshold)
        write_onnx(model, path)
        scores, rest = largest_difference(model, path)
        if scores > 1e-3 or rest > 0.05:
            raise SystemExit(f'{task}: ONNX differs from PyTorch by {scores} in scores, {rest}')
        if path.stat().st_size > MAX_BYTES:
            raise SystemExit(f'{task}: {path.stat().st_size} bytes; at most {MAX_BYTES} ship')
        described = json.dumps(manifest(task, path, stages), indent=2)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / path.name).write_bytes(path.read_bytes())
        (folder / f'{path.name}.json').write_text(described + '\n', encoding='utf-8')
    size = (folder / path.name).stat().st_size
    return {'task': task, 'bytes': size, 'threshold': round(threshold, 3), 'difference': rest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('checkpoint', type=pathlib.Path, help='state.pt of train_tasks.py')
    parser.add_argument('--out', type=pathlib.Path, default=MODELS, help='folder')
    parser.add_argument('--scenes', type=int, default=300, help='scenes to balance the scores')
    arguments = parser.parse_args()
    network, stages = load(arguments.checkpoint)
    for task in task_model.TASKS:
        print(json.dumps(export_task(network, task, stages, arguments.out, arguments.scenes)))


if __name__ == '__main__':
    main()
