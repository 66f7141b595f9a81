# SPDX-License-Identifier: Apache-2.0
"""Make outputs with a value for each cell, and make maps of them with kernels and on the host."""

from dataclasses import replace

import numpy as np

from support.oracles.reference_images import resized
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results.kernel_maps import KernelMaps
from trt_perception.model.decoders.whole_image import (
    ClassIdsDecoder,
    ClassLogitsDecoder,
    DepthAnything3Decoder,
    DepthDecoder,
    DepthProDecoder,
)
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tasks.depth import Depth
from trt_perception.model.tasks.semantic import Semantic
from trt_perception.model.tensors import TensorSpec
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.cuda.maps import MapDecoder
from trt_perception.stages.decode import decode

#: For each case: decoder, cells of the output as parts of the input's sides, and data type.
CASES = {
    'logits': (ClassLogitsDecoder(), 4, 'float32'),
    'half logits': (ClassLogitsDecoder(), 4, 'float16'),
    'ids of the input': (ClassIdsDecoder(), 1, 'int64'),
    'coarse ids': (ClassIdsDecoder(), 2, 'uint8'),
    'relative depth': (DepthDecoder(False, False, 'bicubic'), 2, 'float32'),
    'metric depth': (DepthDecoder(True, True, 'bilinear_aligned'), 4, 'float32'),
    'depth and field of view': (DepthProDecoder(), 1, 'float32'),
    'depth and sky': (DepthAnything3Decoder(), 1, 'float32'),
}
#: Topics of all maps.
ALL_TOPICS = Thresholds(
    wanted_topics=frozenset(
        ['segmentation/mask', 'segmentation/confidence', 'depth', 'relative_depth', 'debug_image']
    )
)


def map_spec(name, resize, network_wh, classes, batch):
    """Return the model specification of a case."""
    decoder, part, dtype = CASES[name]
    width, height = network_wh
    is_depth = 'depth' in name
    shape = (batch, height // part, width // part)
    if isinstance(decoder, ClassLogitsDecoder):
        shape = (batch, classes, *shape[1:])
    elif name in ('metric depth', 'depth and sky'):
        shape = (batch, 1, *shape[1:])
    outputs = [TensorSpec('output', shape, dtype)]
    if isinstance(decoder, DepthProDecoder):
        outputs.append(TensorSpec('angle', (batch,), dtype))
    elif isinstance(decoder, DepthAnything3Decoder):
        outputs = [TensorSpec('depth', shape, dtype), TensorSpec('sky', shape, dtype)]
    return ModelSpec(
        TensorSpec('images', (batch, 3, height, width), 'float32'),
        tuple(outputs),
        Preprocessing(network_wh, resize=resize),
        decoder,
        () if is_depth else tuple(map(str, range(classes))),
        True,
        task=Depth() if is_depth else Semantic(),
    )


def map_outputs(rng, spec):
    """Return outputs that change slowly between cells, with some unknown depths."""
    outputs = []
    for tensor in spec.outputs:
        if len(tensor.shape) == 1:
            values = rng.uniform(40, 90, tensor.shape)
        elif tensor.name == 'sky':
            values = rng.uniform(0, 0.1, tensor.shape)
            rows = tensor.shape[-2]
            values[..., : rows // 4, :] = 0.4
            values[..., rows // 4 : rows // 3, :] = 0.2
        elif 'int' in tensor.dtype:
            values = rng.integers(0, len(spec.class_names), tensor.shape)
        else:
            values = rng.normal(3, 2, tensor.shape)
            if spec.task.name == 'depth':
                values = np.abs(values) + 0.1
                rows, columns = values.shape[-2:]
                # Larger than the cells that a smaller map skips.
                values[..., rows // 2 :, columns // 2 :][..., :4, :4] = np.inf
                values[..., rows // 3 :, columns // 2 :][..., :4, :4] = np.nan
                values[..., rows // 4, columns // 4] = -5
        outputs.append(np.ascontiguousarray(values.astype(tensor.dtype)))
    return outputs


def make_maps(
    kernels, machine, spec, outputs, sizes, images, map_size='source', thresholds=ALL_TOPICS
):
    """Return the results of frames of these sizes, made by kernels.

    Args:
        kernels: FrameKernels of the spec.
        machine: as in `decode_with_kernels`.
        spec: the model's specification.
        outputs: outputs of the network for the whole batch.
        sizes: sizes of the frames, which may be fewer than the batch.
        images: an ImagePool.
        map_size: size of the maps.
        thresholds: thresholds of all frames, with the topics that have a subscriber.
    """
    geometries = [spec.preprocessing.letterbox(size) for size in sizes]
    with machine as at:
        addresses = {
            tensor.name: at.put(output)
            for tensor, output in zip(spec.outputs, outputs, strict=True)
        }
        decoder = MapDecoder(kernels, spec, at.stream, images, map_size)
        for _ in range(2):  # the second time with tables from memory
            for place, geometry in enumerate(geometries):
                decoder.queue_images(addresses, place, geometry, thresholds)
            at.synchronize()
            found = decoder.read_results(spec, geometries, [thresholds] * len(sizes))
        decoder.close()
    return found, geometries


def maps_on_host(spec, outputs, geometries, thresholds=ALL_TOPICS):
    """Return the results of the host for the first frames of a batch."""
    return decode(outputs, spec, geometries, [thresholds] * len(geometries), DecodingLimits())


def check_bilinear_map(found, grid):
    """Check that a depth map is a grid that was resized bilinearly from the whole network input.

    A wrong filter and a wrong crop must differ.

    Args:
        found: a DepthMap.
        grid: the depth of each cell, or its reciprocal if ``found`` is inverse: float64 (rows,
            columns). NaN means unknown.
    """
    source_wh, network_wh = found.letterbox.source_wh, found.letterbox.network_wh
    expected = resized(grid[..., None], source_wh)[..., 0]
    if found.is_inverse:
        expected = 1 / expected
    is_known = np.isfinite(expected)

    def share_of_range_off(**wrong):
        depth = replace(found, **wrong).depth()
        # An unknown cell with weight 0 may or may not make a pixel unknown.
        assert wrong or (np.isfinite(depth) != is_known).mean() < 1e-3
        both = is_known & np.isfinite(depth)
        return np.abs(depth - expected)[both].max() / np.ptp(expected[is_known])

    assert share_of_range_off() < 1e-4
    for upsampling in ('nearest', 'bicubic', 'bilinear_aligned'):
        assert share_of_range_off(upsampling=upsampling) > 1e-3, upsampling
    cropped = Letterbox.fit(source_wh, network_wh, 'letterbox')
    assert share_of_range_off(letterbox=cropped) > 1e-3


def assert_same_maps(found, expected, size_wh=None):
    """Assert that maps of kernels and host are equal, except for rounding."""
    assert isinstance(found, KernelMaps)
    if 'depth' in found.maps:
        assert found.is_metric == expected.is_metric
        one, other = found.image('depth', size_wh), expected.depth(size_wh)
        assert np.isnan(one).any()
        assert np.nanmax(one) > 1.5 * np.nanmin(one)
        # The host also multiplies cells by 0, which makes a neighbour of an unknown cell unknown.
        assert not (np.isnan(one) & ~np.isnan(other)).any()
        assert (np.isnan(one) != np.isnan(other)).mean() <= 0.01
        if expected.is_inverse:
            # The network's values are resized. Near 0, their reciprocal enlarges each rounding.
            one, other = 1 / one, 1 / other
        assert np.nanmax(np.abs(one - other)) <= 1e-4 * (np.nanmax(other) - np.nanmin(other))
        return
    ids, expected_ids = found.image('class_ids', size_wh), expected.class_ids(size_wh)
    if not expected.has_confidence:
        np.testing.assert_array_equal(ids, expected_ids)
        assert found.image('confidence', size_wh) is None
        return
    confidence = found.image('confidence', size_wh)
    expected_confidence = expected.confidence(size_wh)
    # Where the best two classes are equal but for rounding, either may win.
    assert (ids != expected_ids).mean() <= 1e-4
    assert np.abs(confidence.astype(int) - expected_confidence).max() <= 1
    assert len(np.unique(ids)) == len(expected.grid)
