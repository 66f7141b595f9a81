# SPDX-License-Identifier: Apache-2.0
"""Record what the preprocessing of classifiers, segmenters and depth models makes of images.

processors.npz has, for each processor and image size, every STEP-th value of the input tensor. For
image processors of transformers, it also has the content of preprocessor_config.json. The images
are noise that the test makes again; their CRC-32 proves that it is the same. ``derived sizes`` has
rows with an image's width and height, the processor's width, height and multiple, and the width
and height that DPT's processor derives.

    python3 -m pip install torch==2.14.1 torchvision==0.29.1 transformers==5.24.0 \
      ultralytics==8.4.190 timm==1.0.31 pillow==13.0.0
    python3 test/data/exports/record_processors.py --out test/data/exports
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import timm.data
import torch
import transformers
from noise import SIZES, checksums, picture
from PIL import Image
from torchvision import transforms
from transformers.models.dpt.image_processing_dpt import get_resize_output_image_size
from ultralytics.data.augment import classify_transforms

STEP = 499  # a prime, so that the values are spread over rows and columns
#: Class and arguments of image processors of transformers.
PROCESSORS = {
    'vit': ('ViT', {}),
    'mobilenet_v2': ('MobileNetV2', {}),
    'clip': ('CLIP', {}),
    'dinov2': ('Bit', {'size': {'shortest_edge': 256}}),
    'mobilevit': ('MobileViT', {'size': {'shortest_edge': 288}, 'resample': 2}),
    'convnext': ('ConvNext', {'size': {'shortest_edge': 224}}),
    'convnext_crop_pct': ('ConvNext', {'size': {'shortest_edge': 256}, 'crop_pct': 0.95}),
    'convnext_384': ('ConvNext', {}),
    'beit': ('Beit', {}),
    'segformer': ('Segformer', {'size': {'height': 128, 'width': 192}}),
    'efficientnet': (
        'EfficientNet',
        {
            'size': {'height': 224, 'width': 224},
            'image_mean': [0.485, 0.456, 0.406],
            'image_std': [0.47853944, 0.4732864, 0.47434163],
        },
    ),
    'yolos': ('Yolos', {'size': {'shortest_edge': 230, 'longest_edge': 380}}),
    'dpt': ('DPT', {}),
    'depth_anything': ('DPT', {'size': {'height': 266, 'width': 364}, 'ensure_multiple_of': 14}),
    'depth_anything_derived': (
        'DPT',
        {
            'size': {'height': 266, 'width': 266},
            'ensure_multiple_of': 14,
            'keep_aspect_ratio': True,
        },
    ),
}
BICUBIC = transforms.InterpolationMode.BICUBIC


def outside_transformers():
    """Return functions from an RGB array to the input tensor, by name."""

    def of_picture(transform):
        return lambda rgb: transform(Image.fromarray(rgb)).numpy()

    def of_tensor(kind, **resize):
        transform = transforms.Compose(
            [transforms.Resize(256, **resize), transforms.CenterCrop(224)]
        )

        def apply(rgb):
            pixels = torch.from_numpy(rgb.transpose(2, 0, 1).copy()).to(kind)
            return transform(pixels).to(torch.float32).numpy() / 255

        return apply

    crop = [transforms.CenterCrop(224), transforms.ToTensor()]
    timm_transform = timm.data.create_transform(
        (3, 224, 224), interpolation='bicubic', crop_pct=0.9, mean=(0, 0, 0), std=(1, 1, 1)
    )
    return {
        'torchvision': of_picture(transforms.Compose([transforms.Resize(256), *crop])),
        'torchvision_bicubic': of_picture(
            transforms.Compose([transforms.Resize(246, BICUBIC), *crop])
        ),
        'torchvision_padded': of_picture(transforms.Compose([transforms.Resize(201), *crop])),
        'tensor_bilinear': of_tensor(torch.uint8),
        'tensor_bicubic': of_tensor(torch.uint8, interpolation=BICUBIC),
        'floats_bilinear': of_tensor(torch.float32, antialias=False),
        'floats_bicubic': of_tensor(torch.float32, interpolation=BICUBIC, antialias=False),
        'floats_bicubic_antialias': of_tensor(torch.float32, interpolation=BICUBIC),
        'ultralytics': of_picture(classify_transforms(224)),
        'timm': of_picture(timm_transform),
    }


def processor_values(name):
    """Return the function of a processor of transformers, and its configuration."""
    prefix, arguments = PROCESSORS[name]
    processor = getattr(transformers, f'{prefix}ImageProcessor')(**arguments)
    pil_processor = getattr(transformers, f'{prefix}ImageProcessorPil')(**arguments)

    def apply(rgb):
        fast = processor(rgb, return_tensors='np', input_data_format='channels_last')
        slow = pil_processor(rgb, return_tensors='np', input_data_format='channels_last')
        fast, slow = fast['pixel_values'][0], slow['pixel_values'][0]
        levels = np.abs(fast - slow) * 255
        if hasattr(processor, 'image_std') and processor.do_normalize:
            levels = levels * np.array(processor.image_std)[:, None, None]
        print(f'  the two backends differ by {levels.max():.2f} levels')
        return np.asarray(fast)

    return apply, json.loads(processor.to_json_string())


def derived_sizes():
    rng, rows = np.random.default_rng(5), [(1920, 1080, 518, 518, 14), (1080, 1920, 518, 518, 14)]
    rows += [(*rng.integers(1, 2500, 2), *rng.integers(30, 800, 2), 14) for _ in range(300)]
    rows += [(*rng.integers(1, 2500, 2), *rng.integers(30, 800, 2), 1) for _ in range(100)]
    for index, (width, height, size_width, size_height, multiple) in enumerate(rows):
        found = get_resize_output_image_size(
            torch.zeros(1, height, width), (size_height, size_width), True, int(multiple)
        )
        rows[index] += (found.width, found.height)
    return np.array(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--out', type=Path, required=True, help='folder to write into')
    arguments = parser.parse_args()
    content = checksums()
    functions, configs = outside_transformers(), {}
    for name in PROCESSORS:
        functions[name], configs[name] = processor_values(name)
    for name, function in functions.items():
        for width, height in SIZES:
            tensor = function(picture((width, height))).astype(np.float32)
            print(name, (width, height), tensor.shape)
            content[f'{name} {width}x{height}'] = tensor.reshape(-1)[::STEP]
            content[f'{name} {width}x{height} shape'] = np.array(tensor.shape)
    content['derived sizes'] = derived_sizes()
    content['configs'] = np.array(json.dumps(configs))
    path = arguments.out / 'processors.npz'
    np.savez_compressed(path, **content)
    print(f'{len(functions)} processors, {path.stat().st_size / 1024:.0f} KiB')


if __name__ == '__main__':
    main()
