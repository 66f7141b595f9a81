# SPDX-License-Identifier: Apache-2.0
"""Tests of Ultralytics exports against the recorded results of Ultralytics' predictor.

test/data/exports/record_ultralytics.py recorded metadata, shapes, output and boxes; the network
between input and output is a constant here.
"""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest

from support.models.open_model import open_by_parameters
from support.models.recorded_exports import recorded_values, write_export
from trt_perception.errors import EngineError, OutputError
from trt_perception.images.detections import oriented_corners
from trt_perception.images.frame import Frame
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.pipeline import collect_all, detect_one

DECODER = {
    'ultralytics_rtdetr': 'rtdetr_end_to_end',
    'ultralytics_rtdetr_one': 'rtdetr_end_to_end',
    'ultralytics_rtdetr_open': 'rtdetr_end_to_end',
    'ultralytics_rtdetr_8_4_46': 'rtdetr_ultralytics',
    'ultralytics_dense': 'dense',
    'ultralytics_nms': 'end_to_end',
    'ultralytics_end_to_end': 'end_to_end',
    'ultralytics_segment': 'dense',
    'ultralytics_segment_26': 'dense',
    'ultralytics_segment_end_to_end': 'end_to_end',
    'ultralytics_segment_nms': 'end_to_end',
    'ultralytics_obb': 'dense',
    'ultralytics_obb_26': 'dense',
    'ultralytics_obb_end_to_end': 'end_to_end',
    'ultralytics_obb_nms': 'end_to_end',
    'ultralytics_pose': 'dense',
    'ultralytics_pose_of_two': 'dense',
    'ultralytics_pose_26': 'dense',
    'ultralytics_pose_end_to_end': 'end_to_end',
    'ultralytics_pose_nms': 'end_to_end',
}
RTDETR = [family for family in DECODER if 'rtdetr' in family]


def frame_of(image):
    height, width = image.shape[:2]
    return Frame.view(image, width=width, height=height, step=3 * width, encoding='bgr8')


def assert_same_oriented(found, told):
    """Compare oriented boxes. The predictor does not clip its boxes, and allows any angle."""
    height, width = told['image'].shape[:2]
    theirs = told['oriented']
    turned = (theirs[:, 4] + np.pi / 2) % np.pi - np.pi / 2
    ours = found.oriented
    assert len(found) > 3
    far = np.abs(ours[:, None, :4] - theirs[None, :, :4]).max(axis=2)
    far += np.abs(found.scores[:, None] - told['scores'][None])
    wanted = far.argmin(axis=1)
    assert len(set(wanted)) == len(ours)
    assert far.min(axis=1).max() < 1e-3
    assert np.abs(np.sin(ours[:, 4] - turned[wanted])).max() < 1e-5
    assert (np.abs(ours[:, 4]) <= np.pi / 2 + 1e-6).all()
    assert (found.class_ids == told['labels'][wanted]).all()
    corners = oriented_corners(ours)
    distance = np.linalg.norm(corners[:, :, None] - told['corners'][wanted][:, None], axis=3)
    assert distance.min(axis=2).max() < 2e-3  # a half turn changes the first corner
    around = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)
    clipped = np.clip(around, 0, [width, height, width, height])
    assert np.abs(found.xyxy - clipped).max() < 1e-3
    # The predictor also returns boxes that do not touch the image.
    image = ((width / 2, height / 2), (width, height), 0)
    for index in set(range(len(theirs))) - set(wanted):
        x, y, *size, angle = theirs[index].tolist()
        box = ((x, y), size, math.degrees(angle))
        _, common = cv2.rotatedRectangleIntersection(box, image)
        assert common is None or cv2.contourArea(cv2.convexHull(common)) < 1


def assert_same_masks(found, told):
    """Compare masks. The predictor (retina_masks) omits boxes with an empty mask."""
    height, width = told['image'].shape[:2]
    theirs = np.unpackbits(told['masks'])[: len(told['scores']) * height * width]
    theirs = theirs.reshape(-1, height, width).astype(bool)
    ours = found.masks.whole()
    assert ours.shape == (len(found), height, width)
    has = ours.any(axis=(1, 2))
    far = np.abs(found.xyxy[has, None] - told['xyxy'][None]).max(axis=2)
    far += 100 * np.abs(found.scores[has, None] - told['scores'][None])
    wanted = far.argmin(axis=1)
    assert far.min(axis=1).max() < 1e-2
    assert sorted(wanted) == list(range(len(theirs)))
    shared = (ours[has] & theirs[wanted]).sum(axis=(1, 2))
    either = (ours[has] | theirs[wanted]).sum(axis=(1, 2))
    assert (shared / either).min() >= 0.999
    assert len(shared) > 3


def assert_same(found, told):
    """Compare detections with the predictor. Boxes with equal scores may have any order."""
    if 'oriented' in told:
        assert_same_oriented(found, told)
        return
    if 'masks' in told:
        assert_same_masks(found, told)
        return
    assert found.masks is None
    assert found.oriented is None
    height, width = told['image'].shape[:2]
    xyxy = np.clip(told['xyxy'], 0, [width, height, width, height])
    whole = (xyxy[:, 2:] > xyxy[:, :2]).all(axis=1)
    xyxy, scores, labels = xyxy[whole], told['scores'][whole], told['labels'][whole]
    assert len(found) == len(scores) > 3
    order = np.lexsort((*found.xyxy.T, -found.scores))
    wanted = np.lexsort((*xyxy.T, -scores))
    assert np.abs(found.scores[order] - scores[wanted]).max() < 1e-6
    assert np.abs(found.xyxy[order] - xyxy[wanted]).max() < 1e-3
    assert (found.class_ids[order] == labels[wanted]).all()
    if 'keypoints' not in told:
        assert found.keypoints is None
        return
    points = told['keypoints'][whole][wanted]
    values = points.shape[2]
    assert np.abs(found.keypoints[order, :, :values] - points).max() < 2e-3
    assert (found.keypoints[:, :, values:] == 1).all()  # keypoints without a score


@pytest.mark.parametrize('family', DECODER)
def test_boxes_equal_those_of_the_ultralytics_predictor(family, tmp_path):
    told = recorded_values(family)
    pipeline = open_by_parameters(ParameterValues(**write_export(told, tmp_path / 'best.onnx')))
    assert pipeline.spec.decoder == PRESETS[DECODER[family]].decoder
    assert not pipeline.spec.has_manifest
    frame = frame_of(told['image'])
    tensor, _ = pipeline.preprocess([frame])
    assert np.abs(tensor - told['pixels']).max() < 1e-6
    thresholds = Thresholds(
        confidence_threshold=float(told['confidence']), iou_threshold=float(told['iou'])
    )
    assert_same(detect_one(pipeline, frame, thresholds).detections, told)


def test_keypoints_have_the_names_of_the_exporter(tmp_path):
    for family, names in [('ultralytics_pose_26', 'abcde'), ('ultralytics_pose_of_two', '0123')]:
        values = write_export(recorded_values(family), tmp_path / 'best.onnx')
        spec = open_by_parameters(ParameterValues(**values)).spec
        assert spec.task.keypoints.names == tuple(names)


@pytest.mark.parametrize('family', RTDETR)
def test_normalised_centres_are_refused_as_pixel_corners(family, tmp_path, golden_messages):
    told = recorded_values(family)
    parameters = ParameterValues(
        **write_export(told, tmp_path / 'best.onnx'),
        model_decoder='end_to_end',
        model_class_names=('a', 'b', 'c'),
        model_resize='stretch',
        model_color_order='rgb',
        model_scale=1 / 255,
    )
    pipeline = open_by_parameters(parameters)
    pipeline.enqueue(0, [frame_of(told['image'])], [Thresholds(confidence_threshold=0.02)])
    with golden_messages.raises(OutputError):
        collect_all(pipeline, 0)


def test_class_numbers_are_refused_as_scores(tmp_path, golden_messages):
    """Older releases mistook two classes for the older layout, and wrote such manifests."""
    told = recorded_values('ultralytics_rtdetr')
    values = write_export(told, tmp_path / 'best.onnx')
    pipeline = open_by_parameters(ParameterValues(**values, model_decoder='rtdetr_ultralytics'))
    pipeline.enqueue(0, [frame_of(told['image'])], [Thresholds(confidence_threshold=0.02)])
    with golden_messages.raises(OutputError):
        collect_all(pipeline, 0)


def test_model_with_two_classes_is_refused_without_metadata(tmp_path, golden_messages):
    told = recorded_values('ultralytics_rtdetr')
    values = write_export(told, tmp_path / 'best.onnx', metadata={})
    with golden_messages.raises(EngineError):
        open_by_parameters(ParameterValues(**values, model_class_names=('cat', 'dog')))
