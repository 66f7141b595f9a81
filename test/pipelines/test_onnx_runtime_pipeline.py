# SPDX-License-Identifier: Apache-2.0
"""End-to-end tests of the CPU pipeline, with ONNX models that turn known pixels into boxes."""

import json
import sys
import time
import weakref

import numpy as np
import pytest

from support.models.open_model import open_by_parameters
from support.models.support_models import (
    ANCHORS,
    HEIGHT,
    WIDTH,
    file_identity,
    manifest,
    tiny_onnx,
)
from trt_perception.errors import ConfigError, EngineError, ManifestError, TrtPerceptionError
from trt_perception.gpu import bindings
from trt_perception.images.frame import Frame
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.pipeline_options import DecodingLimits, PipelineOptions
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.host import onnx_runtime_pipeline
from trt_perception.pipelines.host.onnx_runtime_pipeline import OnnxRuntimePipeline
from trt_perception.pipelines.warm_up import warm_up

PLAIN = {'mean': [0, 0, 0], 'std': [1, 1, 1]}
ENOUGH = {
    'model__resize': 'letterbox',
    'model__color_order': 'rgb',
    'model__scale': 1 / 255,
    'model__decoder': 'dense',
    'model__class_names': ['cat', 'dog'],
}


def write_onnx(folder, content=None, *, described=True, **changes):
    """Write a model, and its manifest if `described` is true. Return the path of the model."""
    content = tiny_onnx() if content is None else content
    path = folder / 'tiny.onnx'
    path.write_bytes(content)
    if described:
        facts = manifest(onnx=file_identity('tiny.onnx', content), engine=None)
        facts['preprocessing'].update(PLAIN)
        facts['outputs'][0]['shape'] = [1, 6, 2 * ANCHORS]
        path.with_name('tiny.onnx.json').write_text(json.dumps({**facts, **changes}))
    return path


def open_pipeline(path, **values):
    values = {name.replace('__', '.'): value for name, value in values.items()}
    return open_by_parameters(ParameterValues.from_values({'engine_path': str(path), **values}))


def picture(anchors, width=WIDTH, height=HEIGHT):
    """Return a black frame with one pixel for each anchor. The model turns pixels into boxes."""
    rgb = np.zeros((height, width, 3), np.uint8)
    for (row, column), pixel in anchors.items():
        rgb[row, column] = pixel
    return Frame.view(rgb, width=width, height=height, step=3 * width, encoding='rgb8')


def detect(pipeline, frame, thresholds=None):
    assert pipeline.depth == 1
    pipeline.enqueue(0, [frame], [thresholds or Thresholds()])
    assert pipeline.is_done(0) is True
    began = time.perf_counter()
    (result,) = pipeline.collect(0)
    assert 0 < result.compute_s <= time.perf_counter() - began
    found = result.detections
    return [
        ([round(float(side), 2) for side in box], round(float(score), 3), int(class_id))
        for box, score, class_id in zip(found.xyxy, found.scores, found.class_ids, strict=True)
    ]


CAT = {(0, 1): (102, 51, 204)}  # centre 0.4 * 64, size 0.2 * 64, score 0.8
CAT_FOUND = ([19.2, 19.2, 32.0, 32.0], 0.8, 0)
DOG = {(1, 2): (51, 51, 153)}  # centre 0.2 * 64, size 0.2 * 64, score 0.6
DOG_FOUND = ([6.4, 6.4, 19.2, 19.2], 0.6, 1)


def test_black_picture_gives_no_detections(tmp_path):
    assert detect(open_pipeline(write_onnx(tmp_path)), picture({})) == []


def test_known_pixels_give_known_boxes(tmp_path):
    pipeline = open_pipeline(write_onnx(tmp_path))
    assert pipeline.spec.has_manifest
    assert pipeline.spec.class_names == ('cat', 'dog')
    for anchors, expected in [
        (CAT, [CAT_FOUND]),
        (DOG, [DOG_FOUND]),
        ({}, []),
        ({**DOG, **CAT}, [CAT_FOUND, DOG_FOUND]),
    ]:
        assert detect(pipeline, picture(anchors)) == expected


def test_parameters_can_replace_a_missing_manifest(tmp_path):
    pipeline = open_pipeline(write_onnx(tmp_path, described=False), **ENOUGH)
    assert not pipeline.spec.has_manifest
    assert detect(pipeline, picture({**DOG, **CAT})) == [CAT_FOUND, DOG_FOUND]


def test_missing_model_values_are_named_in_the_error(tmp_path, golden_messages):
    with golden_messages.raises(EngineError):
        open_pipeline(write_onnx(tmp_path, described=False))


def test_parameter_color_order_swaps_red_and_blue(tmp_path):
    pipeline = open_pipeline(write_onnx(tmp_path), model__color_order='bgr')
    # Red and blue are swapped, so the centre is 0.8 * 64 and the score 0.4.
    assert detect(pipeline, picture(CAT)) == [([44.8, 44.8, 57.6, 48.0], 0.4, 0)]


def test_boxes_are_in_the_pixels_of_a_larger_source(tmp_path):
    # A source of 128 x 48 pixels is stretched to 64 x 48. A letterbox has 64 x 24 from row 12.
    pipeline = open_pipeline(write_onnx(tmp_path), model__resize='stretch')
    rgb = np.zeros((48, 128, 3), np.uint8)
    rgb[0, 2:4] = CAT[0, 1]
    frame = Frame.view(rgb, width=128, height=48, step=384, encoding='rgb8')
    assert detect(pipeline, frame) == [([38.4, 19.2, 64.0, 32.0], 0.8, 0)]
    pipeline = open_pipeline(write_onnx(tmp_path))
    # The model now reads grey padding. 114 means centre and size 28.6 and score 0.447.
    box = ([28.61, 4.61, 85.84, 48.0], 0.447)
    assert detect(pipeline, frame) == [(*box, 0), (*box, 1)]


def test_each_frame_uses_its_own_thresholds(tmp_path):
    pipeline = open_pipeline(write_onnx(tmp_path))
    frame = picture({**DOG, **CAT})
    assert detect(pipeline, frame, Thresholds(confidence_threshold=0.7)) == [CAT_FOUND]
    assert detect(pipeline, frame, Thresholds(class_ids=(1,))) == [DOG_FOUND]
    assert detect(pipeline, frame) == [CAT_FOUND, DOG_FOUND]
    weaker = {(0, 2): (102, 51, 102)}  # the cat again, at 0.4
    frame = picture({**CAT, **weaker})
    assert detect(pipeline, frame) == [CAT_FOUND]
    assert len(detect(pipeline, frame, Thresholds(iou_threshold=1.0))) == 2


def test_onnx_runtime_gets_the_requested_threads_or_half_of_the_cores(monkeypatch, tmp_path):
    model = read_model_file(write_onnx(tmp_path))
    given = []

    def refuse(file, threads, *_):
        given.append(threads)
        raise EngineError('model', 'not opened here')

    monkeypatch.setattr(onnx_runtime_pipeline, 'OnnxModel', refuse)
    for cores, asked in ((8, 7), (1, 0), (2, 0), (3, 0), (8, 0)):
        monkeypatch.setattr('os.sched_getaffinity', lambda pid, cores=cores: set(range(cores)))
        with pytest.raises(EngineError):
            OnnxRuntimePipeline(model, PipelineOptions(cpu_threads=asked))

    assert given == [7, 1, 1, 1, 4]
    given.clear()
    for nodes, asked in ((2, 7), (2, 0), (3, 0), (8, 0)):
        with pytest.raises(EngineError):
            OnnxRuntimePipeline(
                model, PipelineOptions(cpu_threads=asked, nodes_on_this_machine=nodes)
            )
    assert given == [7, 2, 1, 1]


def test_pipeline_applies_decoder_parameters(tmp_path):
    same_place = {**CAT, (1, 0): (102, 51, 153)}
    path = write_onnx(tmp_path)
    assert len(detect(open_pipeline(path), picture(same_place))) == 2
    assert len(detect(open_pipeline(path, class_agnostic_nms=True), picture(same_place))) == 1
    assert detect(open_pipeline(path, max_detections=1), picture({**DOG, **CAT})) == [CAT_FOUND]
    options = PipelineOptions(limits=DecodingLimits(max_candidates=1, class_agnostic=True))
    pipeline = OnnxRuntimePipeline(read_model_file(path), options)
    assert detect(pipeline, picture({**DOG, **CAT})) == [CAT_FOUND]


def test_half_precision_model_finds_the_object(tmp_path):
    content = tiny_onnx(dtype='FLOAT16')
    path = write_onnx(tmp_path, content, described=False)
    pipeline = open_pipeline(path, **ENOUGH)
    assert pipeline.spec.preprocessing.dtype == 'float16'
    ((box, score, class_id),) = detect(pipeline, picture(CAT))
    assert box == pytest.approx(CAT_FOUND[0], abs=0.02)
    assert score == pytest.approx(0.8, abs=1e-3)
    assert class_id == 0


def test_input_size_fixes_dynamic_dimensions(tmp_path, golden_messages):
    content = tiny_onnx(shape=('batch', 3, 'height', 'width'), output_shape=('batch', 'rows', 'n'))
    path = write_onnx(tmp_path, content, described=False)
    with golden_messages.raises(EngineError):
        open_pipeline(path, **ENOUGH)
    pipeline = open_pipeline(path, model__input_size=[WIDTH, HEIGHT], **ENOUGH)
    assert pipeline.spec.input.shape == (1, 3, HEIGHT, WIDTH)
    assert detect(pipeline, picture(CAT)) == [CAT_FOUND]


def test_dynamic_output_of_the_wrong_size_raises_an_engine_error(tmp_path, golden_messages):
    content = tiny_onnx(output_shape=(1, 'rows', 'n'), hidden_rows=True)
    path = write_onnx(tmp_path, content, described=False)
    pipeline = open_pipeline(path, **ENOUGH)
    assert pipeline.spec.outputs[0].shape[1] == -1
    assert detect(pipeline, picture(CAT)) == [CAT_FOUND]
    # The model returns six rows. One class would need five rows, and three classes seven.
    for names in (['cat'], ['cat', 'dog', 'fox']):
        pipeline = open_pipeline(path, **{**ENOUGH, 'model__class_names': names})
        with golden_messages.raises(EngineError):
            warm_up(pipeline)


@pytest.mark.parametrize('content', [b'x', b'\0' * 1000, tiny_onnx()[:-50], b'not a model'])
@pytest.mark.parametrize('described', [False, True])
def test_file_without_a_valid_model_is_refused(tmp_path, content, described, golden_messages):
    path = write_onnx(tmp_path, content, described=described)
    with golden_messages.raises(EngineError) as caught:
        open_pipeline(path)
    assert caught.value.__cause__ is not None


def test_manifest_of_another_model_is_refused(tmp_path, golden_messages):
    described = [{'name': 'images', 'shape': [1, 3, 99, 64], 'dtype': 'float32'}]
    with golden_messages.raises(ManifestError):
        open_pipeline(write_onnx(tmp_path, inputs=described))


def test_model_with_a_grey_input_is_refused(tmp_path, golden_messages):
    # The model never runs, so the nodes behind the input do not matter.
    content = tiny_onnx(shape=(1, 1, 48, 64), output_shape=('b', 6, 'n'))
    path = write_onnx(tmp_path, content, described=False)
    with golden_messages.raises(EngineError):
        open_pipeline(path, **ENOUGH)


def test_empty_path_is_refused_with_an_example(golden_messages):
    with golden_messages.raises(ConfigError):
        open_by_parameters(ParameterValues())


@pytest.mark.parametrize('suffix', ['.engine', '.plan', '.trt'])
@pytest.mark.parametrize('has_driver', [True, False])
def test_engine_without_cuda_bindings_mentions_the_missing_driver_or_package(
    tmp_path, suffix, has_driver, monkeypatch, golden_messages
):
    monkeypatch.setattr(bindings, '_has_driver', lambda: has_driver)
    path = tmp_path / f'tiny{suffix}'
    path.write_bytes(b'ptrt')
    monkeypatch.setitem(sys.modules, 'cuda.bindings', None)  # simulates a missing package
    bindings.load_bindings.cache_clear()
    with golden_messages.raises(TrtPerceptionError):
        open_pipeline(path)


def test_onnx_runtime_gets_the_thread_count_and_must_not_spin(tmp_path):
    options = open_pipeline(
        write_onnx(tmp_path), cpu_threads=3
    )._model._session.get_session_options()
    assert options.intra_op_num_threads == 3
    assert options.inter_op_num_threads == 1
    assert options.get_session_config_entry('session.intra_op.allow_spinning') == '0'


def test_missing_onnx_runtime_gives_the_install_command(tmp_path, monkeypatch, golden_messages):
    monkeypatch.setitem(sys.modules, 'onnxruntime', None)
    with golden_messages.raises(EngineError):
        open_pipeline(write_onnx(tmp_path))


def test_pipeline_can_be_closed_twice(tmp_path):
    pipeline = open_pipeline(write_onnx(tmp_path))
    detect(pipeline, picture(CAT))
    model = weakref.ref(pipeline._model)
    pipeline.close()
    pipeline.close()
    assert model() is None  # freed at once
