"""What an engine is built from, each found and read once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trt_perception.building.engine.release import TensorRt
from trt_perception.building.graph.onnx_model import OnnxSource
from trt_perception.building.precision.calibration_images import ImageSet

__all__ = ['BuildInputs']


@dataclass(frozen=True)
class BuildInputs:
    """What the first steps found and the later ones use.

    Attributes:
        source: the ONNX model.
        tensorrt: that builds.
        calibration: images to calibrate with, None where none are needed.
        validation: image files that --validate names; empty without it.
    """

    source: OnnxSource
    tensorrt: TensorRt
    calibration: ImageSet | None
    validation: tuple[Path, ...]

    @property
    def in_both(self) -> int:
        """How many images serve calibration and validation both."""
        calibrated = (
            {path.resolve() for path in self.calibration.paths} if self.calibration else ()
        )
        return len({path.resolve() for path in self.validation}.intersection(calibrated))
