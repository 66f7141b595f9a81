# SPDX-License-Identifier: Apache-2.0
"""Train masks, oriented boxes and corners on one trunk, starting with shipped weights.

Like `train.py`, the training lasts a fixed time and composes scenes into a pool on the GPU. Each
line of the log, the end of each call and Ctrl-C write the state. The next call with the same
`--out` continues with the same schedule, until `--seconds` have passed in total.
"""

import argparse
import copy
import dataclasses
import functools
import json
import pathlib
import time
from collections.abc import Callable
from typing import NamedTuple

import cv2
import letterbox
import model as net
import numpy as np
import scenes
import shapes
import task_loss
import task_model
import torch
import train

DIGITS = pathlib.Path(__file__).resolve().parent.parent / 'models' / 'digits.onnx'
# A sheared or bent digit looks rotated. Stronger deformation than a camera sees would make the
# learned angle less certain than necessary.
CONFIG = dataclasses.replace(
    scenes.TRAIN,
    shear=scenes.EVAL.shear,
    rotation_deg=scenes.EVAL.rotation_deg,
    aspect=scenes.EVAL.aspect,
    bend_cells=0.0,
)
STATE, OPTIMIZER = 'state.pt', 'optimizer.pt'  # two files, each small enough to transfer


def sample(config: scenes.SceneConfig, index: int) -> train.Sample:
    """Return scene `index` as network input; unused rows have class -1.

    Returns:
        image (3, 480, 640) uint8, boxes (12, 4), classes (12,), ink (1, 480, 640) uint8, oriented
        boxes (12, 5), corners (12, 4, 2), as in `task_loss.Truth`, but ink from 0 to 255.
    """
    scene = scenes.compose(config, index)
    image, geometry = letterbox.letterbox(scene.image, net.INPUT_WH)
    boxes = np.zeros((train.MAX_DIGITS, 4), np.float32)
    classes = np.full(train.MAX_DIGITS, -1, np.int64)
    oriented = np.zeros((train.MAX_DIGITS, 5), np.float32)
    corners = np.zeros((train.MAX_DIGITS, len(shapes.CORNERS), 2), np.float32)
    ink = np.zeros(scene.image.shape[:2], np.uint8)
    offset = np.array([geometry.left, geometry.top], np.float32)
    boxes[: len(scene.xyxy)] = letterbox.to_network(scene.xyxy, geometry)
    classes[: len(scene.classes)] = scene.classes
    for row, (box, shape) in enumerate(zip(scene.xyxy, scene.shapes, strict=True)):
        x0, y0, x1, y1 = box.astype(int)
        ink[y0:y1, x0:x1][shape.mask] = 255
        oriented[row] = shape.oriented * geometry.scale
        oriented[row, :2] += offset
        oriented[row, 4] = shape.oriented[4]
        corners[row] = shape.corners * geometry.scale + offset
    ink = place(ink, geometry)
    pixels = np.ascontiguousarray(image.transpose(2, 0, 1))
    return pixels, boxes, classes, ink[None], oriented, corners


def place(ink: np.ndarray, geometry: letterbox.Letterbox) -> np.ndarray:
    """Return the ink (h, w) uint8 of a picture, placed into the network input (480, 640)."""
    width, height = net.INPUT_WH
    if geometry.scale != 1:
        resized_wh = [round(side * geometry.scale) for side in ink.shape[::-1]]
        ink = cv2.resize(ink, resized_wh, interpolation=cv2.INTER_LINEAR)
    canvas = np.zeros((height, width), np.uint8)
    left, top = geometry.left, geometry.top
    canvas[top : top + ink.shape[0], left : left + ink.shape[1]] = ink
    return canvas


class Run(NamedTuple):
    """A training, which may have started in an earlier call.

    Attributes:
        network: the network that is trained.
        average: the network with averaged weights.
        optimizer: updates the weights.
        stages: a record of each call.
        origin: the weights at the start of the first call.
    """

    network: task_model.TasksNet
    average: task_model.TasksNet
    optimizer: torch.optim.Optimizer
    stages: list[dict]
    origin: str


def begin(folder: pathlib.Path, device: torch.device, models: pathlib.Path | None = None) -> Run:
    """Continue the state in a folder; else start with exported models or the detector."""
    network = task_model.TasksNet()
    stages: list[dict] = []
    origin = f'from the weights of {DIGITS.name}'
    if not (folder / STATE).exists():
        drawn = np.stack([sample(CONFIG, index)[0] for index in range(16)])
        images = torch.from_numpy(drawn).float() / 255
        if models is None:
            task_model.load_digits(network, DIGITS, images)
        else:
            task_model.load_models(network, models, images)
            described = json.loads((models / 'digits_obb.onnx.json').read_text())
            origin = described['notes']['trained_on']
    average = copy.deepcopy(network)
    stored = {}
    if (folder / STATE).exists():
        stored = torch.load(folder / STATE, map_location='cpu', weights_only=True)
        network.load_state_dict(stored['network'])
        average.load_state_dict(stored['average'])
        stages = stored['stages']
        origin = stages[0]['origin']
    network = network.to(device, memory_format=torch.channels_last)
    average = average.to(device, memory_format=torch.channels_last).eval()
    optimizer = train.new_optimizer(network)
    if stored and (folder / OPTIMIZER).exists():
        moments = torch.load(folder / OPTIMIZER, map_location=device, weights_only=True)
        optimizer.load_state_dict(moments)
    return Run(network, average, optimizer, stages, origin)


def save(run: Run, folder: pathlib.Path, record: dict) -> None:
    """Write the state from which `begin` continues."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = [
        {name: value.cpu() for name, value in one.state_dict().items()}
        for one in (run.network, run.average)
    ]
    state = {'network': weights[0], 'average': weights[1], 'stages': [*run.stages, record]}
    for name, content in ((STATE, state), (OPTIMIZER, run.optimizer.state_dict())):
        new = folder / f'{name}.new'
        torch.save(content, new)
        new.replace(folder / name)


def step(
    run: Run, forward: Callable, batch: tuple[torch.Tensor, ...], gain_class: float
) -> dict[str, torch.Tensor]:
    """Train on one batch; return the parts of its loss. `forward` is the (compiled) network."""
    images, boxes, classes, ink, oriented, corners = batch
    truth = task_loss.Truth(boxes, classes, ink.float() / 255, oriented, corners)
    with torch.autocast(images.device.type, torch.bfloat16):
        rows, prototypes = forward(images.contiguous(memory_format=torch.channels_last))
    trunk = run.network.trunk
    parts = task_loss.tasks_loss(rows, prototypes, trunk, truth, gain_class)
    run.optimizer.zero_grad(set_to_none=True)
    sum(parts.values()).backward()
    torch.nn.utils.clip_grad_norm_(run.network.parameters(), 10.0)
    run.optimizer.step()
    return parts


def train_tasks(arguments: argparse.Namespace) -> list[dict]:
    """Train until the time of this call or of all calls is up; return the records of all calls."""
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    run = begin(arguments.out, device, arguments.begin_with)
    torch.manual_seed(train.SEED + len(run.stages))
    spent = sum(stage['seconds'] for stage in run.stages)
    first = sum(stage['scenes_composed'] for stage in run.stages)
    taken = sum(stage['steps'] for stage in run.stages)
    draw = functools.partial(sample, CONFIG)
    pool, batches, finish = train.fed_pool(draw, arguments, device, first)
    forward = run.network
    if arguments.compile:
        forward = torch.compile(run.network)
        task_loss.tasks_loss = torch.compile(task_loss.tasks_loss)
        step(run, forward, pool.draw(arguments.batch), arguments.class_gain)  # compiles, untimed
    start, steps = time.monotonic(), 0
    print(f'from step {taken}, {spent} of {arguments.seconds:.0f} s spent', flush=True)
    try:
        while steps < arguments.max_steps:
            elapsed = time.monotonic() - start
            progress = (spent + elapsed) / arguments.seconds
            if progress >= 1 or elapsed >= arguments.call_seconds:
                break
            while not batches.empty():
                pool.add(batches.get())
            for group in run.optimizer.param_groups:
                group['lr'] = train.learning_rate(progress, arguments.peak_rate)
            parts = step(run, forward, pool.draw(arguments.batch), arguments.class_gain)
            steps += 1
            decay = min(0.9995, (1 + taken + steps) / (10 + taken + steps))
            train.follow(run.average, run.network, decay)
            if steps % arguments.log_every == 0:
                shown = ' '.join(f'{name} {value.item():.3f}' for name, value in parts.items())
                print(f'{progress:6.1%} step {taken + steps} {shown}', flush=True)
                save(run, arguments.out, record_of(run, arguments, start, steps, pool))
    except KeyboardInterrupt:
        print('interrupted: the training state is saved')
    finish()
    if not steps:
        return run.stages
    record = record_of(run, arguments, start, steps, pool)
    save(run, arguments.out, record)
    return [*run.stages, record]


def record_of(
    run: Run, arguments: argparse.Namespace, start: float, steps: int, pool: train.ScenePool
) -> dict:
    """Return the record of this call so far. `start` is a value of `time.monotonic()`."""
    on_gpu = next(run.network.parameters()).is_cuda
    return {
        'origin': run.origin,
        'seed': train.SEED + len(run.stages),
        'seconds': round(time.monotonic() - start),
        'steps': steps,
        'batch': arguments.batch,
        'scenes_composed': pool.received,
        'peak_rate': arguments.peak_rate,
        'class_gain': arguments.class_gain,
        'device': torch.cuda.get_device_name() if on_gpu else 'CPU',
        'torch': str(torch.__version__),
    }


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument('--out', type=pathlib.Path, default=pathlib.Path('tasks'), help='folder')
    options.add_argument(
        '--begin-with',
        type=pathlib.Path,
        metavar='FOLDER',
        help='start with the exported models in this folder, and with a new schedule '
        '(default: start with the detector)',
    )
    options.add_argument('--seconds', type=float, default=1100.0, help='total time of all calls')
    options.add_argument('--call-seconds', type=float, default=1e9, help='time of this call')
    options.add_argument('--max-steps', type=int, default=1_000_000, help='steps of this call')
    options.add_argument('--batch', type=int, default=128)
    options.add_argument('--chunk', type=int, default=32, help='scenes per message of a worker')
    options.add_argument('--pool', type=int, default=24_576, help='scenes kept; 1.2 MB each')
    options.add_argument('--workers', type=int, default=15)
    options.add_argument('--peak-rate', type=float, default=2e-3, help='highest learning rate')
    options.add_argument('--class-gain', type=float, default=task_loss.GAIN_CLASS)
    options.add_argument('--compile', action='store_true', help='needs a C++ compiler and Triton')
    options.add_argument('--log-every', type=int, default=100)
    return options


def main() -> None:
    print(json.dumps(train_tasks(parser().parse_args()), indent=2))


if __name__ == '__main__':
    main()
