# SPDX-License-Identifier: Apache-2.0
"""Photograph the report page of evaluate_engine: scripts/run scripts/pictures/report.py

Measures models/digits.onnx on the demo's scenes, opens the page in headless Chromium as wide as a
desk's screen and as a phone, and scrolls to the worst mistakes. Needs pycocotools, chromium and
chromedriver. Writes docs/images/report.jpg, or the file that an argument names.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'test'))

from support.browser import open_browser  # noqa: E402
from trt_perception.offline.tools.evaluate_engine import main as evaluate_engine  # noqa: E402

HEIGHT = 1000
#: Width of the page, whether it is dark, and the element at the top of the picture.
VIEWS = (1280, False, '#section-4'), (400, True, '#section-5')


def main():
    path = Path(sys.argv[1]) if sys.argv[1:] else ROOT / 'docs' / 'images' / 'report.jpg'
    with tempfile.TemporaryDirectory() as folder:
        words = [ROOT / 'models' / 'digits.onnx', '--images', ROOT / 'demo' / 'scenes']
        words += ['--annotations', ROOT / 'demo' / 'truth.json', '--report', folder]
        if evaluate_engine(list(map(str, words))) != 0:
            raise SystemExit('error: evaluate_engine failed')
        with open_browser() as browser:
            pictures = [photograph(browser, Path(folder) / 'index.html', *view) for view in VIEWS]
    cv2.imwrite(str(path), np.hstack(pictures), [cv2.IMWRITE_JPEG_QUALITY, 80])
    print(f'wrote {path}')


def photograph(browser, page, width, dark, top):
    browser.set_size(width, HEIGHT, dark=dark)
    browser.open(page)
    browser.run('document.querySelector(arguments[0]).scrollIntoView()', top)
    png = np.frombuffer(browser.screenshot(whole=False), np.uint8)
    return cv2.imdecode(png, cv2.IMREAD_COLOR)


if __name__ == '__main__':
    main()
