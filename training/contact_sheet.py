# SPDX-License-Identifier: Apache-2.0
"""Draw scenes with truth and detections into one PNG, to see errors behind the figures.

Green: truth. Yellow: a correct detection. Red: a wrong one. `--set demo` shows the shipped scenes.
"""

import argparse
import itertools
import pathlib

import cv2
import dense
import evaluate
import numpy as np
import scenes

GREEN, YELLOW, RED = (0, 255, 0), (0, 255, 255), (0, 0, 255)
TILE_WH = (640, 480)


def tile(scene: scenes.Scene, found: dense.Found | None) -> np.ndarray:
    """Return a scene with its truth and detections drawn into it, (480, 640, 3) uint8 BGR."""
    picture = cv2.cvtColor(scene.image, cv2.COLOR_RGB2BGR)
    for box, label in zip(scene.xyxy, scene.classes, strict=True):
        outline(picture, box, GREEN, str(label) if found is None else '')
    if found is not None:
        right = dense.match(found, scene.xyxy, scene.classes)
        for box, score, label, good in zip(*found, right, strict=True):
            outline(picture, box, YELLOW if good else RED, f'{label} {score:.2f}')
    scale = min(TILE_WH[0] / picture.shape[1], TILE_WH[1] / picture.shape[0])
    small = cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    canvas = np.zeros((TILE_WH[1], TILE_WH[0], 3), np.uint8)
    canvas[: small.shape[0], : small.shape[1]] = small
    return canvas


def outline(picture: np.ndarray, xyxy: np.ndarray, colour: tuple, text: str) -> None:
    """Draw one box with its text above it, in place."""
    x0, y0, x1, y1 = (round(float(value)) for value in xyxy)
    cv2.rectangle(picture, (x0, y0), (x1, y1), colour, 1)
    cv2.putText(picture, text, (x0, y0 - 3), cv2.FONT_HERSHEY_SIMPLEX, 0.45, colour, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--set', choices=['train', 'dev', 'eval', 'demo'], default='demo')
    parser.add_argument('--model', type=pathlib.Path, default=evaluate.MODEL)
    parser.add_argument('--truth-only', action='store_true')
    parser.add_argument('--columns', type=int, default=3)
    parser.add_argument('--rows', type=int, default=3)
    parser.add_argument('--skip', type=int, default=0)
    parser.add_argument('--out', type=pathlib.Path, default=pathlib.Path('sheet.png'))
    arguments = parser.parse_args()

    count = arguments.columns * arguments.rows
    if arguments.set == 'demo':
        source = evaluate.demo_scenes()
    else:
        config = {'train': scenes.TRAIN, 'dev': scenes.DEV, 'eval': scenes.EVAL}[arguments.set]
        source = evaluate.drawn_scenes(config, arguments.skip + count)
    detector = None if arguments.truth_only else dense.Detector(arguments.model)
    tiles = [
        tile(scene, detector and detector(scene.image, evaluate.CONFIDENCE))
        for scene in itertools.islice(source, arguments.skip, arguments.skip + count)
    ]
    rows = [
        np.hstack(tiles[i : i + arguments.columns]) for i in range(0, count, arguments.columns)
    ]
    cv2.imwrite(str(arguments.out), np.vstack(rows))


if __name__ == '__main__':
    main()
