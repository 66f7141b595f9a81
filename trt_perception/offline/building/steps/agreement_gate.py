# SPDX-License-Identifier: Apache-2.0
"""Check after every build that the built model has the results of the original.

The measure is ``evaluation.metrics.agreement``: F1 of the detections at the node's default
thresholds. Detections of a class are matched at IoU 0.5 (boxes, masks, oriented boxes) or OKS 0.5
(keypoints). For tasks that describe the whole image, the measure is the mean agreement of
``evaluation.image_tasks.agreement``. Labels are not needed, so calibration images are enough.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from trt_perception.errors import EngineError
from trt_perception.files.plain_text import escape_controls
from trt_perception.images.detections import Detections
from trt_perception.model.build_record import QUANTISED_PRECISIONS, AgreementRecord
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.building.options.build_options import BuildOptions
from trt_perception.offline.building.report import StepProgress
from trt_perception.offline.evaluation.image_tasks.agreement import (
    AGREEMENT_TITLES,
    ImageAgreement,
)
from trt_perception.offline.evaluation.image_tasks.compare import compare_image_models
from trt_perception.offline.evaluation.image_tasks.labels import LabelledImage
from trt_perception.offline.evaluation.metrics.agreement import Agreement, compare_detections
from trt_perception.offline.evaluation.metrics.task_measures import measure_of
from trt_perception.offline.evaluation.offline_detection import detect_in_files
from trt_perception.pipelines.pipeline import Pipeline, split_into_batches

#: With fewer detections of the original, F1 is meaningless: one detection changes it by 2 %.
MIN_DETECTIONS: Final = 50
#: An F1 below this value adds a warning to report and manifest.
WARN_BELOW: Final = 0.95
#: An F1 below this value means that the built model is another model, so the build fails.
REFUSE_BELOW: Final = 0.5
# 500 detections determine F1 to 0.01. Fewer than 20 images would show only a few scenes.
_ENOUGH_DETECTIONS: Final = 500
_MIN_IMAGES: Final = 20
_MAX_IMAGES: Final = 300
_CHUNK_SIZE: Final = 10
# Tasks that describe the whole image are compared on at most this many images.
_MAX_IMAGES_OF_IMAGE_TASKS: Final = 100
_SEED: Final = 0
_MAX_WARNING_LENGTH: Final = 2000  # a library's error may be long; this limits the manifest


@dataclass(frozen=True, kw_only=True)
class AgreementResult(ABC):
    """The agreement of the built model with the original.

    Attributes:
        what: what agrees, for messages: "98.0 % of the detections agree with …".
        more_images: what would make the measurement reliable, for messages.
        images: number of compared images.
        given: number of images from which the compared images were chosen.
        files: the compared images if they are a selection; empty otherwise.
        images_of: purpose of the images, ``validation`` or ``calibration``.
        runtime: description of the runtime that ran the built model.
        original: description of the original.
    """

    what: ClassVar[str]
    more_images: ClassVar[str]
    agreement: Agreement | ImageAgreement
    images: int
    given: int
    files: Sequence[Path] = ()
    images_of: str
    runtime: str
    original: str

    @property
    @abstractmethod
    def share(self) -> float | None:
        """How much agrees, at most 1; None without detections."""

    @property
    def reference_detections(self) -> int:
        """Number of detections of the original; 0 for tasks that describe the whole image."""
        return 0

    @property
    @abstractmethod
    def missing(self) -> str:
        """What is missing to measure the agreement reliably; empty if nothing is."""

    @property
    @abstractmethod
    def details(self) -> str:
        """What the share refers to, for messages."""

    @property
    def summary(self) -> str:
        """The result in one line."""
        share = 'none' if self.share is None else f'{self.share:.1%}'
        return (
            f'{share} {self.what} with {self.original} ({self.details}), on {self.images} of '
            f'{self.given} {self.images_of} images, through {self.runtime}'
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the details that are only in the report, and not in the manifest's record."""
        return {
            'summary': self.summary,
            'images_given': self.given,
            'files': [str(path) for path in self.files],
            'details': self.agreement.as_dict(),
        }


@dataclass(frozen=True, kw_only=True)
class ObjectAgreementResult(AgreementResult):
    """The agreement of models that find objects: F1 of the detections."""

    what: ClassVar[str] = 'of the detections agree'
    more_images: ClassVar[str] = 'more images, or with images of more objects'
    agreement: Agreement

    @property
    def share(self) -> float | None:
        """F1 of all detections; None without detections."""
        return self.agreement.overall.f1

    @property
    def reference_detections(self) -> int:
        """Number of detections of the original."""
        return self.agreement.overall.reference

    @property
    def missing(self) -> str:
        """Detections of the original, if these are too few; empty if they are enough."""
        overall = self.agreement.overall
        if overall.reference >= MIN_DETECTIONS:
            return ''
        return (
            f'{self.original} finds {overall.reference} objects on {self.images} '
            f'{self.images_of} images and the built model finds {overall.candidate}, but at least '
            f'{MIN_DETECTIONS}'
        )

    @property
    def details(self) -> str:
        """Number of detections of both models."""
        overall = self.agreement.overall
        return f'which has {overall.reference} detections, the built model {overall.candidate}'


@dataclass(frozen=True, kw_only=True)
class ImageAgreementResult(AgreementResult):
    """The agreement of models that describe the whole image: its mean over the images.

    Attributes:
        task: name of the task.
    """

    what: ClassVar[str] = 'agreement'
    more_images: ClassVar[str] = 'more images'
    agreement: ImageAgreement
    task: str

    @property
    def share(self) -> float:
        """Mean agreement of the images."""
        return self.agreement.mean

    @property
    def missing(self) -> str:
        """Number of images, if these are too few; empty if they are enough."""
        if self.images >= _MIN_IMAGES:
            return ''
        return f'there are {self.images} {self.images_of} images, but at least {_MIN_IMAGES}'

    @property
    def details(self) -> str:
        """Meaning of the task's agreement."""
        return AGREEMENT_TITLES[self.task]


def compare_on_sample(
    reference: Pipeline,
    built: Pipeline,
    images: Sequence[Path],
    progress: StepProgress,
    original: str,
    runtime: str,
) -> AgreementResult:
    """Compare two models on a random sample of images that is the same in each build.

    The original runs until it has found 500 objects, on 20 to 300 images. Then the built model
    runs on the same images. Models that describe the whole image run on up to 100 images.

    Args:
        images: at least one calibration image.
        progress: called with the running model, and the finished and maximum number of images.
        original: description of the original.
        runtime: description of the runtime that runs the built model.

    Raises:
        ImageError: an image cannot be read.
    """
    if not reference.spec.task.finds_objects:
        return _compare_image_results(reference, built, images, progress, original, runtime)
    measure = measure_of(reference.spec.task)
    order = random.Random(_SEED).sample(list(images), min(len(images), _MAX_IMAGES))
    thresholds = Thresholds()
    found: list[Detections] = []
    for chunk in split_into_batches(order, _CHUNK_SIZE):
        run = detect_in_files(
            reference,
            [(path, None) for path in chunk],
            thresholds,
            lambda done, _: progress(f'running {original}', len(found) + done, len(order)),
            measure,
        )
        found.extend(run.detections)
        if len(found) >= _MIN_IMAGES and sum(map(len, found)) >= _ENOUGH_DETECTIONS:
            break
    used = order[: len(found)]
    run = detect_in_files(
        built,
        [(path, None) for path in used],
        thresholds,
        lambda done, total: progress('running the built model', done, total),
        measure,
    )
    names = reference.spec.class_names
    return ObjectAgreementResult(
        agreement=compare_detections(found, run.detections, names, measure),
        images=len(used),
        given=len(images),
        files=used,
        images_of='calibration',
        runtime=runtime,
        original=original,
    )


def _compare_image_results(
    reference: Pipeline,
    built: Pipeline,
    images: Sequence[Path],
    progress: StepProgress,
    original: str,
    runtime: str,
) -> AgreementResult:
    """Compare two models that describe the whole image on a random sample of images."""
    count = min(len(images), _MAX_IMAGES_OF_IMAGE_TASKS)
    used = random.Random(_SEED).sample(list(images), count)
    report = compare_image_models(
        {'original': reference, 'built': built},
        [LabelledImage(path) for path in used],
        {},
        lambda done, total: progress('running both models', done, total),
    )
    agreement = report.models[1].agreement
    assert agreement is not None  # both models have the same class names
    return ImageAgreementResult(
        agreement=agreement,
        task=reference.spec.task.name,
        images=count,
        given=len(images),
        files=used,
        images_of='calibration',
        runtime=runtime,
        original=original,
    )


def unmeasured_record(reason: str) -> AgreementRecord:
    """Return the record of a build without a comparison, with a warning that says why."""
    warning = f'the agreement with the original was not measured: {" ".join(reason.split())}'
    return AgreementRecord(None, 0, 0, 'none', '', escape_controls(warning, _MAX_WARNING_LENGTH))


def agreement_record(compared: AgreementResult, options: BuildOptions) -> AgreementRecord:
    """Return the record of a comparison, with a warning if agreement is low or uncertain.

    Args:
        options: options of the build. The precision decides the advice in the warning.
    """
    share = None if compared.missing else compared.share
    return AgreementRecord(
        share,
        compared.reference_detections,
        compared.images,
        compared.images_of,
        compared.runtime,
        _warning(compared, share, options),
    )


def _warning(compared: AgreementResult, share: float | None, options: BuildOptions) -> str:
    if share is None:
        return (
            f'the agreement with the original is uncertain: {compared.missing} are needed: give '
            f'--validate DIR with {compared.more_images}; labels are not needed'
        )
    if share >= WARN_BELOW:
        return ''
    return f'only {compared.summary}: {_advice(options)}'


def _advice(options: BuildOptions) -> str:
    """Return advice against a loss of accuracy."""
    found = 'measure the accuracy with --validate and --annotations'
    if options.precision in QUANTISED_PRECISIONS:
        found += (
            ', calibrate with more images of everything that the camera sees, try another '
            '--calibration-method, keep sensitive layers in float (--keep-float), or use '
            '--precision fp16'
        )
    elif options.precision in ('fp16', 'bf16'):
        found += ', keep sensitive layers in FP32 (--keep-fp32), or use --precision tf32 or fp32'
    return found


def check_agreement(
    record: AgreementRecord, compared: AgreementResult, options: BuildOptions
) -> None:
    """Fail if the agreement is below 0.5, unless --accept-disagreement is given.

    Raises:
        EngineError: the agreement is below 0.5.
    """
    if record.f1 is None or record.f1 >= REFUSE_BELOW or options.accept_disagreement:
        return
    raise EngineError(
        'the engine',
        f'only {compared.summary}: below {REFUSE_BELOW:.0%} it is another model, and '
        'no engine was written',
        fix=f'{_advice(options)}; --accept-disagreement writes the engine nevertheless',
    )
