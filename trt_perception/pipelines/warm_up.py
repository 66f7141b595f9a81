"""A pipeline made ready: opened, and run once on a grey image."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np

from trt_perception.images.frame import Frame, frame_from_bgr
from trt_perception.model.files.model_file import is_onnx
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines.pipeline import Pipeline, detect_one
from trt_perception.process.interruption import check_interruption

__all__ = [
    *(
        'OpenPipeline',
        'grey_frame',
        'copy_to_pipeline_memory',
        'open_warm_pipeline',
        'open_warm_pipelines',
        'warm_up',
    ),
]

_LOG: Final = logging.getLogger(__name__)

#: Opens a model file, as ``open_pipeline`` does.
OpenPipeline: TypeAlias = Callable[[str, PipelineOptions], Pipeline]


def grey_frame() -> Frame:
    """Return a small grey image, for a run whose result does not matter."""
    return frame_from_bgr(np.full((48, 64, 3), 114, np.uint8))


@contextmanager
def copy_to_pipeline_memory(pipeline: Pipeline, frames: Sequence[Frame]) -> Iterator[list[Frame]]:
    """Copy frames into memory of the pipeline, as a node's messages lie there.

    It is freed in the end, when none of them may be in a slot any more.
    """
    with ExitStack() as freeing:
        placed = []
        for frame in frames:
            memory = pipeline.allocate(frame.data.size)
            freeing.callback(memory.close)
            memory.array[:] = frame.data
            placed.append(replace(frame, data=memory.array, memory=memory))
        yield placed


def open_warm_pipeline(
    path: str, options: PipelineOptions, open_pipeline: OpenPipeline
) -> tuple[Pipeline, float]:
    """Open a model as *configure* does, and run it once in each slot.

    Args:
        path: of the model file.
        options: how the model is run.
        open_pipeline: opens the model.

    Returns:
        The pipeline, and the seconds that a frame took.

    Raises:
        TrtPerceptionError: the model cannot be used so; the message says why.
    """
    pipeline = open_pipeline(path, options)
    try:
        return pipeline, warm_up(pipeline)
    except BaseException:
        pipeline.close()
        raise


def open_warm_pipelines(
    path: str,
    options: PipelineOptions,
    open_pipeline: OpenPipeline,
    *,
    device_ids: Sequence[int],
    cameras: int,
) -> tuple[list[Pipeline], float]:
    """Make a pipeline ready on each GPU, one after the other.

    An ONNX file runs on the CPU: there is one pipeline for it, whatever ``device_ids`` says.

    Args:
        path: of the model file.
        options: how the model is run; the device and the number of frames at once are set here.
        open_pipeline: opens the model.
        device_ids: CUDA devices. Those beyond the number of cameras would have nothing to do.
        cameras: number of cameras to serve, at least 1.

    Returns:
        The pipelines, of which camera i has the (i modulo their number)-th, and the seconds that a
        frame took on the slowest.

    Raises:
        TrtPerceptionError: the model cannot be used so; all pipelines are closed again.
    """
    with ExitStack() as opened:
        pipelines, slowest_s = [], 0.0
        devices = device_ids[:cameras]
        if len(devices) > 1 and is_onnx(path):
            _LOG.info('device_ids is of no use here: an ONNX model runs once, on the CPU')
            devices = devices[:1]
        for number, device in enumerate(devices):
            served = len(range(number, cameras, len(devices)))
            own = replace(options, device_id=device, max_batch=served)
            pipeline, frame_time_s = open_warm_pipeline(path, own, open_pipeline)
            opened.callback(pipeline.close)
            pipelines.append(pipeline)
            slowest_s = max(slowest_s, frame_time_s)
        opened.pop_all()
        return pipelines, slowest_s


def warm_up(pipeline: Pipeline) -> float:
    """Run a grey image through every slot: the first real frame pays for nothing done once.

    Returns:
        Seconds that the last one took.

    Raises:
        InterruptionError: the process was asked to end.
    """
    started = 0.0
    with copy_to_pipeline_memory(pipeline, [grey_frame()]) as (grey,):
        for slot in range(pipeline.depth):
            check_interruption()
            started = time.perf_counter()
            detect_one(pipeline, grey, Thresholds(), slot)
        return time.perf_counter() - started
