"""HostPreprocessor against float64 references that use neither OpenCV nor the package's geometry.

How far OpenCV's fixed-point arithmetic is from exact arithmetic, measured here and held to:

    packed, mono8, mono16, Bayer to bytes   exact
    YUV to bytes                            at most 0.70 levels (ours: 0.6905 over all Y, U, V)
    resizing bytes                          less than 0.85 levels

So a tensor is within 1/255 of the exact letterbox of its bytes. The GPU has to match two habits of
OpenCV: a Y below 16 counts as 16, and the outermost pixels of a Bayer image repeat the pixel next
to them inside.
"""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from onnx import helper
from reference_images import ENCODINGS
from reference_images import YUV
from reference_images import fits
from reference_images import network_levels
from reference_images import noise
from reference_images import resized
from reference_images import rgb_levels
from reference_images import tensor_from_levels

from trt_perception.frame import Frame
from trt_perception.letterbox import Letterbox
from trt_perception.manifest import Preprocessing
from trt_perception.stages.host_preprocess import HostPreprocessor
from trt_perception.stages.host_preprocess import bgr_image

CONVERSION = 0.70  # levels; YUV only
RESIZING = 0.85  # levels
SIZES = [(1, 1), (2, 2), (3, 3), (4, 4), (53, 37), (54, 38), (640, 480), (6, 250), (700, 4)]


def frame_of(data, encoding, width, height, step, big_endian=False):
    return Frame.view(
        data, width=width, height=height, step=step, encoding=encoding, big_endian=big_endian
    )


def noise_frame(rng, encoding, width, height, padding=0, big_endian=False):
    """Return a frame of random bytes and what they mean, as RGB levels."""
    data, step = noise(rng, encoding, width, height, padding)
    description = encoding, width, height, step, big_endian
    return frame_of(data, *description), rgb_levels(data, *description)


def tolerance(encoding):
    """Levels that a tensor may be off."""
    return RESIZING + (CONVERSION if ENCODINGS[encoding] in YUV else 0)


def test_no_encoding_is_left_out():
    assert all(any(fits(encoding, *size) for size in SIZES) for encoding in ENCODINGS)


@pytest.mark.parametrize('big_endian', [False, True])
@pytest.mark.parametrize('padding', [0, 1, 13])
@pytest.mark.parametrize('encoding', ENCODINGS)
def test_bytes_become_the_right_colours(encoding, padding, big_endian):
    rng = np.random.default_rng(1)
    for width, height in SIZES:
        if not fits(encoding, width, height):
            continue
        frame, levels = noise_frame(rng, encoding, width, height, padding, big_endian)
        image = bgr_image(frame)
        assert image.shape == (height, width, 3)
        assert image.dtype == np.uint8
        assert image.flags.c_contiguous
        off = np.abs(image[..., ::-1] - levels).max()
        assert off <= (CONVERSION if ENCODINGS[encoding] in YUV else 0)


@pytest.mark.parametrize('encoding', YUV)
def test_yuv_over_the_whole_cube(encoding):
    # Every Y with every fifth U and V, and the ends.
    chroma = np.array([*range(0, 256, 5), 128, 255], np.uint8)
    u, v = (grid.ravel() for grid in np.meshgrid(chroma, chroma))
    y = np.arange(256, dtype=np.uint8)[:, None]
    if encoding in ('nv12', 'nv21'):
        height, width = 512, 2 * len(u)
        data = np.empty((height * 3 // 2, width), np.uint8)
        data[:height] = np.repeat(y, 2, axis=0)
        data[height:, 0::2], data[height:, 1::2] = (u, v) if encoding == 'nv12' else (v, u)
        step = width
    else:
        height, width = 256, 2 * len(u)
        data = np.empty((height, 4 * len(u)), np.uint8)
        luma, first = (1, 0) if encoding == 'uyvy' else (0, 1)
        data[:, luma::2] = y
        data[:, first::4], data[:, first + 2 :: 4] = u, v
        step = 2 * width
    description = encoding, width, height, step
    image = bgr_image(frame_of(data.ravel(), *description))
    assert np.abs(image[..., ::-1] - rgb_levels(data, *description)).max() <= CONVERSION


@pytest.mark.parametrize(
    ('yuv', 'rgb'),
    [  # ITU-R BT.601: the corners of the colour cube, rounded to 8-bit Y'CbCr
        ((16, 128, 128), (0, 0, 0)),
        ((235, 128, 128), (255, 255, 255)),
        ((82, 90, 240), (255, 0, 0)),
        ((145, 54, 34), (0, 255, 0)),
        ((41, 240, 110), (0, 0, 255)),
        ((210, 16, 146), (255, 255, 0)),
        ((170, 166, 16), (0, 255, 255)),
        ((107, 202, 222), (255, 0, 255)),
    ],
)
def test_yuv_of_the_corner_colours(yuv, rgb):
    y, u, v = yuv
    for encoding, data in {
        'uyvy': [u, y, v, y] * 2,
        'yuyv': [y, u, y, v] * 2,
        'nv12': [y] * 4 + [u, v],
        'nv21': [y] * 4 + [v, u],
    }.items():
        step = 4 if encoding in ('uyvy', 'yuyv') else 2
        image = bgr_image(frame_of(bytes(data), encoding, 2, 2, step))
        # The 8-bit Y'CbCr themselves are rounded, which is worth up to a level or two.
        assert np.abs(image[..., ::-1].astype(int) - rgb).max() <= 2


@pytest.mark.parametrize('order', ['<u2', '>u2'])
def test_every_value_of_mono16_is_divided_by_257(order):
    values = np.arange(65536)
    data = values.astype(order).tobytes()
    image = bgr_image(frame_of(data, 'mono16', 256, 256, 512, order == '>u2'))
    # 257 is odd, so that there are no ties.
    assert np.array_equal(image.reshape(-1, 3), np.rint(values / 257)[:, None].repeat(3, axis=1))


@pytest.mark.parametrize('pattern', ['rggb', 'bggr', 'gbrg', 'grbg'])
def test_bayer_of_one_colour_lights_one_channel(pattern):
    for color in 'rgb':
        tile = [255 * (place == color) for place in pattern]
        mosaic = np.tile(np.array(tile, np.uint8).reshape(2, 2), (4, 5))
        image = bgr_image(frame_of(mosaic.ravel(), f'bayer_{pattern}8', 10, 8, 10))
        assert (image == [255 * (color == channel) for channel in 'bgr']).all()


@pytest.mark.parametrize('pattern', ['rggb', 'bggr', 'gbrg', 'grbg'])
def test_bayer_at_every_width_of_a_vector_register(pattern):
    rng = np.random.default_rng(2)
    encoding = f'bayer_{pattern}8'
    for width in [*range(3, 70), 127, 128, 129, 641]:
        height = 3 + width % 4
        frame, levels = noise_frame(rng, encoding, width, height)
        assert np.array_equal(bgr_image(frame)[..., ::-1], levels), width


def test_the_oracle_itself_agrees_with_the_onnx_operator():
    rng = np.random.default_rng(3)
    resize = helper.make_node(
        'Resize',
        ['x', '', '', 'sizes'],
        ['y'],
        mode='linear',
        coordinate_transformation_mode='half_pixel',
    )
    # Half-pixel positions outside the image take the edge, as map_coordinates' mode 'nearest'.
    graph = helper.make_graph(
        [resize],
        'resize',
        [
            helper.make_tensor_value_info('x', TensorProto.FLOAT, [1, 3, 'h', 'w']),
            helper.make_tensor_value_info('sizes', TensorProto.INT64, [4]),
        ],
        [helper.make_tensor_value_info('y', TensorProto.FLOAT, [1, 3, 'H', 'W'])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 13)], ir_version=8)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=['CPUExecutionProvider']
    )
    for source, target in [((53, 37), (640, 447)), ((640, 480), (100, 75)), ((1, 5), (7, 35))]:
        levels = rng.integers(0, 256, (source[1], source[0], 3)).astype(np.float64)
        sizes = np.array([1, 3, target[1], target[0]])
        planes = levels.transpose(2, 0, 1)[None].astype(np.float32)
        (result,) = session.run(None, {'x': planes, 'sizes': sizes})
        assert np.abs(result[0].transpose(1, 2, 0) - resized(levels, target)).max() < 1e-3


PLAIN = {'input_size': (640, 640)}
# Preprocessing, as the manifest would say it; each with frames of several encodings.
PREPROCESSINGS = {
    'plain': PLAIN,
    'stretch': {**PLAIN, 'resize': 'stretch'},
    'bgr': {**PLAIN, 'color_order': 'bgr'},
    'black padding': {**PLAIN, 'pad_value': 0},
    'white padding': {**PLAIN, 'pad_value': 255},
    'levels': {**PLAIN, 'scale': 1.0},
    'ImageNet': {**PLAIN, 'mean': (0.485, 0.456, 0.406), 'std': (0.229, 0.224, 0.225)},
    'BGR levels minus mean': {
        **PLAIN,
        'color_order': 'bgr',
        'scale': 1.0,
        'mean': (103.53, 116.28, 123.675),
        'std': (57.375, 57.12, 58.395),
    },
    'one mean': {**PLAIN, 'mean': (0.0, 0.5, 0.0)},
    'wide input': {'input_size': (640, 352)},
    'odd input': {'input_size': (161, 99)},
    'high input, stretch': {'input_size': (96, 320), 'resize': 'stretch'},
    'one pixel': {'input_size': (1, 1)},
}


def assert_tensor(tensor, levels, facts, encoding):
    """Compare with the exact letterbox of the levels, in levels."""
    mode, pad = facts.get('resize', 'letterbox'), facts.get('pad_value', 114)
    picture = network_levels(levels, facts['input_size'], mode, pad)
    numbers = {key: facts[key] for key in ('color_order', 'scale', 'mean', 'std') if key in facts}
    expected = tensor_from_levels(picture, **numbers)
    assert tensor.shape == expected.shape
    step = facts.get('scale', 1 / 255) / np.array(facts.get('std', (1, 1, 1)))[None, :, None, None]
    off = np.abs(tensor - expected) / step
    assert off.max() <= tolerance(encoding) + 1e-3


@pytest.mark.parametrize('facts', PREPROCESSINGS.values(), ids=PREPROCESSINGS.keys())
def test_every_preprocessing(facts):
    rng = np.random.default_rng(4)
    preprocess = HostPreprocessor(Preprocessing(**facts))
    for encoding, size in [
        ('bgr8', (300, 200)),
        ('rgb8', (200, 300)),
        ('mono8', (61, 47)),
        ('rgba8', (640, 640)),
        ('bayer_grbg8', (101, 75)),
        ('nv12', (128, 72)),
    ]:
        frame, levels = noise_frame(rng, encoding, *size, padding=6)
        tensor, letterbox = preprocess(frame)
        assert tensor.dtype == np.float32
        assert tensor.flags.c_contiguous
        mode = facts.get('resize', 'letterbox')
        assert letterbox == Letterbox.fit(size, facts['input_size'], mode)
        assert_tensor(tensor, levels, facts, encoding)


@pytest.mark.parametrize('encoding', ENCODINGS)
@pytest.mark.parametrize('mode', ['letterbox', 'stretch'])
def test_every_encoding_and_size(encoding, mode):
    rng = np.random.default_rng(5)
    facts = {'input_size': (320, 256), 'resize': mode}
    for index, (width, height) in enumerate(SIZES):
        if fits(encoding, width, height):
            padding, big_endian = (0, 1, 32)[index % 3], bool(index % 2)
            frame, levels = noise_frame(rng, encoding, width, height, padding, big_endian)
            tensor, _ = HostPreprocessor(Preprocessing(**facts))(frame)
            assert_tensor(tensor, levels, facts, encoding)


@pytest.mark.parametrize('encoding', ['bgr8', 'rgba8', 'mono16', 'bayer_rggb8', 'yuyv', 'nv21'])
def test_a_camera_sized_frame(encoding):
    width, height = (1919, 1079) if fits(encoding, 1919, 1079) else (1920, 1080)
    frame, levels = noise_frame(np.random.default_rng(6), encoding, width, height, padding=7)
    facts = {'input_size': (640, 640)}
    tensor, _ = HostPreprocessor(Preprocessing(**facts))(frame)
    assert_tensor(tensor, levels, facts, encoding)


@pytest.mark.parametrize(
    'facts',
    [PREPROCESSINGS['plain'], PREPROCESSINGS['ImageNet'], PREPROCESSINGS['BGR levels minus mean']],
)
def test_half_precision_is_the_same_rounded(facts):
    rng = np.random.default_rng(7)
    single = HostPreprocessor(Preprocessing(**facts))
    half = HostPreprocessor(Preprocessing(**facts, dtype='float16'))
    for encoding in ('bgr8', 'mono8', 'uyvy'):
        frame, levels = noise_frame(rng, encoding, 90, 70)
        exact, result = single(frame)[0], half(frame)[0]
        assert result.dtype == np.float16
        # Two roundings, before and after the mean is taken off, of half a unit in the last place.
        bias = np.array(facts.get('mean', (0, 0, 0))) / np.array(facts.get('std', (1, 1, 1)))
        before = np.abs(exact + bias[None, :, None, None])
        assert (np.abs(result - exact) <= 2**-11 * (before + np.abs(exact)) + 2**-23).all()
        assert_tensor(result.astype(np.float64), levels, facts, encoding)


def test_a_flat_image_stays_flat_and_the_padding_is_exact():
    for value in (0, 1, 114, 254, 255):
        data = bytes([value]) * (33 * 21 * 3)
        facts = {'input_size': (64, 64), 'scale': 1.0, 'pad_value': 77}
        tensor, letterbox = HostPreprocessor(Preprocessing(**facts))(
            frame_of(data, 'bgr8', 33, 21, 99)
        )
        assert letterbox.resized_wh == (64, 41)
        assert (tensor[0, :, 11:52] == value).all()
        assert (tensor[0, :, :11] == 77).all()
        assert (tensor[0, :, 52:] == 77).all()  # 12 rows: the odd one is below


def test_one_preprocessor_for_a_mixed_stream_equals_fresh_ones():
    rng = np.random.default_rng(8)
    encodings = list(ENCODINGS)
    for facts in (
        {'input_size': (96, 96)},
        {'input_size': (96, 64), 'dtype': 'float16', 'mean': (0.5, 0.0, 0.5)},
        {'input_size': (96, 64), 'resize': 'stretch', 'color_order': 'bgr'},
    ):
        preprocess = HostPreprocessor(Preprocessing(**facts))
        # A few sizes, so that the canvas of the frame before often serves, and often does not.
        for _ in range(120):
            encoding = encodings[rng.integers(len(encodings))]
            width, height = [(40, 30), (30, 40), (96, 64), (200, 6), (6, 200)][rng.integers(5)]
            frame, _ = noise_frame(rng, encoding, width, height, int(rng.integers(4)))
            tensor, letterbox = preprocess(frame)
            fresh, fresh_letterbox = HostPreprocessor(Preprocessing(**facts))(frame)
            assert np.array_equal(tensor, fresh)
            assert letterbox == fresh_letterbox


def test_the_tensor_is_used_again_and_the_frame_is_left_alone():
    preprocess = HostPreprocessor(Preprocessing(input_size=(32, 32)))
    data = np.random.default_rng(9).integers(0, 256, 40 * 30 * 3, np.uint8)
    before = data.copy()
    data.flags.writeable = False
    frame = frame_of(data, 'rgb8', 40, 30, 120)
    first, second = preprocess(frame)[0], preprocess(frame)[0]
    assert np.shares_memory(first, second)
    assert np.array_equal(data, before)


@pytest.mark.parametrize('encoding', ENCODINGS)
def test_read_only_memory_is_read(encoding):
    data, step = noise(np.random.default_rng(10), encoding, 12, 10, 3)
    frozen, writable = (frame_of(raw, encoding, 12, 10, step) for raw in (data.tobytes(), data))
    assert np.array_equal(bgr_image(frozen), bgr_image(writable))


def test_the_picture_is_a_copy():
    data = np.zeros(12, np.uint8)
    bgr_image(frame_of(data, 'bgr8', 2, 2, 6))[...] = 9
    assert not data.any()
