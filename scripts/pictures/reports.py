# SPDX-License-Identifier: Apache-2.0
"""Photograph the report pages of two commands: scripts/run scripts/pictures/reports.py

Runs evaluate_engine and detect_bag with models/digits.onnx on images of the demo, and opens each
page in headless Chromium, as wide as a desk's screen and as a phone. Needs pycocotools, rosbags,
chromium and chromedriver. Writes report.jpg and report_bag.jpg to docs/images, or to the folder
that an argument names.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / 'test'), str(ROOT / 'scripts')]

from demo_tracks import write_moving_scene  # noqa: E402

from support.browser import open_browser  # noqa: E402
from support.detect_bags import START_NS, file_image, write_bag  # noqa: E402
from trt_perception.offline.tools.detect_bag import main as detect_bag  # noqa: E402
from trt_perception.offline.tools.evaluate_engine import main as evaluate_engine  # noqa: E402

MODEL = ROOT / 'models' / 'digits.onnx'
SCENES, TRUTH = ROOT / 'demo' / 'scenes', ROOT / 'demo' / 'truth.json'
HEIGHT = 1000
PERIOD_NS = 10**8


def main():
    folder = Path(sys.argv[1]) if sys.argv[1:] else ROOT / 'docs' / 'images'
    with tempfile.TemporaryDirectory() as scratch, open_browser() as browser:
        for name, (report, views) in REPORTS.items():
            page = report(Path(scratch))
            pictures = [photograph(browser, page, *view) for view in views]
            path = folder / name
            cv2.imwrite(str(path), np.hstack(pictures), [cv2.IMWRITE_JPEG_QUALITY, 80])
            print(f'wrote {path}')


def accuracy_report(scratch):
    """Return the page of evaluate_engine about the demo's scenes."""
    folder = scratch / 'accuracy'
    run(evaluate_engine, MODEL, '--images', SCENES, '--annotations', TRUTH, '--report', folder)
    return folder / 'index.html'


def bag_report(scratch):
    """Return the page of detect_bag about a bag with two cameras.

    The camera front sends the moving scene of the demo, the camera rear the demo's scenes. The
    page shows the command, so the command has no folders of this machine.
    """
    options = SimpleNamespace(scenes=SCENES, truth=TRUTH, output=scratch)
    write_moving_scene(options)
    rows = [
        (f'/{camera}/image_raw/compressed', log_ns, file_image(path.read_bytes(), log_ns))
        for camera, images in (('front', options.scenes), ('rear', SCENES))
        for log_ns, path in zip(times(), sorted(images.glob('*.jpg')), strict=False)
    ]
    write_bag(scratch / 'drive', sorted(rows, key=lambda row: row[1]))
    for path in (MODEL, MODEL.with_name(MODEL.name + '.json')):
        (scratch / path.name).symlink_to(path)
    usual = Path.cwd()
    os.chdir(scratch)
    try:
        run(detect_bag, MODEL.name, 'drive', '--output', 'found', '--track', '--report', 'report')
    finally:
        os.chdir(usual)
    return scratch / 'report' / 'index.html'


def times():
    """Yield log times at a rate of 10 Hz."""
    log_ns = START_NS
    while True:
        yield log_ns
        log_ns += PERIOD_NS


def run(command, *words):
    if command(list(map(str, words))) != 0:
        raise SystemExit(f'error: {command.__module__} failed')


def photograph(browser, page, width, dark, top):
    browser.set_size(width, HEIGHT, dark=dark)
    browser.open(page)
    browser.run('document.querySelector(arguments[0]).scrollIntoView()', top)
    png = np.frombuffer(browser.screenshot(whole=False), np.uint8)
    return cv2.imdecode(png, cv2.IMREAD_COLOR)


#: How to make each report, and its views: width of the page, whether it is dark, and the element
#: at the top of the picture.
REPORTS = {
    'report.jpg': (accuracy_report, [(1280, False, '#section-4'), (400, True, '#section-5')]),
    'report_bag.jpg': (bag_report, [(1280, False, '#section-6 h2')]),
}


if __name__ == '__main__':
    main()
