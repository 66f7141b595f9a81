"""What goes to the GPU in front of a frame's pixels, and which of its rows: once for all alike."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trt_perception.images.frame import Frame
from trt_perception.images.letterbox import Letterbox, RowGroups
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.parameters.frame import Thresholds
from trt_perception.stages.frame_header import FrameHeaderWriter

__all__ = ['HeaderTemplate', 'HeaderTemplates']

# Rows that nobody reads are left out from so many bytes on; a second copy costs some microseconds.
_MIN_SKIPPED_BYTES: Final = 512 * 1024
# So many kinds of frames are known at once: cameras differ in size, encoding and thresholds.
_MAX_TEMPLATES: Final = 256


class HeaderTemplate(NamedTuple):
    """What frames that are alike have in common.

    Attributes:
        letterbox: where they lie in the input.
        content: of their headers, but for where the pixels are.
        rows: to upload of them; None: all.
    """

    letterbox: Letterbox
    content: npt.NDArray[np.uint8]
    rows: RowGroups | None


class HeaderTemplates:
    """Headers of frames by what they say; those of one camera are all alike.

    Any thread may ask, several at once.

    Args:
        header: makes them.
        preprocessing: the model's.
    """

    def __init__(self, header: FrameHeaderWriter, preprocessing: Preprocessing) -> None:
        self._header = header
        self._preprocessing = preprocessing
        self._templates: dict[tuple[object, ...], HeaderTemplate] = {}
        self.size = header.size
        self.write = header.write

    def template(self, frame: Frame, thresholds: Thresholds) -> HeaderTemplate:
        """Return what a frame has in common with those that are alike."""
        name = frame.format.name
        key = frame.width, frame.height, frame.step, name, frame.big_endian, thresholds
        template = self._templates.get(key)
        if template is None:
            letterbox = Letterbox.fit(
                (frame.width, frame.height),
                self._preprocessing.input_size,
                self._preprocessing.resize,
            )
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            content = self._header.content(frame, letterbox, thresholds)
            template = HeaderTemplate(letterbox, content, self._rows_to_upload(frame, letterbox))
            self._templates[key] = template
        return template

    def _rows_to_upload(self, frame: Frame, letterbox: Letterbox) -> RowGroups | None:
        rows = letterbox.sampled_rows
        if rows is None or self._preprocessing.antialias or not frame.format.rows_are_independent:
            return None
        skipped_rows = frame.height - rows.rows * rows.count
        return rows if skipped_rows * frame.step >= _MIN_SKIPPED_BYTES else None
