"""Decodes semantic segmentation: logits of each class, or class ids, for each pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.map_resize import check_map_size
from trt_perception.model.decoder import (
    DecoderPreset,
    ImageContext,
    ImageDecoder,
    MapLayout,
    OutputArray,
)
from trt_perception.model.decoders.usual_preprocessing import IMAGENET, ULTRALYTICS
from trt_perception.model.output_tensor import Axis, OutputTensor
from trt_perception.model.tasks.semantic import Semantic
from trt_perception.model.tensors import INDEX_DTYPES

__all__ = ['PRESETS', 'ClassIdsDecoder', 'ClassLogitsDecoder']


@dataclass(frozen=True)
class ClassLogitsDecoder(ImageDecoder):
    """The decoder of logits for each class and cell. Cells may be larger than pixels."""

    family: ClassVar[str] = 'pixel_logits'
    tasks_with_own_outputs: ClassVar[tuple[str, ...]] = (Semantic.name,)
    documented_outputs: ClassVar[str] = 'logits (B, C, rows, columns)'
    documented_scores: ClassVar[str] = 'logits'
    # The segmentation models of torchvision have a second output "aux" of the same shape.
    tensors: ClassVar[tuple[OutputTensor, ...]] = (
        OutputTensor('logits', ('B', Axis(), 'rows', 'columns'), tensor_names=('out',)),
    )

    def map_layout(self) -> MapLayout:
        """See Decoder."""
        # As post_process_semantic_segmentation of transformers does.
        return MapLayout('logits', 'bilinear')

    def result(self, arrays: Sequence[OutputArray], image: ImageContext) -> ClassMap:
        """See ImageDecoder."""
        check_map_size(arrays[0])
        # A copy, because the output's memory is reused.
        logits = arrays[0].astype(np.float32)
        if not np.isfinite([logits.min(), logits.max()]).all():
            raise self.map_layout().invalid_values_error(image.class_count)
        return ClassMap(logits, image.letterbox)


@dataclass(frozen=True)
class ClassIdsDecoder(ImageDecoder):
    """The decoder of the class id of each pixel of the network's input."""

    family: ClassVar[str] = 'pixel_ids'
    tasks_with_own_outputs: ClassVar[tuple[str, ...]] = (Semantic.name,)
    documented_outputs: ClassVar[str] = 'ids uint8, int32 or int64 (B, rows, columns)'
    tensors: ClassVar[tuple[OutputTensor, ...]] = (
        OutputTensor('ids', ('B', 'rows', 'columns'), ('uint8', *INDEX_DTYPES)),
    )

    def map_layout(self) -> MapLayout:
        """See Decoder."""
        # As Ultralytics' predictor of semantic models does, after it removed the padding.
        return MapLayout('ids', 'nearest')

    def result(self, arrays: Sequence[OutputArray], image: ImageContext) -> ClassMap:
        """See ImageDecoder."""
        ids = arrays[0]
        check_map_size(ids)
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= image.class_count:
            found = f'class ids from {low} to {high}'
            raise self.map_layout().invalid_values_error(image.class_count, found)
        return ClassMap(ids.astype(np.uint8), image.letterbox)


PRESETS: Final = (
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
)
