# SPDX-License-Identifier: Apache-2.0
"""Decode one dense output in the same way as the pipelines."""

from trt_perception.errors import OutputError
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tensors import TensorSpec
from trt_perception.stages.decode import decode


def decode_dense(output, decoder, letterbox, thresholds, **limits):
    """Return the detections of an output (1, 4 + C, N), or of the decoder's own layout."""
    width, height = letterbox.network_wh
    classes = output.shape[2 if decoder.transposed else 1] - (5 if decoder.objectness else 4)
    spec = ModelSpec(
        TensorSpec('images', (1, 3, height, width), 'float32'),
        (TensorSpec('output', output.shape, str(output.dtype)),),
        Preprocessing((width, height)),
        decoder,
        tuple(f'class {number}' for number in range(classes)),
        has_manifest=True,
    )
    (found,) = results_without_errors(
        decode([output], spec, [letterbox], [thresholds], DecodingLimits(**limits))
    )
    return found


def results_without_errors(results):
    """Return the results of `decode`, or raise the error of the first image that has an error."""
    for result in results:
        if isinstance(result, OutputError):
            raise result
    return results
