# SPDX-License-Identifier: Apache-2.0
"""Holds the inputs of a build. They are read before the first slow step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trt_perception.offline.building.calibration.images import ImageSet
from trt_perception.offline.building.engine.release import TensorRt
from trt_perception.offline.building.graph.onnx_model import OnnxSource
from trt_perception.offline.building.options.build_options import BuildOptions


@dataclass(frozen=True)
class BuildInputs:
    """The inputs of a build. The same inputs make the same engine.

    Attributes:
        calibration: selected images for calibration; None if the build does not calibrate.
        validation: image files that --validate names; empty without this option.
    """

    options: BuildOptions
    source: OnnxSource
    tensorrt: TensorRt
    calibration: ImageSet | None
    validation: tuple[Path, ...]
