# SPDX-License-Identifier: Apache-2.0
"""Families whose outputs describe the whole image: class scores, class maps and depth maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import OutputError
from trt_perception.files.json_records import choice_reader
from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.class_scores import ClassScores
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.images.results.map_resize import UPSAMPLINGS, Upsampling, check_map_size
from trt_perception.model.decoder import (
    DepthScaling,
    ImageContext,
    ImageDecoder,
    MapLayout,
    OutputArray,
    Sky,
)
from trt_perception.model.output_tensor import Axis, OutputTensor, assign_outputs
from trt_perception.model.tasks.classify import Classify
from trt_perception.model.tasks.depth import Depth
from trt_perception.model.tasks.semantic import Semantic
from trt_perception.model.tasks.task import PARAMETERS_OF_DEPTH, PARAMETERS_OF_SKY
from trt_perception.model.tensors import INDEX_DTYPES, TensorSpec

Doubles = npt.NDArray[np.float64]

#: Names that transformers gives to a depth.
DEPTH_NAMES: Final = ('predicted_depth',)
#: Depth Anything 3 was trained with images of this focal length in pixels.
_FOCAL_LENGTH_OF_TRAINING: Final = 300
#: Depth of the sky in a relative result, before it is inverted.
_FARTHEST: Final = 1e4
#: The shift is fitted to a grid of this many points on each side.
_FIT_SIDE: Final = 64
#: The fit ends if a step decreases the sum of squares by a smaller share.
_TOLERANCE: Final = 1e-3
_MAX_STEPS: Final = 30


def _named_output(name: str, *axes: int | str) -> OutputTensor:
    """Return an output that must have this name. Its axes follow the batch axis."""
    return OutputTensor(name, ('B', *axes), tensor_names=(name,), must_match_name=True)


@dataclass(frozen=True)
class ClassScoresDecoder(ImageDecoder):
    """The decoder of one score per class for the whole image.

    Attributes:
        activation: ``none`` if the network outputs probabilities. For logits, ``softmax`` if an
            image has exactly one of the classes, ``sigmoid`` if it may have several or none.
    """

    family = 'class_scores'
    tasks_with_own_outputs = (Classify.name,)
    documented_outputs = 'scores (B, C)'
    documented_scores = 'probabilities, or logits with `softmax` or `sigmoid`'
    tensors = (OutputTensor('scores', ('B', Axis()), tensor_names=('logits',)),)

    activation: Annotated[str, choice_reader('none', 'softmax', 'sigmoid')]

    def has_constant_scores(self, class_count: int) -> bool:
        return self.activation == 'softmax' and class_count == 1

    def result(self, arrays: Sequence[OutputArray], image: ImageContext) -> ClassScores:
        scores = arrays[0].astype(np.float32)  # a copy, because the output's memory is reused
        if not np.isfinite(scores.sum()):  # NaN and infinity remain in the sum
            raise OutputError("the model's output", 'scores that are not finite')
        if self.activation == 'softmax':
            scores -= scores.max()
            np.exp(scores, out=scores)
            scores /= scores.sum()
        elif self.activation == 'sigmoid':
            with np.errstate(over='ignore'):  # exp of a very low logit is infinite, its score 0
                scores = np.float32(1) / (np.float32(1) + np.exp(-scores))
        if not np.all((scores >= 0) & (scores <= 1.001)):
            raise OutputError(
                "the model's output",
                f'scores from {scores.min():.4g} to {scores.max():.4g}',
                expected='probabilities from 0 to 1',
                fix='set model.decoder to class_logits or class_sigmoid if the network outputs '
                'logits',
            )
        return ClassScores(scores)


@dataclass(frozen=True)
class ClassLogitsDecoder(ImageDecoder):
    """The decoder of logits for each class and cell. Cells may be larger than pixels."""

    family = 'pixel_logits'
    tasks_with_own_outputs = (Semantic.name,)
    documented_outputs = 'logits (B, C, rows, columns)'
    documented_scores = 'logits'
    # The segmentation models of torchvision have a second output "aux" of the same shape.
    tensors = (
        OutputTensor('logits', ('B', Axis(), 'rows', 'columns'), tensor_names=('out', 'logits')),
    )

    def has_constant_scores(self, class_count: int) -> bool:
        return class_count == 1  # the largest of one logit is always the first

    def map_layout(self) -> MapLayout:
        # As post_process_semantic_segmentation of transformers does.
        return MapLayout('logits', 'bilinear')

    def result(self, arrays: Sequence[OutputArray], image: ImageContext) -> ClassMap:
        check_map_size(arrays[0])
        # A copy, because the output's memory is reused.
        logits = arrays[0].astype(np.float32)
        if not np.isfinite([logits.min(), logits.max()]).all():
            raise self.map_layout().invalid_values_error(image.class_count)
        return ClassMap(logits, image.letterbox)


@dataclass(frozen=True)
class ClassIdsDecoder(ImageDecoder):
    """The decoder of the class id of each pixel of the network's input."""

    family = 'pixel_ids'
    tasks_with_own_outputs = (Semantic.name,)
    documented_outputs = 'ids uint8, int32 or int64 (B, rows, columns)'
    tensors = (OutputTensor('ids', ('B', 'rows', 'columns'), ('uint8', *INDEX_DTYPES)),)

    def map_layout(self) -> MapLayout:
        # As Ultralytics' predictor of semantic models does, after it removed the padding.
        return MapLayout('ids', 'nearest')

    def result(self, arrays: Sequence[OutputArray], image: ImageContext) -> ClassMap:
        ids = arrays[0]
        check_map_size(ids)
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= image.class_count:
            found = f'class ids from {low} to {high}'
            raise self.map_layout().invalid_values_error(image.class_count, found)
        return ClassMap(ids.astype(np.uint8), image.letterbox)


@dataclass(frozen=True)
class DepthDecoder(ImageDecoder):
    """The decoder of a depth for each cell.

    Attributes:
        has_channel_axis: whether the output is (B, 1, rows, columns) instead of (B, rows,
            columns).
        is_metric: whether values are metres. Otherwise larger values are nearer.
        upsampling: how the family's own code resizes the output to the image.
    """

    family = 'depth'
    tasks_with_own_outputs = (Depth.name,)
    unused_parameters = PARAMETERS_OF_DEPTH
    documented_outputs = 'depth (B, rows, columns) or (B, 1, rows, columns)'

    has_channel_axis: bool
    is_metric: bool
    upsampling: Annotated[Upsampling, choice_reader(*UPSAMPLINGS)]

    def family_outputs(self) -> tuple[OutputTensor, ...]:
        channel = (1,) if self.has_channel_axis else ()
        shape = ('B', *channel, 'rows', 'columns')
        return (OutputTensor('depth', shape, tensor_names=DEPTH_NAMES),)

    def for_outputs(self, outputs: tuple[TensorSpec, ...]) -> DepthDecoder:
        """Return the decoder with a channel axis if only an output with this axis fits.

        If outputs of both shapes exist, an output with a known name decides. A decoder with the
        axis stays, because the exporter of Ultralytics always writes it, and boxes have the shape
        of maps without the axis.
        """
        read = {
            decoder: outputs[indices[0]].name
            for decoder in (self, replace(self, has_channel_axis=True))
            if (indices := assign_outputs(decoder.family_outputs(), outputs)) is not None
        }
        named = [decoder for decoder, name in read.items() if name in DEPTH_NAMES]
        return next(iter([*named, *read]), self)

    def map_layout(self) -> MapLayout:
        return MapLayout('depth', self.upsampling)

    def depth_scaling(self, focal_length: float | None, sky: Sky) -> DepthScaling:
        return DepthScaling(self.is_metric)

    def result(self, arrays: Sequence[OutputArray], image: ImageContext) -> DepthMap:
        grid = _copied_grid(arrays[0][0] if self.has_channel_axis else arrays[0])
        return DepthMap(grid, image.letterbox, self.upsampling, self.is_metric)


@dataclass(frozen=True)
class DepthProDecoder(ImageDecoder):
    """The decoder of Depth Pro: an inverse depth for each cell, and the camera's field of view.

    The inverse depth is for an image whose focal length equals its width. transformers'
    ``post_process_depth_estimation`` multiplies it by width / focal length, which is
    2 * tan(field of view / 2) for an image of any size.
    """

    family = 'depth_pro'
    tasks_with_own_outputs = (Depth.name,)
    unused_parameters = PARAMETERS_OF_DEPTH
    documented_outputs = 'inverse depth (B, rows, columns), field of view (B)'
    tensors = (
        OutputTensor('inverse depth', ('B', 'rows', 'columns')),
        OutputTensor('field of view', ('B',)),
    )

    def map_layout(self) -> MapLayout:
        return MapLayout('depth', 'bilinear', second_output='field_of_view')

    def depth_scaling(self, focal_length: float | None, sky: Sky) -> DepthScaling:
        return DepthScaling(is_metric=True, is_inverse=True)

    def result(self, arrays: Sequence[OutputArray], image: ImageContext) -> DepthMap:
        grid, degrees = _copied_grid(arrays[0]), float(arrays[1])
        if not 0 < degrees < 180:
            found = f'a field of view of {degrees:.4g} degrees'
            raise self.map_layout().invalid_values_error(image.class_count, found)
        grid *= np.float32(2 * math.tan(math.radians(degrees) / 2))
        return DepthMap(grid, image.letterbox, 'bilinear', is_metric=True, is_inverse=True)


@dataclass(frozen=True)
class DepthAnything3Decoder(ImageDecoder):
    """The decoder of Depth Anything 3's metric model: a depth and the sky for each cell.

    The depth in metres is the output times the focal length in network pixels / 300, as in the
    family's ``apply_metric_scaling``. Without focal length, the result is relative: 1 / output.
    """

    family = 'depth_anything_3'
    tasks_with_own_outputs = (Depth.name,)
    needs_focal_length = True
    documented_outputs = 'depth, sky (B, 1, rows, columns)'
    tensors = (
        _named_output('depth', 1, 'rows', 'columns'),
        _named_output('sky', 1, 'rows', 'columns'),
    )

    def map_layout(self) -> MapLayout:
        return MapLayout('depth', 'bilinear', second_output='sky')

    def depth_scaling(self, focal_length: float | None, sky: Sky) -> DepthScaling:
        if focal_length is not None:
            factor = focal_length / _FOCAL_LENGTH_OF_TRAINING
            return DepthScaling(True, False, factor, sky.threshold, sky.depth_m)
        depth = sky.depth_m if math.isnan(sky.depth_m) else _FARTHEST
        return DepthScaling(False, True, 1.0, sky.threshold, depth)

    def result(self, arrays: Sequence[OutputArray], image: ImageContext) -> DepthMap:
        scaling = self.depth_scaling(image.focal_length, image.sky)
        grid = _copied_grid(arrays[0][0]) * np.float32(scaling.factor)
        grid[arrays[1][0] >= scaling.sky_threshold] = scaling.sky_depth
        return DepthMap(
            grid, image.letterbox, 'bilinear', scaling.is_metric, is_inverse=scaling.is_inverse
        )


@dataclass(frozen=True)
class MoGeDecoder(ImageDecoder):
    """The decoder of MoGe-2: points, the probability of a valid point, and the scale in metres.

    The depth is (z + shift) * scale, as in ``infer`` of the family. Points that are not valid are
    NaN, where ``infer`` returns infinity.
    """

    family = 'moge'
    tasks_with_own_outputs = (Depth.name,)
    unused_parameters = PARAMETERS_OF_SKY
    needs_focal_length = True
    documented_outputs = 'points (B, rows, columns, 3), mask (B, rows, columns), metric_scale (B)'
    tensors = (
        _named_output('points', 'rows', 'columns', 3),
        _named_output('mask', 'rows', 'columns'),
        _named_output('metric_scale'),
    )

    def result(self, arrays: Sequence[OutputArray], image: ImageContext) -> DepthMap:
        grid, is_valid = _copied_grid(arrays[0][..., 2]), arrays[1] > 0.5
        focal = None
        if image.focal_length is not None:
            focal = 2 * image.focal_length / math.hypot(*image.network_wh)
        grid += np.float32(_shift_of_depth(arrays[0], is_valid, focal))
        is_valid &= grid > 0
        grid *= arrays[2]
        grid[~is_valid] = np.nan
        return DepthMap(grid, image.letterbox, 'bilinear', is_metric=True)


def _copied_grid(grid: OutputArray) -> npt.NDArray[np.float32]:
    """Return a float32 copy of a grid, because the output's memory is reused.

    Raises:
        OutputShapeError: the grid has no cells, or too many.
    """
    check_map_size(grid)
    return grid.astype(np.float32)


def _shift_of_depth(
    points: OutputArray, is_valid: npt.NDArray[np.bool_], focal: float | None
) -> float:
    """Return what must be added to z so that the points project onto their pixels.

    As in ``recover_focal_shift`` of MoGe, points at equal distances take part, and the principal
    point is the centre.

    Args:
        points: x, y and z; float32 (rows, columns, 3).
        is_valid: which points may take part, (rows, columns).
        focal: focal length as a share of half the diagonal; None to estimate it.

    Returns:
        0 if fewer than two points are valid.
    """
    rows, columns = is_valid.shape
    places = np.ix_(*(np.arange(_FIT_SIDE) * side // _FIT_SIDE for side in (rows, columns)))
    chosen = points[places].astype(np.float64)
    used = is_valid[places] & np.isfinite(chosen).all(axis=-1)
    # Pixels as shares of half the diagonal.
    v, u = ((2 * place + 1 - side) for place, side in zip(places, (rows, columns), strict=True))
    pixels = np.stack(np.broadcast_arrays(u, v), axis=-1) / math.hypot(rows, columns)
    if np.count_nonzero(used) < 2:
        return 0.0
    return _fitted_shift(pixels[used], chosen[used], focal)


def _fitted_shift(pixels: Doubles, points: Doubles, focal: float | None) -> float:
    """Return the shift that minimises the squares of focal * xy / (z + shift) - pixel.

    Gauss and Newton's method from 0, like the method of SciPy that MoGe's
    ``solve_optimal_focal_shift`` and ``solve_optimal_shift`` call, with the same tolerance. Steps
    are halved until the error decreases.
    """

    def errors(shift: float) -> tuple[Doubles, Doubles]:
        """Return the errors and their derivatives for the best focal length."""
        depth = points[:, 2:] + shift
        flat = points[:, :2] / depth
        by_shift = -flat / depth
        if focal is not None:
            return focal * flat - pixels, focal * by_shift
        square = (flat * flat).sum()
        best = (flat * pixels).sum() / square
        best_by_shift = ((by_shift * pixels).sum() - 2 * best * (flat * by_shift).sum()) / square
        return best * flat - pixels, best * by_shift + best_by_shift * flat

    shift = 0.0
    for _ in range(_MAX_STEPS):
        error, slope = errors(shift)
        cost = (error**2).sum()
        step = -float((error * slope).sum() / (slope**2).sum())
        for _ in range(_MAX_STEPS):
            decrease = 1 - (errors(shift + step)[0] ** 2).sum() / cost
            if decrease > 0:
                break
            step /= 2
        else:
            return shift
        shift += step
        if decrease <= _TOLERANCE:
            break
    return shift
