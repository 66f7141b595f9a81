# SPDX-License-Identifier: Apache-2.0
"""Compare calls of a model by trt_perception with sessions of ONNX Runtime with I/O binding.

Each side runs the same model with the same provider, one call after the other, in turn:

- ours: OnnxModel.run, which copies arrays in and out.
- bound: a session of its own, whose outputs are bound once to ordinary memory. Each call binds the
  array of the input, because ONNX Runtime copies an input to the device when it is bound.
- on_device: the same with both bound once to memory of the device. No call copies anything.

    python scripts/benchmarks/onnx_session.py yolo11n.onnx --json session.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

import numpy as np
import onnxruntime

from trt_perception.model.files.model_file import read_model_file
from trt_perception.stages.onnx_runtime import OnnxModel
from trt_perception.stages.onnx_runtime.providers import NAMES_BY_PROVIDER

SAME = {
    'cuda': {'use_tf32': 0, 'cudnn_conv_algo_search': 'HEURISTIC'},
    'cpu': {},
}


def bound_calls(options, tensors, device):
    """Return a function that runs a session whose tensors are bound to a device, and its outputs.

    Args:
        tensors: maps the name of each input to its array.
        device: ``cuda`` or ``cpu``, of the outputs. With ``cpu``, each call binds the inputs.
    """
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    name = NAMES_BY_PROVIDER[options.provider]
    session = onnxruntime.InferenceSession(
        str(options.model), settings, providers=[(name, SAME[options.provider])]
    )
    if session.get_providers()[0] != name:
        raise SystemExit(f'ONNX Runtime does not use {name}: see its messages above')
    binding = session.io_binding()
    if device != 'cpu':
        for key, array in tensors.items():
            value = onnxruntime.OrtValue.ortvalue_from_numpy(array, device)
            binding.bind_ortvalue_input(key, value)
    outputs = [
        onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(array.shape, array.dtype), device)
        for array in session.run(None, tensors)
    ]
    for node, output in zip(session.get_outputs(), outputs, strict=True):
        binding.bind_ortvalue_output(node.name, output)

    def call():
        if device == 'cpu':
            for key, array in tensors.items():
                binding.bind_cpu_input(key, array)
        session.run_with_iobinding(binding)

    return call, outputs


def milliseconds(call, seconds):
    """Return the median time of a call."""
    times = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('model', type=Path)
    parser.add_argument('--provider', choices=SAME, default='cuda', help='default: cuda')
    parser.add_argument('--threads', type=int, default=2, help='default: 2')
    parser.add_argument('--rounds', type=int, default=5, help='default: 5')
    parser.add_argument('--seconds', type=float, default=1.0, help='of a round; default: 1')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write all figures')
    options = parser.parse_args(arguments)
    # It also makes CUDA's libraries known to the other sessions.
    model = OnnxModel(read_model_file(options.model), options.threads, options.provider)
    [image] = model.inputs
    array = np.random.default_rng(5).random(image.shape).astype(image.dtype)
    tensors = {image.name: array}
    calls = {'ours': lambda: model.run(tensors)}
    calls['bound'], outputs = bound_calls(options, tensors, 'cpu')
    calls['on_device'], _ = bound_calls(options, tensors, options.provider)
    rounds = {side: [] for side in calls}
    for call in calls.values():
        milliseconds(call, options.seconds)  # warm-up
    for number in range(options.rounds):
        for side in list(calls)[:: 1 if number % 2 else -1]:
            rounds[side].append(milliseconds(calls[side], options.seconds))
    medians = {side: statistics.median(found) for side, found in rounds.items()}
    ratios = {
        f'ours / {side}': statistics.median(
            ours / other for ours, other in zip(rounds['ours'], rounds[side], strict=True)
        )
        for side in ('bound', 'on_device')
    }
    difference = max(
        float(np.abs(found.astype(float) - output.numpy()).max())
        for found, output in zip(model.run(tensors), outputs, strict=True)
    )
    record = {
        'onnxruntime': onnxruntime.__version__,
        'model': options.model.name,
        'provider': options.provider,
        'nodes': model.node_counts,
        'medians_ms': medians,
        'ratios': ratios,
        'max_difference': difference,
        'rounds_ms': rounds,
    }
    model.close()
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + '\n', encoding='utf-8')
    print({key: record[key] for key in ('provider', 'medians_ms', 'ratios', 'max_difference')})
    return 0


if __name__ == '__main__':
    sys.exit(main())
