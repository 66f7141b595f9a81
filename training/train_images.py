"""Train the models that describe the whole image.

The classifier's crops are composed first, and a training takes some minutes on a CPU. The
segmentation needs a GPU: as in `train.py`, scenes are composed during the training. It ends after
`--steps` or `--seconds`, whichever is first. Each line of the log writes the averaged weights.
"""

import argparse
import copy
import json
import pathlib
import queue
import time
from collections.abc import Callable

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


def filled_pool(
    arguments: argparse.Namespace, device: torch.device, first: int
) -> tuple[train.ScenePool, queue.Queue, Callable[[], None]]:
    """Return what `train.fed_pool` returns. For the classifier, the pool is complete."""
    if arguments.task == 'semantic':
        return train.fed_pool(image_samples.training_map, arguments, device, first)
    crops, digits = image_samples.all_training_crops(arguments.scenes, arguments.workers)
    pixels = np.ascontiguousarray(crops.transpose(0, 3, 1, 2))
    pool = train.ScenePool(len(pixels), device, (pixels[0], np.asarray(digits[0])))
    pool.add([torch.from_numpy(pixels), torch.from_numpy(digits)])
    return pool, queue.Queue(), lambda: None


def train_images(arguments: argparse.Namespace) -> list[dict]:
    """Train, write the averaged weights, and return the records of all stages."""
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    network, stages = begin(arguments)
    first = sum(stage['scenes_composed'] for stage in stages)
    pool, batches, finish = filled_pool(arguments, device, first)
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
            composed = arguments.scenes if arguments.task == 'classify' else received
            record = record_of(arguments, SEED + len(stages), seconds, steps, composed, device)
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
    parser.add_argument('--scenes', type=int, default=2400, help='scenes of the classifier')
    parser.add_argument('--steps', type=int, default=1500)
    parser.add_argument('--seconds', type=float, default=1e9, help='time of training')
    parser.add_argument('--batch', type=int, default=32)
    parser.add_argument('--chunk', type=int, default=32, help='scenes per message of a worker')
    parser.add_argument('--pool', type=int, default=24_576, help='scenes kept; 1.2 MB each')
    parser.add_argument('--peak-rate', type=float, default=2e-3, help='highest learning rate')
    parser.add_argument('--decay', type=float, default=0.99, help='of the averaged weights')
    parser.add_argument('--workers', type=int, default=2, help='processes that compose scenes')
    parser.add_argument('--threads', type=int, help='threads of the training on a CPU')
    parser.add_argument('--log-every', type=int, default=50)
    print(json.dumps(train_images(parser.parse_args()), indent=2))


if __name__ == '__main__':
    main()
