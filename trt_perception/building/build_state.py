"""One build: what was asked for, and what its steps have found out, each once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from trt_perception.building.calibration.images import ImageSet
from trt_perception.building.engine.build import BuiltPlan
from trt_perception.building.engine.release import TensorRt
from trt_perception.building.engine.verify import Verified
from trt_perception.building.graph.onnx_model import OnnxSource
from trt_perception.building.graph.query_decoder import QueryDecoder
from trt_perception.building.options.build_options import BuildOptions
from trt_perception.building.precision.prepare_precision import ConvertedModel
from trt_perception.building.precision.quantise_check import is_quantised
from trt_perception.building.report import BuildReport, Step, StepProgress, reason
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.recognition.recognise import Recognised

__all__ = ['BuildState']


@dataclass
class BuildState:
    """What every step has. A step sets what it finds; the steps after it read it.

    Attributes:
        options: what is wanted.
        report: filled as the steps go.
        progress: called with what is done, how many parts of it, and of how many; 0 of 0 where a
            step begins.
        ended: called with each step when it has ended.
        source: the ONNX model.
        tensorrt: that builds.
        calibration: images to calibrate with, None where none are needed.
        validation: image files that --validate names; empty without it.
        shapes: final shape of each input by name, the image's first.
        other_shapes: those of the second profile, where there are several.
        recognised: how the model is fed and read.
        slimmed: the model without what does nothing.
        converted: the model in the precision that was asked for.
        queries: the model's decoder where it is one of queries, in a type of 16 bits; else None.
        plan: what TensorRT built.
        engine: the engine with its manifest, built or from the store.
        quantised: the model with Q/DQ nodes, with its manifest, where it is wanted.
        verified: what the loaded engine showed; None where it cannot be run here.
    """

    options: BuildOptions
    report: BuildReport
    progress: StepProgress
    ended: Callable[[Step], None]
    source: OnnxSource = field(init=False)
    tensorrt: TensorRt = field(init=False)
    calibration: ImageSet | None = field(init=False)
    validation: tuple[Path, ...] = field(init=False)
    shapes: dict[str, tuple[int, ...]] = field(init=False)
    other_shapes: dict[str, tuple[int, ...]] = field(init=False)
    recognised: Recognised = field(init=False)
    slimmed: onnx.ModelProto = field(init=False)
    converted: ConvertedModel = field(init=False)
    queries: QueryDecoder | None = field(init=False)
    plan: BuiltPlan = field(init=False)
    engine: ModelFile = field(init=False)
    quantised: ModelFile | None = field(init=False, default=None)
    verified: Verified | None = field(init=False)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """The shape of the image input that the engine is made fastest for."""
        return next(iter(self.shapes.values()))

    @property
    def original(self) -> str:
        """What the built model is compared with, in words."""
        narrow = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
        types = {tensor.data_type for tensor in self.source.model.graph.initializer}
        exact = not narrow & types and not is_quantised(self.source.model)
        return 'FP32' if exact else 'the ONNX file'

    @property
    def runtime(self) -> str:
        """What runs the built model here, in words."""
        if self.verified is None:
            return 'ONNX Runtime, not the engine'
        return f'{self.tensorrt.flavour} {self.tensorrt.version}'

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Time a step and keep how it ended; what it raises goes on."""
        step = Step(name)
        self.report.steps.append(step)
        self.progress(name, 0, 0)
        start = time.perf_counter()
        try:
            yield step
        except KeyboardInterrupt:
            step.status, step.outcome = 'interrupted', 'stopped on request'
            raise
        except BaseException as error:
            step.status, step.outcome = 'failed', reason(error)
            raise
        finally:
            step.seconds = time.perf_counter() - start
            self.ended(step)
