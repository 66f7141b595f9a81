# SPDX-License-Identifier: Apache-2.0
"""Measures of models that describe the whole image, against straightforward calculations."""

from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from PIL import Image

from trt_perception.errors import ConfigError, ImageError
from trt_perception.images.image_files import read_label_file
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.class_scores import ClassScores
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.images.results.kernel_maps import HEADER_ROOM, KernelMaps
from trt_perception.offline.evaluation.image_tasks.agreement import ImageAgreement, image_agreement
from trt_perception.offline.evaluation.image_tasks.labels import (
    LabelledImage,
    folder_labels,
    label_files,
)
from trt_perception.offline.evaluation.image_tasks.measures import (
    IMAGE_MEASURES,
    align_inverse_depth,
)

SIZE = (12, 7)
LETTERBOX = Letterbox.fit(SIZE, SIZE, 'stretch')


def class_map(ids):
    return ClassMap(np.asarray(ids, np.uint8), LETTERBOX)


def depth_map(values, is_metric=True):
    return DepthMap(np.asarray(values, np.float32), LETTERBOX, 'nearest', is_metric)


def kernel_maps(kind, pixels):
    room = np.zeros(HEADER_ROOM, np.uint8)
    content = np.concatenate([room, pixels.reshape(-1).view(np.uint8)])
    made = SimpleNamespace(size_wh=SIZE, dtype=pixels.dtype, memory=lambda: content)
    return KernelMaps({kind: made}, LETTERBOX)


def filled(measure, *pairs, class_names=(), folders=None):
    """Return a measure of a task with results and labels."""
    made = IMAGE_MEASURES[measure](class_names, folders or {})
    for found, label in pairs:
        made.add(found, label)
    return made


def test_top1_and_top5_count_the_rank_of_the_class():
    names = [f'class {index}' for index in range(8)]
    scores = ClassScores(np.array([0, 0.3, 0.2, 0.15, 0.1, 0.05, 0.04, 0.01], np.float32))
    # The ranks are 0, 4, 5 and 7.
    labels = ['class 1', 'class 5', 'class 6', 'class 0']
    measure = filled('classify', *((scores, one) for one in labels), class_names=names)
    assert measure.figures() == {'top1': 0.25, 'top5': 0.5}


def test_folder_of_several_classes_counts_the_best_of_them():
    scores = ClassScores(np.array([0.1, 0.7, 0.2], np.float32))
    folders = {'van': 'car', 'wagon': 'car', 'tree': None}
    measure = filled(
        'classify', (scores, 'car'), class_names=['van', 'wagon', 'tree'], folders=folders
    )
    assert measure.figures()['top1'] == 1
    with pytest.raises(ConfigError):
        measure.add(scores, 'tree')


def test_iou_equals_sets_of_pixels():
    rng = np.random.default_rng(0)
    names = ['a', 'b', 'c', 'absent', 'only found']
    pairs = []
    for _ in range(4):
        truth = rng.integers(0, 3, SIZE[::-1]).astype(np.uint8)
        ids = np.where(rng.random(truth.shape) < 0.6, truth, rng.integers(0, 3, truth.shape))
        ids[0, 0] = 4
        truth[rng.random(truth.shape) < 0.1] = 255
        truth[0, 0] = 1
        pairs.append((ids, truth))
    measure = filled(
        'semantic', *((class_map(ids), truth) for ids, truth in pairs), class_names=names
    )
    found, truth = ({}, {})
    right = total = 0
    for image, (ids, label) in enumerate(pairs):
        for y, x in np.ndindex(label.shape):
            if label[y, x] == 255:
                continue
            found.setdefault(ids[y, x], set()).add((image, y, x))
            truth.setdefault(label[y, x], set()).add((image, y, x))
            right += ids[y, x] == label[y, x]
            total += 1
    ious = {}
    for class_id, name in enumerate(names):
        one, other = found.get(class_id, set()), truth.get(class_id, set())
        ious[name] = len(one & other) / len(one | other) if one | other else None
    assert measure.class_figures() == pytest.approx(ious)
    assert (ious['absent'], ious['only found']) == (None, 0)
    expected = np.mean([iou for iou in ious.values() if iou is not None])
    assert measure.figures()['mIoU'] == pytest.approx(expected)
    assert measure.figures()['pixel_accuracy'] == pytest.approx(right / total)


def test_labels_without_pixels_have_no_figures():
    ignored = np.full(SIZE[::-1], 255, np.uint8)
    semantic = filled('semantic', (class_map(ignored * 0), ignored), class_names=['a'])
    depth = filled('depth', (depth_map(np.ones(SIZE[::-1])), np.zeros(SIZE[::-1], np.uint16)))
    for measure in (semantic, depth, filled('classify', class_names=['a'])):
        assert set(measure.figures().values()) == {None}


def test_label_above_the_last_class_is_refused(golden_messages):
    with golden_messages.raises(ConfigError):
        filled(
            'semantic',
            (class_map(np.zeros(SIZE[::-1])), np.full(SIZE[::-1], 2, np.uint8)),
            class_names=['a', 'b'],
        )


def test_depth_label_of_8_bits_is_refused(golden_messages):
    label = np.full(SIZE[::-1], 2, np.uint8)
    with golden_messages.raises(ConfigError):
        filled('depth', (depth_map(np.ones(SIZE[::-1])), label))


def test_depth_errors_equal_hand_computed_values():
    # Errors of 10 %, 50 % and 20 % (of too little), and a depth that is unknown.
    truth = np.full(SIZE[::-1], 0, np.uint16)
    depth = np.full(SIZE[::-1], 7.0)
    truth[0, :4] = 1000, 2000, 5000, 4000
    depth[0, :4] = 1.1, 3.0, 4.0, np.nan
    other = np.full(SIZE[::-1], 3000, np.uint16)
    measure = filled(
        'depth', (depth_map(depth), truth), (depth_map(np.full(SIZE[::-1], 3.3)), other)
    )
    # 5 / 4 is not below 1.25.
    first, second = np.mean([0.1, 0.5, 0.2, 1]), 0.1
    expected = {'AbsRel': (first + second) / 2, 'delta1': (1 / 4 + 1) / 2}
    assert measure.figures() == pytest.approx(expected, abs=1e-6)


def test_relative_depth_is_aligned_in_inverse_depth():
    rng = np.random.default_rng(1)
    metres = rng.uniform(0.5, 20, SIZE[::-1])
    millimetres = np.rint(metres * 1000).astype(np.uint16)
    relative = 40 / metres + 3
    measure = filled('depth', (depth_map(relative, is_metric=False), millimetres))
    assert measure.figures() == pytest.approx({'AbsRel': 0, 'delta1': 1}, abs=1e-3)


def test_alignment_equals_the_normal_equations():
    rng = np.random.default_rng(2)
    truth, relative = rng.uniform(1, 9, 50), rng.uniform(0, 5, 50)
    # Solve the two equations of the derivatives by Cramer's rule.
    a, b, n = (relative**2).sum(), relative.sum(), len(truth)
    c, d = (relative / truth).sum(), (1 / truth).sum()
    scale, shift = (c * n - b * d) / (a * n - b * b), (a * d - b * c) / (a * n - b * b)
    expected = np.minimum(1 / np.maximum(scale * relative + shift, 1e-9), 65.535)
    np.testing.assert_allclose(align_inverse_depth(relative, truth), expected, rtol=1e-9)


def test_alignment_of_constant_values_gives_a_constant():
    aligned = align_inverse_depth(np.ones(4), np.array([1.0, 2, 4, 4]))
    np.testing.assert_allclose(aligned, 2, rtol=1e-9)


def test_agreement_of_two_models():
    scores = [ClassScores(np.array(one, np.float32)) for one in ([0.6, 0.4], [0.9, 0.1], [0, 1])]
    assert [image_agreement(scores[0], one) for one in scores] == [1, 1, 0]
    ids = np.zeros(SIZE[::-1], np.uint8)
    others = ids.copy()
    others[:, :3] = 1
    assert image_agreement(class_map(ids), class_map(others)) == pytest.approx(9 / 12)
    made = [kernel_maps('class_ids', one) for one in (ids, others)]
    assert image_agreement(*made) == pytest.approx(9 / 12)
    depth = np.full(SIZE[::-1], 2.0)
    nearer = depth * 0.9
    assert image_agreement(depth_map(depth), depth_map(nearer)) == pytest.approx(0.9)
    made = [kernel_maps('depth', one.astype(np.float32)) for one in (depth, nearer)]
    assert image_agreement(*made) == pytest.approx(0.9)
    far = depth_map(depth * 5)
    assert image_agreement(depth_map(depth), far) == 0
    unknown = np.full(SIZE[::-1], np.nan)
    assert image_agreement(depth_map(depth), depth_map(unknown)) == pytest.approx(0)
    assert image_agreement(depth_map(unknown), depth_map(unknown)) == 1
    overall = ImageAgreement.of_images([1, 0.5])
    assert overall.as_dict() == {'images': 2, 'mean': 0.75, 'lowest': 0.5}


def test_label_files_keep_their_values(tmp_path):
    ids = np.arange(12, dtype=np.uint8).reshape(3, 4)
    palette = Image.fromarray(ids, 'P')
    palette.putpalette(np.random.default_rng(0).integers(0, 256, 768).astype(np.uint8).tobytes())
    palette.save(tmp_path / 'p.png')
    cv2.imwrite(str(tmp_path / 'l.png'), ids)
    cv2.imwrite(str(tmp_path / 'd.png'), ids.astype(np.uint16) * 5000)
    for name, expected in (('p', ids), ('l', ids), ('d', ids.astype(np.uint16) * 5000)):
        values = read_label_file(tmp_path / f'{name}.png')
        assert values.dtype == expected.dtype
        assert np.array_equal(values, expected)


def test_unusable_label_files_are_refused(tmp_path, golden_messages):
    cv2.imwrite(str(tmp_path / 'rgb.png'), np.zeros((3, 4, 3), np.uint8))
    (tmp_path / 'text.png').write_text('text')
    for name in ('rgb', 'text', 'missing'):
        with golden_messages.raises(ImageError):
            read_label_file(tmp_path / f'{name}.png')
    cv2.imwrite(str(tmp_path / 'small.png'), np.zeros((3, 4), np.uint8))
    with golden_messages.raises(ConfigError):
        LabelledImage(tmp_path / 'a.jpg', tmp_path / 'small.png').read_label((8, 6))


def test_folders_are_labels_if_they_have_names_of_classes(tmp_path, golden_messages):
    images = [tmp_path / 'n01' / 'a.jpg', tmp_path / 'dog' / 'b.jpg']
    found = folder_labels(images, ['cat', 'dog'], {'cat': 'n01'})
    assert [one.label for one in found] == ['n01', 'dog']
    assert [one.label for one in folder_labels(images, ['x'], {})] == [None, None]
    with golden_messages.raises(ConfigError):
        folder_labels(images, ['cat', 'dog'], {})
    with golden_messages.raises(ConfigError):
        folder_labels(images, ['x'], {}, required=True)


def test_label_has_the_path_of_the_image(tmp_path, golden_messages):
    images = [tmp_path / 'images' / 'day' / 'a.jpg', tmp_path / 'images' / 'b.png']
    labels = [tmp_path / 'labels' / 'day' / 'a.png', tmp_path / 'labels' / 'b.png']
    labels[0].parent.mkdir(parents=True)
    for file in labels:
        file.touch()
    arguments = images, tmp_path / 'images', tmp_path / 'labels'
    found = label_files(*arguments, allow_missing=False)
    assert [one.label for one in found] == labels
    labels[1].unlink()
    with golden_messages.raises(ConfigError):
        label_files(*arguments, allow_missing=False)
    assert [one.label for one in label_files(*arguments, allow_missing=True)] == labels[:1]
    labels[0].unlink()
    with golden_messages.raises(ConfigError):
        label_files(*arguments, allow_missing=True)
