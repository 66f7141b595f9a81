# SPDX-License-Identifier: Apache-2.0
"""Headers of frames for the GPU, computed once for all frames with the same layout."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trt_perception.images.frame import Frame
from trt_perception.images.letterbox import Letterbox, NeededRows
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.thresholds import Thresholds
from trt_perception.stages.frame_header import FrameHeaderWriter

# Do not upload rows that the letterbox does not read, if they have at least this size together.
# Skipping rows needs a second copy, which costs a few microseconds.
_MIN_SKIPPED_BYTES: Final = 512 * 1024
# Clear all templates when this number exists. Frames with another size, encoding or thresholds
# need another template.
_MAX_TEMPLATES: Final = 256


class HeaderTemplate(NamedTuple):
    """The common values of frames with the same layout and thresholds.

    Attributes:
        content: bytes of the header, except the position of the pixels.
        rows: rows to upload; None uploads all rows.
    """

    letterbox: Letterbox
    content: npt.NDArray[np.uint8]
    rows: NeededRows | None


class HeaderTemplates:
    """Keeps a header template for each layout and thresholds. A camera usually needs one template.

    Several threads may use this object at the same time.

    Attributes:
        size: size of a header in bytes.
        write: function that writes a header with the position of the pixels.
    """

    def __init__(self, header: FrameHeaderWriter, preprocessing: Preprocessing) -> None:
        self._header = header
        self._preprocessing = preprocessing
        self._templates: dict[tuple[object, ...], HeaderTemplate] = {}
        self.size = header.size
        self.write = header.write

    def template(self, frame: Frame, thresholds: Thresholds) -> HeaderTemplate:
        """Return the template for a frame and its thresholds."""
        name = frame.format.name
        key = frame.width, frame.height, frame.step, name, frame.big_endian, thresholds
        template = self._templates.get(key)
        if template is None:
            letterbox = self._preprocessing.letterbox((frame.width, frame.height))
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            content = self._header.content(frame, letterbox, thresholds)
            template = HeaderTemplate(letterbox, content, self._rows_to_upload(frame, letterbox))
            self._templates[key] = template
        return template

    def _rows_to_upload(self, frame: Frame, letterbox: Letterbox) -> NeededRows | None:
        rows = letterbox.needed_rows
        samples_bilinearly = (self._preprocessing.filter, self._preprocessing.antialias) == (
            'bilinear',
            False,
        )
        if rows is None or not samples_bilinearly or not frame.format.rows_are_independent:
            return None
        skipped_rows = frame.height - rows.rows_per_group * rows.group_count
        return rows if skipped_rows * frame.step >= _MIN_SKIPPED_BYTES else None
