# SPDX-License-Identifier: Apache-2.0
"""Engines with open shapes on a GPU use the right profile and give the right outputs.

Each engine runs in its own process. A crash inside TensorRT ends that process, not the tests.
"""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import onnx
import pytest

from support.gpu.engine_checks import check_engine, check_frame, colour_blocks
from support.gpu.gpu_support import build_plan, needs_tensorrt, why_no_open_shapes, why_no_tensorrt
from support.models.open_model import open_by_parameters
from support.models.patch_model import CLASS_NAMES, patch_onnx, write_engine
from trt_perception.errors import EngineError, TrtPerceptionError
from trt_perception.model.decoders.anchors import Dense
from trt_perception.parameters.values import ParameterValues

pytestmark = needs_tensorrt

DENSE = Dense()
OPEN = (-1, -1)
needs_open_shapes = pytest.mark.skipif(bool(why_no_open_shapes()), reason=why_no_open_shapes())


def shapes(*sizes):
    """Return a profile from the (width, height) of minimum, optimum and maximum, or one of all."""
    low, usual, high = sizes * 3 if len(sizes) == 1 else sizes
    return {'images': tuple((1, 3, height, width) for width, height in (low, usual, high))}


@pytest.fixture(scope='module')
def fixed_plan():
    """Build a plan with two profiles of one shape each."""
    return build_plan(patch_onnx(OPEN, DENSE), profiles=[shapes((64, 48)), shapes((128, 96))])


@pytest.fixture(scope='module')
def open_plan():
    """Build a plan with two profiles: widths of 64 to 128 pixels, and of 128 to 256 pixels."""
    return build_plan(
        patch_onnx(OPEN, DENSE),
        profiles=[
            shapes((64, 48), (64, 48), (128, 96)),
            shapes((128, 96), (192, 144), (256, 192)),
        ],
    )


def in_new_process(function, *arguments):
    """Call a function in its own process."""
    with ProcessPoolExecutor(1, get_context('spawn')) as pool:
        return pool.submit(_call_with_text_errors, function, *arguments).result(timeout=120)


def _call_with_text_errors(function, *arguments):
    """Call a function. Convert the package's errors, which pickle cannot transfer, to text."""
    try:
        return function(*arguments)
    except TrtPerceptionError as error:
        raise AssertionError(f'{type(error).__name__}: {error}') from None


def check_profile(path, size):
    """Compare an engine's output with the host. Return the profile index of each slot."""
    pipeline = open_by_parameters(ParameterValues(engine_path=str(path), pipeline_depth=2))
    try:
        chosen = [slot.context.native.active_optimization_profile for slot in pipeline.slots]
        spec = pipeline.spec
    finally:
        pipeline.close()
    width, height = size
    anchors = (width // 8) * (height // 8)
    assert spec.input.shape == (1, 3, height, width), spec.input.shape
    assert spec.outputs[0].shape == (1, 4 + len(CLASS_NAMES), anchors), spec.outputs[0].shape
    check_engine(path, patch_onnx(OPEN, DENSE))
    return chosen


@pytest.mark.parametrize(('size', 'profile'), [((64, 48), 0), ((128, 96), 1)])
def test_profile_of_one_shape_is_selected_by_size(tmp_path, fixed_plan, size, profile):
    path = write_engine(tmp_path / 'fixed.engine', fixed_plan, size, DENSE, has_open_shapes=True)
    assert in_new_process(check_profile, path, size) == [profile] * 2


@needs_open_shapes
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
def test_profile_that_includes_the_size_is_selected(tmp_path, open_plan, size, profile):
    path = write_engine(tmp_path / 'open.engine', open_plan, size, DENSE, has_open_shapes=True)
    assert in_new_process(check_profile, path, size) == [profile] * 2


def check_other_size(path, size):
    pipeline = open_by_parameters(ParameterValues(engine_path=str(path), model_input_size=size))
    try:
        assert pipeline.spec.preprocessing.input_size == size
        return check_frame(pipeline, colour_blocks(640, 480), patch_onnx(OPEN, DENSE))
    finally:
        pipeline.close()


def test_input_size_parameter_selects_another_profile(tmp_path, fixed_plan):
    path = write_engine(
        tmp_path / 'fixed.engine', fixed_plan, (64, 48), DENSE, has_open_shapes=True
    )
    assert in_new_process(check_other_size, path, (128, 96)) > 0


def refusal(path):
    """Return the error that refuses an engine; empty if the engine opens."""
    try:
        open_by_parameters(ParameterValues(engine_path=str(path))).close()
    except EngineError as error:
        return str(error)
    return ''


@pytest.mark.skipif(
    bool(why_no_tensorrt()) or not why_no_open_shapes(), reason='this TensorRT runs open shapes'
)
def test_engine_with_unsupported_open_shapes_is_refused_with_a_fix(tmp_path, open_plan):
    path = write_engine(tmp_path / 'open.engine', open_plan, (96, 80), DENSE, has_open_shapes=True)
    message = in_new_process(refusal, path)
    print(message)
    assert 'execute_async_v3 failed' in message
    assert message.endswith('build_engine MODEL --shapes 1x3x80x96')


@pytest.mark.parametrize('size', [(56, 48), (264, 192), (64, 104), (256, 64)])
def test_size_outside_all_profiles_is_refused(tmp_path, open_plan, size):
    path = write_engine(tmp_path / 'open.engine', open_plan, size, DENSE, has_open_shapes=True)
    message = (
        rf'no profile includes the shape \[1, 3, {size[1]}, {size[0]}\], only .* to .*, .* to '
    )
    with pytest.raises(EngineError, match=message):
        open_by_parameters(ParameterValues(engine_path=str(path)))


def check_batch(path, content):
    pipeline = open_by_parameters(
        ParameterValues(
            engine_path=str(path),
            model_resize='letterbox',
            model_color_order='rgb',
            model_scale=1 / 255,
            model_decoder='dense',
            model_class_names=CLASS_NAMES,
        )
    )
    try:
        assert pipeline.spec.input.shape == (1, 3, 48, 64), pipeline.spec.input.shape
        return check_frame(pipeline, colour_blocks(640, 480), content)
    finally:
        pipeline.close()


@pytest.mark.parametrize('largest', [1, pytest.param(4, marks=needs_open_shapes)])
def test_open_batch_dimension_becomes_1(tmp_path, largest):
    content = patch_onnx((64, 48), DENSE)
    model = onnx.load_from_string(content)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = 'batch'
    profile = {'images': ((1, 3, 48, 64), (1, 3, 48, 64), (largest, 3, 48, 64))}
    path = tmp_path / 'batch.engine'
    path.write_bytes(build_plan(model.SerializeToString(), profiles=[profile]))
    assert in_new_process(check_batch, path, content) > 0


def check_recognised(path):
    pipeline = open_by_parameters(ParameterValues(engine_path=str(path)))
    try:
        assert not pipeline.spec.has_manifest
        assert any('output float32[1, 8, 48]' in sentence for sentence in pipeline.spec.evidence)
        return check_frame(pipeline, colour_blocks(640, 480), patch_onnx(OPEN, DENSE))
    finally:
        pipeline.close()


def test_engine_without_a_manifest_reports_its_open_output_shapes(tmp_path, fixed_plan):
    metadata = {'task': 'detect', 'imgsz': [48, 64], 'names': list(CLASS_NAMES)}
    metadata |= {'author': 'Ultralytics', 'head': 'Detect'}
    metadata_bytes = json.dumps(metadata).encode()
    path = tmp_path / 'ultralytics.engine'
    path.write_bytes(len(metadata_bytes).to_bytes(4, 'little') + metadata_bytes + fixed_plan)
    assert in_new_process(check_recognised, path) > 0
