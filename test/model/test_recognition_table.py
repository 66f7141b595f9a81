# SPDX-License-Identifier: Apache-2.0
"""Recognition matches each row of test/data/recognition.md. The cases are in the same order."""

from __future__ import annotations

import re

import numpy as np
import pytest

from support.docs_pages import RECOGNITION_PAGE, ROOT, rows, section
from support.oracles import family_outputs
from trt_perception.errors import EngineError, MissingModelInfoError
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.recognition.recognise import ModelOverrides, recognise
from trt_perception.model.tensors import ModelInfo, TensorSpec

NAMES = tuple(f'class {number}' for number in range(80))
IMAGE = TensorSpec('images', (1, 3, 640, 640), 'float32')
SIZES = TensorSpec('orig_target_sizes', (1, 2), 'int64')
ULTRALYTICS = {
    'author': 'Ultralytics',
    'task': 'detect',
    'stride': '32',
    'names': str(list(NAMES)),
}
RTDETR = {**ULTRALYTICS, 'description': 'Ultralytics rtdetr-l model trained on coco.yaml'}
OF_PAIR = {'names': "['class 0', 'class 1']"}
OF_PERSON = {'names': "{0: 'person'}"}
OF_POSE = {'task': 'pose', 'kpt_shape': '[17, 3]'}
YOLOV5 = {'stride': '32', 'names': str(list(NAMES))}
SQUARE = {'size': {'height': 640, 'width': 640}, 'do_normalize': False}
SAID = {'resize': 'stretch', 'color_order': 'rgb', 'scale': 1.0}


def floats(**shapes):
    return [TensorSpec(name, shape, 'float32') for name, shape in shapes.items()]


def whole(kind, **shapes):
    return [TensorSpec(name, shape, kind) for name, shape in shapes.items()]


def huggingface(model, labels=80):
    return {
        'model_type': model,
        'id2label': {str(number): f'class {number}' for number in range(labels)},
        'preprocessor_config': SQUARE,
    }


SIGMOID_MODELS = [
    'rt_detr',
    'rt_detr_v2',
    'd_fine',
    'deimv2',
    'rf_detr',
    'deformable_detr',
    'conditional_detr',
    'dab-detr',
    'lw_detr',
]
SOFTMAX_MODELS = ['detr', 'table-transformer', 'yolos']
PAIR = floats(logits=(1, 300, 80), pred_boxes=(1, 300, 4))
SOFTMAX = floats(logits=(1, 100, 81), pred_boxes=(1, 100, 4))
THREE = [
    *whole('int64', labels=(1, 300)),
    *floats(boxes=(1, 300, 4), scores=(1, 300)),
]
EFFICIENT = [
    *whole('int32', num=(1, 1)),
    *floats(boxes=(1, 100, 4), scores=(1, 100)),
    *whole('int32', classes=(1, 100)),
]
ONNX_NMS = [
    *floats(boxes=(1, 8400, 4), scores=(1, 80, 8400)),
    *whole('int64', selected_indices=(-1, 3)),
]
TORCHVISION = [*floats(a=(-1, 4), b=(-1,)), *whole('int64', c=(-1,))]
TENSORFLOW = floats(
    detection_anchor_indices=(1, 100),
    detection_boxes=(1, 100, 4),
    detection_classes=(1, 100),
    detection_multiclass_scores=(1, 100, 91),
    detection_scores=(1, 100),
    num_detections=(1,),
)
DEPTH = floats(predicted_depth=(1, 640, 640))
GRIDS = floats(a=(1, 3, 80, 80, 85), b=(1, 3, 40, 40, 85), c=(1, 3, 20, 20, 85))
NAMED = {'class_names': NAMES}

# The arguments of recognise for each row: metadata, config.json, outputs and others. The last cell
# of a row has the name of the chosen decoder, or words of the error.
CASES = [
    {'metadata': ULTRALYTICS, 'outputs': floats(output0=(1, 84, 8400))},
    {'metadata': {**ULTRALYTICS, 'head': 'Detect'}, 'outputs': floats(output0=(1, 300, 6))},
    {
        'metadata': {**ULTRALYTICS, 'end2end': 'True', 'args': '{}'},
        'outputs': floats(output0=(1, 300, 6)),
    },
    {
        'metadata': {**ULTRALYTICS, 'head': 'RTDETRDecoder'},
        'outputs': floats(output0=(1, 300, 6)),
    },
    {'metadata': RTDETR, 'outputs': floats(output0=(1, 300, 84))},
    {
        'metadata': {**RTDETR, **OF_PAIR, 'version': '8.4.46'},
        'outputs': floats(output0=(1, 300, 6)),
    },
    {
        'metadata': {**RTDETR, **OF_PAIR, 'version': '8.4.47'},
        'outputs': floats(output0=(1, 300, 6)),
    },
    {'metadata': {**RTDETR, **OF_PAIR}, 'outputs': floats(output0=(1, 300, 6))},
    {'metadata': ULTRALYTICS, 'outputs': floats(output0=(1, 300, 6))},
    {
        'metadata': {**ULTRALYTICS, 'task': 'segment'},
        'outputs': floats(output0=(1, 116, 8400), output1=(1, 32, 160, 160)),
    },
    {
        'metadata': {**ULTRALYTICS, 'task': 'segment', 'end2end': 'True'},
        'outputs': floats(output0=(1, 300, 38), output1=(1, 32, 160, 160)),
    },
    {
        'metadata': {**ULTRALYTICS, 'task': 'segment', 'args': "{'nms': True}"},
        'outputs': floats(output0=(1, 300, 38), output1=(1, 32, 160, 160)),
    },
    {'metadata': {**ULTRALYTICS, 'task': 'segment'}, 'outputs': floats(output0=(1, 116, 8400))},
    {
        'metadata': {**ULTRALYTICS, **OF_PERSON, **OF_POSE},
        'outputs': floats(output0=(1, 56, 8400)),
    },
    {
        'metadata': {**ULTRALYTICS, **OF_POSE, 'head': 'Pose26'},
        'outputs': floats(output0=(1, 135, 8400)),
    },
    {
        'metadata': {**ULTRALYTICS, **OF_POSE, 'end2end': 'True'},
        'outputs': floats(output0=(1, 300, 57)),
    },
    {
        'metadata': {**ULTRALYTICS, **OF_POSE, 'args': "{'nms': True}"},
        'outputs': floats(output0=(1, 300, 57)),
    },
    {'metadata': {**ULTRALYTICS, 'task': 'pose'}, 'outputs': floats(output0=(1, 56, 8400))},
    {
        'metadata': {**ULTRALYTICS, **OF_POSE},
        'outputs': floats(output0=(1, 56, 8400)),
    },
    {'metadata': {**ULTRALYTICS, 'task': 'obb'}, 'outputs': floats(output0=(1, 85, 8400))},
    {
        'metadata': {**ULTRALYTICS, 'task': 'obb', 'end2end': 'True'},
        'outputs': floats(output0=(1, 300, 7)),
    },
    {
        'metadata': {**ULTRALYTICS, 'task': 'obb', 'args': "{'nms': True}"},
        'outputs': floats(output0=(1, 300, 7)),
    },
    {'metadata': {**ULTRALYTICS, 'task': 'obb'}, 'outputs': floats(output0=(1, 84, 8400))},
    {'metadata': YOLOV5, 'outputs': floats(output0=(1, 25200, 85))},
    {'metadata': {**ULTRALYTICS, 'task': 'classify'}, 'outputs': floats(output0=(1, 80))},
    {
        'metadata': {**ULTRALYTICS, 'task': 'semantic'},
        'outputs': whole('uint8', output0=(1, 640, 640)),
    },
    {
        'metadata': {**ULTRALYTICS, 'task': 'semantic'},
        'outputs': floats(output0=(1, 80, 80, 80)),
    },
    {'metadata': {**ULTRALYTICS, 'task': 'semantic'}, 'outputs': floats(output0=(1, 84, 8400))},
    {
        'config': {**huggingface('vit'), 'architectures': ['ViTForImageClassification']},
        'outputs': floats(logits=(1, 80)),
    },
    {
        'config': {
            **huggingface('vit'),
            'architectures': ['ViTForImageClassification'],
            'problem_type': 'multi_label_classification',
        },
        'outputs': floats(logits=(1, 80)),
    },
    {
        'config': {
            **huggingface('vit'),
            'architectures': ['ViTForImageClassification'],
            'problem_type': 'regression',
        },
        'outputs': floats(logits=(1, 80)),
    },
    {'config': huggingface('vit'), 'outputs': floats(logits=(1, 80))},
    {'config': huggingface('segformer'), 'outputs': floats(logits=(1, 80, 160, 160))},
    {
        'config': {
            **huggingface('segformer'),
            'architectures': ['SegformerForSemanticSegmentation'],
        },
        'outputs': floats(logits=(1, 80, 160, 160)),
    },
    {'metadata': {**ULTRALYTICS, 'task': 'depth'}, 'outputs': floats(output0=(1, 1, 640, 640))},
    {'config': huggingface('depth_anything'), 'outputs': DEPTH},
    {
        'config': {**huggingface('depth_anything'), 'depth_estimation_type': 'metric'},
        'outputs': DEPTH,
    },
    {
        'config': {**huggingface('dpt'), 'architectures': ['DPTForDepthEstimation']},
        'outputs': DEPTH,
    },
    {
        'config': huggingface('depth_pro'),
        'outputs': floats(predicted_depth=(1, 1536, 1536), field_of_view=(1,)),
    },
    {'outputs': floats(depth=(1, 1, 640, 640), sky=(1, 1, 640, 640))},
    {
        'outputs': floats(
            **dict.fromkeys(('points', 'normal'), (1, 640, 640, 3)),
            mask=(1, 640, 640),
            metric_scale=(1,),
        )
    },
    {
        'config': {**huggingface('dpt'), 'architectures': ['DPTForSemanticSegmentation']},
        'outputs': floats(logits=(1, 80, 320, 320)),
    },
    {
        'config': {**huggingface('zoedepth'), 'architectures': ['ZoeDepthForDepthEstimation']},
        'outputs': DEPTH,
    },
    *({'config': huggingface(model), 'outputs': PAIR} for model in SIGMOID_MODELS),
    *({'config': huggingface(model), 'outputs': SOFTMAX} for model in SOFTMAX_MODELS),
    {
        'config': huggingface('rf_detr'),
        'outputs': [*PAIR, *floats(pred_masks=(1, 300, 160, 160), more=(1, 300, 256))],
    },
    {'outputs': floats(output0=(1, 84, 8400))},
    {**NAMED, 'outputs': floats(output0=(1, 84, 8400))},
    {**NAMED, 'outputs': floats(output=(1, 25200, 85))},
    {**NAMED, 'outputs': floats(output=(1, 8400, 85))},
    {**NAMED, 'outputs': floats(output=(1, 8400, 84))},
    {**NAMED, 'outputs': floats(output=(1, 8500, 112))},
    {**NAMED, 'outputs': floats(output=(1, 85, 8400))},
    {**NAMED, 'outputs': floats(output=(1, 116, 8400))},
    {**NAMED, 'outputs': floats(output=(1, 135, 8400))},
    {**NAMED, 'outputs': floats(output=(1, 300, 57))},
    {**NAMED, 'outputs': floats(output=(1, 300, 38))},
    {**NAMED, 'outputs': floats(output=(1, 300, 7))},
    {**NAMED, 'outputs': floats(output=(1, 300, 6))},
    {'class_names': NAMES[:2], 'outputs': floats(output=(1, 300, 6))},
    {**NAMED, 'outputs': floats(output=(1, 300, 84))},
    {**NAMED, 'outputs': EFFICIENT},
    {**NAMED, 'outputs': ONNX_NMS},
    {**NAMED, 'outputs': PAIR},
    {**NAMED, 'outputs': SOFTMAX},
    {**NAMED, 'outputs': floats(dets=(1, 300, 4), labels=(1, 300, 80))},
    {
        **NAMED,
        'outputs': floats(dets=(1, 100, 4), labels=(1, 100, 80), masks=(1, 100, 78, 78)),
    },
    {**NAMED, 'outputs': floats(dets=(1, 300, 4), labels=(1, 300, 81))},
    {
        **NAMED,
        'outputs': floats(dets=(1, 100, 4), labels=(1, 100, 80), keypoints=(1, 100, 17, 8)),
    },
    {**NAMED, 'outputs': THREE, 'inputs': (IMAGE, SIZES)},
    {**NAMED, 'outputs': THREE},
    {**NAMED, 'outputs': TORCHVISION},
    {**NAMED, 'outputs': [*TORCHVISION, *floats(d=(-1, 1, 640, 640))]},
    {**NAMED, 'outputs': [*TORCHVISION, *floats(d=(-1, 17, 3), e=(-1, 17))]},
    {**NAMED, 'outputs': [*TORCHVISION, *floats(d=(-1, 2, 640, 640))]},
    {**NAMED, 'outputs': TENSORFLOW},
    {**NAMED, 'outputs': floats(output0=(1, 116, 8400), output1=(1, 32, 160, 160))},
    {**NAMED, 'outputs': floats(boxes=(1, 8400, 4), scores=(1, 8400, 80))},
    {**NAMED, 'outputs': GRIDS},
    {**NAMED, 'outputs': floats(output=(1, 1000))},
    {**NAMED, 'outputs': floats(output=(1, 80))},
    {**NAMED, 'outputs': whole('int64', output=(1, 640, 640))},
    {**NAMED, 'outputs': floats(output=(1, 80, 160, 160))},
    {**NAMED, 'outputs': floats(aux=(1, 80, 640, 640), out=(1, 80, 640, 640))},
    {**NAMED, 'outputs': floats(a=(1, 80, 160, 160), b=(1, 80, 160, 160))},
    {**NAMED, 'outputs': floats(output=(1, 85, 160, 160))},
    {'outputs': floats(output=(1, 640, 640))},
    {'outputs': floats(output=(1, 1, 640, 640))},
    {**NAMED, 'outputs': floats(output=(1, 80, 20, 20))},
]
ROWS = rows((ROOT / 'test' / 'data' / 'recognition.md').read_text(encoding='utf-8'))


def test_each_row_of_the_table_has_a_case():
    assert len(CASES) == len(ROWS)


def test_rows_of_the_page_are_in_the_tested_table():
    shown = rows(section(RECOGNITION_PAGE, 'How a model is recognised'))
    assert len(shown) > 9
    assert [row for row in shown if row not in ROWS] == []


def model_of_case(case):
    return ModelInfo(
        'x.onnx',
        case.get('inputs', (IMAGE,)),
        tuple(case['outputs']),
        case.get('metadata', {}),
        case.get('config'),
    )


def recognise_case(case, preprocessing):
    given = ModelOverrides(preprocessing, class_names=case.get('class_names', ()))
    return recognise(model_of_case(case), given)


@pytest.mark.parametrize(
    ('row', 'case'), zip(ROWS, CASES, strict=False), ids=[f'{a}; {b}' for a, b, *_ in ROWS]
)
def test_recognition_matches_the_row(row, case, golden_messages):
    given, seen, chosen, _ = row
    # The row describes the outputs and the metadata of the case.
    for tensor in case['outputs']:
        shape = ', '.join('N' if side == -1 else str(side) for side in tensor.shape)
        assert f'({shape})' in seen or tensor.name in seen
    for word in re.findall(r'`([^`]+)`', given):
        assert word in str(case.get('metadata')) + str(case.get('config')) + 'config.json'
    names = re.findall(r'`(\w+)`', chosen)
    if chosen.startswith('`'):
        (name,) = names
        found = recognise_case(case, {} if 'must be said' not in chosen else SAID)
        assert found.decoder == PRESETS[name].decoder
        assert any(sentence.endswith(f'-> {name}') for sentence in found.evidence)
        if 'must be said' in chosen:
            with golden_messages.raises(EngineError):
                recognise_case(case, {})
    else:
        with pytest.raises(EngineError) as caught:
            recognise_case(case, {})
        if 'model.decoder' in chosen:
            # Check here too: a golden file can be rewritten with a decoder that does not fit.
            possible = set(re.findall(r'\w+', caught.value.missing['decoder'])) & PRESETS.keys()
            assert possible == set(names)
        message = str(caught.value)
        golden_messages.add(message)


#: Without the presets that no known exporter writes: metadata or parameters must name them.
EXPORTED = [name for name in family_outputs.OUTPUTS if PRESETS[name].documented_models]


def decoders_that_fit(model):
    """Return the recognised decoder, or all decoders that the refusal lists."""
    try:
        overrides = ModelOverrides(SAID, class_names=family_outputs.NAMES)
        return [recognise(model, overrides).decoder]
    except MissingModelInfoError as error:
        names = re.findall(r'\w+', error.missing['decoder'])
        return [PRESETS[name].decoder for name in names if name in PRESETS]


@pytest.mark.parametrize('preset', EXPORTED)
def test_outputs_of_each_exporter_are_recognised(preset):
    rng = np.random.default_rng(24)
    objects = family_outputs.random_objects(rng)
    arrays = family_outputs.batched(preset, [family_outputs.OUTPUTS[preset](rng, *objects)])
    width, height = family_outputs.NETWORK
    inputs = [('images', (1, 3, height, width)), *family_outputs.EXTRA_INPUTS.get(preset, ())]
    model = ModelInfo(
        'x.onnx',
        tuple(TensorSpec(name, shape, 'float32') for name, shape in inputs),
        tuple(TensorSpec(name, array.shape, str(array.dtype)) for name, array in arrays.items()),
        {},
    )
    assert PRESETS[preset].decoder in decoders_that_fit(model)


# What docs/recognition.md says that users of each exporter must set. Keys: the first two cells.
CLASSIFIER = floats(scores=(1, 80))
CASES_OF_EXPORTERS = {
    ('Ultralytics 8', 'YOLOv5u to YOLO26, RT-DETR; all tasks'): {
        'metadata': ULTRALYTICS,
        'outputs': floats(output0=(1, 84, 8400)),
    },
    ("YOLOv5's repository", 'YOLOv5'): {
        'metadata': YOLOV5,
        'outputs': floats(output0=(1, 25200, 85)),
    },
    ("YOLOv7's repository", 'YOLOv7'): {'outputs': floats(output=(1, 25200, 85))},
    ("YOLOX's repository", 'YOLOX'): {'outputs': floats(output=(1, 8400, 85))},
    (
        'transformers with optimum',
        'RT-DETR, D-FINE, DETR, YOLOS, ViT, SegFormer, Depth Anything …',
    ): {'config': huggingface('rt_detr'), 'outputs': PAIR},
    ('rfdetr', 'RF-DETR, RF-DETR-Seg'): {
        'outputs': floats(dets=(1, 300, 4), labels=(1, 300, 80)),
    },
    ("RT-DETR's, D-FINE's repositories", 'RT-DETR, D-FINE, DEIM'): {
        'inputs': (IMAGE, SIZES),
        'outputs': THREE,
    },
    ('LibreYOLO', 'YOLOX, D-FINE, RT-DETR …'): None,
    ('torchvision', 'SSD, RetinaNet, Faster, Mask and Keypoint R-CNN'): {'outputs': TORCHVISION},
    ('torchvision', 'classifiers'): {'outputs': CLASSIFIER},
    ('timm', 'classifiers'): None,
    ("TensorFlow's detection API", 'SSD, EfficientDet …'): {'outputs': TENSORFLOW},
    ("NanoDet's repository", 'NanoDet-Plus'): {'outputs': floats(output=(1, 8500, 112))},
    ('any, with EfficientNMS_TRT', 'detectors; engines only'): {'outputs': EFFICIENT},
    ("any, with ONNX's NonMaxSuppression", 'detectors'): {'outputs': ONNX_NMS},
    ('Depth Anything 3, MoGe', 'depth'): {
        'outputs': floats(depth=(1, 1, 640, 640), sky=(1, 1, 640, 640)),
    },
    ('another exporter of depth', 'Depth Anything V2, DPT'): {'outputs': DEPTH},
    ('your own network', 'detectors'): None,
}


def rows_of_exporters():
    """Return exporter, models and parameters of each row of the page that has a case."""
    found = {}
    for exporter, models, _, cell in rows(section(RECOGNITION_PAGE, 'What you must set')):
        required = cell.partition(';')[0]
        found[exporter, models] = re.findall(r'`(?:model\.)?(\w+)`', required)
    return found


def test_each_exporter_of_the_page_has_a_case():
    assert rows_of_exporters().keys() == CASES_OF_EXPORTERS.keys()


@pytest.mark.parametrize(
    'exporter', [key for key, case in CASES_OF_EXPORTERS.items() if case], ids=' '.join
)
def test_models_of_an_exporter_need_what_the_page_lists(exporter):
    case = CASES_OF_EXPORTERS[exporter]
    named = rows_of_exporters()[exporter]
    listed = [name for name in named if name not in PRESETS]
    values = {name: SAID[name] for name in listed if name in SAID}
    if 'decoder' in listed:
        values['decoder'] = next(name for name in named if name in PRESETS)
    if 'class_names' in listed:
        values['class_names'] = NAMES
    assert values.keys() == set(listed)

    def recognised(values):
        preprocessing = {name: value for name, value in values.items() if name in SAID}
        given = ModelOverrides(
            preprocessing, values.get('decoder', ''), class_names=values.get('class_names', ())
        )
        return recognise(model_of_case(case), given)

    assert recognised(values)
    for name in listed:
        with pytest.raises(MissingModelInfoError) as caught:
            recognised({other: value for other, value in values.items() if other != name})
        assert name in caught.value.missing
