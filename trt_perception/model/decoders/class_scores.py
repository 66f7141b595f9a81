"""Decodes the scores of classes for the whole image: one output (B, C)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import numpy as np

from trt_perception.errors import OutputError
from trt_perception.files.json_records import choice_reader
from trt_perception.images.results.class_scores import ClassScores
from trt_perception.model.decoder import (
    DecoderPreset,
    ImageContext,
    ImageDecoder,
    OutputArray,
)
from trt_perception.model.output_tensor import OutputTensor, class_axis_size
from trt_perception.model.tasks.classify import Classify

__all__ = ['PRESETS', 'ClassScoresDecoder']


@dataclass(frozen=True)
class ClassScoresDecoder(ImageDecoder):
    """The decoder of one score per class for the whole image.

    Attributes:
        activation: ``none`` if the network outputs probabilities. For logits, ``softmax`` if an
            image has exactly one of the classes, ``sigmoid`` if it may have several or none.
    """

    family: ClassVar[str] = 'class_scores'
    tasks_with_own_outputs: ClassVar[tuple[str, ...]] = (Classify.name,)
    documented_outputs: ClassVar[str] = 'scores (B, C)'
    documented_scores: ClassVar[str] = 'probabilities, or logits with `softmax` or `sigmoid`'

    activation: Annotated[str, choice_reader('none', 'softmax', 'sigmoid')]

    def expected_outputs(self, classes: int | None) -> tuple[OutputTensor, ...]:
        """See ImageDecoder."""
        return (OutputTensor('scores', ('B', class_axis_size(classes))),)

    def has_constant_scores(self, class_count: int) -> bool:
        """See Decoder."""
        return self.activation == 'softmax' and class_count == 1

    def result(self, arrays: Sequence[OutputArray], image: ImageContext) -> ClassScores:
        """See ImageDecoder."""
        scores = arrays[0].astype(np.float32)  # a copy, because the output's memory is reused
        if not np.isfinite(scores.sum()):  # NaN and infinity remain in the sum
            raise OutputError("the model's output", 'scores that are not finite')
        if self.activation == 'softmax':
            scores -= scores.max()
            np.exp(scores, out=scores)
            scores /= scores.sum()
        elif self.activation == 'sigmoid':
            with np.errstate(over='ignore'):  # exp of a very low logit is infinite, its score 0
                scores = np.float32(1) / (np.float32(1) + np.exp(-scores))
        if not np.all((scores >= 0) & (scores <= 1.001)):
            raise OutputError(
                "the model's output",
                f'scores from {scores.min():.4g} to {scores.max():.4g}',
                expected='probabilities from 0 to 1',
                fix='set model.decoder to class_logits or class_sigmoid if the network outputs '
                'logits',
            )
        return ClassScores(scores)


PRESETS: Final = (
    DecoderPreset(
        'class_probabilities',
        ClassScoresDecoder('none'),
        'classifiers of Ultralytics',
        '(B, C)',
    ),
    DecoderPreset(
        'class_logits',
        ClassScoresDecoder('softmax'),
        'classifiers of torchvision and Hugging Face',
        '(B, C)',
    ),
    DecoderPreset(
        'class_sigmoid',
        ClassScoresDecoder('sigmoid'),
        'classifiers with several labels for each image, or with one class',
        '(B, C)',
    ),
)
