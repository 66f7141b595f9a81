# SPDX-License-Identifier: Apache-2.0
"""An exporter is recognised by what only this exporter writes; other files are assumed or refused.

LibreYOLO 1.6.0 exported files with the metadata below, with random weights. Its own backend gives
the boxes of the package: at least 299 of 300 for DEIM, DEIMv2, D-FINE, EC, TinyFormer and RT-DETR
v2 and v4, with IoUs above 0.98 and scores within 2e-7. The same holds for all boxes of YOLOX at
640 x 480, and of YOLO9 with nms=True. Scores of its ResNet are within 1e-8.
"""

import json

import pytest

from support.oracles.recognition_support import COCO, ULTRALYTICS, recognised, tensors
from trt_perception.errors import EngineError, MissingModelInfoError
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tensors import TensorSpec

IMAGENET = {'mean': (0.485, 0.456, 0.406), 'std': (0.229, 0.224, 0.225)}
OPEN = TensorSpec('images', (-1, 3, -1, -1), 'float32')
PAIR = tensors(pred_logits=(-1, -1, 80), pred_boxes=(-1, -1, 4))
DENSE = tensors(output=(1, 84, 8400))


def libreyolo(family, task='detect', size='n', side=640, **more):
    return {
        'schema_version': '1.0',
        'libreyolo_version': '1.6.0',
        'model_family': family,
        'size': size,
        'model_size': size,
        'task': task,
        'default_task': 'detect',
        'nc': '80',
        'names': json.dumps({str(number): name for number, name in enumerate(COCO)}),
        'imgsz': str(side),
        'imgsz_h': str(side),
        'imgsz_w': str(side),
        'dynamic': 'True',
        **more,
    }


TOP_LEFT = {'resize': 'letterbox_top_left', 'size_rounding': 'down'}
STRETCHED = {'resize': 'stretch', 'antialias': True}
READ = [
    (libreyolo('deim'), PAIR, 'rtdetr', STRETCHED),
    (libreyolo('dfine'), PAIR, 'rtdetr', STRETCHED),
    (libreyolo('rtdetrv4'), PAIR, 'rtdetr', STRETCHED),
    (libreyolo('ec', size='s'), PAIR, 'rtdetr', STRETCHED | IMAGENET),
    (libreyolo('deimv2', size='atto'), PAIR, 'rtdetr', STRETCHED),
    (libreyolo('deimv2', size='s'), PAIR, 'rtdetr', STRETCHED | IMAGENET),
    (libreyolo('rtdetr', size='r18'), PAIR, 'rtdetr', {'resize': 'stretch'}),
    (
        libreyolo('yolox'),
        tensors(output=(-1, 8400, -1)),
        'yolox',
        {'color_order': 'bgr', 'scale': 1.0, 'antialias': True, **TOP_LEFT},
    ),
    (
        libreyolo('yolo9', letterbox_pad='topleft', nms='true'),
        tensors(output=(1, 300, 6), raw=(1, 84, 8400)),
        'end_to_end',
        TOP_LEFT,
    ),
    (
        libreyolo('yolo9', letterbox_pad='center', nms='true'),
        tensors(output=(1, 300, 6), raw=(1, 84, 8400)),
        'end_to_end',
        {'resize': 'letterbox', 'size_rounding': 'down'},
    ),
    (
        libreyolo('resnet', 'classify', crop_pct='0.95', interpolation='bicubic'),
        tensors(output=(-1, 80)),
        'class_logits',
        {
            'resize': 'center_crop',
            'shorter_side': 673,
            'pad_value': 0,
            'antialias': True,
            'filter': 'bicubic',
            **IMAGENET,
        },
    ),
    (
        libreyolo(
            *('siglip2', 'classify'),
            resize_mode='stretch',
            norm_mean='[0.5, 0.5, 0.5]',
            norm_std='[0.25, 0.25, 0.25]',
        ),
        tensors(output=(-1, 80)),
        'class_logits',
        {**STRETCHED, 'mean': (0.5,) * 3, 'std': (0.25,) * 3},
    ),
]


@pytest.mark.parametrize(
    ('metadata', 'outputs', 'decoder', 'fields'),
    READ,
    ids=[f'{row[0]["model_family"]} {row[0]["size"]}' for row in READ],
)
@pytest.mark.parametrize('image', [TensorSpec('images', (-1, 3, 640, 640), 'float32'), OPEN])
def test_libreyolo_gives_the_values_of_its_own_backend(metadata, outputs, decoder, fields, image):
    found = recognised(outputs, metadata, inputs=(image,))
    assert found.decoder == PRESETS[decoder].decoder
    assert found.class_names == COCO
    assert found.preprocessing == Preprocessing((640, 640), **fields)
    assert not found.assumption


# Family, task and outputs whose boxes, scores or units differ from what the shapes suggest.
OTHER_LIBREYOLO = [
    (libreyolo('yolo9', letterbox_pad='topleft'), DENSE),  # boxes are corners
    (libreyolo('yolo9_e2e', letterbox_pad='center'), DENSE),
    (libreyolo('yolo9', letterbox_pad='left', nms='true'), tensors(output=(1, 300, 6))),
    (libreyolo('ssd'), DENSE),
    (libreyolo('yolonas'), tensors(boxes=(1, 300, 4), scores=(1, 300, 80))),
    (libreyolo('another'), PAIR),
    (libreyolo('depth_anything', 'depth'), tensors(depth=(1, 1, 640, 640))),  # no metres
    (libreyolo('segformer', 'semantic'), tensors(semantic_logits=(1, 80, 160, 160))),
    (libreyolo('dfine', 'segment'), (*PAIR, *tensors(pred_masks=(-1, -1, 160, 160)))),
    (libreyolo('resnet', 'classify', interpolation='lanczos'), tensors(output=(1, 80))),
    (libreyolo('resnet', 'classify', crop_pct='2'), tensors(output=(1, 80))),
    (libreyolo('resnet', 'classify', norm_std='[0, 0, 0]'), tensors(output=(1, 80))),
]


@pytest.mark.parametrize(
    ('metadata', 'outputs'),
    OTHER_LIBREYOLO,
    ids=[f'{row[0]["model_family"]} {row[0]["task"]}' for row in OTHER_LIBREYOLO],
)
def test_other_outputs_of_libreyolo_are_refused_by_name(metadata, outputs, golden_messages):
    with golden_messages.raises(EngineError) as caught:
        recognised(outputs, metadata)
    assert metadata['model_family'] in caught.value.found
    assert 'model.decoder' in caught.value.fix


def test_user_may_set_the_decoder_of_a_libreyolo_export():
    metadata = libreyolo('depth_anything', 'depth')
    found = recognised(tensors(depth=(1, 1, 640, 640)), metadata, decoder='depth_ultralytics')
    assert found.task.name == 'depth'
    found = recognised(DENSE, libreyolo('other'), decoder='dense')
    assert found.class_names == COCO
    assert found.assumption


UNKNOWN = {'task': 'detect', 'names': str(dict(enumerate(COCO)))}
FOREIGN = [
    UNKNOWN,
    {**UNKNOWN, 'author': 'somebody', 'stride': '32'},
    {**UNKNOWN, 'author': 'ultralytics'},
    {**ULTRALYTICS, 'author': 'Example Vision'},
    {key: value for key, value in ULTRALYTICS.items() if key != 'author'},
    {**UNKNOWN, 'model_family': 'yolo9'},
    {'names': UNKNOWN['names']},
    {'names': UNKNOWN['names'], 'stride': '32', 'author': 'somebody'},
]


@pytest.mark.parametrize('metadata', FOREIGN, ids=lambda metadata: ' '.join(metadata))
def test_file_of_an_unknown_exporter_is_assumed(metadata, golden_messages):
    found = recognised(DENSE, metadata)
    assert (found.decoder, found.class_names) == (PRESETS['dense'].decoder, COCO)
    assert found.assumption
    golden_messages.add(found.assumption)
    said = recognised(
        DENSE, metadata, decoder='dense', resize='letterbox', color_order='rgb', scale=1 / 255
    )
    assert not said.assumption


@pytest.mark.parametrize('metadata', FOREIGN, ids=lambda metadata: ' '.join(metadata))
@pytest.mark.parametrize(
    ('outputs', 'decoders'),
    [
        (tensors(output=(1, 300, 6)), {'end_to_end', 'rtdetr_end_to_end'}),
        (tensors(output=(1, 8400, 85)), {'dense_objectness_transposed', 'yolox', 'yolox_raw'}),
    ],
)
def test_two_readings_of_an_unknown_exporter_are_refused(metadata, outputs, decoders):
    with pytest.raises(MissingModelInfoError) as caught:
        recognised(outputs, metadata)
    offered = set(caught.value.missing['decoder'].split())
    assert offered & PRESETS.keys() == decoders


def test_units_and_activations_of_an_unknown_exporter_are_refused(golden_messages):
    depth, classify = {**UNKNOWN, 'task': 'depth'}, {**UNKNOWN, 'task': 'classify'}
    for outputs in (tensors(output=(1, 1, 640, 640)), tensors(output=(1, 640, 640))):
        with golden_messages.raises(EngineError):
            recognised(outputs, depth)
    found = recognised(tensors(output=(1, 640, 640)), depth, decoder='relative_depth')
    assert found.decoder == PRESETS['relative_depth'].decoder
    with pytest.raises(MissingModelInfoError) as caught:
        recognised(tensors(output=(1, 80)), classify)
    assert {'decoder', 'resize', 'scale', 'mean'} <= caught.value.missing.keys()


def test_size_of_an_unknown_exporter_counts_if_its_order_does_not_matter():
    outputs = tensors(output=(-1, 84, -1))
    for size in ('[480, 640]', '640'):
        with pytest.raises(MissingModelInfoError) as caught:
            recognised(outputs, {**UNKNOWN, 'imgsz': size}, inputs=(OPEN,))
        assert set(caught.value.missing) == {'input_size'}
    found = recognised(outputs, {**UNKNOWN, 'imgsz': '[320, 320]'}, inputs=(OPEN,))
    assert found.preprocessing.input_size == (320, 320)


# Releases 8.0.50, 8.1.0, 8.2.0, 8.3.0 and 8.4.190 write "author". YOLOv5, YOLOv9 and 8.0.0 write
# only "stride" and "names"; all letterbox images in the same way.
@pytest.mark.parametrize(
    ('metadata', 'shape', 'decoder'),
    [
        ({**UNKNOWN, 'author': 'Ultralytics', 'version': '8.0.50'}, (1, 84, 8400), 'dense'),
        ({**UNKNOWN, 'author': 'Ultralytics', 'head': 'Detect'}, (1, 300, 6), 'end_to_end'),
        (
            {'stride': '32', 'names': UNKNOWN['names']},
            (1, 25200, 85),
            'dense_objectness_transposed',
        ),
        ({'stride': '32', 'names': UNKNOWN['names']}, (1, 84, 8400), 'dense'),
    ],
)
def test_known_exporters_are_not_assumed(metadata, shape, decoder):
    found = recognised(tensors(output0=shape), metadata)
    assert found.decoder == PRESETS[decoder].decoder
    assert found.preprocessing == Preprocessing((640, 640), size_rounding='half_even')
    assert not found.assumption
