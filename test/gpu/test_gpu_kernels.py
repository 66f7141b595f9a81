# SPDX-License-Identifier: Apache-2.0
"""The kernels equal the host stages: the letterbox in OpenCV, the decoding in NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.gpu.gpu_support import from_device, needs_gpu, to_device
from support.oracles.dense_decoding import decode_dense
from trt_perception import gpu
from trt_perception.images.encode import encode_bgr
from trt_perception.images.frame import PIXEL_FORMATS, Frame
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.decoders.anchors import Dense, YoloxRaw
from trt_perception.model.input_layout import image_mask
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tensors import TensorSpec
from trt_perception.model.thresholds import Thresholds
from trt_perception.stages.decode import decode
from trt_perception.stages.frame_header import batch_table
from trt_perception.stages.gpu_kernels import HEAD_DTYPE, ROW_DTYPE, FrameKernels
from trt_perception.stages.host_preprocess import HostPreprocessor

pytestmark = needs_gpu

FORMATS = sorted({pixel_format.name for pixel_format in PIXEL_FORMATS.values()})
SIZES = [(1280, 720), (1920, 1080), (3840, 2160), (1919, 1079), (64, 48), (7, 5), (4, 300)]


def spec_for(preprocessing, classes=80, anchors=8400, decoder=None, dtype='float32'):
    decoder = decoder or Dense()
    rows = classes + (5 if decoder.objectness else 4)
    shape = (1, anchors, rows) if decoder.transposed else (1, rows, anchors)
    width, height = preprocessing.input_size
    return ModelSpec(
        TensorSpec('images', (1, 3, height, width), preprocessing.dtype),
        (TensorSpec('output0', shape, dtype),),
        preprocessing,
        decoder,
        tuple(str(index) for index in range(classes)),
        True,
    )


@pytest.fixture(scope='module')
def device():
    return gpu.Device(0)


def picture(width, height, seed=0):
    """Return smooth gradients with noise. Their edges show sampling errors in all colours."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    bgr = np.stack([255 * x / width, 255 * y / height, 127 + 127 * np.sin(x / 9 + y / 13)], -1)
    return np.clip(bgr + rng.normal(0, 25, bgr.shape), 0, 255).astype(np.uint8)


def frame_of(bgr, encoding, padding=0, big_endian=False):
    rows = encode_bgr(bgr, encoding)
    pixel_format = PIXEL_FORMATS[encoding]
    height = pixel_format.image_height(rows.shape[0])
    width = rows.shape[1] // pixel_format.bytes_per_pixel
    if big_endian:
        rows = rows.view('<u2').byteswap().view(np.uint8)
    padded = np.full((rows.shape[0], rows.shape[1] + padding), 173, np.uint8)
    padded[:, : rows.shape[1]] = rows
    return Frame.view(
        padded.reshape(-1),
        width=width,
        height=height,
        step=padded.shape[1],
        encoding=encoding,
        big_endian=big_endian,
    )


def run_letterbox(kernels, spec, frame, offset=0):
    geometry = spec.preprocessing.letterbox((frame.width, frame.height))
    head = np.zeros(kernels.header.size, np.uint8)
    content = kernels.header.content(frame, geometry, Thresholds())
    kernels.header.write(head, content, kernels.header.size + offset)
    # A serialised message has other fields between the header and the pixels.
    between = np.full(offset, 0xA5, np.uint8)
    item = 4 if spec.input.dtype == 'float32' else 2
    # An element that no thread writes stays NaN.
    poison = np.full(int(np.prod(spec.input.shape)) * item, 0xFF, np.uint8)
    with (
        to_device(np.concatenate([head, between, frame.data])) as source,
        to_device(poison) as tensor,
        to_device(batch_table([source.pointer])) as batch,
        gpu.Stream() as stream,
    ):
        kernels.letterbox(batch.pointer, tensor.pointer, 1, stream)
        stream.synchronize()
        dtype = {'float32': np.float32, 'float16': np.float16, 'bfloat16': np.uint16}[
            spec.input.dtype
        ]
        values = from_device(tensor.pointer, dtype, spec.input.shape)
    if spec.input.dtype == 'bfloat16':
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values


@pytest.mark.parametrize('antialias', [False, True])
@pytest.mark.parametrize('encoding', FORMATS)
def test_letterbox_equals_the_host_letterbox(device, encoding, antialias):
    spec = spec_for(Preprocessing((640, 640), antialias=antialias))
    host = HostPreprocessor(spec.preprocessing)
    kernels = FrameKernels(device, spec, DecodingLimits())
    worst, different = 0.0, 0
    for width, height in SIZES:
        for padding in (0, 2, 30):
            frame = frame_of(picture(width, height), encoding, padding)
            expected, _ = host(frame)
            found = run_letterbox(kernels, spec, frame)
            assert np.isfinite(found).all()
            worst = max(worst, float(np.abs(found - expected).max()))
            different += int((found != expected).sum())
    kernels.close()
    print(f'{encoding}: {different} values differ, at most by {worst * 255:.3f} / 255')
    assert worst <= 1 / 255 + 1e-6
    assert different == 0


@pytest.mark.parametrize('antialias', [False, True])
@pytest.mark.parametrize('encoding', FORMATS)
def test_letterbox_without_rounding_equals_the_host_letterbox(device, encoding, antialias):
    preprocessing = Preprocessing((641, 479), scale=1.0, antialias=antialias, round_pixels=False)
    spec = spec_for(preprocessing)
    kernels = FrameKernels(device, spec, DecodingLimits())
    for width, height in (*SIZES, (517, 333), (233, 701)):
        frame = frame_of(picture(width, height), encoding, 2)
        expected, _ = HostPreprocessor(preprocessing)(frame)
        found = run_letterbox(kernels, spec, frame)
        # For floats, Pillow's weights have float64, the kernel's 22 bits.
        np.testing.assert_allclose(found, expected, rtol=0, atol=0.01 if antialias else 0)
    kernels.close()


@pytest.mark.parametrize('antialias', [False, True])
@pytest.mark.parametrize('encoding', FORMATS)
def test_letterbox_of_small_frames_equals_the_host_letterbox(device, encoding, antialias):
    """The frames are small, so that scripts/sanitize can run this test under compute-sanitizer."""
    spec = spec_for(Preprocessing((96, 64), antialias=antialias))
    kernels = FrameKernels(device, spec, DecodingLimits())
    for width, height in ((64, 48), (7, 5), (4, 30), (300, 200)):
        frame = frame_of(picture(width, height), encoding, 2)
        expected, _ = HostPreprocessor(spec.preprocessing)(frame)
        found = run_letterbox(kernels, spec, frame)
        np.testing.assert_array_equal(found, expected)
    kernels.close()


@pytest.mark.parametrize('encoding', FORMATS)
def test_letterbox_accepts_pixels_at_any_offset(device, encoding):
    """In a message, pixels start at a multiple of 4. The kernel accepts any offset."""
    spec = spec_for(Preprocessing((96, 64)))
    kernels = FrameKernels(device, spec, DecodingLimits())
    frame = frame_of(picture(62, 46), encoding, 2)
    expected, _ = HostPreprocessor(spec.preprocessing)(frame)
    for offset in (*range(0, 68, 4), 1, 7, 255, 10_001):
        found = run_letterbox(kernels, spec, frame, offset)
        np.testing.assert_array_equal(found, expected)
    kernels.close()


@pytest.mark.parametrize(
    'preprocessing',
    [
        Preprocessing((640, 384), resize='stretch'),
        Preprocessing((320, 416), color_order='bgr', pad_value=0),
        Preprocessing((224, 224), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        Preprocessing((641, 479), scale=1.0, pad_value=255),
        Preprocessing((640, 384), resize='stretch', antialias=True),
        Preprocessing((320, 416), resize='letterbox_top_left', pad_value=0, antialias=True),
        Preprocessing((64, 48), color_order='bgr', std=(0.229, 0.224, 0.225), antialias=True),
        Preprocessing((224, 224), mean=(0.485, 0.456, 0.406), pad_value=None),
    ],
)
def test_letterbox_applies_each_preprocessing_option(device, preprocessing):
    spec = spec_for(preprocessing)
    kernels = FrameKernels(device, spec, DecodingLimits())
    frame = frame_of(picture(801, 603), 'bgr8', 5)
    expected, _ = HostPreprocessor(preprocessing)(frame)
    found = run_letterbox(kernels, spec, frame)
    kernels.close()
    level = preprocessing.scale / min(preprocessing.std)
    assert np.abs(found - expected).max() <= level * 1.0001


@pytest.mark.parametrize('dtype', ['int64', 'bool', 'float16'])
@pytest.mark.parametrize('shape', [(64, 96), (16, 32)])
def test_pixel_mask_marks_the_pixels_of_the_image(device, shape, dtype):
    mask = TensorSpec('pixel_mask', (1, *shape), dtype)
    preprocessing = Preprocessing((96, 64), resize='letterbox_top_left')
    spec = replace(spec_for(preprocessing), auxiliary_inputs=(mask,))
    kernels = FrameKernels(device, spec, DecodingLimits())
    frame = frame_of(picture(233, 701), 'bgr8')
    geometry = Letterbox.fit((233, 701), (96, 64), 'letterbox_top_left')
    head = np.zeros(kernels.header.size, np.uint8)
    kernels.header.write(head, kernels.header.content(frame, geometry, Thresholds()), head.size)
    with (
        to_device(head) as source,
        to_device(np.full(mask.size_bytes, 0xFF, np.uint8)) as target,
        to_device(batch_table([source.pointer])) as batch,
        gpu.Stream() as stream,
    ):
        kernels.mark_image(batch.pointer, target.pointer, 1, stream)
        stream.synchronize()
        found = from_device(target.pointer, np.dtype(dtype), (1, *shape))
    kernels.close()
    np.testing.assert_array_equal(found[0], image_mask(geometry, shape))


@pytest.mark.parametrize(('dtype', 'tolerance'), [('float16', 2.0**-11), ('bfloat16', 2.0**-8)])
def test_letterbox_rounds_to_the_input_type(device, dtype, tolerance):
    exact = spec_for(Preprocessing((640, 640)))
    rounded = spec_for(Preprocessing((640, 640), dtype=dtype))
    frame = frame_of(picture(1280, 720), 'bgr8')
    values = []
    for spec in (exact, rounded):
        kernels = FrameKernels(device, spec, DecodingLimits())
        values.append(run_letterbox(kernels, spec, frame).astype(np.float32))
        kernels.close()
    assert np.abs(values[0] - values[1]).max() <= tolerance


def test_letterbox_reads_big_endian_16_bit(device):
    spec = spec_for(Preprocessing((640, 640)))
    kernels = FrameKernels(device, spec, DecodingLimits())
    bgr = picture(640, 480)
    little = run_letterbox(kernels, spec, frame_of(bgr, 'mono16'))
    big = run_letterbox(kernels, spec, frame_of(bgr, 'mono16', big_endian=True))
    kernels.close()
    np.testing.assert_array_equal(little, big)


def run_decode(kernels, spec, output, geometry, thresholds, times=1):
    dtype = {'float32': np.float32, 'float16': np.float16}[spec.outputs[0].dtype]
    frame = frame_of(np.zeros((geometry.source_wh[1], geometry.source_wh[0], 3), np.uint8), 'bgr8')
    head = np.zeros(kernels.header.size, np.uint8)
    kernels.header.write(head, kernels.header.content(frame, geometry, thresholds), 0)
    results = []
    with (
        to_device(head) as header,
        to_device(output.astype(dtype)) as tensor,
        to_device(np.zeros(kernels.scratch_bytes, np.uint8)) as scratch,
        to_device(np.full(kernels.result_bytes, 0xFF, np.uint8)) as result,
        to_device(batch_table([header.pointer])) as batch,
        gpu.Stream() as stream,
    ):
        for _ in range(times):
            kernels.decode(
                batch.pointer, tensor.pointer, scratch.pointer, result.pointer, 1, stream
            )
            stream.synchronize()
            raw = from_device(result.pointer, np.uint8, (kernels.result_bytes,))
            count = int(raw[:4].view(np.int32)[0])
            results.append(raw[HEAD_DTYPE.itemsize :].view(ROW_DTYPE)[:count].copy())
    return results


def random_output(rng, classes, anchors, passing, decoder, special=True):
    boxes = np.stack(
        [
            rng.uniform(-20, 660, anchors),
            rng.uniform(-20, 660, anchors),
            rng.uniform(4, 120, anchors),
            rng.uniform(4, 120, anchors),
        ]
    )
    scores = rng.uniform(0, 0.2, (classes, anchors))
    chosen = rng.choice(anchors, min(passing, anchors), replace=False)
    scores[rng.integers(0, classes, len(chosen)), chosen] = rng.uniform(0.26, 1, len(chosen))
    if special and anchors > 600:
        scores[0, chosen[:40]] = 0.9  # ties
        boxes[2, chosen[40:45]] = 0
        boxes[3, chosen[45:50]] = -5
        boxes[0, chosen[50:55]] = np.nan
        boxes[1, chosen[55:60]] = np.inf
        scores[1, chosen[60:65]] = np.nan
        scores[2, chosen[65:70]] = np.inf
    parts = [boxes, *([rng.uniform(0.8, 1, (1, anchors))] if decoder.objectness else []), scores]
    output = np.concatenate(parts).astype(np.float32)[None]
    return np.ascontiguousarray(output.transpose(0, 2, 1)) if decoder.transposed else output


CASES = [
    (80, 8400, 0, Dense()),
    (80, 8400, 1, Dense()),
    (80, 8400, 300, Dense()),
    (80, 8400, 1024, Dense()),
    (80, 8400, 1500, Dense()),
    (80, 8400, 8400, Dense()),
    (10, 6300, 900, Dense()),
    (1, 33, 33, Dense()),
    (365, 2100, 700, Dense(transposed=True)),
    (80, 25200, 2000, Dense(objectness=True, transposed=True)),
    (3, 1000, 500, Dense(objectness=True)),
]


@pytest.mark.parametrize('class_agnostic', [False, True])
@pytest.mark.parametrize(('classes', 'anchors', 'passing', 'decoder'), CASES)
def test_decoding_equals_the_host_decoding(
    device, classes, anchors, passing, decoder, class_agnostic
):
    spec = spec_for(Preprocessing((640, 640)), classes, anchors, decoder)
    kernels = FrameKernels(device, spec, DecodingLimits(class_agnostic=class_agnostic))
    rng = np.random.default_rng(passing + classes)
    for size in ((1920, 1080), (333, 777)):
        geometry = Letterbox.fit(size, (640, 640), 'letterbox')
        for class_ids in ((), tuple(range(0, classes, 3))):
            thresholds = Thresholds(0.25, 0.45, class_ids=class_ids)
            output = random_output(rng, classes, anchors, passing, decoder)
            expected = decode_dense(
                output,
                decoder,
                geometry,
                thresholds,
                max_detections=300,
                class_agnostic=class_agnostic,
            )
            # The second run starts with the scratch memory of the first run.
            for rows in run_decode(kernels, spec, output, geometry, thresholds, times=2):
                assert len(rows) == len(expected)
                np.testing.assert_array_equal(rows['class_id'], expected.class_ids)
                np.testing.assert_allclose(rows['score'], expected.scores, atol=1e-6, rtol=0)
                np.testing.assert_allclose(rows['xyxy'], expected.xyxy, atol=1e-3, rtol=0)
    kernels.close()


@pytest.mark.parametrize('network_wh', [(640, 640), (200, 120)])  # whole and partial cells
@pytest.mark.parametrize('strides', [(8, 16, 32), (32, 8)])
def test_decoding_of_cells_equals_the_host_decoding(device, network_wh, strides):
    decoder = YoloxRaw(strides=strides)
    anchors = sum(-(-network_wh[0] // s) * -(-network_wh[1] // s) for s in strides)
    form = Dense(objectness=True, transposed=True)
    spec = replace(spec_for(Preprocessing(network_wh), 20, anchors, form), decoder=decoder)
    kernels = FrameKernels(device, spec, DecodingLimits())
    geometry = Letterbox.fit((1280, 720), network_wh, 'letterbox_top_left')
    output = random_output(np.random.default_rng(4), 20, anchors, 400, form)
    output[..., :2] = np.random.default_rng(5).uniform(-1, 2, output[..., :2].shape)
    output[..., 2:4] = np.random.default_rng(6).uniform(-1, 2, output[..., :2].shape)
    output[0, :9, 2] = [200, -200, np.nan, np.inf, -np.inf, 88, 89, 0, 1]  # e**89 is infinite
    output[0, :9, 5] = 1
    (expected,) = decode([output], spec, [geometry], [Thresholds()], DecodingLimits())
    assert len(expected) > 50
    for rows in run_decode(kernels, spec, output, geometry, Thresholds(), times=2):
        np.testing.assert_array_equal(rows['class_id'], expected.class_ids)
        np.testing.assert_allclose(rows['score'], expected.scores, atol=1e-6, rtol=0)
        np.testing.assert_allclose(rows['xyxy'], expected.xyxy, atol=1e-3, rtol=0)
    kernels.close()


def test_decoding_reads_half_precision(device):
    spec = spec_for(Preprocessing((640, 640)), dtype='float16')
    kernels = FrameKernels(device, spec, DecodingLimits())
    geometry = Letterbox.fit((1280, 720), (640, 640), 'letterbox')
    output = random_output(np.random.default_rng(1), 80, 8400, 800, spec.decoder).astype(
        np.float16
    )
    expected = decode_dense(output, spec.decoder, geometry, Thresholds(), max_detections=300)
    (rows,) = run_decode(kernels, spec, output, geometry, Thresholds())
    kernels.close()
    np.testing.assert_array_equal(rows['class_id'], expected.class_ids)
    np.testing.assert_allclose(rows['xyxy'], expected.xyxy, atol=1e-3, rtol=0)


def test_max_detections_limits_the_rows(device):
    spec = replace(spec_for(Preprocessing((640, 640))))
    kernels = FrameKernels(device, spec, DecodingLimits(17))
    geometry = Letterbox.fit((640, 640), (640, 640), 'letterbox')
    output = random_output(np.random.default_rng(2), 80, 8400, 900, spec.decoder)
    expected = decode_dense(output, spec.decoder, geometry, Thresholds(), max_detections=17)
    (rows,) = run_decode(kernels, spec, output, geometry, Thresholds())
    kernels.close()
    np.testing.assert_array_equal(rows['score'], expected.scores)
