# SPDX-License-Identifier: Apache-2.0
"""The limit: only replay a CUDA graph of each frame's upload, letterbox, engine and decoding.

The loop of scripts/benchmarks/streams.py, with one graph in flight for each slot. The frames are
in page-locked memory. The host reads no results in the loop.
"""

import functools
import itertools
import time
from collections import deque
from contextlib import ExitStack, closing, contextmanager

from side import CONFIDENCE, IOU, MAX_BOXES, serve

from trt_perception.gpu import Graph
from trt_perception.images.frame import frame_from_bgr
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.pipeline_options import DecodingLimits, PipelineOptions
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.benchmarking.gpu_steps import queue_batch
from trt_perception.pipelines.cuda.cuda_pipeline import CudaPipeline
from trt_perception.pipelines.pipeline import detect_one
from trt_perception.pipelines.warm_up import copy_to_pipeline_memory

THRESHOLDS = Thresholds(CONFIDENCE, IOU)


class Limit:
    def __init__(self, pipeline, placed):
        self.pipeline = pipeline
        self.placed = placed
        self.graphs = []

    def detect(self, bgr):
        """Return the boxes, which the pipeline computes with the same GPU work."""
        found = detect_one(self.pipeline, frame_from_bgr(bgr), THRESHOLDS).detections
        return found.xyxy, found.scores, found.class_ids

    def capture(self):
        """Capture the GPU work of one frame for each slot."""
        for slot, frame in zip(self.pipeline.slots, itertools.cycle(self.placed), strict=False):
            slot.stage([frame], [THRESHOLDS])
            queue_batch(slot, None, upload=True)
            slot.stream.synchronize()
            work = functools.partial(queue_batch, slot, None, upload=True)
            self.graphs.append(Graph(slot.stream, work))

    def run(self, _, seconds):
        """Return the time of each frame from the launch to its end."""
        if not self.graphs:
            self.capture()
        in_flight, times = deque(), []
        works = zip(self.pipeline.slots, self.graphs, strict=True)
        free = deque(works)
        end = time.perf_counter() + seconds
        while True:
            now = time.perf_counter()
            if free and (now < end or not (in_flight or times)):
                slot, graph = free.popleft()
                graph.launch(slot.stream)
                slot.finished.record(slot.stream)
                in_flight.append((slot, graph, now))
            elif in_flight:
                slot, graph, launched = in_flight.popleft()
                slot.finished.synchronize()
                times.append(time.perf_counter() - launched)
                free.append((slot, graph))
            else:
                return times

    def close(self):
        for graph in self.graphs:
            graph.close()


@contextmanager
def opened(options, frames):
    wanted = PipelineOptions(
        depth=options.depth, use_cuda_graph=False, limits=DecodingLimits(MAX_BOXES)
    )
    with ExitStack() as closes:
        model = read_model_file(options.model)
        pipeline = closes.enter_context(closing(CudaPipeline(model, wanted)))
        own = [frame_from_bgr(frame) for frame in frames]
        for slot in range(options.depth):  # the first run does work that a graph cannot capture
            detect_one(pipeline, own[0], THRESHOLDS, slot)
        placed = closes.enter_context(copy_to_pipeline_memory(pipeline, own))
        yield closes.enter_context(closing(Limit(pipeline, placed)))


if __name__ == '__main__':
    serve(opened)
