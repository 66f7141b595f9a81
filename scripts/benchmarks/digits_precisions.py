"""Write the digits model in other precisions, each with its manifest, to compare their accuracy.

    python training/draw_scenes.py train scenes/calibration
    python scripts/benchmarks/digits_precisions.py models --calibration scenes/calibration

writes digits_fp32.onnx, digits_fp16.onnx and digits_bf16.onnx into the folder models and, for
each calibration method, digits_int8_METHOD.onnx. ONNX Runtime's CPU runs FP16 with FP32's
arithmetic between rounded values, cannot run BF16, and runs INT8 as the Q/DQ nodes say.
"""

import argparse
import dataclasses
import hashlib
from pathlib import Path

import onnx

from trt_perception.building.calibration.images import select_images
from trt_perception.building.precision.convert import convert_precision
from trt_perception.building.precision.quantise import quantise
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.manifest import FileIdentity, Manifest, manifest_path, manifest_text

DIGITS = Path(__file__).resolve().parents[2] / 'models' / 'digits.onnx'
METHODS = ('entropy', 'percentile', 'minmax')


def write(path: Path, model: onnx.ModelProto, manifest: Manifest) -> None:
    """Write a model that has the manifest's tensors."""
    content = model.SerializeToString()
    path.write_bytes(content)
    identity = FileIdentity(path.name, hashlib.sha256(content).hexdigest(), len(content))
    manifest_path(path).write_bytes(manifest_text(dataclasses.replace(manifest, onnx=identity)))
    print(f'{path}: {len(content)} bytes')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('folder', type=Path, help='where the models are written')
    parser.add_argument('--calibration', metavar='DIR', help='pictures; without them no INT8')
    parser.add_argument('--images', type=int, default=300, help='how many of them (default: 300)')
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    digits = read_model_file(DIGITS)
    assert digits.manifest is not None
    model = onnx.load_model_from_string(digits.content)
    write(arguments.folder / 'digits_fp32.onnx', model, digits.manifest)
    for precision in ('fp16', 'bf16'):
        done = convert_precision(model, precision, strongly_typed=True).model
        write(arguments.folder / f'digits_{precision}.onnx', done, digits.manifest)
    if arguments.calibration:
        images = select_images(arguments.calibration, arguments.images)
        for method in METHODS:
            done = quantise(model, digits.manifest.preprocessing, images, method=method).model
            write(arguments.folder / f'digits_int8_{method}.onnx', done, digits.manifest)


if __name__ == '__main__':
    main()
