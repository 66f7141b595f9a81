# SPDX-License-Identifier: Apache-2.0
"""Models that derive the size of their input from the images, as Depth Anything."""

import json
import logging
import weakref

import cv2
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from support.models.image_models import write_depth_anything
from support.models.open_model import open_by_parameters
from trt_perception import api
from trt_perception.errors import GpuMemoryError, ImageError
from trt_perception.images.frame import DeferredFrame, frame_from_bgr
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.building.steps.validation import open_model
from trt_perception.offline.tools.benchmark_engine import main as benchmark_engine
from trt_perception.offline.tools.evaluate_engine import main as evaluate_engine
from trt_perception.offline.tools.write_manifest import main as write_manifest
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.pipeline import detect_one
from trt_perception.pipelines.warm_up import warm_up
from trt_perception.stages.onnx_runtime import OnnxModel

WIDE, TALL, SQUARE = (160, 90), (90, 160), (80, 80)
#: Sizes of the network for these images: 56 x 160 / 90 is nearest to 98.
WIDE_NETWORK, TALL_NETWORK = (98, 56), (56, 98)


def picture(size_wh, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (*size_wh[::-1], 3), np.uint8)


def frame(size_wh):
    return frame_from_bgr(picture(size_wh))


def opened(path, **values):
    return open_by_parameters(ParameterValues.from_values({'engine_path': str(path), **values}))


def depth_of(pipeline, size_wh):
    return detect_one(pipeline, frame(size_wh), Thresholds()).found


@pytest.mark.parametrize('described_by_manifest', [False, True])
@pytest.mark.parametrize(('size', 'network'), [(WIDE, WIDE_NETWORK), (TALL, TALL_NETWORK)])
def test_first_image_decides_the_size(size, network, described_by_manifest, tmp_path):
    path = write_depth_anything(tmp_path)
    if described_by_manifest:
        assert write_manifest([str(path)]) == 0
        (tmp_path / 'config.json').unlink()
    pipeline = opened(path)
    warm_up(pipeline)  # does not decide the size
    assert pipeline.spec.preprocessing.input_size == (56, 56)
    found = depth_of(pipeline, size)
    assert found.grid.shape == network[::-1]
    assert pipeline.spec.preprocessing.input_size == network
    fixed = opened(path, **{'model.input_size': list(network)})
    np.testing.assert_array_equal(found.depth(), depth_of(fixed, size).depth())
    for each in (pipeline, fixed):
        each.close()


def test_later_image_for_another_network_is_refused(tmp_path, golden_messages):
    pipeline = opened(write_depth_anything(tmp_path))
    depth_of(pipeline, WIDE)
    assert depth_of(pipeline, (320, 180)).grid.shape == WIDE_NETWORK[::-1]
    for size in (TALL, SQUARE):
        with pytest.raises(ImageError) as caught:
            depth_of(pipeline, size)
        assert caught.value.reason == 'changed_size'
        golden_messages.add(caught.value)
    assert depth_of(pipeline, WIDE).grid.shape == WIDE_NETWORK[::-1]
    pipeline.close()


@pytest.mark.parametrize('size', [(32767, 56), (56, 32767), (2000, 90)])
def test_image_for_a_huge_network_is_refused_and_does_not_decide_the_size(
    size, tmp_path, golden_messages
):
    pipeline = opened(write_depth_anything(tmp_path))
    for first in (None, WIDE, WIDE):
        if first:
            assert depth_of(pipeline, first).grid.shape == WIDE_NETWORK[::-1]
        with pytest.raises(ImageError) as caught:
            depth_of(pipeline, size)
        assert caught.value.reason == 'too_large'
    golden_messages.add(caught.value)
    pipeline.close()


def test_model_that_could_not_be_opened_again_is_opened_for_the_next_image(tmp_path, monkeypatch):
    pipeline = opened(write_depth_anything(tmp_path))

    def fail(options):
        raise GpuMemoryError('2 GB of GPU memory', 'could not be allocated')

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, '_open_model', fail)
        for _ in range(2):
            with pytest.raises(GpuMemoryError):
                depth_of(pipeline, WIDE)
    assert depth_of(pipeline, SQUARE).grid.shape == (56, 56)  # the size of the closed model
    pipeline.close()


def test_image_for_which_memory_is_missing_is_refused(tmp_path, monkeypatch, golden_messages):
    pipeline = opened(write_depth_anything(tmp_path))
    open_model = pipeline._open_model

    def open_small(options):
        if options.overrides.image_wh == WIDE:
            raise GpuMemoryError('2 GB of GPU memory', 'could not be allocated')
        return open_model(options)

    monkeypatch.setattr(pipeline, '_open_model', open_small)
    for _ in range(2):
        with pytest.raises(ImageError) as caught:
            depth_of(pipeline, WIDE)
        assert caught.value.reason == 'too_large'
    golden_messages.add(caught.value)
    assert depth_of(pipeline, TALL).grid.shape == TALL_NETWORK[::-1]
    pipeline.close()


@pytest.mark.parametrize('described_by_manifest', [False, True])
def test_image_for_which_the_network_fails_is_refused(
    described_by_manifest, tmp_path, monkeypatch
):
    """Exports often fix the size of the position embedding, although the sides are open."""
    path = write_depth_anything(tmp_path)
    model = onnx.load(path)
    model.graph.node[0].output[0] = 'mean'
    model.graph.node.append(helper.make_node('Add', ['mean', 'embedding'], ['output']))
    embedding = numpy_helper.from_array(np.ones((1, 56, 56), np.float32), 'embedding')
    model.graph.initializer.append(embedding)
    onnx.save(model, path)
    if described_by_manifest:
        assert write_manifest([str(path)]) == 0
    pipeline = opened(path)
    open_model, models, live = pipeline._open_model, [], []

    def open_and_count(options):
        live.append(sum(model() is not None for model in models))
        made = open_model(options)
        models.append(weakref.ref(made._model))
        return made

    monkeypatch.setattr(pipeline, '_open_model', open_and_count)
    with pytest.raises(ImageError) as caught:
        depth_of(pipeline, WIDE)
    assert caught.value.reason == 'changed_size'
    assert live == [0, 0]  # two models may need too much memory
    assert depth_of(pipeline, SQUARE).grid.shape == (56, 56)
    pipeline.close()


def answer_wrongly(monkeypatch, is_wrong):
    """Let runs return no rows if a function of the input's width and height says so."""
    run = OnnxModel.run

    def run_or_cut(model, tensors):
        outputs = run(model, tensors)
        height, width = tensors['images'].shape[2:]
        return [output[:, :0] if is_wrong((width, height)) else output for output in outputs]

    monkeypatch.setattr(OnnxModel, 'run', run_or_cut)


def test_size_for_which_the_outputs_have_wrong_shapes_is_refused(tmp_path, monkeypatch):
    pipeline = opened(write_depth_anything(tmp_path))
    answer_wrongly(monkeypatch, lambda size: size == WIDE_NETWORK)
    with pytest.raises(ImageError) as caught:
        depth_of(pipeline, WIDE)
    assert caught.value.reason == 'changed_size'
    assert depth_of(pipeline, SQUARE).grid.shape == (56, 56)
    pipeline.close()


def test_one_output_of_a_wrong_shape_does_not_refuse_its_size(tmp_path, monkeypatch):
    pipeline = opened(write_depth_anything(tmp_path))
    sizes = []

    def is_first_wide(size):
        sizes.append(size)
        return size == WIDE_NETWORK and sizes.count(size) == 1

    answer_wrongly(monkeypatch, is_first_wide)
    assert depth_of(pipeline, WIDE).grid.shape == WIDE_NETWORK[::-1]
    assert sizes.count(WIDE_NETWORK) == 3  # the odd one, its confirmation, and the batch
    pipeline.close()


def test_pipeline_says_why_frames_wait_until_the_first_result(tmp_path, monkeypatch):
    pipeline = opened(write_depth_anything(tmp_path))
    open_model, said = pipeline._open_model, []

    def open_slowly(options):
        said.append(pipeline.opening_reason)
        return open_model(options)

    monkeypatch.setattr(pipeline, '_open_model', open_slowly)
    assert not pipeline.opening_reason
    pipeline.enqueue(0, [frame(WIDE)], [Thresholds()])
    assert said == [pipeline.opening_reason] != ['']
    pipeline.collect(0)
    assert not pipeline.opening_reason
    depth_of(pipeline, WIDE)
    assert len(said) == 1
    pipeline.close()


class _Inner:
    """A pipeline of batches that returns the frames."""

    depth = max_in_flight = 2
    batch = 8
    decodes_jpeg = True
    diagnostic_values = ()
    opening_reason = ''

    def __init__(self, spec):
        self.spec = spec
        self.slots = {}

    def enqueue(self, slot, frames, thresholds):
        assert len(frames) == len(thresholds) > 0
        self.slots[slot] = list(frames)

    def is_done(self, slot):
        return slot in self.slots

    def collect(self, slot):
        return self.slots.pop(slot)

    def close(self):
        self.slots.clear()


def test_refused_frames_of_a_batch_keep_their_places(tmp_path):
    pipeline = opened(write_depth_anything(tmp_path))
    depth_of(pipeline, WIDE)
    pipeline.opened.close()
    pipeline.opened = _Inner(pipeline.spec)

    def unreadable():
        raise ImageError('not_decodable', 'image', 'damaged')

    wide, tall = frame(WIDE), frame(TALL)
    batch = [tall, DeferredFrame(lambda: wide), DeferredFrame(unreadable), wide, tall]
    pipeline.enqueue(1, batch, [Thresholds()] * len(batch))
    pipeline.enqueue(0, [tall], [Thresholds()])
    assert pipeline.is_done(0)
    assert pipeline.is_done(1)
    assert [error.reason for error in pipeline.collect(0)] == ['changed_size']
    found = [getattr(one, 'reason', one) for one in pipeline.collect(1)]
    assert found == ['changed_size', wide, 'not_decodable', wide, 'changed_size']


def warnings_of(caplog):
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


def test_fixed_size_is_kept_with_one_warning(tmp_path, caplog, golden_messages):
    path = write_depth_anything(tmp_path)
    pipeline = opened(path, **{'model.input_size': [56, 56]})
    for size in (SQUARE, TALL):
        assert depth_of(pipeline, size).grid.shape == (56, 56)
    assert warnings_of(caplog) == []  # only the first image is compared
    pipeline.close()
    model = onnx.load(path)
    for tensor in (*model.graph.input, *model.graph.output):
        for side, value in zip(tensor.type.tensor_type.shape.dim[-2:], (56, 70), strict=True):
            side.dim_value = value
    onnx.save(model, path)
    pipeline = opened(path)
    for _ in range(2):
        assert depth_of(pipeline, WIDE).grid.shape == (56, 70)
    (warning,) = warnings_of(caplog)
    golden_messages.add(warning)
    pipeline.close()


def test_python_api_follows_the_first_image(tmp_path):
    with api.load(write_depth_anything(tmp_path)) as model:
        assert model(picture(WIDE)).grid.shape == WIDE_NETWORK[::-1]
        with pytest.raises(ImageError) as caught:
            model([picture(WIDE), picture(TALL)])
        assert caught.value.reason == 'changed_size'
        assert model(picture(WIDE)).grid.shape == WIDE_NETWORK[::-1]


def test_benchmark_refuses_images_for_a_huge_network(tmp_path):
    path = write_depth_anything(tmp_path)
    words = ['--frames', '2', '--warmup', '0', '--size', '2000x56']
    assert benchmark_engine([str(path), *words]) == 1


def test_benchmark_measures_the_derived_size(tmp_path):
    path, saved = write_depth_anything(tmp_path), tmp_path / 'r.json'
    words = ['--frames', '2', '--warmup', '0', '--size', '160x90', '--json', str(saved)]
    assert benchmark_engine([str(path), *words]) == 0
    (report,) = json.loads(saved.read_text())['models']
    assert report['input']['shape'] == [1, 3, *WIDE_NETWORK[::-1]]


@pytest.mark.parametrize('fixed_first', [False, True])
def test_models_are_compared_at_the_fixed_size(fixed_first, tmp_path):
    for name in ('open', 'fixed'):
        (tmp_path / name).mkdir()
        write_depth_anything(tmp_path / name)
    fixed = tmp_path / 'fixed' / 'model.onnx'
    model = onnx.load(fixed)
    for tensor in (*model.graph.input, *model.graph.output):
        for side in tensor.type.tensor_type.shape.dim[-2:]:
            side.dim_value = 56
    onnx.save(model, fixed)
    images = tmp_path / 'images'
    images.mkdir()
    onnx_files = [str(fixed), str(tmp_path / 'open' / 'model.onnx')][:: 1 if fixed_first else -1]
    cv2.imwrite(str(images / '0.png'), picture(WIDE))
    saved = tmp_path / 'r.json'
    assert evaluate_engine([*onnx_files, '--images', str(images), '--json', str(saved)]) == 0
    models = json.loads(saved.read_text())['models']
    assert [one['agreement']['mean'] for one in models.values() if one['agreement']] == [1]


def test_build_compares_at_the_size_of_the_engine(tmp_path):
    path = write_depth_anything(tmp_path)
    assert write_manifest([str(path)]) == 0
    with open_model(read_model_file(path)) as pipeline:
        assert depth_of(pipeline, WIDE).grid.shape == (56, 56)
