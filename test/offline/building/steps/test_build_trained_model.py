# SPDX-License-Identifier: Apache-2.0
"""build_engine quantises a YOLOX that others trained, and ONNX Runtime reads the Q/DQ files.

The images show characters with known boxes (scripts/benchmarks/text_scenes.py). Images that
calibrate do not measure.
"""

import onnx
import pytest

from support.docs_pages import load_script
from support.models.detector_models import read_report, run_build_engine
from support.oracles.yolox import YoloxFile, count_pairs
from support.trained_yolox import THRESHOLDS, read_truth

pytest.importorskip('tensorrt_rtx', reason='needs tensorrt_rtx')
pytest.importorskip('matplotlib', reason='needs matplotlib')
pytest_plugins = ['support.building.build_fixtures', 'support.trained_fixtures']
pytestmark = [pytest.mark.engine_build, pytest.mark.usefixtures('reuse_equal_results')]
text_scenes = load_script('benchmarks/text_scenes.py')

CALIBRATION_IMAGES, HELD_OUT_IMAGES = 8, 16
#: Least F1 of the agreement with FP32, and largest lost share of the true characters.
LIMITS = {'minmax': (0.93, 0.05), 'percentile': (0.93, 0.05), 'entropy': (0.75, 0.15)}


@pytest.fixture(scope='module')
def scenes(trained_yolox, tmp_path_factory):
    """Return the folder of the calibration images, and the path of the other images' truth."""
    folder = tmp_path_factory.mktemp('scenes')
    calibration = folder / 'calibration'
    text_scenes.write_scenes(calibration, range(1001, 1001 + CALIBRATION_IMAGES))
    return calibration, text_scenes.write_scenes(folder / 'truth', range(1, 1 + HELD_OUT_IMAGES))


@pytest.fixture(scope='module')
def fp32(trained_yolox, scenes):
    return detect(trained_yolox, scenes)


def detect(path, scenes):
    """Return the boxes of an ONNX file in each image that does not calibrate."""
    file = YoloxFile(path)
    return [file.detect(image, **THRESHOLDS)[0] for image, _ in read_truth(scenes[1])]


def found_share(detections, scenes):
    """Return the share of the true characters that are found."""
    truth = [boxes for _, boxes in read_truth(scenes[1])]
    return sum(map(count_pairs, detections, truth)) / sum(map(len, truth))


def f1_of(detections, others):
    pairs = sum(map(count_pairs, detections, others))
    return 2 * pairs / sum(len(each) for each in (*detections, *others))


@pytest.mark.timeout(400)
@pytest.mark.parametrize('method', LIMITS)
def test_quantised_file_agrees_with_fp32(trained_yolox, scenes, fp32, tmp_path, method):
    calibration, truth = scenes
    qdq, report = tmp_path / 'qdq.onnx', tmp_path / 'report.json'
    arguments = ['--decoder', 'yolox_raw', '--class-names', 'character', '--precision', 'int8']
    arguments += ['--calibration-images', calibration, '--calibration-method', method]
    arguments += ['--validate', truth.parent, '--annotations', truth, '--accept-disagreement']
    arguments += ['--no-compare-fp16', '--output', tmp_path / 'x.engine', '--json', report]
    assert run_build_engine(trained_yolox, *arguments, '--qdq-onnx', qdq) == 0
    detections = detect(qdq, scenes)
    least_f1, lost = LIMITS[method]
    f1 = f1_of(detections, fp32)
    assert least_f1 < f1 < 1
    assert found_share(detections, scenes) > found_share(fp32, scenes) - lost
    assert found_share(fp32, scenes) > 0.75
    # The build measures with layers in FP16 instead of FP32.
    assert read_report(report)['agreement']['f1'] == pytest.approx(f1, abs=0.03)
    assert len(dequantised_weights(qdq)) > 70


def dequantised_weights(path):
    """Return the names of the convolutions whose weights are INT8."""
    graph = onnx.load(path).graph
    int8 = {t.name for t in graph.initializer if t.data_type == onnx.TensorProto.INT8}
    dequantised = {
        node.output[0]
        for node in graph.node
        if node.op_type == 'DequantizeLinear' and node.input[0] in int8
    }
    return [n.name for n in graph.node if n.op_type == 'Conv' and n.input[1] in dequantised]
