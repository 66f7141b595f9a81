# SPDX-License-Identifier: Apache-2.0
"""Record the config.json of timm's classifiers, and what timm's preprocessing makes of images.

timm.npz has, for each model and image size, every STEP-th value of the input tensor, and the
content of the config.json that timm writes. The images are the noise of record_processors.py.

    python3 -m pip install torch==2.14.1 torchvision==0.29.1 timm==1.0.31 pillow==13.0.0
    python3 test/data/exports/record_timm.py --out test/data/exports
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import timm
from noise import SIZES, checksums, picture
from PIL import Image
from timm.data import create_transform, resolve_data_config
from timm.models import save_for_hf

STEP = 499  # as in record_processors.py
#: Names of models, and values that replace those of the pretrained weights.
MODELS = {
    'resnet18.a1_in1k': {},
    'resnet18.tv_in1k': {},
    'vit_tiny_patch16_224.augreg_in21k_ft_in1k': {},
    'convnext_atto.d2_in1k': {},
    'efficientnet_b0.ra_in1k': {},
    'mobilenetv3_small_050.lamb_in1k': {},
    'swin_tiny_patch4_window7_224.ms_in1k': {},
    'tf_efficientnetv2_b0.in1k': {},
    'mobilevit_xxs.cvnets_in1k': {},
    'resnet18.a1_in1k squash': {'crop_mode': 'squash', 'crop_pct': 1.0},
    'resnet18.a1_in1k border': {'crop_mode': 'border', 'crop_pct': 1.0},
    'resnet18.a1_in1k squash and crop': {'crop_mode': 'squash', 'crop_pct': 0.9},
    'resnet18.a1_in1k oblong': {'input_size': (3, 160, 224)},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--out', type=Path, required=True, help='folder to write into')
    arguments = parser.parse_args()
    content = checksums()
    configs = {}
    for name, values in MODELS.items():
        model = timm.create_model(name.split()[0], pretrained_cfg_overlay=values)
        with tempfile.TemporaryDirectory() as folder:
            save_for_hf(model, folder, safe_serialization=True)
            configs[name] = json.loads(Path(folder, 'config.json').read_text(encoding='utf-8'))
        transform = create_transform(**resolve_data_config(model=model), is_training=False)
        for width, height in SIZES:
            tensor = transform(Image.fromarray(picture((width, height)))).numpy()
            print(name, (width, height), tensor.shape)
            content[f'{name} {width}x{height}'] = tensor.reshape(-1)[::STEP]
            content[f'{name} {width}x{height} shape'] = np.array(tensor.shape)
    content['configs'] = np.array(json.dumps(configs))
    np.savez_compressed(arguments.out / 'timm.npz', **content)


if __name__ == '__main__':
    main()
