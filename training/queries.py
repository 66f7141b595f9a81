# SPDX-License-Identifier: Apache-2.0
"""Train a small RT-DETR on the digit scenes, to measure the FP16 loss of its decoder.

`python training/queries.py --out queries.onnx --seconds 900` trains for a fixed time and exports.
It also writes `config.json` and `preprocessor_config.json`, which describe the input.
Then, on a machine with a GPU, with scenes of `draw_scenes.py eval`:

    build_engine queries.onnx --precision fp16 --validate scenes --annotations truth.json

Needs transformers in addition to requirements.txt. The package ships no part of this model.
"""

import argparse
import json
import pathlib
import queue
import threading
import time

import model as net
import torch
import train
import transformers as hf
from torch.utils.data import DataLoader

QUERIES = 40
WIDTH = 96  # number of channels of queries and encoder
LAYERS = 3


def network(height: int, width: int) -> hf.RTDetrForObjectDetection:
    """Return the detector: a small ResNet, one encoder layer, three decoder layers, 40 queries."""
    backbone = hf.RTDetrResNetConfig(
        embedding_size=32,
        hidden_sizes=[32, 64, 96, 128],
        depths=[1, 1, 1, 1],
        layer_type='basic',
        out_features=['stage2', 'stage3', 'stage4'],
    )
    config = hf.RTDetrConfig(
        backbone_config=backbone,
        anchor_image_size=[height, width],
        num_queries=QUERIES,
        num_denoising=0,  # additional queries, which the export would not contain
        d_model=WIDTH,
        encoder_hidden_dim=WIDTH,
        encoder_in_channels=[64, 96, 128],
        decoder_in_channels=[WIDTH] * 3,
        encoder_ffn_dim=2 * WIDTH,
        decoder_ffn_dim=2 * WIDTH,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        decoder_layers=LAYERS,
        id2label={number: str(number) for number in range(net.CLASSES)},
        label2id={str(number): number for number in range(net.CLASSES)},
    )
    return hf.RTDetrForObjectDetection(config)


def labels(boxes: torch.Tensor, classes: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    """Return the truth in the form of the model's loss: centre and size from 0 to 1.

    Args:
        boxes: (batch, 12, 4), corners in network pixels.
        classes: (batch, 12), -1 in unused rows.
    """
    width, height = net.INPUT_WH
    size = boxes.new_tensor([width, height])
    centre, extent = (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]
    scaled = torch.cat([centre / size, extent / size], -1)
    return [
        {'class_labels': kind[kind >= 0], 'boxes': box[kind >= 0]}
        for kind, box in zip(classes, scaled, strict=True)
    ]


def fit(arguments: argparse.Namespace) -> tuple[hf.RTDetrForObjectDetection, int]:
    """Train until the time is up; return the network on the CPU, and the number of steps."""
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    torch.manual_seed(train.SEED)
    width, height = arguments.input
    detector = network(height, width).to(device).train()
    slow = [p for name, p in detector.named_parameters() if 'backbone' in name]
    fast = [p for name, p in detector.named_parameters() if 'backbone' not in name]
    optimizer = torch.optim.AdamW([{'params': slow}, {'params': fast}], weight_decay=1e-4)
    loader = DataLoader(
        train.SceneStream(0, train.sample),
        arguments.chunk,
        num_workers=arguments.workers,
        prefetch_factor=4,
    )
    batches: queue.Queue = queue.Queue(8)
    stop = threading.Event()
    feeder = threading.Thread(target=train.fill_queue, args=(loader, batches, stop), daemon=True)
    feeder.start()
    pool = train.ScenePool(arguments.pool, device, train.sample(0))
    while pool.received < min(arguments.batch * 8, arguments.pool):
        pool.add(batches.get(timeout=120))
    start = time.monotonic()
    steps, progress = 0, 0.0
    while progress < 1:
        while not batches.empty():
            pool.add(batches.get())
        images, boxes, classes = pool.draw(arguments.batch)
        if arguments.input != list(net.INPUT_WH):
            images = torch.nn.functional.interpolate(
                images, (height, width), mode='bilinear', antialias=True
            )
        for group in optimizer.param_groups:
            group['lr'] = train.learning_rate(progress, arguments.peak_rate)
        found = detector(pixel_values=images, labels=labels(boxes, classes))
        optimizer.zero_grad(set_to_none=True)
        found.loss.backward()
        torch.nn.utils.clip_grad_norm_(detector.parameters(), 1.0)
        optimizer.step()
        steps += 1
        progress = (time.monotonic() - start) / arguments.seconds
        if steps % arguments.log_every == 0:
            parts = {k: round(v.item(), 3) for k, v in list(found.loss_dict.items())[:3]}
            print(f'{progress:6.1%} step {steps} {found.loss.item():.2f} {parts}', flush=True)
    stop.set()
    feeder.join(30)
    return detector.cpu().eval(), steps


class Outputs(torch.nn.Module):
    """The detector with only logits and boxes as outputs, in the usual order of exporters."""

    def __init__(self, detector: torch.nn.Module):
        super().__init__()
        self.detector = detector

    def forward(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.detector(pixel_values=pixel_values)
        return found.logits, found.pred_boxes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--out', type=pathlib.Path, default=pathlib.Path('queries.onnx'))
    parser.add_argument('--seconds', type=float, default=900.0, help='time of training')
    parser.add_argument('--batch', type=int, default=64)
    parser.add_argument('--chunk', type=int, default=32, help='scenes per message of a worker')
    parser.add_argument('--pool', type=int, default=16_384, help='scenes kept; 0.9 MB each')
    parser.add_argument('--workers', type=int, default=15)
    parser.add_argument('--peak-rate', type=float, default=5e-4, help='highest learning rate')
    parser.add_argument(
        '--input',
        type=int,
        nargs=2,
        default=list(net.INPUT_WH),
        metavar=('WIDTH', 'HEIGHT'),
        help='sides of the network input, multiples of 32',
    )
    parser.add_argument('--log-every', type=int, default=100)
    arguments = parser.parse_args()
    detector, steps = fit(arguments)
    width, height = arguments.input
    torch.onnx.export(
        Outputs(detector),
        (torch.zeros(1, 3, height, width),),
        str(arguments.out),
        input_names=['pixel_values'],
        output_names=['logits', 'pred_boxes'],
        opset_version=17,
        dynamo=False,
    )
    detector.config.save_pretrained(arguments.out.parent)
    processor = hf.RTDetrImageProcessor(size={'height': height, 'width': width})
    processor.save_pretrained(arguments.out.parent)
    print(json.dumps({'steps': steps, 'seconds': arguments.seconds, 'torch': torch.__version__}))


if __name__ == '__main__':
    main()
