# SPDX-License-Identifier: Apache-2.0
"""Measure the time until an engine is ready in a new process, with and without caches.

    python3 scripts/benchmarks/start_time.py model.engine --json start_time.json

The case *none* starts with an empty cache folder, and *kernels* with compiled CUDA kernels. The
case *all* also has the code that TensorRT-RTX compiled just in time. TensorRT has no such cache,
so *kernels* and *all* are equal for its engines. The result is the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CHILD = """
import json, logging, sys, time
from trt_perception import gpu
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.pipelines.open_pipeline import open_pipeline
heard = []
handler = logging.Handler(logging.WARNING)
handler.emit = lambda record: heard.append(record.getMessage())
logging.getLogger('trt_perception').addHandler(handler)
device = gpu.Device(0)
device.synchronize()
start = time.perf_counter()
pipeline = open_pipeline(sys.argv[1], PipelineOptions(max_batch=1))
seconds = time.perf_counter() - start
pipeline.close()
facts = {'gpu': device.name, 'cuda': gpu.versions(), 'warnings': heard}
for name in ('tensorrt', 'tensorrt_rtx'):
    if name in sys.modules:
        facts[name] = sys.modules[name].__version__
print(json.dumps({'seconds': seconds, **facts}))
"""


def start(engine, cache):
    """Open the engine in a new process; return its report, and the size of each cache in bytes."""
    child = subprocess.run(
        [sys.executable, '-c', CHILD, str(engine)],
        env={**os.environ, 'XDG_CACHE_HOME': str(cache)},
        stdout=subprocess.PIPE,
        text=True,
    )
    if child.returncode:
        raise SystemExit(f'start_time: opening {engine} failed with {child.returncode}')
    told = json.loads(child.stdout.splitlines()[-1])
    folder = cache / 'trt_perception'
    for kind in ('kernels', 'runtime'):
        files = sorted((folder / kind).glob('*'))
        told[f'{kind}_cache_bytes'] = sum(path.stat().st_size for path in files)
    return told


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('engine', type=Path)
    parser.add_argument('--rounds', type=int, default=3, metavar='N', help='default: 3')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write all figures to FILE')
    options = parser.parse_args()
    starts = {'none': [], 'kernels': [], 'all': []}
    for index in range(options.rounds):
        print(f'round {index + 1} of {options.rounds} ...', file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(folder)
            starts['none'].append(start(options.engine, cache))
            starts['all'].append(start(options.engine, cache))
            shutil.rmtree(cache / 'trt_perception' / 'runtime', ignore_errors=True)
            starts['kernels'].append(start(options.engine, cache))
    medians = {
        name: statistics.median(each['seconds'] for each in found)
        for name, found in starts.items()
    }
    for name, seconds in medians.items():
        ratio = medians['none'] / seconds
        print(f'caches: {name:8} {seconds:7.3f} s, {ratio:5.1f} times as fast as without')
    if options.json:
        content = {'engine': options.engine.name, 'median_s': medians, 'starts': starts}
        options.json.write_text(json.dumps(content, indent=2) + '\n', encoding='utf-8')
        print(f'saved {options.json}')
    warnings = [text for found in starts.values() for each in found for text in each['warnings']]
    for text in warnings:
        print(f'warning: {text}', file=sys.stderr)
    return 1 if any('cache' in text for text in warnings) else 0


if __name__ == '__main__':
    sys.exit(main())
