"""Is what was built as good as the original in FP32? Measured on detections, never on tensors."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from trt_perception.building.engine_manifest import described
from trt_perception.building.options.build_options import BuildOptions
from trt_perception.building.report import StepProgress
from trt_perception.config import DetectorConfig
from trt_perception.errors import ConfigError
from trt_perception.errors import EngineError
from trt_perception.evaluation.agreement import Agreement
from trt_perception.evaluation.compare import AccuracyReport
from trt_perception.evaluation.compare import compare_models
from trt_perception.evaluation.dataset import Dataset
from trt_perception.evaluation.run import open_for_evaluation
from trt_perception.model.build_record import AccuracyRecord
from trt_perception.model.model_file import ModelFile
from trt_perception.model.recognition.recognise import Recognised
from trt_perception.pipelines.pipeline import Pipeline
from trt_perception.stages.onnx_runtime import OnnxModel

__all__ = ['Accuracy', 'check_labels', 'measure_accuracy', 'onnx_file', 'opened']

_BUILT = 'built'


@dataclass(frozen=True)
class Accuracy:
    """How good what was built is.

    Attributes:
        record: for the manifest; None where neither model found anything and there are no labels.
        drop: what it lost against the original, as the gate counts.
        details: all figures, for the report.
        original: what the original is, in words.
        agreement: of both models' detections at the node's thresholds.
        images: how many were looked at.
    """

    record: AccuracyRecord | None
    drop: float
    details: dict[str, Any]
    original: str
    agreement: Agreement
    images: int

    @property
    def summary(self) -> str:
        """One line."""
        record = self.record
        if record is None:
            return f'neither {self.original} nor what was built finds anything on these images'
        if record.measure == 'agreement':
            figures = f'{record.built:.1%} of the detections agree with {self.original}'
        else:
            figures = f'mAP50 {record.built:.4f}, {self.original} {record.reference:.4f}'
        return f'{figures}, on {record.images} images, through {record.runtime}'

    def as_dict(self) -> dict[str, Any]:
        """Return it as the report's section."""
        return {
            **(vars(self.record) if self.record else {}),
            'drop': self.drop,
            'summary': self.summary,
            'details': self.details,
        }


def check_labels(
    images: Sequence[Path], annotations: Path | None, class_names: Sequence[str]
) -> None:
    """Look whether images, labels and classes belong together, before anything takes long.

    Raises:
        ConfigError: they do not, or there are none.
    """
    if not images:
        return
    dataset = Dataset.of(images, annotations, allow_missing=True)
    try:
        dataset.class_map(class_names)
    except ConfigError as error:
        raise ConfigError(
            error.subject,
            error.found,
            expected=error.expected,
            fix='build_engine takes no mapping of classes: give --class-names as the annotations '
            'have them, or build without --annotations and measure with evaluate_engine',
        ) from error


def onnx_file(path: Path, model: onnx.ModelProto, recognised: Recognised) -> ModelFile:
    """Return a model in memory as a file with a manifest, weights within.

    Raises:
        EngineError: ONNX Runtime cannot load it.
    """
    content = model.SerializeToString()
    file = ModelFile(path, content, hashlib.sha256(content).hexdigest(), None)
    loaded = OnnxModel(file, 1)
    return described(file, recognised, loaded.inputs, loaded.outputs)


def measure_accuracy(
    options: BuildOptions,
    images: Sequence[Path],
    reference: ModelFile,
    built: ModelFile,
    runtime: str,
    progress: StepProgress,
    original: str = 'FP32',
) -> Accuracy:
    """Run the original and what was built over the images of --validate.

    Args:
        options: which labels.
        images: the files that --validate names.
        reference: the original in FP32.
        built: the engine, or the converted ONNX model where no GPU is.
        runtime: what runs ``built``, in words.
        progress: told step and images done.
        original: what ``reference`` is, in words.

    Raises:
        ConfigError: images and labels do not belong together, or there are none.
        EngineError: a model cannot be run here, or nothing is found and --max-accuracy-drop given.
        ImageError: an image cannot be read.
    """
    with opened(reference) as one, opened(built) as other:
        report = compare_models(
            one,
            {_BUILT: other},
            images,
            options.annotations,
            progress=lambda name, done, total: progress(f'running {name}', done, total),
            reference_name=original,
        )
    agreement = report.agreements[_BUILT]
    assert agreement is not None  # both have one model's class names
    record = _record(report, runtime)
    if record is None and options.max_accuracy_drop is not None:
        raise EngineError(
            '--max-accuracy-drop',
            f'neither {original} nor what was built finds anything on these '
            f'{report.images} images, so there is nothing to compare',
            fix='use images with objects of these classes',
        )
    return Accuracy(
        record,
        report.drop(_BUILT),
        report.as_dict(classes=False),
        original,
        agreement,
        report.images,
    )


def opened(model: ModelFile) -> contextlib.closing[Pipeline]:
    """Open a model to be compared; it is closed with the ``with`` statement.

    Raises:
        EngineError: it cannot be run here.
        CudaError: an engine, and no GPU to run it.
    """
    config = DetectorConfig(engine_path=str(model.path))
    return contextlib.closing(open_for_evaluation(model, config))


def _record(report: AccuracyReport, runtime: str) -> AccuracyRecord | None:
    first, second = (model.metrics for model in report.models)
    if first is None or second is None:
        agreement = report.agreements[_BUILT]
        share = agreement.overall.f1 if agreement else None
        if share is None:
            return None
        return AccuracyRecord(report.images, 'agreement', 1.0, share, runtime)
    before, after = first.figures['mAP50'], second.figures['mAP50']
    if before is None or after is None:
        raise EngineError(
            'the annotations',
            'hold no box on these images, so there is no mAP',
            fix='use annotations of these images',
        )
    return AccuracyRecord(report.images, 'mAP50', before, after, runtime)
