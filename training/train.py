# SPDX-License-Identifier: Apache-2.0
"""Train the digits detector for a fixed time, on scenes that are composed during training.

Every scene is new (`scenes.TRAIN`, numbered from 0). Scenes stay in a pool on the GPU, from which
batches are drawn at random, so the GPU never waits for the composing processes. The training is
seeded but not reproducible bit by bit, because the machine's speed decides how often each scene is
drawn.
"""

import argparse
import copy
import json
import math
import pathlib
import queue
import threading
import time
from collections.abc import Callable, Iterator

import cv2
import letterbox
import loss
import model as net
import numpy as np
import scenes
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

MAX_DIGITS = scenes.TRAIN.digits[1]
SEED = 20


Sample = tuple[np.ndarray, ...]


class SceneStream(IterableDataset):
    """An endless stream of the training samples that `draw` returns, numbered from `first`."""

    def __init__(self, first: int, draw: Callable[[int], Sample]):
        self.first = first
        self.draw = draw

    def __iter__(self) -> Iterator[Sample]:
        cv2.setNumThreads(0)
        worker = get_worker_info()
        index, step = (worker.id, worker.num_workers) if worker else (0, 1)
        while True:
            yield self.draw(self.first + index)
            index += step


def sample(index: int) -> Sample:
    """Return scene `index`: image (3, 480, 640) uint8, boxes (12, 4), classes (12,), -1 unused."""
    scene = scenes.compose(scenes.TRAIN, index)
    image, geometry = letterbox.letterbox(scene.image, net.INPUT_WH)
    boxes = np.zeros((MAX_DIGITS, 4), np.float32)
    classes = np.full(MAX_DIGITS, -1, np.int64)
    boxes[: len(scene.xyxy)] = letterbox.to_network(scene.xyxy, geometry)
    classes[: len(scene.classes)] = scene.classes
    return np.ascontiguousarray(image.transpose(2, 0, 1)), boxes, classes


class ScenePool:
    """The newest `capacity` scenes on the device. Batches are drawn with replacement."""

    def __init__(self, capacity: int, device: torch.device, like: Sample):
        self.stores = [
            torch.empty((capacity, *one.shape), dtype=torch.from_numpy(one).dtype, device=device)
            for one in like
        ]
        self.received = 0

    def __len__(self) -> int:
        return len(self.stores[0])

    def add(self, batch: list[torch.Tensor]) -> None:
        """Replace the oldest scenes by a batch. The batch size must divide the capacity."""
        start = self.received % len(self)
        end = start + len(batch[0])
        for store, new in zip(self.stores, batch, strict=True):
            store[start:end].copy_(new, non_blocking=True)
        self.received += len(batch[0])

    def draw(self, size: int) -> tuple[torch.Tensor, ...]:
        """Return a recoloured batch: images (size, 3, h, w) in [0, 1], other sample fields."""
        device = self.stores[0].device
        filled = min(self.received, len(self))
        index = torch.randint(filled, (size,), device=device)
        images = self.stores[0][index].float() / 255
        # A scene is drawn several times, each time in other colours.
        mixed = images.gather(
            1,
            torch.rand((size, 3), device=device).argsort(1)[..., None, None].expand_as(images),
        )
        negative = torch.rand((size, 1, 1, 1), device=device) < 0.3
        gain = torch.empty((size, 1, 1, 1), device=device).uniform_(0.8, 1.2)
        images = torch.where(negative, 1 - mixed, mixed) * gain
        return images.clamp_(0, 1), *(store[index] for store in self.stores[1:])


def fill_queue(loader: DataLoader, batches: queue.Queue, stop: threading.Event) -> None:
    """Move batches from the worker processes into a queue, until `stop` is set."""
    for batch in loader:
        while not stop.is_set():
            try:
                batches.put(batch, timeout=0.5)
                break
            except queue.Full:
                continue
        if stop.is_set():
            return


def fed_pool(
    draw: Callable[[int], Sample],
    arguments: argparse.Namespace,
    device: torch.device,
    first: int,
) -> tuple[ScenePool, queue.Queue, Callable[[], None]]:
    """Return a pool with some samples, a queue that delivers more, and a function that ends this.

    Args:
        draw: returns the sample of a scene.
        arguments: batch, chunk, pool and workers, as in `main`.
        device: the device of the pool.
        first: number of the first scene.
    """
    loader = DataLoader(
        SceneStream(first, draw),
        arguments.chunk,
        num_workers=arguments.workers,
        prefetch_factor=4 if arguments.workers else None,
        pin_memory=device.type == 'cuda',
    )
    batches: queue.Queue = queue.Queue(8)
    stop = threading.Event()
    feeder = threading.Thread(target=fill_queue, args=(loader, batches, stop), daemon=True)
    feeder.start()
    pool = ScenePool(arguments.pool, device, draw(0))
    while pool.received < min(arguments.batch * 8, arguments.pool):
        pool.add(batches.get(timeout=120))  # the timeout ends the wait if the feeder has failed

    def finish() -> None:
        stop.set()
        feeder.join(30)  # it ends the composing processes

    return pool, batches, finish


def learning_rate(progress: float, peak: float) -> float:
    """Return the rate: linear warm-up over 4 % of the time, then half a cosine down to 1 %."""
    if progress < 0.04:
        return peak * progress / 0.04
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (progress - 0.04) / 0.96)))


def train(arguments: argparse.Namespace) -> list[dict]:
    """Train until the time is up; write the averaged weights; return the record of all stages."""
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    torch.manual_seed(SEED)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    network = net.DigitsNet().to(device, memory_format=torch.channels_last)
    stages = []
    if arguments.resume:
        stored = torch.load(arguments.resume, map_location=device, weights_only=True)
        network.load_state_dict(stored['weights'])
        stages = stored['stages']
    average = copy.deepcopy(network).eval()
    optimizer = new_optimizer(network)
    first = sum(stage['scenes_composed'] for stage in stages)
    pool, batches, finish = fed_pool(sample, arguments, device, first)
    start = time.monotonic()
    steps, progress = 0, 0.0
    while progress < 1 and steps < arguments.max_steps:
        while not batches.empty():
            pool.add(batches.get())
        images, boxes, classes = pool.draw(arguments.batch)
        for group in optimizer.param_groups:
            group['lr'] = learning_rate(progress, arguments.peak_rate)
        with torch.autocast(device.type, torch.bfloat16):
            rows = network(images.contiguous(memory_format=torch.channels_last))
        parts, _ = loss.detection_loss(
            rows, network.centres, network.strides, boxes, classes, arguments.class_gain
        )
        optimizer.zero_grad(set_to_none=True)
        sum(parts.values()).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 10.0)
        optimizer.step()
        steps += 1
        follow(average, network, min(0.9995, (1 + steps) / (10 + steps)))
        progress = (time.monotonic() - start) / arguments.seconds
        if steps % arguments.log_every == 0:
            shown = ' '.join(f'{name} {value.item():.3f}' for name, value in parts.items())
            print(f'{progress:6.1%} step {steps} scenes {pool.received} {shown}', flush=True)
    finish()
    record = {
        'seed': SEED,
        'seconds': round(time.monotonic() - start),
        'steps': steps,
        'batch': arguments.batch,
        'scenes_composed': pool.received,
        'scenes_drawn': steps * arguments.batch,
        'peak_rate': arguments.peak_rate,
        'class_gain': arguments.class_gain,
        'device': torch.cuda.get_device_name() if device.type == 'cuda' else 'CPU',
        'torch': str(torch.__version__),
    }
    state = {name: value.cpu() for name, value in average.state_dict().items()}
    stages = [*stages, record]
    torch.save({'weights': state, 'stages': stages}, arguments.out)
    return stages


def new_optimizer(network: torch.nn.Module) -> torch.optim.AdamW:
    """Return the optimizer. Scales and offsets of normalisations have no weight decay."""
    decayed = [p for p in network.parameters() if p.ndim > 1]
    plain = [p for p in network.parameters() if p.ndim <= 1]
    return torch.optim.AdamW(
        [{'params': decayed, 'weight_decay': 0.05}, {'params': plain, 'weight_decay': 0.0}],
        fused=decayed[0].is_cuda,  # on a GPU, one kernel updates all weights
    )


@torch.no_grad()
def follow(average: torch.nn.Module, network: torch.nn.Module, decay: float) -> None:
    """Move the averaged weights and normalisation statistics a little towards the network's."""
    mine, theirs = (
        [*one.parameters(), *(b for b in one.buffers() if b.is_floating_point())]
        for one in (average, network)
    )
    torch._foreach_lerp_(mine, theirs, 1 - decay)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--out', type=pathlib.Path, default=pathlib.Path('digits.pt'))
    parser.add_argument(
        '--resume', type=pathlib.Path, help='start with weights of an earlier stage'
    )
    parser.add_argument('--seconds', type=float, default=480.0, help='time of training')
    parser.add_argument('--max-steps', type=int, default=1_000_000)
    parser.add_argument('--batch', type=int, default=128)
    parser.add_argument('--chunk', type=int, default=32, help='scenes per message of a worker')
    parser.add_argument('--pool', type=int, default=24_576, help='scenes kept; 0.9 MB each')
    parser.add_argument('--workers', type=int, default=15)
    parser.add_argument('--peak-rate', type=float, default=3e-3, help='highest learning rate')
    parser.add_argument('--class-gain', type=float, default=0.5, help='weight of the class loss')
    parser.add_argument('--log-every', type=int, default=100)
    print(json.dumps(train(parser.parse_args()), indent=2))


if __name__ == '__main__':
    main()
