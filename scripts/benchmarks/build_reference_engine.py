# SPDX-License-Identifier: Apache-2.0
"""Build a TensorRT engine from an ONNX file with a manifest, and write the engine's manifest.

The script uses tensorrt, or tensorrt_rtx if only that is installed. Tensors keep the types of the
ONNX file.

    python scripts/benchmarks/build_reference_engine.py reference_fp16.onnx reference_fp16.engine

For a file with an open batch size, the engine gets a profile for each size on the command line:

    python scripts/benchmarks/build_reference_engine.py open.onnx batches.engine 1 4 8
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from pathlib import Path


def tensorrt():
    """Return the installed TensorRT module."""
    reasons = []
    for name in ('tensorrt', 'tensorrt_rtx'):
        try:
            return importlib.import_module(name)
        except Exception as error:  # noqa: PERF203  a missing library is no ImportError
            reasons.append(f'{name}: {error}')
    raise SystemExit(f'needs TensorRT ({"; ".join(reasons)})')


def build(trt, content, batches):
    """Return the bytes of a plan with a profile for each batch size."""
    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    # Look the flag up by name, because its number differs between releases.
    flag = getattr(trt.NetworkDefinitionCreationFlag, 'STRONGLY_TYPED', None)
    network = builder.create_network(0 if flag is None else 1 << int(flag))
    if network is None:
        raise SystemExit('TensorRT refuses to create a network: see its messages above')
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(content):
        errors = '\n'.join(str(parser.get_error(i)) for i in range(parser.num_errors))
        raise SystemExit(f'TensorRT cannot read the ONNX file:\n{errors}')
    config = builder.create_builder_config()
    image = network.get_input(0)
    for batch in batches:
        profile = builder.create_optimization_profile()
        shape = (batch, *tuple(image.shape)[1:])
        profile.set_shape(image.name, shape, shape, shape)
        config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise SystemExit('TensorRT cannot build the engine: see its messages above')
    return bytes(plan)


def main():
    if len(sys.argv) < 3 or not sys.argv[1].endswith('.onnx'):
        print(
            f'usage: build_reference_engine.py ONNX ENGINE [BATCH …]\n\n{__doc__}', file=sys.stderr
        )
        return 2
    source, target = map(Path, sys.argv[1:3])
    manifest = json.loads(source.with_name(source.name + '.json').read_text())
    trt = tensorrt()
    plan = build(trt, source.read_bytes(), [int(batch) for batch in sys.argv[3:]])
    manifest['engine'] = {
        'file': target.name,
        'sha256': hashlib.sha256(plan).hexdigest(),
        'size_bytes': len(plan),
    }
    target.write_bytes(plan)
    target.with_name(target.name + '.json').write_text(json.dumps(manifest, indent=2) + '\n')
    print(f'{target}: {len(plan) / 1e6:.1f} MB, built by {trt.__name__} {trt.__version__}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
