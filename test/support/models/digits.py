# SPDX-License-Identifier: Apache-2.0
"""Give tests of builds the shipped digits model and images of digits."""

import json
from pathlib import Path

from trt_perception.model.files.model_file import read_model_file

ROOT = Path(__file__).parents[3]
DIGITS = ROOT / 'models' / 'digits.onnx'
SCENES = ROOT / 'demo' / 'scenes'
#: Pattern of scenes that together have more than a hundred detections.
SOME_SCENES_PATTERN = SCENES / 'scene_0[01]?.jpg'
CALIBRATION_IMAGES = ROOT / 'test' / 'data' / 'calibration'
INT8_ARGUMENTS = ('--precision', 'int8', '--calibration-images', CALIBRATION_IMAGES)


def save_digits(model, path):
    """Save a changed digits model with the manifest of the digits model."""
    import onnx

    onnx.save(model, path)
    manifest = json.loads(DIGITS.with_name('digits.onnx.json').read_text())
    file = read_model_file(path)
    manifest['onnx'] = {'file': path.name, 'sha256': file.sha256, 'size_bytes': len(file.content)}
    path.with_name(f'{path.name}.json').write_text(json.dumps(manifest))
