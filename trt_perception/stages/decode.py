# SPDX-License-Identifier: Apache-2.0
"""Decode a model's outputs to detections on the host, with the decoder of the model."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from trt_perception.errors import OutputError
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.decoder import ImageContext, ObjectDecoder, OutputArray
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.tasks.task import TaskResult
from trt_perception.model.thresholds import Thresholds
from trt_perception.stages.selection import passing_indices, select_detections


# Networks may output infinity or NaN. A later step removes such boxes, so no warning is needed.
@np.errstate(over='ignore', under='ignore', divide='ignore', invalid='ignore')
def decode(
    outputs: Sequence[OutputArray],
    spec: ModelSpec,
    letterboxes: Sequence[Letterbox],
    thresholds: Sequence[Thresholds],
    limits: DecodingLimits,
) -> list[TaskResult | OutputError]:
    """Decode the outputs of a batch. Return the result of each image, or its error.

    Args:
        outputs: arrays in the order of ``spec.outputs``, with shapes for which
            ``spec.computed_shapes_error`` is None. If the decoder's outputs have no batch axis,
            the list has all outputs of the first image, then of the second, and so on. float16 is
            converted to float32.
        letterboxes: geometry of each image in the batch.
        thresholds: confidence, IoU and class filter of each image.

    Returns:
        The result of each image. It is an OutputError if a score is not a probability, a class has
        no name, the boxes have another unit than the decoder expects, or a map has no cells.
    """
    results: list[TaskResult | OutputError] = []
    images = _decoder_inputs_by_image(outputs, spec, letterboxes, thresholds)
    for (arrays, image), letterbox, image_thresholds in zip(
        images, letterboxes, thresholds, strict=True
    ):
        select = functools.partial(
            select_detections,
            spec=spec,
            letterbox=letterbox,
            thresholds=image_thresholds,
            limits=limits,
        )
        try:
            results.append(spec.decoder.decode(arrays, image, select))
        except OutputError as error:
            results.append(error)
    return results


@np.errstate(over='ignore', under='ignore', divide='ignore', invalid='ignore')
def count_candidates(
    outputs: Sequence[OutputArray], spec: ModelSpec, thresholds: Thresholds
) -> int:
    """Return how many boxes of a single image are above the threshold and in the class filter."""
    if not isinstance(spec.decoder, ObjectDecoder):
        return 0
    whole_input = Letterbox.fit(
        spec.preprocessing.input_size, spec.preprocessing.input_size, 'stretch'
    )
    ((arrays, image),) = _decoder_inputs_by_image(outputs, spec, [whole_input], [thresholds])
    found = spec.decoder.candidates(arrays, image)
    return len(passing_indices(found.scores, found.class_ids, thresholds))


def _decoder_inputs_by_image(
    outputs: Sequence[OutputArray],
    spec: ModelSpec,
    letterboxes: Sequence[Letterbox],
    thresholds: Sequence[Thresholds],
) -> Iterator[tuple[list[OutputArray], ImageContext]]:
    """Yield the decoder's arrays and the context of each image."""
    decoder_outputs = spec.decoder_outputs
    is_per_image = all('B' not in output.shape for output, _ in decoder_outputs)
    for index, (letterbox, image_thresholds) in enumerate(
        zip(letterboxes, thresholds, strict=True)
    ):
        first = index * len(spec.outputs) if is_per_image else 0
        arrays = [
            _as_float32(
                outputs[first + place][index] if 'B' in output.shape else outputs[first + place]
            )
            for output, place in decoder_outputs
        ]
        yield (
            arrays,
            ImageContext(
                index,
                spec.preprocessing.input_size,
                letterbox,
                len(spec.class_names),
                spec.task,
                functools.partial(passing_indices, thresholds=image_thresholds),
                image_thresholds.network_focal_length(letterbox),
                image_thresholds.sky,
            ),
        )


def bfloat16_to_float32(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Return bfloat16 values as float32. bfloat16 is the upper half of a float32.

    Args:
        bits: the bfloat16 values as uint16, in any shape.
    """
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _as_float32(array: OutputArray) -> OutputArray:
    """Convert float16 to float32. Return other arrays unchanged."""
    return array.astype(np.float32) if array.dtype == np.float16 else array
