# SPDX-License-Identifier: Apache-2.0
"""Measure a pipeline on JPEGs of one size: one at a time, and with all slots busy.

    python scripts/benchmarks/jpeg_pipeline.py MODEL [--size 1920x1080] [--json FILE]

For comparison, the same run also decodes files with OpenCV before the pipeline, alternately.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections import deque
from pathlib import Path

import cv2
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / 'test')]

from support.fuzz import jpeg_fuzz  # noqa: E402
from trt_perception.images.compressed import check_image_file  # noqa: E402
from trt_perception.images.frame import DeferredFrame  # noqa: E402
from trt_perception.images.jpeg import JpegFrameReader, decode_to_frame  # noqa: E402
from trt_perception.model.pipeline_options import PipelineOptions  # noqa: E402
from trt_perception.model.thresholds import Thresholds  # noqa: E402
from trt_perception.pipelines.open_pipeline import open_pipeline  # noqa: E402
from trt_perception.pipelines.pipeline import detect_one  # noqa: E402


def decoded_frame(content):
    """Return a file's frame, decoded on the CPU as by a node without JPEG decoding on the GPU."""
    return decode_to_frame(check_image_file(content))


def time_one_by_one(pipeline, contents, read):
    """Return wall seconds and CPU seconds per frame, from the file to the boxes."""
    seconds = []
    began = time.process_time()
    for content in contents:
        start = time.perf_counter()
        detect_one(pipeline, read(content), Thresholds())
        seconds.append(time.perf_counter() - start)
    return seconds, (time.process_time() - began) / len(contents)


def measure_overlapping_rate(pipeline, contents, read):
    """Return frames per second with all slots busy."""
    flying, free = deque(), deque(range(pipeline.depth))
    start = time.perf_counter()
    for content in contents:
        frame = read(content)
        if not free:
            pipeline.collect(flying[0])
            free.append(flying.popleft())
        flying.append(free.popleft())
        pipeline.enqueue(flying[-1], [frame], [Thresholds()])
    while flying:
        pipeline.collect(flying.popleft())
    return len(contents) / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('model', type=Path)
    parser.add_argument('--size', default='1920x1080')
    parser.add_argument('--frames', type=int, default=1000)
    parser.add_argument('--depth', type=int, nargs='*', default=[1, 3, 8])
    parser.add_argument('--json', type=Path)
    options = parser.parse_args()
    width, height = map(int, options.size.split('x'))
    bgr = cv2.GaussianBlur(jpeg_fuzz.scene_bgr(width, height), (5, 5), 1)
    files = [
        np.frombuffer(jpeg_fuzz.encoded_jpeg(np.roll(bgr, shift, axis=1), quality=90), np.uint8)
        for shift in range(0, 70, 10)
    ]
    results = {'size': options.size, 'bytes': int(np.mean([file.size for file in files]))}
    for depth in options.depth:
        start = time.perf_counter()
        pipeline = open_pipeline(
            str(options.model), PipelineOptions(depth=depth, jpeg_on_gpu=True, max_batch=1)
        )
        opening_s = time.perf_counter() - start
        if not pipeline.decodes_jpeg:
            parser.error('this pipeline does not decode JPEG')
        row = results[f'depth {depth}'] = {'opening s': opening_s}
        camera = JpegFrameReader()
        ways = {
            'nvJPEG': lambda content, camera=camera: DeferredFrame(
                functools.partial(camera, content)
            ),
            'OpenCV': decoded_frame,
        }
        for name, read in ways.items():
            count = options.frames if name == 'nvJPEG' else max(30, options.frames // 10)
            contents = [files[index % len(files)] for index in range(count)]
            time_one_by_one(pipeline, contents[:30], read)
            seconds, cpu = time_one_by_one(pipeline, contents, read)
            measure_overlapping_rate(pipeline, contents[:30], read)
            row[name] = {
                'p50 ms': 1e3 * float(np.median(seconds)),
                'p99 ms': 1e3 * float(np.percentile(seconds, 99)),
                'cpu ms': 1e3 * cpu,
                'frames/s': measure_overlapping_rate(pipeline, contents, read),
            }
        pipeline.close()
    text = json.dumps(results, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + '\n')


if __name__ == '__main__':
    main()
