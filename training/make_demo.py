"""Write demo/scenes/ and demo/truth.json: held-out scenes that the demo publishes and measures."""

import json
import pathlib

import cv2
import numpy as np
import scenes

DEMO = pathlib.Path(__file__).resolve().parent.parent / 'demo'
COUNT = 60
JPEG_QUALITY = 90
MAX_BYTES = 5_000_000


def coco_truth(drawn: list[scenes.Scene]) -> dict:
    """Ground truth in COCO's form; `hidden` is the fraction of the ink that cannot be seen."""
    images, annotations = [], []
    for index, scene in enumerate(drawn):
        height, width = scene.image.shape[:2]
        images.append(
            {
                'id': index + 1,
                'file_name': f'scene_{index:03d}.jpg',
                'width': width,
                'height': height,
            }
        )
        for box, label, hidden in zip(scene.xyxy, scene.classes, scene.hidden, strict=True):
            x0, y0, x1, y1 = (float(value) for value in box)
            annotations.append(
                {
                    'id': len(annotations) + 1,
                    'image_id': index + 1,
                    'category_id': int(label),
                    'bbox': [x0, y0, x1 - x0, y1 - y0],
                    'area': (x1 - x0) * (y1 - y0),
                    'iscrowd': 0,
                    'hidden': round(float(np.clip(hidden, 0, 1)), 3),
                }
            )
    return {
        'info': {
            'description': 'Handwritten digits on photographs, the demo scenes of trt_perception',
            'license': 'see README.md beside this file',
        },
        'images': images,
        'annotations': annotations,
        'categories': [{'id': digit, 'name': str(digit)} for digit in range(10)],
    }


def main() -> None:
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
    truth = json.dumps(coco_truth(drawn), separators=(',', ':'))
    (DEMO / 'truth.json').write_text(truth + '\n')
    digits = sum(len(scene.classes) for scene in drawn)
    print(f'{COUNT} scenes, {digits} digits, {total / 1e6:.2f} MB')
    if total > MAX_BYTES:
        raise SystemExit(f'at most {MAX_BYTES / 1e6} MB are shipped')


if __name__ == '__main__':
    main()
