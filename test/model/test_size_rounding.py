# SPDX-License-Identifier: Apache-2.0
"""Recognised models round the resized sides as their exporters do.

test/data/exports/record_letterboxes.py recorded the sizes from the code of the exporters.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from support.oracles.recognition_support import COCO, ULTRALYTICS, recognised, tensors
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.recognition.image_processor import read_image_processor

EXPORTS = Path(__file__).parents[1] / 'data' / 'exports'
with np.load(EXPORTS / 'letterboxes.npz') as content:
    RECORDED = dict(content)

LIBREYOLO = {
    'libreyolo_version': '1.6.0',
    'task': 'detect',
    'names': json.dumps(dict(enumerate(COCO))),
    'imgsz_h': '640',
    'imgsz_w': '640',
}
YOLO9 = {**LIBREYOLO, 'model_family': 'yolo9', 'nms': 'true'}
ROWS = tensors(output=(1, 300, 6))


def fields_of_preset(name):
    return {**PRESETS[name].preprocessing, 'resize': 'letterbox'}


def fields_of_metadata(metadata, outputs=ROWS):
    return vars(recognised(outputs, metadata).preprocessing)


def fields_of_processor(size):
    processor = {'image_processor_type': 'DetrImageProcessor', 'size': size, 'resample': 2}
    return read_image_processor(processor, 'detr').preprocessing


# The exporter, and the fields of Preprocessing from each way in which the package knows it.
CASES = [
    *(('ultralytics', fields_of_preset(n)) for n in ('dense', 'dense_objectness_transposed')),
    ('ultralytics', fields_of_preset('pixel_ids')),
    ('ultralytics', fields_of_metadata({**ULTRALYTICS, 'end2end': 'True'})),
    *(('yolox', fields_of_preset(name)) for name in ('yolox', 'yolox_raw')),
    (
        'yolox',
        fields_of_metadata({**LIBREYOLO, 'model_family': 'yolox'}, tensors(output=(1, 8400, 85))),
    ),
    *(
        ('libreyolo', fields_of_metadata({**YOLO9, 'letterbox_pad': pad}))
        for pad in ('topleft', 'center')
    ),
    *(('shortest_edge', fields_of_preset(name)) for name in ('detr', 'detr_sigmoid')),
    ('shortest_edge', fields_of_processor({'shortest_edge': 800, 'longest_edge': 1333})),
    ('max_height_width', fields_of_processor({'max_height': 640, 'max_width': 640})),
]


@pytest.mark.parametrize(
    ('exporter', 'fields'), CASES, ids=[f'{i}-{case[0]}' for i, case in enumerate(CASES)]
)
def test_resized_sides_are_those_of_the_exporter(exporter, fields):
    for *sides, width, height in RECORDED[exporter].tolist():
        preprocessing = Preprocessing(**{**fields, 'input_size': tuple(sides[2:])})
        assert preprocessing.letterbox(tuple(sides[:2])).resized_wh == (width, height)
