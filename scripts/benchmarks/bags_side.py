# SPDX-License-Identifier: Apache-2.0
"""The sides of bags.py: run detect_bag in this process, and record when images are finished.

    python scripts/benchmarks/bags_side.py RECORD.json run|steps ARGUMENTS OF detect_bag

`run` changes nothing. With `steps`, this process also runs the model, and measures single steps.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
import time
from collections import deque
from pathlib import Path

# A checkout needs no installation. Processes of detect_bag import this module again.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from trt_perception.bags.open_bag import open_bag
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.bags import image_reading, records
from trt_perception.offline.bags.part_runner import PartRunner
from trt_perception.offline.bags.workers import Finished, Opened, Progress
from trt_perception.offline.tools import detect_bag
from trt_perception.pipelines.warm_up import copy_to_pipeline_memory
from trt_perception.transport.advice import keep_freed_memory

CLOCK_TICKS = os.sysconf('SC_CLK_TCK')
FRAMES = 32  # of the step `model`
MODEL_S = 2.0
#: What the thread that runs the model, and the thread that reads the bag, can spend time on.
ACTIVITIES = {
    'wait for images': (image_reading.ReadAhead, 'next_image'),
    'write results': (records.PartWriter, 'add'),
    'read: wait for room': (image_reading._Budget, 'wait_for_room'),
}


def cpu_s():
    """Return the CPU time of this process and of its workers, in seconds."""
    total = time.process_time()
    for child in multiprocessing.active_children():
        with contextlib.suppress(OSError):  # it has ended
            fields = Path(f'/proc/{child.pid}/stat').read_text().rpartition(')')[2].split()
            total += (int(fields[11]) + int(fields[12])) / CLOCK_TICKS
    return total


def recorded(run_parts, record):
    """Return `run_parts` that appends [time, CPU time, event, part, images] to the record."""

    def run(parts, job, workers, place):
        record['parts'] = len(parts)
        for event in run_parts(parts, job, workers, place):
            part = getattr(event, 'part', None)
            record['events'].append(
                [
                    *(time.monotonic(), cpu_s(), type(event).__name__),
                    part and f'{part.bag}#{part.number}',
                    getattr(event, 'images', 0),
                ]
            )
            before = time.process_time()
            yield event
            record['join_cpu_s'] += time.process_time() - before

    return run


def steps(parts, job, device_id, found):
    """Measure the steps in this process, and run the parts. A stand-in for `run_parts`.

    Args:
        found: receives images per second of each step, the CPU time of an image in the steps of
            reading (`cpu_ms`), and seconds of each activity.
    """
    keep_freed_memory()  # as in a worker
    bag = parts[0].bag
    cpu_ms = found['cpu_ms'] = {}
    with contextlib.closing(open_bag(bag)) as opened:
        topics = [camera.topic for camera in parts[0].cameras]
        found['read'], cpu_ms['read'] = rate(opened.messages(topics))
    runner = PartRunner(job, device_id)
    try:
        yield Opened(runner.facts)
        found['read and decode'], cpu_ms['read and decode'] = rate(
            decoded_images(runner, parts[0])
        )
        found['model'] = model_rate(runner, parts[0], FRAMES)
        seconds = found['seconds'] = {}
        with contextlib.ExitStack() as restore:
            pipeline = type(runner._pipeline)
            methods = {
                **ACTIVITIES,
                'enqueue': (pipeline, 'enqueue'),
                'wait for the model': (pipeline, 'collect'),
            }
            for name, (owner, method) in methods.items():
                restore.enter_context(timed(owner, method, seconds, name))
            images, start = [], time.monotonic()
            for part in parts:
                runner.run(part, images.append)
                yield Progress(part, sum(images))
                images.clear()
                yield Finished(part)
            seconds['all'] = time.monotonic() - start
    finally:
        runner.close()


def rate(items):
    """Return items per second of an iterator, and CPU time of this process per item in ms."""
    start, cpu_start_s = time.monotonic(), time.process_time()
    count = sum(1 for _ in items)
    return count / (time.monotonic() - start), 1e3 * (time.process_time() - cpu_start_s) / count


def decoded_images(runner, part):
    """Yield the images of a part, without running the model."""
    with runner._read_ahead(runner._open(part.bag), part, needs_info=False) as images:
        while (image := images.next_image()) is not None:
            yield image
            image.release()


def model_rate(runner, part, count):
    """Return images per second of the model with images in memory, all slots busy."""
    pipeline = runner._pipeline
    camera = part.cameras[0]
    reader = image_reading.ImageTopic(
        camera.name, is_compressed=camera.is_compressed, decodes_jpeg=pipeline.decodes_jpeg
    )
    with contextlib.closing(open_bag(part.bag)) as bag:
        frames = [
            reader.read(message.data)[1]
            for message, _ in zip(bag.messages([camera.topic]), range(count), strict=False)
        ]
    is_decoded = all(frame.is_decoded for frame in frames)
    with contextlib.ExitStack() as memory:
        if is_decoded and runner._memories is not None:
            frames = memory.enter_context(copy_to_pipeline_memory(pipeline, frames))
        free, in_flight, done = deque(range(pipeline.depth)), deque(), 0
        start = time.monotonic()
        while (elapsed := time.monotonic() - start) < MODEL_S or not done:
            if not free:
                pipeline.collect(in_flight[0])
                free.append(in_flight.popleft())
                done += pipeline.batch
            first = len(in_flight) + done
            batch = [frames[(first + index) % len(frames)] for index in range(pipeline.batch)]
            in_flight.append(free.popleft())
            pipeline.enqueue(in_flight[-1], batch, [Thresholds()] * len(batch))
        for slot in in_flight:
            pipeline.collect(slot)
    return done / elapsed


@contextlib.contextmanager
def timed(owner, method, seconds, name):
    """Add the time of a method to `seconds` until the end of the block."""
    original = getattr(owner, method)
    seconds[name] = 0.0

    def run(*arguments, **options):
        start = time.monotonic()
        try:
            return original(*arguments, **options)
        finally:
            seconds[name] += time.monotonic() - start

    setattr(owner, method, run)
    yield
    setattr(owner, method, original)


def main():
    target, side, *arguments = sys.argv[1:]
    record = {'parts': 0, 'events': [], 'join_cpu_s': 0.0, 'steps': {}}

    def run_steps(parts, job, _, device_ids):
        return steps(parts, job, device_ids[0], record['steps'])

    run_parts = detect_bag.run_parts if side == 'run' else run_steps
    detect_bag.run_parts = recorded(run_parts, record)
    detect_bag.run_parts_with_ray = recorded(detect_bag.run_parts_with_ray, record)
    code = detect_bag.main(arguments)
    Path(target).write_text(json.dumps(record), encoding='utf-8')
    return code


if __name__ == '__main__':
    sys.exit(main())
