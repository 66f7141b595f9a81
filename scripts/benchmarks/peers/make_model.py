# SPDX-License-Identifier: Apache-2.0
"""Write YOLO11n with random weights, exported by Ultralytics: yolo11n.pt, .onnx and _fp16.onnx.

With --weights, only export a model of your own, in FP32 and FP16, at the size of its training.

The weights are random, because no trained weights are available without a download. They are
seeded, so that equal versions of torch give equal files. Four steps make the number of boxes that
of a trained network on the benchmark's frames:

1. The statistics of batch normalisation are measured on the frames. Without them, activations
   vanish after a few layers.
2. The box sides get a spread, so that boxes differ in size and shape.
3. The last layers of the classes are fitted, so that some anchors of each frame stand out.
4. One common bias is chosen, so that a frame has about 30 boxes after NMS, or --boxes.

Needs ultralytics (8.4.190 is tested), its extra for exports, and OpenCV:

    python scripts/benchmarks/peers/make_model.py FOLDER
    python scripts/benchmarks/peers/make_model.py FOLDER --boxes 300
    python scripts/benchmarks/peers/make_model.py FOLDER --weights mine.pt
"""

from __future__ import annotations

import argparse
import copy
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from frames import scenes
from side import CONFIDENCE, IOU, MAX_BOXES
from ultralytics import YOLO
from ultralytics.data.augment import LetterBox

SEED = 7
SIZE = 640
BOXES = 30
# Standard deviation of the 16 values of a side over the anchors.
SIDE_SPREAD = 1.5
# Anchors of each stride (8, 16, 32) that get a high score, for each wanted box of a frame.
ANCHORS = 1, 2 / 3, 1 / 3
STEPS = 400


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('folder', type=Path)
    parser.add_argument('--boxes', type=int, default=BOXES, help=f'default: {BOXES}')
    parser.add_argument('--weights', type=Path, help='export this model (.pt) instead')
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    weights = options.folder / (options.weights or Path('yolo11n.pt')).name
    if options.weights is None:
        make_weights(weights, options.boxes)
    elif weights.resolve() != options.weights.resolve():
        shutil.copyfile(options.weights, weights)
    # Each export writes a file with the name of the weights.
    for suffix, precision in (('_fp16', 16), ('', 32)):
        model = YOLO(weights)
        size = model.overrides.get('imgsz', SIZE)
        written = model.export(format='onnx', imgsz=size, quantize=precision, device='cpu')
        named = weights.with_name(f'{weights.stem}{suffix}.onnx')
        shutil.move(written, named)
        print(f'wrote {named}')
    return 0


def make_weights(path, boxes):
    """Write YOLO11n with random weights that finds about this number of boxes in a frame."""
    torch.manual_seed(SEED)
    frames = scenes()
    model = YOLO('yolo11n.yaml')
    batch = network_input(frames)
    measure_normalisation(model.model, batch)
    spread_sides(model.model, batch)
    fit_classes(model.model, batch, boxes)
    choose_bias(model, frames, boxes)
    model.save(path)


def network_input(frames):
    """Return the frames as the network's input: float32 (n, 3, 640, 640), RGB, 0 to 1."""
    letterbox = LetterBox((SIZE, SIZE), auto=False)
    images = np.stack([letterbox(image=frame) for frame in frames])[..., ::-1]
    return torch.from_numpy(images.transpose(0, 3, 1, 2).copy()).float() / 255


@torch.no_grad()
def measure_normalisation(network, batch):
    """Set mean and variance of each batch normalisation to those of the frames."""
    norms = [each for each in network.modules() if isinstance(each, torch.nn.BatchNorm2d)]
    usual = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = 1.0
    network.train()
    network(batch)
    network.eval()
    for norm, momentum in zip(norms, usual, strict=True):
        norm.momentum = momentum


def inputs_and_outputs(network, batch, layers):
    """Run the network. Return input and output of each layer: float32 (n, channels, h, w)."""
    seen = {}
    hooks = [
        layer.register_forward_hook(
            lambda layer, given, out: seen.update({layer: (given[0], out)})
        )
        for layer in layers
    ]
    with torch.no_grad():
        network(batch)
    for hook in hooks:
        hook.remove()
    return [seen[layer] for layer in layers]


@torch.no_grad()
def spread_sides(network, batch):
    """Scale the last layers of the box sides, so that boxes differ in size and shape."""
    layers = [branch[-1] for branch in network.model[-1].cv2]
    for layer, (_, output) in zip(layers, inputs_and_outputs(network, batch, layers), strict=True):
        std, mean = torch.std_mean(output - layer.bias[:, None, None], dim=(0, 2, 3))
        scale = SIDE_SPREAD / std
        layer.weight *= scale[:, None, None, None]
        layer.bias.copy_(-mean * scale)


def fit_classes(network, batch, boxes):
    """Fit the last layers of the classes: some anchors of each frame get a high score.

    The random layer chooses the anchors, and the class of each: the best ones of each frame, so
    that no frame is empty and none is full of boxes.
    """
    for branch, share in zip(network.model[-1].cv3, ANCHORS, strict=True):
        layer, count = branch[-1], round(share * boxes)
        ((given, output),) = inputs_and_outputs(network, batch, [layer])
        given = given.flatten(2).transpose(1, 2)  # (n, anchors, channels)
        logits = output.flatten(2).transpose(1, 2)
        logits = (logits - logits.mean((0, 1))) / logits.std((0, 1))
        wanted = torch.zeros_like(logits)
        best, class_ids = logits.max(dim=2)
        anchors = best.topk(count, dim=1).indices
        frames = torch.arange(len(batch))[:, None]
        wanted[frames, anchors, class_ids[frames, anchors]] = 1
        mean, std = given.mean((0, 1)), given.std((0, 1)) + 1e-3
        weight = torch.zeros(layer.out_channels, layer.in_channels, requires_grad=True)
        bias = torch.full((layer.out_channels,), -6.0, requires_grad=True)
        optimizer = torch.optim.Adam([weight, bias], lr=0.05)
        values = (given - mean) / std
        for _ in range(STEPS):
            optimizer.zero_grad()
            found = values @ weight.T + bias
            torch.nn.functional.binary_cross_entropy_with_logits(
                found, wanted, pos_weight=torch.tensor(20.0), reduction='sum'
            ).div(len(batch)).backward()
            optimizer.step()
        with torch.no_grad():
            layer.weight.copy_((weight / std)[:, :, None, None])
            layer.bias.copy_(bias - (weight * mean / std).sum(dim=1))


@torch.no_grad()
def choose_bias(model, frames, boxes):
    """Shift all class logits by one number, so that a frame has about ``boxes`` after NMS."""
    biases = [branch[-1].bias for branch in model.model.model[-1].cv3]
    centred = [bias.clone() for bias in biases]
    low, high = -8.0, 8.0
    for _ in range(12):
        shift = (low + high) / 2
        for bias, own in zip(biases, centred, strict=True):
            bias.copy_(own + shift)
        counts = box_counts(model, frames)
        low, high = (shift, high) if np.mean(counts) < boxes else (low, shift)
    print(f'bias {shift:.3f}: {np.mean(counts):.1f} boxes per frame, {sorted(counts)}', flush=True)


def box_counts(model, frames):
    # A copy, because predict fuses the layers of the model that it uses.
    found = copy.deepcopy(model).predict(
        list(frames), conf=CONFIDENCE, iou=IOU, max_det=MAX_BOXES, rect=False, verbose=False
    )
    return [len(result.boxes) for result in found]


if __name__ == '__main__':
    sys.exit(main())
