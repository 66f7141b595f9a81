# SPDX-License-Identifier: Apache-2.0
"""Opens pipelines and runs each slot once on a grey image, so that the first frame is fast."""

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
from trt_perception.model.files.triton_address import is_triton_address
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.image_sized_pipeline import ImageSizedPipeline
from trt_perception.pipelines.pipeline import Pipeline, detect_one
from trt_perception.process.interruption import check_interruption, step

_LOG: Final = logging.getLogger(__name__)

#: Opens a model file. `open_pipeline` has this type.
OpenPipeline: TypeAlias = Callable[[str, PipelineOptions], Pipeline]


def grey_frame() -> Frame:
    """Return a grey image of 64 x 48 pixels, for runs whose result is ignored."""
    return frame_from_bgr(np.full((48, 64, 3), 114, np.uint8))


@contextmanager
def copy_to_pipeline_memory(pipeline: Pipeline, frames: Sequence[Frame]) -> Iterator[list[Frame]]:
    """Copy frames into memory from `Pipeline.allocate`, as a node does with its messages.

    The ``with`` block frees the memory at its end. By then, every slot must have finished with
    the frames.
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
    """Open a model as the node's transition *configure* does, and run the model in each slot.

    Returns:
        The pipeline, and the seconds that the last frame took.

    Raises:
        TrtPerceptionError: the model cannot be used with these options. The message says why.
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
    """Open a pipeline on each GPU, one after the other, and run it once in each slot.

    An ONNX file runs in a single pipeline, with the first of `device_ids`.

    Args:
        options: options of the pipelines, except device and batch size.
        device_ids: indices of CUDA devices. Devices beyond the number of cameras are not used.
        cameras: number of cameras; at least 1.

    Returns:
        The pipelines, and the seconds that a frame took in the slowest pipeline. Camera i uses
        pipeline i modulo the number of pipelines.

    Raises:
        TrtPerceptionError: the model cannot be used with these options. All pipelines are closed.
        InterruptionError: the process was asked to end. All pipelines are closed.
    """
    with ExitStack() as opened:
        pipelines, slowest_s = [], 0.0
        devices = device_ids[:cameras]
        if len(devices) > 1 and (is_onnx(path) or is_triton_address(path)):
            _LOG.info('device_ids after the first are ignored: this model has one pipeline')
            devices = devices[:1]
        with step('loading the model'):
            for number, device in enumerate(devices):
                served = len(range(number, cameras, len(devices)))
                check_interruption()
                own = replace(options, device_id=device, max_batch=served)
                pipeline, frame_time_s = open_warm_pipeline(path, own, open_pipeline)
                opened.callback(pipeline.close)
                pipelines.append(pipeline)
                slowest_s = max(slowest_s, frame_time_s)
        opened.pop_all()
        return pipelines, slowest_s


def warm_up(pipeline: Pipeline) -> float:
    """Run a grey image through every slot, so that the first camera image is fast.

    Returns:
        Seconds that the last run took.

    Raises:
        InterruptionError: the process was asked to end.
    """
    if isinstance(pipeline, ImageSizedPipeline):
        pipeline = pipeline.opened  # a grey image must not decide the size
    started = 0.0
    with copy_to_pipeline_memory(pipeline, [grey_frame()]) as (grey,):
        for slot in range(pipeline.depth):
            check_interruption()
            started = time.perf_counter()
            detect_one(pipeline, grey, Thresholds(), slot)
        return time.perf_counter() - started
