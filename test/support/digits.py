"""The model of digits that is shipped, and images of digits, for tests of builds."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / 'models' / 'digits.onnx'
SCENES = ROOT / 'demo' / 'scenes'
#: Enough to count more than a hundred detections.
SOME_SCENES = SCENES / 'scene_0[01]?.jpg'
CALIBRATION = ROOT / 'test' / 'data' / 'calibration'
INT8 = ('--precision', 'int8', '--calibration-images', CALIBRATION)
