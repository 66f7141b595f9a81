"""Engines of each kind through the whole pipeline on a GPU, step by step against the host.

The input tensor against OpenCV's letterbox, the output tensor against ONNX Runtime on the same
pixels, the boxes against NumPy's decoding of that very output.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from gpu_support import build_plan
from gpu_support import from_device
from gpu_support import needs_tensorrt
from onnx import TensorProto
from onnx import helper
from onnx import numpy_helper
from patch_model import CLASS_NAMES
from patch_model import patch_onnx
from patch_model import write_engine

from trt_perception.config import DetectorConfig
from trt_perception.config import Thresholds
from trt_perception.decoder_spec import DecoderSpec
from trt_perception.errors import EngineError
from trt_perception.frame import Frame
from trt_perception.letterbox import Letterbox
from trt_perception.pipelines.open_pipeline import open_pipeline
from trt_perception.stages.decoders.dense import decode_dense
from trt_perception.stages.host_preprocess import HostPreprocessor

pytestmark = needs_tensorrt

SIZE = (64, 48)
LAYOUTS = [
    DecoderSpec('dense'),
    DecoderSpec('dense', objectness=True),
    DecoderSpec('dense', transposed=True),
    DecoderSpec('dense', objectness=True, transposed=True),
]
# Largest error of an input value, of a box side in pixels, of a score.
TOLERANCES = {
    'float32': (1 / 255 + 1e-6, 1e-3, 1e-4),
    'float16': (1 / 255 + 2.0**-11, 0.15, 0.01),
    'bfloat16': (1 / 255 + 2.0**-8, 1.2, 0.08),
}
THRESHOLDS = Thresholds(0.3, 0.45)


def colours(width, height, seed=0):
    """Blocks of random colours, so that neighbouring patches differ."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (-(-height // 9), -(-width // 7), 3), np.uint8)
    bgr = np.ascontiguousarray(blocks.repeat(9, axis=0).repeat(7, axis=1)[:height, :width])
    return Frame.view(bgr.reshape(-1), width=width, height=height, step=3 * width, encoding='bgr8')


def tensor_on_device(pointer, tensor):
    """Return a tensor of the pipeline's as float32."""
    if tensor.dtype == 'bfloat16':
        bits = from_device(pointer, np.uint16, tensor.shape).astype(np.uint32) << 16
        return bits.view(np.float32)
    return from_device(pointer, tensor.dtype, tensor.shape).astype(np.float32)


def run_reference(onnx_bytes, tensor):
    session = onnxruntime.InferenceSession(onnx_bytes, providers=['CPUExecutionProvider'])
    return session.run(None, {'images': tensor})[0]


def check_frame(pipeline, frame, reference):
    """Run one frame and hold each step of it to the host's; return how many boxes there were."""
    spec, slot = pipeline.spec, pipeline._slots[0]
    pipeline.enqueue(0, frame, THRESHOLDS)
    found = pipeline.collect(0).detections
    pixels, box, score = map(max, TOLERANCES[spec.input.dtype], TOLERANCES[spec.outputs[0].dtype])
    exact = replace(spec.preprocessing, dtype='float32')
    tensor, letterbox = HostPreprocessor(exact)(frame)
    seen = tensor_on_device(slot._input, spec.input)
    assert np.abs(seen - tensor).max() <= pixels
    expected = run_reference(reference, tensor)
    output = tensor_on_device(slot._outputs['output'], spec.outputs[0])
    assert output.shape == expected.shape
    rows = np.abs(output - expected)[0]
    rows = rows.T if spec.decoder.transposed else rows
    assert rows[:4].max() <= box, rows[:4].max()
    assert rows[4:].max() <= score, rows[4:].max()
    same = decode_dense(output, spec.decoder, letterbox, THRESHOLDS, max_detections=300)
    np.testing.assert_array_equal(found.class_ids, same.class_ids)
    np.testing.assert_allclose(found.scores, same.scores, atol=1e-6, rtol=0)
    np.testing.assert_allclose(found.xyxy, same.xyxy, atol=1e-3, rtol=0)
    return len(found)


def check_engine(path, reference, sizes=((64, 48), (200, 90), (1919, 1079))):
    pipeline = open_pipeline(DetectorConfig(engine_path=str(path), pipeline_depth=2))
    try:
        counts = [
            check_frame(pipeline, colours(*size, seed=index), reference)
            for index, size in enumerate(sizes)
        ]
    finally:
        pipeline.close()
    assert sum(counts) >= 5, counts


@pytest.mark.parametrize('dtype', TOLERANCES)
@pytest.mark.parametrize('decoder', LAYOUTS, ids=str)
def test_each_layout_in_each_type(tmp_path, dtype, decoder):
    plan = build_plan(patch_onnx(SIZE, decoder, dtype))
    path = write_engine(tmp_path / 'patches.engine', plan, SIZE, decoder, dtype)
    check_engine(path, patch_onnx(SIZE, decoder))


@pytest.mark.parametrize(
    ('dtype', 'output_dtype'),
    [('float16', 'float32'), ('bfloat16', 'float32'), ('float32', 'float16')],
)
def test_input_and_output_may_have_different_types(tmp_path, dtype, output_dtype):
    decoder = LAYOUTS[0]
    plan = build_plan(patch_onnx(SIZE, decoder, dtype, output_dtype))
    path = write_engine(tmp_path / 'x.engine', plan, SIZE, decoder, dtype, output_dtype)
    check_engine(path, patch_onnx(SIZE, decoder))


def shapes(*sizes):
    """Return a profile from (width, height) of smallest, usual and largest."""
    return {'images': tuple((1, 3, height, width) for width, height in sizes)}


@pytest.fixture(scope='module')
def open_plan():
    """Two profiles: 64 to 128 pixels wide, and 128 to 256."""
    return build_plan(
        patch_onnx((-1, -1), LAYOUTS[0]),
        profiles=[
            shapes((64, 48), (64, 48), (128, 96)),
            shapes((128, 96), (192, 144), (256, 192)),
        ],
    )


@pytest.mark.parametrize(
    ('size', 'profile'),
    [
        ((64, 48), 0),
        ((96, 80), 0),
        ((128, 96), 0),
        ((136, 96), 1),
        ((192, 144), 1),
        ((256, 192), 1),
    ],
)
def test_the_profile_that_holds_the_size_is_taken(tmp_path, open_plan, size, profile):
    decoder = LAYOUTS[0]
    path = write_engine(tmp_path / 'open.engine', open_plan, size, decoder, opened=True)
    config = DetectorConfig(engine_path=str(path), pipeline_depth=2)
    pipeline = open_pipeline(config)
    try:
        chosen = [slot._context._context.active_optimization_profile for slot in pipeline._slots]
        spec = pipeline.spec
    finally:
        pipeline.close()
    width, height = size
    anchors = (width // 8) * (height // 8)
    assert spec.input.shape == (1, 3, height, width)
    assert spec.outputs[0].shape == (1, 4 + len(CLASS_NAMES), anchors)
    assert chosen == [profile] * 2
    check_engine(path, patch_onnx((-1, -1), decoder))


def test_the_parameter_chooses_another_size(tmp_path, open_plan):
    path = write_engine(tmp_path / 'open.engine', open_plan, (64, 48), LAYOUTS[0], opened=True)
    pipeline = open_pipeline(DetectorConfig(engine_path=str(path), model_input_size=(256, 128)))
    try:
        found = check_frame(pipeline, colours(640, 480), patch_onnx((-1, -1), LAYOUTS[0]))
        assert pipeline.spec.preprocessing.input_size == (256, 128)
    finally:
        pipeline.close()
    assert found


@pytest.mark.parametrize('size', [(56, 48), (264, 192), (64, 104), (256, 64)])
def test_a_size_that_no_profile_holds_is_refused(tmp_path, open_plan, size):
    path = write_engine(tmp_path / 'open.engine', open_plan, size, LAYOUTS[0], opened=True)
    message = rf'no profile takes \[1, 3, {size[1]}, {size[0]}\]; it has .* to .*, .* to '
    with pytest.raises(EngineError, match=message):
        open_pipeline(DetectorConfig(engine_path=str(path)))


def test_an_open_batch_becomes_one(tmp_path):
    decoder = LAYOUTS[0]
    content = patch_onnx(SIZE, decoder)
    model = onnx.load_from_string(content)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = 'batch'
    profile = {'images': ((1, 3, 48, 64), (1, 3, 48, 64), (4, 3, 48, 64))}
    plan = build_plan(model.SerializeToString(), profiles=[profile])
    path = tmp_path / 'batch.engine'
    path.write_bytes(plan)
    pipeline = open_pipeline(
        DetectorConfig(
            engine_path=str(path),
            model_resize='letterbox',
            model_color_order='rgb',
            model_scale=1 / 255,
            model_decoder='dense',
            model_class_names=CLASS_NAMES,
        )
    )
    try:
        assert pipeline.spec.input.shape[0] == 1
        assert check_frame(pipeline, colours(640, 480), content)
    finally:
        pipeline.close()


def nms_onnx():
    """A detector with NonMaxSuppression inside: how many rows there are depends on the image."""
    arrays = {
        'column': np.array([1, 3, 1]),
        'weights': np.ones((1, 3, 4), np.float32),
        'boxes': np.array([[[0, 0, 9, 9], [1, 1, 9, 9], [20, 20, 30, 30], [40, 9, 60, 20]]], 'f4'),
        'most': np.array([10]),
        'iou': np.array([0.5], np.float32),
        'score': np.array([0.1], np.float32),
    }
    nodes = [
        helper.make_node('ReduceMean', ['images'], ['means'], axes=[2, 3], keepdims=1),
        helper.make_node('Reshape', ['means', 'column'], ['levels']),
        helper.make_node('Mul', ['levels', 'weights'], ['scores']),
        helper.make_node(
            'NonMaxSuppression', ['boxes', 'scores', 'most', 'iou', 'score'], ['output']
        ),
    ]
    graph = helper.make_graph(
        nodes,
        'nms',
        [helper.make_tensor_value_info('images', TensorProto.FLOAT, [1, 3, 48, 64])],
        [helper.make_tensor_value_info('output', TensorProto.INT64, ['rows', 3])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)
    return model.SerializeToString()


def test_an_engine_with_nms_inside_is_refused_with_the_reason(tmp_path):
    try:
        plan = build_plan(nms_onnx())
    except AssertionError as error:
        pytest.skip(f'this TensorRT builds no NonMaxSuppression: {error}')
    path = tmp_path / 'nms.engine'
    path.write_bytes(plan)
    with pytest.raises(EngineError, match='depends on the data'):
        open_pipeline(DetectorConfig(engine_path=str(path)))


def test_the_letterbox_of_a_reference_frame_has_padding():
    # Else the frames above would not show where boxes are mapped back to.
    assert Letterbox.fit((200, 90), SIZE, 'letterbox').pad_top > 0
