# SPDX-License-Identifier: Apache-2.0
"""Write a tiny Depth Anything V2 with random weights from a seed, for tests and first tries.

The script writes models/depth_tiny.onnx, its manifest, and test/data/exports/depth_tiny.npz. This
file has, for each image size, every STEP-th value of the depth map that transformers makes, and
the range of the map. The last layer is scaled, so that the largest depth of each image is at least
twice the smallest.

    python3 -m pip install torch==2.14.1 torchvision==0.29.1 transformers==5.24.0 timm==1.0.31 \
      ultralytics==8.4.190 onnx onnxruntime opencv-python-headless
    python3 training/make_depth.py
"""

import hashlib
import json
import pathlib
import sys
import zlib

import cv2
import numpy as np
import onnx
import onnxruntime
import torch
import transformers

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / 'test' / 'data' / 'exports'))
from record_processors import SIZES, picture
from tiny_exports import export

ROOT = pathlib.Path(__file__).resolve().parents[1]
EXPORTS = ROOT / 'test' / 'data' / 'exports'
MODEL = ROOT / 'models' / 'depth_tiny.onnx'
MAX_BYTES = 300_000
HEIGHT, WIDTH = 126, 168  # multiples of 14, with the aspect ratio of usual cameras
STEP = 1499  # a prime, so that the values are spread over rows and columns
LOW, HIGH = 0.5, 4.0  # the depths of the demo scenes
CONFIG = transformers.DepthAnythingConfig(
    backbone_config=transformers.Dinov2Config(
        hidden_size=24,
        num_hidden_layers=4,
        num_attention_heads=2,
        mlp_ratio=2,
        image_size=WIDTH,
        patch_size=14,
        out_features=['stage1', 'stage2', 'stage3', 'stage4'],
        reshape_hidden_states=False,
    ),
    reassemble_hidden_size=24,
    neck_hidden_sizes=[6, 6, 8, 8],
    fusion_hidden_size=8,
    head_hidden_size=8,
)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DESCRIPTION = 'relative depth by a tiny Depth Anything V2 with random weights, for tests'


class Depth(torch.nn.Module):
    """The exported output of a model of transformers."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixels):
        return self.model(pixels).predicted_depth


def make_network(images):
    """Return a network with random weights, whose depths of the images are from LOW to HIGH."""
    torch.manual_seed(3)
    network = transformers.DepthAnythingForDepthEstimation(CONFIG).eval()
    last = network.head.conv3
    seen = []
    hook = last.register_forward_hook(lambda _, __, output: seen.append(output))
    with torch.no_grad():
        network.backbone.embeddings.position_embeddings.mul_(0.1)
        network(images)
        low, high = seen[0].min(), seen[0].max()
        factor = (HIGH - LOW) / (high - low)
        last.weight.mul_(factor)
        last.bias.mul_(factor).add_(LOW - low * factor)
    hook.remove()
    return Depth(network)


def manifest():
    """Return the manifest, which says how to feed and read the model."""
    data = MODEL.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    return {
        'schema': 2,
        'task': 'depth',
        'onnx': {'file': MODEL.name, 'sha256': digest, 'size_bytes': len(data)},
        'engine': None,
        'inputs': [{'name': 'images', 'shape': [1, 3, HEIGHT, WIDTH], 'dtype': 'float32'}],
        'outputs': [{'name': 'depth', 'shape': [1, HEIGHT, WIDTH], 'dtype': 'float32'}],
        'preprocessing': {
            'input_size': [WIDTH, HEIGHT],
            'resize': 'stretch',
            'filter': 'bicubic',
            'antialias': True,
            'round_pixels': True,
            'pad_value': 114,
            'color_order': 'rgb',
            'scale': 1 / 255,
            'mean': MEAN,
            'std': STD,
            'layout': 'nchw',
            'dtype': 'float32',
        },
        'decoder': {
            'family': 'depth',
            'has_channel_axis': False,
            'is_metric': False,
            'upsampling': 'bicubic',
        },
        'class_names': [],
        'notes': {
            'description': DESCRIPTION,
            'license': 'weights Apache-2.0',
            'trained_on': 'nothing: random weights',
            'reproduce': 'training/make_depth.py',
        },
    }


def main():
    size = {'height': HEIGHT, 'width': WIDTH}
    processor = transformers.DPTImageProcessor(
        size=size, ensure_multiple_of=14, image_mean=MEAN, image_std=STD
    )

    def pixels(rgb):
        values = processor(rgb, return_tensors='pt', input_data_format='channels_last')
        return values['pixel_values']

    scenes = [cv2.imread(str(path)) for path in sorted((ROOT / 'demo/scenes').glob('*.jpg'))]
    network = make_network(torch.cat([pixels(np.array(one[..., ::-1])) for one in scenes]))
    sample = pixels(picture(SIZES[0]))
    export(network, (sample,), MODEL, ['images'], ['depth'], dynamo=False)
    graph = onnx.load(MODEL)
    onnx.helper.set_model_props(graph, {'description': DESCRIPTION, 'license': 'Apache-2.0'})
    onnx.save(graph, MODEL)
    MODEL.with_name(f'{MODEL.name}.json').write_text(json.dumps(manifest(), indent=2) + '\n')
    session = onnxruntime.InferenceSession(MODEL, providers=['CPUExecutionProvider'])
    content = {}
    for width, height in SIZES:
        rgb, key = picture((width, height)), f'{width}x{height}'
        values = pixels(rgb)
        with torch.no_grad():
            outputs = network.model(values)
        (found,) = processor.post_process_depth_estimation(outputs, [(height, width)])
        depth = found['predicted_depth'].numpy()
        (written,) = session.run(None, {'images': values.numpy()})
        difference = np.abs(written - outputs.predicted_depth.numpy()).max()
        low, high = float(depth.min()), float(depth.max())
        print(f'{key}: {low:.3f} to {high:.3f}; ONNX Runtime differs by {difference:.1e}')
        assert difference < 1e-4
        assert high >= 2 * low > 0
        content[f'crc {key}'] = np.uint32(zlib.crc32(rgb))
        content[f'{key} depth'] = depth.reshape(-1)[::STEP]
        content[f'{key} range'] = np.float32([low, high])
    np.savez_compressed(EXPORTS / 'depth_tiny.npz', **content)
    print(f'{MODEL.name}: {MODEL.stat().st_size} bytes')
    if MODEL.stat().st_size > MAX_BYTES:
        raise SystemExit(f'at most {MAX_BYTES} bytes can be shipped')


if __name__ == '__main__':
    main()
