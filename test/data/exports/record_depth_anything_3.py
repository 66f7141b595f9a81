# SPDX-License-Identifier: Apache-2.0
"""Record the outputs of Depth Anything 3's metric network, and its depth in metres.

depth_anything_3.npz has, for each image size, every PIXEL_STEP-th value of the input tensor, the
outputs ``depth`` and ``sky`` of the exported network in float16, and every STEP-th value of the
depth in metres, at the network's resolution, from the family's own ``apply_metric_scaling``. The
network has the smallest backbone and
random weights from a seed. The input is made like in the export script of
ika-rwth-aachen/ros2-depth-anything-v3-trt, whose tensor names are used: PIL's bilinear resize.

    python3 -m pip install torch==2.14.1 torchvision==0.29.1 onnx onnxruntime pyyaml \
      addict einops omegaconf
    git clone https://github.com/ByteDance-Seed/Depth-Anything-3  # commit 2c21ea8
    PYTHONPATH=Depth-Anything-3/src python3 test/data/exports/record_depth_anything_3.py \
      --config Depth-Anything-3/src/depth_anything_3/configs/da3metric-large.yaml \
      --out test/data/exports
"""

from __future__ import annotations

import argparse
import tempfile
import zlib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
import yaml
from depth_anything_3.cfg import create_object
from depth_anything_3.utils.alignment import apply_metric_scaling
from noise import SIZES, picture
from omegaconf import OmegaConf
from onnx import numpy_helper
from PIL import Image
from torchvision import transforms

PIXEL_STEP, STEP = 13, 7
NETWORK = (98, 56)
#: fx and fy of the camera, in pixels of the image.
FOCAL_LENGTHS = (900.0, 840.0)
NORMALIZE = transforms.Compose(
    [transforms.ToTensor(), transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
)


class Exported(torch.nn.Module):
    """The network with one view and its outputs as tensors."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, image):
        found = self.model(image[:, None])
        return found['depth'], found['sky']


def tensor_of(size):
    resized = Image.fromarray(picture(size)).resize(NETWORK, Image.BILINEAR)
    return NORMALIZE(resized)[None]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--config', type=Path, required=True, help='da3metric-large.yaml')
    parser.add_argument('--out', type=Path, required=True, help='folder to write into')
    arguments = parser.parse_args()
    config = yaml.safe_load(arguments.config.read_text())
    config['net'] |= {'name': 'vits', 'out_layers': [2, 5, 8, 11]}
    config['head'] |= {'dim_in': 384, 'features': 16, 'out_channels': [16, 16, 16, 16]}
    torch.manual_seed(3)
    model = create_object(OmegaConf.create(config)).eval()
    # Larger weights of the last layers, so that the outputs vary, and a part exceeds 0.3.
    depth_layer, sky_layer = (
        layers[-1]
        for layers in (model.head.scratch.output_conv2, model.head.scratch.sky_output_conv2)
    )
    logits = []
    sky_layer.register_forward_hook(lambda _, __, output: logits.append(output))
    with torch.no_grad():
        depth_layer.weight.mul_(40)
        sky_layer.weight.mul_(-20)
        model(tensor_of(SIZES[0])[:, None])
        # The black image of the export has no sky. Otherwise torch would export operations on the
        # cells without sky, which ONNX lacks.
        sky_layer.bias.sub_(9)
    content = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'model.onnx'
        torch.onnx.export(
            Exported(model).eval(),
            (torch.zeros(1, 3, *NETWORK[::-1]),),
            path,
            input_names=['image'],
            output_names=['depth', 'sky'],
            opset_version=17,
            dynamo=False,
        )
        exported = onnx.load(path)
        for tensor in exported.graph.initializer:
            if tensor.name.endswith('sky_output_conv2.2.bias'):
                bias = numpy_helper.to_array(tensor) + 9.3 - logits[0].quantile(0.7).numpy()
                tensor.CopyFrom(numpy_helper.from_array(bias.astype(np.float32), tensor.name))
        session = onnxruntime.InferenceSession(exported.SerializeToString())
    for size in SIZES:
        pixels = tensor_of(size).numpy()
        outputs = session.run(None, {'image': pixels})
        depth, sky = (output.astype(np.float16).astype(np.float32) for output in outputs)
        scales = [own / whole for own, whole in zip(NETWORK, size, strict=True)]
        matrix = np.diag([f * scale for f, scale in zip(FOCAL_LENGTHS, scales, strict=True)] + [1])
        metres = apply_metric_scaling(
            torch.from_numpy(depth), torch.from_numpy(matrix[None, None].astype(np.float32))
        )
        key = '{}x{}'.format(*size)
        content[f'{key} pixels'] = pixels.reshape(-1)[::PIXEL_STEP]
        content[f'{key} depth'] = depth.astype(np.float16)
        content[f'{key} sky'] = sky.astype(np.float16)
        content[f'{key} metres'] = metres.numpy().reshape(-1)[::STEP]
        content[f'crc {key}'] = np.uint32(zlib.crc32(picture(size)))
        low, high, share = float(depth.min()), float(depth.max()), float((sky < 0.3).mean())
        assert high >= 2 * low > 0, (key, low, high)
        assert 0.5 < share < 0.95, (key, share)
        print(key, depth.shape, low, high, share)
    path = arguments.out / 'depth_anything_3.npz'
    np.savez_compressed(path, **content)
    print(f'{path.stat().st_size / 1024:.0f} KiB')


if __name__ == '__main__':
    main()
