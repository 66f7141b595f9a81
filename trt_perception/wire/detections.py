# SPDX-License-Identifier: Apache-2.0
"""Parses serialised Detection2DArray messages, and checks every length. Format: see `wire.cdr`."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trt_perception.boxes_3d.surface import ImageBox
from trt_perception.wire.cdr import CdrReader, HeaderFields
from trt_perception.wire.frames import check_frame_id

#: A detector of this package sends at most 1024 detections, each with one hypothesis.
MAX_DETECTIONS: Final = 4096
_MAX_HYPOTHESES: Final = 64
_POSE_AND_COVARIANCE: Final = 7 + 36


class FoundObject(NamedTuple):
    """An object in an image.

    Attributes:
        hypotheses: class id and score of each.
    """

    hypotheses: tuple[tuple[str, float], ...]
    box: ImageBox
    id: str


class FoundObjects(NamedTuple):
    """A Detection2DArray."""

    header: HeaderFields
    objects: tuple[FoundObject, ...]


def read_detections(message: npt.NDArray[np.uint8]) -> FoundObjects:
    """Parse a serialised vision_msgs/Detection2DArray.

    Raises:
        ImageError: the message cannot be parsed (reason ``bad_message`` or ``bad_frame_id``).
    """
    reader = CdrReader(message)
    header = reader.read_header()
    check_frame_id(header)
    return FoundObjects(
        header,
        tuple(
            _read_object(reader) for _ in range(reader.read_count('detections', MAX_DETECTIONS))
        ),
    )


def _read_object(reader: CdrReader) -> FoundObject:
    reader.read_header()
    hypotheses = []
    for _ in range(reader.read_count('hypotheses', _MAX_HYPOTHESES)):
        class_id = reader.read_text('class_id')
        score, *_ = reader.read_doubles(1 + _POSE_AND_COVARIANCE)
        hypotheses.append((class_id, score))
    x, y, theta, width, height = reader.read_doubles(5)
    box = ImageBox(x, y, width, height, theta)
    return FoundObject(tuple(hypotheses), box, reader.read_text('id'))
