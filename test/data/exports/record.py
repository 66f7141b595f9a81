# SPDX-License-Identifier: Apache-2.0
"""Record the results of detectors of other libraries, so that tests need no such library.

Each model has a folder with the exported ONNX file and the files that the library saves with the
ONNX file. The file expected.npz has an image and the result of the library's post-processing.
Weights are random, from a seed, and the networks are tiny. resampling.npz has the results of
transformers' image processors for larger and smaller images. rfdetr_pixels.npz has the results of
RF-DETR's processor, which resizes floats. padding.npz has the results of DETR's processors for
images that do not fill the network's input.

    python3 -m pip install torch==2.13.0 transformers==5.23.0 onnx onnxscript scipy pillow
    python3 test/data/exports/record.py --out test/data/exports

    python3 -m pip install torch==2.15.0 torchvision==0.29.2 transformers==5.23.0 onnx onnxscript
    python3 test/data/exports/record.py --families torchvision resampling --out test/data/exports

    python3 -m pip install torch==2.14.1 torchvision==0.29.1 transformers==5.23.0 onnx onnxscript
    python3 test/data/exports/record.py --families padding --out test/data/exports

    python3 -m pip install torch==2.13.0 torchvision==0.28.0 transformers==5.23.0 onnx onnxscript
    python3 test/data/exports/record.py --families rfdetr_pixels --out test/data/exports

Files of Ultralytics are under another licence, so this folder stores none. record_ultralytics.py
records values instead: metadata, declared shapes and output of the exported file, the predictor's
input for an image of another size, and the boxes of the predictor.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from record_torchvision import TORCHVISION, record_torchvision
from tiny_exports import HEIGHT, NAMES, WIDTH, blocks, export, picture, save, spread_outputs

TRANSFORMERS = ('rt_detr', 'detr', 'yolos', 'deformable_detr')
# Width and height of images that do not fill the network's input.
CAMERAS = ((517, 333), (233, 701), (1920, 1080))
# Width and height of images that are larger than the network on both axes, smaller, or mixed.
RESAMPLED = ((192, 128), (288, 192), (211, 129), (640, 427), (50, 40), (70, 300))


def transformers_model(family):
    """Return a tiny model and the processor class that belongs to it."""
    import transformers as hf

    labels = {'id2label': dict(enumerate(NAMES)), 'label2id': {}}
    resnet = {
        'embedding_size': 8,
        'hidden_sizes': [8, 16, 16, 16],
        'depths': [1, 1, 1, 1],
        'layer_type': 'basic',
    }
    small = {
        'd_model': 16,
        'encoder_layers': 1,
        'decoder_layers': 2,
        'encoder_ffn_dim': 16,
        'decoder_ffn_dim': 16,
        'encoder_attention_heads': 2,
        'decoder_attention_heads': 2,
        'num_queries': 20,
    }
    hybrid = {
        **small,
        'encoder_hidden_dim': 16,
        'encoder_in_channels': [16, 16, 16],
        'decoder_in_channels': [16, 16, 16],
        'anchor_image_size': None,
        'num_denoising': 0,
    }
    stages = {'out_features': ['stage2', 'stage3', 'stage4']}
    last = {'out_features': ['stage4']}
    plain = {'use_timm_backbone': False, 'backbone': None, 'use_pretrained_backbone': False}
    if family == 'rt_detr':
        backbone = hf.RTDetrResNetConfig(**resnet, **stages)
        config = hf.RTDetrConfig(backbone_config=backbone, **hybrid, **labels)
        return hf.RTDetrForObjectDetection(config), hf.RTDetrImageProcessor
    if family == 'detr':
        backbone = hf.ResNetConfig(**resnet, **last)
        config = hf.DetrConfig(backbone_config=backbone, **plain, **small, **labels)
        return hf.DetrForObjectDetection(config), hf.DetrImageProcessor
    if family == 'deformable_detr':
        backbone = hf.ResNetConfig(**resnet, **stages)
        config = hf.DeformableDetrConfig(
            backbone_config=backbone,
            **{**plain, **small, 'd_model': 32, 'num_feature_levels': 3},
            **labels,
        )
        return hf.DeformableDetrForObjectDetection(config), hf.DeformableDetrImageProcessor
    if family == 'yolos':
        config = hf.YolosConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=16,
            image_size=[HEIGHT, WIDTH],
            num_detection_tokens=20,
            **labels,
        )
        return hf.YolosForObjectDetection(config), hf.YolosImageProcessor
    raise SystemExit(f'{family}: unknown; known: {", ".join(TRANSFORMERS)}')


class Outputs(torch.nn.Module):
    """A model that returns only logits and boxes, in the order that exporters use."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixel_values):
        found = self.model(pixel_values=pixel_values)
        return found.logits, found.pred_boxes


def record_transformers(family, folder):
    """Write model.onnx, config.json, preprocessor_config.json and expected.npz."""
    torch.manual_seed(1)
    model, processor_class = transformers_model(family)
    model.eval()
    factor = 3 if family == 'rt_detr' else 12
    spread_outputs(model, ('class_embed', 'class_labels_classifier', 'enc_score_head'), factor)
    spread_outputs(model, ('bbox_embed', 'bbox_predictor'), 3)
    if family == 'yolos':  # its initial weights are so small that the image hardly matters
        spread_outputs(model, ('vit.',), 6)
    edges = {'height': HEIGHT, 'width': WIDTH}
    if family in ('detr', 'yolos', 'deformable_detr'):
        edges = {'shortest_edge': HEIGHT, 'longest_edge': WIDTH}
    processor = processor_class(size=edges)
    image = picture()
    inputs = processor(images=image, return_tensors='pt')
    pixels = inputs['pixel_values']
    assert pixels.shape == (1, 3, HEIGHT, WIDTH), pixels.shape
    with torch.no_grad():
        found = model(pixel_values=pixels)
    options = {'use_focal_loss': True} if family == 'rt_detr' else {}
    size = torch.tensor([[HEIGHT * 3, WIDTH * 5]])
    (results,) = processor.post_process_object_detection(
        found, threshold=0.0, target_sizes=size, **options
    )
    # A threshold in the middle of a gap keeps the same boxes despite rounding.
    scores = np.sort(results['scores'].numpy())[::-1]
    half = len(scores) // 2
    gap = half + int(np.argmax(scores[half - 4 : half + 4] - scores[half - 3 : half + 5])) - 4
    threshold = float(scores[gap] + scores[gap + 1]) / 2
    (results,) = processor.post_process_object_detection(
        found, threshold=threshold, target_sizes=size, **options
    )
    model.config.save_pretrained(folder)
    processor.save_pretrained(folder)
    export(
        Outputs(model),
        (pixels,),
        folder / 'model.onnx',
        ['pixel_values'],
        ['logits', 'pred_boxes'],
        dynamo=family == 'deformable_detr',
    )
    save(
        folder,
        image=image,
        pixels=pixels.numpy(),
        logits=found.logits.detach().numpy(),
        pred_boxes=found.pred_boxes.detach().numpy(),
        target_wh=size.numpy()[0, ::-1],
        threshold=threshold,
        xyxy=results['boxes'].detach().numpy(),
        scores=results['scores'].detach().numpy(),
        labels=results['labels'].numpy(),
    )


def record_rfdetr_masks(folder):
    """Write expected.npz: outputs with masks like RF-DETR, and the results of its processor.

    No network computes the outputs. They are drawn masks with smooth borders, and their boxes.
    """
    from types import SimpleNamespace

    from transformers import RfDetrImageProcessor

    rng = np.random.default_rng(3)
    queries, rows, columns, target = 12, 16, 24, (150, 250)
    y, x = np.mgrid[:rows, :columns] + 0.5
    logits, boxes, masks = rng.normal(-2, 1.5, (1, queries, len(NAMES))), [], []
    for _ in range(queries):
        center, radius = rng.uniform((5, 4), (19, 12)), rng.uniform(2, 4, 2)
        away = ((x - center[0]) / radius[0]) ** 2 + ((y - center[1]) / radius[1]) ** 2
        masks.append(1 - away + rng.normal(0, 0.1, away.shape))
        boxes.append([*center / (columns, rows), *2.6 * radius / (columns, rows)])
    found = SimpleNamespace(
        logits=torch.tensor(logits, dtype=torch.float32),
        pred_boxes=torch.tensor([boxes], dtype=torch.float32),
        pred_masks=torch.tensor(np.array([masks]), dtype=torch.float32),
    )
    processor, threshold = RfDetrImageProcessor(), 0.35
    (results,) = processor.post_process_object_detection(
        found, threshold=threshold, target_sizes=[target]
    )
    (shown,) = processor.post_process_instance_segmentation(
        found,
        threshold=threshold,
        target_sizes=[target],
        return_binary_maps=True,
    )
    save(
        folder,
        logits=found.logits.numpy(),
        pred_boxes=found.pred_boxes.numpy(),
        pred_masks=found.pred_masks.numpy(),
        target_wh=np.array(target[::-1]),
        threshold=threshold,
        xyxy=results['boxes'].numpy(),
        scores=results['scores'].numpy(),
        labels=results['labels'].numpy(),
        masks=np.packbits(np.asarray(shown['segmentation']) > 0, axis=-1),
        mask_scores=np.array([one['score'] for one in shown['segments_info']]),
        mask_labels=np.array([one['label_id'] for one in shown['segments_info']]),
    )


def noise(width, height):
    """Return uint8 (height, width, 3). Python guarantees equal values in all releases."""
    data = random.Random(7).randbytes(height * width * 3)
    return np.frombuffer(data, np.uint8).reshape(height, width, 3)


def record_resampling(folder):
    """Write resampling.npz: uint8 (HEIGHT, WIDTH, 3), RGB, by width x height and backend."""
    from transformers import RTDetrImageProcessor, RTDetrImageProcessorPil

    found = {}
    for backend in (RTDetrImageProcessorPil, RTDetrImageProcessor):
        processor = backend(size={'height': HEIGHT, 'width': WIDTH}, do_rescale=False)
        assert processor.resample == 2
        for width, height in RESAMPLED:
            pixels = processor(images=noise(width, height), return_tensors='pt')['pixel_values']
            levels = pixels[0].numpy().transpose(1, 2, 0)
            assert np.array_equal(levels, levels.astype(np.uint8))
            found[f'{backend.__name__} {width}x{height}'] = levels.astype(np.uint8)
    np.savez_compressed(folder / 'resampling.npz', **found)


def record_rfdetr_pixels(folder):
    """Write rfdetr_pixels.npz: the processor's tensor, float32 (3, 32, 48), by width x height."""
    from transformers import RfDetrImageProcessor

    processor, found = RfDetrImageProcessor(size={'height': 32, 'width': 48}), {}
    for width, height in CAMERAS:
        pixels = processor(images=noise(width, height), return_tensors='pt')['pixel_values']
        found[f'{width}x{height}'] = pixels[0].numpy()
    np.savez_compressed(folder / 'rfdetr_pixels.npz', **found)


class MaskedOutputs(torch.nn.Module):
    """A model with the pixel mask as second input, which returns logits and boxes only."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixel_values, pixel_mask):
        found = self.model(pixel_values=pixel_values, pixel_mask=pixel_mask)
        return found.logits, found.pred_boxes


def record_padding(folder):
    """Write padding.npz, and the folder deformable_detr_mask with one batch of all CAMERAS.

    The boxes of the network depend on the pixels and on the mask.
    """
    import transformers as hf

    edges = {'max_height': HEIGHT, 'max_width': WIDTH}
    options = {'size': edges, 'pad_size': {'height': HEIGHT, 'width': WIDTH}}
    images = [blocks(*size) for size in CAMERAS]
    kinds = ('Detr', 'Yolos', 'ConditionalDetr', 'DeformableDetr')
    processors = [getattr(hf, f'{kind}ImageProcessor')(**options) for kind in kinds]
    batches = [processor(images=images, return_tensors='pt') for processor in processors]
    inputs = batches[-1]
    for other in batches[:-1]:
        for key in ('pixel_values', 'pixel_mask'):
            assert torch.equal(other[key], inputs[key])
    mask = inputs['pixel_mask'].numpy().astype(bool)
    np.savez_compressed(
        folder / 'padding.npz', pixels=inputs['pixel_values'].numpy(), mask=mask, sizes=CAMERAS
    )
    torch.manual_seed(1)
    model, _ = transformers_model('deformable_detr')
    model.eval()
    spread_outputs(model, ('class_embed',), 12)
    spread_outputs(model, ('bbox_embed',), 3)
    spread_outputs(
        model, ('encoder_attn.value_proj', 'encoder_attn.output_proj', 'input_proj.'), 4
    )
    with torch.no_grad():
        found = model(**inputs)
    sizes = torch.tensor([size[::-1] for size in CAMERAS])
    results = processors[-1].post_process_object_detection(
        found, threshold=0.0, target_sizes=sizes, top_k=30
    )
    folder = folder / 'deformable_detr_mask'
    folder.mkdir(exist_ok=True)
    model.config.save_pretrained(folder)
    processors[-1].save_pretrained(folder)
    export(
        MaskedOutputs(model),
        (inputs['pixel_values'], inputs['pixel_mask']),
        folder / 'model.onnx',
        ['pixel_values', 'pixel_mask'],
        ['logits', 'pred_boxes'],
        dynamo=True,
    )
    stacked = {
        name: np.stack([result[key].numpy() for result in results])
        for name, key in (('xyxy', 'boxes'), ('scores', 'scores'), ('labels', 'labels'))
    }
    save(folder, sizes=CAMERAS, **stacked)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    special = {'padding', 'resampling', 'rfdetr_masks', 'rfdetr_pixels'}
    known = ('transformers', 'torchvision', *sorted(special), *TRANSFORMERS, *TORCHVISION)
    parser.add_argument('--families', nargs='+', default=['transformers'], choices=known)
    parser.add_argument('--out', type=Path, required=True, help='folder to write into')
    arguments = parser.parse_args()
    groups = {'transformers': TRANSFORMERS, 'torchvision': TORCHVISION}
    if 'padding' in arguments.families:
        record_padding(arguments.out)
    if 'resampling' in arguments.families:
        record_resampling(arguments.out)
    if 'rfdetr_pixels' in arguments.families:
        record_rfdetr_pixels(arguments.out)
    if 'rfdetr_masks' in arguments.families:
        (arguments.out / 'rfdetr_masks').mkdir(parents=True, exist_ok=True)
        record_rfdetr_masks(arguments.out / 'rfdetr_masks')
    for requested in set(arguments.families) - special:
        for family in groups.get(requested, (requested,)):
            folder = arguments.out / family
            folder.mkdir(parents=True, exist_ok=True)
            (record_torchvision if family in TORCHVISION else record_transformers)(family, folder)


if __name__ == '__main__':
    main()
