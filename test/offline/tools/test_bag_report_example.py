# SPDX-License-Identifier: Apache-2.0
"""Run examples/bag_report on results of detect_bag whose boxes the test chose."""

import subprocess
import sys

import pytest

from support.detect_bags import START_NS, camera_rows, run_detect_bag, write_bag
from support.docs_pages import ROOT
from support.models.picture_model import picture_with, write_picture_model
from support.optional_packages import needs
from support.programs import run_without_reader

pytestmark = [needs(name) for name in ('onnx', 'rosbags', 'mcap')]
MINUTE_NS = 60 * 10**9
PERSON, CAR = (20, 20, 10, 12, 0.8, 0), (45, 30, 10, 12, 0.8, 1)
PROGRAM = ROOT / 'examples/bag_report/bag_report.py'


def run_report(bag):
    return subprocess.run(
        [sys.executable, PROGRAM, bag], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope='module')
def bag(tmp_path_factory):
    """Return a bag of two cameras, with images in two minutes. START_NS is 22:13:20 UTC."""
    front = [picture_with([PERSON, CAR]), picture_with([PERSON]), picture_with([])]
    rear = [picture_with([CAR])] * 4
    rows = [
        *camera_rows('/front/image_raw', front),
        *camera_rows('/front/image_raw', front[:2], start_ns=START_NS + MINUTE_NS),
        *camera_rows('/rear/image_raw', rear, start_ns=START_NS + MINUTE_NS),
    ]
    folder = tmp_path_factory.mktemp('bags') / 'drive'
    return write_bag(folder, sorted(rows, key=lambda row: row[1]))


@pytest.mark.parametrize('storage', ['mcap', 'sqlite3'])
def test_detections_are_counted_by_minute_topic_and_class(storage, bag, tmp_path):
    model = write_picture_model(tmp_path / 'picture.onnx')
    out = tmp_path / 'out'
    assert run_detect_bag(model, bag, '--output', out, '--storage', storage, '--part-s', 30) == 0
    result = run_report(out)
    assert result.returncode == 0, result.stderr
    assert [line.split() for line in result.stdout.splitlines()] == [
        ['minute', 'topic', 'class', 'detections'],
        ['2023-11-14', '22:13', '/front/detections', 'car', '1'],
        ['2023-11-14', '22:13', '/front/detections', 'person', '2'],
        ['2023-11-14', '22:14', '/front/detections', 'car', '1'],
        ['2023-11-14', '22:14', '/front/detections', 'person', '2'],
        ['2023-11-14', '22:14', '/rear/detections', 'car', '4'],
    ]
    assert run_without_reader([sys.executable, PROGRAM, out]).stderr == ''


def test_bags_without_detections_end_with_one_line(bag, tmp_path):
    for path in (bag, tmp_path / 'missing', tmp_path):
        result = run_report(path)
        assert (result.returncode, result.stdout) == (1, '')
        assert len(result.stderr.splitlines()) == 1, result.stderr
