# SPDX-License-Identifier: Apache-2.0
"""Tests of real exports against the recorded results of the exporting libraries.

test/data/exports/record.py wrote each folder: the exported model, the files that the library saved
with the model, and the results for one image in the network's input size. Weights are random.
"""

from __future__ import annotations

import json
import logging
import random
import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from support.models.open_model import open_by_parameters
from support.oracles.family_outputs import network
from trt_perception.errors import EngineError, MissingModelInfoError, OutputError
from trt_perception.images.frame import Frame, frame_from_bgr
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.tools.write_manifest import main as write_manifest
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.pipeline import collect_all, detect_one
from trt_perception.stages.decode import decode
from trt_perception.stages.host_preprocess import HostPreprocessor

EXPORTS = Path(__file__).parents[1] / 'data' / 'exports'
DECODER = {
    'rt_detr': 'rtdetr',
    'detr': 'detr',
    'yolos': 'yolos',
    'deformable_detr': 'detr_sigmoid',
}
NAMES = ('N/A 0', 'cat', 'dog', 'N/A 3', 'fox')


def expected(family):
    with np.load(EXPORTS / family / 'expected.npz') as content:
        return dict(content)


def open_copied_export(family, tmp_path, **values):
    """Open a copy of an export, because this user must own it. Set only its path and `values`."""
    folder = tmp_path / family
    shutil.copytree(EXPORTS / family, folder)
    return open_by_parameters(ParameterValues(engine_path=str(folder / 'model.onnx'), **values))


def runs_frames(pipeline):
    """Return the pipeline that runs the frames. YOLOS' pipeline first checks the image's size."""
    return getattr(pipeline, 'opened', pipeline)


def sort_and_clip(xyxy, scores, labels, size):
    """Clip boxes to the image and drop empty boxes. Return boxes, scores and labels by score."""
    xyxy = np.clip(xyxy, 0, np.array([*size, *size]))
    keep = (xyxy[:, 2] > xyxy[:, 0]) & (xyxy[:, 3] > xyxy[:, 1])
    order = [index for index in np.argsort(-scores, kind='stable') if keep[index]]
    return xyxy[order], scores[order], labels[order]


def assert_same(found, xyxy, scores, labels, pixels, probability):
    """Compare detections. Detections with nearly equal scores may have any order."""
    assert len(found) == len(scores) > 5
    left = list(range(len(scores)))
    for box, score, label in zip(found.xyxy, found.scores, found.class_ids, strict=True):
        distance = [
            np.abs(box - xyxy[index]).max() + 1e6 * (labels[index] != label) for index in left
        ]
        index = left.pop(int(np.argmin(distance)))
        assert min(distance) < pixels
        assert abs(score - scores[index]) < probability
    assert (np.diff(found.scores) <= 0).all()


@pytest.mark.parametrize('family', DECODER)
def test_decoded_outputs_equal_the_detections_of_the_library(family, tmp_path):
    values = expected(family)
    spec = open_copied_export(family, tmp_path).spec
    size = tuple(int(side) for side in values['target_wh'])
    assert spec.decoder == PRESETS[DECODER[family]].decoder
    (found,) = decode(
        [values['logits'], values['pred_boxes']],
        spec,
        [Letterbox.fit(size, (96, 64), 'stretch')],
        [Thresholds(confidence_threshold=float(values['threshold']))],
        DecodingLimits(1000),
    )
    expected_rows = sort_and_clip(values['xyxy'], values['scores'], values['labels'], size)
    assert_same(found, *expected_rows, 1e-3, 1e-6)


@pytest.mark.parametrize('family', DECODER)
def test_export_needs_no_parameters_in_a_pipeline(family, tmp_path):
    values = expected(family)
    pipeline = open_copied_export(family, tmp_path)
    assert pipeline.spec.class_names == NAMES
    assert not pipeline.spec.has_manifest
    height, width = values['image'].shape[:2]
    frame = Frame.view(
        values['image'], width=width, height=height, step=3 * width, encoding='rgb8'
    )
    tensor, _ = runs_frames(pipeline).preprocess([frame])
    assert np.abs(tensor - values['pixels']).max() < 1e-5
    found = detect_one(
        pipeline, frame, Thresholds(confidence_threshold=float(values['threshold']))
    ).detections
    # The recorded boxes are scaled to an image of another size.
    xyxy = values['xyxy'] * np.array([width, height] * 2) / np.tile(values['target_wh'], 2)
    expected_rows = sort_and_clip(xyxy, values['scores'], values['labels'], (width, height))
    # ONNX Runtime and torch sum in different orders.
    assert_same(found, *expected_rows, 0.05, 1e-3)


def test_images_of_other_sizes_are_resized_like_the_library(tmp_path):
    pipeline = open_copied_export('rt_detr', tmp_path)
    with np.load(EXPORTS / 'resampling.npz') as content:
        recorded = dict(content)
    assert len(recorded) == 12
    for name, levels in recorded.items():
        processor, size = name.split()
        width, height = map(int, size.split('x'))
        data = random.Random(7).randbytes(width * height * 3)
        frame = Frame.view(data, width=width, height=height, step=3 * width, encoding='rgb8')
        ((tensor,), _) = pipeline.preprocess([frame])
        off = np.abs(tensor.transpose(1, 2, 0) * 255 - levels)
        # The uint8 resize of torch has weights with fewer bits than PIL. Pillow 13, the recording
        # version, resizes the shrinking axis first if the other axis grows.
        exact = processor == 'RTDetrImageProcessorPil' and (width > 96) == (height > 64)
        assert off.max() < (1e-3 if exact else 1.001), name


def test_rfdetr_input_keeps_fractions_of_resized_pixels():
    preprocess = HostPreprocessor(Preprocessing((48, 32), **PRESETS['rfdetr'].preprocessing))
    with np.load(EXPORTS / 'rfdetr_pixels.npz') as content:
        recorded = dict(content)
    assert len(recorded) == 3
    for size, expected_tensor in recorded.items():
        width, height = map(int, size.split('x'))
        data = random.Random(7).randbytes(width * height * 3)
        frame = Frame.view(data, width=width, height=height, step=3 * width, encoding='rgb8')
        ((tensor,), _) = preprocess(frame)
        # In levels. Rounding would move pixels by up to 0.76 levels.
        assert np.abs(tensor - expected_tensor).max() * 255 * 0.229 < 1e-3


@pytest.mark.parametrize('family', DECODER)
def test_outputs_depend_on_the_image(family, tmp_path):
    """If outputs did not depend on the image, the tests above would prove nothing."""
    pipeline = runs_frames(open_copied_export(family, tmp_path))
    image = expected(family)['image']
    outputs = []
    for pixels in (image, 255 - image):
        tensor, _ = pipeline.preprocess(
            [Frame.view(pixels, width=96, height=64, step=288, encoding='rgb8')]
        )
        outputs.append(pipeline.infer(tensor)[0].copy())
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-3


@pytest.mark.parametrize('described_by_manifest', [False, True])
@pytest.mark.parametrize(
    ('size', 'resize', 'warns'),
    [
        ((144, 96), '', False),
        ((640, 427), '', False),  # YOLOS' processor rounds 95 x 64 pixels down to 80 x 64
        ((160, 90), '', True),
        ((64, 96), '', True),
        ((160, 90), 'letterbox_top_left', False),
    ],
)
def test_yolos_warns_of_images_of_another_aspect_ratio(
    size, resize, warns, described_by_manifest, tmp_path, caplog
):
    folder = tmp_path / 'yolos'
    shutil.copytree(EXPORTS / 'yolos', folder)
    if described_by_manifest:
        assert write_manifest([str(folder / 'model.onnx')]) == 0
        (folder / 'config.json').unlink()
    values = {'model_resize': resize} if resize else {}
    pipeline = open_by_parameters(
        ParameterValues(engine_path=str(folder / 'model.onnx'), **values)
    )
    caplog.clear()
    for _ in range(2):
        frame = frame_from_bgr(np.zeros((*size[::-1], 3), np.uint8))
        detect_one(pipeline, frame, Thresholds())
    letterbox = pipeline.spec.preprocessing.letterbox(size)
    assert letterbox.resized_wh == ((96, 54) if resize else (96, 64))
    assert len([one for one in caplog.records if one.levelno == logging.WARNING]) == warns
    pipeline.close()


RESIZE_IN_NETWORK = {
    'ssd': 'stretch',
    'retinanet': 'letterbox_top_left',
    'faster_rcnn': 'letterbox_top_left',
}


@pytest.mark.parametrize(('family', 'resize'), RESIZE_IN_NETWORK.items())
def test_torchvision_export_needs_only_class_names_and_resize(family, resize, tmp_path):
    values = expected(family)
    names = {'model_class_names': NAMES, 'max_detections': 1000}
    with pytest.raises(MissingModelInfoError) as caught:
        open_copied_export(family, tmp_path / 'refused', **names)
    assert caught.value.missing.keys() == {'resize'}
    pipeline = open_copied_export(family, tmp_path, **names, model_resize=resize)
    assert pipeline.spec.decoder == PRESETS['torchvision'].decoder
    height, width = values['image'].shape[:2]
    thresholds = Thresholds(confidence_threshold=float(values['threshold']))
    detections = []
    for image in (values['image'], 255 - values['image']):
        frame = Frame.view(image, width=width, height=height, step=3 * width, encoding='rgb8')
        detections.append(detect_one(pipeline, frame, thresholds).detections)
    expected_rows = sort_and_clip(
        values['xyxy'], values['scores'], values['labels'], (width, height)
    )
    assert_same(detections[0], *expected_rows, 0.01, 1e-4)
    # The scores depend on the pixels.
    assert np.abs(detections[0].scores[:5] - detections[1].scores[:5]).max() > 1e-3


def whole_masks(values, width):
    """Return the library's masks: bool (n, height, width)."""
    return np.unpackbits(values['masks'], axis=-1, count=width).astype(bool)


def covered_pixels(xyxy, shape):
    """Return the pixels that a box covers, at least partly: bool (height, width)."""
    left, top = np.floor(xyxy[:2]).clip(0).astype(int)
    right, bottom = np.ceil(xyxy[2:]).clip(0).astype(int)
    region = np.zeros(shape, bool)
    region[top:bottom, left:right] = True
    return region


def detect_recorded_image(family, tmp_path):
    """Return the recorded values, the model's specification and its detections in the image."""
    values = expected(family)
    pipeline = open_copied_export(family, tmp_path, model_class_names=NAMES, max_detections=1000)
    height, width = values['image'].shape[:2]
    frame = Frame.view(
        values['image'], width=width, height=height, step=3 * width, encoding='rgb8'
    )
    found = detect_one(pipeline, frame, Thresholds(confidence_threshold=0.0)).detections
    expected_rows = sort_and_clip(
        values['xyxy'], values['scores'], values['labels'], (width, height)
    )
    assert_same(found, *expected_rows, 0.01, 1e-4)
    assert len(set(values['scores'].round(4))) == len(found)  # both have the same order
    return values, pipeline.spec, found


def mask_ious(masks, others):
    """Return the intersection over union of each mask with its counterpart."""
    pairs = zip(masks, others, strict=True)
    return np.array([(mask & other).sum() / (mask | other).sum() for mask, other in pairs])


def test_torchvision_masks_equal_the_library_inside_their_boxes(tmp_path):
    values, spec, found = detect_recorded_image('mask_rcnn', tmp_path)
    assert (spec.task.name, spec.task.mask_coefficients) == ('segment', 0)
    masks = whole_masks(values, 96)[:, 0]
    assert masks.any(axis=(1, 2)).all()
    for mask, own, box in zip(masks, found.masks.whole(), found.xyxy, strict=True):
        region = covered_pixels(box, own.shape)
        assert np.array_equal(own, mask & region)
        # torchvision pastes masks up to one pixel beyond the box.
        assert not (mask & ~covered_pixels(np.add(box, (-1, -1, 1, 1)), own.shape)).any()
    assert mask_ious(masks, found.masks.whole()).min() > 0.98


def test_torchvision_keypoints_equal_the_library(tmp_path):
    values, spec, found = detect_recorded_image('keypoint_rcnn', tmp_path)
    assert str(spec.task) == 'pose (4 keypoints)'
    assert np.abs(found.keypoints[..., :2] - values['keypoints'][..., :2]).max() < 1e-3
    assert np.ptp(values['keypoints'][:, :, :2], axis=1).min() > 1  # the points differ


def test_keypoint_scores_of_torchvision_are_sigmoids_of_the_output(tmp_path):
    values, _, found = detect_recorded_image('keypoint_rcnn', tmp_path)
    session = onnxruntime.InferenceSession(EXPORTS / 'keypoint_rcnn' / 'model.onnx')
    image = values['image'].transpose(2, 0, 1).astype(np.float32) / 255
    (logits,) = session.run(['keypoints_scores'], {'image': image})
    (order,) = session.run(['scores'], {'image': image})
    logits = logits[np.argsort(-order, kind='stable')]
    assert np.ptp(logits) > 1
    assert np.abs(found.keypoints[..., 2] - 1 / (1 + np.exp(-logits))).max() < 1e-5


@pytest.mark.parametrize('exporter', ['rfdetr', 'transformers'])
def test_rfdetr_masks_equal_the_library_inside_their_boxes(exporter, tmp_path):
    values = expected('rfdetr_masks')
    names = {'rfdetr': ('labels', 'dets', 'masks')}.get(
        exporter, ('logits', 'pred_boxes', 'pred_masks')
    )
    outputs = dict(
        zip(names, (values['logits'], values['pred_boxes'], values['pred_masks']), strict=True)
    )
    if exporter == 'transformers':
        outputs |= {f'more_{n}': np.zeros((1, 12, n), np.float32) for n in (3, 5)}
        config = {'model_type': 'rf_detr', 'id2label': dict(enumerate(NAMES))}
        (tmp_path / 'config.json').write_text(json.dumps(config))
    path = tmp_path / 'model.onnx'
    path.write_bytes(network(outputs, (1, 3, 64, 96)))
    pipeline = open_by_parameters(ParameterValues(engine_path=str(path), model_class_names=NAMES))
    assert pipeline.spec.decoder == PRESETS['rfdetr'].decoder
    assert pipeline.spec.task.name == 'segment'
    width, height = map(int, values['target_wh'])
    frame = Frame.view(
        bytes(3 * width * height), width=width, height=height, step=3 * width, encoding='rgb8'
    )
    thresholds = Thresholds(confidence_threshold=float(values['threshold']))
    found = detect_one(pipeline, frame, thresholds).detections
    expected_rows = sort_and_clip(
        values['xyxy'], values['scores'], values['labels'], (width, height)
    )
    assert_same(found, *expected_rows, 0.01, 1e-5)
    assert np.allclose(found.scores, values['mask_scores'], atol=1e-5)
    assert found.class_ids.tolist() == values['mask_labels'].tolist()
    assert len(set(values['pred_boxes'][0, :, 0])) > len(set(found.class_ids.tolist())) > 1
    for mask, own, box in zip(
        whole_masks(values, width), found.masks.whole(), found.xyxy, strict=True
    ):
        inner = mask & covered_pixels(box, own.shape)
        assert inner.sum() > 500
        assert (own & inner).sum() >= 0.999 * (own | inner).sum()
        # RF-DETR's masks extend beyond their boxes if the network's output does.
        assert mask_ious([own], [mask]).min() > 0.98


@pytest.mark.parametrize('family', ['ssd', 'faster_rcnn'])
def test_missing_class_names_of_torchvision_mention_the_background(
    family, tmp_path, golden_messages
):
    with golden_messages.raises(EngineError):
        open_copied_export(family, tmp_path / 'a')
    # Without a name for the background, the last class has no name.
    pipeline = open_copied_export(
        family, tmp_path / 'b', model_class_names=NAMES[1:], model_resize='stretch'
    )
    golden_messages.add('\n'.join(pipeline.spec.evidence))
    image = expected(family)['image']
    height, width = image.shape[:2]
    frame = Frame.view(image, width=width, height=height, step=3 * width, encoding='rgb8')
    pipeline.enqueue(0, [frame], [Thresholds(confidence_threshold=0.0)])
    with golden_messages.raises(OutputError):
        collect_all(pipeline, 0)


def test_missing_config_asks_for_activation_and_class_names(tmp_path, golden_messages):
    folder = tmp_path / 'lonely'
    folder.mkdir()
    shutil.copy(EXPORTS / 'rt_detr' / 'model.onnx', folder)
    with golden_messages.raises(EngineError):
        open_by_parameters(ParameterValues(engine_path=str(folder / 'model.onnx')))


def test_config_of_another_program_is_ignored(tmp_path, golden_messages):
    folder = tmp_path / 'other'
    folder.mkdir()
    shutil.copy(EXPORTS / 'rt_detr' / 'model.onnx', folder)
    for text in ('{"port": 80}', '[1, 2]', 'port = 80', '{"a": ' * 100_000):
        (folder / 'config.json').write_text(text)
        with golden_messages.raises(EngineError):
            open_by_parameters(ParameterValues(engine_path=str(folder / 'model.onnx')))


def test_config_above_an_onnx_folder_is_read(tmp_path):
    folder = tmp_path / 'repository' / 'onnx'
    folder.mkdir(parents=True)
    shutil.copy(EXPORTS / 'yolos' / 'model.onnx', folder)
    for name in ('config.json', 'preprocessor_config.json'):
        shutil.copy(EXPORTS / 'yolos' / name, folder.parent)
    pipeline = open_by_parameters(ParameterValues(engine_path=str(folder / 'model.onnx')))
    assert pipeline.spec.class_names == NAMES
    assert pipeline.spec.decoder == PRESETS['yolos'].decoder
