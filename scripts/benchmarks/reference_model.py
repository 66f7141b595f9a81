# SPDX-License-Identifier: Apache-2.0
"""Write a detector of YOLO11n's size with random weights, and its manifest, for benchmarks.

About 2.6 million parameters and 6.5 GFLOPs at 640 x 640 (a multiply-add counts as 2). For every
image, about 1,000 of the 8,400 anchors pass a confidence of 0.25, and 300 boxes remain after NMS
at an IoU of 0.45. All boxes are in the middle of the image, where the letterbox of an image up to
16:9 has no padding. Equal arguments give equal weights. The script runs the written file with ONNX
Runtime, decodes the outputs and prints the counts.

    python scripts/benchmarks/reference_model.py reference_fp32.onnx
    python scripts/benchmarks/reference_model.py reference_fp16.onnx --precision fp16
    python scripts/benchmarks/reference_model.py reference_fp16.onnx --precision fp16 --batch 0
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from reference_network import CLASSES, GAIN, build_network

from trt_perception.images.frame import frame_from_bgr
from trt_perception.model.build_record import FileIdentity
from trt_perception.model.decoders.anchors import Dense
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.manifest import Manifest, manifest_path, serialise_manifest
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tensors import TensorSpec
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.benchmarking.frames import synthetic_image
from trt_perception.process.standard_streams import guarded_streams
from trt_perception.stages.decode import decode
from trt_perception.stages.host_preprocess import HostPreprocessor

MAX_DETECTIONS = 300
CLASS_NAMES = tuple(f'class {index}' for index in range(CLASSES))


def size_wh(text):
    """Return (width, height) of a text N or WxH."""
    sides = [int(side) for side in text.lower().split('x')]
    if len(sides) > 2 or any(side < 64 or side % 32 for side in sides):
        raise argparse.ArgumentTypeError(
            f'expected N or WxH in multiples of 32, at least 64 (got {text!r})'
        )
    return sides[0], sides[-1]


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        'onnx', type=Path, help='file to write; its manifest is written next to it'
    )
    parser.add_argument('--precision', choices=('fp32', 'fp16'), default='fp32')
    parser.add_argument('--input-size', type=size_wh, default=(640, 640), metavar='N|WxH')
    parser.add_argument(
        '--batch', type=int, default=1, help='images per run; 0 for any number (default: 1)'
    )
    options = parser.parse_args()
    if options.onnx.suffix != '.onnx' or options.batch < 0:
        parser.error('the file must end in .onnx, and --batch must be at least 0')
    return options


def preprocessing_of(model, size):
    kind = model.graph.input[0].type.tensor_type.elem_type
    return Preprocessing(size, dtype=str(helper.tensor_dtype_to_np_dtype(kind)))


def write_manifest(path, model, content, preprocessing):
    image, output = (
        TensorSpec(
            value.name,
            tuple(side.dim_value or -1 for side in value.type.tensor_type.shape.dim),
            preprocessing.dtype,
        )
        for value in (model.graph.input[0], model.graph.output[0])
    )
    manifest = Manifest(
        onnx=FileIdentity(path.name, hashlib.sha256(content).hexdigest(), len(content)),
        engine=None,
        inputs=(image,),
        outputs=(output,),
        preprocessing=preprocessing,
        decoder=Dense(),
        class_names=CLASS_NAMES,
        notes={'description': 'random weights of the size of YOLO11n, for benchmarks'},
    )
    manifest_path(path).write_bytes(serialise_manifest(manifest))
    read_model_file(path)  # refuses a manifest that does not fit the model


def pictures():
    """Return a dict from a name to a picture. The pictures differ widely in content and shape."""
    rng = np.random.default_rng(0)
    return {
        'scene 1920x1080': synthetic_image((1920, 1080), seed=1),
        'scene 640x480': synthetic_image((640, 480), seed=2),
        'scene 1080x1920': synthetic_image((1080, 1920), seed=3),
        'noise 1920x1080': rng.integers(0, 256, (1080, 1920, 3), np.uint8),
        'noise 640x640': rng.integers(0, 256, (640, 640, 3), np.uint8),
        'black 800x600': np.zeros((600, 800, 3), np.uint8),
    }


def print_activations(model, stages, preprocessing, batch):
    """Run the model; print each stage's spread of activations, the candidates and detections."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    probe.graph.output.extend(helper.make_empty_tensor_value_info(name) for _, name in stages)
    session = onnxruntime.InferenceSession(
        probe.SerializeToString(), providers=['CPUExecutionProvider']
    )
    preprocess = HostPreprocessor(preprocessing)
    spreads, counts = {}, {}
    for name, bgr in pictures().items():
        tensor, letterbox = preprocess(frame_from_bgr(bgr))
        output, *inner = session.run(None, {'images': np.repeat(tensor, max(1, batch), axis=0)})
        spreads[name] = [float(values.astype(np.float32).std()) for values in inner]
        output = output[:1]
        image, first = (
            TensorSpec(name, values.shape, str(values.dtype))
            for name, values in (('images', tensor), ('output0', output))
        )
        spec = ModelSpec(image, (first,), preprocessing, Dense(), CLASS_NAMES, has_manifest=True)
        (found,) = decode(
            [output], spec, [letterbox], [Thresholds()], DecodingLimits(MAX_DETECTIONS)
        )
        passed = int((output[0, 4:].max(axis=0) > Thresholds().confidence_threshold).sum())
        counts[name] = passed, len(found), output.shape[2]
    print('standard deviation of activations')
    for index, (label, _) in enumerate(stages):
        print(f'  {label:14}' + ''.join(f'{row[index]:9.3f}' for row in spreads.values()))
    print('candidates above 0.25, and detections')
    for name, (passed, kept, anchors) in counts.items():
        print(f'  {name:17} {passed:5} of {anchors}, {kept} detections')
    worst = [value for row in spreads.values() for value in row[:-2]]
    if not 0.1 < min(worst) < max(worst) < 1000:
        raise SystemExit(f'activations vanish or explode (gain {GAIN}): see the table above')


def main():
    options = arguments()
    model, network = build_network(options.precision == 'fp16', options.input_size, options.batch)
    content = model.SerializeToString()
    preprocessing = preprocessing_of(model, options.input_size)
    options.onnx.write_bytes(content)
    write_manifest(options.onnx, model, content, preprocessing)
    print(
        f'{options.onnx}: {network.parameters / 1e6:.2f} M parameters, '
        f'{2 * network.multiplications / 1e9:.2f} GFLOPs, {len(content) / 1e6:.1f} MB'
    )
    print_activations(model, network.stages, preprocessing, options.batch)
    return 0


if __name__ == '__main__':
    with guarded_streams():
        sys.exit(main())
