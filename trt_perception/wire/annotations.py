# SPDX-License-Identifier: Apache-2.0
"""Serialises the results of objects as drawings: foxglove_msgs/ImageAnnotations.

With rclpy's messages, a box takes 70 µs, so a viewer of 300 boxes would slow down the detector.
Writing the bytes takes a few µs. The bytes equal rclpy's serialisation, except that padding is
zero here and undefined in rclpy.

Coordinates are pixels of the image. In these messages as in Detections, the origin is the upper
left corner of the first pixel. Format: see `wire.serialize`.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from trt_perception.images.detections import Detections, oriented_corners
from trt_perception.images.drawing import (
    MIN_KEYPOINT_SCORE,
    line_width,
    object_colors,
    object_label,
)
from trt_perception.images.outlines import mask_outlines
from trt_perception.wire.serialize import CDR_ENCAPSULATION, cdr_string, pad_cdr

#: Values of PointsAnnotation.type: a closed line, and pairs of points.
LINE_LOOP: Final = 2
LINE_LIST: Final = 4
# Height of a label's text in pixels, for lines of one pixel, as in the debug image.
_FONT_SIZE: Final = 14.0
_STAMP: Final = struct.Struct('<iI')
_COUNT: Final = struct.Struct('<I')
_EMPTY: Final = _COUNT.pack(0)
_KIND_AND_COUNT: Final = struct.Struct('<B3xI')
_DOUBLE: Final = struct.Struct('<d')
_POSITION: Final = struct.Struct('<2d')
_COLOR: Final = struct.Struct('<4d')
_BLACK: Final = _COLOR.pack(0, 0, 0, 1)
_WHITE: Final = _COLOR.pack(1, 1, 1, 1)
_NO_COLOR: Final = _COLOR.pack(0, 0, 0, 0)
# No outline_colors, and no fill_color.
_NO_FURTHER_COLORS: Final = pad_cdr(_EMPTY, 8) + _NO_COLOR


class Stamp(Protocol):
    """A builtin_interfaces/Time, or a StampFields."""

    @property
    def sec(self) -> int:
        """Return the seconds."""

    @property
    def nanosec(self) -> int:
        """Return the nanoseconds of the second."""


class AnnotationsSerializer:
    """Serialises drawings of the objects of an image, in the debug image's colours.

    The i-th text and the i-th points describe the i-th object: its label, and the corners of its
    box, with ``class``, ``score`` and ``id`` as metadata. The outlines of masks and the lines of
    skeletons follow the boxes. Keypoints are circles.

    Args:
        class_names: names by class id.
        skeleton: pairs of keypoint indices to connect by lines.
        has_metadata: whether the messages have metadata and a stamp of the whole. Releases of
            foxglove_msgs before 3.2.5 have only stamps of the single drawings.
    """

    def __init__(
        self,
        class_names: Sequence[str],
        skeleton: Sequence[tuple[int, int]] = (),
        *,
        has_metadata: bool = True,
    ) -> None:
        self._class_names = class_names
        self._skeleton = skeleton
        self._has_metadata = has_metadata
        self._no_metadata = _EMPTY if has_metadata else b''
        # The start of an object's metadata, by class id, once an object of the class was found.
        self._class_metadata: dict[int, bytes] = {}

    def __call__(self, stamp: Stamp, size_wh: tuple[int, int], found: Detections) -> bytearray:
        """Serialise the drawings of an image.

        Args:
            stamp: stamp of the image; each drawing has it.
            size_wh: width and height of the image in pixels.
            found: the objects, in pixels of the image.
        """
        width = line_width(size_wh)
        drawings = _Drawings(
            _STAMP.pack(stamp.sec, stamp.nanosec), float(width), self._no_metadata
        )
        colors = [_color(bgr) for bgr in object_colors(found)]
        outlines = _outlines(found, size_wh)
        skeletons, rings = self._skeletons(found)
        if self._has_metadata:
            drawings.message += drawings.stamp
        drawings.message += _COUNT.pack(sum(map(len, rings)))
        for centers, color in zip(rings, colors, strict=False):
            for center in centers:
                drawings.add_circle(center, color)
        lines: list[tuple[int, npt.NDArray[np.floating], bytes]] = []
        for own_outlines, color in zip(outlines, colors, strict=False):
            lines += [(LINE_LOOP, outline, color) for outline in own_outlines]
        for ends, color in zip(skeletons, colors, strict=False):
            lines += [(LINE_LIST, ends, color)] if len(ends) else []
        drawings.message += _COUNT.pack(len(found) + len(lines))
        metadata = self._metadata(found)
        for corners, color, pairs in zip(_box_corners(found), colors, metadata, strict=True):
            drawings.add_lines(LINE_LOOP, corners, color, pairs)
        for kind, places, color in lines:
            drawings.add_lines(kind, places, color)
        drawings.message += _COUNT.pack(len(found))
        font_size = _FONT_SIZE * width
        for (left, top), label, color in zip(
            found.xyxy[:, :2].tolist(), self._labels(found), colors, strict=True
        ):
            # Above the box, or inside it at the upper border of the image.
            inside = top if top >= font_size else top + font_size
            drawings.add_text(label, (left, inside), font_size, color)
        drawings.message += self._no_metadata
        return drawings.message

    def _labels(self, found: Detections) -> list[str]:
        rows = zip(found.class_ids.tolist(), found.scores.tolist(), _ids(found), strict=True)
        return [object_label(self._class_names[class_id], *values) for class_id, *values in rows]

    def _metadata(self, found: Detections) -> list[bytes]:
        """Return the metadata of each box: class, score and id."""
        if not self._has_metadata:
            return [b''] * len(found)
        for class_id in set(found.class_ids.tolist()) - self._class_metadata.keys():
            name = self._class_names[class_id]
            self._class_metadata[class_id] = _COUNT.pack(3) + _aligned_strings(
                'class', name, 'score'
            )
        # The text of a float32 is the shortest decimal number that is this float32.
        rows = zip(found.class_ids.tolist(), found.scores, _ids(found), strict=True)
        return [
            self._class_metadata[class_id]
            + _aligned_strings(str(score), 'id', str(id_) if id_ > 0 else '')
            for class_id, score, id_ in rows
        ]

    def _skeletons(
        self, found: Detections
    ) -> tuple[list[npt.NDArray[np.float32]], list[list[list[float]]]]:
        """Return the ends of the lines, and the centres of the visible keypoints, by object."""
        lines, centers = [], []
        for points in () if found.keypoints is None else found.keypoints:
            is_seen = points[:, 2] >= MIN_KEYPOINT_SCORE
            ends = [end for line in self._skeleton if is_seen[list(line)].all() for end in line]
            lines.append(points[ends, :2])
            centers.append(points[is_seen, :2].tolist())
        return lines, centers


class _Drawings:
    """Appends drawings to a serialised message.

    Args:
        stamp: serialised stamp of the drawings.
        width: width of lines in pixels.
        no_metadata: what a drawing without metadata ends with.
    """

    def __init__(self, stamp: bytes, width: float, no_metadata: bytes) -> None:
        self.message = bytearray(CDR_ENCAPSULATION)
        self.stamp = stamp
        self._width = _DOUBLE.pack(width)
        self._ring = struct.pack('<2d', 4 * width, 2 * width) + _WHITE
        self._no_metadata = no_metadata

    def add_lines(
        self,
        kind: int,
        points: npt.NDArray[np.floating],
        color: bytes,
        metadata: bytes | None = None,
    ) -> None:
        """Add a PointsAnnotation. `points` are x and y, (n, 2)."""
        start = self.stamp + _KIND_AND_COUNT.pack(kind, len(points))
        self.message += b''.join(
            (
                start,
                self._padding(len(start)),
                points.astype('<f8').tobytes(),
                color,
                _NO_FURTHER_COLORS,
                self._width,
                self._no_metadata if metadata is None else metadata,
            )
        )

    def add_circle(self, center: Sequence[float], color: bytes) -> None:
        """Add a CircleAnnotation: a white dot in a ring."""
        self.message += b''.join(
            (
                self.stamp,
                self._padding(len(self.stamp)),
                _POSITION.pack(*center),
                self._ring,
                color,
                self._no_metadata,
            )
        )

    def add_text(
        self, text: str, place: tuple[float, float], font_size: float, color: bytes
    ) -> None:
        """Add a TextAnnotation with its lower left corner at `place`, in black on a colour."""
        self.message += b''.join(
            (
                self.stamp,
                self._padding(len(self.stamp)),
                _POSITION.pack(*place),
                pad_cdr(cdr_string(text), 8),
                _DOUBLE.pack(font_size),
                _BLACK,
                color,
                self._no_metadata,
            )
        )

    def _padding(self, added: int) -> bytes:
        """Return the bytes to the next multiple of 8 behind the message and `added` bytes."""
        return bytes((len(CDR_ENCAPSULATION) - len(self.message) - added) % 8)


def _ids(found: Detections) -> list[int]:
    return [-1] * len(found) if found.ids is None else found.ids.tolist()


def _box_corners(found: Detections) -> npt.NDArray[np.float32]:
    """Return the corners of each box, in order around it: float32 (n, 4, 2)."""
    if found.oriented is not None:
        return oriented_corners(found.oriented)
    return found.xyxy[:, [[0, 1], [2, 1], [2, 3], [0, 3]]]


def _outlines(found: Detections, size_wh: tuple[int, int]) -> list[list[npt.NDArray[np.float64]]]:
    masks = found.pictured
    return [] if masks is None else mask_outlines(masks, found.xyxy, size_wh)


def _aligned_strings(*texts: str) -> bytes:
    """Return serialised strings. The next value starts at a multiple of 4."""
    return b''.join(pad_cdr(cdr_string(text), 4) for text in texts)


@functools.lru_cache(maxsize=256)
def _color(bgr: tuple[int, int, int]) -> bytes:
    """Return a serialised foxglove_msgs/Color."""
    blue, green, red = (value / 255 for value in bgr)
    return _COLOR.pack(red, green, blue, 1)
