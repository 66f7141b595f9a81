"""Train the models that describe the whole image on crops and tiles of training scenes.

All samples are composed first, and the number of steps is fixed. A training takes some minutes on
a CPU.
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


def train_images(arguments: argparse.Namespace) -> dict:
    """Train, write the averaged weights, and return the record of the training."""
    torch.set_num_threads(arguments.threads)
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    start = time.monotonic()
    images, truth = image_samples.all_training_samples(
        arguments.task, arguments.scenes, arguments.workers
    )
    pixels = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    like = pixels[0], np.asarray(truth[0])
    pool = train.ScenePool(len(pixels), device, like)
    pool.add([torch.from_numpy(pixels), torch.from_numpy(truth)])
    print(f'{len(pixels)} samples in {time.monotonic() - start:.0f} s', flush=True)
    network = new_network(arguments.task).to(device, memory_format=torch.channels_last)
    average = copy.deepcopy(network).eval()
    optimizer = train.new_optimizer(network)
    for step in range(1, arguments.steps + 1):
        for group in optimizer.param_groups:
            group['lr'] = train.learning_rate(step / arguments.steps, arguments.peak_rate)
        batch, wanted = pool.draw(arguments.batch)
        outputs = network(batch.contiguous(memory_format=torch.channels_last))
        loss = image_model.loss_of(arguments.task, outputs, wanted)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 10.0)
        optimizer.step()
        train.follow(average, network, min(0.99, (1 + step) / (10 + step)))
        if step % arguments.log_every == 0:
            print(f'step {step} {time.monotonic() - start:.0f} s {loss.item():.3f}', flush=True)
    record = {
        'seed': SEED,
        'seconds': round(time.monotonic() - start),
        'steps': arguments.steps,
        'batch': arguments.batch,
        'scenes_composed': arguments.scenes,
        'peak_rate': arguments.peak_rate,
        'device': torch.cuda.get_device_name() if device.type == 'cuda' else 'CPU',
        'torch': str(torch.__version__),
    }
    weights = {name: value.cpu() for name, value in average.state_dict().items()}
    content = {'task': arguments.task, 'weights': weights, 'stages': [record]}
    torch.save(content, arguments.out)
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('task', choices=image_model.NETWORKS)
    parser.add_argument('--out', type=pathlib.Path, required=True)
    parser.add_argument('--scenes', type=int, default=2400, help='training scenes to compose')
    parser.add_argument('--steps', type=int, default=1500)
    parser.add_argument('--batch', type=int, default=32)
    parser.add_argument('--peak-rate', type=float, default=2e-3, help='highest learning rate')
    parser.add_argument('--workers', type=int, default=2, help='processes that compose scenes')
    parser.add_argument('--threads', type=int, default=1, help='threads of the training')
    parser.add_argument('--log-every', type=int, default=50)
    print(json.dumps(train_images(parser.parse_args()), indent=2))


if __name__ == '__main__':
    main()
