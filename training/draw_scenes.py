# SPDX-License-Identifier: Apache-2.0
"""Write scenes as JPEG files with their truth, for calibration or measurements.

    python training/draw_scenes.py train scenes/calibration --count 300
    python training/draw_scenes.py eval scenes/held_out --count 300

`train` draws digits and photographs of the training split as a camera would show them, without the
augmentation of training. No scan and no photograph is in two splits.
"""

import argparse
import json
import pathlib

NEEDS = pathlib.Path(__file__).with_name('requirements.txt')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=f'Needs the packages of {NEEDS}.'
    )
    parser.add_argument('split', choices=('train', 'dev', 'eval'))
    parser.add_argument('folder', type=pathlib.Path)
    parser.add_argument('--count', type=int, default=300)
    parser.add_argument('--quality', type=int, help='JPEG quality (default: as in the demo)')
    arguments = parser.parse_args()
    try:  # imported late, so that --help works without these packages
        import coco_truth
        import cv2
        import make_demo
        import scenes
        import tqdm
    except ImportError as error:
        raise SystemExit(
            f'{error}; in a separate virtual environment: python -m pip install -r {NEEDS}'
        ) from error
    configs = {
        'train': scenes.SceneConfig(split='train', seed=5),
        'dev': scenes.DEV,
        'eval': scenes.EVAL,
    }
    if arguments.quality is None:
        arguments.quality = make_demo.JPEG_QUALITY
    arguments.folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for index in tqdm.trange(arguments.count):
        scene = scenes.compose(configs[arguments.split], index)
        path = arguments.folder / f'scene_{index:03d}.jpg'
        bgr = cv2.cvtColor(scene.image, cv2.COLOR_RGB2BGR)
        if not cv2.imwrite(str(path), bgr, [cv2.IMWRITE_JPEG_QUALITY, arguments.quality]):
            raise SystemExit(f'cannot write {path}')
        drawn.append(scene._replace(image=scene.image[:, :, :0]))  # coco_truth needs only the size
    truth = json.dumps(coco_truth.coco_truth(drawn), separators=(',', ':'))
    (arguments.folder / 'truth.json').write_text(truth + '\n')


if __name__ == '__main__':
    main()
