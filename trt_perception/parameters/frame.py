"""Parameters that decoding reads again for each frame, on the host and in the kernels."""

from __future__ import annotations

from dataclasses import dataclass

from trt_perception.parameters.row import parameter_field

__all__ = ['FrameParameters', 'Thresholds']


@dataclass(frozen=True)
class FrameParameters:
    """Numeric parameters that decoding reads for each frame. Each field is a row of the table.

    The kernels read each field as a float32 of the same name in `struct FrameHeader`.
    """

    confidence_threshold: float = parameter_field(
        0.25,
        'Only detections with a score above this are reported.',
        minimum=0.0,
        maximum=1.0,
        live=True,
        per_camera=True,
    )
    iou_threshold: float = parameter_field(
        0.45,
        'If the intersection over union (IoU) of two boxes of one class is above this, the box '
        'with the lower score is dropped.',
        minimum=0.0,
        maximum=1.0,
        live=True,
    )


@dataclass(frozen=True, kw_only=True)
class Thresholds(FrameParameters):
    """All values that may change from one frame to the next.

    Attributes:
        class_ids: indices of the classes to keep; empty keeps all classes.
        wanted_topics: names of the topics with a subscriber, if they are made on demand. Pipelines
            whose kernels draw masks or maps draw only these.
    """

    class_ids: tuple[int, ...] = ()
    wanted_topics: frozenset[str] = frozenset()
