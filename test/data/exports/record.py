"""Record what other libraries' detectors give, so that tests can compare without those libraries.

For each model a folder: the ONNX file that the library's own weights and exporter make, the files
that the library saves beside it, and expected.npz with an image and what the library's own
post-processing says of it. Weights are random, from a seed, and the networks tiny.
resampling.npz has what image processors of transformers make of larger and of smaller pictures.

    python3 -m pip install torch==2.13.0 transformers==5.23.0 onnx onnxscript scipy pillow
    python3 test/data/exports/record.py --out test/data/exports

    python3 -m pip install torch==2.15.0 torchvision==0.29.2 transformers==5.23.0 onnx onnxscript
    python3 test/data/exports/record.py --families torchvision resampling --out test/data/exports

Of Ultralytics, whose files are under another licence, no file is kept, but what it says: metadata,
declared shapes and output of the exported file, the input that its predictor made of a picture of
another size, and the boxes that it found (record_ultralytics.py).
"""

from __future__ import annotations

import argparse
import random
import warnings
from pathlib import Path

import numpy as np
import torch

HEIGHT, WIDTH = 64, 96
NAMES = ['N/A', 'cat', 'dog', 'N/A', 'fox']  # COCO's lists have placeholders like these
TRANSFORMERS = ('rt_detr', 'detr', 'yolos', 'deformable_detr')
TORCHVISION = ('ssd', 'retinanet', 'faster_rcnn', 'mask_rcnn', 'keypoint_rcnn')
# Width and height of pictures: smaller on both axes by various factors, larger, and one of each.
RESAMPLED = ((192, 128), (288, 192), (211, 129), (640, 427), (50, 40), (70, 300))


def picture():
    """Return uint8 (HEIGHT, WIDTH, 3), RGB: the network's own size, so that nothing resizes it."""
    rng = np.random.default_rng(5)
    small = rng.integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), np.uint8)
    return np.kron(small, np.ones((8, 8, 1), np.uint8))


def spread(model, parts, factor):
    """Make a random head's answers differ, so that there is something to find and to leave."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in parts):
                parameter.mul_(factor)
                if name.endswith('bias'):
                    parameter.zero_()
            if any(part in name for part in ('detection_tokens', 'position_embeddings')):
                parameter.normal_()  # zero as they are made, so that all queries are alike


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
    """A model that returns logits and boxes only, as exporters arrange it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixel_values):
        found = self.model(pixel_values=pixel_values)
        return found.logits, found.pred_boxes


def export(model, inputs, path, names, outputs, dynamo):
    """Write an ONNX file by torch's exporter, the newer or the older of the two."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        torch.onnx.export(
            model,
            inputs,
            str(path),
            input_names=names,
            output_names=outputs,
            opset_version=18 if dynamo else 17,
            dynamo=dynamo,
            external_data=False,
        )
    shorten(path)


def shorten(path):
    """Give inner tensors short names; they are half of a tiny model's bytes."""
    import onnx

    model = onnx.load(path)
    kept = {entry.name for entry in (*model.graph.input, *model.graph.output)}
    shorten_graph(model.graph, {'': ''}, kept)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def shorten_graph(graph, names, kept):
    def short(name):
        return name if name in kept else names.setdefault(name, f't{len(names)}')

    for tensor in (*graph.initializer, *graph.input, *graph.output):
        tensor.name = short(tensor.name)
    for node in graph.node:
        node.name = node.doc_string = ''
        del node.metadata_props[:]
        for side in (node.input, node.output):
            side[:] = [short(name) for name in side]
        for attribute in node.attribute:
            if attribute.HasField('g'):
                shorten_graph(attribute.g, names, kept)
    del graph.value_info[:]


def record_transformers(family, folder):
    """Write model.onnx, config.json, preprocessor_config.json and expected.npz."""
    torch.manual_seed(1)
    model, processor_class = transformers_model(family)
    model.eval()
    factor = 3 if family == 'rt_detr' else 12
    spread(model, ('class_embed', 'class_labels_classifier', 'enc_score_head'), factor)
    spread(model, ('bbox_embed', 'bbox_predictor'), 3)
    if family == 'yolos':  # initialised so small that the image hardly matters
        spread(model, ('vit.',), 6)
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
    (said,) = processor.post_process_object_detection(
        found, threshold=0.0, target_sizes=size, **options
    )
    # Between two scores, so that rounding moves nobody across.
    scores = np.sort(said['scores'].numpy())[::-1]
    half = len(scores) // 2
    gap = half + int(np.argmax(scores[half - 4 : half + 4] - scores[half - 3 : half + 5])) - 4
    threshold = float(scores[gap] + scores[gap + 1]) / 2
    (said,) = processor.post_process_object_detection(
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
        xyxy=said['boxes'].detach().numpy(),
        scores=said['scores'].detach().numpy(),
        labels=said['labels'].numpy(),
    )


class Grids(torch.nn.Module):
    """Two grids of features, by name, as torchvision's SSD wants them."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 16, 7, 8, 3)
        self.second = torch.nn.Conv2d(16, 16, 3, 2, 1)

    def forward(self, image):
        first = torch.relu(self.first(image))
        return {'0': first, '1': torch.relu(self.second(first))}


def rcnn(family):
    """Return the class of an R-CNN and what it has next to boxes."""
    from torchvision.models import detection
    from torchvision.ops import MultiScaleRoIAlign

    head = torch.nn.Sequential(torch.nn.Conv2d(16, 8, 3, 1, 1), torch.nn.ReLU())
    pool = MultiScaleRoIAlign(['0'], 6, 2)
    if family == 'mask_rcnn':
        last = detection.mask_rcnn.MaskRCNNPredictor(8, 8, len(NAMES))
        more = {'mask_roi_pool': pool, 'mask_head': head, 'mask_predictor': last}
        return detection.MaskRCNN, more
    if family == 'keypoint_rcnn':
        last = detection.keypoint_rcnn.KeypointRCNNPredictor(8, 4)
        more = {
            'keypoint_roi_pool': pool,
            'keypoint_head': head,
            'keypoint_predictor': last,
        }
        return detection.KeypointRCNN, more
    return detection.FasterRCNN, {}


def record_torchvision(family, folder):
    """Write model.onnx and expected.npz; torchvision's post-processing is inside the model."""
    from torchvision.models import detection
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
    from torchvision.models.detection.faster_rcnn import TwoMLPHead
    from torchvision.ops import MultiScaleRoIAlign

    torch.manual_seed(1)
    if family == 'ssd':
        anchors = detection.anchor_utils.DefaultBoxGenerator([[2], [2]], scales=[0.3, 0.6, 0.9])
        model = detection.ssd.SSD(
            Grids(),
            anchors,
            (WIDTH, HEIGHT),
            len(NAMES),
            score_thresh=0.0,
            topk_candidates=40,
            detections_per_img=30,
        )
    else:
        backbone = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 7, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 16, 3, 2, 1)
        )
        backbone.out_channels = 16
        anchors = detection.anchor_utils.AnchorGenerator(((16, 32),), ((0.5, 1.0, 2.0),))
        sizes = {'min_size': HEIGHT, 'max_size': WIDTH}
        if family == 'retinanet':
            model = detection.RetinaNet(
                backbone,
                len(NAMES),
                anchor_generator=anchors,
                score_thresh=0.0,
                topk_candidates=60,
                detections_per_img=30,
                **sizes,
            )
        else:
            kind, more = rcnn(family)
            model = kind(
                backbone,
                rpn_anchor_generator=anchors,
                box_roi_pool=MultiScaleRoIAlign(['0'], 3, 2),
                box_head=TwoMLPHead(16 * 9, 16),
                box_predictor=FastRCNNPredictor(16, len(NAMES)),
                box_score_thresh=0.0,
                box_detections_per_img=8 if more else 30,
                rpn_post_nms_top_n_test=20,
                **more,
                **sizes,
            )
    model.eval()
    if family == 'ssd':
        spread(model, ('classification_head',), 3)
    else:  # initialised so small that all scores are alike
        heads = ('classification_head', 'regression_head', 'rpn.head', 'box_predictor')
        spread(model, heads, 12 if family == 'retinanet' else 6)
        # A random head's masks are half of all pixels; those of smooth ones have a border.
        spread(model, ('mask_predictor', 'keypoint_predictor', 'mask_head', 'keypoint_head'), 4)
    image = picture()
    pixels = torch.from_numpy(image.transpose(2, 0, 1).astype(np.float32) / 255)
    with torch.no_grad():
        (said,) = model([pixels])
    order = said['scores'].argsort(descending=True, stable=True)
    export(model, ([pixels],), folder / 'model.onnx', ['image'], list(said), dynamo=False)
    save(
        folder,
        image=image,
        threshold=0.0,
        xyxy=said['boxes'][order].numpy(),
        scores=said['scores'][order].numpy(),
        labels=said['labels'][order].numpy(),
        **{
            name: np.packbits(said[name][order].numpy() > 0.5, axis=-1)
            if name == 'masks'
            else said[name][order].numpy()
            for name in ('masks', 'keypoints')
            if name in said
        },
    )


def record_rfdetr_masks(folder):
    """Write expected.npz: outputs of RF-DETR's masks, and what its processor makes of them.

    The outputs are drawn, not a network's: masks whose borders are smooth, boxes around them.
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
    (said,) = processor.post_process_object_detection(
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
        xyxy=said['boxes'].numpy(),
        scores=said['scores'].numpy(),
        labels=said['labels'].numpy(),
        masks=np.packbits(np.asarray(shown['segmentation']) > 0, axis=-1),
        mask_scores=np.array([one['score'] for one in shown['segments_info']]),
        mask_labels=np.array([one['label_id'] for one in shown['segments_info']]),
    )


def noise(width, height):
    """Return uint8 (height, width, 3); Python promises that its generator stays the same."""
    data = random.Random(7).randbytes(height * width * 3)
    return np.frombuffer(data, np.uint8).reshape(height, width, 3)


def record_resampling(folder):
    """Write resampling.npz: uint8 (HEIGHT, WIDTH, 3), RGB, by width x height and backend."""
    from transformers import RTDetrImageProcessor
    from transformers import RTDetrImageProcessorPil

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


def save(folder, **arrays):
    np.savez_compressed(folder / 'expected.npz', **arrays)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f'{folder.name}: {len(arrays["scores"])} detections, {size / 1024:.0f} KiB')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    alone = {'resampling', 'rfdetr_masks'}
    known = ('transformers', 'torchvision', *sorted(alone), *TRANSFORMERS, *TORCHVISION)
    parser.add_argument('--families', nargs='+', default=['transformers'], choices=known)
    parser.add_argument('--out', type=Path, required=True, help='folder to write into')
    arguments = parser.parse_args()
    groups = {'transformers': TRANSFORMERS, 'torchvision': TORCHVISION}
    if 'resampling' in arguments.families:
        record_resampling(arguments.out)
    if 'rfdetr_masks' in arguments.families:
        (arguments.out / 'rfdetr_masks').mkdir(parents=True, exist_ok=True)
        record_rfdetr_masks(arguments.out / 'rfdetr_masks')
    for asked in set(arguments.families) - alone:
        for family in groups.get(asked, (asked,)):
            folder = arguments.out / family
            folder.mkdir(parents=True, exist_ok=True)
            (record_torchvision if family in TORCHVISION else record_transformers)(family, folder)


if __name__ == '__main__':
    main()
