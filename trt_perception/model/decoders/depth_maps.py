"""Decodes depth: one value for each cell of a grid over the network's input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import numpy as np
import numpy.typing as npt

from trt_perception.files.json_records import choice_reader
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.images.results.map_resize import UPSAMPLINGS, Upsampling, check_map_size
from trt_perception.model.decoder import (
    DecoderPreset,
    DepthScaling,
    ImageContext,
    ImageDecoder,
    MapLayout,
    OutputArray,
    Sky,
)
from trt_perception.model.decoders.usual_preprocessing import IMAGENET, RGB_0_TO_1, STRETCH
from trt_perception.model.output_tensor import OutputTensor
from trt_perception.model.tasks.depth import Depth
from trt_perception.model.tasks.task import PARAMETERS_OF_DEPTH, PARAMETERS_OF_SKY

__all__ = ['PRESETS', 'DepthDecoder']

Doubles = npt.NDArray[np.float64]


def _named_output(name: str, *axes: int | str) -> OutputTensor:
    """Return an output that must have this name. Its axes follow the batch axis."""
    return OutputTensor(name, ('B', *axes), tensor_names=(name,), must_match_name=True)


@dataclass(frozen=True)
class DepthDecoder(ImageDecoder):
    """The decoder of a depth for each cell.

    Attributes:
        has_channel_axis: whether the output is (B, 1, rows, columns) instead of (B, rows,
            columns).
        is_metric: whether values are metres. Otherwise larger values are nearer.
        upsampling: how the family's own code resizes the output to the image.
    """

    family: ClassVar[str] = 'depth'
    tasks_with_own_outputs: ClassVar[tuple[str, ...]] = (Depth.name,)
    unused_parameters: ClassVar[tuple[str, ...]] = PARAMETERS_OF_DEPTH
    documented_outputs: ClassVar[str] = 'depth (B, rows, columns) or (B, 1, rows, columns)'

    has_channel_axis: bool
    is_metric: bool
    upsampling: Annotated[Upsampling, choice_reader(*UPSAMPLINGS)]

    def family_outputs(self) -> tuple[OutputTensor, ...]:
        """See Decoder."""
        channel = (1,) if self.has_channel_axis else ()
        return (OutputTensor('depth', ('B', *channel, 'rows', 'columns')),)

    def map_layout(self) -> MapLayout:
        """See Decoder."""
        return MapLayout('depth', self.upsampling)

    def depth_scaling(self, focal_length: float | None, sky: Sky) -> DepthScaling:
        """See Decoder."""
        return DepthScaling(self.is_metric)

    def result(self, arrays: Sequence[OutputArray], image: ImageContext) -> DepthMap:
        """See ImageDecoder."""
        grid = _copied_grid(arrays[0][0] if self.has_channel_axis else arrays[0])
        return DepthMap(grid, image.letterbox, self.upsampling, self.is_metric)


@dataclass(frozen=True)
class DepthProDecoder(ImageDecoder):
    """The decoder of Depth Pro: an inverse depth for each cell, and the camera's field of view.

    The inverse depth is for an image whose focal length equals its width. transformers'
    ``post_process_depth_estimation`` multiplies it by width / focal length, which is
    2 * tan(field of view / 2) for an image of any size.
    """

    family: ClassVar[str] = 'depth_pro'
    tasks_with_own_outputs: ClassVar[tuple[str, ...]] = (Depth.name,)
    unused_parameters: ClassVar[tuple[str, ...]] = PARAMETERS_OF_DEPTH
    documented_outputs: ClassVar[str] = 'inverse depth (B, rows, columns), field of view (B)'
    tensors: ClassVar[tuple[OutputTensor, ...]] = (
        OutputTensor('inverse depth', ('B', 'rows', 'columns')),
        OutputTensor('field of view', ('B',)),
    )

    def map_layout(self) -> MapLayout:
        """See Decoder."""
        return MapLayout('depth', 'bilinear', second_output='field_of_view')

    def depth_scaling(self, focal_length: float | None, sky: Sky) -> DepthScaling:
        """See Decoder."""
        return DepthScaling(is_metric=True, is_inverse=True)

    def result(self, arrays: Sequence[OutputArray], image: ImageContext) -> DepthMap:
        """See ImageDecoder."""
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

    family: ClassVar[str] = 'depth_anything_3'
    tasks_with_own_outputs: ClassVar[tuple[str, ...]] = (Depth.name,)
    needs_focal_length: ClassVar[bool] = True
    documented_outputs: ClassVar[str] = 'depth, sky (B, 1, rows, columns)'
    tensors: ClassVar[tuple[OutputTensor, ...]] = (
        _named_output('depth', 1, 'rows', 'columns'),
        _named_output('sky', 1, 'rows', 'columns'),
    )

    def map_layout(self) -> MapLayout:
        """See Decoder."""
        return MapLayout('depth', 'bilinear', second_output='sky')

    def depth_scaling(self, focal_length: float | None, sky: Sky) -> DepthScaling:
        """See Decoder."""
        if focal_length is not None:
            factor = focal_length / _FOCAL_LENGTH_OF_TRAINING
            return DepthScaling(True, False, factor, sky.threshold, sky.depth_m)
        depth = sky.depth_m if math.isnan(sky.depth_m) else _FARTHEST
        return DepthScaling(False, True, 1.0, sky.threshold, depth)

    def result(self, arrays: Sequence[OutputArray], image: ImageContext) -> DepthMap:
        """See ImageDecoder."""
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

    family: ClassVar[str] = 'moge'
    tasks_with_own_outputs: ClassVar[tuple[str, ...]] = (Depth.name,)
    unused_parameters: ClassVar[tuple[str, ...]] = PARAMETERS_OF_SKY
    needs_focal_length: ClassVar[bool] = True
    documented_outputs: ClassVar[str] = (
        'points (B, rows, columns, 3), mask (B, rows, columns), metric_scale (B)'
    )
    tensors: ClassVar[tuple[OutputTensor, ...]] = (
        _named_output('points', 'rows', 'columns', 3),
        _named_output('mask', 'rows', 'columns'),
        _named_output('metric_scale'),
    )

    def result(self, arrays: Sequence[OutputArray], image: ImageContext) -> DepthMap:
        """See ImageDecoder."""
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
        OutputError: the grid has no cells, or too many.
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


#: Depth Anything 3 was trained with images of this focal length in pixels.
_FOCAL_LENGTH_OF_TRAINING: Final = 300
#: Depth of the sky in a relative result, before it is inverted.
_FARTHEST: Final = 1e4
#: The shift is fitted to a grid of this many points on each side.
_FIT_SIDE: Final = 64
#: The fit ends if a step decreases the sum of squares by a smaller share.
_TOLERANCE: Final = 1e-3
_MAX_STEPS: Final = 30
#: The image processor of Depth Anything in transformers.
_DEPTH_ANYTHING: Final = {**IMAGENET, 'resize': 'stretch', 'filter': 'bicubic', 'antialias': True}
PRESETS: Final = (
    DecoderPreset(
        'depth_ultralytics',
        # The predictor resizes depth with align_corners.
        DepthDecoder(has_channel_axis=True, is_metric=True, upsampling='bilinear_aligned'),
        'depth models of Ultralytics',
        '(B, 1, rows, columns)',
        # The predictor stretches images of depth models, unlike images of detectors.
        preprocessing={**RGB_0_TO_1, 'resize': 'stretch'},
    ),
    DecoderPreset(
        'relative_depth',
        # As post_process_depth_estimation of transformers does.
        DepthDecoder(has_channel_axis=False, is_metric=False, upsampling='bicubic'),
        'Depth Anything V2, DPT',
        '(B, rows, columns)',
        preprocessing=_DEPTH_ANYTHING,
        transformers=('depth_anything', 'dpt'),
    ),
    DecoderPreset(
        'metric_depth',
        DepthDecoder(has_channel_axis=False, is_metric=True, upsampling='bicubic'),
        'metric models of Depth Anything V2',
        '(B, rows, columns)',
        preprocessing=_DEPTH_ANYTHING,
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
