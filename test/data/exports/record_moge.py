# SPDX-License-Identifier: Apache-2.0
"""Record the outputs of MoGe-2, and the depth of its own ``infer``.

moge.npz has, for each image size, every PIXEL_STEP-th value of the input tensor, the outputs of
the exported network in float16, and every STEP-th value of the depth that ``infer`` makes of these
outputs. ``known depth`` is for the field of view FOV_X. The network has a small backbone and
random weights from a seed. Its inputs for the location are made stronger, so that points resemble
those of a camera. It is exported with a fixed size, as in docs/onnx.md of MoGe. Images are resized
as in the encoder.

    python3 -m pip install torch==2.14.1 onnx onnxruntime opencv-python scipy matplotlib trimesh \
      click huggingface_hub
    git clone https://github.com/microsoft/MoGe  # commit 0744441
    git clone https://github.com/EasternJournalist/utils3d  # commit 3fab839
    XFORMERS_DISABLED=1 PYTHONPATH=MoGe:utils3d \
      python3 test/data/exports/record_moge.py --out test/data/exports
"""

from __future__ import annotations

import argparse
import tempfile
import zlib
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from moge.model.v2 import MoGeModel
from noise import SIZES, picture
from torch.nn.functional import interpolate

PIXEL_STEP, STEP = 13, 3
#: Width, height and tokens of the network. Tokens have 14 x 14 pixels.
NETWORK, TOKENS = (70, 42), 15
FOV_X = 60.0
CHANNELS = [16, 16, 16, 8, 8]


class Static(MoGeModel):
    """The network with a fixed number of tokens, as in docs/onnx.md."""

    def forward(self, image, num_tokens=TOKENS):
        return super().forward(image, TOKENS)


class Recorded(MoGeModel):
    """``infer`` for given outputs."""

    def forward(self, image, num_tokens):
        return {name: value.clone() for name, value in self.recorded.items()}


def tensor_of(size):
    image = torch.from_numpy(picture(size) / np.float32(255)).permute(2, 0, 1)[None]
    return interpolate(image, NETWORK[::-1], mode='bilinear', align_corners=False, antialias=True)


def network(kind):
    def stack_of(dim_in, dim_out):
        return {
            'dim_in': dim_in,
            'dim_res_blocks': CHANNELS,
            'dim_out': dim_out,
            'resamplers': ['bilinear'] * 4,
            'res_block_hidden_norm': 'none',
            'res_block_in_norm': 'none',
        }

    torch.manual_seed(3)
    model = kind(
        encoder={'backbone': 'dinov2_vits14', 'intermediate_layers': 2, 'dim_out': 14},
        neck=stack_of([16, 2, 2, 2, 2], CHANNELS),
        **{
            f'{name}_head': stack_of(CHANNELS, [None] * 4 + [outputs])
            for name, outputs in {'points': 3, 'normal': 3, 'mask': 1}.items()
        },
        scale_head={'dims': [384, 16, 1]},
        remap_output='exp',
    ).eval()
    with torch.no_grad():
        # x and y: the location, and a small part of the features.
        for stack in (model.neck, model.points_head):
            for layer in (stack.res_blocks[4][0].layers[-1], stack.resamplers[3][-1]):
                layer.weight[:2] *= 0.05
                layer.bias[:2] = 0
            for layer in (stack.input_blocks[4], stack.output_blocks[4]):
                layer.weight[:2] *= 0.01
                layer.bias[:2] = 0
                for channel in (0, 1):
                    layer.weight[channel, channel] = 1
        model.points_head.output_blocks[4].weight[2] *= 3
        model.mask_head.output_blocks[4].weight *= 3
    return model


def center_mask(model):
    """Let the mask reject a fifth of the pixels of the first image."""
    logits = []
    hook = model.mask_head.register_forward_hook(lambda _, __, found: logits.append(found[-1]))
    with torch.no_grad():
        model(tensor_of(SIZES[0]))
        model.mask_head.output_blocks[4].bias -= logits[0].quantile(0.2)
    hook.remove()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--out', type=Path, required=True, help='folder to write into')
    arguments = parser.parse_args()
    model = network(Static)
    center_mask(model)
    infer = {'num_tokens': TOKENS, 'use_fp16': False}
    names = ['points', 'normal', 'mask', 'metric_scale']
    model.onnx_compatible_mode = True
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'model.onnx'
        torch.onnx.export(
            model,
            (torch.rand(1, 3, *NETWORK[::-1]),),
            path,
            input_names=['image'],
            output_names=names,
            dynamic_axes=None,
            opset_version=17,
            dynamo=False,
        )
        session = onnxruntime.InferenceSession(path)
    content = {}
    replayed = network(Recorded)
    for size in SIZES:
        key = '{}x{}'.format(*size)
        pixels = tensor_of(size)
        outputs = dict(zip(names, session.run(None, {'image': pixels.numpy()}), strict=True))
        stored = {name: outputs[name].astype(np.float16) for name in names if name != 'normal'}
        replayed.recorded = {
            name: torch.from_numpy(value.astype(np.float32)) for name, value in stored.items()
        }
        found = replayed.infer(pixels, **infer)
        known = replayed.infer(pixels, fov_x=FOV_X, **infer)
        content |= {f'{key} {name}': value for name, value in stored.items()}
        content[f'{key} pixels'] = pixels.numpy().reshape(-1)[::PIXEL_STEP]
        for name, result in (('depth', found), ('known depth', known)):
            content[f'{key} {name}'] = result['depth'].numpy().reshape(-1)[::STEP]
        content[f'crc {key}'] = np.uint32(zlib.crc32(picture(size)))
        depth = found['depth'][found['mask']]
        low, high = float(depth.min()), float(depth.max())
        share = float(found['mask'].float().mean())
        assert high >= 2 * low > 0, (key, low, high)
        assert 0.5 < share < 1, (key, share)
        print(key, low, high, share, found['intrinsics'])
    path = arguments.out / 'moge.npz'
    np.savez_compressed(path, **content)
    print(f'{path.stat().st_size / 1024:.0f} KiB')


if __name__ == '__main__':
    main()
