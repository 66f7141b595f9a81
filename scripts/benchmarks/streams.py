# SPDX-License-Identifier: Apache-2.0
"""Compare the pipeline's frames per second with bare loops on as many streams, in one run.

A bare loop only replays CUDA graphs, one in flight on each stream. There are three loops: the
engine alone, the engine after an upload of each frame, and all GPU work of a frame from the upload
to the boxes. The pipeline's distance to the third loop is the cost of the host's work.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path

from trt_perception.gpu import Device, DeviceBuffer, Event, Graph, PinnedBuffer, Stream, copy_async
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.input_layout import constant_inputs
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.benchmarking.control import MeasurementControl
from trt_perception.offline.benchmarking.frames import load_frames
from trt_perception.offline.benchmarking.gpu_steps import MAP_TOPICS, prepare_maps, queue_batch
from trt_perception.offline.benchmarking.measure import detect_all, measure_pipeline
from trt_perception.offline.tools.parts.arguments import integer_at_least
from trt_perception.pipelines.cuda.cuda_pipeline import CudaPipeline
from trt_perception.pipelines.warm_up import copy_to_pipeline_memory
from trt_perception.process.option_parser import OptionParser
from trt_perception.process.standard_streams import guarded_streams
from trt_perception.stages.host_preprocess import HostPreprocessor
from trt_perception.stages.tensorrt.runtime import TensorRtEngine

EXAMPLES = """\
examples:
  python3 scripts/benchmarks/streams.py reference_fp16.engine
  python3 scripts/benchmarks/streams.py reference_fp16.engine --depth 4 8 --json streams.json
  python3 scripts/benchmarks/streams.py reference_batches.engine --batch 1 8 --depth 4
"""
WARM_UP = 300
THRESHOLDS = Thresholds(wanted_topics=MAP_TOPICS)
# Loops that the pipeline's frames per second are compared with.
LOOPS = ('engines', 'uploads', 'whole')


def main(arguments=None):
    options = parse_arguments(arguments)
    model = read_model_file(options.engine)
    # At least the largest number of frames in flight, in whole batches.
    count = max(options.batch) * max(*options.depth, 8)
    frames = load_frames('', None, options.encoding, count)
    results = []
    heads = 'engines', 'and uploads', 'whole graph', 'pipeline', *(f'of {name}' for name in LOOPS)
    print('batch depth' + ''.join(f'{head:>12}' for head in (*heads, 'p50 ms', 'p99 / p50')))
    for batch in options.batch:
        for depth in options.depth:
            wanted = PipelineOptions(depth=depth)
            bare = bare_loops(model, wanted, frames, options.frames, batch)
            bare['whole'] = whole_loop(model, wanted, frames, options.frames, batch)
            report = in_pipeline(model, wanted, frames, options.frames, batch)
            results.append(compared(batch, depth, bare, report))
            print(table_row(results[-1]), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=2) + '\n', encoding='utf-8')
    return 0


def compared(batch, depth, bare, report):
    """Return the figures of one batch size and depth."""
    ratios = {name: report.frames_per_s / rate for name, rate in bare.items()}
    found = {'batch': batch, 'depth': depth, 'bare': bare, 'ratios': ratios}
    return found | {'pipeline': asdict(report)}


def table_row(found):
    """Return a row of the table."""
    pipeline = found['pipeline']
    latency = pipeline['latency_ms']
    rates = [*(found['bare'][name] for name in LOOPS), pipeline['frames_per_s']]
    cells = [f'{rate:.0f}' for rate in rates]
    cells += [f'{found["ratios"][name]:.3f}' for name in LOOPS]
    cells += [f'{latency["p50"]:.3f}', f'{latency["p99"] / latency["p50"]:.3f}']
    return f'{found["batch"]:5} {found["depth"]:5}' + ''.join(f'{cell:>12}' for cell in cells)


class Loop:
    """A CUDA stream with an engine context and frames to upload, like a slot of a pipeline.

    Args:
        engine: an engine on the current device.
        spec: the model specification for one image.
        frames: the frames of one batch, each uploaded from its own page-locked memory.
    """

    def __init__(self, engine, spec, frames):
        with ExitStack() as undo:
            self.stream = undo.enter_context(Stream())
            self.finished = undo.enter_context(Event())
            batch = len(frames)
            tensors = [
                replace(tensor, shape=(batch, *tensor.shape[1:]))
                for tensor in (spec.input, *spec.auxiliary_inputs)
            ]
            self._context = engine.create_context(tensors[0], self.stream, tensors[1:])
            undo.callback(self._context.close)
            size = spec.preprocessing.input_size
            values = constant_inputs(tensors[1:], size, batch)
            preprocess = HostPreprocessor(spec.preprocessing, batch)
            for place, frame in enumerate(frames):
                # The loop of the engine alone needs images in its input, too.
                values[spec.input.name] = preprocess(frame, place)[0]
            for tensor in (*tensors, *self._context.outputs):
                buffer = undo.enter_context(DeviceBuffer(max(256, tensor.size_bytes)))
                self._context.bind({tensor.name: buffer.pointer})
                if tensor.name in values:
                    self._copy(buffer, values[tensor.name])
            self._uploads = []
            for frame in frames:
                pinned = undo.enter_context(PinnedBuffer(frame.data.size))
                pinned.array[:] = frame.data
                buffer = undo.enter_context(DeviceBuffer(frame.data.size))
                self._uploads.append((buffer.pointer, pinned.pointer, frame.data.size))
            self._closing = undo.pop_all()

    def _copy(self, buffer, values):
        with PinnedBuffer(values.nbytes) as pinned:
            pinned.array[:] = values.reshape(-1).view('u1')
            copy_async(buffer.pointer, pinned.pointer, values.nbytes, self.stream)
            self.stream.synchronize()

    def engines(self):
        """Enqueue the engine."""
        self._context.enqueue(self.stream)

    def uploads(self):
        """Enqueue the upload of each frame, then the engine."""
        for place, source, size in self._uploads:
            copy_async(place, source, size, self.stream)
        self.engines()

    def close(self):
        self._closing.close()


def bare_loops(model, options, frames, count, batch):
    """Return frames per second of the engine alone and after uploads, by the loop's name."""
    with closing(CudaPipeline(model, replace(options, depth=1))) as pipeline:
        spec = pipeline.spec
    rates = {}
    with ExitStack() as own:
        engine = TensorRtEngine(model, Device(options.device_id))
        own.callback(engine.close)
        depth = options.depth
        loops = [
            own.enter_context(closing(Loop(engine, spec, frames[start : start + batch])))
            for start in range(0, depth * batch, batch)
        ]
        for loop in loops:
            loop.engines()  # the first run does work that a graph cannot capture
            loop.stream.synchronize()
        for name in ('engines', 'uploads'):
            works = [(loop, getattr(loop, name)) for loop in loops]
            rates[name] = batch * replayed(works, max(1, count // batch))
    return rates


def whole_loop(model, options, frames, count, batch):
    """Return frames per second of a loop with all GPU work of a batch."""
    options = replace(options, use_cuda_graph=False)
    with (
        closing(CudaPipeline(model, options)) as pipeline,
        copy_to_pipeline_memory(pipeline, frames) as placed,
    ):
        slots = pipeline.slots
        for index, slot in enumerate(slots):
            own = placed[index * batch : (index + 1) * batch]
            slot.stage(own, [THRESHOLDS] * batch)
            queue_batch(slot, None, upload=True)
            slot.stream.synchronize()
        works = [
            (slot, functools.partial(queue_batch, slot, prepare_maps(slot, batch), upload=True))
            for slot in slots
        ]
        return batch * replayed(works, max(1, count // batch))


def replayed(works, count):
    """Capture each work into a graph on its slot's stream. Return graph launches per second."""
    slots = [slot for slot, _ in works]
    with ExitStack() as graphs:
        own = [graphs.enter_context(Graph(slot.stream, work)) for slot, work in works]
        replay(slots, own, min(count, WARM_UP))
        return count / replay(slots, own, count)


def replay(slots, graphs, count):
    """Return the seconds that ``count`` launches take, with one launch in flight for each slot."""
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


def in_pipeline(model, options, frames, count, batch):
    """Measure the pipeline at full load, and with one batch at a time. Return its figures."""
    start = time.perf_counter()
    with (
        closing(CudaPipeline(model, options)) as pipeline,
        copy_to_pipeline_memory(pipeline, frames) as placed,
    ):
        load_s = time.perf_counter() - start
        control = MeasurementControl(count, warmup=min(count, WARM_UP))
        placed = placed[: len(placed) // batch * batch]
        expected = detect_all(pipeline, placed, THRESHOLDS, control, batch)
        report = measure_pipeline(pipeline, placed, THRESHOLDS, expected, control, batch)
        return replace(report, load_s=load_s)


def parse_arguments(arguments):
    parser = OptionParser('scripts/benchmarks/streams.py', __doc__, EXAMPLES)
    parser.add_argument('engine', metavar='ENGINE')
    parser.add_argument(
        '--depth',
        type=integer_at_least(1),
        nargs='+',
        default=[1, 3, 4, 8],
        help='default: 1 3 4 8',
    )
    parser.add_argument(
        '--batch',
        type=integer_at_least(1),
        nargs='+',
        default=[1],
        help='frames per batch; default: 1',
    )
    parser.add_argument(
        '--frames', type=integer_at_least(1), default=3000, metavar='N', help='default: 3000'
    )
    parser.add_argument('--encoding', default='bgr8', help='of the 1080p frames; default: bgr8')
    parser.add_argument('--json', metavar='FILE', help='write all figures')
    return parser.parse_args(arguments)


if __name__ == '__main__':
    with guarded_streams():
        sys.exit(main())
