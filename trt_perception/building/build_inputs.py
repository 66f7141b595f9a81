"""What an engine is built from: read and found before the first step that takes long."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trt_perception.building.calibration.images import ImageSet
from trt_perception.building.engine.release import TensorRt
from trt_perception.building.graph.onnx_model import OnnxSource
from trt_perception.building.options.build_options import BuildOptions

__all__ = ['BuildInputs']


@dataclass(frozen=True)
class BuildInputs:
    """What an engine is built from. The same inputs make the same engine.

    Attributes:
        options: what is wanted.
        source: the ONNX model.
        tensorrt: that builds.
        calibration: images to calibrate with, None where none are needed.
        validation: image files that --validate names; empty without it.
    """

    options: BuildOptions
    source: OnnxSource
    tensorrt: TensorRt
    calibration: ImageSet | None
    validation: tuple[Path, ...]
