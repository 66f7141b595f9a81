# SPDX-License-Identifier: Apache-2.0
"""Lists all decoders: presets by value of ``model.decoder``, and classes by family."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from trt_perception.files.json_records import read_record
from trt_perception.files.json_section import JsonSection
from trt_perception.model.decoder import Decoder, DecoderPreset, ObjectDecoder
from trt_perception.model.decoders.anchors import Dense, Nanodet, YoloxRaw
from trt_perception.model.decoders.final_boxes import (
    EfficientNms,
    EndToEnd,
    LabelsBoxesScores,
    OnnxNms,
    RtdetrEndToEnd,
    Tensorflow,
    Torchvision,
)
from trt_perception.model.decoders.installed import installed_presets
from trt_perception.model.decoders.queries import Detr, RtdetrUltralytics
from trt_perception.model.decoders.whole_image import (
    ClassIdsDecoder,
    ClassLogitsDecoder,
    ClassScoresDecoder,
    DepthAnything3Decoder,
    DepthDecoder,
    DepthProDecoder,
    MoGeDecoder,
)
from trt_perception.model.tasks.task import Task

#: Values for fields of Preprocessing.
PreprocessingFields = Mapping[str, Any]

RGB_0_TO_1: Final[PreprocessingFields] = {'color_order': 'rgb', 'scale': 1 / 255}
#: IMAGENET_DEFAULT_MEAN and IMAGENET_DEFAULT_STD of transformers, as in torchvision's presets.
IMAGENET: Final[PreprocessingFields] = {
    **RGB_0_TO_1,
    'mean': (0.485, 0.456, 0.406),
    'std': (0.229, 0.224, 0.225),
}
ULTRALYTICS: Final[PreprocessingFields] = {
    **RGB_0_TO_1,
    'resize': 'letterbox',
    'size_rounding': 'half_even',
}
#: For square inputs. PIL resizes, and torchvision crops.
ULTRALYTICS_CLASSIFIER: Final[PreprocessingFields] = {
    **RGB_0_TO_1,
    'resize': 'center_crop',
    'pad_value': 0,
    'antialias': True,
}
#: PIL resized the training images of these models, so resizing antialiases. Ultralytics resizes
#: with OpenCV, which does not antialias.
STRETCH: Final[PreprocessingFields] = {**RGB_0_TO_1, 'resize': 'stretch', 'antialias': True}
_DETR: Final[PreprocessingFields] = {
    **IMAGENET,
    'resize': 'letterbox_top_left',
    'pad_value': None,
    'antialias': True,
    'size_rounding': 'longer_down',
}
YOLOX: Final[PreprocessingFields] = {
    'resize': 'letterbox_top_left',
    'color_order': 'bgr',
    'scale': 1.0,
    'size_rounding': 'down',
}
#: For RT-DETR and depth models. Their predictors stretch images, unlike those of other models.
_ULTRALYTICS_STRETCH: Final = {**RGB_0_TO_1, 'resize': 'stretch'}
#: The image processor of Depth Anything in transformers.
_DEPTH_ANYTHING: Final = {**IMAGENET, 'resize': 'stretch', 'filter': 'bicubic', 'antialias': True}

_MAP_OF_DEPTH: Final = '(B, rows, columns) or (B, 1, rows, columns)'

_PRESETS: Final = (
    DecoderPreset('dense', Dense(), 'YOLOv8, 9, 11, 12', preprocessing=ULTRALYTICS),
    DecoderPreset('dense_transposed', Dense(transposed=True)),
    DecoderPreset('dense_objectness', Dense(objectness=True)),
    DecoderPreset(
        'dense_objectness_transposed',
        Dense(objectness=True, transposed=True),
        'YOLOv5, 7',
        preprocessing=ULTRALYTICS,
    ),
    DecoderPreset(
        'yolox',
        Dense(objectness=True, transposed=True),
        'YOLOX with grid decoding',
        preprocessing=YOLOX,
        anchors_per_cell=(1,),
    ),
    DecoderPreset(
        'yolox_raw',
        YoloxRaw((8, 16, 32)),
        "YOLOX without grid decoding, its exporter's default",
        preprocessing=YOLOX,
        anchors_per_cell=(1,),
    ),
    DecoderPreset('end_to_end', EndToEnd(), 'YOLOv10, YOLO26, Ultralytics with `nms=True`'),
    DecoderPreset(
        'efficient_nms',
        EfficientNms(),
        "exports with TensorRT's plugin EfficientNMS_TRT",
        'number, boxes, scores, classes',
    ),
    DecoderPreset(
        'onnx_nms_xyxy',
        OnnxNms('xyxy'),
        "exports with ONNX's NonMaxSuppression",
        'boxes, scores, selected_indices',
    ),
    DecoderPreset('onnx_nms_yxyx', OnnxNms('yxyx'), documented_outputs='as above'),
    DecoderPreset(
        'onnx_nms_cxcywh', OnnxNms('cxcywh'), documented_outputs='as above, `center_point_box=1`'
    ),
    DecoderPreset(
        'rtdetr_ultralytics',
        RtdetrUltralytics(),
        'RT-DETR by Ultralytics up to 8.4.46',
        preprocessing=_ULTRALYTICS_STRETCH,
    ),
    DecoderPreset(
        'rtdetr_end_to_end',
        RtdetrEndToEnd(),
        'RT-DETR by Ultralytics from 8.4.47 (May 2026)',
        preprocessing=_ULTRALYTICS_STRETCH,
    ),
    DecoderPreset(
        'rtdetr',
        Detr('sigmoid'),
        'RT-DETR, D-FINE, DEIMv2 by Hugging Face',
        'logits, pred_boxes',
        STRETCH,
        transformers=('rt_detr', 'rt_detr_v2', 'd_fine', 'deimv2'),
        image_processors=('RTDetr',),
    ),
    DecoderPreset(
        'rfdetr',
        Detr('sigmoid'),
        'RF-DETR, RF-DETR-Seg',
        'dets, labels; RF-DETR-Seg also masks',
        # rfdetr and transformers convert pixels to float32, then resize without antialiasing.
        {**IMAGENET, 'resize': 'stretch', 'round_pixels': False},
        transformers=('rf_detr',),
        image_processors=('RfDetr',),
        tensor_names=(frozenset({'dets', 'labels'}), frozenset({'dets', 'labels', 'masks'})),
        # rfdetr up to 1.4 uses the category ids of the dataset, which usually begin at 1. Up to
        # 1.9, the root category 0 of Roboflow's datasets, which has no objects, keeps its column.
        background='RF-DETR trained with own classes has one more class, without objects: give '
        'it the name "background". It is the last class, but the first class if rfdetr up to 1.4 '
        'trained the model, or rfdetr up to 1.9 with a dataset of Roboflow. To tell: with the '
        'wrong order, objects have the name of the next or previous class',
    ),
    DecoderPreset(
        'detr_sigmoid',
        Detr('sigmoid'),
        'Deformable, Conditional, DAB- and LW-DETR',
        'logits, pred_boxes',
        _DETR,
        transformers=('deformable_detr', 'conditional_detr', 'dab-detr', 'lw_detr'),
        image_processors=('ConditionalDetr', 'DeformableDetr'),
    ),
    DecoderPreset(
        'detr',
        Detr('softmax'),
        'DETR, Table Transformer',
        'logits, pred_boxes',
        _DETR,
        transformers=('detr', 'table-transformer'),
        image_processors=('Detr',),
    ),
    DecoderPreset(
        'yolos',
        Detr('softmax'),
        'YOLOS',
        'logits, pred_boxes',
        # The processor keeps the aspect ratio, then rounds both sides down to multiples of 16.
        {**IMAGENET, 'resize': 'stretch', 'antialias': True, 'keeps_aspect_ratio': True},
        transformers=('yolos',),
        image_processors=('Yolos',),
    ),
    DecoderPreset(
        'labels_boxes_scores',
        LabelsBoxesScores(),
        'RT-DETR, D-FINE by their own repositories',
        'labels, boxes, scores; second input `orig_target_sizes`',
        STRETCH,
    ),
    DecoderPreset(
        'torchvision',
        Torchvision(),
        'SSD, RetinaNet, Faster R-CNN, Mask R-CNN, Keypoint R-CNN; ONNX files only',
        'boxes, labels, scores, of variable length; also masks, or keypoints and their scores',
        # The model contains the normalisation and another resize.
        {**RGB_0_TO_1, 'pad_value': 116},
        background='Label 0 of torchvision is the background and stands first in the class names',
        networks_by_resize={
            'stretch': 'SSD and SSDlite',
            'letterbox_top_left': 'RetinaNet, FCOS and Faster R-CNN',
        },
        task_preprocessing={'resize': 'letterbox_top_left'},
    ),
    DecoderPreset(
        'tensorflow',
        Tensorflow(),
        "TensorFlow's detection API",
        'detection_boxes, detection_classes, detection_scores, num_detections',
        # The model contains the normalisation and another resize.
        {'color_order': 'rgb', 'scale': 1.0},
        # "image_resizer" of the model's pipeline.config, whose values differ.
        networks_by_resize={
            'stretch': 'models with fixed_shape_resizer, such as SSD',
            'letterbox_top_left': 'models with keep_aspect_ratio_resizer, such as Faster R-CNN '
            'and EfficientDet',
        },
    ),
    DecoderPreset(
        'nanodet_plus',
        Nanodet((8, 16, 32, 64), reg_max=7),
        'NanoDet-Plus',
        preprocessing={
            'resize': 'stretch',
            'color_order': 'bgr',
            'scale': 1 / 255,
            'mean': (0.406, 0.456, 0.485),
            'std': (0.225, 0.224, 0.229),
        },
        anchors_per_cell=(1,),
    ),
    DecoderPreset(
        'class_probabilities',
        ClassScoresDecoder('none'),
        'classifiers of Ultralytics',
        '(B, C)',
    ),
    DecoderPreset(
        'class_logits',
        ClassScoresDecoder('softmax'),
        'classifiers of torchvision and Hugging Face',
        '(B, C)',
    ),
    DecoderPreset(
        'class_sigmoid',
        ClassScoresDecoder('sigmoid'),
        'classifiers with several labels for each image, or with one class',
        '(B, C)',
    ),
    DecoderPreset(
        'pixel_logits',
        ClassLogitsDecoder(),
        'SegFormer, UperNet, DeepLabV3, LR-ASPP',
        '(B, C, rows, columns)',
        # As SegformerImageProcessor of transformers does.
        preprocessing={**IMAGENET, 'resize': 'stretch', 'antialias': True},
    ),
    DecoderPreset(
        'pixel_ids',
        ClassIdsDecoder(),
        'semantic models of Ultralytics',
        '(B, rows, columns)',
        preprocessing=ULTRALYTICS,
    ),
    DecoderPreset(
        'depth_ultralytics',
        # The predictor resizes depth with align_corners.
        DepthDecoder(has_channel_axis=True, is_metric=True, upsampling='bilinear_aligned'),
        'depth models of Ultralytics',
        '(B, 1, rows, columns)',
        preprocessing=_ULTRALYTICS_STRETCH,
        meaning='metres, by Ultralytics',
    ),
    DecoderPreset(
        'relative_depth',
        # As post_process_depth_estimation of transformers does.
        DepthDecoder(has_channel_axis=False, is_metric=False, upsampling='bicubic'),
        'Depth Anything V2, DPT',
        _MAP_OF_DEPTH,
        preprocessing=_DEPTH_ANYTHING,
        meaning='no unit, larger values are nearer, as by Depth Anything V2, DPT and MiDaS',
        transformers=('depth_anything', 'dpt'),
    ),
    DecoderPreset(
        'metric_depth',
        DepthDecoder(has_channel_axis=False, is_metric=True, upsampling='bicubic'),
        'metric models of Depth Anything V2',
        _MAP_OF_DEPTH,
        preprocessing=_DEPTH_ANYTHING,
        meaning='metres, as by metric models of Depth Anything V2',
    ),
    DecoderPreset(
        'depth_pro',
        DepthProDecoder(),
        'Depth Pro',
        'depth (B, rows, columns), field of view (B)',
        # transformers normalises pixels, then resizes floats without antialiasing.
        preprocessing={
            **RGB_0_TO_1,
            'mean': (0.5, 0.5, 0.5),
            'std': (0.5, 0.5, 0.5),
            'resize': 'stretch',
            'round_pixels': False,
        },
        transformers=('depth_pro',),
        image_processors=('DepthPro',),
    ),
    DecoderPreset(
        'depth_anything_3',
        DepthAnything3Decoder(),
        'metric model of Depth Anything 3',
        'depth, sky (B, 1, rows, columns)',
        preprocessing={**IMAGENET, 'resize': 'stretch', 'antialias': True},
        tensor_names=(frozenset({'depth', 'sky'}),),
    ),
    DecoderPreset(
        'moge',
        MoGeDecoder(),
        'MoGe-2',
        'points, mask, metric_scale; also normal',
        # The encoder resizes with antialiasing.
        preprocessing={**STRETCH, 'size_multiple': 14},
        tensor_names=(
            frozenset({'points', 'mask', 'metric_scale'}),
            frozenset({'points', 'normal', 'mask', 'metric_scale'}),
        ),
    ),
)
_INSTALLED: Final = installed_presets(_PRESETS)
#: The names of presets that other packages add.
INSTALLED_NAMES: Final = frozenset(preset.name for preset in _INSTALLED)
#: Maps the name of a preset to the preset. Presets with the same decoder differ in their
#: preprocessing.
PRESETS: Final[Mapping[str, DecoderPreset]] = MappingProxyType(
    {preset.name: preset for preset in (*_PRESETS, *_INSTALLED)}
)
#: The presets whose decoders read objects.
OBJECT_PRESETS: Final = MappingProxyType(
    {name: preset for name, preset in PRESETS.items() if isinstance(preset.decoder, ObjectDecoder)}
)
#: Decoder classes by the name of their family in manifests.
DECODERS_BY_FAMILY: Final[Mapping[str, type[Decoder]]] = MappingProxyType(
    {preset.decoder.family: type(preset.decoder) for preset in PRESETS.values()}
)


@functools.cache
def families_for_task(task: Task) -> tuple[str, ...]:
    """Return the names of the families that support a task other than detect."""
    return tuple(
        family
        for family, decoder in DECODERS_BY_FAMILY.items()
        if task.name in decoder.tasks_with_own_outputs
        or (task.finds_objects and decoder.allows_task_values)
    )


def presets_for_task(task: Task) -> tuple[str, ...]:
    """Return the values of ``model.decoder`` that support a task other than detect."""
    families = families_for_task(task)
    return tuple(name for name, preset in PRESETS.items() if preset.decoder.family in families)


def read_decoder(section: JsonSection, key: str) -> Decoder:
    """Read a decoder from a manifest: the family and exactly its constants.

    Raises:
        ManifestError: the family is unknown, or a constant is missing, wrong or unknown.
    """
    inner = section.section(key)
    return read_record(DECODERS_BY_FAMILY[inner.text('family', tuple(DECODERS_BY_FAMILY))], inner)
