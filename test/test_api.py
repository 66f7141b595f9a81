# SPDX-License-Identifier: Apache-2.0
"""Test the Python interface without ROS: the public names, and the behaviour of a Model."""

import copy
import doctest
import gc
import pickle
import re
import subprocess
import sys
import threading
import tracemalloc
import weakref
from dataclasses import fields
from pathlib import Path
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest

import trt_perception as tp
from support.docs_pages import blocks
from support.models.image_models import IMAGE_TASKS, NAMES, write_image_model
from support.models.open_model import open_by_parameters
from support.models.recorded_exports import recorded_values, write_export
from trt_perception.images.frame import frame_from_bgr
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.pipeline import detect_one

ROOT = Path(__file__).resolve().parents[1]
DIGITS = ROOT / 'models' / 'digits.onnx'
SCENES = sorted((ROOT / 'demo' / 'scenes').glob('*.jpg'))


@pytest.fixture(scope='module')
def model():
    with tp.load(DIGITS) as opened:
        yield opened


@pytest.fixture(scope='module')
def images():
    return [cv2.imread(str(path)) for path in SCENES[4:8]]


def same(found, expected):
    return all(
        np.array_equal(getattr(found, name), getattr(expected, name))
        for name in ('xyxy', 'scores', 'class_ids')
    )


def test_package_exports_only_the_public_names(golden_messages):
    assert sorted(tp.__all__) == [
        'ClassMap',
        'ClassScores',
        'DepthMap',
        'Detections',
        'Model',
        'Tracker',
        'TrtPerceptionError',
        '__version__',
        'load',
    ]
    assert set(tp.__all__) <= set(dir(tp))
    assert [name for name in tp.__all__ if not hasattr(tp, name)] == []
    with golden_messages.raises(AttributeError):
        getattr(tp, 'nothing')  # noqa: B009


def test_version_is_the_same_everywhere():
    package = ElementTree.parse(ROOT / 'package.xml').findtext('version')
    assert re.findall(r"^    version='(.*)',$", (ROOT / 'setup.py').read_text(), re.M) == [package]
    assert tp.__version__ == package


def test_call_with_one_image_gives_the_detections_of_the_pipeline(model, images):
    parameters = ParameterValues.from_values({'engine_path': str(DIGITS)})
    pipeline = open_by_parameters(parameters)
    expected = detect_one(pipeline, frame_from_bgr(images[0]), Thresholds()).detections
    pipeline.close()
    found = model(images[0])
    assert isinstance(found, tp.Detections)
    assert len(found) > 2
    assert same(found, expected)


def test_list_of_images_of_different_sizes_gives_results_in_order(model, images):
    mixed = [images[0], images[1][:301, :211], images[2]]
    found = model(mixed)
    assert isinstance(found, list)
    assert all(same(one, model(image)) for one, image in zip(found, mixed, strict=True))
    assert model([]) == []


def test_thresholds_of_a_call_do_not_affect_later_calls(model, images):
    before = model(images[0])
    high = model(images[0], confidence_threshold=float(np.median(before.scores)))
    assert 0 < len(high) < len(before)
    assert same(high, before.take(np.arange(len(high))))
    name = model.class_names[before.class_ids[0]]
    only = model(images[0], class_filter=[name])
    assert {model.class_names[index] for index in only.class_ids} == {name}
    assert same(model(images[0]), before)


def test_image_that_is_not_contiguous_gives_the_same_detections(model, images):
    wide = np.repeat(images[0], 2, axis=1)
    assert same(model(wide[:, ::2]), model(images[0]))


@pytest.mark.parametrize(
    'image',
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        'image.jpg',
        None,
        b'\xff\xd8\xff',
        b'',
        memoryview(b'\x89PNG'),
    ],
    ids=['grey', 'four channels', 'float', 'a path', 'nothing', 'JPEG', 'empty', 'a view'],
)
def test_value_other_than_a_bgr_image_is_refused(model, image, golden_messages):
    with golden_messages.raises(ValueError):
        model([image])
    with golden_messages.raises(ValueError):
        model(image)


@pytest.mark.parametrize(
    'arguments',
    [
        {'confidence_threshold': 1.5},
        {'iou_threshold': -1},
        {'class_filter': ['zebra']},
        {'class_filter': '7'},
    ],
)
def test_invalid_thresholds_are_refused(model, images, arguments, golden_messages):
    with golden_messages.raises(tp.TrtPerceptionError):
        model(images[0], **arguments)


@pytest.mark.parametrize('name', ['enabled', 'image_qos_depth', 'cameras'])
def test_load_refuses_parameters_that_only_nodes_use(name, golden_messages):
    with golden_messages.raises(tp.TrtPerceptionError):
        tp.load(DIGITS, **{name: 1})


@pytest.mark.parametrize('name', ['conf', 'model', 'imgsz', 'classes', 'half', 'quux'])
def test_load_names_the_parameter_for_a_name_of_another_package(name, golden_messages):
    with golden_messages.raises(tp.TrtPerceptionError):
        tp.load(DIGITS, **{name: 1})


@pytest.mark.parametrize('name', ['conf', 'iou', 'verbose', 'max_detections'])
def test_call_names_the_keyword_for_an_unknown_one(model, images, name, golden_messages):
    with golden_messages.raises(tp.TrtPerceptionError):
        model(images[0], **{name: 0.5})


def test_load_applies_valid_parameters_and_refuses_invalid_values(images, golden_messages):
    names = [f'digit {index}' for index in range(10)]
    with tp.load(str(DIGITS), max_detections=2, model_class_names=names) as strict:
        assert strict.class_names == tuple(names)
        assert len(strict(images[0])) == 2
    with golden_messages.raises(tp.TrtPerceptionError):
        tp.load(DIGITS, class_filter=['zebra'])
    with golden_messages.raises(tp.TrtPerceptionError):
        tp.load(DIGITS, confidence_treshold=0.5)
    with golden_messages.raises(tp.TrtPerceptionError):
        tp.load('nowhere.onnx')


def test_numpy_values_of_parameters_have_the_effect_of_python_values(images):
    names = np.array([f'digit {index}' for index in range(10)])
    arguments = {
        'confidence_threshold': np.float32(0.5),
        'max_detections': np.int64(2),
        'class_agnostic_nms': np.bool_(True),
        'model_input_size': np.array([640, 480]),
        'model_mean': [np.float64(0), np.float32(0), 0],
        'model_class_names': names,
    }
    plain = {
        'confidence_threshold': 0.5,
        'max_detections': 2,
        'class_agnostic_nms': True,
        'model_input_size': [640, 480],
        'model_mean': [0, 0, 0],
        'model_class_names': names.tolist(),
    }
    with tp.load(DIGITS, **arguments) as one, tp.load(DIGITS, **plain) as other:
        assert same(one(images[0]), other(images[0]))
        assert same(
            one(images[0], iou_threshold=np.float64(0.4), class_filter=names[5:]),
            other(images[0], iou_threshold=0.4, class_filter=plain['model_class_names'][5:]),
        )


def test_model_parameters_may_omit_their_prefix(images):
    names = [f'digit {index}' for index in range(10)]
    with tp.load(DIGITS, class_names=names, decoder='dense') as model:
        assert model.class_names == tuple(names)
        assert len(model(images[0])) > 2


@pytest.mark.parametrize(
    'arguments',
    [
        {'model_class_names': ['a'], 'model.class_names': ['a']},
        {'model_class_names': ['a'], 'class_names': ['a']},
        {'engine_path': 'model.onnx'},
        {'confidence_threshold': np.array([0.5, 0.6])},
        {'max_detections': np.float64(2)},
    ],
    ids=[
        'two spellings',
        'without the prefix',
        'second path',
        'array for a number',
        'float for an integer',
    ],
)
def test_ambiguous_or_wrong_values_are_refused(arguments, golden_messages):
    with golden_messages.raises(tp.TrtPerceptionError):
        tp.load(DIGITS, **arguments)


@pytest.mark.parametrize('size', [(40_000, 2), (30_000, 30_000)])
def test_too_large_array_is_refused_before_it_is_copied(model, size, golden_messages):
    # The pixels share one byte, so only a copy needs memory.
    image = np.broadcast_to(np.uint8(114), (*size, 3))

    tracemalloc.start()
    try:
        with golden_messages.raises(tp.TrtPerceptionError):
            model(image)
        with golden_messages.raises(tp.TrtPerceptionError):
            model([image, image])
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_closed_model_refuses_images_and_says_that_it_is_closed(images, golden_messages):
    model = tp.load(DIGITS)
    opened = repr(model)
    model.close()
    assert repr(model) != opened
    model.close()
    with golden_messages.raises(ValueError):
        model(images[0])


def test_threads_that_share_a_model_get_their_own_detections(model, images):
    expected = [model(image) for image in images]
    found = [None] * len(images)

    def run(index):
        for _ in range(3):
            found[index] = model(images[index])

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(images))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=100)
    assert all(same(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize('name', sorted({*tp.__all__} - {'__version__'}))
def test_examples_of_docstrings_run(name, tmp_path, monkeypatch):
    if name == 'Tracker':
        pytest.importorskip('scipy', reason='needs scipy')
    monkeypatch.chdir(tmp_path)
    for path in [*DIGITS.parent.glob('*.onnx'), *DIGITS.parent.glob('*.onnx.json')]:
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / 'image.jpg').symlink_to(SCENES[4])
    text = getattr(tp, name).__doc__
    example = doctest.DocTestParser().get_doctest(text, {'tp': tp, 'cv2': cv2}, name, None, 0)
    assert len(example.examples) > 1 or name == 'TrtPerceptionError'
    results = doctest.DocTestRunner(verbose=False).run(example)
    assert (results.attempted, results.failed) == (len(example.examples), 0)


def test_plot_draws_into_a_copy_of_the_image_of_the_result(model, images):
    before = [image.copy() for image in images]
    # Drawing needs contiguous pixels.
    given = [*images[:2], images[2][::-1]]
    found = model(given)
    for result, image in zip(found, given, strict=True):
        plotted = result.plot()
        assert (plotted.shape, plotted.dtype) == (image.shape, np.uint8)
        changed = (plotted != image).any(axis=2)
        left, top = result.xyxy[0, :2].round().astype(int)
        assert changed[top - 2 : top + 3, left - 2 : left + 3].any(), 'a corner of the best box'
    assert all(map(np.array_equal, images, before))
    single, least = found[0].take([0]), found[0].take([-1])
    assert (single.plot() != least.plot()).any()
    nothing = model(images[0], confidence_threshold=1)
    assert np.array_equal(nothing.plot(), images[0])


def test_result_keeps_its_image_and_not_its_model(images):
    model = tp.load(DIGITS)
    alive = weakref.ref(model)
    found = model(images[0])
    model.close()
    del model
    gc.collect()
    assert alive() is None
    assert (found.plot() != images[0]).any()


@pytest.mark.parametrize('copied', [copy.copy, lambda found: pickle.loads(pickle.dumps(found))])
def test_result_without_its_image_cannot_be_plotted(model, images, copied, golden_messages):
    found = model(images[0])
    other = copied(found)
    assert same(found, other)
    assert len(pickle.dumps(found)) < images[0].nbytes / 10
    for result in other, tp.Detections.empty():
        with golden_messages.raises(ValueError):
            result.plot()


def load_image_model(task, folder):
    """Load the tiny model of a task that describes the whole image."""
    parameters = write_image_model(task, folder / 'model.onnx')
    path = parameters.pop('engine_path')
    return tp.load(path, **{name.replace('.', '_'): value for name, value in parameters.items()})


def red_and_blue_halves():
    """Return an image that is red on the left and blue on the right."""
    bgr = np.zeros((90, 160, 3), np.uint8)
    bgr[:, :80, 2] = 255
    bgr[:, 80:, 0] = 153
    return bgr


def test_classifier_returns_scores(tmp_path):
    with load_image_model('classify', tmp_path) as opened:
        assert opened.task == 'classify'
        found, blue = opened([red_and_blue_halves(), np.full((9, 9, 3), (255, 0, 0), np.uint8)])
        assert opened.class_names == NAMES
    assert isinstance(found, tp.ClassScores)
    # The means of red, green and blue are 0.5, 0 and 0.3. Gray has 2 for each.
    logits = np.array([9 * 0.5, 0, 9 * 0.3, 2 * 0.8])
    np.testing.assert_allclose(found.scores, np.exp(logits) / np.exp(logits).sum(), atol=1e-3)
    assert blue.best(1)[0].tolist() == [NAMES.index('blue')]


def test_semantic_model_returns_a_class_for_each_pixel(tmp_path):
    with load_image_model('semantic', tmp_path) as opened:
        found = opened(red_and_blue_halves())
    assert isinstance(found, tp.ClassMap)
    ids = found.class_ids()
    assert ids.shape == found.confidence().shape == (90, 160)
    assert (ids[:, :75] == NAMES.index('red')).all()
    assert (ids[:, 85:] == NAMES.index('blue')).all()


def test_depth_model_returns_metres_for_each_pixel(tmp_path):
    with load_image_model('depth', tmp_path) as opened:
        found = opened(red_and_blue_halves())
        assert opened.class_names == ()
    assert isinstance(found, tp.DepthMap)
    depth = found.depth()
    assert depth.shape == (90, 160)
    assert found.is_metric
    np.testing.assert_allclose(depth[:, [0, -1]], [[1 / 3, 0.2]] * 90, atol=1e-3)


@pytest.mark.parametrize('task', IMAGE_TASKS)
@pytest.mark.parametrize(
    'arguments', [{'confidence_threshold': 0.5}, {'iou_threshold': 0.5}, {'class_filter': ['red']}]
)
def test_thresholds_without_effect_are_refused(task, arguments, tmp_path, golden_messages):
    with (
        load_image_model(task, tmp_path) as opened,
        golden_messages.raises(tp.TrtPerceptionError),
    ):
        opened(red_and_blue_halves(), **arguments)


@pytest.mark.parametrize(
    ('name', 'used', 'unused'),
    [
        ('digits', 'max_detections', 'depth_sky_depth_m'),
        ('digits_classify', 'cpu_threads', 'depth_sky_depth_m'),
        ('digits_semantic', 'cpu_threads', 'max_detections'),
        ('depth_tiny', 'cpu_threads', 'max_detections'),
        ('depth_tiny', 'cpu_threads', 'depth_sky_depth_m'),
    ],
)
def test_load_warns_of_parameters_without_effect_on_the_model(name, used, unused, caplog):
    with tp.load(ROOT / 'models' / f'{name}.onnx', **{used: 2, unused: 2}):
        pass
    text = ' '.join(one.getMessage() for one in caplog.records if one.levelname == 'WARNING')
    assert unused in text.replace('.', '_')
    assert used not in text.replace('.', '_')


# The fields of supervision.Detections in release 0.31.2: the type, and the required shape for n
# detections. -1 allows any size. For None, the class only checks that contained arrays have n
# entries.
SUPERVISION = {
    'xyxy': (np.number, ('n', 4)),
    'mask': (np.bool_, ('n', -1, -1)),
    'confidence': (np.floating, ('n',)),
    'class_id': (np.integer, ('n',)),
    'tracker_id': (np.integer, ('n',)),
    'data': (dict, None),
    'metadata': (dict, None),
}
#: The key of `data` under which supervision stores the corners of oriented boxes, (n, 4, 2).
SUPERVISION_CORNERS = 'xyxyxyxy'


def assert_supervision_takes(mapping, count):
    """Check the types and shapes that as_supervision() returned against SUPERVISION."""
    for name, value in mapping.items():
        kind, shape = SUPERVISION[name]
        if kind is dict:
            assert isinstance(value, dict)
            assert [len(entry) for entry in value.values()] == [count] * len(value)
            continue
        assert np.issubdtype(value.dtype, kind), name
        assert len(value.shape) == len(shape), name
        for side, wanted in zip(value.shape, shape, strict=True):
            assert side == count if wanted == 'n' else wanted in (-1, side), name
    assert np.isfinite(mapping['xyxy']).all()


@pytest.mark.parametrize(
    ('export', 'more'),
    [
        ('ultralytics_pose', set()),
        ('ultralytics_obb', {'data'}),
        ('ultralytics_segment_26', {'mask'}),
    ],
)
def test_as_supervision_returns_valid_fields_for_each_task(export, more, tmp_path):
    told = recorded_values(export)
    write_export(told, tmp_path / 'model.onnx')
    with tp.load(tmp_path / 'model.onnx', confidence_threshold=0.02) as opened:
        found = opened(told['image'])
    mapping = found.as_supervision()
    assert set(mapping) == {'xyxy', 'confidence', 'class_id'} | more
    assert len(found) > 3
    assert_supervision_takes(mapping, len(found))
    if 'data' in more:
        assert mapping['data'][SUPERVISION_CORNERS].shape == (len(found), 4, 2)


def test_as_supervision_returns_valid_fields_without_detections():
    assert_supervision_takes(tp.Detections.empty().as_supervision(), 0)


def test_as_supervision_of_a_detector_has_boxes_scores_and_classes(model, images):
    found = model(images[0])
    mapping = found.as_supervision()
    assert set(mapping) == {'xyxy', 'confidence', 'class_id'}
    assert_supervision_takes(mapping, len(found))


def test_installed_supervision_accepts_the_fields(model, images):
    """The fields of the installed release must also equal the recorded fields."""
    supervision = pytest.importorskip('supervision', reason='needs supervision')
    found = model(images[0])
    assert len(supervision.Detections(**found.as_supervision())) == len(found)
    assert [field.name for field in fields(supervision.Detections)] == list(SUPERVISION)


def examples():
    """Return the examples of the pages that need no ROS."""
    pages = [
        (ROOT / 'docs' / name).read_text(encoding='utf-8')
        for name in ('python.md', 'extending.md')
    ]
    return [code for page in pages for code in blocks(page, 'python') if 'tp.load' in code]


@pytest.mark.parametrize('code', examples())
def test_examples_of_the_pages_run(code, tmp_path):
    """Run each example in a folder with the files that the pages mention."""
    (tmp_path / 'model.onnx').symlink_to(DIGITS)
    (tmp_path / 'model.onnx.json').write_bytes(
        DIGITS.with_name('digits.onnx.json').read_bytes().replace(b'digits.onnx', b'model.onnx')
    )
    for path in SCENES[:3]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / 'image.jpg').write_bytes(SCENES[0].read_bytes())
    if 'supervision' in code:
        pytest.importorskip('supervision', reason='needs supervision')
    if 'tp.Tracker' in code:
        pytest.importorskip('scipy', reason='needs scipy')
    done = subprocess.run(
        [sys.executable, '-c', code], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
