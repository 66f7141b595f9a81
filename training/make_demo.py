# SPDX-License-Identifier: Apache-2.0
"""Write demo/scenes/ and demo/truth.json: held-out scenes for the demo and its figures."""

import argparse
import json
import pathlib

import coco_truth
import cv2
import scenes

DEMO = pathlib.Path(__file__).resolve().parent.parent / 'demo'
COUNT = 60
JPEG_QUALITY = 90
MAX_BYTES = 5_000_000


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    folder = DEMO / 'scenes'
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [scenes.compose(scenes.DEMO, index) for index in range(COUNT)]
    total = 0
    for index, scene in enumerate(drawn):
        path = folder / f'scene_{index:03d}.jpg'
        bgr = cv2.cvtColor(scene.image, cv2.COLOR_RGB2BGR)
        if not cv2.imwrite(str(path), bgr, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]):
            raise SystemExit(f'cannot write {path}')
        total += path.stat().st_size
    truth = json.dumps(coco_truth.coco_truth(drawn), separators=(',', ':'))
    (DEMO / 'truth.json').write_text(truth + '\n')
    digits = sum(len(scene.classes) for scene in drawn)
    print(f'{COUNT} scenes, {digits} digits, {total / 1e6:.2f} MB')
    if total > MAX_BYTES:
        raise SystemExit(f'at most {MAX_BYTES / 1e6} MB can be shipped')


if __name__ == '__main__':
    main()
