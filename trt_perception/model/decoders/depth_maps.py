"""Decodes depth: one value for each cell of a grid over the network's input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import numpy as np

from trt_perception.files.json_records import choice_reader
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.images.results.map_resize import UPSAMPLINGS, Upsampling
from trt_perception.model.decoder import (
    Decoder,
    DecoderPreset,
    ImageContext,
    OutputArray,
    SelectDetections,
)
from trt_perception.model.decoders.usual_preprocessing import IMAGENET, ULTRALYTICS
from trt_perception.model.output_tensor import OutputTensor
from trt_perception.model.tasks.depth import Depth
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.task import Task

__all__ = ['PRESETS', 'DepthDecoder']


@dataclass(frozen=True)
class DepthDecoder(Decoder):
    """The decoder of a depth for each cell.

    Attributes:
        has_channel_axis: whether the output is (B, 1, rows, columns) instead of (B, rows,
            columns).
        is_metric: whether values are metres. Otherwise larger values are nearer.
        upsampling: how the family's own code resizes the output to the image.
    """

    family: ClassVar[str] = 'depth'
    tasks_with_own_outputs: ClassVar[tuple[str, ...]] = (Depth.name,)
    documented_outputs: ClassVar[str] = 'depth (B, rows, columns) or (B, 1, rows, columns)'
    documented_boxes: ClassVar[str] = 'none'
    documented_scores: ClassVar[str] = 'none'

    has_channel_axis: bool
    is_metric: bool
    upsampling: Annotated[Upsampling, choice_reader(*UPSAMPLINGS)]

    def outputs(
        self,
        classes: int | None,
        task: Task = DETECT,
    ) -> tuple[OutputTensor, ...]:
        """See Decoder."""
        if task.name != Depth.name:
            return ()
        channel = (1,) if self.has_channel_axis else ()
        return (OutputTensor('depth', ('B', *channel, 'rows', 'columns')),)

    def decode(
        self,
        arrays: Sequence[OutputArray],
        image: ImageContext,
        select: SelectDetections,
    ) -> DepthMap:
        """See Decoder."""
        grid = arrays[0][0] if self.has_channel_axis else arrays[0]
        # A copy, because the output's memory is reused.
        return DepthMap(grid.astype(np.float32), image.letterbox, self.upsampling, self.is_metric)


PRESETS: Final = (
    DecoderPreset(
        'depth_ultralytics',
        DepthDecoder(has_channel_axis=True, is_metric=True, upsampling='bilinear_aligned'),
        'depth models of Ultralytics',
        '(B, 1, rows, columns)',
        preprocessing=ULTRALYTICS,
    ),
    DecoderPreset(
        'relative_depth',
        DepthDecoder(has_channel_axis=False, is_metric=False, upsampling='bicubic'),
        'Depth Anything V2, DPT',
        '(B, rows, columns)',
        preprocessing={**IMAGENET, 'resize': 'stretch'},
    ),
    DecoderPreset(
        'metric_depth',
        DepthDecoder(has_channel_axis=False, is_metric=True, upsampling='bicubic'),
        'metric models of Depth Anything V2',
        '(B, rows, columns)',
        preprocessing={**IMAGENET, 'resize': 'stretch'},
    ),
)
