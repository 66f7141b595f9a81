"""Frames a second of the pipeline against bare loops on as many streams, in one run.

A bare loop does nothing but replay CUDA graphs, one in flight on each stream: of the engine alone,
and of all that a frame is on the GPU, from the upload to the boxes. What the pipeline has less is
what the host costs it.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from contextlib import ExitStack
from contextlib import closing
from dataclasses import asdict
from dataclasses import replace
from pathlib import Path

from trt_perception.benchmarking.frames import load_frames
from trt_perception.benchmarking.measure import detect_all
from trt_perception.benchmarking.measure import measure_pipeline
from trt_perception.benchmarking.pace import Pace
from trt_perception.config import DetectorConfig
from trt_perception.config import Thresholds
from trt_perception.gpu import Graph
from trt_perception.model.model_file import read_model_file
from trt_perception.pipelines.cuda_pipeline import CudaPipeline
from trt_perception.pipelines.ready import put_in_place
from trt_perception.tools.arguments import at_least

EXAMPLES = """\
examples:
  python3 scripts/benchmarks/streams.py reference_fp16.engine
  python3 scripts/benchmarks/streams.py reference_fp16.engine --depth 4 8 --json streams.json
"""
PICTURES = 8  # as many as are in flight at most
WARM_UP = 300


def main(arguments=None):
    options = parse_arguments(arguments)
    model = read_model_file(options.engine)
    frames = load_frames('', None, options.encoding, PICTURES)
    results = []
    print('depth   engines  whole graph   pipeline  of engines  of whole    p50 ms  p99 / p50')
    for depth in options.depth:
        config = DetectorConfig(engine_path=options.engine, pipeline_depth=depth)
        bare = bare_loops(model, config, frames, options.frames)
        report = in_pipeline(model, config, frames, options.frames)
        ratios = {name: report.frames_per_s / rate for name, rate in bare.items()}
        latency = report.latency_ms
        print(
            f'{depth:5} {bare["engines"]:9.0f} {bare["whole"]:12.0f} {report.frames_per_s:10.0f} '
            f'{ratios["engines"]:11.3f} {ratios["whole"]:9.3f} {latency.p50:9.3f} '
            f'{latency.p99 / latency.p50:10.3f}',
            flush=True,
        )
        results.append(
            {'depth': depth, 'bare': bare, 'ratios': ratios, 'pipeline': asdict(report)}
        )
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=2) + '\n', encoding='utf-8')
    return 0


def bare_loops(model, config, frames, count):
    """Return frames a second of each loop, by its name."""
    rates = {}
    config = replace(config, use_cuda_graph=False)
    with (
        closing(CudaPipeline(model, config)) as pipeline,
        put_in_place(pipeline, frames) as placed,
    ):
        slots = pipeline.slots
        for slot, frame in zip(slots, placed, strict=False):
            slot.stage([frame], [Thresholds()])
            slot.upload()  # the engine alone shall see an image, too
            slot.run()
            slot.stream.synchronize()
        for name, work in (('engines', infer), ('whole', whole)):
            with ExitStack() as graphs:
                own = [
                    graphs.enter_context(Graph(slot.stream, functools.partial(work, slot)))
                    for slot in slots
                ]
                replay(slots, own, WARM_UP)
                rates[name] = count / replay(slots, own, count)
    return rates


def infer(slot):
    """Queue the engine."""
    slot.infer()


def whole(slot):
    """Queue all that a frame is."""
    slot.upload()
    slot.run()


def replay(slots, graphs, count):
    """Return the seconds of so many launches, one in flight for each slot."""
    start = time.perf_counter()
    for index in range(count):
        slot, graph = slots[index % len(slots)], graphs[index % len(slots)]
        if index >= len(slots):
            slot.finished.synchronize()
        graph.launch(slot.stream)
        slot.finished.record(slot.stream)
    for slot in slots:
        slot.finished.synchronize()
    return time.perf_counter() - start


def in_pipeline(model, config, frames, count):
    """Return what the pipeline does with frames always waiting, and one at a time."""
    start = time.perf_counter()
    with (
        closing(CudaPipeline(model, config)) as pipeline,
        put_in_place(pipeline, frames) as placed,
    ):
        load_s = time.perf_counter() - start
        pace = Pace(count, warmup=min(count, WARM_UP))
        thresholds = config.thresholds(pipeline.spec.class_names)
        expected = detect_all(pipeline, placed, thresholds, pace)
        return measure_pipeline(pipeline, placed, thresholds, expected, pace, load_s=load_s)


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('engine', metavar='ENGINE')
    parser.add_argument(
        '--depth', type=at_least(1), nargs='+', default=[1, 3, 4, 8], help='default: 1 3 4 8'
    )
    parser.add_argument(
        '--frames', type=at_least(1), default=3000, metavar='N', help='default: 3000'
    )
    parser.add_argument('--encoding', default='bgr8', help='of the frames, 1080p; default: bgr8')
    parser.add_argument('--json', metavar='FILE', help='write all figures')
    return parser.parse_args(arguments)


if __name__ == '__main__':
    sys.exit(main())
