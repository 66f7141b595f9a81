# SPDX-License-Identifier: Apache-2.0
"""Record the inputs and depth maps of depth models.

depth.npz has, for each family and image size, every PIXEL_STEP-th value of the input tensor and
every DEPTH_STEP-th value of the depth map that the family's own code makes. The file also has the
network's output, rounded to float16 before that code ran, and the range of the whole map. For
Depth Pro, only every fourth row and column of the output is used. The metadata or configurations
of the models are in ``files``. Weights are random, from a seed, and the networks are tiny. Their
last layer is scaled so that the largest depth is at least twice the smallest.

    python3 -m pip install torch==2.14.1 torchvision==0.29.1 transformers==5.24.0 \
      onnx onnxscript onnxruntime ultralytics==8.4.190
    python3 test/data/exports/record_depth.py --out test/data/exports --models /tmp/depth_models

With ``--models``, the script also writes the exported files, and whole maps of the unrounded
outputs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import zlib
from pathlib import Path

import numpy as np
import onnx
import torch
import transformers
import ultralytics
import yaml
from noise import SIZES, picture

PIXEL_STEP, DEPTH_STEP = 97, 1499  # primes, so that the values are spread over rows and columns
BACKBONE = {
    'hidden_size': 32,
    'num_hidden_layers': 4,
    'num_attention_heads': 2,
    'intermediate_size': 64,
}
DEPTH_ANYTHING = {
    'backbone_config': transformers.Dinov2Config(
        **BACKBONE,
        image_size=56,
        patch_size=14,
        out_features=['stage1', 'stage2', 'stage3', 'stage4'],
        reshape_hidden_states=False,
    ),
    'reassemble_hidden_size': 32,
    'neck_hidden_sizes': [8, 8, 16, 16],
    'fusion_hidden_size': 16,
    'head_hidden_size': 8,
}
DPT = {
    **BACKBONE,
    'image_size': 64,
    'backbone_out_indices': [0, 1, 2, 3],
    'neck_hidden_sizes': [8, 8, 16, 16],
    'fusion_hidden_size': 16,
}
DINO_OF_DEPTH_PRO = {**BACKBONE, 'model_type': 'dinov2', 'image_size': 16, 'patch_size': 4}
DEPTH_PRO = {
    'patch_size': 16,
    'fusion_hidden_size': 16,
    'intermediate_hook_ids': [2, 1],
    'intermediate_feature_dims': [8, 8],
    'scaled_images_feature_dims': [8, 8, 8],
    'use_fov_model': True,
    'image_model_config': DINO_OF_DEPTH_PRO,
    'patch_model_config': DINO_OF_DEPTH_PRO,
    'fov_model_config': DINO_OF_DEPTH_PRO,
}
#: Model and its configuration, image processor, height and width of the network.
FAMILIES = {
    'depth_anything': (('DepthAnything', DEPTH_ANYTHING), 'DPT', (42, 70)),
    'depth_anything_metric': (
        ('DepthAnything', {**DEPTH_ANYTHING, 'depth_estimation_type': 'metric', 'max_depth': 20}),
        'DPT',
        (42, 70),
    ),
    'dpt': (('DPT', DPT), 'DPT', (64, 64)),
    'depth_pro': (('DepthPro', DEPTH_PRO), 'DepthPro', (64, 64)),
}
YOLO_SHAPE = (64, 96)
YOLO = {
    'nc': 80,
    'backbone': [[-1, 1, 'Conv', [channels, 3, 2]] for channels in (8, 8, 16, 16, 16)],
    'head': [[[2, 3, 4], 1, 'Depth', [32]]],
}


class Named(torch.nn.Module):
    """The exported outputs of a model of transformers."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixel_values):
        found = self.model(pixel_values)
        fov = getattr(found, 'field_of_view', None)
        return found.predicted_depth if fov is None else (found.predicted_depth, fov)


def scale_last_layer(layer, run, low, high):
    """Change the last layer so that its outputs for one input are from ``low`` to ``high``."""
    seen = []
    hook = layer.register_forward_hook(lambda _, __, output: seen.append(output))
    with torch.no_grad():
        run()
        factor = (high - low) / (seen[0].max() - seen[0].min())
        layer.weight.mul_(factor)
        layer.bias.mul_(factor).add_(low - seen[0].min() * factor)
    hook.remove()


def last_convolution(model):
    return [part for part in model.modules() if isinstance(part, torch.nn.Conv2d)][-1]


class Transformers:
    """A model of transformers with its image processor."""

    def __init__(self, family, models):
        (name, config), processor, (height, width) = FAMILIES[family]
        torch.manual_seed(3)
        config = getattr(transformers, f'{name}Config')(**config)
        self.model = getattr(transformers, f'{name}ForDepthEstimation')(config).eval()
        size = {'height': height, 'width': width}
        self.processor = getattr(transformers, f'{processor}ImageProcessor')(
            size=size, **({'ensure_multiple_of': 14} if 'anything' in family else {})
        )
        head = last_convolution(self.model.head)
        pixels = torch.from_numpy(self.pixels(picture(SIZES[0])))
        ends = (-1.0, 1.0) if family == 'depth_anything_metric' else (0.3, 4.0)
        scale_last_layer(head, lambda: self.model(pixels), *ends)
        if self.model.config.model_type == 'depth_pro':
            fov = [part for part in self.model.fov_model.modules() if hasattr(part, 'bias')]
            with torch.no_grad():
                fov[-1].bias.fill_(50)
        folder = models / family
        folder.mkdir(parents=True)
        self.model.config.architectures = [type(self.model).__name__]
        self.model.config.save_pretrained(folder)
        self.processor.save_pretrained(folder)
        names = ['predicted_depth', 'field_of_view'][: 2 if family == 'depth_pro' else 1]
        torch.onnx.export(
            Named(self.model).eval(),
            (pixels,),
            folder / 'model.onnx',
            input_names=['pixel_values'],
            output_names=names,
            dynamo=False,
            opset_version=17,
        )
        self.files = {
            'config.json': (folder / 'config.json').read_text(),
            'preprocessor_config.json': (folder / 'preprocessor_config.json').read_text(),
        }

    def pixels(self, rgb):
        found = self.processor(rgb, return_tensors='np', input_data_format='channels_last')
        return found['pixel_values']

    def outputs(self, rgb):
        with torch.no_grad():
            found = Named(self.model)(torch.from_numpy(self.pixels(rgb)))
        found = found if isinstance(found, tuple) else (found,)
        return [output.numpy() for output in found]

    def depth(self, outputs, rgb):
        """Return the map for an image, from the outputs of the network."""
        tensors = [torch.from_numpy(output) for output in outputs]
        keys = ('predicted_depth', 'field_of_view')
        found = transformers.utils.ModelOutput(zip(keys, tensors, strict=False))
        (result,) = self.processor.post_process_depth_estimation(found, [rgb.shape[:2]])
        return result['predicted_depth'].numpy()


class Ultralytics:
    """A model of Ultralytics with its predictor."""

    def __init__(self, models):
        folder = (models / 'depth_ultralytics').resolve()
        folder.mkdir(parents=True)
        torch.manual_seed(3)
        with contextlib.chdir(folder):
            Path('yolo26-depth.yaml').write_text(yaml.safe_dump(YOLO))
            model = ultralytics.YOLO('yolo26-depth.yaml', task='depth')
            model.model.train()
            with torch.no_grad():  # statistics of the batch normalisation
                model.model(torch.rand(8, 3, *YOLO_SHAPE))
            model.model.eval()
            pixels = torch.rand(1, 3, *YOLO_SHAPE)
            ends = np.log([1.0, 5.0])
            scale_last_layer(
                model.model.model[-1].head[-1], lambda: model.model(pixels), *map(float, ends)
            )
            path = model.export(format='onnx', imgsz=list(YOLO_SHAPE))
            self.model = ultralytics.YOLO(Path(path).resolve(), task='depth')
            metadata = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
        self.files = {'metadata': metadata}
        self.options = {'imgsz': list(YOLO_SHAPE), 'verbose': False}
        self.model.predict(picture(SIZES[0]), **self.options)

    def pixels(self, rgb):
        return self.model.predictor.preprocess([rgb[..., ::-1]]).numpy()

    def outputs(self, rgb):
        return [self.model.predictor.inference(torch.from_numpy(self.pixels(rgb))).numpy()]

    def depth(self, outputs, rgb):
        predictor = self.model.predictor
        (found,) = predictor.postprocess(
            torch.from_numpy(outputs[0]), torch.zeros(1, 3, *YOLO_SHAPE), [rgb[..., ::-1]]
        )
        return np.asarray(found.depth.data)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--out', type=Path, required=True, help='folder to write into')
    parser.add_argument('--models', type=Path, help='folder for the exported models')
    arguments = parser.parse_args()
    content, files = {}, {}
    for size in SIZES:
        content['crc {}x{}'.format(*size)] = np.uint32(zlib.crc32(picture(size)))
    with tempfile.TemporaryDirectory() as scratch:
        models = arguments.models or Path(scratch)
        made = {'depth_ultralytics': Ultralytics(models)}
        made |= {family: Transformers(family, models) for family in FAMILIES}
        for family, model in made.items():
            files[family] = model.files
            for size in SIZES:
                rgb, key = picture(size), '{} {}x{}'.format(family, *size)
                pixels, outputs = model.pixels(rgb), model.outputs(rgb)
                if arguments.models:
                    np.save(models / family / '{}x{}.npy'.format(*size), model.depth(outputs, rgb))
                rounded = [output.astype(np.float16) for output in outputs]
                if family == 'depth_pro':
                    rounded[0] = rounded[0][:, ::4, ::4]
                depth = model.depth([output.astype(np.float32) for output in rounded], rgb)
                low, high = float(depth.min()), float(depth.max())
                assert depth.shape == size[::-1], depth.shape
                assert high >= 2 * low > 0, (family, size, low, high)
                content[f'{key} pixels'] = pixels.reshape(-1)[::PIXEL_STEP]
                content[f'{key} depth'] = depth.reshape(-1)[::DEPTH_STEP]
                content[f'{key} range'] = np.float32([low, high])
                for number, output in enumerate(rounded):
                    content[f'{key} output {number}'] = output
                print(key, pixels.shape, [output.shape for output in outputs], low, high)
    content['files'] = np.array(json.dumps(files))
    path = arguments.out / 'depth.npz'
    np.savez_compressed(path, **content)
    print(f'{len(files)} families, {path.stat().st_size / 1024:.0f} KiB')


if __name__ == '__main__':
    main()
