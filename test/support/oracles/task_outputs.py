# SPDX-License-Identifier: Apache-2.0
"""Make dense outputs of every task, and decode them with kernels on a GPU or emulated kernels."""

import numpy as np

from trt_perception.errors import OutputError
from trt_perception.images.frame import Frame
from trt_perception.model.decoders.anchors import Dense
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.obb import Obb
from trt_perception.model.tasks.pose import KeypointSpec, Pose
from trt_perception.model.tasks.segment import Segment
from trt_perception.model.tensors import TensorSpec
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.cuda.results import KernelDecoder
from trt_perception.stages.decode import decode
from trt_perception.stages.frame_header import batch_table

#: Number of mask coefficients, and stride of the prototypes in pixels.
COEFFICIENTS, STRIDE = 32, 4
TASKS = {
    'detect': DETECT,
    'pose of 17': Pose(KeypointSpec(tuple(map(str, range(17))), 3)),
    'pose of 1': Pose(KeypointSpec(('tip',), 2)),
    'obb': Obb(),
    'segment': Segment(mask_coefficients=COEFFICIENTS),
}

WITH_MASKS = Thresholds(wanted_topics=frozenset(['masks']))


def spec_of(task, network_wh, classes, anchors, batch=1, dtype='float32', transposed=False):
    """Return the model specification of a task."""
    width, height = network_wh
    rows = 4 + classes + task.task_value_count
    shape = (batch, anchors, rows) if transposed else (batch, rows, anchors)
    outputs = [TensorSpec('output0', shape, dtype)]
    if task.has_masks:
        shape = batch, COEFFICIENTS, height // STRIDE, width // STRIDE
        outputs.append(TensorSpec('output1', shape, dtype))
    return ModelSpec(
        TensorSpec('images', (batch, 3, height, width), 'float32'),
        tuple(outputs),
        Preprocessing(network_wh),
        Dense(transposed=transposed),
        tuple(map(str, range(classes))),
        True,
        task=task,
    )


def random_outputs(rng, spec, passing, special=True):
    """Return outputs with ``passing`` anchors above the threshold, and some invalid boxes."""
    task, classes = spec.task, len(spec.class_names)
    transposed = spec.decoder.transposed
    batch, one, other = spec.outputs[0].shape
    anchors = one if transposed else other
    width, height = spec.preprocessing.input_size
    rows = np.empty((batch, 4 + classes + task.task_value_count, anchors), np.float32)
    for image in rows:
        image[0] = rng.uniform(-20, width + 20, anchors)
        image[1] = rng.uniform(-20, height + 20, anchors)
        image[2:4] = rng.uniform(2, width / 3, (2, anchors))
        image[4 : 4 + classes] = rng.uniform(0, 0.2, (classes, anchors))
        chosen = rng.choice(anchors, min(passing, anchors), replace=False)
        image[4 + rng.integers(0, classes, len(chosen)), chosen] = rng.uniform(
            0.26, 1, len(chosen)
        )
        if task.is_oriented:
            image[-1] = rng.uniform(-4, 4, anchors)
        elif task.task_value_count:
            image[4 + classes :] = rng.normal(0, 1, (task.task_value_count, anchors))
            if task.keypoint_names:
                image[4 + classes :] *= width
        if special and len(chosen) > 100:
            image[4, chosen[:20]] = 0.9  # ties
            image[2, chosen[20:25]] = 0
            image[3, chosen[25:30]] = -5
            image[0, chosen[30:35]] = np.nan
            image[1, chosen[35:40]] = np.inf
            if task.task_value_count:
                image[-1, chosen[40:45]] = np.nan
                image[4 + classes, chosen[45:50]] = -np.inf
    if transposed:
        rows = np.ascontiguousarray(rows.transpose(0, 2, 1))
    outputs = [rows]
    if task.has_masks:
        outputs.append(rng.normal(0, 1, spec.outputs[1].shape).astype(np.float32))
    return [
        output.astype(tensor.dtype) for output, tensor in zip(outputs, spec.outputs, strict=True)
    ]


def headers_of(kernels, spec, sizes, thresholds):
    """Return the geometry of frames of these sizes, and their headers as uint8."""
    boxes, headers = [], []
    for size, own in zip(sizes, thresholds, strict=True):
        geometry = spec.preprocessing.letterbox(size)
        pixels = np.zeros(size[0] * size[1], np.uint8)
        frame = Frame.view(pixels, width=size[0], height=size[1], step=size[0], encoding='mono8')
        head = np.zeros(kernels.header.size, np.uint8)
        kernels.header.write(head, kernels.header.content(frame, geometry, own), 0)
        boxes.append(geometry)
        headers.append(head)
    return boxes, headers


def batch_of(addresses, most):
    """Return the description of a batch for the kernels, with room for ``most`` frames."""
    content = batch_table([*addresses, *[0] * (most - len(addresses))])
    content[:8] = batch_table(addresses)[:8]
    return content


def decode_on_host(outputs, spec, geometries, thresholds, parameters=None):
    """Return the detections of the first frames of a batch, decoded on the host."""
    parameters = parameters or ParameterValues()
    return decode(
        outputs,
        spec,
        geometries,
        thresholds,
        DecodingLimits(parameters.max_detections, class_agnostic=parameters.class_agnostic_nms),
    )


def assert_same(found, expected, within=1e-3):
    """Assert that detections of kernels and host are equal, except for masks."""
    assert len(found) == len(expected)
    assert found.left_out == expected.left_out
    np.testing.assert_array_equal(found.class_ids, expected.class_ids)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-6, rtol=0)
    for name in ('xyxy', 'keypoints', 'oriented'):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(one, other, atol=within, rtol=0)


def decode_with_kernels(
    kernels, machine, spec, outputs, sizes, thresholds, images=None, times=2, wanted=WITH_MASKS
):
    """Return the detections of frames of these sizes, decoded by kernels in the last repetition.

    Args:
        kernels: FrameKernels of the spec.
        machine: a context manager with ``put``, which copies an array into memory of the kernels
            and returns its address, ``stream`` and ``synchronize``.
        spec: the model's specification.
        outputs: outputs of the network for the whole batch.
        sizes: sizes of the frames, which may be fewer than the batch.
        thresholds: thresholds of each frame.
        images: a ImagePool. With it, the kernels also number the masks of each frame.
        wanted: thresholds with the topics that make the kernels number masks.
        times: repetitions, because old contents of the scratch memory must not matter.
    """
    geometries, headers = headers_of(kernels, spec, sizes, thresholds)
    with machine as at:
        table = at.put(batch_of([at.put(head) for head in headers], spec.batch))
        addresses = {
            tensor.name: at.put(output)
            for tensor, output in zip(spec.outputs, outputs, strict=True)
        }
        result = KernelDecoder(kernels, spec, at.stream, images)
        for _ in range(times):
            result.queue(table, addresses, spec, at.stream)
            if images is not None:
                for place, geometry in enumerate(geometries):
                    result.queue_images(addresses, place, geometry, wanted)
            at.synchronize()
            found = result.read_results(spec, geometries, thresholds)
        result.close()
    return found, geometries


def check_invalid_outputs(kernels, machine, spec, parameters):
    """Check that kernels and host find the same errors in a batch of four images.

    The images have a score above 1, only NaN, one score that is not NaN, and valid outputs.

    Args:
        kernels: FrameKernels of the spec.
        machine: as in `decode_with_kernels`.
        spec: a model with one output and a batch of 4.
        parameters: the limits of the kernels.
    """
    (outputs,) = random_outputs(np.random.default_rng(1), spec, 30, special=False)
    outputs[0, 4, 7] = 1.3
    outputs[0, :4, 7] = -500, -500, 4, 4  # outside the image
    outputs[1, 6] = np.nan  # one class of all anchors
    outputs[2, 6, 1:] = np.nan
    sizes, thresholds = [(333, 277)] * 4, [Thresholds()] * 4

    found, geometries = decode_with_kernels(kernels, machine, spec, [outputs], sizes, thresholds)

    expected = decode_on_host([outputs], spec, geometries, thresholds, parameters)
    for of_both in zip(found[:2], expected[:2], strict=True):
        assert [type(error) for error in of_both] == [OutputError, OutputError]
        assert len(set(map(str, of_both))) == 1
    assert len(expected[3]) > 5
    for by_kernels, on_host in zip(found[2:], expected[2:], strict=True):
        assert_same(by_kernels, on_host)
