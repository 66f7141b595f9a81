"""Values for fields of Preprocessing that the presets of several decoders share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = [
    *('DETR', 'IMAGENET', 'RGB_0_TO_1', 'STRETCH', 'ULTRALYTICS', 'ULTRALYTICS_CLASSIFIER'),
    'YOLOX',
]

PreprocessingFields = Mapping[str, Any]

RGB_0_TO_1: Final[PreprocessingFields] = {'color_order': 'rgb', 'scale': 1 / 255}
#: IMAGENET_DEFAULT_MEAN and IMAGENET_DEFAULT_STD of transformers, as in torchvision's presets.
IMAGENET: Final[PreprocessingFields] = {
    **RGB_0_TO_1,
    'mean': (0.485, 0.456, 0.406),
    'std': (0.229, 0.224, 0.225),
}
ULTRALYTICS: Final[PreprocessingFields] = {**RGB_0_TO_1, 'resize': 'letterbox'}
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
DETR: Final[PreprocessingFields] = {
    **IMAGENET,
    'resize': 'letterbox_top_left',
    'pad_value': None,
    'antialias': True,
}
YOLOX: Final[PreprocessingFields] = {
    'resize': 'letterbox_top_left',
    'color_order': 'bgr',
    'scale': 1.0,
}
