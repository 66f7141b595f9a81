# SPDX-License-Identifier: Apache-2.0
"""The camera matrix of the images that a calibration of ROS (sensor_msgs/CameraInfo) describes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from trt_perception.errors import DepthError

# Drivers write tiny coefficients for images that they rectify. At the corner of an image, a
# coefficient of this size moves a point by less than 0.1 % of its distance from the centre.
_MAX_ZERO: Final = 1e-3
# Limits of a camera, in pixels. Outside them, the size of an object in pixels, and so the memory
# for it, would have no limit.
_MIN_FOCAL: Final = 1.0
_LARGEST: Final = 1e6
# Pixels are square, or as much longer than wide as binning of one side makes them.
_MAX_FOCAL_RATIO: Final = 16.0


class Pinhole(NamedTuple):
    """A camera without distortion.

    Attributes:
        fx, fy: focal lengths in pixels.
        cx, cy: the principal point in pixels, from the centre of the first pixel.
        width, height: size of the image in pixels.
    """

    fx: float
    fy: float
    cx: float
    cy: float
    width: int
    height: int


@dataclass(frozen=True)
class Calibration:
    """The fields of a CameraInfo that the geometry needs.

    Attributes:
        size_wh: width and height of the image without binning and region of interest, in pixels.
        distortion: coefficients of the lens.
        matrix: K, 9 numbers.
        projection: P, 12 numbers.
        binning: columns and rows of a pixel; 0 means 1.
        region: x_offset, y_offset, width and height of the region of interest, in pixels without
            binning; width and height 0 mean the whole image.
    """

    size_wh: tuple[int, int]
    distortion: Sequence[float]
    matrix: Sequence[float]
    projection: Sequence[float]
    binning: tuple[int, int] = (0, 0)
    region: tuple[int, int, int, int] = (0, 0, 0, 0)

    def pinhole(self) -> Pinhole:
        """Return the camera of the rectified images, as image_geometry and depth_image_proc do.

        P holds for rectified images. Without P, K is used. Both are for the image without binning
        and region of interest.

        Raises:
            DepthError: the camera is not calibrated, or no camera has such numbers (reason
                ``bad_calibration``).
        """
        matrix = [self.projection[index] for index in (0, 5, 2, 6)]
        if not matrix[0]:
            matrix = [self.matrix[index] for index in (0, 4, 2, 5)]
        fx, fy, cx, cy = matrix
        (bin_x, bin_y), (left, top, columns, rows) = self.binning, self.region
        bin_x, bin_y = max(1, bin_x), max(1, bin_y)
        width, height = (columns or self.size_wh[0]) // bin_x, (rows or self.size_wh[1]) // bin_y
        camera = Pinhole(
            fx / bin_x, fy / bin_y, (cx - left) / bin_x, (cy - top) / bin_y, width, height
        )
        if not _is_possible(camera):
            raise DepthError(
                'bad_calibration',
                'camera_info',
                f'focal lengths {camera.fx:g} and {camera.fy:g}, '
                f'principal point {camera.cx:g}, {camera.cy:g}, '
                f'image of {width}x{height}',
                expected='the calibration of the camera',
                fix='calibrate the camera, or let its driver load the calibration',
            )
        return camera

    def find_distortion(self) -> DepthError | None:
        """Return the mistake that the lens distorts, so that images may not be rectified."""
        largest = max(map(abs, self.distortion), default=0.0)
        if largest <= _MAX_ZERO:
            return None
        return DepthError(
            'distortion',
            'camera_info',
            f'a lens with distortion (largest coefficient {largest:g})',
            expected='rectified images',
            fix='if the images are rectified, ignore this; otherwise boxes far from the centre of '
            'the image are at wrong places: detect on image_rect of image_proc, with depth images '
            'aligned to it',
        )


def _is_possible(camera: Pinhole) -> bool:
    """Return whether a camera may have these numbers. NaN makes each comparison false."""
    focal = sorted((camera.fx, camera.fy))
    return (
        min(camera.width, camera.height) > 0
        and all(_MIN_FOCAL <= length <= _LARGEST for length in focal)
        and all(abs(place) <= _LARGEST for place in (camera.cx, camera.cy))
        and focal[1] <= _MAX_FOCAL_RATIO * focal[0]
    )
