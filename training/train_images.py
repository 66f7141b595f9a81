# SPDX-License-Identifier: Apache-2.0
"""Train the models that describe the whole image.

As in `train.py`, scenes are composed during the training, which should run on a GPU. It ends
after `--steps` or `--seconds`, whichever comes first. With each line of the log, the averaged
weights are written.
"""

import argparse
import copy
import json
import pathlib
import time

import image_model
import image_samples
import letterbox
import model as net
import numpy as np
import scenes
import torch
import train

SEGMENT_MODEL = pathlib.Path(__file__).resolve().parent.parent / 'models' / 'digits_segment.onnx'
SEED = 30


def new_network(task: str) -> torch.nn.Module:
    """Return the network of a task with the backbone of the shipped segmentation model."""
    torch.manual_seed(SEED)
    network = image_model.NETWORKS[task]()
    drawn = [scenes.compose(scenes.TRAIN, index).image for index in range(16)]
    images = np.stack([letterbox.letterbox(image, net.INPUT_WH)[0] for image in drawn])
    image_model.load_backbone(network.backbone, SEGMENT_MODEL, images)
    return network


def begin(arguments: argparse.Namespace) -> tuple[torch.nn.Module, list[dict]]:
    """Return the network and the records of its earlier stages."""
    if not arguments.resume:
        return new_network(arguments.task), []
    stored = torch.load(arguments.resume, map_location='cpu', weights_only=True)
    network = image_model.NETWORKS[arguments.task]()
    network.load_state_dict(stored['weights'])
    torch.manual_seed(SEED + len(stored['stages']))
    return network, stored['stages']


def separate_crops(images: torch.Tensor, digits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the crops of a classifier's batch one by one.

    Args:
        images: (b, 3, n * side, side), n crops of each scene, one above the other.
        digits: (b, n).

    Returns:
        (b * n, 3, side, side), (b * n,).
    """
    side = images.shape[3]
    crops = images.unflatten(2, (-1, side)).transpose(1, 2).flatten(0, 1)
    return crops, digits.flatten()


def train_images(arguments: argparse.Namespace) -> list[dict]:
    """Train, write the averaged weights, and return the records of all stages."""
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    network, stages = begin(arguments)
    first = sum(stage['scenes_composed'] for stage in stages)
    draw = image_samples.SAMPLES[arguments.task]
    pool, batches, finish = train.fed_pool(draw, arguments, device, first)
    network = network.to(device, memory_format=torch.channels_last)
    average = copy.deepcopy(network).eval()
    optimizer = train.new_optimizer(network)
    start = time.monotonic()
    steps, progress = 0, 0.0
    print(f'training starts with {pool.received} samples', flush=True)
    while progress < 1:
        while not batches.empty():
            pool.add(batches.get())
        for group in optimizer.param_groups:
            group['lr'] = train.learning_rate(progress, arguments.peak_rate)
        images, truth = pool.draw(arguments.batch)
        if arguments.task == 'classify':
            images, truth = separate_crops(images, truth)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == 'cuda'):
            outputs = network(images.contiguous(memory_format=torch.channels_last))
        loss = image_model.loss_of(arguments.task, outputs.float(), truth)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 10.0)
        optimizer.step()
        steps += 1
        train.follow(average, network, min(arguments.decay, (1 + steps) / (10 + steps)))
        seconds = time.monotonic() - start
        progress = max(steps / arguments.steps, seconds / arguments.seconds)
        if steps % arguments.log_every == 0 or progress >= 1:
            received = pool.received
            print(f'{progress:6.1%} step {steps} samples {received} {loss.item():.3f}', flush=True)
            record = record_of(arguments, SEED + len(stages), seconds, steps, received, device)
            weights = {name: value.cpu() for name, value in average.state_dict().items()}
            content = {'task': arguments.task, 'weights': weights, 'stages': [*stages, record]}
            torch.save(content, arguments.out)
    finish()
    return content['stages']


def record_of(
    arguments: argparse.Namespace,
    seed: int,
    seconds: float,
    steps: int,
    composed: int,
    device: torch.device,
) -> dict:
    """Return the record of a stage."""
    return {
        'seed': seed,
        'seconds': round(seconds),
        'steps': steps,
        'batch': arguments.batch,
        'scenes_composed': composed,
        'peak_rate': arguments.peak_rate,
        'device': torch.cuda.get_device_name() if device.type == 'cuda' else 'CPU',
        'torch': str(torch.__version__),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('task', choices=image_model.NETWORKS)
    parser.add_argument('--out', type=pathlib.Path, required=True)
    parser.add_argument(
        '--resume', type=pathlib.Path, help='start with weights of an earlier stage'
    )
    parser.add_argument('--steps', type=int, default=1500)
    parser.add_argument('--seconds', type=float, default=1e9, help='time of training')
    parser.add_argument('--batch', type=int, default=32)
    parser.add_argument('--chunk', type=int, default=32, help='scenes per message of a worker')
    parser.add_argument(
        '--pool', type=int, default=24_576, help='scenes kept, each at most 1.2 MB'
    )
    parser.add_argument('--peak-rate', type=float, default=2e-3, help='highest learning rate')
    parser.add_argument('--decay', type=float, default=0.99, help='of the averaged weights')
    parser.add_argument('--workers', type=int, default=2, help='processes that compose scenes')
    parser.add_argument('--threads', type=int, help='threads of the training on a CPU')
    parser.add_argument('--log-every', type=int, default=50)
    print(json.dumps(train_images(parser.parse_args()), indent=2))


if __name__ == '__main__':
    main()
