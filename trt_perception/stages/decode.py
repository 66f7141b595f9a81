"""From a model's outputs to detections, whatever its family: the one way in for pipelines."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from trt_perception.images.letterbox import Letterbox
from trt_perception.model.decoder import ImageContext, ObjectDecoder, OutputArray
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.tasks.task import TaskResult
from trt_perception.parameters.frame import Thresholds
from trt_perception.stages.selection import passing_indices, select_detections

__all__ = ['bfloat16_to_float32', 'count_candidates', 'decode']


# A network may say anything; what is no box leaves in a step of its own, not with a warning.
@np.errstate(over='ignore', under='ignore', divide='ignore', invalid='ignore')
def decode(
    outputs: Sequence[OutputArray],
    spec: ModelSpec,
    letterboxes: Sequence[Letterbox],
    thresholds: Sequence[Thresholds],
    limits: DecodingLimits,
) -> list[TaskResult]:
    """Return what the outputs of a batch say of each image.

    Args:
        outputs: arrays in the order of ``spec.outputs``, with their final shapes; if the
            decoder's outputs have no axis for a batch, those of each image in turn. float16 is
            converted here.
        spec: the model's.
        letterboxes: geometry of each image of the batch, in its order.
        thresholds: confidence, IoU and class filter of each image.
        limits: how many boxes go on, and which suppress each other.

    Raises:
        EngineError: the outputs are not what the decoder reads, final boxes are in another unit
            than it expects, or a class has no name.
    """
    images = _images(outputs, spec, thresholds)
    return [
        spec.decoder.decode(
            arrays,
            image,
            functools.partial(
                select_detections, spec=spec, letterbox=letterbox, thresholds=own, limits=limits
            ),
        )
        for (arrays, image), letterbox, own in zip(images, letterboxes, thresholds, strict=True)
    ]


@np.errstate(over='ignore', under='ignore', divide='ignore', invalid='ignore')
def count_candidates(
    outputs: Sequence[OutputArray], spec: ModelSpec, thresholds: Thresholds
) -> int:
    """Return how many boxes of one image are above the threshold and of a class asked for."""
    if not isinstance(spec.decoder, ObjectDecoder):
        return 0
    ((arrays, image),) = _images(outputs, spec, [thresholds])
    found = spec.decoder.candidates(arrays, image)
    return len(passing_indices(found.scores, found.class_ids, thresholds))


def _images(
    outputs: Sequence[OutputArray], spec: ModelSpec, thresholds: Sequence[Thresholds]
) -> Iterator[tuple[list[OutputArray], ImageContext]]:
    """Yield the arrays that the decoder reads, and what it may need to know, for each image."""
    wanted = spec.decoder_outputs
    is_per_image = all('B' not in output.shape for output, _ in wanted)
    for index, own in enumerate(thresholds):
        first = index * len(spec.outputs) if is_per_image else 0
        arrays = [
            _plain(
                outputs[first + place][index] if 'B' in output.shape else outputs[first + place]
            )
            for output, place in wanted
        ]
        yield (
            arrays,
            ImageContext(
                index,
                spec.preprocessing.input_size,
                spec.task,
                functools.partial(passing_indices, thresholds=own),
            ),
        )


def bfloat16_to_float32(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Return the values of bfloat16 numbers, which are the upper halves of float32 ones."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _plain(array: OutputArray) -> OutputArray:
    """Return every float as float32."""
    return array.astype(np.float32) if array.dtype == np.float16 else array
