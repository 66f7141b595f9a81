# SPDX-License-Identifier: Apache-2.0
"""Record tiny classifiers and segmenters, and the results of their families' own code.

image_tasks.npz has, for each family: the exported file, the files that the library saved with it,
and for each image the scores of all classes, or the class of every STEP-th pixel. Entries named
"post" are the result of the family's post-processing for an output that the test recreates.
Weights are random, from a seed. The last layer is scaled, so that all classes occur.

    python3 -m pip install torch==2.14.1 torchvision==0.29.1 transformers==5.24.0 \
      ultralytics==8.4.190 onnx onnxruntime
    python3 test/data/exports/record_image_tasks.py --out test/data/exports
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import types
import zlib
from pathlib import Path

import numpy as np
import torch
import transformers
import ultralytics
import yaml
from PIL import Image
from tiny_exports import export, shorten
from torchvision.models import efficientnet, mobilenetv3, segmentation
from torchvision.models.segmentation import deeplabv3
from torchvision.transforms import functional
from ultralytics.models.yolo.semantic import SemanticSegmentationPredictor

SIZES = ((517, 333), (1920, 1080), (333, 517))
STEP = 211  # a prime, so that the pixels are spread over rows and columns
NAMES = [f'class {number}' for number in range(9)]
HEIGHT, WIDTH = 96, 128  # of the segmenters' inputs
SIDE = 64  # of the square inputs
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CONV = [[-1, 1, 'Conv', [8, 3, 2]], [-1, 1, 'Conv', [8, 3, 2]], [-1, 1, 'Conv', [16, 3, 2]]]


def picture(size, seed=11):
    """Return random blocks with noise, RGB uint8 (height, width, 3)."""
    width, height = size
    rng = np.random.default_rng(seed)
    blocks = rng.integers(20, 236, (8, 12, 3))
    fine = rng.integers(-40, 41, (height, width, 3))
    rows, columns = np.arange(height) * 8 // height, np.arange(width) * 12 // width
    return (blocks[rows][:, columns] + fine).clip(0, 255).astype(np.uint8)


def logits_of_test(rows, columns):
    """Return logits that the test makes again, float32 (9, rows, columns)."""
    return np.random.default_rng(7).standard_normal((len(NAMES), rows, columns)).astype('f4')


def ids_of_test():
    """Return a map of class ids that the test makes again, uint8 (HEIGHT, WIDTH)."""
    ids = np.random.default_rng(8).integers(0, len(NAMES), (HEIGHT // 3, WIDTH // 4), np.uint8)
    return ids.repeat(3, 0).repeat(4, 1)


def prepare(model, inputs, last, factor):
    """Give a network random weights whose outputs depend on the image. Return the network.

    Args:
        model: the network, whose output is a tensor or has the key "logits" or "out".
        inputs: tensor of several images.
        last: the last layers, whose results are added.
        factor: standard deviation of the logits.
    """
    with torch.no_grad():
        for module in model.modules():  # compute their statistics from pictures
            if isinstance(module, torch.nn.BatchNorm2d):
                module.train()
                module.momentum = None
                module.reset_running_stats()
        model(inputs)
        model.eval()
        for parameter in model.parameters():  # such values compress well
            parameter.copy_(parameter.half().float())
        found = logits_of(model(inputs)).transpose(0, 1).flatten(1)
        gain, mean = factor / found.std(1), found.mean(1)
        for number, layer in enumerate(last):
            shape = (-1, *[1] * (layer.weight.ndim - 1))
            layer.weight.mul_(gain.reshape(shape))
            bias = layer.bias - mean if number == 0 else layer.bias
            layer.bias.copy_(bias * gain)
    return model


def make_clear(model, process, last):
    """Scale a classifier's last layer until each best score is twice the second score."""
    with torch.no_grad():
        found = logits_of(model(torch.stack([process(picture(size)) for size in SIZES])))
        second, best = found.sort(1).values[:, -2:].unbind(1)
        factor = max(1, np.log(2.5) / (best - second).min().item())
        last.weight.mul_(factor)
        last.bias.mul_(factor)


def logits_of(found):
    if isinstance(found, dict):
        return found.get('logits', found.get('out'))
    return found[0] if isinstance(found, tuple) else found


class OnlyLogits(torch.nn.Module):
    """Exports only the logits of a network."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixels):
        return logits_of(self.model(pixels))


def training_pictures(process):
    return torch.stack([process(picture((300, 200), seed)) for seed in range(24)])


def transformers_family(kind, config, processor, last, factor):
    """Return a network of transformers, its function from an RGB array to a tensor, and files."""
    config.id2label = dict(enumerate(NAMES))
    model = kind(config).eval()

    def process(rgb):
        return processor(rgb, return_tensors='pt', input_data_format='channels_last')[
            'pixel_values'
        ][0]

    prepare(model, training_pictures(process), last(model), factor)
    if hasattr(model, 'classifier'):
        make_clear(model, process, last(model)[-1])
    model.config.architectures = [kind.__name__]
    files = {
        'config.json': json.loads(model.config.to_json_string()),
        'preprocessor_config.json': json.loads(processor.to_json_string()),
    }
    # Only keys that recognition reads.
    kept = ('architectures', 'model_type', 'id2label')
    files['config.json'] = {key: files['config.json'][key] for key in kept}
    return model, process, files


def vit():
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=SIDE,
        patch_size=8,
    )
    processor = transformers.ViTImageProcessor(size={'height': SIDE, 'width': SIDE})
    return transformers_family(
        transformers.ViTForImageClassification, config, processor, lambda m: [m.classifier], 2.5
    )


def convnext():
    config = transformers.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)
    processor = transformers.ConvNextImageProcessor(size={'shortest_edge': SIDE})
    return transformers_family(
        transformers.ConvNextForImageClassification,
        config,
        processor,
        lambda m: [m.classifier],
        2.5,
    )


def resnet():
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type='basic'
    )
    processor = transformers.ConvNextImageProcessor(
        size={'shortest_edge': SIDE}, crop_pct=0.875, resample=3
    )
    return transformers_family(
        transformers.ResNetForImageClassification,
        config,
        processor,
        lambda m: [m.classifier[-1]],
        2.5,
    )


def segformer():
    config = transformers.SegformerConfig(
        depths=[1, 1], num_encoder_blocks=2, hidden_sizes=[8, 16], decoder_hidden_size=8,
        num_attention_heads=[1, 2], sr_ratios=[4, 2], mlp_ratios=[2, 2],
    )  # fmt: skip
    processor = transformers.SegformerImageProcessor(size={'height': HEIGHT, 'width': WIDTH})
    return transformers_family(
        transformers.SegformerForSemanticSegmentation,
        config,
        processor,
        lambda m: [m.decode_head.classifier],
        4,
    )


def upernet():
    backbone = transformers.ConvNextConfig(
        hidden_sizes=[4, 4, 8, 8],
        depths=[1, 1, 1, 1],
        out_features=['stage1', 'stage2', 'stage3', 'stage4'],
    )
    config = transformers.UperNetConfig(
        backbone_config=backbone, hidden_size=8, pool_scales=[1], use_auxiliary_head=False
    )
    processor = transformers.SegformerImageProcessor(size={'height': HEIGHT, 'width': WIDTH})
    return transformers_family(
        transformers.UperNetForSemanticSegmentation,
        config,
        processor,
        lambda m: [m.decode_head.classifier],
        4,
    )


def torchvision_classifier(model, last):
    """The preprocessing is that of the weights of torchvision: resize 73, crop SIDE."""

    def process(rgb):
        image = functional.center_crop(functional.resize(Image.fromarray(rgb), 73), SIDE)
        return functional.normalize(functional.to_tensor(image), MEAN, STD)

    prepare(model, training_pictures(process), [last(model)], 2.5)
    make_clear(model, process, last(model))
    return model, process, {}


def mobilenet_v3():
    blocks = [
        mobilenetv3.InvertedResidualConfig(*row, 1, 1)
        for row in ((16, 3, 16, 16, True, 'RE', 2), (16, 3, 32, 16, False, 'HS', 2))
    ]
    model = mobilenetv3.MobileNetV3(blocks, 32, num_classes=len(NAMES))
    return torchvision_classifier(model, lambda m: m.classifier[-1])


def efficientnet_tiny():
    blocks = [
        efficientnet.MBConvConfig(1, 3, 2, 16, 8, 1),
        efficientnet.MBConvConfig(2, 3, 2, 8, 16, 1),
    ]
    model = efficientnet.EfficientNet(blocks, 0.1, num_classes=len(NAMES), last_channel=32)
    return torchvision_classifier(model, lambda m: m.classifier[-1])


def torchvision_segmenter(model, last):
    def process(rgb):
        image = functional.resize(Image.fromarray(rgb), [HEIGHT, WIDTH])
        return functional.normalize(functional.to_tensor(image), MEAN, STD)

    return prepare(model, training_pictures(process), last(model), 4), process, {}


class Backbone(torch.nn.Sequential):
    """Three convolutions; the second and the last give features."""

    def __init__(self):
        def layer(before, after):
            return torch.nn.Sequential(
                torch.nn.Conv2d(before, after, 3, 2, 1),
                torch.nn.BatchNorm2d(after),
                torch.nn.ReLU(),
            )

        super().__init__(layer(3, 8), layer(8, 8), layer(8, 16))

    def forward(self, pixels):
        low = self[1](self[0](pixels))
        return {'low': low, 'high': self[2](low), 'out': self[2](low)}


def deeplabv3_tiny():
    head = torch.nn.Sequential(deeplabv3.ASPP(16, (2, 4), 8), torch.nn.Conv2d(8, len(NAMES), 1))
    return torchvision_segmenter(
        segmentation.DeepLabV3(Backbone(), head), lambda m: [m.classifier[-1]]
    )


def lraspp():
    model = segmentation.LRASPP(Backbone(), 8, 16, len(NAMES), inter_channels=8)
    return torchvision_segmenter(
        model, lambda m: [m.classifier.low_classifier, m.classifier.high_classifier]
    )


FAMILIES = {
    'vit': vit,
    'convnext': convnext,
    'resnet': resnet,
    'mobilenet_v3': mobilenet_v3,
    'efficientnet': efficientnet_tiny,
    'segformer': segformer,
    'upernet': upernet,
    'deeplabv3': deeplabv3_tiny,
    'lraspp': lraspp,
}


def class_map(family, logits, size):
    """Return the class of each pixel by the family's own code, uint8 (height, width)."""
    width, height = size
    logits = torch.as_tensor(logits)
    if family in ('segformer', 'upernet'):
        outputs = types.SimpleNamespace(logits=logits)
        processor = transformers.SegformerImageProcessor()
        (found,) = processor.post_process_semantic_segmentation(outputs, [(height, width)])
        return found.numpy().astype(np.uint8)
    resized = torch.nn.functional.interpolate(logits, (height, width), mode='bilinear')
    return resized.argmax(1)[0].numpy().astype(np.uint8)


def is_varied(ids):
    shares = np.bincount(ids.ravel(), minlength=len(NAMES)) / ids.size
    return (shares >= 0.01).sum() >= 8


def record(family, content):
    torch.manual_seed(1)
    model, process, files = FAMILIES[family]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'model.onnx'
        wrapped = OnlyLogits(model).eval()
        sample = (process(picture(SIZES[0]))[None],)
        export(wrapped, sample, path, ['pixels'], ['result'], dynamo=False)
        content[f'{family} model'] = np.frombuffer(path.read_bytes(), np.uint8)
    content[f'{family} files'] = np.array(json.dumps(files))
    for width, height in SIZES:
        key = f'{family} {width}x{height}'
        with torch.no_grad():
            found = wrapped(process(picture((width, height)))[None])
        if found.ndim == 2:
            scores = found.softmax(-1)[0].numpy()
            second, best = np.sort(scores)[-2:]
            print(f'{key}: class {scores.argmax()}, {best:.3f}, second {second:.3f}')
            content[key] = scores
            continue
        ids = class_map(family, found, (width, height))
        print(f'{key}: {np.round(np.bincount(ids.ravel()) / ids.size, 3)}')
        assert is_varied(ids)
        content[key] = ids.ravel()[::STEP]
        made = logits_of_test(*found.shape[2:])
        content[f'{key} post'] = class_map(family, made[None], (width, height)).ravel()[::STEP]


def ultralytics_model(head, factor, folder):
    path = folder / 'tiny.yaml'
    # The exporter refuses files below 0.1 MB, so a layer has many channels, most of them zero.
    backbone = [*CONV[:2], [-1, 1, 'Conv', [16 if 'Classify' in head else 64, 3, 2]]]
    path.write_text(yaml.safe_dump({'nc': len(NAMES), 'backbone': backbone, 'head': [head]}))
    torch.manual_seed(2)
    model = ultralytics.YOLO(str(path))
    model.model.names = dict(enumerate(NAMES))
    layer = model.model.model[-1]
    if hasattr(layer, 'linear'):
        with torch.no_grad():  # use 128 of the 1280 channels, so that the file is small
            layer.conv.conv.weight[128:] = 0
            layer.linear.weight[:, 128:] = 0
        last = layer.linear
    else:
        with torch.no_grad():
            layer.classifier[0].conv.weight[16:] = 0
            layer.classifier[0].conv.weight[:, 16:] = 0
        last = layer.classifier[-1]
    images = torch.stack(
        [
            torch.from_numpy(picture((WIDTH, HEIGHT), seed).transpose(2, 0, 1).copy()) / 255
            for seed in range(24)
        ]
    )
    if hasattr(layer, 'linear'):
        # In evaluation mode, the head returns probabilities and logits.
        model.model.eval()
        prepare(_Second(model.model), images, [last], factor)
    else:
        prepare(model.model, images, [last], factor)
    return model


class _Second(torch.nn.Module):
    """Returns the logits of a classifier of Ultralytics."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixels):
        return self.model(pixels)[1]


def record_ultralytics(content):
    for family, head, options, shapes in (
        (
            'ultralytics_classify',
            [-1, 1, 'Classify', ['nc']],
            {'dynamic': True},
            ((SIDE, SIDE), (HEIGHT, WIDTH)),
        ),
        (
            'ultralytics_semantic',
            [[2, 2], 1, 'SemanticSegment', ['nc']],
            {},
            ((HEIGHT, WIDTH),),
        ),
    ):
        with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
            model = ultralytics_model(head, 2.2, Path(scratch))
            path = model.export(format='onnx', imgsz=list(shapes[0]), **options)
            shorten(path)
            content[f'{family} model'] = np.frombuffer(Path(path).read_bytes(), np.uint8)
            content[f'{family} files'] = np.array('{}')
            for shape in shapes:
                predictor = ultralytics.YOLO(path)
                for width, height in SIZES:
                    bgr = picture((width, height))[..., ::-1].copy()
                    (found,) = predictor.predict(bgr, imgsz=list(shape), rect=False, verbose=False)
                    suffix = '' if shape is shapes[0] else f' in {shape[1]}x{shape[0]}'
                    key = f'{family} {width}x{height}{suffix}'
                    if found.probs is not None:
                        scores = found.probs.data.numpy()
                        second, best = np.sort(scores)[-2:]
                        print(f'{key}: class {scores.argmax()}, {best:.3f}, second {second:.3f}')
                        content[key] = scores
                        continue
                    mask = found.semantic_mask
                    ids = np.asarray(getattr(mask, 'data', mask)).reshape(height, width)
                    print(f'{key}: {np.round(np.bincount(ids.ravel()) / ids.size, 3)}')
                    assert is_varied(ids)
                    content[key] = ids.ravel()[::STEP].astype(np.uint8)
                    content[f'{key} post'] = ultralytics_map(ids_of_test(), (width, height))


def ultralytics_map(ids, size):
    """Return every STEP-th class by the predictor's post-processing of a map of ids."""
    stub = types.SimpleNamespace(
        args=types.SimpleNamespace(classes=None),
        model=types.SimpleNamespace(names=dict(enumerate(NAMES))),
        batch=[['image']],
        _class_map_dtype=SemanticSegmentationPredictor._class_map_dtype,
    )
    image = np.zeros((size[1], size[0], 3), np.uint8)
    (found,) = SemanticSegmentationPredictor.postprocess(
        stub, torch.from_numpy(ids)[None], torch.zeros(1, 3, HEIGHT, WIDTH), [image]
    )
    mask = found.semantic_mask
    return np.asarray(getattr(mask, 'data', mask)).reshape(-1)[::STEP].astype(np.uint8)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--out', type=Path, required=True, help='folder to write into')
    arguments = parser.parse_args()
    content = {}
    for width, height in SIZES:
        content[f'crc {width}x{height}'] = np.uint32(zlib.crc32(picture((width, height))))
    content['crc logits'] = np.uint32(zlib.crc32(logits_of_test(HEIGHT, WIDTH)))
    content['crc ids'] = np.uint32(zlib.crc32(ids_of_test()))
    for family in FAMILIES:
        record(family, content)
    record_ultralytics(content)
    path = arguments.out.resolve() / 'image_tasks.npz'
    np.savez_compressed(path, **content)
    print(f'{path.stat().st_size / 1024:.0f} KiB')


if __name__ == '__main__':
    main()
