# SPDX-License-Identifier: Apache-2.0
"""The pipeline of trt_perception's node, with one or more frames in flight.

The frames are in ordinary memory, so that the pipeline copies each one into page-locked memory.
With --page-locked they are in page-locked memory already, as in the node, which receives messages
there.
"""

import time
from collections import deque
from contextlib import ExitStack, closing, contextmanager

from side import CONFIDENCE, IOU, MAX_BOXES, serve

import trt_perception
from trt_perception.images.frame import frame_from_bgr
from trt_perception.model.pipeline_options import DecodingLimits, PipelineOptions
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.open_pipeline import open_pipeline
from trt_perception.pipelines.pipeline import collect_all, detect_one
from trt_perception.pipelines.warm_up import copy_to_pipeline_memory

THRESHOLDS = Thresholds(CONFIDENCE, IOU)


class OursPipeline:
    def __init__(self, pipeline, placed):
        self.pipeline = pipeline
        self.placed = placed
        self.facts = {'trt_perception': trt_perception.__version__}

    def detect(self, bgr):
        found = detect_one(self.pipeline, frame_from_bgr(bgr), THRESHOLDS).detections
        return found.xyxy, found.scores, found.class_ids

    def run(self, frames, seconds):
        """Keep all slots busy. Return the time of each frame from enqueue to result."""
        pipeline, placed = self.pipeline, self.placed
        free, in_flight, times = deque(range(pipeline.depth)), deque(), []
        end = time.perf_counter() + seconds
        submitted = 0
        while True:
            now = time.perf_counter()
            if free and (now < end or not submitted):
                if placed:
                    frame = placed[submitted % len(placed)]
                else:
                    frame = frame_from_bgr(frames[submitted % len(frames)])
                slot = free.popleft()
                pipeline.enqueue(slot, [frame], [THRESHOLDS])
                in_flight.append((slot, now))
                submitted += 1
            elif in_flight:
                slot, enqueued = in_flight.popleft()
                collect_all(pipeline, slot)
                free.append(slot)
                times.append(time.perf_counter() - enqueued)
            else:
                return times


@contextmanager
def opened(options, frames):
    limits = DecodingLimits(MAX_BOXES)
    wanted = PipelineOptions(depth=options.depth, limits=limits)
    with ExitStack() as closes:
        pipeline = closes.enter_context(closing(open_pipeline(options.model, wanted)))
        placed = []
        if options.page_locked:
            # Each frame in flight needs memory of its own.
            count = max(len(frames), options.depth)
            own = [frame_from_bgr(frames[index % len(frames)]) for index in range(count)]
            placed = closes.enter_context(copy_to_pipeline_memory(pipeline, own))
        yield OursPipeline(pipeline, placed)


if __name__ == '__main__':
    serve(opened)
