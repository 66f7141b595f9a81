"""Does what was built still find what the original finds? Looked at after every build.

The measure is that of evaluation.agreement: F1 of the detections at the node's thresholds, paired
at IoU 0.5 within a class: of boxes, masks or oriented boxes, and of keypoints at OKS 0.5. It needs
no labels, so the images of a calibration serve too.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trt_perception.building.options.build_options import BuildOptions
from trt_perception.building.report import StepProgress
from trt_perception.errors import EngineError
from trt_perception.evaluation.metrics.agreement import Agreement, compare_detections
from trt_perception.evaluation.metrics.task_measures import measure_of
from trt_perception.evaluation.offline_detection import detect_in_files, split_into_batches
from trt_perception.files.plain_text import escape_controls
from trt_perception.images.detections import Detections
from trt_perception.model.build_record import QUANTISED, AgreementRecord
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines.pipeline import Pipeline

__all__ = [
    'AgreementResult',
    'agreement_record',
    'check_agreement',
    'compare_on_sample',
    'unmeasured_record',
]

#: Detections of the original below which F1 says nothing: one is 2 %.
MIN_DETECTIONS: Final = 50
#: F1 below which a warning stands in report and manifest.
WARN_BELOW: Final = 0.95
#: F1 below which what was built is another detector.
REFUSE_BELOW: Final = 0.5
# From so many detections on F1 is known to a hundredth; fewer images would be a few scenes.
_ENOUGH_DETECTIONS: Final = 500
_MIN_IMAGES: Final = 20
_MAX_IMAGES: Final = 300
_CHUNK_SIZE: Final = 10
_SEED: Final = 0
_MAX_WARNING_LENGTH: Final = 2000  # characters of a library's error in a manifest


@dataclass(frozen=True)
class AgreementResult:
    """What a comparison found.

    Attributes:
        agreement: of both models' detections.
        images: how many were looked at.
        given: of how many.
        files: which, where not all were.
        images_of: what they were given for, ``validation`` or ``calibration``.
        runtime: what ran that which was built, in words.
        original: what it is compared with, in words.
    """

    agreement: Agreement
    images: int
    given: int
    files: Sequence[Path]
    images_of: str
    runtime: str
    original: str

    @property
    def summary(self) -> str:
        """One line."""
        overall = self.agreement.overall
        share = 'none' if overall.f1 is None else f'{overall.f1:.1%}'
        return (
            f'{share} of the detections agree with {self.original} (which has '
            f'{overall.reference}, what was built has {overall.candidate}), on {self.images} of '
            f'{self.given} {self.images_of} images, through {self.runtime}'
        )

    def as_dict(self) -> dict[str, Any]:
        """Return what the report says in addition to the manifest's record."""
        return {
            'summary': self.summary,
            'images_given': self.given,
            'files': [str(path) for path in self.files],
            'details': self.agreement.as_dict(),
        }


def compare_on_sample(
    reference: Pipeline,
    built: Pipeline,
    images: Sequence[Path],
    progress: StepProgress,
    original: str,
) -> tuple[Agreement, list[Path]]:
    """Compare two models on some images, drawn by chance and always the same.

    The original runs until it has found 500 objects, on 20 images at least and 300 at most; then
    what was built runs on those.

    Args:
        reference: the original.
        built: has the same classes.
        images: at least one.
        progress: called with what runs, how many images are done, and of how many at most.
        original: what the reference is, in words.

    Returns:
        how far they agree, and the images.

    Raises:
        ImageError: an image cannot be read.
    """
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
        lambda done, total: progress('running what was built', done, total),
        measure,
    )
    return compare_detections(found, run.detections, reference.spec.class_names, measure), used


def unmeasured_record(reason: str) -> AgreementRecord:
    """Return the record of a build that nobody could compare."""
    warning = f'accuracy was not measured: {" ".join(reason.split())}'
    return AgreementRecord(None, 0, 0, 'none', '', escape_controls(warning, _MAX_WARNING_LENGTH))


def agreement_record(compared: AgreementResult, options: BuildOptions) -> AgreementRecord:
    """Return the record of a comparison, with a warning where it is not good.

    Args:
        compared: what it found.
        options: what was asked; its precision decides what the warning advises.
    """
    overall = compared.agreement.overall
    f1 = overall.f1 if overall.reference >= MIN_DETECTIONS else None
    return AgreementRecord(
        f1,
        overall.reference,
        compared.images,
        compared.images_of,
        compared.runtime,
        _warning(compared, f1, options),
    )


def _warning(compared: AgreementResult, f1: float | None, options: BuildOptions) -> str:
    overall = compared.agreement.overall
    if f1 is None:
        return (
            f'accuracy was not measured: {compared.original} finds {overall.reference} objects on '
            f'{compared.images} {compared.images_of} images and what was built '
            f'{overall.candidate}, and fewer than {MIN_DETECTIONS} say nothing: give --validate '
            'DIR with more images, or with images of more objects; labels are not needed'
        )
    if f1 >= WARN_BELOW:
        return ''
    return f'only {compared.summary}: {_advice(options)}'


def _advice(options: BuildOptions) -> str:
    """Return what can be done where too much accuracy is lost."""
    found = 'measure what it means with --validate and --annotations'
    if options.precision in QUANTISED:
        found += (
            ', calibrate with more images, of all that the camera sees, try another '
            '--calibration-method, keep sensitive layers in float (--keep-float), or use '
            '--precision fp16'
        )
    elif options.precision in ('fp16', 'bf16'):
        found += ', keep sensitive layers in FP32 (--keep-fp32), or use --precision tf32 or fp32'
    return found


def check_agreement(
    record: AgreementRecord, compared: AgreementResult, options: BuildOptions
) -> None:
    """Refuse what has become another detector, unless that is accepted.

    Raises:
        EngineError: F1 is below 0.5.
    """
    if record.f1 is None or record.f1 >= REFUSE_BELOW or options.accept_disagreement:
        return
    raise EngineError(
        'the engine',
        f'only {compared.summary}: below {REFUSE_BELOW:.0%} it is another detector, and '
        'no engine was written',
        fix=f'{_advice(options)}; --accept-disagreement writes it all the same',
    )
