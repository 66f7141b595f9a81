# SPDX-License-Identifier: Apache-2.0
"""The results of objects as drawings: messages of foxglove_msgs, an optional package.

Coordinates are pixels of the image. In these messages as in Detections, the origin is the upper
left corner of the first pixel.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from std_msgs.msg import Header

from trt_perception.images.detections import Detections, oriented_corners
from trt_perception.images.drawing import (
    MIN_KEYPOINT_SCORE,
    line_width,
    object_colors,
    object_label,
)
from trt_perception.images.outlines import mask_outlines
from trt_perception.ros.camera.messages import header_message
from trt_perception.ros.runtime.optional_messages import is_usable
from trt_perception.wire.cdr import HeaderFields

try:
    from foxglove_msgs.msg import (
        CircleAnnotation,
        Color,
        ImageAnnotations,
        KeyValuePair,
        Point2,
        PointsAnnotation,
        TextAnnotation,
    )
except Exception:  # an optional package: doctor says why it cannot be imported
    ImageAnnotations = None

__all__ = ['ImageAnnotations', 'annotations_message', 'can_publish_annotations']

# Height of a label's text in pixels, for lines of one pixel, as in the debug image.
_FONT_SIZE: Final = 14.0


def can_publish_annotations() -> bool:
    """Return whether foxglove_msgs is installed, and works with this Python and ROS 2."""
    return is_usable(ImageAnnotations)


def annotations_message(
    header: Header | HeaderFields,
    size_wh: tuple[int, int],
    found: Detections,
    class_names: Sequence[str],
    skeleton: Sequence[tuple[int, int]] = (),
) -> Any:
    """Return drawings of objects as foxglove_msgs/ImageAnnotations, in the debug image's colours.

    The i-th text and the i-th points describe the i-th object: its label, and the corners of its
    box, with ``class``, ``score`` and ``id`` as metadata. The outlines of masks and the lines of
    skeletons follow the boxes. Keypoints are circles. Releases of foxglove_msgs before 3.2.5 have
    no metadata, and only the single drawings have a stamp.

    Args:
        header: header of the image; the message has its stamp.
        size_wh: width and height of the image in pixels.
        found: the objects, in pixels of the image.
        class_names: names by class id.
        skeleton: pairs of keypoint indices to connect by lines.
    """
    stamp = header_message(header).stamp
    width = line_width(size_wh)
    colors = [_color_message(color) for color in object_colors(found)]
    lines = functools.partial(_message, PointsAnnotation, timestamp=stamp, thickness=float(width))
    boxes, texts = [], []
    ids = [-1] * len(found) if found.ids is None else found.ids.tolist()
    rows = zip(_box_corners(found), found.scores, found.class_ids.tolist(), ids, strict=True)
    for (corners, score, class_id, id_), xyxy, color in zip(
        rows, found.xyxy.tolist(), colors, strict=True
    ):
        name = class_names[class_id]
        # The shortest decimal number that is this float32.
        values = {'class': name, 'score': str(score), 'id': str(id_) if id_ > 0 else ''}
        boxes.append(
            lines(
                type=PointsAnnotation.LINE_LOOP,
                points=_points(corners),
                outline_color=color,
                metadata=[KeyValuePair(key=key, value=text) for key, text in values.items()],
            )
        )
        font_size = _FONT_SIZE * width
        # Above the box, or inside it at the upper border of the image.
        left, top = xyxy[0], xyxy[1] if xyxy[1] >= font_size else xyxy[1] + font_size
        texts.append(
            TextAnnotation(
                timestamp=stamp,
                position=Point2(x=left, y=top),
                text=object_label(name, score, id_),
                font_size=font_size,
                text_color=Color(a=1.0),
                background_color=color,
            )
        )
    outlines = [
        lines(type=PointsAnnotation.LINE_LOOP, points=_points(line), outline_color=color)
        for outlines_of_mask, color in zip(_outlines(found, size_wh), colors, strict=False)
        for line in outlines_of_mask
    ]
    skeletons, circles = [], []
    for points, color in zip(
        () if found.keypoints is None else found.keypoints, colors, strict=False
    ):
        is_seen = points[:, 2] >= MIN_KEYPOINT_SCORE
        ends = [end for line in skeleton if is_seen[list(line)].all() for end in line]
        if ends:
            skeletons.append(
                lines(
                    type=PointsAnnotation.LINE_LIST,
                    points=_points(points[ends, :2]),
                    outline_color=color,
                )
            )
        # A white dot in a ring.
        circles += [
            CircleAnnotation(
                timestamp=stamp,
                position=position,
                diameter=4.0 * width,
                thickness=2.0 * width,
                fill_color=Color(r=1.0, g=1.0, b=1.0, a=1.0),
                outline_color=color,
            )
            for position in _points(points[is_seen, :2])
        ]
    return _message(
        ImageAnnotations,
        timestamp=stamp,
        circles=circles,
        points=boxes + outlines + skeletons,
        texts=texts,
    )


def _message(kind: Any, **values: Any) -> Any:
    """Return a message with the values of the fields that the installed release has."""
    names = _field_names(kind)
    return kind(**{name: value for name, value in values.items() if name in names})


@functools.cache
def _field_names(kind: Any) -> frozenset[str]:
    return frozenset(kind.get_fields_and_field_types())


def _box_corners(found: Detections) -> npt.NDArray[np.float32]:
    """Return the corners of each box, in order around it: float32 (n, 4, 2)."""
    if found.oriented is not None:
        return oriented_corners(found.oriented)
    return found.xyxy[:, [[0, 1], [2, 1], [2, 3], [0, 3]]]


def _outlines(found: Detections, size_wh: tuple[int, int]) -> list[list[npt.NDArray[np.float64]]]:
    masks = found.pictured
    return [] if masks is None else mask_outlines(masks, found.xyxy, size_wh)


def _points(places: npt.NDArray[np.floating]) -> list[Any]:
    """Return points from x and y in pixels, (n, 2)."""
    return [Point2(x=x, y=y) for x, y in places.tolist()]


def _color_message(bgr: tuple[int, int, int]) -> Any:
    blue, green, red = (value / 255 for value in bgr)
    return Color(r=red, g=green, b=blue, a=1.0)
