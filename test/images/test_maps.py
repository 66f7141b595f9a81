# SPDX-License-Identifier: Apache-2.0
"""Tests of resized class and depth maps, against ONNX Runtime's operator Resize."""

import pickle
import threading
from dataclasses import asdict

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from trt_perception.images.detections import Detections
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results import class_map
from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.class_scores import ClassScores
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.images.results.map_resize import resize_map
from trt_perception.images.results.map_size import map_size_mistake, map_size_wh

RESIZE_ATTRIBUTES = {
    'bilinear': {'mode': 'linear', 'coordinate_transformation_mode': 'half_pixel'},
    'bicubic': {'mode': 'cubic', 'coordinate_transformation_mode': 'half_pixel'},
    'bilinear_aligned': {'mode': 'linear', 'coordinate_transformation_mode': 'align_corners'},
    'nearest': {
        'mode': 'nearest',
        'coordinate_transformation_mode': 'asymmetric',
        'nearest_mode': 'floor',
    },
}
SIZES = [(517, 333), (1920, 1080), (333, 517)]


def resized_by_onnx(values, size_wh, upsampling):
    """Resize float32 (channels, rows, columns) with the operator Resize."""
    sizes = np.array([1, len(values), *size_wh[::-1]], np.int64)
    node = helper.make_node(
        'Resize', ['x', '', '', 'sizes'], ['y'], **RESIZE_ATTRIBUTES[upsampling]
    )
    graph = helper.make_graph(
        [node],
        'resize',
        [helper.make_tensor_value_info('x', TensorProto.FLOAT, [1, *values.shape])],
        [helper.make_tensor_value_info('y', TensorProto.FLOAT, sizes.tolist())],
        [onnx.numpy_helper.from_array(sizes, 'sizes')],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 18)], ir_version=9)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=['CPUExecutionProvider']
    )
    return session.run(None, {'x': values[None]})[0][0]


def stretched(size_wh, network_wh=(320, 240)):
    return Letterbox.fit(size_wh, network_wh, 'stretch')


@pytest.mark.parametrize('upsampling', RESIZE_ATTRIBUTES)
@pytest.mark.parametrize('size', SIZES)
def test_map_is_resized_as_by_onnx_runtime(size, upsampling):
    values = np.random.default_rng(1).standard_normal((1, 61, 83)).astype('f4')
    expected = resized_by_onnx(values, size, upsampling)[0]
    np.testing.assert_allclose(resize_map(values[0], size, upsampling), expected, atol=2e-4)


@pytest.mark.parametrize('size', SIZES)
def test_logits_are_resized_before_the_best_class_is_chosen(size):
    logits = np.random.default_rng(2).standard_normal((9, 30, 40)).astype('f4') * 3
    found = ClassMap(logits, stretched(size))
    resized = resized_by_onnx(logits, size, 'bilinear')
    second, best = np.sort(resized, axis=0)[-2:]
    is_clear = best - second > 1e-4 * np.ptp(resized)
    assert is_clear.mean() > 0.99
    assert (found.class_ids() == resized.argmax(0))[is_clear].all()
    early = resized_by_onnx(logits.argmax(0)[None].astype('f4'), size, 'nearest')[0]
    assert (found.class_ids() == early).mean() < 0.9
    softmax = np.exp(resized - best) / np.exp(resized - best).sum(0)
    np.testing.assert_allclose(found.confidence() / 255, softmax.max(0), atol=0.5 / 255 + 1e-4)


def test_both_maps_resize_the_logits_for_the_best_class_once(monkeypatch):
    logits = np.random.default_rng(6).standard_normal((9, 30, 40)).astype('f4')
    expected = ClassMap(logits, stretched((517, 333))).class_ids()
    found, resized = ClassMap(logits, stretched((517, 333))), []
    monkeypatch.setattr(
        class_map, 'resize_map', lambda *args: resized.append(1) or resize_map(*args)
    )
    threads = [threading.Thread(target=map_) for map_ in (found.class_ids, found.confidence)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Once for the best class, and once for the sum of the softmax.
    assert len(resized) == 2 * len(logits)
    found.class_ids()[:] = 200
    assert (found.class_ids() == expected).all()
    assert len(resized) == 2 * len(logits)
    assert found.class_ids((50, 40)).shape == (40, 50)
    assert (found.class_ids() == expected).all()
    unused = ClassMap(logits, stretched((517, 333)))
    assert len(pickle.dumps(found)) == len(pickle.dumps(unused))
    assert (pickle.loads(pickle.dumps(found)).class_ids() == expected).all()
    # Again for another size, for the first size after it, and for the map from the pickle.
    assert len(resized) == 5 * len(logits)


def test_used_classes_are_converted_to_a_dictionary():
    found = ClassMap(np.ones((2, 30, 40), 'f4'), stretched((60, 50)))
    found.class_ids()
    assert list(asdict(found)) == ['grid', 'letterbox']


@pytest.mark.parametrize('mode', ['letterbox', 'letterbox_top_left'])
@pytest.mark.parametrize('size', SIZES)
def test_padding_is_removed_before_ids_are_resized(size, mode):
    letterbox = Letterbox.fit(size, (640, 480), mode)
    left, top = letterbox.pad_left, letterbox.pad_top
    width, height = letterbox.resized_wh
    ids = np.full((480, 640), 7, np.uint8)
    inside = np.random.default_rng(3).integers(0, 6, (height, width), np.uint8)
    ids[top : top + height, left : left + width] = inside
    found = ClassMap(ids, letterbox)
    expected = resized_by_onnx(inside[None].astype('f4'), size, 'nearest')[0]
    assert not found.has_confidence
    assert found.confidence() is None
    assert found.class_ids().dtype == np.uint8
    assert (found.class_ids() == expected).mean() > 0.999
    assert found.class_ids().max() < 6


def test_padding_that_ends_inside_a_cell_is_removed_at_the_networks_size():
    letterbox = Letterbox.fit((500, 310), (160, 160), 'letterbox')
    assert letterbox.pad_top % 4
    values = np.random.default_rng(4).standard_normal((40, 40)).astype('f4')
    whole = resized_by_onnx(values[None], (160, 160), 'bilinear')[0]
    top, height = letterbox.pad_top, letterbox.resized_wh[1]
    expected = resized_by_onnx(whole[None, top : top + height], (500, 310), 'bilinear')[0]
    found = DepthMap(values, letterbox, 'bilinear', is_metric=False).depth()
    np.testing.assert_allclose(found, expected, atol=2e-4)


def test_map_has_the_size_that_the_caller_wants():
    values = np.random.default_rng(5).standard_normal((1, 30, 40)).astype('f4')
    found = DepthMap(values[0], stretched((517, 333)), 'bicubic', is_metric=False)
    expected = resized_by_onnx(values, (400, 200), 'bicubic')[0]
    np.testing.assert_allclose(found.depth((400, 200)), expected, atol=2e-4)


@pytest.mark.parametrize(
    ('text', 'mode', 'expected'),
    [
        ('source', 'letterbox', (500, 310)),
        ('network', 'letterbox', (160, 99)),
        ('network', 'letterbox_top_left', (160, 99)),
        ('network', 'stretch', (160, 160)),
        ('400x200', 'letterbox', (400, 200)),
        ('32767x1', 'stretch', (32767, 1)),
        ('8192x4096', 'stretch', (8192, 4096)),
    ],
)
def test_text_names_the_size_of_a_map(text, mode, expected):
    letterbox = Letterbox.fit((500, 310), (160, 160), mode)
    assert map_size_mistake(text) is None
    assert map_size_wh(text, letterbox) == expected


@pytest.mark.parametrize('size', [(0, 5), (5, -1), (40000, 5), (5,), (1.5, 2), '9x9', 7], ids=str)
def test_impossible_size_of_a_map_is_refused(size):
    depth = DepthMap(np.ones((30, 40), 'f4'), stretched((60, 50)), 'bicubic', is_metric=False)
    classes = ClassMap(np.ones((2, 30, 40), 'f4'), stretched((60, 50)))
    for resized in (depth.depth, classes.class_ids, classes.confidence):
        with pytest.raises(ValueError, match='width, height'):
            resized(size)


def test_map_in_the_size_of_the_network_is_the_output_without_padding():
    letterbox = Letterbox.fit((500, 310), (160, 160), 'letterbox')
    values = np.random.default_rng(6).standard_normal((160, 160)).astype('f4')
    top, (width, height) = letterbox.pad_top, letterbox.resized_wh
    found = DepthMap(values, letterbox, 'bilinear_aligned', is_metric=False)
    expected = values[top : top + height]
    np.testing.assert_allclose(found.depth((width, height)), expected, atol=1e-5)


def test_best_classes_come_first_and_the_lower_id_wins_ties():
    found = ClassScores(np.array([0.1, 0.3, 0.05, 0.3, 0.25], 'f4'))
    ids, scores = found.best(4)
    assert ids.tolist() == [1, 3, 4, 0]
    assert scores.tolist() == found.scores[ids].tolist()
    assert found.best(1000)[0].tolist() == [1, 3, 4, 0, 2]
    assert found.best(0)[0].tolist() == []
    with pytest.raises(ValueError, match='at least 0'):
        found.best(-1)


def test_metric_depth_is_positive_or_unknown():
    grid = np.array([[2, 0, -1, np.inf]], np.float32)
    letterbox = Letterbox.fit((4, 1), (4, 1), 'stretch')
    metric = DepthMap(grid, letterbox, 'nearest', is_metric=True).depth()
    np.testing.assert_array_equal(metric, [[2, np.nan, np.nan, np.nan]])
    relative = DepthMap(grid, letterbox, 'nearest', is_metric=False).depth()
    np.testing.assert_array_equal(relative, [[2, 0, -1, np.nan]])


def test_printed_results_have_shapes_instead_of_values():
    letterbox = Letterbox.fit((400, 200), (40, 20), 'stretch')
    for result, part in (
        (DepthMap(np.ones((20, 40), np.float32), letterbox, 'bilinear', True), 'float32 (20, 40)'),
        (ClassMap(np.ones((20, 40), np.uint8), letterbox), 'uint8 (20, 40)'),
        (ClassScores(np.ones(1000, np.float32)), 'float32 (1000,)'),
        (Detections.empty(), 'xyxy=float32 (0, 4)'),
    ):
        assert part in repr(result)
        assert len(repr(result)) < 250
